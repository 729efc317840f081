"""Operators of ONNX Runtime's own domain that later became ONNX's, and small ones for a single formula."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import numpy as np

from jaxport.importer.ops.arranging import pad
from jaxport.importer.ops.contrib_attention import DOMAIN, refuse
from jaxport.importer.ops.convolution import ConvolutionAttributes, conv_transpose
from jaxport.importer.ops.indexing import gather_at
from jaxport.importer.ops.linear_algebra import scaled
from jaxport.importer.ops.resizing import grid_sample_image
from jaxport.importer.ops.searching import unique
from jaxport.importer.ops.shapes import range_
from jaxport.importer.resolving.registry import Host, Known, SizeBound, op, variant
from jaxport.importer.values.dtypes import STRING, canonical
from jaxport.importer.values.host import host
from jaxport.importer.values.image_layout import ONNX
from jaxport.importer.values.namespaces import cast, for_strings, helper, jnp, lax, nn

op(DOMAIN, "GatherND", since=1)(variant("batch_dims")(gather_at))


@op(DOMAIN, "GridSample", since=1)
def grid_sample_of(X, Grid, *, align_corners=0, mode="bilinear", padding_mode="zeros"):
    return grid_sample_image(X, Grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@op(DOMAIN, "Pad", since=1)
def pad_of(data, pads: Host, value=None, *, mode="constant"):
    return pad(data, pads.reshape(-1), value, mode=mode)


@op(DOMAIN, "Range", since=1)
def range_of(start: Host, limit: Host, delta: Host | None = None):
    step = host(np.ones((), start.dtype)) if delta is None else delta.reshape(())
    return range_(start.reshape(()), limit.reshape(()), step)


@op(DOMAIN, "Unique", since=1)
def unique_of(x: Known, *, bound: SizeBound = None):
    values, _, inverse, counts = unique(x, sorted=0, bound=bound)
    return values, inverse, counts


@op(DOMAIN, "SampleOp", since=1)
def sample_op(X):
    return X


@op(DOMAIN, "ConvTransposeWithDynamicPads", since=1)
@variant("pads")
def conv_transpose_with_pads(
    X, W, Pads: Host | None = None, B=None, *, output_padding=None, window: ConvolutionAttributes
):
    window = replace(window, pads=None if Pads is None else list(Pads))
    return conv_transpose(ONNX, X, W, B, output_padding=output_padding, window=window)


@op(DOMAIN, "SparseToDenseMatMul", since=1)
def sparse_matmul(A, B, *, alpha=1.0, transA=0, transB=0):
    # A sparse initializer is dense here.
    return scaled((A.T if transA else A) @ (B.T if transB else B), alpha)


@op(DOMAIN, "GatedAdd", since=1)
def gated_add(X, Y, gate, gate_weight=None):
    if gate_weight is not None:  # ONNX Runtime rounds the projection, and then the sigmoid
        projected = cast(jnp.matmul(cast(gate, np.float32), cast(gate_weight, np.float32)), X.dtype)
        gate = cast(nn.sigmoid(cast(projected, np.float32)), X.dtype)
    return X + Y * gate


@op(DOMAIN, "ScaledSiLU", since=1)
def scaled_silu(X, scale=None, *, alpha=1.0):
    z = X * (cast(host(alpha), X.dtype) if scale is None else cast(jnp.reshape(scale, ()), X.dtype))
    return z * nn.sigmoid(z)


@op(DOMAIN, "GatedRMSNorm", since=1)
def gated_rms_norm(X, scale, gate, *, activation="silu", epsilon=1e-5):
    x, z = cast(jnp.reshape(X, (*X.shape[:-1], -1, scale.shape[0])), np.float32), cast(gate, np.float32)
    y = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * cast(scale, np.float32)
    return cast(jnp.reshape(y, X.shape) * (nn.sigmoid(z) if activation == "sigmoid" else nn.silu(z)), X.dtype)


@op(DOMAIN, "UnfoldTensor", since=1)
def unfold_tensor(input, *, dim=-1, size, step=1):
    axis = dim % input.ndim
    starts = np.arange(0, input.shape[axis] - size + 1, step)
    windows = jnp.take(input, starts[:, None] + np.arange(size), axis=axis)
    return jnp.moveaxis(windows, axis + 1, -1)


@helper
def limited(scores, tokens, limits):
    """Return `scores` with those of the given tokens clipped to these limits in each row."""
    return jax.vmap(lambda row, at, limit: row.at[at].min(limit))(scores, tokens, limits)


@op(DOMAIN, "NGramRepeatBlock", since=1)
def ngram_repeat_block(input_ids, scores, *, ngram_size):
    length, before = input_ids.shape[1], ngram_size - 1
    if length < ngram_size:
        return scores
    starts = np.arange(length - before)
    grams = jnp.take(input_ids, starts[:, None] + np.arange(before), axis=1)
    repeated = jnp.all(grams == jnp.expand_dims(input_ids[:, length - before :], 1), axis=2)
    limits = jnp.where(repeated, -math.inf, math.inf)
    return limited(scores, input_ids[:, before:], cast(limits, scores.dtype))


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)


@op(DOMAIN, "MatMulBnb4", since=1)
def matmul_bnb4(A, B, absmax, *, K, N, block_size, quant_type, training_mode=0, transB=1):
    refuse(quant_type not in (0, 1), f"the quantization type {quant_type} is neither 0 (FP4) nor 1 (NF4)")
    table = host(np.array(NF4 if quant_type else [*FP4, *(-value for value in FP4)], np.float32))
    codes = cast(jnp.reshape(B, (-1, 1)), np.int32)
    elements = jnp.take(table, jnp.reshape(jnp.concatenate([codes >> 4, codes & 15], axis=1), (-1,)))
    elements = elements[: N * K]
    scales = jnp.repeat(cast(absmax, np.float32), block_size)[: N * K]
    weights = cast(jnp.reshape(elements * scales, (N, K) if transB else (K, N)), A.dtype)
    return A @ (weights.T if transB else weights)


@helper
def murmur_hash(x, seed, positive):
    """Return MurmurHash3 (32 bits) of the bytes of each number."""
    words = lax.bitcast_convert_type(x, jnp.uint32)
    words = words[..., None] if words.ndim == x.ndim else words
    state, rotated = jnp.uint32(seed), lambda u, bits: (u << bits) | (u >> (32 - bits))
    for index in range(words.shape[-1]):
        mixed = rotated(words[..., index] * jnp.uint32(0xCC9E2D51), 15) * jnp.uint32(0x1B873593)
        state = rotated(state ^ mixed, 13) * jnp.uint32(5) + jnp.uint32(0xE6546B64)
    state = state ^ jnp.uint32(4 * words.shape[-1])
    for factor, bits in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        state = (state ^ (state >> bits)) * jnp.uint32(factor)
    state = state ^ (state >> 16)
    return state if positive else lax.bitcast_convert_type(state, jnp.int32)


@op(DOMAIN, "MurmurHash3", since=1)
def murmur_hash_3(X, *, positive=1, seed=0):
    if X.dtype != STRING:
        narrowed = canonical(np.dtype(np.int64)) != np.int64
        refuse(narrowed, "64-bit types are off, so 32-bit and 64-bit numbers cannot be told apart; turn them on")
        return murmur_hash(X, seed % 2**32, bool(positive))
    texts = for_strings(X)
    hashes = [_murmur_of_bytes(text.encode(), seed % 2**32) for text in texts.data.ravel().tolist()]
    if not positive:
        hashes = [number - 2**32 if number >= 2**31 else number for number in hashes]
    return host(np.array(hashes, np.uint32 if positive else np.int32).reshape(texts.shape))


def _murmur_of_bytes(data: bytes, seed: int) -> int:
    def mixed(word: int) -> int:
        word = word * 0xCC9E2D51 % 2**32
        return (word << 15 | word >> 17) % 2**32 * 0x1B873593 % 2**32

    state, whole = seed, len(data) // 4 * 4
    for at in range(0, whole, 4):
        state ^= mixed(int.from_bytes(data[at : at + 4], "little"))
        state = ((state << 13 | state >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32
    if whole < len(data):
        state ^= mixed(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    for factor, bits in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        state = (state ^ state >> bits) * factor % 2**32
    return state ^ state >> 16

"""Attention: scaled dot products of queries and keys, linear attention, and rotary position embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from jaxport.importer.ops.arithmetic import divide
from jaxport.importer.resolving.registry import OutputCount, earlier, op
from jaxport.importer.values.dtypes import dtype_of
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import cast, helper, jnp, known, lax, nn
from jaxport.jaxprs import Dim


def split_heads(x: Any, heads: Dim | None) -> Tensor:
    """Reshape (batch, length, heads * size) to (batch, heads, length, size)."""
    if heads is None:
        raise TypeError("the number of heads is not given")
    batch, length, width = x.shape
    return jnp.swapaxes(jnp.reshape(x, (batch, length, heads, width // heads)), 1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Reshape (batch, heads, length, size) to (batch, length, heads * size)."""
    batch, heads, length, size = x.shape
    return jnp.reshape(jnp.swapaxes(x, 1, 2), (batch, length, heads * size))


def positions(queries: Dim, keys: Dim, offset: Tensor | Dim = 0) -> Tensor:
    """Return the position of each query minus that of each key: (queries, keys), or (batch, 1, queries, keys)."""
    at = jnp.expand_dims(jnp.arange(queries), 1)
    return (at if isinstance(offset, int) and offset == 0 else at + offset) - jnp.arange(keys)


def both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the conjunction of two masks; None holds everywhere."""
    return second if first is None else first if second is None else jnp.logical_and(first, second)


def joined(past: Tensor | None, new: Tensor) -> Tensor:
    """Return the keys or values of a cache, if there is one, and the new ones: (batch, heads, length, size)."""
    return new if past is None else jnp.concatenate([past, new], axis=2)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right`, where each head of `right` serves as many consecutive heads of `left`."""
    batch, heads, rows, size = left.shape
    shared = right.shape[1]
    if heads == shared:
        return left @ right
    grouped = jnp.reshape(left, (batch, shared, heads // shared * rows, size)) @ right
    return jnp.reshape(grouped, (batch, heads, rows, right.shape[3]))


def products(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """Return scaled products of queries and keys; small types split the scale between both to avoid overflow."""
    scale = 1 / math.sqrt(int(q.shape[3])) if scale is None else scale
    if q.dtype.itemsize >= 4:
        return product(q * scale, k.mT)
    return product(q * math.sqrt(scale), (k * math.sqrt(scale)).mT)


def lowest(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).min)


def probabilities(scores: Tensor, allowed: Tensor | None = None, certain: bool = False) -> Tensor:
    """Return softmax over the allowed keys; zero for a query without any, unless `certain` excludes that."""
    if allowed is None:
        return nn.softmax(scores, axis=-1)
    host = known(allowed)
    if certain or (host is not None and not host.symbolic and np.all(np.any(host.data, axis=-1))):
        return nn.softmax(jnp.where(allowed, scores, -math.inf), axis=-1)
    # Softmax and its gradient are NaN for infinities only, and finite for equal numbers.
    weights = nn.softmax(jnp.where(allowed, scores, lowest(scores.dtype)), axis=-1)
    return jnp.where(jnp.any(allowed, axis=-1, keepdims=True), weights, 0.0)


def capped(scores: Tensor, cap: float) -> Tensor:
    return jnp.tanh(divide(scores, cap)) * cap if cap else scores


def _extended(mask: Tensor, keys: Dim) -> Tensor:
    """Return a mask padded to `keys` keys; those beyond its end are masked."""
    if mask.shape[-1] == keys:
        return mask
    fill = False if mask.dtype == bool else -math.inf
    return jnp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])], constant_values=fill)


@op("Attention", since=25)
def attention(
    Q,
    K,
    V,
    attn_mask=None,
    past_key=None,
    past_value=None,
    nonpad_kv_seqlen=None,
    *,
    is_causal=0,
    kv_num_heads=None,
    left_window_size=-1,
    q_num_heads=None,
    qk_matmul_output_mode=0,
    right_window_size=-1,
    scale=None,
    softcap=0.0,
    softmax_precision=None,
    outputs: OutputCount = 1,
):
    packed = Q.ndim == 3
    q, k, v = (split_heads(Q, q_num_heads), *(split_heads(x, kv_num_heads) for x in (K, V))) if packed else (Q, K, V)
    k, v = joined(past_key, k), joined(past_value, v)
    queries, keys = q.shape[2], k.shape[2]
    lengths = None if nonpad_kv_seqlen is None else jnp.reshape(nonpad_kv_seqlen, (-1, 1, 1, 1))
    before = past_key.shape[2] if past_key is not None else 0 if lengths is None else lengths - queries
    allowed = _visible(queries, keys, before, is_causal, left_window_size, right_window_size)
    if lengths is not None:
        allowed = both(allowed, jnp.arange(keys) < lengths)
    mask = None if attn_mask is None else _extended(attn_mask, keys)
    if mask is not None:
        allowed = both(allowed, mask if mask.dtype == bool else mask > -math.inf)
    raw = products(q, k, scale)
    cap = capped(raw, softcap)
    scores = cap if mask is None or mask.dtype == bool else cap + mask
    # Each query can see at least the first key before it.
    certain = mask is None and lengths is None and left_window_size < 0
    precise = scores if softmax_precision is None else cast(scores, dtype_of(softmax_precision))
    weights = cast(probabilities(precise, allowed, certain), q.dtype)
    y = product(weights, v)
    seen = raw
    if outputs == 4 and qk_matmul_output_mode:
        masked = scores if allowed is None else jnp.where(allowed, scores, -math.inf)
        seen = (raw, cap, masked, weights)[qk_matmul_output_mode]
    return (merge_heads(y) if packed else y), k, v, seen


def _visible(queries: Dim, keys: Dim, before: Tensor | Dim, causal: int, left: int, right: int) -> Tensor | None:
    """Return which keys a query may see by their distance, or None for all; `before` keys precede the first query."""
    if not causal and left < 0 and right < 0:
        return None
    behind = positions(queries, keys, before)
    ahead = 0 if causal else right
    return both(None if left < 0 else behind <= left, None if ahead < 0 else behind >= -ahead)


earlier("Attention", since=24, until=24, without="left_window_size right_window_size")
earlier("Attention", since=23, until=23, without="nonpad_kv_seqlen")


@op("ai.onnx.preview", "FlexAttention", since=1)
def flex_attention(Q, K, V, *, prob_mod=None, scale=None, score_mod=None, softmax_precision=None):
    precision = np.dtype("float32") if Q.dtype.itemsize < 4 else Q.dtype
    precision = precision if softmax_precision is None else dtype_of(softmax_precision)
    scores = products(Q, K, scale)
    weights = nn.softmax(_modified(cast(scores, precision), score_mod), axis=-1)
    return product(cast(_modified(weights, prob_mod), V.dtype), V)


def _modified(x: Tensor, modifier: Callable[..., tuple[Tensor]] | None) -> Tensor:
    return x if modifier is None else modifier(x)[0]


@helper
def linear_attention_scan(query, key, value, state, decay, beta):
    """Compute attention as a recurrence over a matrix `state`; all are (batch, heads, length, size)."""

    def step(state, row):
        q, k, v, g, b = row
        if g is not None:
            state = state * jnp.exp(g)[..., None]
        if b is not None:
            v = b * (v - jnp.einsum("bhdm,bhd->bhm", state, k))
        state = state + k[..., :, None] * v[..., None, :]
        return state, jnp.einsum("bghd,bhdm->bghm", q, state)

    rows = [None if x is None else jnp.moveaxis(x, -2, 0) for x in (query, key, value, decay, beta)]
    state, outputs = lax.scan(step, state, rows)
    return jnp.moveaxis(outputs, 0, -2), state


@op("LinearAttention", since=27)
def linear_attention(
    query,
    key,
    value,
    past_state=None,
    decay=None,
    beta=None,
    *,
    chunk_size=64,
    kv_num_heads,
    q_num_heads,
    scale=0.0,
    update_rule="gated_delta",
):
    q = split_heads(query, q_num_heads)
    batch, heads, length, size = q.shape
    q = jnp.swapaxes(jnp.reshape(q, (batch, kv_num_heads, heads // kv_num_heads, length, size)), 1, 2)
    k, v = split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
    gate = None if decay is None else cast(split_heads(decay, kv_num_heads), np.float32)
    rate = None if beta is None else cast(split_heads(beta, beta.shape[-1]), np.float32)
    state = jnp.zeros((batch, kv_num_heads, size, v.shape[3])) if past_state is None else cast(past_state, np.float32)
    y, state = linear_attention_scan(*(cast(x, np.float32) for x in (q, k, v)), state, gate, rate)
    y = jnp.reshape(jnp.swapaxes(y, 1, 2), (batch, heads, length, v.shape[3])) * (scale or 1 / math.sqrt(int(size)))
    return cast(merge_heads(y), query.dtype), cast(state, query.dtype if past_state is None else past_state.dtype)


@helper
def rotary(x, cos, sin):
    """Rotate each element of the first half of the last axis, with that of the second half, by an angle."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([cos * first - sin * second, sin * first + cos * second], axis=-1)


@helper
def rotary_interleaved(x, cos, sin):
    """Rotate each element at an even place of the last axis, with the one behind it, by an angle."""
    first, second = x[..., 0::2], x[..., 1::2]
    pairs = jnp.stack([cos * first - sin * second, sin * first + cos * second], axis=-1)
    return jnp.reshape(pairs, x.shape)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: int, size: int = 0) -> Tensor:
    """Return `x` with pairs (halves or neighbours) among its first `size` features, or all if zero, rotated."""
    x, rest = (x, None) if size in (0, x.shape[-1]) else (x[..., :size], x[..., size:])
    y = rotary_interleaved(x, cos, sin) if interleaved else rotary(x, cos, sin)
    return y if rest is None else jnp.concatenate([y, rest], axis=-1)


@op("RotaryEmbedding", since=23)
def rotary_embedding(
    X, cos_cache, sin_cache, position_ids=None, *, interleaved=0, num_heads=None, rotary_embedding_dim=0
):
    x = X if X.ndim == 4 else split_heads(X, num_heads)
    caches = (cos_cache, sin_cache)
    cos, sin = caches if position_ids is None else (jnp.take(cache, position_ids, axis=0) for cache in caches)
    y = rotated(x, jnp.expand_dims(cos, 1), jnp.expand_dims(sin, 1), interleaved, rotary_embedding_dim)
    return y if X.ndim == 4 else merge_heads(y)

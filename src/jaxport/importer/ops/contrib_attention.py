"""Attention of ONNX Runtime's own domain, as fused and exported transformers contain it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxport.errors import Refusal, Unsupported
from jaxport.importer.ops.attention import (
    both,
    capped,
    joined,
    lowest,
    merge_heads,
    positions,
    probabilities,
    product,
    products,
    rotated,
    split_heads,
)
from jaxport.importer.ops.quantization import matmul_integer
from jaxport.importer.resolving.registry import Host, OutputCount, op, variant
from jaxport.importer.values.host import Tensor, Undecided, dims_compare
from jaxport.importer.values.namespaces import cast, helper, jnp, lax
from jaxport.jaxprs import Dim
from jaxport.jaxprs.dims import max_dim

DOMAIN = "com.microsoft"


def refuse(used: bool, feature: str) -> None:
    """Refuse a feature of an operator if it is used."""
    if used:
        raise Unsupported("a fused operator uses an option that is not supported", [Refusal("", "", feature)])


def _filled(mask: Tensor, filter_value: float | None, dtype: np.dtype) -> Tensor:
    """Return the term that a mask adds to the scores: zero where it holds, a large negative number elsewhere."""
    filler = max(-10000.0 if filter_value is None else filter_value, lowest(dtype))
    return cast(jnp.where(mask, 0.0, filler), dtype)


def _padding(mask: Tensor | None, batch: Dim, keys: Dim, filter_value: float | None, dtype: np.dtype) -> Tensor | None:
    """Return a mask in any form (lengths, ends and starts, per key, per query and key) as a term of the scores."""
    if mask is None:
        return None
    refuse(mask.ndim == 4, "masks of rank 4; give one of (batch, queries, keys)")
    if mask.ndim == 3:
        return _filled(jnp.expand_dims(mask, 1) > 0, filter_value, dtype)
    if mask.ndim == 2:
        return _filled(jnp.reshape(mask, (batch, 1, 1, -1)) > 0, filter_value, dtype)
    at = jnp.arange(keys)
    ends = jnp.reshape(mask[:batch], (-1, 1, 1, 1))
    if mask.shape[0] == batch:
        return _filled(at < ends, filter_value, dtype)
    refuse(mask.shape[0] != 2 * batch, "masks by cumulative lengths")
    return _filled((at < ends) & (at >= jnp.reshape(mask[batch:], (-1, 1, 1, 1))), filter_value, dtype)


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *terms: Tensor | None,
    causal: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the result (batch, queries, width) and the scores.

    `terms` are added to the scores, `causal` is the mask of visible keys: at least one for each query.
    """
    scores = capped(products(q, k, scale or None), softcap)
    for term in terms:
        scores = scores if term is None else scores + term
    if sink is None:
        return merge_heads(product(probabilities(scores, causal, certain=True), v)), scores
    # A sink takes its share of the attention, but has no value.
    column = jnp.broadcast_to(jnp.reshape(cast(sink, scores.dtype), (1, -1, 1, 1)), (*scores.shape[:3], 1))
    visible = scores if causal is None else jnp.where(causal, scores, -math.inf)
    weights = probabilities(jnp.concatenate([visible, column], axis=3))
    return merge_heads(product(weights[..., :-1], v)), scores


@dataclass(frozen=True, kw_only=True)
class HeadAttributes:
    """The attributes of attention with several heads."""

    mask_filter_value: float | None = None
    num_heads: int
    scale: float | None = None
    unidirectional: int = 0

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, term: Tensor | None, before: Dim
    ) -> tuple[Tensor, Tensor]:
        """Return the result and the scores of heads (batch, heads, length, size); `before` keys precede the queries."""
        padding = _padding(mask, q.shape[0], k.shape[2], self.mask_filter_value, q.dtype)
        causal = positions(q.shape[2], k.shape[2], before) >= 0 if self.unidirectional else None
        if (
            causal is not None and k.shape[2] != before + q.shape[2]
        ):  # the last query sees all keys, if there are more of them
            causal = causal | (jnp.arange(q.shape[2])[:, None] == q.shape[2] - 1)
        return _attended(q, k, v, padding, term, causal=causal, scale=self.scale)


@dataclass(frozen=True, kw_only=True)
class SelfAttentionAttributes(HeadAttributes):
    """The attributes of attention whose queries, keys and values come from one input."""

    do_rotary: int | None = None
    past_present_share_buffer: int | None = None

    def self_attended(
        self,
        projected: Tensor,
        mask: Tensor | None,
        past: Tensor | None,
        term: Tensor | None = None,
        sizes: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention from projections with queries, keys and values side by side; keys and values are
        stacked.
        """
        refuse(bool(self.do_rotary), "`do_rotary`; use GroupQueryAttention")
        refuse(bool(self.past_present_share_buffer), "`past_present_share_buffer`")
        parts = jnp.split(projected, 3 if sizes is None else [sizes[0], sizes[0] + sizes[1]], axis=2)
        q, k, v = (split_heads(x, self.num_heads) for x in parts)
        k, v = (k, v) if past is None else (joined(past[0], k), joined(past[1], v))
        y, _ = self.attended(q, k, v, mask, term, 0 if past is None else past.shape[3])
        return y, jnp.stack([k, v]) if k.shape == v.shape else None


@op(DOMAIN, "Attention", since=1)
def attention(
    input,
    weights,
    bias=None,
    mask_index=None,
    past=None,
    attention_bias=None,
    past_sequence_length=None,
    *,
    qkv_hidden_sizes=None,
    rotary_embedding_dim=None,
    heads: SelfAttentionAttributes,
):
    projected = input @ weights if bias is None else input @ weights + bias
    return heads.self_attended(projected, mask_index, past, attention_bias, qkv_hidden_sizes)


@op(DOMAIN, "QAttention", since=1)
def quantized_attention(
    input,
    weight,
    bias,
    input_scale,
    weight_scale,
    mask_index=None,
    input_zero_point=None,
    weight_zero_point=None,
    past=None,
    *,
    heads: SelfAttentionAttributes,
):
    whole = matmul_integer(input, weight, input_zero_point, weight_zero_point)
    projected = cast(whole, bias.dtype) * (input_scale * weight_scale) + bias
    return heads.self_attended(projected, mask_index, past)


def _unpacked(query: Tensor, key: Any, value: Any, bias: Tensor | None, heads: int) -> tuple[Tensor, ...]:
    """Return queries, keys and values of shape (batch, heads, length, size), from any form of the inputs."""
    if query.ndim == 5:
        return tuple(jnp.swapaxes(query[:, :, :, part], 1, 2) for part in range(3))
    widths = [query.shape[2]]
    if bias is not None:
        widths += [query.shape[2], bias.shape[0] - 2 * query.shape[2]]
        parts = jnp.split(bias, [widths[0], 2 * widths[0]])
        query = query + parts[0]
        if key.ndim == 3:
            key, value = key + parts[1], value + parts[2]
    q = split_heads(query, heads)
    if key.ndim == 5:
        return q, *(jnp.swapaxes(key[:, :, :, part], 1, 2) for part in range(2))
    return q, *(x if x.ndim == 4 else split_heads(x, heads) for x in (key, value))


@op(DOMAIN, "MultiHeadAttention", since=1)
def multi_head_attention(
    query,
    key=None,
    value=None,
    bias=None,
    key_padding_mask=None,
    attention_bias=None,
    past_key=None,
    past_value=None,
    past_sequence_length=None,
    cache_indirection=None,
    *,
    heads: HeadAttributes,
    outputs: OutputCount = 1,
):
    shared = past_sequence_length is not None or cache_indirection is not None
    refuse(shared, "a buffer shared by past and present; export without `past_sequence_length`")
    q, k, v = _unpacked(query, key, value, bias, heads.num_heads)
    k, v = joined(past_key, k), joined(past_value, v)
    before = 0 if past_key is None else past_key.shape[2]
    y, scores = heads.attended(q, k, v, key_padding_mask, attention_bias, before)
    return y, k, v, scores


@op(DOMAIN, "DecoderMaskedMultiHeadAttention", since=1)
@variant("unidirectional")
def decoder_masked_multi_head_attention(
    query,
    key=None,
    value=None,
    mask_index=None,
    attention_bias=None,
    past_key=None,
    past_value=None,
    past_sequence_length=None,
    beam_width=None,
    cache_indirection=None,
    bias=None,
    *,
    output_qk=None,
    past_present_share_buffer=None,
    heads: HeadAttributes,
    outputs: OutputCount = 1,
):
    shared = bool(past_present_share_buffer) or cache_indirection is not None
    refuse(shared, "a buffer shared by past and present, and beams")
    if key is None:
        query, key, value = jnp.split(query, 3, axis=2)
    operands = (query, key, value, bias, mask_index, attention_bias, past_key, past_value)
    return multi_head_attention(*operands, heads=heads, outputs=outputs)


@op(DOMAIN, "RotaryEmbedding", since=1)
def rotary_embedding(
    input,
    position_ids,
    cos_cache,
    sin_cache,
    *,
    interleaved=None,
    is_packed_batching=None,
    num_heads=None,
    rotary_embedding_dim=None,
    scale=None,
):
    refuse(bool(is_packed_batching), "`is_packed_batching`")
    refuse(scale not in (None, 1.0), "a `scale` other than 1")
    size = rotary_embedding_dim or 2 * cos_cache.shape[1]
    x = input if input.ndim == 4 else split_heads(input, num_heads or input.shape[2] // size)
    at = position_ids if position_ids.ndim == 2 else position_ids + jnp.arange(x.shape[2])
    cos, sin = (jnp.take(cache, jnp.reshape(at, (-1, 1, x.shape[2])), axis=0) for cache in (cos_cache, sin_cache))
    y = rotated(x, cos, sin, interleaved or 0, size)
    return y if input.ndim == 4 else merge_heads(y)


def _head_normalized(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    return x if weight is None else x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


@op(DOMAIN, "GroupQueryAttention", since=1)
def group_query_attention(
    query,
    key=None,
    value=None,
    past_key=None,
    past_value=None,
    seqlens_k=None,
    total_sequence_length: Host | None = None,
    cos_cache=None,
    sin_cache=None,
    position_ids=None,
    attention_bias=None,
    head_sink=None,
    k_scale=None,
    v_scale=None,
    q_norm_weight=None,
    k_norm_weight=None,
    query_seqlens=None,
    *,
    causal=1,
    do_rotary=None,
    k_norm_epsilon=None,
    k_quant_type="NONE",
    kv_cache_bit_width=None,
    kv_num_heads,
    local_window_size=-1,
    num_heads,
    q_norm_epsilon=None,
    qk_norm_epsilon=1e-6,
    qk_output=0,
    rotary_interleaved=None,
    scale=None,
    sliding_window_cache=0,
    smooth_softmax=-1,
    softcap=None,
    v_quant_type="NONE",
):
    refuse((k_quant_type, v_quant_type) != ("NONE", "NONE"), "a quantized cache")
    refuse(bool(sliding_window_cache or qk_output), "`sliding_window_cache` and `qk_output`")
    if key is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        query, key, value = jnp.split(query, [num_heads * size, (num_heads + kv_num_heads) * size], axis=2)
    q, k, v = split_heads(query, num_heads), split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
    q = _head_normalized(q, q_norm_weight, q_norm_epsilon or qk_norm_epsilon)
    k = _head_normalized(k, k_norm_weight, k_norm_epsilon or qk_norm_epsilon)
    new = q.shape[2]
    total = new if total_sequence_length is None else total_sequence_length.item()
    # The new keys follow those that a sequence already has, which may be fewer than the cache has room for.
    # Of sizes that are only names, this is what JAX has to know for the rows to fit into the cache.
    refuse(total - new < 0, "a total length below that of the new rows")
    first = past_key is None or (query_seqlens is None and are_first(total, new))
    # Of a chunk padded on the right, only the first `query_seqlens` rows count; the results of the others are
    # undefined.
    valid = new if query_seqlens is None else jnp.reshape(query_seqlens, (-1, 1, 1, 1))
    before = 0 if first else jnp.reshape(seqlens_k, (-1, 1, 1, 1)) + 1 - valid
    if first is None:  # rows of a prompt that is padded on the right begin at zero, too
        before = jnp.maximum(before, 0)
    if do_rotary:
        at = (before + jnp.arange(new)) if position_ids is None else jnp.expand_dims(position_ids, 1)
        at = jnp.reshape(at, (-1, 1, new))
        caches: tuple[Any, ...] = (cos_cache, sin_cache)
        cos, sin = (jnp.take(cache, at, axis=0) for cache in caches)
        q, k = (rotated(x, cos, sin, rotary_interleaved or 0, 2 * caches[0].shape[1]) for x in (q, k))
    keys, values = (_cached(past, x, before, total) for past, x in ((past_key, k), (past_value, v)))
    behind = positions(new, keys.shape[2], before)
    visible = behind >= 0 if causal else jnp.arange(keys.shape[2]) <= jnp.reshape(seqlens_k, (-1, 1, 1, 1))
    if local_window_size > 0:
        visible = both(visible, behind < local_window_size)
    sink = head_sink if head_sink is not None else np.zeros(num_heads, np.float32) if smooth_softmax == 1 else None
    term = None if attention_bias is None else widened(attention_bias, keys.shape[2])
    y, _ = _attended(q, keys, values, term, causal=visible, scale=scale, softcap=softcap or 0.0, sink=sink)
    return y, keys, values


def are_first(total: Dim, new: Dim) -> bool | None:
    """Whether the new rows are all rows of their sequences; None if that depends on the sizes."""
    try:
        return dims_compare("==", total, new)
    except Undecided:
        return None


def widened(term: Tensor, keys: Dim) -> Tensor:
    """Return a term of the scores for as many keys as the cache has room for; those beyond are not visible."""
    missing = keys - term.shape[3]
    return jnp.pad(term, [(0, 0)] * 3 + [(0, missing)]) if missing else term


@helper
def with_rows(cache, rows, starts, length):
    """Write rows into caches of shape (batch, heads, length, size), from the start of each sequence on.

    Caches that are shorter than `length` grow.
    """
    missing = jax.core.max_dim(length, cache.shape[2]) - cache.shape[2]  # pyright: ignore[reportAttributeAccessIssue]
    cache = jnp.pad(cache, [(0, 0), (0, 0), (0, missing), (0, 0)])
    starts = jnp.broadcast_to(starts, rows.shape[:1])
    write = lambda cache, rows, start: lax.dynamic_update_slice_in_dim(cache, rows, start, axis=1)
    return jax.vmap(write)(cache, rows, starts)


def _cached(past: Tensor | None, new: Tensor, before: Tensor | Dim, total: Dim) -> Tensor:
    """Return the cache with the new rows at the end of each sequence; it grows to the longest one if needed."""
    room = total if past is None else max_dim(total, past.shape[2])
    if past is None:
        return _lengthened(new, room)
    if isinstance(before, int):  # the first rows; a longer cache keeps its rows behind these, as it does in later steps
        behind = past[:, :, new.shape[2] :] if _is_longer(past, new) else None
        return _lengthened(new, room) if behind is None else jnp.concatenate([new, behind], axis=2)
    return with_rows(past, new, jnp.reshape(before, (-1,)), total)


def _is_longer(past: Tensor, new: Tensor) -> bool:
    """Whether a cache is known to have more rows than the new ones, or to have as many for all sizes that names
    have.
    """
    try:
        return dims_compare(">=", past.shape[2], new.shape[2])
    except Undecided:
        return False


def _lengthened(cache: Tensor, room: Dim) -> Tensor:
    """Return a cache (batch, heads, length, size) padded with zeros to a length of `room`."""
    missing = room - cache.shape[2]
    is_full = isinstance(missing, int) and missing == 0
    return cache if is_full else jnp.pad(cache, [(0, 0), (0, 0), (0, missing), (0, 0)])

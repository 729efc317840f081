"""Attention that `jax.nn.dot_product_attention` does not compute, as a function that printed source has a copy of."""

from __future__ import annotations

from jaxport.importer.values.namespaces import helper, jnp, nn


@helper
def attention(query, key, value, *, bias=None, mask=None, sink=None, scale=None, softcap=None, is_causal=False):
    """Attend as JAX's function does, to values of any size; scores are at most `softcap` in magnitude.

    `sink` has a further score for each head, which takes its share of the attention and has no value.
    """
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        behind = jnp.tri(*scores.shape[-2:], dtype=bool)
        mask = behind if mask is None else mask & behind
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    if sink is not None:
        column = jnp.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, column], axis=-1)
    weights = nn.softmax(scores, axis=-1)
    if sink is not None:
        weights = weights[..., :-1]
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

"""Caches that a program has in another order of axes than its callers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from tests.export.passes.fusions import operators, report

SIZES = [
    {"batch_size": 2, "sequence_length": 3, "total_sequence_length": 3},
    {"batch_size": 2, "sequence_length": 1, "total_sequence_length": 6},
]
LENGTHS = {"growing": {}, "static": {"max_sequence_length": 9}}


def decode(input_ids, attention_mask, position_ids, past_key_values):
    """A step of one layer with positions before heads, as Flax has them; the rows of its cache are of tokens and positions."""
    (past,) = past_key_values
    total, length = attention_mask.shape[1], input_ids.shape[1]
    angles = (input_ids + position_ids)[:, :, None, None] * np.arange(1, 17, dtype=np.float32).reshape(2, 8)
    rows = {"key": jnp.sin(angles), "value": jnp.cos(angles)}
    turned = {name: cache.swapaxes(1, 2) for name, cache in past.items()}
    if turned["key"].shape[1] == total - length:
        present = {name: jnp.concatenate([turned[name], rows[name]], axis=1) for name in rows}
    else:
        present = {
            name: jax.lax.dynamic_update_slice(turned[name], rows[name], (0, total - length, 0, 0)) for name in rows
        }
    queries, keys = jnp.arange(total - length, total)[:, None], jnp.arange(present["key"].shape[1])
    mixed = jax.nn.dot_product_attention(
        rows["key"], present["key"], present["value"], mask=(keys <= queries)[None, None]
    )
    return {
        "logits": mixed.reshape(*input_ids.shape, 16),
        "present": [{name: cache.swapaxes(1, 2) for name, cache in present.items()}],
    }


@pytest.mark.parametrize("cache", LENGTHS)
def test_new_rows_are_written_into_the_cache_as_it_is_passed(cache):
    exported = jaxport.to_onnx(decode, jaxport.decoder_inputs(1, 2, 8, cache=cache), target="genai")
    assert report(exported, "turned_caches") == "2 caches are not turned"
    assert operators(exported)["GroupQueryAttention"] == 1
    assert "Transpose" not in operators(exported)
    assert exported.verify(sizes=[sizes | LENGTHS[cache] for sizes in SIZES]).ok


@pytest.mark.parametrize("axes", [(1, 2), (0, 2)])
def test_what_is_no_cache_of_the_caller_stays(axes):
    """Neither rows of another axis than that of the result, nor values that are not turned back."""

    def fn(input_ids, past):
        turned = past.swapaxes(*axes)
        return jnp.concatenate([turned, turned * input_ids[0]], axis=1) + 1

    past = jax.ShapeDtypeStruct((2, 3, 4, 5), np.float32)
    inputs = [jax.ShapeDtypeStruct((1,), np.int64), past]
    names = ["input_ids", "past_key_values.0.key"]
    exported = jaxport.to_onnx(fn, inputs, target="onnxruntime", input_names=names)
    assert report(exported, "turned_caches") == "nothing to do"
    assert exported.verify().ok

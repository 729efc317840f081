"""Caches that GroupQueryAttention does not take: what is computed is right, and `explain()` says why it is not the operator."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.errors import InvalidArgument
from tests.graph.test_caches import reason

HEADS, GROUPS, SIZE, WIDE, LATENT = 4, 2, 8, 16, 12
RANDOM = np.random.default_rng(0)
SIZES = {"batch_size": 2, "sequence_length": 1, "total_sequence_length": 5, "max_sequence_length": 8}


def drawn(*shape):
    return jnp.asarray(RANDOM.normal(size=shape) * 0.4, jnp.float32)


WORDS, QUERY, KEY, VALUE = drawn(11, 16), drawn(16, HEADS * SIZE), drawn(16, GROUPS * SIZE), drawn(16, GROUPS * SIZE)
WIDE_VALUE, OUT, WIDE_OUT = drawn(16, GROUPS * WIDE), drawn(HEADS * SIZE, 11), drawn(HEADS * WIDE, 11)
DOWN, UP_KEY, UP_VALUE = drawn(16, LATENT), drawn(LATENT, GROUPS * SIZE), drawn(LATENT, GROUPS * SIZE)


def heads(x, kernel, count):
    return (x @ kernel).reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def attended(x, key, value, seen, out):
    batch, length, _ = x.shape
    query = heads(x, QUERY, HEADS).reshape(batch, GROUPS, HEADS // GROUPS, length, SIZE)
    scores = jnp.einsum("bgrqd,bgkd->bgrqk", query, key) * SIZE**-0.5
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    mixed = jnp.einsum("bgrqk,bgkd->bgrqd", weights, value).reshape(batch, HEADS, length, -1)
    return mixed.swapaxes(1, 2).reshape(batch, length, -1) @ out


def seen_by(input_ids, attention_mask):
    total = attention_mask.shape[1]
    return jnp.arange(total) <= jnp.arange(total - input_ids.shape[1], total)[:, None]


def wider_values(input_ids, attention_mask, past_key_values):
    x, (past,) = WORDS[input_ids], past_key_values
    key = jnp.concatenate([past["key"], heads(x, KEY, GROUPS)], 2)
    value = jnp.concatenate([past["value"], heads(x, WIDE_VALUE, GROUPS)], 2)
    logits = attended(x, key, value, seen_by(input_ids, attention_mask), WIDE_OUT)
    return {"logits": logits, "present": [{"key": key, "value": value}]}


def beams(input_ids, attention_mask, beam_idx, past_key_values):
    x, (past,) = WORDS[input_ids], past_key_values
    key, value = (
        jnp.concatenate([past[name][beam_idx], heads(x, kernel, GROUPS)], 2)
        for name, kernel in (("key", KEY), ("value", VALUE))
    )
    logits = attended(x, key, value, seen_by(input_ids, attention_mask), OUT)
    return {"logits": logits, "present": [{"key": key, "value": value}]}


def latent(input_ids, attention_mask, past_key_values):
    x, (past,) = WORDS[input_ids], past_key_values
    rows = jnp.concatenate([past["latent"], x @ DOWN], 1)
    logits = attended(
        x, heads(rows, UP_KEY, GROUPS), heads(rows, UP_VALUE, GROUPS), seen_by(input_ids, attention_mask), OUT
    )
    return {"logits": logits, "present": [{"latent": rows}]}


def rows(input_ids, attention_mask, position_ids, past_key_values):
    x, (past,) = WORDS[input_ids], past_key_values
    sequences = jnp.arange(input_ids.shape[0])[:, None]
    key, value = (
        past[name].at[sequences, :, position_ids].set(heads(x, kernel, GROUPS).swapaxes(1, 2))
        for name, kernel in (("key", KEY), ("value", VALUE))
    )
    seen = (jnp.arange(key.shape[2]) <= position_ids[:, :, None])[:, None, None]
    return {"logits": attended(x, key, value, seen, OUT), "present": [{"key": key, "value": value}]}


def rotated_later(input_ids, attention_mask, past_key_values):
    """The cache has keys without rotation: all are turned in each step."""
    x, (past,) = WORDS[input_ids], past_key_values
    key, value = (
        jnp.concatenate([past[name], heads(x, kernel, GROUPS)], 2) for name, kernel in (("key", KEY), ("value", VALUE))
    )
    angles = jnp.arange(key.shape[2])[:, None] * np.float32([1, 0.3, 0.1, 0.03])
    a, b = jnp.split(key, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    logits = attended(x, turned, value, seen_by(input_ids, attention_mask), OUT)
    return {"logits": logits, "present": [{"key": key, "value": value}]}


IDS, MASK, [CACHE] = jaxport.decoder_inputs(1, GROUPS, SIZE, position_ids=False)
ROWS = CACHE["key"].shape[2]


def floats(*shape):
    return jax.ShapeDtypeStruct((IDS.shape[0], *shape), np.float32)


CASES = {
    "wider values": (
        wider_values, [IDS, MASK, [{**CACHE, "value": floats(GROUPS, ROWS, WIDE)}]],
        "vectors of one size", r"`past_key_values\.0\.value` is float32.*, 16\], where `past_key_values\.0\.key`",
    ),
    "beams": (
        beams, [IDS, MASK, jax.ShapeDtypeStruct(IDS.shape[:1], np.int32), [CACHE]], "its cache is reordered", None
    ),
    "latent": (
        latent, [IDS, MASK, [{"latent": floats(ROWS, LATENT)}]], "products of what is cached",
        r"`past_key_values\.0\.key` is missing",
    ),
    "rotated later": (rotated_later, [IDS, MASK, [CACHE]], "its keys are rotated after they are cached", None),
    "rows": (
        rows, jaxport.decoder_inputs(1, GROUPS, SIZE, cache="static"), "a place of its own for each row",
        "in one block for each sequence",
    ),
}  # fmt: skip


def arguments(inputs):
    def drawn_as(spec):
        shape = [dim if isinstance(dim, int) else eval(str(dim), {}, SIZES) for dim in spec.shape]
        if spec.dtype.kind == "f":
            return RANDOM.normal(size=shape).astype(spec.dtype)
        return RANDOM.integers(0, 2, shape).astype(spec.dtype)

    made = jax.tree.map(drawn_as, inputs)
    if len(made) == 4 and made[2].ndim == 2:
        made[2] = np.array([[3], [4]])
    return made


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_gets_what_is_right(name):
    function, inputs, why, _ = CASES[name]
    model = jaxport.to_onnx(function, inputs, target="onnxruntime")
    assert not any(node.op_type == "GroupQueryAttention" for node in model.model.graph)
    assert why in reason(model)
    given = arguments(inputs)
    expected, found = (jax.tree.leaves(result) for result in (jax.jit(function)(*given), model(*given)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_callers_of_decoders_are_told(name):
    function, inputs, why, refusal = CASES[name]
    if refusal is None:
        assert why in reason(jaxport.to_onnx(function, inputs, target="genai"))
        return
    with pytest.raises(InvalidArgument, match=rf"(?s){refusal}.*decoder_inputs"):
        jaxport.to_onnx(function, inputs, target="genai")

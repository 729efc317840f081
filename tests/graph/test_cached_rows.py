"""Static caches in which each sequence has a place of its own, as servers batch requests of different lengths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import spec
from tests.graph.test_caches import attention_of, reason
from tests.graph.test_unusual_caches import GROUPS, HEADS, KEY, OUT, QUERY, SIZE, VALUE, WORDS, attended, heads

ROWS = 9


def written(past, rows, starts):
    return jax.vmap(lambda cache, rows, at: lax.dynamic_update_slice_in_dim(cache, rows, at, 1))(past, rows, starts)


def decode(input_ids, past_key_values, starts, seen):
    """A step of one layer; `seen(queries, keys)` are the keys that a query sees."""
    x, (past,) = WORDS[input_ids], past_key_values
    present = {
        name: written(past[name], heads(x, kernel, GROUPS), starts) for name, kernel in (("key", KEY), ("value", VALUE))
    }
    queries = (starts[:, None] + jnp.arange(input_ids.shape[1]))[:, :, None]
    mask = seen(queries, jnp.arange(present["key"].shape[2]))[:, None, None]
    return {"logits": attended(x, present["key"], present["value"], mask, OUT), "present": [present]}


def by_positions(input_ids, attention_mask, position_ids, past_key_values):
    starts = position_ids[:, 0]
    return decode(input_ids, past_key_values, starts, lambda _, keys: keys <= position_ids[:, :, None])


def by_lengths(input_ids, attention_mask, position_ids, past_key_values, lengths):
    return decode(input_ids, past_key_values, lengths, lambda queries, keys: keys <= queries)


def in_a_window(input_ids, attention_mask, position_ids, past_key_values, lengths):
    near = lambda queries, keys: (keys <= queries) & (keys > queries - 3)
    return decode(input_ids, past_key_values, lengths, near)


def masked(input_ids, attention_mask, position_ids, past_key_values):
    """The mask says which rows of the buffer are of tokens."""
    missing = past_key_values[0]["key"].shape[2] - attention_mask.shape[1]
    own = jnp.pad(attention_mask, ((0, 0), (0, missing)))[:, None] != 0
    seen = lambda _, keys: (keys <= position_ids[:, :, None]) & own
    return decode(input_ids, past_key_values, position_ids[:, 0], seen)


STEPS = {"positions": by_positions, "lengths": by_lengths, "a window": in_a_window, "a mask": masked}


def declared(step):
    inputs = jaxport.decoder_inputs(1, GROUPS, SIZE, cache="static")
    more = step in (by_lengths, in_a_window)
    return [*inputs, jax.ShapeDtypeStruct(inputs[0].shape[:1], np.int32)] if more else inputs


@pytest.mark.parametrize("target", ["genai", "onnxruntime"])
@pytest.mark.parametrize("kind", STEPS)
def test_tokens_are_those_of_jax(kind, target):
    """Prompts of 4, 2 and 3 tokens, padded behind; then each sequence goes on where its prompt ended."""
    step = STEPS[kind]
    inputs = declared(step)
    exported = jaxport.to_onnx(step, inputs, target=target)
    assert attention_of(exported.model)
    assert "Transpose" not in {
        node.op_type for node in exported.model.graph if node.inputs[0] in exported.model.graph.inputs
    }
    lengths, ids = np.array([4, 2, 3]), np.random.default_rng(0).integers(0, 11, (3, 4))
    empty = np.zeros((3, GROUPS, ROWS, SIZE), np.float32)
    found = expected = [{"key": empty, "value": empty}]
    starts = np.zeros(3, np.int64)
    for _ in range(4):
        count = ids.shape[1]
        positions = starts[:, None] + np.arange(count)
        ends = starts + (lengths if count > 1 else 1)
        mask = (np.arange(max(starts) + count) < ends[:, None]).astype(np.int64)
        more = [starts.astype(np.int32)] if len(inputs) > 4 else []
        found, expected = (fn(ids, mask, positions, past, *more) for fn, past in ((exported, found), (step, expected)))
        rows = np.arange(count) < (ends - starts)[:, None]
        np.testing.assert_allclose(found["logits"][rows], expected["logits"][rows], rtol=1e-4, atol=1e-5)
        for name in ("key", "value"):
            np.testing.assert_allclose(found["present"][0][name], expected["present"][0][name], rtol=1e-4, atol=1e-5)
        last = np.asarray(expected["logits"])[np.arange(3), (ends - starts) - 1]
        ids, starts, found, expected = last.argmax(-1)[:, None], ends, found["present"], expected["present"]


def test_places_beyond_the_cache_are_moved_into_it_as_in_jax():
    exported = jaxport.to_onnx(by_lengths, declared(by_lengths), target="onnxruntime")
    past = [{name: np.ones((2, GROUPS, 4, SIZE), np.float32) for name in ("key", "value")}]
    arguments = (
        np.array([[3], [5]]),
        np.ones((2, 4), np.int64),
        np.array([[3], [3]]),
        past,
        np.array([9, 3], np.int32),
    )
    found, expected = exported(*arguments), by_lengths(*arguments)
    np.testing.assert_allclose(found["present"][0]["key"], expected["present"][0]["key"], rtol=1e-4, atol=1e-5)


def test_without_a_mask_the_number_of_rows_is_not_known():
    def step(input_ids, position_ids, past_key_values):
        return by_positions(input_ids, None, position_ids, past_key_values)

    ids, _, positions, caches = jaxport.decoder_inputs(1, GROUPS, SIZE, cache="static")
    result = jaxport.to_onnx(step, [ids, positions, caches], target="onnxruntime")
    assert "the number of all rows is not known" in reason(result)


BLOCKS = {
    "rows": (lambda x, rows, at: lax.dynamic_update_slice(x, rows, (0, at, 0)), ("B", 2, 9, 4), ("B", 2, 3, 4)),
    "one row": (lambda x, rows, at: lax.dynamic_update_slice(x, rows, (0, at, 0)), ("B", 2, 9, 4), ("B", 2, 1, 4)),
    "the first axis": (lambda x, rows, at: lax.dynamic_update_slice(x, rows, (at, 0)), ("B", 9, 4), ("B", 3, 4)),
    "the last axis": (lambda x, rows, at: lax.dynamic_update_slice(x, rows, (0, at)), ("B", 4, 9), ("B", 4, 2)),
    "all rows": (lambda x, rows, at: lax.dynamic_update_slice(x, rows, (0, at, 0)), ("B", 2, 9, 4), ("B", 2, 9, 4)),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_in_each_element_is_written_without_a_transpose(kind):
    """The starts are also negative, and beyond the last place."""
    write, whole, block = BLOCKS[kind]
    inputs = [spec(*whole), spec(*block), spec("B", dtype=np.int32)]
    exported = jaxport.to_onnx(jax.vmap(write), inputs, target="onnxruntime")
    operators = [node.op_type for node in exported.model.graph]
    assert "Transpose" not in operators
    starts = np.array([-20, -9, -3, -1, 0, 2, 6, 8, 40], np.int32)
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(len(starts), *shape[1:])).astype(np.float32) for shape in (whole, block)]
    np.testing.assert_array_equal(exported(*arrays, starts), jax.vmap(write)(*arrays, starts))


def shared(input_ids, attention_mask, position_ids, past_key_values):
    """Two layers attend to one cache, as the last layers of Gemma 3n do."""
    x, (past,) = WORDS[input_ids], past_key_values
    total = attention_mask.shape[1]
    at = (0, 0, total - input_ids.shape[1], 0)
    present = {
        name: lax.dynamic_update_slice(past[name], heads(x, kernel, GROUPS), at)
        for name, kernel in (("key", KEY), ("value", VALUE))
    }
    queries, keys = jnp.arange(total - input_ids.shape[1], total)[:, None], jnp.arange(past["key"].shape[2])
    key, value = (jnp.repeat(present[name], HEADS // GROUPS, axis=1) for name in ("key", "value"))
    for _ in range(2):
        scores = heads(x, QUERY, HEADS) @ key.swapaxes(2, 3) * SIZE**-0.5
        mixed = jax.nn.softmax(jnp.where(keys <= queries, scores, -1e30), axis=-1) @ value
        mixed = mixed.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ OUT
        x = jnp.tanh(mixed.sum(-1, keepdims=True) + x)
    return {"logits": mixed, "present": [present]}


def test_layers_share_a_static_cache():
    exported = jaxport.to_onnx(shared, declared(shared), target="genai")
    assert sum(node.op_type == "GroupQueryAttention" for node in exported.model.graph) == 2
    sizes = {"batch_size": 2, "sequence_length": 1, "total_sequence_length": 4, "max_sequence_length": 7}
    prompt = {**sizes, "sequence_length": 3, "total_sequence_length": 3}
    assert exported.verify(sizes=[sizes, prompt]).ok

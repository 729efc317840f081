"""A step of a decoder computes nothing for inputs that no caller gives it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.testing import spec
from tests.export.passes.fusions import operators, report

TABLE = np.random.default_rng(0).normal(size=(11, 8)).astype(np.float32)


def labels(value):
    return list(value.shape)


def step(look_up, dtype=np.float32):
    """A decoder's step of one layer, without attention."""

    def decode(input_ids, attention_mask, position_ids, past_key_values):
        (past,) = past_key_values
        x = look_up(jnp.asarray(TABLE, dtype), input_ids)
        seen = jnp.where(attention_mask != 0, 1.0, 2.0) + jnp.where(attention_mask[:, :, None] >= 1, 1.0, 2.0)[..., 0]
        x = x * position_ids[..., None] + seen.sum(1)[:, None, None]
        rows = jnp.swapaxes(x.reshape(*x.shape[:2], 1, 8), 1, 2).astype(np.float32)
        present = {name: jnp.concatenate([value, rows], axis=2) for name, value in past.items()}
        return {"logits": x.astype(np.float32), "present": [present]}

    return decode


def exported(look_up, target="genai", dtype=np.float32):
    return jaxport.to_onnx(step(look_up, dtype), jaxport.decoder_inputs(1, 1, 8), target=target)


LOOKUPS = {
    "filled": lambda table, ids: jnp.take(table, ids, axis=0),
    "clipped": lambda table, ids: table[ids],
    "by 32 bits": lambda table, ids: table.at[ids.astype(np.int32)].get(mode="fill", fill_value=np.nan),
}


@pytest.mark.parametrize("kind", LOOKUPS)
def test_tokens_are_rows_of_the_table(kind):
    result = exported(LOOKUPS[kind])
    (gather,) = [
        node for node in result.model.graph if node.op_type == "Gather" and labels(node.inputs[0])[0] == len(TABLE)
    ]
    assert gather.inputs[1] is result.model.graph.inputs[0]
    assert not {"Clip", "IsNaN"} & {*operators(result)}
    assert operators(result).get("Equal", 0) <= 1  # of the mask
    assert report(result, "step_inputs").startswith("1 lookups of tokens")
    assert result.verify().ok


def test_tables_in_half_precision():
    result = exported(LOOKUPS["filled"], dtype=jnp.bfloat16)
    assert not {"Clip", "IsNaN"} & {*operators(result)}
    assert operators(result).get("Equal", 0) <= 1  # of the mask
    assert result.verify().ok


def test_masks_and_positions_are_converted_once():
    result = exported(LOOKUPS["clipped"])
    casts = [node for node in result.model.graph if node.op_type == "Cast"]
    assert not [node for node in casts if node.outputs[0].dtype.name == "INT32"]
    assert report(result, "step_inputs").endswith("3 conversions")


def test_a_token_beyond_the_table_is_refused_by_the_runtime():
    past = [{name: np.zeros((1, 1, 0, 8), np.float32) for name in ("key", "value")}]
    with pytest.raises(jaxport.RunError, match="out of data bounds"):
        exported(LOOKUPS["clipped"])(np.array([[11]]), np.ones((1, 1), int), np.array([[0]]), past)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda table, ids: table[jnp.minimum(ids, 5)],  # a smaller range is the program's own
        lambda table, ids: table[:4][ids * 0] * ids[..., None],
        lambda table, ids: jnp.take(table, ids, axis=0, mode="clip"),  # a negative token is the first row
    ],
)
def test_another_range_stays(look_up):
    result = exported(look_up)
    assert "lookups" not in report(result, "step_inputs")
    assert result.verify().ok


@pytest.mark.parametrize("target", ["onnx", "portable"])
def test_other_targets_look_up_any_index(target):
    result = exported(LOOKUPS["filled"], target)
    past = [{name: np.zeros((1, 1, 0, 8), np.float32) for name in ("key", "value")}]
    assert np.isnan(result(np.array([[11]]), np.ones((1, 1), int), np.array([[0]]), past)["logits"]).all()


def test_what_is_no_step_has_no_terms():
    fn = lambda input_ids: jnp.take(TABLE, input_ids, axis=0)
    result = jaxport.to_onnx(fn, [spec("B", dtype=np.int64)], target="onnxruntime")
    assert report(result, "step_inputs") == "nothing to do"
    assert np.isnan(result(np.array([11]))).all()
    assert jax.tree.leaves(result(np.array([-1])))[0].shape == (1, 8)

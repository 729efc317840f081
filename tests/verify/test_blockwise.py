"""The difference of each block: the one that is made bad on purpose costs most, wherever it is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.export.generation.decoders import decoder_inputs
from jaxport.verify.per_block import blockwise

GENERATOR = np.random.default_rng(8)
X = GENERATOR.normal(size=(16, 32)).astype(np.float32)


class Dense(nnx.Module):
    """A product whose weights are hard to store in few bits if some rows are much larger than the others."""

    def __init__(self, seed, bad=False):
        weights = np.random.default_rng(seed).normal(size=(32, 32)).astype(np.float32) / 6
        weights[0] *= 300 if bad else 1
        self.weights = nnx.Param(jnp.asarray(weights))

    def __call__(self, x):
        return x.at[:, 0].multiply(0.01) @ self.weights


class Layer(nnx.Module):
    def __init__(self, seed, bad):
        self.up, self.down = Dense(seed, bad), Dense(seed + 50)

    def __call__(self, x):
        return x + self.down(jnp.tanh(self.up(x)))


class Stack(nnx.Module):
    def __init__(self, bad):
        self.layers = nnx.List([Layer(seed, seed == bad) for seed in range(3)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def blocks_of(fn, inputs=(X,), shape=("B", 32), **options):
    exported = jaxport.to_onnx(fn, [shape], **options)
    report = exported.verify(list(inputs), check=False, per_block=True)
    return {(b.path, b.target.rpartition(".")[2]): b for b in report.blocks}, report


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("options", [{"precision": "int4"}, {"precision": "int8", "calibration": [X]}])
def test_the_layer_that_costs_most_is_first(bad, options):
    blocks, report = blocks_of(Stack(bad), **options)
    products = [b for b in report.blocks if b.target.endswith("Dense")]
    assert len(products) == 6
    assert products[0].path == f"layers.{bad}.up"
    assert products[0].added > 2 * products[1].added
    assert [b.added for b in report.blocks] == sorted((b.added for b in report.blocks), reverse=True)
    whole = blocks["", "Stack"] if ("", "Stack") in blocks else blocks["Stack", "Stack"]
    assert whole.relative == whole.added


def test_what_is_passed_on_costs_nothing():
    """Only the first layer is in few bits; those after it repeat its error, and add none of their own."""
    blocks, _ = blocks_of(Stack(0), precision={"layers.0": "int4", "layers.1": "float32"}, target="onnxruntime")
    assert blocks["layers.0.up", "Dense"].added > 0.05
    for path in ("layers.1", "layers.2"):
        assert blocks[path, "Layer"].relative > 0.01
        assert blocks[path, "Layer"].added < 0.5 * blocks["layers.0", "Layer"].added


def test_the_table_is_sorted_by_cost():
    _, report = blocks_of(Stack(1), precision="int4")
    lines = str(report).partition("blocks:\n")[2].splitlines()
    assert lines[0].split() == ["block", "type", "relative", "added"]
    assert len(lines) == 1 + len(report.blocks)
    costs = [float(line.split()[-1]) for line in lines[1:]]
    assert costs == sorted(costs, reverse=True)


def test_without_a_precision_there_is_rounding_alone():
    blocks, report = blocks_of(Stack(0))
    assert len(blocks) == 10
    assert max(b.relative for b in report.blocks) < 1e-5


def test_blocks_are_measured_only_if_asked_for():
    report = jaxport.to_onnx(Stack(0), [("B", 32)], precision="int4").verify([X], check=False)
    assert report.blocks == ()
    assert "blocks:" not in str(report)


def test_a_function_without_blocks_has_no_table():
    _, report = blocks_of(lambda x: x * 2)
    assert report.blocks == ()


def test_modules_in_loops_and_branches_are_measured():
    dense = Dense(0)

    def model(x):
        x = lax.fori_loop(0, 2, lambda _, y: jnp.tanh(dense(y)), x)
        x, _ = lax.scan(lambda y, _: (jnp.tanh(dense(y)), None), x, length=2)
        return lax.cond(x.sum() > 1e9, lambda y: y, dense, x)

    _, report = blocks_of(model, precision="int4", unroll_scans=0)
    assert len(report.blocks) == 3
    assert all(0 <= b.added <= b.relative < 1 for b in report.blocks)


def test_a_decoder_is_measured():
    def step(input_ids, attention_mask, past_key_values):
        table = jax.nn.one_hot(input_ids, 32) @ (jnp.asarray(X).T @ jnp.asarray(X))
        logits = Dense(1)(table[0])[None]
        rows = table.reshape(*table.shape[:2], 2, 16).swapaxes(1, 2) + 0 * attention_mask.sum()
        present = {name: jnp.concatenate([past, rows], 2) for name, past in past_key_values[0].items()}
        return {"logits": logits, "present": [present]}

    inputs = decoder_inputs(1, 2, 16, position_ids=False)
    exported = jaxport.to_onnx(step, inputs, target="genai", precision="int4")
    sizes = [{"batch_size": 1, "sequence_length": 2, "total_sequence_length": 3}]
    report = exported.verify(sizes=sizes, check=False, per_block=True)
    assert [b.target.rpartition(".")[2] for b in report.blocks] == ["Dense"]


def test_an_overflow_is_no_small_difference():
    finite, overflowed = np.float32([1, 2]), np.float32([1, np.inf])
    assert blockwise._relative(finite, overflowed) == np.inf
    assert blockwise._relative(overflowed, overflowed) == 0

"""Symbolic dims: arithmetic on them in every place where a program can use them, at several sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings, strategies as st

import jaxport
from jaxport.testing import check, f32, i32

CASES = {
    "reshape to a product": (lambda x: x.reshape(-1, 4), ["B", "T", 4], ("B*T", 4)),
    "reshape from a product": (lambda x, y: x.reshape(y.shape), ["B*T"], None),
    "concatenate": (lambda x: jnp.concatenate([x, x]), ["B", 3], ("2*B", 3)),
    "append one": (lambda x: jnp.concatenate([x, x[:1]]), ["B", 3], ("B + 1", 3)),
    "every second": (lambda x: x[::2], ["T"], ("floordiv(T + 1, 2)",)),
    "all but the first": (lambda x: x[1:], ["T"], ("T - 1",)),
    "the last": (lambda x: x[:, -1], ["B", "T", 3], ("B", 3)),
    "half": (lambda x: x[: x.shape[0] // 2], ["T", 2], ("floordiv(T, 2)", 2)),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, x.shape[0]))), ["B", 3], ("B + 3", "B + 3")),
    "arange": (lambda x: jnp.arange(x.shape[0]) * 2, ["T"], ("T",)),
    "arange of an expression": (lambda x: jnp.arange(2 * x.shape[0] + 1), ["T"], ("2*T + 1",)),
    "causal mask": (lambda x: jnp.where(jnp.tril(jnp.ones((x.shape[0],) * 2, bool)), x, 0), ["T", "T"], ("T", "T")),
    "eye": (lambda x: jnp.eye(x.shape[0]) @ x, ["T", 3], ("T", 3)),
    "outer": (lambda x: x[:, None] * x[None, :], ["T"], ("T", "T")),
    "broadcast to": (lambda x: jnp.broadcast_to(x[:, None], (*x.shape, x.shape[0] + 1)), ["T"], ("T", "T + 1")),
    "tile": (lambda x: jnp.tile(x, (2, 3)), ["B", 2], ("2*B", 6)),
    "repeat": (lambda x: jnp.repeat(x, 2, axis=0), ["B", 2], ("2*B", 2)),
    "the size as a value": (lambda x: x.sum() / x.shape[0], ["B"], ()),
    "mean of two symbols": (lambda x: x.mean(axis=(0, 1)), ["B", "T", 3], (3,)),
    "remainder": (lambda x: jnp.full(x.shape[0] % 3 + 1, 2.0), ["T"], ("mod(T, 3) + 1",)),
    "maximum": (lambda x: jnp.zeros(jax.core.max_dim(x.shape[0], 4)), ["T"], ("max(T, 4)",)),
    "ceiling": (lambda x: jnp.ones(-(-x.shape[0] // 4)), ["T"], None),
    "a multiple as an input": (lambda x: x.reshape(2, -1), ["2*B"], (2, "B")),
    "a sum as an input": (lambda x: x[: x.shape[0] - 1], ["T + 1"], ("T",)),
    "einsum": (lambda x, y: jnp.einsum("bti,bsi->bts", x, y), ["B", "T", 2], None),
    "scan": (lambda x: jax.lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(3), x), ["T", 3], None),
    "flip and roll": (lambda x: (x[::-1], jnp.roll(x, 1)), ["T"], None),
    "one hot": (lambda x: jax.nn.one_hot(jnp.arange(x.shape[0]), x.shape[0]) @ x, ["T", 2], ("T", 2)),
    "rank zero": (lambda x: jnp.float32(x.shape[0] * x.shape[1]), ["B", "T"], ()),
}


@pytest.mark.parametrize("name", CASES)
def test_arithmetic_on_dims(name):
    function, shape, declared = CASES[name]
    if name == "reshape from a product":
        specs = (f32(*shape), f32("B", "T"))
    elif name == "einsum":
        specs = (f32(*shape), f32("B", "S", 2))
    else:
        specs = (f32(*shape),)
    sizes = [{"B": 3, "T": 5, "S": 2}, {"B": 2, "T": 8, "S": 4}, {"B": 7, "T": 2, "S": 1}]
    check(function, *specs, sizes=sizes, shapes=None if declared is None else [declared])


def test_a_dim_is_computed_once():
    exported = jaxport.to_onnx(lambda x: (jnp.arange(x.shape[0]), jnp.ones(x.shape[0]) + x, x.shape[0] * x), [("T",)])
    assert sum(node.op_type == "Shape" for node in exported.model.graph) == 1


def test_intermediate_shapes_are_what_the_runtime_computes():
    exported = check(lambda x: jnp.concatenate([x, x]).reshape(-1, 2)[1:] * 2, f32("B", 4))
    for node in exported.model.graph.all_nodes():
        for value in node.outputs:
            assert value.shape is None or all(isinstance(d, (int, ir.SymbolicDim)) for d in value.shape)


def test_a_symbol_that_no_input_carries_alone_is_refused():
    with pytest.raises(jaxport.JaxportError) as caught:
        jaxport.to_onnx(lambda x: jnp.arange(x.shape[0] + 1), [("B*T",)])
    assert "B" in str(caught.value)


def test_ids_of_any_length():
    table = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    check(lambda ids: jnp.asarray(table)[jnp.abs(ids) % 10], i32("B", "T"))


@settings(max_examples=15, deadline=None)
@given(start=st.integers(0, 3), step=st.integers(1, 3), before=st.integers(0, 3), after=st.integers(-2, 3))
def test_slices_and_pads(start, step, before, after):
    check(
        lambda x: jnp.pad(x, (before, max(after, 0)))[start::step],
        f32("T"),
        sizes=[{"T": 6}, {"T": 9}],
        constraints=["T >= 5"],
    )

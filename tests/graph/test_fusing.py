"""Where fusions are looked for, and what the exporter reads once for all steps that follow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.export.prepare import Contents
from jaxport.graph.fusing import Anchor, fuse
from jaxport.graph.remembering import remembered


def found(anchor: Anchor, function, *inputs) -> list[str]:
    """The operators of the nodes that a fusion with this anchor is asked about."""
    exported = jaxport.to_onnx(function, list(inputs), passes=[])
    asked: list[str] = []
    fuse(exported.model, lambda node: asked.append(node.op_type), anchor)
    return asked


def rooted(x):
    return jnp.exp(x) * 3 * lax.sqrt(x)[:, None].reshape(-1)


def test_an_anchor_admits_what_depends_on_an_operator_through_others():
    roots = Anchor(at=("Mul",), below=("Sqrt",))
    assert found(Anchor(at=("Mul",)), rooted, (4,)) == ["Mul", "Mul"]
    assert found(roots, rooted, (4,)) == ["Mul"]
    assert found(roots, lambda x: lax.sqrt(x) + 1, (4,)) == []
    assert found(roots, lambda x: (lax.sqrt(x) + 1) * x, (4,)) == []
    assert found(Anchor(at=("Mul",), below=("Sqrt",), through=("Add",)), lambda x: (lax.sqrt(x) + 1) * x, (4,)) == [
        "Mul"
    ]


def test_an_anchor_reaches_into_subgraphs():
    def chosen(x):
        root = lax.sqrt(x)
        return lax.cond(x.sum() > 0, lambda: root * 2, lambda: x - 2)

    assert found(Anchor(at=("Mul",), below=("Sqrt",)), chosen, (4,)) == ["Mul"]


def test_a_value_is_looked_at_once_while_fusions_are_searched_and_again_for_the_next_ones():
    model = jaxport.to_onnx(lambda x: jnp.exp(x) * x + jnp.exp(x), [(4,)], passes=[]).model
    looked_at = []
    look = remembered(lambda value: looked_at.append(value.name))

    def find(node):
        for value in node.inputs:
            look(value)

    fuse(model, find)
    assert len(looked_at) == len(set(looked_at)) < sum(len(node.inputs) for node in model.graph)
    once = len(looked_at)
    fuse(model, find)
    assert len(looked_at) == 2 * once


@pytest.mark.parametrize(
    ("function", "primitive", "dtype"),
    [
        (lambda x: lax.cond(x[0] > 0, lambda x: lax.sin(x), lambda x: x, x), "sin", np.float32),
        (lambda x: jnp.abs(x + 1j), "abs", np.complex64),
        (lambda x: jax.random.normal(jax.random.key(0), x.shape) + x, "random_bits", None),
    ],
)
def test_contents_are_read_at_any_depth(function, primitive, dtype):
    contents = Contents.of(jax.make_jaxpr(function)(jnp.ones(3)))
    assert primitive in contents.primitives
    assert dtype is None or np.dtype(dtype) in contents.dtypes
    assert any(jax.dtypes.issubdtype(d, jax.dtypes.prng_key) for d in contents.dtypes) == (dtype is None)

from __future__ import annotations

import jax.numpy as jnp
import onnx.parser
import onnx_ir as ir
import pytest
from jax import lax

import jaxport
from jaxport.graph.identities import identities
from jaxport.testing import check, f32
from tests.exports import operators


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (lambda x: (jnp.sin(x),) * 3, ["output_0", "output_1", "output_2"]),
        (lambda x: (jnp.sin(x), jnp.sin(x)), ["output_0", "output_1"]),
        (lambda x: (x, x), ["output_0", "output_1"]),
        (lambda x: (jnp.ones(2), jnp.ones(2), x), ["output_0", "output_1", "output_2"]),
    ],
)
def test_equal_outputs_keep_their_own_names(fn, names):
    exported = check(fn, f32("B"))
    assert [value.name for value in exported.model.graph.outputs] == names


def test_what_a_branch_takes_from_outside_is_still_its_own_output():
    check(lambda x: lax.cond(x.sum() > 0, lambda y: (y, y), lambda y: (jnp.sin(y), x), jnp.cos(x)), f32("B"))


def test_an_identity_inside_is_removed():
    def copied(op, x):
        return op.Sin(op.Identity(x))

    exported = jaxport.to_onnx(lambda x: jnp.sin(x) * 2, [("B",)], rules={"sin": copied})
    assert operators(exported) == ["Sin", "Mul"]
    assert identities(exported.model) == "nothing to do"


def test_a_cast_that_changes_nothing_is_removed():
    text = """<ir_version: 8, opset_import: ["": 17]>
    agraph (float[N] x) => (double[N] y) { a = Cast<to = 1>(x) b = Sin(a) c = Cast<to = 11>(b) y = Cast<to = 11>(c) }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    assert identities(model) == "2 nodes removed"
    assert [node.op_type for node in model.graph] == ["Sin", "Cast"]
    assert [value.name for value in model.graph.outputs] == ["y"]

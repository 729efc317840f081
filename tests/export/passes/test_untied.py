"""Square weights in two forms are constants of their own for OpenVINO, and the values stay."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from flax import nnx

import jaxport
from jaxport.export.passes.openvino import untied
from jaxport.testing import expect_graph
from tests.exports import operators

GENERATOR = np.random.default_rng(4)
SQUARE, STACK, WIDE = (GENERATOR.normal(size=s).astype(np.float32) for s in ((18, 18), (2, 18, 18), (18, 20)))


def report(exported):
    return next(r.text for r in exported.pass_reports if r.name == "untied")


FORMS = {
    "two forms": (lambda x: jnp.tanh(x @ SQUARE) @ SQUARE.T, 1),
    "of a stack": (lambda x: jnp.tanh(x @ STACK) @ jnp.swapaxes(STACK, 1, 2), 1),
    "one form": (lambda x: jnp.tanh(x @ SQUARE) @ SQUARE, 0),
    "not square": (lambda x: jnp.tanh(x @ WIDE) @ WIDE.T, 0),
}


@pytest.mark.parametrize(("fn", "count"), FORMS.values(), ids=FORMS)
def test_forms_of_weights(fn, count):
    exported = jaxport.to_onnx(fn, [(2, "B", 18)], target="openvino")
    assert exported.verify().ok
    assert report(exported) == (f"{count} forms of square weights" if count else "nothing to do")
    expect_graph(exported, counts={"Transpose": int(fn is FORMS["not square"][0])})


class Tied(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(jnp.asarray(SQUARE))

    def __call__(self, x):
        return jnp.tanh(x @ self.weight) @ self.weight.T


class Head(nnx.Module):
    def __init__(self, body):
        self.weight = body.weight

    def __call__(self, x):
        return x @ self.weight.T


class Pair(nnx.Module):
    def __init__(self):
        self.body = Tied()
        self.head = Head(self.body)

    def __call__(self, x):
        return self.head(jnp.tanh(x @ self.body.weight))


@jaxport.onnx_function(unique=True)
class Fixed(Tied):
    """The weight is a constant of the function."""


def twice(fixed):
    return lambda x: fixed(fixed(x))


FUNCTIONS = {
    "both forms inside": (Tied, [Tied]),
    "one inside, one outside": (Pair, [Head]),
    "nested": (Pair, [Pair, Head]),
    "constants inside": (lambda: twice(Fixed()), None),
}


@pytest.mark.parametrize(("build", "functions"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_inlined_before_the_forms_are_told_apart(build, functions):
    exported = jaxport.to_onnx(build(), [("B", 18)], target="openvino", functions=functions)
    assert not exported.model.functions
    assert exported.model.opset_imports.keys() == {""}
    used = Counter(node.inputs[1].name for node in exported.model.graph if node.op_type == "MatMul")
    assert len(used) == 2  # no weight is multiplied in both forms, and each form is stored once
    expect_graph(exported, counts={"Transpose": 0})
    assert exported.verify(sizes=[{"B": 3}]).ok


def test_other_targets_keep_functions():
    exported = jaxport.to_onnx(Tied(), [("B", 18)], target="portable", functions=Tied)
    assert [function.name for function in exported.model.functions.values()] == ["Tied"]


def test_other_targets_store_one_form():
    exported = jaxport.to_onnx(FORMS["two forms"][0], [("B", 18)], target="portable")
    assert operators(exported) == ["Transpose", "MatMul", "Tanh", "MatMul"]


def test_a_transposing_product_has_a_copy_of_its_own():
    x, weight, y, z = (ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in "xwyz")
    weight.const_value, weight.shape = ir.Tensor(SQUARE, name="w"), ir.Shape(SQUARE.shape)
    nodes = [
        ir.Node("", "MatMul", [x, weight], outputs=[y]),
        ir.Node("", "Gemm", [y, weight], [ir.AttrInt64("transB", 1)], outputs=[z]),
    ]
    model = ir.Model(ir.Graph([x], [z], nodes=nodes, initializers=[weight], opset_imports={"": 18}), ir_version=8)
    assert untied(model) == "1 forms of square weights"
    assert nodes[1].inputs[1] is not weight
    assert np.array_equal(nodes[1].inputs[1].const_value.numpy(), SQUARE)

"""Opsets 13 to 17: function bodies of ONNX's schemas, attributes that were inputs, parts of shapes, refusals by name."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx.defs
import onnx.helper
import pytest
from flax import nnx
from jax import lax
from onnx.reference import ReferenceEvaluator

import jaxport
from jaxport.export.delivery.opsets import OLDEST
from jaxport.export.emit import bodies
from jaxport.onnx_facts import EDGE_OPERATORS
from jaxport.testing import check, expect_graph, f32, i32, spec

OLD = range(OLDEST, 18)


def norm(x):
    return nnx.LayerNorm(4, rngs=nnx.Rngs(0))(x)


FUNCTIONS = {
    "normalization": (norm, f32("B", 4)),
    "gelu": (jax.nn.gelu, f32("B", 4)),
    "mish": (jax.nn.mish, f32("B", 4)),
    "hard_swish": (jax.nn.hard_swish, f32("B", 4)),
    "reductions": (lambda x: x.sum(-1) + x.max(-1) * x.mean(0)[0] - x.prod(-1), f32("B", 4)),
    "sizes": (lambda x: jnp.concatenate([x, x]).reshape(-1) * x.shape[0], f32("B", "T")),
    "clip": (lambda x: jnp.clip(x, -1, 1), f32("B")),
    "split": (lambda x: jnp.split(x, 3, axis=1)[1], f32("B", 6)),
    "transform": (lambda x: jnp.fft.fft(x).real, f32("B", 8)),
    "sums at places": (lambda x: x.at[jnp.array([0, 1, 1])].add(1.0), f32(4, 3)),
    "pooling, backwards": (jax.grad(lambda x: nnx.max_pool(x, (2, 2), (2, 2)).sum()), f32(1, 4, 4, 2)),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 1.1 + i, x), f32("B")),
}


@pytest.mark.parametrize("opset", OLD)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_old_opsets_are_written(name, opset):
    function, given = FUNCTIONS[name]
    exported = check(function, given, opset=opset)
    assert exported.model.opset_imports[""] == opset
    assert exported.model.ir_version == (7 if opset < 15 else 8)


#: Operators of newer opsets that have bodies, as a rule of one's own emits them: attributes and shapes of the operands.
BODIES = {
    "Gelu": ({}, [(2, 3)]),
    "HardSwish": ({}, [(2, 3)]),
    "Mish": ({}, [(2, 3)]),
    "Swish": ({"alpha": 1.5}, [(2, 3)]),
    "LayerNormalization": ({"axis": -1, "epsilon": 1e-3}, [(2, 3), (3,), (3,)]),
    "RMSNormalization": ({"axis": -1}, [(2, 3), (3,)]),
    "GroupNormalization": ({"num_groups": 2}, [(2, 4, 3), (4,), (4,)]),
}


@pytest.mark.parametrize("opset", [13, 14, 15, 17])
@pytest.mark.parametrize("name", BODIES)
def test_an_operator_of_a_rule_is_written_as_its_body(name, opset):
    attributes, (shape, *others) = BODIES[name]
    generator = np.random.default_rng(0)
    x, *weights = arrays = [generator.normal(size=each).astype(np.float32) for each in (shape, *others)]
    rules = {"sin": lambda op, x: op.emit(name, x, *map(op.const, weights), **attributes)}
    exported = jaxport.to_onnx(jnp.sin, [f32(*shape)], rules=rules, opset=opset)
    onnx.checker.check_model(exported.proto, full_check=True)
    versions = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (name, "")]
    assert (name in [node.op_type for node in exported.model.graph]) == (min(versions) <= opset)
    declared = [
        onnx.helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.FLOAT, a.shape) for i, a in enumerate(arrays)
    ]
    node = onnx.helper.make_node(name, [value.name for value in declared], ["y"], **attributes)
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "one", declared, [result])
    whole = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
    (expected,) = ReferenceEvaluator(whole).run(
        None, {value.name: a for value, a in zip(declared, arrays, strict=True)}
    )
    inputs = {exported.inputs[0].name: x}
    for found in (exported.run(inputs)[0], ReferenceEvaluator(exported.proto).run(None, inputs)[0]):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [13, 14, 17])
def test_statistics_are_kept_by_other_evaluators(opset):
    norm = nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0))
    norm.mean[...], norm.var[...] = jnp.array([1.0, 2, 3]), jnp.array([1.0, 4, 9])
    exported = jaxport.to_onnx(norm, [("B", 4, 4, 3)], opset=opset)
    assert "BatchNormalization" in [node.op_type for node in exported.model.graph]
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(np.float32)
    (found,) = ReferenceEvaluator(exported.proto).run(None, {exported.inputs[0].name: x})
    np.testing.assert_allclose(found, norm(x), rtol=1e-4, atol=1e-5)


def test_what_has_no_body_is_refused_by_name():
    with pytest.raises(jaxport.Unsupported, match="needs BitwiseXor, which is new in opset 18; export with opset=18"):
        jaxport.to_onnx(lambda i: i ^ 5, [i32(3)], opset=13)
    with pytest.raises(jaxport.Unsupported, match="needs DFT, which is new in opset 17; export with opset=17 or newer"):
        jaxport.to_onnx(lambda x: jnp.fft.rfft(x).real, [f32(256)], opset=13)
    rules = {"sin": lambda op, x: op.ScatterND(x, np.array([[0]]), x, reduction="add")}
    with pytest.raises(
        jaxport.Unsupported, match="needs ScatterND with `reduction`, which is new in opset 16; export with opset=16"
    ):
        jaxport.to_onnx(jnp.sin, [f32(1)], rules=rules, opset=13)
    assert bodies.body("GridSample", 13, {}, []) is None


def test_parts_of_shapes_are_slices_before_opset_15():
    def function(x):
        return jnp.reshape(x, (-1,)) * x.shape[1]

    expect_graph(jaxport.to_onnx(function, [("B", "T")], opset=15), counts={"Slice": 0})
    old = check(function, f32("B", "T"), opset=14)
    shapes = [node for node in old.model.graph if node.op_type == "Shape"]
    assert shapes
    assert not any(node.attributes for node in shapes)


def test_a_file_with_functions_has_the_version_that_brought_them():
    exported = jaxport.to_onnx(norm, [("B", 4)], functions=["LayerNorm"], opset=13)
    assert exported.model.functions
    assert exported.model.ir_version == 8
    exported.verify()


class Small(nnx.Module):
    """A convolutional network with what small networks have."""

    def __init__(self, rngs):
        self.conv, self.norm = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.dense, self.last = nnx.Linear(8, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.last(jax.nn.gelu(self.dense(x.mean((1, 2)))))


EDGE = {
    "network": (Small(nnx.Rngs(0)), [f32(2, 8, 8, 3)]),
    "embedding": (lambda table, i: table[i], [f32(7, 5), i32(3)]),
    "one hot": (lambda i: jax.nn.one_hot(i, 5), [i32(3)]),
    "resize": (lambda x: jax.image.resize(x, (1, 8, 8, 3), "bilinear"), [f32(1, 4, 4, 3)]),
    "attention": (jax.nn.dot_product_attention, [f32(1, 4, 2, 8)] * 3),
}


@pytest.mark.parametrize("name", EDGE)
def test_the_edge_target_writes_opset_13(name):
    function, specs = EDGE[name]
    exported = jaxport.to_onnx(function, specs, target="edge")
    assert exported.model.opset_imports[""] == 13
    assert exported.requirements.runtime == "1.19"
    exported.verify()
    inputs = {port.name: np.ones(port.shape, port.dtype) for port in exported.inputs}
    (found,) = ReferenceEvaluator(exported.proto).run(None, inputs)
    np.testing.assert_allclose(found, exported.run(inputs)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "given", "why"),
    [
        (jnp.tanh, f32("B", 3), "the size `B` is open; give a number for it"),
        (lambda x: lax.fori_loop(0, 5, lambda i, c: c * 1.1, x), f32(3), "Loop is not among the operators of the target"),
        (lambda x: jnp.cumsum(x), f32(3), "CumSum is not among the operators of the target"),
        (lambda x: jnp.argmax(x, -1), f32(2, 5), '`nonfinite="ignore"` leaves out what is for NaN alone'),
    ],
)  # fmt: skip
def test_the_edge_target_refuses(function, given, why):
    with pytest.raises(jaxport.Unsupported, match=why):
        jaxport.to_onnx(function, [given], target="edge")


def test_the_page_lists_the_operators_of_the_edge_target():
    page = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
    (listed,) = re.findall(r"^It has the operators ([^.]+)\.", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", listed)) == EDGE_OPERATORS


def test_the_edge_target_has_int64_for_indices_only():
    jaxport.to_onnx(lambda x: jnp.argmax(x, -1), [f32(2, 5)], target="edge", nonfinite="ignore").verify()
    with pytest.raises(jaxport.Unsupported, match="the target has int64 for indices and shapes only"):
        jaxport.to_onnx(lambda x: x + 1, [spec(3, dtype=np.int64)], target="edge", double_precision=True)

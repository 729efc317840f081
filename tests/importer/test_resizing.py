"""Resize by fractional factors: the program, what it prints and what it exports have ONNX Runtime's positions, in float32."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxport
from tests.codegen import structured
from tests.importer import models
from tests.importer.printed import load

FACTORS = (1 / 3, 0.37, 0.6, 0.9, 1.2, 1.7, 2.5, 3.0)
TRANSFORMS = ("asymmetric", "align_corners", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")
MODES = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil", "linear", "cubic")
SIZES = (10, 37, 2)


def model(size: int | str, factors: Sequence[float], by_size: bool = False) -> onnx.ModelProto:
    """An axis resized by each factor, in each way."""
    nodes, tensors = [], []
    for at, factor in enumerate(factors):
        scales = np.array([1, factor], np.float32)
        known = np.array([1, int(np.float32(size) * np.float32(factor))]) if by_size else scales
        tensors.append(numpy_helper.from_array(known, f"s{at}"))
    for (at, _), transform, mode in itertools.product(enumerate(factors), TRANSFORMS, MODES):
        how = {"mode": mode} if mode in ("linear", "cubic") else {"mode": "nearest", "nearest_mode": mode}
        if transform != "tf_half_pixel_for_nn" or how["mode"] == "nearest":
            operands = ["x", "", "", f"s{at}"] if by_size else ["x", "", f"s{at}"]
            made = helper.make_node(
                "Resize", operands, [f"y{len(nodes)}"], coordinate_transformation_mode=transform, **how
            )
            nodes.append(made)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes]
    graph = helper.make_graph(nodes, "g", [x], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def run(made: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    return ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})


def compare(made: onnx.ModelProto, found: Sequence[jax.Array], expected: Sequence[np.ndarray]) -> None:
    for node, got, want in zip(made.graph.node, found, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4, err_msg=str(node))


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_positions_are_those_of_onnx_runtime(size: int, by_size: bool):
    factors = [factor for factor in FACTORS if factor * size >= 1 and not (by_size and factor < 1 and size == 2)]
    made, x = model(size, factors, by_size), np.arange(size, dtype=np.float32)[None]
    compare(made, jax.tree.leaves(tuple(jaxport.from_onnx(made)(x))), run(made, x))


def test_all_that_is_made_of_a_resize_has_the_same_positions():
    made, x = model(37, FACTORS[2:6]), np.arange(37, dtype=np.float32)[None]
    expected, program = run(made, x), jaxport.from_onnx(made)
    written = jaxport.to_onnx(program, [jax.ShapeDtypeStruct(x.shape, x.dtype)])
    session = ort.InferenceSession(ir.to_proto(written.model).SerializeToString())
    compare(made, session.run(None, {session.get_inputs()[0].name: x}), expected)
    source = load(program.to_source(framework="jax"))
    compare(made, source.model({}, x), expected)


def test_open_sizes_have_the_same_positions(tmp_path: Path):
    made, program = model("n", [0.6, 1.2, 2.5]), jaxport.from_onnx(model("n", [0.6, 1.2, 2.5]))
    program.to_source(tmp_path, framework="nnx")
    net = structured.load(tmp_path).load()
    for size in (10, 37):
        x = np.arange(size, dtype=np.float32)[None]
        compare(made, jax.tree.leaves(tuple(net(x))), run(made, x))


def test_a_size_that_single_precision_rounds_otherwise_is_asked_for():
    with pytest.raises(jaxport.JaxportError, match="is not a simple fraction; give the axis a fixed size"):
        jaxport.from_onnx(model("n", [0.1234567])).to_source(framework="jax")


@pytest.mark.parametrize("factor", [0.37, 0.7, 0.9, 1.3, 1.9, 2.6])
@pytest.mark.parametrize("size", [3, 7, 17])
def test_symmetric_half_pixels_have_the_bits_of_onnx_runtime(size: int, factor: float) -> None:
    """The rows are unit vectors, so that the results are the weights."""
    made = models.model(
        f"""g (float[{size}, {size}] x) => (float[a, b] y) <float[2] s = {{1, {factor}}}> {{
        y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric">(x, , s) }}""",
        opset=19,
    )
    x = np.eye(size, dtype=np.float32)
    (expected,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(jaxport.from_onnx(made)(x), expected)

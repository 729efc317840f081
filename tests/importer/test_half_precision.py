"""Quotients in float16: XLA multiplies by the reciprocal of what it knows, which is infinite for a small divisor."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from jax.typing import DTypeLike
from onnx import helper, numpy_helper

from jaxport import from_onnx, to_onnx
from jaxport.jaxprs.walk import equations_within
from tests.importer.printed import load

X = np.array([[0.1, -0.2, 0.0, 0.05], [3e-5, 0.3, -0.01, 7e-6]], np.float16)
IMAGE = np.linspace(-1e-3, 1e-3, 32).reshape(1, 2, 4, 4).astype(np.float16)
SMALL = np.array([7e-6, 1e-5, 1.2e-7, 2.0], np.float16)

CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "by a small number": ("Div", [X, np.float16(1e-5)], {}),
    "by small numbers": ("Div", [X, SMALL], {}),
    "by a large number": ("Div", [X, np.float16(48000)], {}),
    "quantized": ("QuantizeLinear", [X * np.float16(1e-3), np.float16(7e-6), np.int8(0)], {}),
    "quantized by channels": ("QuantizeLinear", [X * np.float16(1e-3), SMALL, np.zeros(4, np.int8)], {"axis": 1}),
    "reciprocal": ("Reciprocal", [SMALL[:1] * np.float16(100)], {}),
    "mean": ("Mean", [X, X, SMALL], {}),
    "celu": ("Celu", [X], {"alpha": 1e-5}),
    "of a norm": ("LpNormalization", [X * np.float16(1e-4)], {"axis": 0, "p": 1}),
    "local response": ("LRN", [IMAGE], {"bias": 1e-5, "beta": 1.0, "size": 3}),
    "of a variance": ("MeanVarianceNormalization", [IMAGE * np.float16(100)], {}),
    "of a window": ("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
}


def made(op: str, operands: list[Any], attributes: dict[str, Any], dtype: DTypeLike = np.float16) -> onnx.ModelProto:
    """A model of one operator, whose first operand is the input and whose others are constants."""
    arrays = [np.asarray(a).astype(dtype) if np.asarray(a).dtype == np.float16 else np.asarray(a) for a in operands]
    names = [f"x{index}" for index in range(len(arrays))]
    weights = [numpy_helper.from_array(a, n) for n, a in zip(names[1:], arrays[1:], strict=True)]
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x0", kinds[0], arrays[0].shape)],
        [helper.make_tensor_value_info("y", kinds[-1] if op == "QuantizeLinear" else kinds[0], None)],
        weights,
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def in_single(op: str, operands: list[Any], attributes: dict[str, Any]) -> np.ndarray:
    """The result of ONNX Runtime in float32, rounded."""
    single = made(op, operands, attributes, np.float32)
    session = onnxruntime.InferenceSession(single.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x0": np.asarray(operands[0], np.float32)})
    with np.errstate(over="ignore"):
        return result.astype(np.float16) if result.dtype == np.float32 else result


def close(result: Any, expected: np.ndarray) -> None:
    if expected.dtype == np.float16:
        np.testing.assert_allclose(np.asarray(result), expected, rtol=5e-3, atol=1e-7)
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", CASES)
def test_quotients_are_those_of_float32(name: str) -> None:
    case = CASES[name]
    program, x, expected = from_onnx(made(*case)), case[1][0], in_single(*case)
    close(program(x), expected)
    close(jax.jit(program)(x), expected)
    close(jax.jit(lambda: program(x))(), expected)
    module = load(program.to_source(framework="jax"))
    close(jax.jit(lambda x: module.model(module.params, x))(x), expected)
    close(jax.jit(from_onnx(to_onnx(program, [x]).proto))(x), expected)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("quantized")])
def test_derivatives_are_those_of_float32(name: str) -> None:
    case, x = CASES[name], CASES[name][1][0]

    def slope(dtype: DTypeLike) -> np.ndarray:
        program = from_onnx(made(*case, dtype))
        y, pulled = jax.vjp(jax.jit(program), jnp.asarray(x, dtype))
        return np.asarray(jax.jit(pulled)(jnp.full(y.shape, 1e-4, dtype))[0], np.float32)

    expected = slope(np.float32)
    shown = np.abs(expected) < np.finfo(np.float16).max / 16
    np.testing.assert_allclose(slope(np.float16)[shown], expected[shown], rtol=2e-2, atol=2e-3)


def divided_in(program: Any, x: np.ndarray) -> list[np.dtype]:
    equations = equations_within(jax.make_jaxpr(program)(x).jaxpr)
    return [equation.outvars[0].aval.dtype for equation in equations if equation.primitive.name == "div"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_types_divide_as_they_are(dtype: str) -> None:
    """The reciprocals of their normal numbers are finite."""
    for divisor in (1e-5, 1e-30, 3.0):
        program = from_onnx(made("Div", [X, np.float16(0)], {}, np.float32))
        kind = jnp.dtype(dtype)
        model = made("Div", [X.astype(np.float32).astype(kind), np.asarray(divisor, kind)], {}, kind)
        program, x = from_onnx(model), X.astype(np.float32).astype(kind)
        assert divided_in(program, x) == [kind]
        exact = x.astype(np.float64) / np.asarray(divisor, kind).astype(np.float64)
        np.testing.assert_allclose(np.asarray(jax.jit(program)(x), np.float64), exact, rtol=1e-2)


def test_a_number_with_a_normal_reciprocal_divides_as_it_is() -> None:
    program = from_onnx(made("Div", [X, np.float16(8)], {}))
    assert divided_in(program, X) == [np.float16]
    assert "/ 8" in program.to_source(framework="jax").code
    by_input = from_onnx(made("Div", [X, SMALL], {}))
    assert divided_in(by_input, X) == [np.float32]

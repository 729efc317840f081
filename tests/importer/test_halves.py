"""Products in half precision that a file computes in float32: multiplied as they are, with sums in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx.helper
import pytest
from onnx import numpy_helper

import jaxport
import jaxport.testing

DTYPES = {"bfloat16": jnp.bfloat16, "float16": jnp.float16}


def model(
    left: str = "bfloat16",
    right: str = "bfloat16",
    *,
    shape: tuple[int, ...] = (4, 6),
    operator: str = "MatMul",
    more: tuple[str, ...] = (),
    **attributes: Any,
) -> jaxport.Program:
    """A product of casts of `x` and of the weight `w`, cast back."""
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, dtype in DTYPES.items()}
    make = onnx.helper.make_node
    nodes = [
        make("Cast", ["x"], ["wide_x"], to=onnx.TensorProto.FLOAT),
        make("Cast", ["w"], ["wide_w"], to=onnx.TensorProto.FLOAT),
        make(operator, ["wide_x", "wide_w", *more], ["wide"], **attributes),
        make("Cast", ["wide"], ["y"], to=kinds[left]),
    ]
    weight = np.random.default_rng(0).normal(size=shape).astype(DTYPES[right])
    tensor = onnx.helper.make_tensor("w", kinds[right], shape, weight.tobytes(), raw=True)
    added = [numpy_helper.from_array(np.linspace(-1, 1, shape[-1], dtype=np.float32), name) for name in more]
    width = shape[-1] if attributes.get("transB") else shape[-2]
    x = onnx.helper.make_tensor_value_info("x", kinds[left], ["B", width])
    graph = onnx.helper.make_graph(
        nodes, "product", [x], [onnx.helper.make_empty_tensor_value_info("y")], [tensor, *added]
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    return jaxport.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))


def products(function, x):
    """The dtypes of the operands of all products of a traced function."""
    closed = jax.make_jaxpr(lambda x: function(x))(x)
    return [[v.aval.dtype.name for v in e.invars] for e in closed.jaxpr.eqns if e.primitive.name == "dot_general"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_are_multiplied_as_they_are(dtype: str) -> None:
    program = model(dtype, dtype)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), DTYPES[dtype])
    assert products(program, x) == [[dtype, dtype]]
    weight = np.asarray(program.params["w"])
    expected = (np.float32(x) @ np.float32(weight)).astype(DTYPES[dtype])
    for found in (program(x), jax.jit(program)(x)):
        assert found.dtype == DTYPES[dtype]
        np.testing.assert_allclose(np.float32(found), np.float32(expected), rtol=1e-2)


def test_operands_of_two_types_are_cast() -> None:
    x = jnp.ones((3, 4), jnp.bfloat16)
    assert products(model("bfloat16", "float16"), x) == [["float32", "float32"]]


OTHERS: dict[str, dict[str, Any]] = {
    "a Gemm": {"operator": "Gemm", "more": ("bias",)},
    "a Gemm with factors": {"operator": "Gemm", "more": ("bias",), "alpha": 0.5, "beta": 2.0},
    "a Gemm with a transpose": {"operator": "Gemm", "transB": 1, "shape": (6, 4)},
    "an Einsum": {"operator": "Einsum", "equation": "bi,io->bo"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products(name: str) -> None:
    options = OTHERS[name]
    program, x = model(**options), jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.bfloat16)
    assert products(program, x) == [["bfloat16", "bfloat16"]]
    weight = np.float32(program.params["w"])
    expected = options.get("alpha", 1.0) * (np.float32(x) @ (weight.T if options.get("transB") else weight))
    expected = expected + options.get("beta", 1.0) * (np.linspace(-1, 1, 6) if options.get("more") else 0)
    for found in (program(x), jax.jit(program)(x)):
        np.testing.assert_allclose(np.float32(found), expected, rtol=1e-2, atol=1e-2)
    jax.grad(lambda x: jnp.sum(program(x).astype(jnp.float32)))(x)
    program.verify()


def test_stacks_and_gradients() -> None:
    program = model(shape=(2, 4, 6))
    x = jnp.ones((3, 4), jnp.bfloat16)
    assert program(x).shape == (2, 3, 6)
    gradient = jax.grad(lambda x: program(x).astype(jnp.float32).sum())(x)
    expected = np.float32(program.params["w"]).sum((0, 2))
    np.testing.assert_allclose(np.float32(gradient), np.broadcast_to(expected, (3, 4)), rtol=2e-2)


def test_the_file_is_written_again_as_it_was() -> None:
    program = model()
    exported = jaxport.to_onnx(program, [jaxport.testing.spec("B", 4, dtype=jnp.bfloat16)])
    assert sorted(node.op_type for node in exported.model.graph) == ["Cast", "Cast", "MatMul"]
    exported.verify()
    program.verify()


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with a bias": {"more": ("bias",)},
    "strides": {"strides": [2, 2], "pads": [1, 0, 1, 0]},
    "steps": {"dilations": [2, 1], "pads": [0, 1, 2, 0]},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dtype: str) -> None:
    options = dict(CONVOLUTIONS[name])
    more, kind = options.pop("more", ()), onnx.helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype]))
    make, random = onnx.helper.make_node, np.random.default_rng(0)
    nodes = [
        make("Cast", ["x"], ["wide_x"], to=onnx.TensorProto.FLOAT),
        make("Cast", ["w"], ["wide_w"], to=onnx.TensorProto.FLOAT),
        make("Conv", ["wide_x", "wide_w", *more], ["wide"], **options),
        make("Cast", ["wide"], ["y"], to=kind),
    ]
    kernel = random.normal(size=(5, 3, 3, 3)).astype(DTYPES[dtype])
    tensor = onnx.helper.make_tensor("w", kind, kernel.shape, kernel.tobytes(), raw=True)
    added = [numpy_helper.from_array(np.linspace(-1, 1, 5, dtype=np.float32), name) for name in more]
    values = [
        onnx.helper.make_tensor_value_info("x", kind, ["B", 3, 7, 6]),
        onnx.helper.make_empty_tensor_value_info("y"),
    ]
    graph = onnx.helper.make_graph(nodes, "images", values[:1], values[1:], [tensor, *added])
    opsets = [onnx.helper.make_opsetid("", 22)]
    program = jaxport.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    x = jnp.asarray(random.normal(size=(2, 3, 7, 6)), DTYPES[dtype])
    closed = jax.make_jaxpr(lambda x: program(x))(x)
    (convolved,) = [e for e in closed.jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    assert [variable.aval.dtype.name for variable in (*convolved.invars, *convolved.outvars)] == [
        dtype,
        dtype,
        "float32",
    ]
    for found in (program(x), jax.jit(program)(x)):
        assert found.dtype == DTYPES[dtype]
    jax.grad(lambda x: jnp.sum(program(x).astype(jnp.float32)))(x)
    program.verify()


def test_convolutions_of_groups_are_computed_in_single_precision() -> None:
    """On CPUs they are sums of products, of which those in half precision would be rounded one by one."""
    make = onnx.helper.make_node
    nodes = [
        make("Cast", ["x"], ["wide_x"], to=onnx.TensorProto.FLOAT),
        make("Cast", ["w"], ["wide_w"], to=onnx.TensorProto.FLOAT),
        make("Conv", ["wide_x", "wide_w"], ["wide"], group=3),
        make("Cast", ["wide"], ["y"], to=onnx.TensorProto.BFLOAT16),
    ]
    kernel = np.random.default_rng(0).normal(size=(3, 1, 3, 3)).astype(jnp.bfloat16)
    tensor = onnx.helper.make_tensor("w", onnx.TensorProto.BFLOAT16, kernel.shape, kernel.tobytes(), raw=True)
    values = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, ["B", 3, 7, 6]),
        onnx.helper.make_empty_tensor_value_info("y"),
    ]
    graph = onnx.helper.make_graph(nodes, "images", values[:1], values[1:], [tensor])
    opsets = [onnx.helper.make_opsetid("", 22)]
    jaxport.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)).verify()

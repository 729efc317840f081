"""Files in float16 and bfloat16 as source: normalizations that compute in single precision are layers."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from flax import nnx
from onnx import helper, numpy_helper

import jaxport
import jaxport.testing
from tests.codegen.structured import load
from tests.importer.printed import without_jaxport

TYPES = {"float16": (np.float16, 2e-3), "bfloat16": (ml_dtypes.bfloat16, 2e-2)}


def normalized(operator: str, dtype: np.dtype) -> onnx.ModelProto:
    """A linear layer behind a normalization, as exporters write models in half precision."""
    random, kind = np.random.default_rng(0), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    arrays = {
        "norm.weight": random.uniform(0.5, 1.5, 8),
        "norm.bias": random.normal(0, 0.2, 8),
        "fc.weight": random.normal(0, 0.4, (8, 6)),
        "fc.bias": random.normal(0, 0.4, 6),
    }
    inputs = ["x", "norm.weight", *(["norm.bias"] if operator == "LayerNormalization" else [])]
    nodes = [
        helper.make_node(operator, inputs, ["n"], axis=-1, epsilon=1e-5),
        helper.make_node("MatMul", ["n", "fc.weight"], ["m"]),
        helper.make_node("Add", ["m", "fc.bias"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, kind, ["batch", size]) for name, size in (("x", 8), ("y", 6))]
    tensors = [numpy_helper.from_array(array.astype(dtype), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
@pytest.mark.parametrize("name", TYPES)
def test_a_normalization_in_single_precision_is_a_layer(name: str, operator: str, framework: str, tmp_path: Path):
    dtype, tolerance = TYPES[name]
    program = jaxport.from_onnx(normalized(operator, np.dtype(dtype)))
    code = program.to_source(tmp_path, framework=framework).code
    if framework == "nnx":  # the layers of Equinox source compute in the type of their input
        assert {"RMSNormalization": "nnx.RMSNorm(8,", "LayerNormalization": "nnx.LayerNorm("}[operator] in code
        assert f"nnx.Linear(8, 6, param_dtype=jnp.{name}" in code
        assert "nnx.Param(" not in code
    x = (3 * np.random.default_rng(1).normal(size=(4, 8))).astype(dtype)
    with without_jaxport():
        found = load(tmp_path).load()(x)
    assert found.dtype == np.dtype(dtype)
    # A layer of Flax rounds once where the operators round twice: by at most a unit in the last place of each.
    np.testing.assert_allclose(
        found.astype(np.float32), np.asarray(program(x), np.float32), rtol=tolerance, atol=tolerance
    )


def test_a_normalization_that_is_spelled_out_between_casts_is_a_layer(tmp_path: Path):
    """Llama's, as PyTorch writes it: the statistics are of float32, the scale is of float16."""
    random = np.random.default_rng(0)
    arrays = {"norm.weight": random.uniform(0.5, 1.5, 8), "fc.weight": random.normal(0, 0.4, (8, 6))}
    nodes = [
        helper.make_node("Add", ["x", "x"], ["h"]),
        helper.make_node("Cast", ["h"], ["f"], to=1),
        helper.make_node("Pow", ["f", "two"], ["s"]),
        helper.make_node("ReduceMean", ["s", "last"], ["m"], keepdims=1),
        helper.make_node("Add", ["m", "epsilon"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["r"]),
        helper.make_node("Reciprocal", ["r"], ["i"]),
        helper.make_node("Mul", ["f", "i"], ["n"]),
        helper.make_node("Cast", ["n"], ["c"], to=10),
        helper.make_node("Mul", ["norm.weight", "c"], ["w"]),
        helper.make_node("MatMul", ["w", "fc.weight"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, 10, ["batch", "length", size]) for name, size in (("x", 8), ("y", 6))]
    tensors = [numpy_helper.from_array(array.astype(np.float16), name) for name, array in arrays.items()]
    numbers = {"two": np.float32(2), "epsilon": np.float32(1e-5), "last": np.array([-1])}
    tensors += [numpy_helper.from_array(np.asarray(number), name) for name, number in numbers.items()]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    program = jaxport.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    code = program.to_source(tmp_path, framework="nnx").code
    assert "self.fc(self.norm(x + x))" in code
    assert "nnx.RMSNorm(8, epsilon=1e-05, param_dtype=jnp.float16" in code
    x = random.normal(size=(2, 3, 8)).astype(np.float16)
    found = load(tmp_path).load()(x)
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(program(x), np.float32), rtol=4e-3, atol=4e-3)


class Block(nnx.Module):
    """Layers of Flax in bfloat16, whose weights are larger than what an export stores in the type of its computation, or not."""

    def __init__(self, size: int, dtype: np.dtype):
        rngs, options = nnx.Rngs(0), {"dtype": dtype, "param_dtype": dtype}
        self.before, self.after = nnx.RMSNorm(size, rngs=rngs, **options), nnx.LayerNorm(size, rngs=rngs, **options)
        self.up = nnx.Linear(size, 2 * size, bias_init=nnx.initializers.normal(1.0), rngs=rngs, **options)
        self.down = nnx.Linear(2 * size, size, use_bias=False, rngs=rngs, **options)

    def __call__(self, x):
        return self.after(self.down(nnx.relu(self.up(self.before(x)))))


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("size", [8, 128])
def test_layers_that_a_file_computes_in_single_precision_are_those_of_flax(size: int, framework: str, tmp_path: Path):
    exported = jaxport.to_onnx(Block(size, jnp.bfloat16), [jaxport.testing.spec("B", size, dtype=jnp.bfloat16)])
    program = jaxport.from_onnx(exported.model)
    code = program.to_source(tmp_path, framework=framework).code
    if framework == "nnx":
        assert f"nnx.Linear({size}, {2 * size}, param_dtype=jnp.bfloat16, rngs=rngs)" in code
        assert f"nnx.RMSNorm({size}, epsilon=1e-06, param_dtype=jnp.bfloat16, rngs=rngs)" in code
        assert code.count("class ") == 1
        assert "nnx.Param(" not in code
    x = np.random.default_rng(1).normal(size=(4, size)).astype(ml_dtypes.bfloat16)
    with without_jaxport():
        found = load(tmp_path).load()(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(np.float32(found), np.float32(exported(x)))


def test_weights_that_half_precision_cannot_represent_stay_as_they_are(tmp_path: Path):
    kernel = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=1),
        helper.make_node("MatMul", ["f", "kernel"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=16),
    ]
    values = [helper.make_tensor_value_info(name, 16, ["batch", size]) for name, size in (("x", 8), ("y", 6))]
    tensors = [numpy_helper.from_array(kernel, "kernel")]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    program = jaxport.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    assert "astype(jnp.float32)" in program.to_source(tmp_path, framework="nnx").code
    x = np.random.default_rng(1).normal(size=(4, 8)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.float32(load(tmp_path).load()(x)), np.float32(program(x)))


class Images(nnx.Module):
    """Convolutions of Flax in bfloat16."""

    def __init__(self, dtype: np.dtype):
        rngs, options = nnx.Rngs(0), {"dtype": dtype, "param_dtype": dtype}
        normal = nnx.initializers.normal(1.0)
        self.first = nnx.Conv(3, 8, (3, 3), strides=2, bias_init=normal, rngs=rngs, **options)
        self.second = nnx.Conv(8, 4, (1, 1), use_bias=False, rngs=rngs, **options)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_convolutions_that_a_file_computes_in_single_precision_are_those_of_flax(framework: str, tmp_path: Path):
    inputs = [jaxport.testing.spec("B", 8, 8, 3, dtype=jnp.bfloat16)]
    exported = jaxport.to_onnx(Images(jnp.bfloat16), inputs)
    program = jaxport.from_onnx(exported.model)
    code = program.to_source(tmp_path, framework=framework).code
    if framework == "nnx":
        assert code.count("nnx.Conv(") == 2
        assert code.count("param_dtype=jnp.bfloat16") == 2
    x = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(ml_dtypes.bfloat16)
    with without_jaxport():
        found = load(tmp_path).load()(x)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(np.float32(found), np.float32(exported(x)), rtol=2e-2, atol=2e-2)

"""Files in float16 and bfloat16 as source: normalizations that compute in single precision are layers."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import jaxport
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

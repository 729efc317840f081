"""Windows of pools over open sizes: as many as in ONNX Runtime, in the program and in what it prints."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from flax import nnx
from onnx import TensorProto, helper

import jaxport
from tests.codegen import structured

LENGTHS = range(9, 22)
"""From the longest window on, without which ONNX Runtime refuses the pool."""


def pools() -> list[onnx.NodeProto]:
    """Pools that are rounded up, of all kinds of kernel, stride, padding and dilation."""
    nodes = []
    for operator, kernel, stride, around, dilation in itertools.product(
        ("MaxPool", "AveragePool", "LpPool"), (1, 2, 3, 5), (2, 3, 4), ((0, 0), (1, 1), (0, 2), (2, 1)), (1, 2)
    ):
        if max(around) < kernel and (dilation == 1 or operator == "MaxPool"):
            further = {"dilations": [dilation]} if dilation > 1 else {}
            further |= {"count_include_pad": len(nodes) % 2} if operator == "AveragePool" else {}
            window: dict[str, Any] = {"kernel_shape": [kernel], "strides": [stride], "pads": [*around], "ceil_mode": 1}
            nodes.append(helper.make_node(operator, ["x"], [f"y{len(nodes)}"], **window, **further))
    return nodes


def model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, "length"])
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes]
    graph = helper.make_graph(nodes, "g", [x], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


def printed(program: jaxport.importer.Program, framework: str) -> Callable[..., Any]:
    folder = Path(tempfile.mkdtemp())
    source = program.to_source(folder, framework=framework)
    assert source.notes == ()
    made = next(value for name, value in vars(structured.load(folder)).items() if name == "G")
    return made(rngs=nnx.Rngs(0)) if framework == "nnx" else made(keys=iter(jax.random.split(jax.random.key(0), 9)))


@pytest.mark.parametrize("framework", ["program", "nnx", "equinox"])
def test_a_pool_that_is_rounded_up_has_the_windows_of_onnx_runtime(framework: str):
    nodes = pools()
    assert len(nodes) > 100
    made = model(nodes)
    program, session = jaxport.from_onnx(made), ort.InferenceSession(made.SerializeToString())
    called = program if framework == "program" else printed(program, framework)
    for length in LENGTHS:
        x = np.arange(length, dtype=np.float32).reshape(1, 1, length)
        expected = session.run(None, {"x": x})
        found = called(x) if length == LENGTHS[4] else jax.eval_shape(called, x)
        for node, want, got in zip(nodes, expected, jax.tree.leaves(tuple(found)), strict=True):
            assert got.shape == want.shape, (length, node)
            if length == LENGTHS[4]:
                np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=str(node))

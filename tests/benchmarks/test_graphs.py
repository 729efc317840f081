"""The pairs of `benchmarks.graphs`: the JAX side of each, small; what needs PyTorch is in `tests/torch`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import jaxport
from benchmarks.graphs import comparing, files
from benchmarks.graphs.pairs import PAIRS
from examples.models.comparing import compare
from examples.models.example import as_specs

OWN = [name for name, pair in PAIRS.items() if pair.make.__module__ != "benchmarks.graphs.pairs"]
"""Those whose JAX side is not an example, and tested as such."""


@pytest.mark.parametrize("name", [each if each == "message_passing" else pytest.param(each, marks=pytest.mark.slow) for each in OWN])
def test_the_jax_side_exports(name):
    example = PAIRS[name].make("small")
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options, **PAIRS[name].options)
    plain = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    assert len(exported.inputs) == len(as_specs(example.inputs))
    for sizes in example.sizes:
        assert all(found.ok for found in compare(example, plain, example.sample(np.random.default_rng(0), sizes)))


def test_a_file_without_its_weights_gets_others_of_their_kind(tmp_path):
    weights = np.random.default_rng(0).normal(3, 2, (100, 200)).astype(np.float32)
    graph = onnx.parser.parse_graph("agraph (float[N, 100] x) => (float[N, 200] y) { z = MatMul(x, w) y = Add(z, b) }")
    graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.arange(200, dtype=np.float32), "b"))
    model = onnx.helper.make_model(graph)
    for tensor in model.graph.initializer:
        files._forget(tensor)
    assert model.ByteSize() < 2_000
    onnx.save(model, tmp_path / "kept.onnx")
    (tmp_path / "kept.json").write_text('{"parameters": 20200}')
    assert files.restore(tmp_path / "kept.onnx", tmp_path / "restored.onnx") == {"parameters": 20200}
    restored = onnx.load(tmp_path / "restored.onnx")
    onnx.checker.check_model(restored)
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in restored.graph.initializer}
    assert np.array_equal(found["b"], np.arange(200))
    assert found["w"].shape == (100, 200)
    assert (abs(found["w"].mean() - 3), abs(found["w"].std() - 2)) < (0.05, 0.05)


def test_nodes_are_counted_in_bodies_too():
    model = jaxport.to_onnx(lambda x: jax_scan(x), [("T", 2)], unroll_scans=0).proto()
    assert comparing.operators(model)["Scan"] == 1

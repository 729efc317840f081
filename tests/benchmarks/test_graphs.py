"""The pairs of `benchmarks.graphs`, small and without PyTorch: the JAX side of each, and what is done with files."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest

import jaxport
from benchmarks.graphs import comparing, files
from benchmarks.graphs.pairs import PAIRS
from benchmarks.measure import rendered
from examples.models.comparing import compare

OWN = [name for name, pair in PAIRS.items() if pair.make.__module__ != "benchmarks.graphs.pairs"]
"""Those whose JAX side is not one of the examples, which have tests of their own."""


@pytest.mark.parametrize(
    "name", [name if name == "message_passing" else pytest.param(name, marks=pytest.mark.slow) for name in OWN]
)
def test_the_jax_side_is_exported_and_runs(name, tmp_path):
    pair = PAIRS[name]
    example = pair.make("small")
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    for sizes in example.sizes:
        assert all(found.ok for found in compare(example, exported, pair.arguments(example, sizes)))
    files.write_ours(pair, example, tmp_path / "ours.onnx")
    written = onnx.load(tmp_path / "ours.onnx")
    arrays = pair.arrays(pair.arguments(example, example.sizes[0]))
    assert [len(value.type.tensor_type.shape.dim) for value in written.graph.input] == [x.ndim for x in arrays]
    assert sum(comparing.operators(written).values()) >= sum(comparing.optimized(tmp_path / "ours.onnx").values())


def test_a_file_without_its_weights_gets_others_of_their_kind(tmp_path):
    weights = np.random.default_rng(0).normal(3, 2, (100, 200)).astype(np.float32)
    graph = onnx.parser.parse_graph("agraph (float[N, 100] x) => (float[N, 200] y) { z = MatMul(x, w) y = Add(z, b) }")
    graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.arange(200, dtype=np.float32), "b"))
    files.save_without_weights(onnx.helper.make_model(graph), 20200, tmp_path / "kept.onnx")
    assert (tmp_path / "kept.onnx").stat().st_size < 2_000
    about = files.restore(tmp_path / "kept.onnx", tmp_path / "restored.onnx")
    assert about["parameters"] == 20200
    assert about["bytes"] > weights.nbytes
    restored = onnx.load(tmp_path / "restored.onnx")
    onnx.checker.check_model(restored)
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in restored.graph.initializer}
    assert np.array_equal(found["b"], np.arange(200))
    assert found["w"].shape == (100, 200)
    assert abs(found["w"].mean() - 3) < 0.05
    assert abs(found["w"].std() - 2) < 0.05


@pytest.mark.parametrize("name", ["message_passing", "gru", pytest.param("llama_scan", marks=pytest.mark.slow)])
def test_a_jitted_call_is_timed(name):
    assert comparing.in_jax(name, 1, "small") > 0


def test_nodes_in_bodies_are_counted():
    def fn(x):
        return jax.lax.scan(lambda carry, row: (carry * row, carry + 1), x[0], x)

    found = comparing.operators(jaxport.to_onnx(fn, [("T", 2)], unroll_scans=0).proto)
    assert {"Scan": 1, "Mul": 1, "Add": 1}.items() <= found.items()


def test_columns_of_figures_are_aligned_and_have_as_many_digits():
    rows = [("a", 1.0, "20 → 3", 5, "B=1"), ("b", 103.2, "4", "–", "B=2"), ("c", 7.98e-7, "4", 2, "B=1, T=2")]
    table = rendered("Title", ["model", "ms", "nodes", "count", "sizes"], rows).splitlines()
    assert table[4] == "|---|---:|---:|---:|---|"
    assert table[5:] == [
        "| a | 1.00 | 20 → 3 | 5 | B=1 |",
        "| b | 103 | 4 | – | B=2 |",
        "| c | 7.98e-07 | 4 | 2 | B=1, T=2 |",
    ]
    assert rendered("Title", ["model"], []).splitlines()[-1] == "|---|"

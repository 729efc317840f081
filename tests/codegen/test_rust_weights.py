"""Weights of a crate are in Burn's own places and layouts, and come back into the tensors of the file that they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

import jaxport
from examples.models import build

RECURRENT = """<ir_version: 10, opset_import: ["": 21]> g (float[t, b, 4] x) => (float[t, d, b, 3] y)
    {{ y = {kind}<hidden_size = 3, direction = "{direction}"{options}>(x, w, r, bias) }}"""


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def recurrent(kind: str, gates: int, direction: str, options: str = "") -> onnx.ModelProto:
    made = onnx.parser.parse_model(RECURRENT.format(kind=kind, direction=direction, options=options))
    ways = 2 if direction == "bidirectional" else 1
    tensors = {"w": some(ways, 3 * gates, 4), "r": some(ways, 3 * gates, 3), "bias": some(ways, 6 * gates)}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in tensors.items())
    return made


def attention() -> onnx.ModelProto:
    example = build("vit_b16", "nnx", "small")
    return jaxport.to_onnx(example.fn, list(example.inputs), **example.options).model


MODELS = {
    "lstm": lambda: recurrent("LSTM", 4, "bidirectional"),
    "gru": lambda: recurrent("GRU", 3, "reverse", ", linear_before_reset = 1"),
    "attention": attention,
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_trained_comes_back_into_its_place(name: str, tmp_path: Path) -> None:
    program = jaxport.from_onnx(MODELS[name]())
    program.to_source(tmp_path, framework="burn")
    file = tmp_path / "model.safetensors"
    unchanged = program.with_params(file).params
    weights = load_file(file)
    save_file({key: 2 * value for key, value in weights.items()}, tmp_path / "trained.safetensors")
    trained = program.with_params(tmp_path / "trained.safetensors").params
    for key, value in program.params.items():
        np.testing.assert_array_equal(unchanged[key], value)
        np.testing.assert_array_equal(trained[key], 2 * np.asarray(value))


def test_gates_are_burns() -> None:
    source = jaxport.from_onnx(MODELS["lstm"]()).to_source(framework="burn")
    program = jaxport.from_onnx(MODELS["lstm"]())
    w = np.asarray(program.params["w"])
    for place, gate in enumerate(("input", "output", "forget", "cell")):  # the order of ONNX
        expected = w[0, 3 * place : 3 * place + 3].T
        np.testing.assert_array_equal(source.tensors[f"lstm.{gate}_gate.input_transform.weight"], expected)

"""Quantized models as source: weights are dequantized once, and values that are rounded to integers say so in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from flax import nnx

import jaxport
from tests.codegen.structured import compare, load
from tests.codegen.test_structured import FRAMEWORKS, check_model

INPUT = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.down = nnx.Linear(64, 128, rngs=rngs), nnx.Linear(128, 64, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(nnx.relu(self.up(x)))


class Image(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(16, 32, (3, 3), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.conv(x.reshape(-1, 2, 2, 16)))


def static(folder: Path, make: Any) -> onnx.ModelProto:
    """A model as the static quantizer of ONNX Runtime writes it, per channel."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.inputs = iter([{"x": INPUT}])

        def get_next(self) -> Any:
            return next(self.inputs, None)

    jaxport.to_onnx(make(nnx.Rngs(0)), [("batch", 64)], target="portable").save(folder / "float.onnx")
    quantize_static(folder / "float.onnx", folder / "int8.onnx", Reader(), per_channel=True)
    return onnx.load(folder / "int8.onnx")


def exported(precision: str, make: Any = Block) -> Any:
    options: dict[str, Any] = {"calibration": [(INPUT,)]} if precision == "int8" else {}
    return jaxport.to_onnx(make(nnx.Rngs(0)), [("batch", 64)], precision=precision, **options).model


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_weights_are_dequantized_once(precision: str, framework: str, tmp_path: Path) -> None:
    code = check_model(exported(precision), tmp_path, framework)
    assert code.count("Linear(64, 128") == code.count("Linear(128, 64") == 1
    assert "Table" not in code
    assert code.count("= fake_quantized(") + code.count("(fake_quantized(") == 2 * (precision == "int8")
    names = load(tmp_path).named(load(tmp_path).load())
    assert {path.rpartition(".")[0] for path in names} == {"up", "down"}


@pytest.mark.parametrize("make", [Block, Image])
def test_files_of_the_static_quantizer_of_onnx_runtime(make: Any, tmp_path: Path) -> None:
    program = jaxport.from_onnx(static(tmp_path, make))
    code = program.to_source(tmp_path / "out", framework="nnx").code
    compare([load(tmp_path / "out").load()(INPUT)], [program(INPUT)])  # gradients are zero: the result is rounded
    assert "fake_quantized(" in code
    assert ("nnx.Conv(16, 32" if make is Image else "nnx.Linear(64, 128") in code
    assert "Table" not in code


def test_a_kernel_that_is_read_twice_stays_as_it_is(tmp_path: Path) -> None:
    proto = jaxport.to_onnx(Block(nnx.Rngs(0)), [("batch", 64)], precision="int4").proto
    twice = onnx.helper.make_node("MatMul", ["x", proto.graph.node[0].output[0]], ["again"])
    proto.graph.node.append(twice)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("again", 1, ["batch", 128]))
    assert "nnx.Linear(64, 128" not in check_model(proto, tmp_path, "nnx")

"""Quantized models as source: weights are dequantized once, and values that are rounded to integers say so in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from flax import nnx
from safetensors.numpy import load_file

import jaxport
from tests.codegen import structured
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


def in_few_bits(bits: int, zero_points: bool, bias: bool, width: int = 40) -> onnx.ModelProto:
    """Three layers whose matrices are stored in blocks of few bits, as ONNX Runtime's quantizer writes them."""
    random, block = np.random.default_rng(0), 16
    blocks = -(-width // block)
    nodes, tensors, x = [], {}, "x"
    for layer in range(3):
        path = f"layers.{layer}.fc"
        tensors[f"{path}.weight_Q4"] = random.integers(0, 256, (width, blocks, block * bits // 8), dtype=np.uint8)
        tensors[f"{path}.weight_scales"] = random.uniform(0.01, 0.05, (width, blocks)).astype(np.float32)
        names = [x, f"{path}.weight_Q4", f"{path}.weight_scales"]
        if zero_points:
            tensors[f"{path}.weight_zp"] = random.integers(0, 256, (width, -(-blocks * bits // 8)), dtype=np.uint8)
            names.append(f"{path}.weight_zp")
        attributes = {"K": width, "N": width, "bits": bits, "block_size": block}
        nodes.append(
            onnx.helper.make_node("MatMulNBits", names, [f"m{layer}"], domain="com.microsoft", name=f"/layers.{layer}/fc/MatMul", **attributes)
        )  # fmt: skip
        if bias:
            tensors[f"{path}.bias"] = random.normal(size=width).astype(np.float32)
            nodes.append(
                onnx.helper.make_node(
                    "Add", [f"m{layer}", f"{path}.bias"], [f"a{layer}"], name=f"/layers.{layer}/fc/Add"
                )
            )
        nodes.append(onnx.helper.make_node("Tanh", [nodes[-1].output[0]], [f"t{layer}"], name=f"/layers.{layer}/Tanh"))
        x = f"t{layer}"
    values = [onnx.helper.make_tensor_value_info(name, 1, ["batch", width]) for name in ("x", x)]
    graph = onnx.helper.make_graph(
        nodes, "net", values[:1], values[1:], [onnx.numpy_helper.from_array(a, n) for n, a in tensors.items()]
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("bits", "zero_points", "bias"), [(4, False, True), (4, True, True), (2, True, False), (8, False, False)]
)
def test_matrices_of_few_bits_are_layers_that_keep_them(
    bits: int, zero_points: bool, bias: bool, framework: str, tmp_path: Path
):
    made = in_few_bits(bits, zero_points, bias)
    x = np.random.default_rng(1).normal(size=(2, 40)).astype(np.float32)
    if bias:
        code = structured.check(made, {"x": x}, tmp_path, framework)
    else:  # nothing is trained
        program = jaxport.from_onnx(made)
        code = program.to_source(tmp_path, framework=framework).code
        found = structured.load(tmp_path).load()(x)
        np.testing.assert_allclose(found, program(x), rtol=1e-5, atol=1e-5)
    assert f"QuantizedLinear(40, 40, {bits}, 16" in code
    assert ("zero_points=True" in code) is zero_points
    assert "layer in self.layers" in code
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["layers.0.fc.packed"].dtype == np.uint8
    assert sum(array.nbytes for array in stored.values()) < 3 * 40 * (40 * bits // 8 + 48)


def test_an_adapter_beside_a_matrix_of_few_bits_is_all_that_is_trained():
    program = jaxport.from_onnx(in_few_bits(4, zero_points=True, bias=False))
    x = np.ones((2, 40), np.float32)
    adapted = jaxport.make_mox(program)(x).sub("//MatMulNBits", jaxport.mox.lora(rank=2))
    assert len(adapted.params) == 6
    assert all(".lora_" in name for name in adapted.params)
    np.testing.assert_allclose(adapted(x), program(x), rtol=1e-5, atol=1e-5)

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
from jaxport.codegen.recorded.fused import record_fused
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
def test_weights_stay_integers_in_their_layers(precision: str, framework: str, tmp_path: Path) -> None:
    code = check_model(exported(precision), tmp_path, framework)
    bits = precision.removeprefix("int")
    assert code.count(f"QuantizedLinear(64, 128, {bits}") == code.count(f"QuantizedLinear(128, 64, {bits}") == 1
    assert ("FakeQuantize(" in code) is (precision == "int8")
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(stored[f"{name}.packed"].nbytes for name in ("up", "down")) == 2 * 64 * 128 * int(bits) // 8


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("make", [Block, Image])
def test_files_of_the_static_quantizer_of_onnx_runtime(make: Any, framework: str, tmp_path: Path) -> None:
    program = jaxport.from_onnx(static(tmp_path, make))
    code = program.to_source(tmp_path / "out", framework=framework).code
    compare([load(tmp_path / "out").load()(INPUT)], [program(INPUT)])  # gradients are zero: the result is rounded
    assert ("QuantizedConv(16, 32" if make is Image else "QuantizedLinear(64, 128, 8") in code
    assert "fake_quantized(" not in code.partition("\nclass Model")[2]
    stored = load_file(tmp_path / "out/model.safetensors")
    assert all(array.dtype.itemsize == 1 for array in stored.values() if array.ndim > 2)


def rounded_blocks(count: int, kinds: str = "int8") -> onnx.ModelProto:
    """Blocks that differ in nothing but their weights and the numbers that they round with."""
    random, width = np.random.default_rng(2), 8
    nodes, tensors, x = [], {}, "x"

    def rounding(x: str, name: str, scale: float, zero_point: int) -> str:
        tensors[f"{name}_scale"] = np.float32(scale)
        tensors[f"{name}_zero"] = np.asarray(zero_point, kinds)
        for kind, source, end in (("Quantize", x, "int"), ("Dequantize", f"{name}_int", "float")):
            operands = [source, f"{name}_scale", f"{name}_zero"]
            nodes.append(onnx.helper.make_node(f"{kind}Linear", operands, [f"{name}_{end}"]))
        return f"{name}_float"

    for layer in range(count):
        path, low = f"layers.{layer}.fc", np.iinfo(kinds).min
        tensors[f"{path}.weight"] = random.integers(low, low + 256, (width, width)).astype(kinds)
        tensors[f"{path}.weight_scale"] = random.uniform(0.01, 0.03, width).astype(np.float32)
        tensors[f"{path}.weight_zero"] = random.integers(low, low + 256, width).astype(kinds)
        operands = [f"{path}.weight", f"{path}.weight_scale", f"{path}.weight_zero"]
        nodes.append(onnx.helper.make_node("DequantizeLinear", operands, [f"w{layer}"], axis=layer % 2))
        before = rounding(x, f"a{layer}", 0.02 + layer / 100, low + 100 + layer)
        # PyTorch keeps kernels turned.
        nodes.append(onnx.helper.make_node("Gemm", [before, f"w{layer}"], [f"m{layer}"], name=f"/layers.{layer}/fc/Gemm", transB=1 - layer % 2))  # fmt: skip
        nodes.append(onnx.helper.make_node("Tanh", [rounding(f"m{layer}", f"b{layer}", 0.03, low + 120)], [f"t{layer}"], name=f"/layers.{layer}/Tanh"))  # fmt: skip
        x = f"t{layer}"
    x = rounding(x, "last", 0.01, low + 128)
    values = [onnx.helper.make_tensor_value_info(name, 1, ["batch", width]) for name in ("x", x)]
    initializers = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()]
    graph = onnx.helper.make_graph(nodes, "net", values[:1], values[1:], initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kinds", ["int8", "uint8"])
def test_blocks_that_round_with_other_numbers_are_one_class_and_a_loop(kinds: str, framework: str, tmp_path: Path):
    program = jaxport.from_onnx(rounded_blocks(3, kinds))
    code = program.to_source(tmp_path, framework=framework).code
    x = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
    made = load(tmp_path).load()
    compare([made(x)], [program(x)])
    compare([jax.grad(lambda x: made(x).sum())(x)], [jax.grad(lambda x: program(x).sum())(x)])
    assert "for layer in self.layers" in code
    assert "zero_points=True" in code
    assert code.count("self.quantize = ") == 2  # of the model, and of all blocks
    assert len(load_file(tmp_path / "model.safetensors")) == 3 * (3 + 2 * 2) + 2


@pytest.mark.parametrize("move", ["Transpose", "Split"])
def test_a_value_that_is_rounded_is_not_rounded_again_when_its_axes_move(move: str, tmp_path: Path) -> None:
    model = rounded_blocks(1)
    del model.graph.node[-2:]
    last = model.graph.node[-1]  # of the rounded product
    model.graph.output[0].name = last.output[0]
    ends = {"Transpose": ["moved"], "Split": ["moved", "rest"]}[move]
    options: dict[str, Any] = {"axis": 1, "num_outputs": 2} if move == "Split" else {}
    moved = onnx.helper.make_node(move, [last.input[0]], ends, **options)
    again = onnx.helper.make_node("QuantizeLinear", ["moved", "b0_scale", "b0_zero"], ["again_int"])
    back = onnx.helper.make_node("DequantizeLinear", ["again_int", "b0_scale", "b0_zero"], ["again"])
    last.input[0] = "again"
    model.graph.node.remove(last)
    model.graph.node.extend([moved, again, back, last])
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = jaxport.from_onnx(model)
    code = program.to_source(tmp_path, framework="nnx").code
    x = np.random.default_rng(3).normal(size=(4, 8)).astype(np.float32)
    compare([load(tmp_path).load()(x)], [program(x)])
    assert code.count("FakeQuantize(rngs=rngs)") == 2
    assert " for _ in range" not in code


def test_a_kernel_that_is_read_twice_stays_as_it_is(tmp_path: Path) -> None:
    proto = jaxport.to_onnx(Block(nnx.Rngs(0)), [("batch", 64)], precision="int4").proto
    twice = onnx.helper.make_node("MatMul", ["x", proto.graph.node[0].output[0]], ["again"])
    proto.graph.node.append(twice)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("again", 1, ["batch", 128]))
    assert "Linear(64, 128" not in check_model(proto, tmp_path, "nnx")


class Words(nnx.Module):
    """An embedding, two layers of one value, and one behind them."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.words = nnx.Embed(40, 16, rngs=rngs)
        self.up, self.gate = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(16, 32, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids)
        return self.down(nnx.silu(self.up(x)) * self.gate(x))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_files_of_the_dynamic_quantizer_of_onnx_runtime(
    kind: str, per_channel: bool, framework: str, tmp_path: Path
) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    ids = np.random.default_rng(4).integers(0, 40, (3, 5)).astype(np.int32)
    jaxport.to_onnx(
        Words(nnx.Rngs(0)), [jax.ShapeDtypeStruct((3, 5), np.int32)], input_names=["ids"], target="portable"
    ).save(tmp_path / "float.onnx")
    quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "int8.onnx", weight_type=QuantType[kind], per_channel=per_channel
    )
    model = onnx.load(tmp_path / "int8.onnx")
    assert sum(node.op_type == "MatMulInteger" for node in model.graph.node) == 3
    code = structured.check(model, {"ids": ids}, tmp_path / "out", framework)
    assert code.count("DynamicQuantizedLinear(16, 32") == 2
    assert "QuantizedEmbed(40, 16" in code
    assert "use_bias=False" in code
    stored = load_file(tmp_path / "out/model.safetensors")
    assert all(array.dtype.itemsize == 1 for array in stored.values() if array.ndim == 2)


@pytest.mark.parametrize("scaled_by", ["step", "other"])
def test_integer_products_are_one_operator_if_they_are_scaled_back(scaled_by: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 20]>
        net (float[n, 3] x, float other) => (float[n, 2] y) <int8[3, 2] w = {{1, -2, 3, 4, -5, 6}}, float scale = {{0.5}}> {{
            whole, step, zero = DynamicQuantizeLinear(x)
            product = MatMulInteger(whole, w, zero)
            narrow = Cast<to = 1>(product)
            scales = Mul(scale, {scaled_by})
            y = Mul(scales, narrow)
        }}"""
    )
    program = jaxport.from_onnx(model)
    kinds = [node.op_type for node in record_fused(program).program.model.graph]
    assert (kinds == ["DynamicallyQuantizedMatMul"]) is (scaled_by == "step")
    inputs = {"x": np.array([[0.1, -0.7, 2.0]], np.float32), "other": np.float32(0.3)}
    program.to_source(tmp_path, framework="nnx")
    compare([load(tmp_path).load()(*inputs.values())], [program(**inputs)])


def test_a_table_that_is_dequantized_before_it_is_looked_up_stays_integers(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    tensors = {"w": random.integers(-128, 128, (30, 4), dtype=np.int8), "s": np.float32(0.02), "z": np.int8(3)}
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["w", "s", "z"], ["table"]),
        onnx.helper.make_node("Gather", ["table", "ids"], ["y"]),
    ]
    values = [onnx.helper.make_tensor_value_info("ids", 7, ["n"]), onnx.helper.make_tensor_value_info("y", 1, ["n", 4])]
    initializers = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()]
    graph = onnx.helper.make_graph(nodes, "net", values[:1], values[1:], initializers)
    program = jaxport.from_onnx(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]))
    assert "QuantizedEmbed(30, 4, rngs=rngs)" in program.to_source(tmp_path, framework="nnx").code
    ids = np.array([0, 29, -1, 7])
    compare([load(tmp_path).load()(ids)], [program(ids)])
    assert load_file(tmp_path / "model.safetensors")["embed.embedding"].dtype == np.int8


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


def test_layers_of_burn_have_the_values_of_integers_that_a_file_has() -> None:
    from tests.burn.test_gaps import quantized_layers

    source = jaxport.from_onnx(quantized_layers()).to_source(framework="burn")
    assert "pub table: Embedding," in source.code
    assert "pub conv: Conv1d," in source.code
    assert {key: value.dtype.name for key, value in source.tensors.items()} == dict.fromkeys(
        ("conv.weight", "conv.bias", "table.weight"), "float32"
    )


@pytest.mark.parametrize(
    ("precision", "field"), [("int4", "QuantizedLinear"), ("int8-dynamic", "DynamicQuantizedLinear")]
)
def test_a_crate_has_integers_where_the_file_has(precision: str, field: str) -> None:
    from tests.burn.test_gaps import in_precision

    source = jaxport.from_onnx(in_precision(precision)).to_source(framework="burn")
    assert source.code.count(f": {field},") == 2
    assert f"pub struct {field} " in source.files["src/helpers.rs"]
    integers = [value.nbytes for value in source.tensors.values() if value.dtype.kind in "iu"]
    assert sum(integers) >= (64 * 48 + 48 * 24) // (2 if precision == "int4" else 1)


def test_values_that_are_rounded_twice_alike_are_layers_of_one_kind() -> None:
    from tests.burn.test_gaps import rounded

    code = jaxport.from_onnx(rounded()).to_source(framework="burn").code
    assert "FakeQuantizeConfig::new(-32768.0, 32767.0).init(device)" in code
    assert "fn fake_quantized" not in code

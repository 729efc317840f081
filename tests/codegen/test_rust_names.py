"""Names of hostile files never become code of Rust, and a crate is written whole or not at all."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import nnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

import jaxport
from examples.models import resnet
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.burn.layers import KEYWORDS
from jaxport.codegen.recorded.fused import record_fused
from jaxport.errors import SaveError, Unsupported
from jaxport.importer.interface import in_model_order

HOSTILE = (
    'x"; std::process::exit(7); //', "*/ fn main() {} /*", "a\nb\rc", "\u2028fn evil() {}", "\u202ereversed", "\x1b[2J", "{payload}",
    "\\", "r#type", "Self", "self", "crate", "super", "fn", "type", "Tensor", "Param", "Device", "device", "Vec", "Option", "x",
    "Module", "_", "__", "1st", "é", "漢字", "", " ", "a b", "a.b", "a::b", "../../etc/passwd", "x" * 300, "main", "load", "run",
    "inputs", "outputs", "model", "helpers", "burn", "u8", "None", "Ok", "forward", "new", "val", "Outputs", "activation",
    "Into", "Clone", "Default", "SELF", "VEC", "path", "to_string", "debug",
)  # fmt: skip
PAYLOAD = re.compile(r"process::exit|fn evil|fn main|\x1b|\u2028|\u202e")


def hostile_model(name: str) -> onnx.ModelProto:
    """Two blocks, whose every name is this one, as far as names have to differ."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = name or "w", f"{name}.2"
    nodes = [
        helper.make_node("MatMul", [f"{name}_in", f"{first}_w"], [f"{name}_h"], name=f"/{name}/{name}/MatMul"),
        helper.make_node("Relu", [f"{name}_h"], [f"{name}_r"], name=f"/{name}/Relu"),
        helper.make_node("Add", [f"{name}_r", f"{second}_b"], [f"{name}_out"], name=f"/{name}/{name}.1/Add"),
    ]
    for node in nodes:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", name, f"{name}.fc", node.op_type]))
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str([name] * 4))
    graph = helper.make_graph(
        nodes,
        name or "g",
        [helper.make_tensor_value_info(f"{name}_in", TensorProto.FLOAT, [name or "n", 2])],
        [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [name or "n", 3])],
        [
            numpy_helper.from_array(weight, f"{first}_w"),
            numpy_helper.from_array(np.ones(3, np.float32), f"{second}_b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_counter_does_not_hide_a_size() -> None:
    """`T` is `t` in Rust, as the counter of a loop would be."""

    def last(x):
        return jax.lax.scan(lambda row, i: (x[i % x.shape[0]] + row, None), x[0], jnp.arange(x.shape[0]))[0]

    code = jaxport.to_source(last, [("T", 4)], framework="burn").code
    assert "let t = " in code or "let [t, _] = " in code
    assert not re.search(r"for t in|\|t\|", code)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_are_no_code(name: str) -> None:
    crate = to_crate(record_fused(in_model_order(jaxport.from_onnx(hostile_model(name)))))
    text = f"{crate.model}\n{crate.glue}"
    assert text.isascii() or not name.isascii()
    outside = re.sub(r'"(\\.|[^"\\])*"|//[^\n]*', "", text)
    assert not PAYLOAD.search(outside), outside
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u2028\u2029\u202a-\u202e]", text)
    fields = re.findall(r"^    pub (\w+):", outside, re.MULTILINE)
    assert not {*fields} & {*KEYWORDS.split()}
    assert all(field.isascii() and len(field) < 60 for field in fields)


def test_a_size_may_have_the_name_of_the_receiver() -> None:
    crate = to_crate(record_fused(in_model_order(jaxport.from_onnx(hostile_model("self")))))
    assert {*re.findall(r"(?<![\w.])(\w+)\.\w+\.forward\(", crate.model)} == {"self"}


def test_a_crate_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    program = jaxport.from_onnx(hostile_model("a"))
    (tmp_path / "Cargo.toml").write_text("[package]\n")
    with pytest.raises(SaveError, match="already exists"):
        program.to_source(tmp_path, framework="burn")
    assert [path.name for path in tmp_path.iterdir()] == ["Cargo.toml"]
    (tmp_path / "Cargo.toml").unlink()
    program.to_source(tmp_path, framework="burn")
    program.to_source(tmp_path, framework="burn")  # its own files are replaced
    assert {path.name for path in tmp_path.iterdir()} == {
        "Cargo.toml",
        "README.md",
        "model.safetensors",
        "rustfmt.toml",
        "src",
        "tests",
    }


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[n, n] x) => (float[n, n] y) { a = Cast<to = 17>(x) b = MatMul(a, a) c = Cast<to = 22>(x) d = Exp(a) e = Cast<to = 1>(b) f = Cast<to = 1>(d) y = Add(e, f) }'
    program = jaxport.from_onnx(onnx.parser.parse_model(text))
    with pytest.raises(Unsupported) as raised:
        program.to_source(tmp_path / "crate", framework="burn")
    assert {row.where for row in raised.value.refusals} == {"`MatMul`", "`Exp`"}
    refused = {"the primitive `dot_general` of float8_e4m3fn", "the primitive `exp` of float8_e4m3fn"}
    assert {row.name for row in raised.value.refusals} == refused
    assert not (tmp_path / "crate").exists()


def test_numbers_of_few_bits_are_said_to_be_some(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x, int4[n] i) => (float8e4m3fn[n] y, int4[n] j) { y = Cast<to = 17>(x) j = Identity(i) }'
    source = jaxport.from_onnx(onnx.parser.parse_model(text)).to_source(tmp_path, framework="burn")
    assert (
        "/// Numbers of int4, as int8: `i`, `j`.\n    /// Numbers of float8_e4m3fn, as float32: `y`.\n" in source.code
    )
    assert 'outputs.insert("y", y0); // float8e4m3fn in the file' in source.files["src/lib.rs"]
    stored = load_file(tmp_path / "tests/outputs.safetensors")
    assert {key: array.dtype.name for key, array in stored.items()} == {"y": "float32", "j": "int8"}


def test_weights_of_few_bits_come_back(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (int64[n] i) => (float[n, 2] y, int4[n, 2] z) { r = Gather(w, i) y = Cast<to = 1>(r) z = Gather(v, i) }'
    model = onnx.parser.parse_model(text)
    numbers = np.resize(np.arange(-8, 8), (40, 2))
    for name, dtype in (("w", "float8_e4m3fn"), ("v", "int4")):
        model.graph.initializer.append(numpy_helper.from_array(numbers.astype(jnp.dtype(dtype)), name))
    program = jaxport.from_onnx(model)
    source = program.to_source(tmp_path, framework="burn")
    assert {array.dtype.name for array in source.tensors.values()} == {"float32", "int8"}
    again = program.with_params(tmp_path / "model.safetensors")(np.array([0, 39]))
    for found, expected in zip(again, program(np.array([0, 39])), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))


def test_rounding_that_onnx_has_not_is_refused() -> None:
    text = '<ir_version: 12, opset_import: ["": 24]> g (float8e8m0[n] x) => (float8e8m0[n] y) { y = Mul(x, x) }'
    with pytest.raises(Unsupported, match="rounding to float8_e8m0fnu as JAX does"):
        jaxport.from_onnx(onnx.parser.parse_model(text)).to_source(framework="burn")


def test_a_crate_that_draws_says_so_and_compares_nothing(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { a = RandomNormalLike<mean = 1.0, scale = 2.0>(x) b = Bernoulli(x) y = Add(a, b) }'
    source = jaxport.from_onnx(onnx.parser.parse_model(text)).to_source(tmp_path, framework="burn")
    assert "Distribution::Normal(0.0, 1.0)" in source.code
    assert "random values are drawn by Burn" in " ".join(source.code.split("//!"))
    assert not (tmp_path / "tests").exists()


def test_no_path_of_this_machine_is_in_a_crate(tmp_path: Path) -> None:
    source = jaxport.from_onnx(hostile_model("a")).to_source(tmp_path, framework="burn")
    assert not any(str(tmp_path) in text or str(Path.home()) in text for text in source.files.values())
    assert not any(
        "unsafe" in text or ".unwrap()" in text for path, text in source.files.items() if path.startswith("src")
    )


def test_elements_of_a_list_are_of_one_type() -> None:
    config = replace(resnet.CONFIGS["small"], stages=(2, 2))
    with mock.patch.dict(resnet.CONFIGS, {"small": config}):
        example = resnet.nnx_resnet50("small")
    model = jaxport.to_onnx(example.fn, list(example.inputs), **example.options).model
    crate = to_crate(record_fused(in_model_order(jaxport.from_onnx(model))))
    types = dict(re.findall(r"^    pub (stages\w*): (.*),$", crate.model, re.MULTILINE))
    assert types.keys() == {"stages_0_0", "stages_0_1", "stages_1_0", "stages_1_1"}
    assert all(re.fullmatch(r"\w+", one) for one in types.values())


def test_the_device_is_bound_where_only_a_loop_over_layers_makes_a_tensor() -> None:
    class Bounded(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(4)])

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = jnp.maximum(layer(x), jnp.array([0.1, -0.2, 0.3]))
            return x

    model = jaxport.to_onnx(Bounded(nnx.Rngs(0)), [("n", 3)]).model
    code = to_crate(record_fused(in_model_order(jaxport.from_onnx(model)))).model
    head, loop = code.split("for layer in &self.layers {")
    assert "&device" in loop
    assert "let device = x.device();" in head

"""Structured source: classes, layers and loops; equal to the program, trainable, and of nothing but harmless names."""

from __future__ import annotations

import ast
from pathlib import Path

import jax
import numpy as np
import onnx
import onnx.parser
import pytest

import jaxport
from examples.models import build
from jaxport.errors import InvalidArgument, SaveError
from tests.codegen.structured import check, imported, load

pytestmark = pytest.mark.sampled(2)

FRAMEWORKS = ("nnx", "equinox")


def sampled(program, sizes=None, seed=0):
    """Inputs for a program: small integers, ones for what is a mask, normal numbers."""
    random, arrays = np.random.default_rng(seed), {}
    for value in program.inputs:
        shape = [size if isinstance(size, int) else (sizes or {}).get(size.value, 4) for size in value.shape.dims]
        dtype = value.dtype.numpy()
        if np.dtype(dtype).kind == "f":
            arrays[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            arrays[value.name] = random.integers(0, 2, shape).astype(dtype)
    return arrays


def check_model(model, folder, framework, **expected):
    return check(model, sampled(jaxport.from_onnx(model)), folder, framework, **expected)


EXAMPLES = {
    "mlp": ("nnx", 40, 0),
    "cnn": ("nnx", 60, 1),
    "gpt2": ("nnx", 75, 1),
    "bert_base": ("nnx", 100, 1),
}


@pytest.mark.parametrize(("name", "origin", "lines", "loops"), [(name, *row) for name, row in EXAMPLES.items()])
def test_an_example_comes_back_as_modules(name, origin, lines, loops, tmp_path: Path):
    example = build(name, origin, "small")
    model = jaxport.to_onnx(example.fn, example.inputs, **example.options).model
    check_model(model, tmp_path, "nnx", lines=lines, loops=loops)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_an_example_comes_back_as_equinox(name, tmp_path: Path):
    example = build(name, "nnx", "small")
    check_model(jaxport.to_onnx(example.fn, example.inputs, **example.options).model, tmp_path, "equinox")


def blocks(count, names, random=None):
    """A file as PyTorch's exporters write it: residual blocks of two products each."""
    random = random or np.random.default_rng(0)
    nodes, initializers, x = [], [], "x"

    def weight(name, *shape):
        initializers.append(onnx.numpy_helper.from_array(0.3 * random.standard_normal(shape).astype(np.float32), name))
        return name

    for index in range(count):
        at = f"/encoder/layers.{index}"
        parts = [
            ("MatMul", [x, weight(f"onnx::MatMul_{index}0", 8, 16)], f"{at}/fc1/MatMul"),
            ("Add", [f"{at}/fc1/MatMul_out", weight(f"encoder.layers.{index}.fc1.bias", 16)], f"{at}/fc1/Add"),
            ("Relu", [f"{at}/fc1/Add_out"], f"{at}/act/Relu"),
            ("MatMul", [f"{at}/act/Relu_out", weight(f"onnx::MatMul_{index}1", 16, 8)], f"{at}/fc2/MatMul"),
            ("Add", [x, f"{at}/fc2/MatMul_out"], f"{at}/Add"),
        ]
        for operator, inputs, name in parts:
            node = onnx.helper.make_node(operator, inputs, [f"{name}_out"], name if names == "nodes" else "")
            if names == "metadata":
                scopes = name.strip("/").split("/")[:-1]
                paths = [".".join(scopes[: end + 1]) for end in range(len(scopes))]
                classes = ["my.Encoder", "my.Block", "torch.nn.Linear"][: len(scopes)]
                node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", *paths, operator]))
                node.metadata_props.add(
                    key="pkg.torch.onnx.class_hierarchy", value=str(["my.Model", *classes, operator])
                )
            nodes.append(node)
        x = nodes[-1].output[0]
    nodes.append(onnx.helper.make_node("Identity", [x], ["y"]))
    values = [onnx.helper.make_tensor_value_info(name, 1, ["batch", "length", 8]) for name in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "torch_jit", values[:1], values[1:], initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("names", ["nodes", "metadata"])
def test_a_stack_is_a_loop(names, framework, tmp_path: Path):
    code = check_model(blocks(3, names), tmp_path, framework, loops=1)
    assert code.count("Linear(8, 16") == 1
    assert "layers.2.fc1.bias" in " ".join(jaxport.from_onnx(blocks(3, names)).to_source(framework="nnx").tensors)


def test_more_layers_are_no_more_lines():
    codes = [jaxport.from_onnx(blocks(count, "metadata")).to_source(framework="nnx").code for count in (4, 24)]
    assert codes[0].replace("range(4)", "range(24)") == codes[1]


def test_a_tied_table_is_kept_once(tmp_path: Path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    agraph (int64[n] ids) => (float[n, 5] logits) <float[5, 3] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}>
    { h = Gather(table, ids)  turned = Transpose(table)  logits = MatMul(h, turned) }""")
    code = check_model(model, tmp_path, "nnx")
    assert code.count("nnx.Embed(") == 1
    assert list(jaxport.from_onnx(model).to_source(framework="nnx").tensors) == ["table.embedding"]


def test_an_operator_without_a_place_is_in_the_module_around_it(tmp_path: Path):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> graph (float[batch, 2] x) => (float[batch, 2] y) <float[2, 2] w = {0.1, 0.2, 0.3, 0.4}, float[2, 2] v = {0.4, 0.2, 0.3, 0.1}> '
        "{ a = MatMul(x, w) b = Exp(a) c = MatMul(b, v) y = Tanh(c) }"
    )
    for node in (model.graph.node[0], model.graph.node[2]):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", "encoder", node.op_type]))
        node.metadata_props.add(
            key="pkg.torch.onnx.class_hierarchy", value=str(["my.Model", "my.Encoder", node.op_type])
        )
    code = check_model(model, tmp_path, "nnx")
    assert "jnp.exp(" in code.partition("class Encoder")[2].partition("\n\n\n")[0]


def test_equal_fresh_weights_are_no_tie():
    body = """<ir_version: 10, opset_import: ["": 20]>
    agraph (float[n, 2] x) => (float[n, 2] y) <float[2] one = {1, 1}, float[2] zero = {0, 0}>
    { h = LayerNormalization(x, one, zero)  r = Relu(h)  y = LayerNormalization(r, one, zero) }"""
    source = jaxport.from_onnx(onnx.parser.parse_model(body)).to_source(framework="nnx")
    assert sorted(source.tensors) == ["norm.bias", "norm.scale", "norm_2.bias", "norm_2.scale"]


def test_a_value_of_before_a_loop_survives_it(tmp_path: Path):
    """The first input of a stack is read after the stack, and by each of its layers."""
    model = blocks(3, "nodes")
    for index in range(1, 3):
        model.graph.node[5 * index + 4].input[0] = "x"
    model.graph.node[-1].op_type = "Add"
    model.graph.node[-1].input.append("x")
    check_model(model, tmp_path, "nnx")


HOSTILE = [
    '"""\nimport os\n"""',
    "a\nb = 1",
    "__init__",
    "self",
    "class",
    "train",
    "rngs",
    "x" * 500,
    "../../etc",
    "é",
    "",
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_hostile_names_do_no_harm(framework, tmp_path: Path):
    model = blocks(len(HOSTILE), "metadata")
    model.graph.name = HOSTILE[0]
    for index, hostile in enumerate(HOSTILE):
        for node in model.graph.node[5 * index : 5 * index + 5]:
            scopes = ["", hostile, f"{hostile}.fc", node.op_type]
            del node.metadata_props[:]
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
            node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str([hostile] * 4))
    model.graph.initializer[1].name = model.graph.node[1].input[1] = "w'); import os  #"
    code = check_model(model, tmp_path, framework)
    assert imported(code).isdisjoint({"os"})
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    assert all(name.isascii() and len(name) < 60 for name in names)


def test_what_is_there_is_not_overwritten(tmp_path: Path):
    program = jaxport.from_onnx(blocks(1, "nodes"))
    (tmp_path / "model.py").write_text("mine")
    with pytest.raises(SaveError, match="already exists"):
        program.to_source(tmp_path, framework="nnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
    (tmp_path / "model.py").unlink()
    program.to_source(tmp_path, framework="nnx")
    program.to_source(tmp_path, framework="equinox")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.py", "model.safetensors"]
    (tmp_path / "model.py").unlink()  # as a save leaves it that was killed between the two
    program.to_source(tmp_path, framework="nnx")
    module = load(tmp_path)
    module.save(module.load(), tmp_path / "model.safetensors")
    with pytest.raises(SaveError, match=r"model\.safetensors` already exists"):
        program.to_source(tmp_path, framework="nnx")


def test_a_file_of_other_weights_is_refused(tmp_path: Path):
    jaxport.from_onnx(blocks(1, "nodes")).to_source(tmp_path, framework="nnx")
    jaxport.from_onnx(blocks(2, "nodes")).to_source(tmp_path / "two", framework="nnx")
    with pytest.raises(ValueError, match="has no tensor"):
        load(tmp_path / "two").load(tmp_path / "model.safetensors")


def test_an_unknown_framework_is_refused():
    with pytest.raises(InvalidArgument, match="cannot be printed for 'torch'"):
        jaxport.from_onnx(blocks(1, "nodes")).to_source(framework="torch")


def test_a_sequence_is_refused_before_anything_is_written(tmp_path: Path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    agraph (seq(float[2]) parts) => (float[n] y) { y = ConcatFromSequence<axis=0>(parts) }""")
    specs = {"parts": [jax.ShapeDtypeStruct((2,), np.float32)] * 2}
    with pytest.raises(InvalidArgument, match="`parts` is not an array"):
        jaxport.from_onnx(model).to_source(tmp_path / "new", inputs=specs, framework="nnx")
    assert not (tmp_path / "new").exists()


def test_a_linen_model_becomes_one_of_nnx(tmp_path: Path):
    from flax import linen

    model = linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(2)])
    bound = model.bind(model.init(jax.random.key(0), np.zeros((1, 3), np.float32)))
    source = jaxport.to_source(bound, tmp_path, inputs=[("batch", 3)])
    assert source.code.count("nnx.Linear(") == 2
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(load(tmp_path).load()(x), bound(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", ["nnx", "burn"])
def test_inputs_and_the_folder_need_no_names(framework: str, tmp_path: Path):
    def double(x):
        return 2 * x

    source = jaxport.to_source(double, [("batch", 3)], tmp_path / "one", framework=framework)
    assert (
        source.code == jaxport.to_source(double, str(tmp_path / "two"), inputs=[("batch", 3)], framework=framework).code
    )
    assert {path.name for path in (tmp_path / "one").iterdir()} == {path.name for path in (tmp_path / "two").iterdir()}
    with pytest.raises(InvalidArgument, match="two values for `inputs`"):
        jaxport.to_source(double, [("batch", 3)], [("batch", 4)])
    with pytest.raises(InvalidArgument, match="two values for `folder`"):
        jaxport.to_source(double, "here", inputs=[("batch", 3)], folder="there")


def test_other_sizes_are_served(tmp_path: Path):
    program = jaxport.from_onnx(blocks(2, "metadata"))
    program.to_source(tmp_path, framework="nnx")
    model = load(tmp_path).load()
    for batch, length in ((1, 1), (3, 7)):
        x = np.ones((batch, length, 8), np.float32)
        np.testing.assert_allclose(model(x), program(x), rtol=1e-5, atol=1e-5)


def test_the_source_of_a_program_takes_no_options():
    with pytest.raises(InvalidArgument, match="already has its inputs and options"):
        jaxport.to_source(jaxport.from_onnx(blocks(1, "nodes")), opset=20)
    with pytest.raises(InvalidArgument, match="inputs of the model are not known"):
        jaxport.to_source(np.tanh)


def test_a_model_without_weights_is_a_class(tmp_path: Path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    agraph (float[n, 2] x) => (float[n, 2] y, float[2, n] z) { y = Relu(x)  z = Transpose(x) }""")
    jaxport.from_onnx(model).to_source(tmp_path, framework="nnx")
    y, z = load(tmp_path).load()(np.array([[-1, 2]], np.float32))
    assert (y.tolist(), z.tolist()) == ([[0, 2]], [[-1], [2]])


def test_a_size_that_hides_a_module_is_refused():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    agraph (float[jnp, 2] x) => (float[k] y) <int64[1] flat = {-1}> { y = Reshape(x, flat) }""")
    with pytest.raises(InvalidArgument, match="the size `jnp` has a name that the source needs"):
        jaxport.from_onnx(model).to_source(framework="nnx")


@pytest.mark.parametrize("framework", ["jax", *FRAMEWORKS])
def test_an_input_named_like_a_size_keeps_its_name(framework):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    agraph (float[points, 3] points) => (float[n] y)
    <float[1] one = {1}> { size = Shape<start = 0, end = 1>(points)  y = Expand(one, size) }""")
    code = jaxport.from_onnx(model).to_source(framework=framework).code
    assert "points_size, _ = points.shape" in code
    assert "points_2" not in code

"""Commands about files whose open sizes have a bound: what has to hold is found and told, in every command."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.cli.running import run


@pytest.fixture(scope="module")
def table_of_positions(tmp_path_factory):
    """A model that adds one of 16 positions to each row."""
    stored = {"zero": [0], "one": [1], "two": [2], "table": np.ones((1, 16, 4), np.float32)}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "one", "two"], ["length"]),
        helper.make_node("Slice", ["table", "zero", "length", "one"], ["positions"]),
        helper.make_node("Add", ["x", "positions"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, ["batch", "length", 4]) for name in "xy")
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors), ir_version=10)
    path = tmp_path_factory.mktemp("positions") / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    "command", [["tree"], ["query", "//Relu"], ["account"], ["view", "-o", "{}/page.html"], ["sub", "//max", "jax.numpy.minimum", "-o", "{}/out.onnx"]]
)  # fmt: skip
def test_a_bound_is_found(table_of_positions, tmp_path, command, capsys):
    name, *rest = command
    assert run(name, table_of_positions, *(text.format(tmp_path) for text in rest)) == 0
    assert "length <= 16" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["tree"], ["query", "//Relu"], ["account"]])
@pytest.mark.parametrize(("sizes", "bound"), [("n,t,4", "t <= 16"), ("3,2*t,4", "t <= 8")])
def test_sizes_may_have_names_of_the_user(table_of_positions, command, sizes, bound, capsys):
    name, *rest = command
    assert run(name, table_of_positions, *rest, "--input", sizes) == 0
    assert f"`{bound}` has to hold" in capsys.readouterr().err


def test_a_size_beyond_the_bound_is_refused_with_it(table_of_positions, capsys):
    assert run("tree", table_of_positions, "--input", "n,20,4") == 1
    assert "`length <= 16` has to hold" in capsys.readouterr().err


@pytest.fixture(scope="module")
def branching(tmp_path_factory):
    """A model of audio whose rate decides how much of it is read: the branches return different sizes."""
    text = """<ir_version: 8, opset_import: ["": 16]>
    g (float[n, 600] audio, int64 rate, float[n] gain) => (float[a, b] y) {
      wide = Constant<value = int64 {16000}> () zero = Constant<value = int64[1] {0}> ()
      one = Constant<value = int64[1] {1}> () is_wide = Equal (rate, wide) column = Unsqueeze (gain, one)
      read = If (is_wide) <
        then_branch = t () => (float[n, c] u) { e = Constant<value = int64[1] {512}> () u = Slice (audio, zero, e, one) },
        else_branch = f () => (float[n, d] v) { h = Constant<value = int64[1] {256}> () v = Slice (audio, zero, h, one) }>
      y = Mul (read, column) }"""
    path = tmp_path_factory.mktemp("branching") / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


TREES = [["tree"], ["query", "//Mul"], ["account"], ["view", "-o", "{}/page.html"], ["sub", "//mul", "jax.numpy.add", "-o", "{}/out.onnx"]]  # fmt: skip


@pytest.mark.parametrize("command", TREES, ids=lambda command: command[0])
def test_a_value_that_decides_a_branch_is_given_as_the_error_says(branching, tmp_path, command, capsys):
    name, *rest = [text.format(tmp_path) for text in command]
    assert run(name, branching, *rest) == 1
    assert "`--value rate=value`" in capsys.readouterr().err
    assert run(name, branching, *rest, "--value", "rate=16000") == 0
    if name == "tree":
        assert "Program audio: f32[n,600], gain: f32[n] -> f32[n,512]" in capsys.readouterr().out
    if name == "sub":
        (y,) = onnx.load(tmp_path / "out.onnx").graph.output
        assert y.type.tensor_type.shape.dim[1].dim_value == 512


def test_sizes_beside_a_value_are_those_of_the_other_inputs(branching, tmp_path, capsys):
    np.save(tmp_path / "rate.npy", np.int64(8000))
    value = f"rate={tmp_path / 'rate.npy'}"
    assert run("tree", branching, "-i", "2,600", "-i", "2", "--value", value) == 0
    assert "-> f32[2,256]" in capsys.readouterr().out


def test_values_that_replace_no_input_are_refused(branching, capsys):
    assert run("tree", branching, "--value", "rat=16000") == 2
    assert "`rat` is not an input of the model" in capsys.readouterr().err
    assert run("tree", branching, "-i", "2,600", "--value", "rate=16000") == 2
    assert "2 inputs without a value" in capsys.readouterr().err
    assert run("tree", "jax.numpy:tanh", "-i", "3", "--value", "x=3") == 2
    assert "values replace inputs of an ONNX file" in capsys.readouterr().err

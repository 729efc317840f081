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

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import onnx_ir as ir
import pytest

import jaxport
from jaxport.cli.summary import NAMESPACE, ModuleRow, Summary, TensorRow, load_model, summarize
from jaxport.cli.tables import file_size
from jaxport.errors import ModelError
from tests.cli.running import run

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def value(name: str, *dims: int | str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(dims), type=FLOAT)


def weight(name: str, *dims: int) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(np.ones(dims, np.float32)), shape=ir.Shape(dims), type=FLOAT)


def node(operator: str, inputs: list[ir.Value], output: ir.Value, namespace: str = "", domain: str = "") -> ir.Node:
    return ir.node(
        operator, inputs, outputs=[output], domain=domain, metadata_props={NAMESPACE: namespace} if namespace else {}
    )


@pytest.fixture
def model() -> ir.Model:
    """`relu(x @ layers.0.kernel)`, the activation in a function of the model's own."""
    x, kernel, hidden, y = (
        value("x", "B", 3),
        weight("layers.0.kernel", 3, 4),
        value("hidden", "B", 4),
        value("y", "B", 4),
    )
    inner_x, inner_y = value("a"), value("b")
    body = ir.Graph([inner_x], [inner_y], nodes=[node("Relu", [inner_x], inner_y)], opset_imports={"": 22})
    activation = ir.Function("my.pkg", "Activation", graph=body, attributes=[])
    nodes = [
        node("MatMul", [x, kernel], hidden, "Net: my.Net/layers.0: my.Linear"),
        node("Activation", [hidden], y, "Net: my.Net/act: my.Activation", domain="my.pkg"),
    ]
    graph = ir.Graph([x], [y], nodes=nodes, initializers=[kernel], opset_imports={"": 22, "my.pkg": 1}, name="main")
    return ir.Model(graph, ir_version=10, producer_name="somebody", producer_version="1.2", functions=[activation])


@pytest.fixture
def path(model: ir.Model, tmp_path: Path) -> Path:
    ir.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_model_is_summarized(path: Path):
    assert summarize(path) == Summary(
        file=str(path),
        file_bytes=path.stat().st_size,
        ir_version=10,
        opsets={"ai.onnx": 22, "my.pkg": 1},
        opset_for=[],
        producer="somebody 1.2",
        inputs=[TensorRow("x", "float32", ("B", 3))],
        outputs=[TensorRow("y", "float32", ("B", 4))],
        initializers=[TensorRow("layers.0.kernel", "float32", (3, 4), 48)],
        operators={"MatMul": 1, "Relu": 1},
        functions={"my.pkg::Activation": 1},
        modules=[
            ModuleRow(0, "Net", "my.Net", 2, 0),
            ModuleRow(1, "layers.0", "my.Linear", 1, 12),
            ModuleRow(1, "act", "my.Activation", 1, 0),
        ],
        roles={"layers.0.kernel": "parameter"},
    )
    assert summarize(path).element_count == 12
    assert summarize(path).parameters == "1 tensor, 12 elements"
    assert summarize(path).weight_bytes == 48


def test_external_data_is_counted_and_not_read(model: ir.Model, tmp_path: Path):
    ir.save(model, tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    (tmp_path / "m.data").unlink()
    assert summarize(tmp_path / "m.onnx").weight_bytes == 48


def test_nodes_inside_subgraphs_are_counted(tmp_path: Path):
    condition = ir.Value(name="c", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    x, y = value("x", 2), value("y", 2)

    def branch(operator: str) -> ir.Graph:
        out = value(f"{operator}_out", 2)
        return ir.Graph([], [out], nodes=[node(operator, [x], out)], name=operator)

    choice = ir.node(
        "If",
        [condition],
        outputs=[y],
        attributes={"then_branch": branch("Neg"), "else_branch": branch("Abs")},
    )
    graph = ir.Graph([condition, x], [y], nodes=[choice], opset_imports={"": 22}, name="main")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx")
    assert summarize(tmp_path / "m.onnx").operators == {"If": 1, "Neg": 1, "Abs": 1}


def test_the_tables_show_everything(path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("inspect", path) == 0
    shown = capsys.readouterr().out
    for text in [
        "ai.onnx 22, my.pkg 1",
        "somebody 1.2",
        "12 elements, 48 B",
        "1 tensor, 12 elements",
        "inputs: 1",
        "[B, 3]",
        "outputs: 1",
        "operators: 2 calls",
        "MatMul",
        "functions: 1",
        "my.pkg::Activation",
        "layers.0.kernel",
        "modules: 3",
        "layers.0  my.Linear  1 node, 12 parameters",
    ]:
        assert text in shown


def test_only_the_largest_initializers_are_listed_unless_all_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    x, y = value("x", 1), value("y", 1)
    weights = [weight(f"w{index:02}", index + 1) for index in range(12)]
    graph = ir.Graph(
        [x], [y], nodes=[node("Sum", [x, *weights], y)], initializers=weights, opset_imports={"": 22}, name="g"
    )
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx")
    run("inspect", tmp_path / "m.onnx")
    shown = capsys.readouterr().out
    assert "the 10 largest" in shown
    assert "w01" not in shown
    assert "w02" in shown
    run("inspect", tmp_path / "m.onnx", "--all")
    assert "w00" in capsys.readouterr().out


def test_the_operators_that_require_the_opset_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "gelu.onnx"
    jaxport.to_onnx(jax.nn.gelu, [("B", 3)]).save(path)
    assert run("inspect", path) == 0
    assert re.search(r"\n ?opset for +Gelu *\n", capsys.readouterr().out)
    assert run("inspect", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["opset_for"] == ["Gelu"]


def test_the_same_as_json(path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("inspect", path, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["B", 3], "bytes": 0}]
    assert shown["operators"] == {"MatMul": 1, "Relu": 1}


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x00" * 16, b"\x08\x08"])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx` is not an ONNX model"):
        load_model(tmp_path / "m.onnx")


def test_a_truncated_model_is_refused(path: Path):
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model\.onnx` is not an ONNX model"):
        load_model(path)


def test_a_missing_file_is_one_clean_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    missing = tmp_path / ("long" * 40 + ".onnx")
    assert run("inspect", missing) == 2
    assert capsys.readouterr().err == (
        f"jaxport.InvalidArgument: there is no file `{missing}`\n"
        "  instead: give the path of an ONNX file, or `-` for the standard input\n"
    )


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000_000, "2.50 GB")])
def test_file_sizes(size: int, text: str):
    assert file_size(size) == text


def test_parameters_are_told_from_statistics_wherever_they_stand(tmp_path, capsys):
    from onnx import helper, numpy_helper, save

    array = lambda *shape: np.ones(shape, np.float32)
    weights = {"norm.s": array(2), "norm.b": array(2), "norm.m": array(2), "norm.v": array(2)}
    nodes = [
        helper.make_node("Constant", [], ["conv.w"], value=numpy_helper.from_array(array(2, 2, 1), "conv.w")),
        helper.make_node("Conv", ["x", "conv.w"], ["h"]),
        helper.make_node("BatchNormalization", ["h", *weights], ["y"]),
    ]
    for made, block in zip(nodes[1:], ("conv: Conv", "norm: Norm"), strict=True):
        made.metadata_props.add(key=NAMESPACE, value=block)
    info = helper.make_tensor_value_info
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [info("x", 1, [1, 2, 3])], [info("y", 1, None)], stored)
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    summary = summarize(tmp_path / "m.onnx")
    assert summary.parameters == "3 tensors, 8 elements"
    assert [(module.path, module.parameters) for module in summary.modules] == [("conv", 4), ("norm", 4)]
    assert run("inspect", tmp_path / "m.onnx") == 0
    shown = capsys.readouterr().out
    assert "initializers: 4, and 1 tensor in `Constant` nodes" in shown
    assert re.search(r"norm.v .* statistic", shown)
    assert re.search(r"conv.w .* parameter", shown)

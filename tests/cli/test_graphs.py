"""`jaxport optimize`, `extract`, `diff`, `--report`, declared inputs, completion, and titles of queries."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from jaxport.cli.terminal.completion import precisions, targets
from jaxport.columns import counted
from tests.cli.running import run

NETWORK = """<ir_version: 8, opset_import: ["": 17]>
    network (float[batch, 4] x, int64[batch] ids) => (float[batch, 4] y, int64[batch] next)
    <float[4, 4] kernel = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}, float half = {0.5}, float one = {1},
     float root = {1.41421356}, int64 two = {2}> {
        hidden = MatMul(x, kernel)
        scaled = Div(hidden, root)
        erf = Erf(scaled)
        shifted = Add(erf, one)
        gated = Mul(hidden, shifted)
        y = Mul(gated, half)
        next = Add(ids, two)
    }"""
SOURCE = """
import jax, jax.numpy as jnp, jaxport
from flax import nnx

@jaxport.onnx_function
def softened(x):
    return jax.nn.gelu(x)

class Network(nnx.Module):
    def __init__(self):
        self.hidden = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        self.out = nnx.Linear(4, 2, rngs=nnx.Rngs(1))
    def __call__(self, x):
        return self.out(softened(self.hidden(x)))

class Declared(Network):
    inputs = [jax.ShapeDtypeStruct(("B", 4), "float32")]

def refused(x):
    return jax.pure_callback(lambda v: v, x, x)

model: Network = Network()
_hidden = 1
"""


SCOPES = ["/encoder/hidden/MatMul", *(f"/encoder/act/{name}" for name in ("Div", "Erf", "Add", "Mul", "Mul_1"))]


def network() -> onnx.ModelProto:
    """GELU and a product in the operators of opset 17, in two modules, and 64-bit integers."""
    model = onnx.parser.parse_model(NETWORK)
    for node, name in zip(model.graph.node, SCOPES, strict=False):
        node.name = name
    return model


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "user_nets.py").write_text(SOURCE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("def build(): ...\n")
    (tmp_path / "package" / "inner.py").write_text("x = 1\n")
    onnx.save(network(), tmp_path / "network.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("user_nets", None)


def computed(file: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))


X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
IDS = np.arange(3)


def test_a_file_is_optimized_and_keeps_its_interface(capsys: pytest.CaptureFixture[str]):
    assert run("optimize", "network.onnx", "-o", "small.onnx", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"]["operators"]["Erf"] == 1
    assert told["after"]["operators"] == {"MatMul": 1, "Gelu": 1, "Add": 1}
    assert {each["output"] for each in told["compared"]} == {"y", "next"}
    before, after = computed("network.onnx", x=X, ids=IDS), computed("small.onnx", x=X, ids=IDS)
    assert list(before) == list(after)
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        np.testing.assert_allclose(after[name], value, rtol=1e-5)
    assert [i.name for i in onnx.load("small.onnx").graph.initializer if i.name == "kernel"] == ["kernel"]
    assert run("optimize", "network.onnx", "-o", "small.onnx", "--target", "portable", "--size", "batch=2") == 0
    shown = capsys.readouterr().out
    assert re.search(r"nodes +│ +7 │ +\d", shown)
    assert "at batch=2" in shown


def test_what_differs_is_not_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from jaxport.cli import graphs

    exported = graphs._again

    def wrong(program, target):
        made = exported(program, target)
        for node in made.model.graph:
            node.op_type = "Sub" if node.op_type == "Add" else node.op_type
        return made

    monkeypatch.setattr(graphs, "_again", wrong)
    assert run("optimize", "network.onnx", "-o", "small.onnx") == 1
    error = capsys.readouterr().err
    assert "`small.onnx` was not written" in error
    assert "the output `next`" in error
    assert not Path("small.onnx").exists()


def test_a_file_whose_shapes_depend_on_values_is_not_optimized(capsys: pytest.CaptureFixture[str]):
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }"""),
        "reshaped.onnx",
    )
    assert run("optimize", "reshaped.onnx", "-o", "small.onnx") == 2
    assert "the values of the input `shape` decide shapes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "inputs", "output", "nodes"),
    [
        (["--to", "hidden"], {"x": X}, "hidden", 1),
        (["--from", "hidden", "--to", "y"], {"hidden": X}, "y", 5),
        (["--from", "encoder.act", "--to", "encoder.act"], {"hidden": X}, "y", 5),
        (["--from", "encoder.hidden", "--to", "encoder.act"], {"x": X}, "y", 6),
        (["--from", "hidden", "--from", "scaled", "--to", "gated"], {"hidden": X, "scaled": X}, "gated", 3),
        (["--to", "next"], {"ids": IDS}, "next", 1),
    ],
)
def test_a_part_of_a_file_is_extracted(words, inputs, output, nodes, capsys: pytest.CaptureFixture[str]):
    assert run("extract", "network.onnx", *words, "-o", "part.onnx", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["inputs"], told["outputs"], told["nodes"], told["of"]) == (list(inputs), [output], nodes, 7)
    onnx.checker.check_model("part.onnx", full_check=True)
    (value,) = computed("part.onnx", **inputs).values()
    whole = onnx.load("network.onnx")
    reference = ReferenceEvaluator(whole)
    if set(inputs) <= {"x", "ids"} and output in ("y", "next"):
        expected = dict(zip(["y", "next"], reference.run(None, {"x": X, "ids": IDS}), strict=True))[output]
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_all_calls_of_a_module_are_extracted(capsys: pytest.CaptureFixture[str]):
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x, float[4] y) => (float[4] z) <float[4] w = {1, 2, 3, 4}> {
        a = Mul(x, w) b = Mul(a, w) c = Mul(y, w) z = Sub(b, c) }""")
    for node, name in zip(made.graph.node, ("/enc/Mul", "/enc_1/Mul", "/enc_2/Mul", "/Sub"), strict=True):
        node.name = name
    onnx.save(made, "calls.onnx")
    assert run("extract", "calls.onnx", "--from", "enc", "--to", "enc", "-o", "part.onnx", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (sorted(told["inputs"]), told["outputs"], told["nodes"]) == (["x", "y"], ["b", "c"], 3)
    assert run("inspect", "calls.onnx") == 0
    assert "enc    3 nodes, 4 parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "the whole model is not a part"),
        (["--to", "hiden"], "neither a tensor nor a module `hiden`"),
        (["--to", "hiden"], "it has `hidden`"),
        (["--from", "scaled", "--to", "y"], "do not bound a part"),
    ],
)
def test_what_extract_refuses(words: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    assert run("extract", "network.onnx", *words, "-o", "part.onnx") == 2
    assert text in capsys.readouterr().err


def test_two_files_are_compared(capsys: pytest.CaptureFixture[str]):
    assert run("diff", "network.onnx", "network.onnx") == 0
    assert capsys.readouterr().out == "the files are the same\n"
    changed = network()
    changed.graph.initializer[1].float_data[:] = [0.25]
    changed.graph.node[2].op_type = "Tanh"
    changed.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    changed.opset_import[0].version = 20
    onnx.save(changed, "changed.onnx")
    assert run("diff", "network.onnx", "changed.onnx", "--json") == 1
    found = {
        (d["what"], d["name"]): (d["first"], d["second"]) for d in json.loads(capsys.readouterr().out)["differences"]
    }
    assert found["operator set", "ai.onnx"] == ("17", "20")
    assert found["input", "x"] == ("float32[batch, 4]", "float64[batch, 4]")
    assert found["operator", "Erf"] == ("1", "-")
    assert found["operator", "Tanh"] == ("-", "1")
    assert found["tensor", "half"] == ("float[]", "other values, by up to 0.25")
    assert run("diff", "network.onnx", "changed.onnx") == 1
    assert "the files differ in" in capsys.readouterr().out
    assert run("diff", "-", "-") == 2
    assert "both files are the standard input" in capsys.readouterr().err


def test_a_report_has_what_an_issue_needs(capsys: pytest.CaptureFixture[str]):
    words = ["user_nets:model", "-i", "B,4", "-o", "m.onnx", "--verify", "--report", "report.md"]
    assert run("export", *words) == 0
    text = Path("report.md").read_text()
    for part in (
        "# Export of `user_nets:model`: exported",
        "| onnxruntime |",
        "class Network",
        "Linear",
        "agrees in JAX",
    ):
        assert part in text
    assert run("export", "user_nets:refused", "-i", "B,4", "-o", "m.onnx", "--report", "report.md") == 1
    text = Path("report.md").read_text()
    for part in (
        "# Export of `user_nets:refused`: Unsupported",
        "pure_callback   user_nets.py:20",
        "| jax |",
        "Traceback",
    ):
        assert part in text
    assert run("export", "user_nets:refused", "-i", "B,4", "-o", "m.onnx", "--report", "nowhere/report.md") == 2
    assert "`--report`" in capsys.readouterr().err


def test_inputs_that_a_model_declares_are_not_needed():
    assert run("export", "user_nets:Declared", "-o", "declared.onnx", "--verify") == 0
    dims = onnx.load("declared.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["B", 4]
    assert run("verify", "declared.onnx", "user_nets:Network") == 0  # those of the file
    assert run("verify", "declared.onnx", "user_nets:Declared") == 0
    assert run("account", "user_nets:Declared") == 0


def test_the_blocks_of_a_file_are_measured(capsys: pytest.CaptureFixture[str]):
    assert run("export", "user_nets:model", "-i", "B,4", "-o", "m.onnx", "--precision", "float16") == 0
    assert run("verify", "m.onnx", "user_nets:model", "-i", "B,4", "--per-block", "--json") == 0
    told = json.loads("{" + capsys.readouterr().out.partition("\n{")[2])
    assert told["precision"] == "float16"
    assert {block["path"] for block in told["blocks"]} >= {"hidden", "out"}
    assert max(block["relative"] for block in told["blocks"]) > 1e-5  # it is exported again in its precision


def test_a_query_says_what_it_counts(capsys: pytest.CaptureFixture[str]):
    assert run("query", "user_nets:model", "//*", "-i", "B,4") == 0
    title = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(r"//\*: \d+ matches \(3 modules, \d functions?, \d+ operations\) *", title)
    assert run("query", "user_nets:model", "//Linear", "-i", "B,4") == 0
    assert capsys.readouterr().out.startswith("//Linear: 2 matches (2 modules)")


@pytest.mark.parametrize("width", [40, 60])
def test_an_account_fits_the_terminal(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run("account", "user_nets:model", "-i", "B,4") == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


def test_a_tree_is_shown_down_to_a_level(capsys: pytest.CaptureFixture[str]):
    def shown(*words: str) -> str:
        assert run("tree", "user_nets:model", "-i", "B,4", *words) == 0
        return capsys.readouterr().out

    assert (
        len(shown("--depth", "1").splitlines())
        == 2
        < len(shown("--depth", "2").splitlines())
        < len(shown().splitlines())
    )
    (outermost,) = json.loads(shown("--depth", "1", "--json"))["nodes"]
    assert outermost["nodes"] == []


def test_names_are_completed():
    assert precisions("int8") == ["int8-dynamic", "int8"]
    assert targets("user") == targets("user_nets:")  # of the only module, its names
    assert targets("package") == ["package.inner:", "package:"]
    assert targets("user_nets:") == [
        f"user_nets:{name}" for name in ("Declared", "Network", "model", "refused", "softened")
    ]
    assert targets("user_nets:mod") == ["user_nets:model"]
    assert targets("package:b") == ["package:build"]
    assert targets("nothing:") == []


def test_nouns_agree_with_their_numbers(capsys: pytest.CaptureFixture[str]):
    assert [counted(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    Path("plain.py").write_text("import jax.numpy as jnp\ndef tanh(x):\n    return jnp.tanh(x)\n")
    assert run("export", "plain:tanh", "-i", "3", "-o", "m.onnx") == 0
    shown = capsys.readouterr().out
    assert "1 node, 1 operator type" in shown
    sys.modules.pop("plain", None)


def test_numbers_of_a_file_are_shown_as_it_has_them(capsys: pytest.CaptureFixture[str]):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w, float[8] s) => (float[1, 4, 8, 8] y) {
            c = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w)
            d = LayerNormalization <epsilon = 1e-5> (c, s)
            y = LeakyRelu <alpha = 0.1> (d)
        }""")
    onnx.save(model, "numbers.onnx")
    assert run("tree", "numbers.onnx") == 0
    shown = capsys.readouterr().out
    for part in ("Conv(pads=[1, 1, 1, 1], kernel_shape=[3, 3])", "epsilon=1e-05", "alpha=0.1)"):
        assert part in shown
    assert run("query", "numbers.onnx", "//LeakyRelu[@alpha=0.1]", "--expect", "1") == 0

"""Names from files are shown as printable text, whatever they hold: no command and no report hands on what a terminal obeys."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxport
from jaxport.errors import Refusal
from jaxport.printable import printable
from tests.cli.running import run

HOSTILE = {
    "controls": "\x1b[2J\x1b]0;title\x07a\b\x7f\r\0\x9b31m\x85\nwhere: elsewhere\t",
    "invisible": "\u202etxt.exe\u2066\u200b\ufeff\u00ad\u2028\u2029\u00a0\ufffe\U0001ffff\ue000",
    "markup": "[red]bold[/] & <b>'\" [/nothing]",
    "no part of an XML name": "\u00b2\u0e47\U0001d7d8",
}
UNPRINTABLE = "".join(
    map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F)])
)


def model(mark: str) -> onnx.ModelProto:
    """A file whose every name holds the mark."""
    named = lambda name: f"{name}{mark}"
    node = helper.make_node

    def scoped(made: onnx.NodeProto, *scopes: str) -> onnx.NodeProto:
        namespace = made.metadata_props.add()
        namespace.key, namespace.value = "namespace", "/".join(named(scope) for scope in scopes)
        return made

    function = helper.make_function(
        named("domain"),
        named("Act"),
        [named("a")],
        [named("b")],
        [node("Relu", [named("a")], [named("b")], name=named("inner"))],
        [helper.make_opsetid("", 20)],
    )
    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32), named("w"))
    branches = {
        f"{way}_branch": helper.make_graph(
            [node(operator, [named("h")], [named(way)], name=named(f"inside {way}"))],
            named(f"graph {way}"),
            [],
            [helper.make_tensor_value_info(named(way), TensorProto.FLOAT, None)],
        )
        for way, operator in (("then", "Neg"), ("else", "Tanh"))
    }
    graph = helper.make_graph(
        [
            scoped(
                node("MatMul", [named("x"), named("w")], [named("h0")], name=named("/block/MatMul")), "block: my.Block"
            ),
            scoped(
                node("Act" + mark, [named("h0")], [named("h")], name=named("act"), domain=named("domain")), "act: Act"
            ),
            node("ReduceMax", [named("h")], [named("m")], keepdims=0),
            node("Greater", [named("m"), named("zero")], [named("c")]),
            node("If", [named("c")], [named("y")], name=named("choice"), **branches),
        ],
        named("main"),
        [helper.make_tensor_value_info(named("x"), TensorProto.FLOAT, [named("batch"), 3])],
        [helper.make_tensor_value_info(named("y"), TensorProto.FLOAT, None)],
        [weight, numpy_helper.from_array(np.float32(0), named("zero"))],
        doc_string=named("doc"),
    )
    made = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(named("domain"), 1)],
        producer_name=named("producer"),
    )
    made.ir_version = 10
    return made


def refused_model(mark: str) -> onnx.ModelProto:
    """A file with operators that nobody knows."""
    made = model(mark)
    made.graph.node[0].op_type = f"Unknown{mark}"
    made.graph.node[2].domain = f"nowhere{mark}"
    return made


def shown(text: str) -> None:
    """Fail if a text holds what a terminal obeys or does not show."""
    obeyed = {f"U+{ord(c):04X}" for c in text if c != "\n" and not c.isprintable()}
    assert not obeyed, f"{obeyed} in {text[:500]!r}"
    assert "\nwhere: elsewhere" not in text, "a name begins a line of its own"


@pytest.fixture(params=HOSTILE)
def mark(request: pytest.FixtureRequest) -> str:
    return HOSTILE[request.param]


@pytest.fixture
def file(mark: str, tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(model(mark).SerializeToString())
    return tmp_path / "m.onnx"


COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "FILE", "--all"),
    "json": ("inspect", "FILE", "--json"),
    "run": ("run", "FILE", "--random", "--repeat", "1", "--size", "SIZES"),
    "tree": ("tree", "FILE"),
    "account": ("account", "FILE"),
    "query": ("query", "FILE", "//*"),
    "query of a name": ("query", "FILE", "//MARK"),
    "view": ("view", "FILE", "-o", "FOLDER/page.html"),
    "sub": ("sub", "FILE", "//tanh", "jax.numpy.sin", "-o", "FOLDER/edited.onnx"),
    "import": ("import", "FILE", "-o", "FOLDER", "--dump"),
    "import nnx": ("import", "FILE", "-o", "FOLDER", "--framework", "nnx"),
    "import equinox": ("import", "FILE", "-o", "FOLDER", "--framework", "equinox"),
    "verify": ("verify", "FILE", "jax.numpy:tanh", "-i", "x:float32[2,3]"),
    "a value of no input": ("run", "FILE", "--value", "nothing=1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_prints_is_printable(command: str, mark: str, file: Path, capsys: pytest.CaptureFixture[str]):
    words = {"FILE": str(file), "FOLDER": str(file.parent / "out"), "MARK": f"a{mark}", "SIZES": f"batch{mark}=2"}
    (file.parent / "out").mkdir()
    arguments = [re.sub("|".join(words), lambda word: words[word.group()], word) for word in COMMANDS[command]]
    run(*arguments)
    captured = capsys.readouterr()
    shown(captured.out)
    shown(captured.err)
    assert captured.out + captured.err
    for written in (file.parent / "out").rglob("*"):
        if written.suffix in (".html", ".py", ".txt", ".md"):
            shown(written.read_text(encoding="utf-8"))


def test_commands_take_the_file(file: Path):
    """The names are hostile, the file is not: each command does its work."""
    folder = file.parent / "out"
    folder.mkdir()
    assert run("inspect", file) == 0
    assert run("tree", file) == 0
    assert run("query", file, "//tanh", "--expect", "1") == 0
    assert run("account", file) == 0
    assert run("view", file, "-o", folder / "page.html") == 0
    assert run("import", file, "-o", folder) == 0


def test_descriptions_that_are_no_text(tmp_path: Path):
    """A file whose descriptions are not UTF-8 is read: they are shown with U+FFFD."""
    made, place = model("-QQQQ"), onnx.StringStringEntryProto(key="namespace", value=": net/layer QQQQ: Layer")
    made.producer_name = made.producer_version = made.doc_string = made.graph.doc_string = "QQQQ"
    made.graph.node[0].doc_string = "QQQQ"
    made.graph.node[0].metadata_props.append(place)
    onnx.helper.set_model_props(made, {"key QQQQ": "QQQQ"})
    path = tmp_path / "m.onnx"
    path.write_bytes(re.sub(b"(?<!-)QQQQ", b"\xff\xfe\xed\xa0", made.SerializeToString()))
    assert [run(name, path) for name in ("inspect", "tree", "account")] == [0, 0, 0]
    assert "\ufffd" in jaxport.from_onnx(path).model.producer_name
    jaxport.from_onnx(onnx.load(path))


def test_the_tree_of_modules_is_printable(mark: str, file: Path):
    shown("\n".join(jaxport.from_onnx(file).modules.lines()))


def test_what_is_refused_is_printable(mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "m.onnx").write_bytes(refused_model(mark).SerializeToString())
    for command in (("inspect", "--all"), ("tree",), ("run", "--random")):
        run(command[0], tmp_path / "m.onnx", *command[1:])
    captured = capsys.readouterr()
    shown(captured.out)
    shown(captured.err)
    with pytest.raises(jaxport.JaxportError) as refused:
        jaxport.from_onnx(refused_model(mark))
    shown(str(refused.value))


def _edited(mox: jaxport.Mox) -> jaxport.Mox:
    return mox.sub("//tanh", jnp.sin)


REPORTS: dict[str, Callable[[jaxport.Program, jaxport.Mox], object]] = {
    "program": lambda program, mox: repr(program),
    "modules": lambda program, mox: repr(program.modules) + repr(list(program.modules.walk())),
    "phases": lambda program, mox: program.explain(),
    "verify": lambda program, mox: program.verify(check=False),
    "source": lambda program, mox: program.to_source(framework="jax"),
    "code": lambda program, mox: program.to_source(framework="nnx").code,
    "mox": lambda program, mox: repr(mox),
    "fold": lambda program, mox: mox.fold(depth=3),
    "page": lambda program, mox: mox.show().data,
    "selection": lambda program, mox: repr(mox.select("//*")),
    "match": lambda program, mox: repr(mox.select("//*")[0]),
    "account": lambda program, mox: jaxport.mox.account(mox),
    "edited": lambda program, mox: repr(_edited(mox)),
    "exported": lambda program, mox: repr(jaxport.to_onnx(program, [("B", 3)])),
    "explain": lambda program, mox: jaxport.to_onnx(program, [("B", 3)]).explain(),
    "requirements": lambda program, mox: jaxport.to_onnx(program, [("B", 3)]).requirements,
}


@pytest.fixture(scope="module")
def imported() -> Callable[[str], tuple[jaxport.Program, jaxport.Mox]]:
    made: dict[str, tuple[jaxport.Program, jaxport.Mox]] = {}

    def of(mark: str) -> tuple[jaxport.Program, jaxport.Mox]:
        if mark not in made:
            program = jaxport.from_onnx(model(mark))
            made[mark] = program, jaxport.make_mox(program)(jnp.zeros((2, 3)))
        return made[mark]

    return of


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_is_printable(report: str, mark: str, imported: Callable[[str], tuple[jaxport.Program, jaxport.Mox]]):
    text = str(REPORTS[report](*imported(mark)))
    assert text
    shown(text)


def test_queries_find_what_is_shown_and_what_is_meant(
    mark: str, imported: Callable[[str], tuple[jaxport.Program, jaxport.Mox]]
):
    """A name is found as the file has it and as it is printed."""
    _, mox = imported(mark)
    path = next(node.path for node in mox.tree.nodes if node.block is not None and node.block.path)
    for written in (path, printable(path)):
        if '"' in written:
            continue  # XPath 1.0 has no way to write both kinds of quotes
        assert mox.select(f'//*[@path="{written}"]').count() >= 1
    assert mox[path].path == path


def test_a_mox_of_a_hostile_file_is_saved_and_loaded(
    mark: str, imported: Callable[[str], tuple[jaxport.Program, jaxport.Mox]], tmp_path: Path
):
    _, mox = imported(mark)
    x = jnp.ones((2, 3))
    for suffix in ("json", "yson", "xml"):
        jaxport.mox.save(mox, tmp_path / f"m.{suffix}")
        loaded = jaxport.mox.load(tmp_path / f"m.{suffix}")
        np.testing.assert_array_equal(loaded(x), mox(x))
        assert [node.path for node in loaded.tree.nodes] == [node.path for node in mox.tree.nodes]


@pytest.mark.parametrize("text", [UNPRINTABLE, *"\0\t\n\x1b\x7f\x9b\u202e\u2028\ufffe", "\ud800", "a\udfff"])
def test_every_character_is_escaped_everywhere(text: str):
    """Names that no file can hold, such as halves of surrogate pairs, reach reports from Python."""
    name = f"a{text}b"
    assert printable(name) == ascii(name)[1:-1]
    shown(printable(name))
    shown(str(jaxport.InvalidArgument(f"`{name}` is refused", where=name, why=name, instead=name)))
    unsupported = str(jaxport.Unsupported(name, [Refusal(name, name, name)]))
    shown(unsupported)
    assert len(unsupported.splitlines()) == 2

    if name != name.encode(errors="replace").decode():
        return  # JAX has no functions of such names

    def called(x: jax.Array) -> jax.Array:
        return jax.jit(named)(x)

    def named(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    named.__name__ = named.__qualname__ = name
    mox = jaxport.make_mox(called)(jnp.zeros(3))
    shown(repr(mox))
    shown(mox.show().data)
    assert mox.select(f'//jit[@name="{printable(name)}"]').count() == 1


def test_text_that_is_printable_is_left_alone():
    for text in ("", "plain", "Größe 寸法 размер", "→ “quotes” \\x1b", "🙂"):
        assert printable(text) == text
    assert unicodedata.category("\u00a0") == "Zs"
    assert printable("\u00a0") == "\\xa0"

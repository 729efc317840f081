from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx.defs
import pytest

from tests.architecture import lines
from tests.architecture.sources import SOURCE, code_lines, nodes_of, text_of

PACKAGE = SOURCE / "jaxport"
FILES = sorted(PACKAGE.rglob("*.py"))
WALKER = PACKAGE / "export" / "walk" / "walker.py"

# The lines of code in a file: blank lines, comments and docstrings are free.
LONGEST = 420
# Files that may be longer, each with its reason.
LONG: dict[str, str] = {}

# The only files that handle ONNX's protobuf messages; all others work on `onnx_ir`.
PROTOBUF: dict[str, str] = {
    "export/exported.py": "`exported.proto` hands one to the user",
    "export/emit/bodies.py": "the body that a schema gives for its operator is a message",
    "importer/loading/frame.py": "reads the file without its weights",
    "importer/loading/gate.py": "checks the tensors of the file",
    "importer/loading/load.py": "reads the file",
    "importer/resolving/resolve.py": "the body that a schema gives for its operator is a message",
    "saving.py": "writes the file",
}

FRAMEWORKS = ("flax", "nnx", "linen", "equinox", "eqx", "haiku")


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def protobuf_types(nodes: Sequence[ast.AST]) -> list[str]:
    """The uses of protobuf messages: `onnx.ModelProto`, `from onnx import TensorProto`, `onnx.load`."""
    attributes = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "onnx"
    ]
    imported = [
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "onnx"
        for alias in node.names
    ]
    return [found for found in attributes + imported if found.endswith("Proto") or found in ("load", "save", "helper")]


def operator_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The ONNX operators that a file names, as a string or as an attribute (`op.MatMul`)."""
    operators = {schema.name for schema in onnx.defs.get_all_schemas()}
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return operators & (strings | attributes)


def parsed(source: str) -> list[ast.AST]:
    """All nodes of an example."""
    return list(ast.walk(ast.parse(source)))


def framework_names(source: str) -> list[str]:
    return re.findall(rf"(?i)\b(?:{'|'.join(FRAMEWORKS)})\b", source)


def unfinished_marks(source: str) -> list[str]:
    return re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", source)


# One test looks at all files: hundreds of tests of a millisecond each take pytest many times as long.
def test_a_file_is_short():
    lines = {name(path): measured(path)[1] for path in FILES}
    long = {file: count for file, count in lines.items() if count > LONGEST and file not in LONG}
    assert not long, "split them by meaning"


def test_the_list_of_long_files_is_not_stale():
    assert [file for file in LONG if measured(PACKAGE / file)[1] <= LONGEST] == []


def test_a_file_has_no_unfinished_marks():
    assert not {name(path): marks for path in FILES if (marks := unfinished_marks(text_of(path)))}


def test_protobuf_stays_in_the_files_that_load_and_save():
    found = {name(path): types for path in FILES if (types := protobuf_types(nodes_of(path)))}
    assert not {file: types for file, types in found.items() if file not in PROTOBUF}


def test_the_list_of_protobuf_files_is_not_stale():
    assert [file for file in PROTOBUF if not protobuf_types(nodes_of(PACKAGE / file))] == []


def test_the_walker_names_no_operator():
    assert operator_names(nodes_of(WALKER)) == set()


def test_the_walker_names_no_framework():
    assert framework_names(text_of(WALKER)) == []


def test_the_checks_see_what_they_must():
    nodes = parsed('import onnx\ndef f(m: onnx.ModelProto): op.MatMul(1); emit("Add"); "just text"')
    assert protobuf_types(nodes) == ["ModelProto"]
    assert protobuf_types(parsed("from onnx import TensorProto, defs")) == ["TensorProto"]
    assert operator_names(nodes) == {"MatMul", "Add"}
    assert framework_names("a flax.nnx module; reflax") == ["flax", "nnx"]
    assert unfinished_marks("# TO" + "DO: later") == ["TO" + "DO"]


def test_every_folder_is_a_package():
    folders = {path.parent for path in FILES}
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


# How often `Any` may stand in a part. It only goes down: a named type says what a value
# is (`Array`, `Dim`, `Parameters` of `jaxport.jaxprs`, `Aval` and `Query` of `jaxport.mox.expressions`, `Tensor` and
# `RuntimeValue` of `jaxport.importer.values.host`).
MOST_ANY = {
    "package": 900,
    "blocks": 123,
    "cli": 21,
    "codegen": 110,
    "export": 141,
    "frameworks": 41,
    "graph": 15,
    "importer": 188,
    "mox": 77,
    "testing": 10,
    "verify": 28,
}


LEAST_WORDS = 5
"""The words from which on a reason is a sentence."""

# How often `object`, in the same way: it is what is only handed on, or told apart by `isinstance`; everything else has a type.
MOST_OBJECT = {
    "package": 985,
    "blocks": 122,
    "cli": 38,
    "codegen": 300,
    "export": 59,
    "frameworks": 32,
    "graph": 15,
    "importer": 179,
    "mox": 96,
    "testing": 24,
    "verify": 21,
}


def uses_of(word: str, nodes: Iterable[ast.AST]) -> int:
    return sum(isinstance(node, ast.Name) and node.id == word for node in nodes)


@functools.cache
def measured(path: Path) -> tuple[int, int, int]:
    """How often a file says `Any`, its lines of code, and how often it says `object`."""
    nodes = nodes_of(path)
    return uses_of("Any", nodes), code_lines(text_of(path), nodes), uses_of("object", nodes)


@pytest.mark.parametrize("part", MOST_ANY)
def test_types_have_names(part: str) -> None:
    counts = [measured(path) for path in FILES if part in ("package", name(path).split("/")[0])]
    for word, place, most in (("Any", 0, MOST_ANY), ("object", 2, MOST_OBJECT)):
        times = sum(counted[place] for counted in counts)
        assert times <= most[part], f"`{word}` stands {times} times: name the type"


def test_packages_alone_list_their_names() -> None:
    """A name with an underscore is private: a list of the others says it twice. The errors get another
    module by it."""
    listing = [
        name(path)
        for path in FILES
        if path.name != "__init__.py" and re.search("^__all__ =", text_of(path), re.MULTILINE)
    ]
    assert listing == ["errors.py"]


def test_no_room_is_above_its_ceiling() -> None:
    """Code that is added has a price: a row of `RAISED` in `tests/architecture/lines.py` says what it buys."""
    above = {room: count - lines.ceilings()[room] for room, count in lines.by_room().items()}
    assert not {room: f"{more} lines above" for room, more in above.items() if more > 0}


def test_what_raises_a_ceiling_says_why() -> None:
    short = [(room, why) for room, more, why in lines.RAISED if more <= 0 or len(why.split()) < LEAST_WORDS]
    assert not short, "say in a sentence what the lines buy"
    assert {*lines.ceilings()} == {*lines.by_room()}, "`python -m tests.architecture.lines --lower`"


def test_lines_are_told_by_room() -> None:
    told = lines.table({"graph": -3, "sizes": 0}, {"graph": 10, "sizes": 5})
    assert [row.split()[:3] for row in told.splitlines()[1:]] == [["graph", "10", "-3"], ["whole", "15", "-3"]]


def aliases_of_any(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that stand for `Any` in a file."""
    assigned = (node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign))
    return {
        target.id
        for node in assigned
        if isinstance(node.value, ast.Name) and node.value.id == "Any"
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def test_no_name_stands_for_any() -> None:
    """A union, a protocol or a `NewType` says what a value is."""
    assert not {name(path): found for path in FILES if (found := aliases_of_any(nodes_of(path)))}
    assert aliases_of_any(parsed("One = Any\nTwo: TypeAlias = Any\nthree: Any = 3\n")) == {"One", "Two"}


# The number of public fields from which a class has to say of each what it is.
MANY_FIELDS = 17


def test_the_fields_of_large_classes_are_documented() -> None:
    missing = {}
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                fields = [
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                ]
                told = set(re.findall(r"\w+", (ast.get_docstring(node) or "").partition("Attributes:")[2]))
                fields = [field for field in fields if not field.startswith("_")]
                if len(fields) >= MANY_FIELDS and not {*fields} <= told:
                    missing[node.name] = {*fields} - told
    assert not missing


# The files whose functions are typed by the tables that they stand in: a signature is that of an operator or a primitive.
TYPED_BY_TABLES = (
    "export/emit/shapes.py",
    "export/prepare/pairs.py",
    "export/rules/",
    "importer/ops/",
    "stablehlo/ops/",
)


def untyped(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the functions with a parameter or a result that has no type; that of `__init__` is None."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            listed = node.args
            parameters = [*listed.posonlyargs, *listed.args, *listed.kwonlyargs, listed.vararg, listed.kwarg]
            typed = all(one is None or one.annotation is not None or one.arg in ("self", "cls") for one in parameters)
            if not typed or (node.returns is None and node.name != "__init__"):
                yield f"{node.lineno}: {node.name}"


def test_functions_have_types() -> None:
    found = {name(path): [*untyped(nodes_of(path))] for path in FILES if not name(path).startswith(TYPED_BY_TABLES)}
    assert not {file: functions for file, functions in found.items() if functions}
    assert [*untyped(parsed("def f(x) -> int: ...\ndef g(x: int): ...\ndef h(*xs, **ys) -> int: ..."))] == [
        "1: f",
        "2: g",
        "3: h",
    ]
    assert not [*untyped(parsed("class A:\n    def __init__(self, x: int): ...\n    def f(self) -> int: ..."))]


def test_code_and_any_are_counted() -> None:
    source = (
        '"""Docs."""\n\nfrom typing import Any\n\n# why\ndef f(x: Any) -> list[Any]:\n    """Docs."""\n    return x\n'
    )
    nodes = parsed(source)
    assert (code_lines(source), uses_of("Any", nodes), uses_of("object", nodes)) == (3, 2, 0)


#: How many files outside `jaxprs` read the equations of a jaxpr. Each is one rewriting or interpretation of programs, or one
#: question about a body; what two of them need is a function of `jaxprs/walk.py`.
MOST_WALKS = 23


def test_walks_through_programs_stand_in_one_place() -> None:
    """How JAX holds equations is known to few files."""
    reading = [
        name(path)
        for path in FILES
        if not name(path).startswith("jaxprs/")
        and any(isinstance(node, ast.Attribute) and node.attr == "eqns" for node in nodes_of(path))
    ]
    assert len(reading) <= MOST_WALKS, f"use or extend `jaxprs/walk.py`: {len(reading)} files read `.eqns`: {reading}"


def test_every_class_has_a_name_of_its_own() -> None:
    """A reader who meets a class need not ask which one it is."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{name(path)}:{node.lineno}")
    assert not {cls: found for cls, found in places.items() if len(found) > 1}


# How often the identity of an object may be taken as a number, outside of `jaxprs/identity.py`. It only goes down: classes whose
# `==` is identity are keys themselves, and an `IdentityMap` takes the others, and keeps them alive.
MOST_IDENTITIES = 18


def test_objects_are_keys_themselves() -> None:
    places = [
        f"{name(path)}:{node.lineno}"
        for path in FILES
        if name(path) != "jaxprs/identity.py"
        for node in nodes_of(path)
        if isinstance(node, ast.Name) and node.id == "id" and isinstance(node.ctx, ast.Load)
    ]
    assert len(places) <= MOST_IDENTITIES, f"use the object, or an `IdentityMap`: {len(places)} places take an `id`"


# The files that say what one operator becomes, and so name many.
NAMING = {
    "codegen/rewriting/known.py": "which operator a recorded step is",
    "export/rules": "what a rule emits",
    "graph/facts": "how what is known of a result follows from what is known of the operands",
    "importer/ops": "which definitions of operators share a body",
}


def _texts(nodes: Iterable[ast.AST | None]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _is_data(node: ast.AST) -> bool:
    """Whether an expression is written without names and functions: the value of a table of facts, not an implementation."""
    return not any(isinstance(inner, ast.Name | ast.Lambda | ast.Attribute) for inner in ast.walk(node))


def _membership(node: ast.AST) -> list[str]:
    """Return the strings that a comparison compares with: those of `x == "A"` and of `x in ("A", "B")`."""
    if not isinstance(node, ast.Compare):
        return []
    return _texts(inner for operand in node.comparators for inner in ast.walk(operand))


def _chain(node: ast.If) -> list[str]:
    """Return the strings that the tests of `if …: elif …: elif …:` look for in collections of several."""
    texts, branch = [], node
    while isinstance(branch, ast.If):
        compared = _membership(branch.test)
        texts += compared if len(compared) > 1 else []
        branch = branch.orelse[0] if branch.orelse else None
    return texts


def collections_of_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, list[str]]]:
    """Yield the strings that are listed together, with the line: in a collection, in a table of data by its keys or its
    values, in an alternative, in the arguments of a call, in the branches of a case.
    """
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)):
                yield node.lineno, text.split()
            case ast.Set() | ast.Tuple() | ast.List():
                yield node.lineno, _texts(node.elts)
            case ast.Dict():
                yield node.lineno, _texts(node.values)
                keys = _texts(node.keys)
                yield node.lineno, keys if keys and all(map(_is_data, node.values)) else []
            case ast.MatchOr():
                yield node.lineno, _texts(p.value for p in node.patterns if isinstance(p, ast.MatchValue))
            case ast.BoolOp():
                yield node.lineno, [text for operand in node.values for text in _membership(operand)]
            case ast.If():
                yield node.lineno, _chain(node)
            case ast.Call():
                yield node.lineno, _texts(node.args)


def test_classes_of_operators_stand_in_one_file() -> None:
    """A collection of four or more operators is a fact about ONNX: it belongs to `onnx_facts`."""
    operators = {schema.name for schema in onnx.defs.get_all_schemas()}
    places = [
        f"{name(path)}:{line}: {' '.join(names)}"
        for path in FILES
        if not name(path).startswith(("onnx_facts/", *NAMING))
        for line, names in collections_of_names(nodes_of(path))
        if len(operators.intersection(names)) >= 4 and operators.issuperset(names)
    ]
    assert not places, "say it in `src/jaxport/onnx_facts/__init__.py`, and take its classes together here"


@pytest.mark.parametrize(
    "source",
    [
        'A = {"Abs", "Cos"}',
        'A = frozenset("Abs Cos".split())',
        'A = {"Abs": 1, "Cos": {2}}',
        'A = {1: "Abs", size: "Cos"}',
        'a = is_op(node, "Abs", "Cos")',
        'a = x == "Abs" or x in ("Cos",)',
        'if x in ("Abs", "Cos"):\n    pass',
        'if x == 1:\n    pass\nelif x in ("Abs", "Cos"):\n    pass',
        'match x:\n    case "Abs" | "Cos":\n        pass',
    ],
)
def test_a_collection_of_names_is_seen(source: str) -> None:
    assert ["Abs", "Cos"] in [names for _, names in collections_of_names(parsed(source))]


def test_what_an_operator_becomes_is_no_collection() -> None:
    source = 'A = {"Abs": np.abs, "Cos": lambda x: x}\nif x == "Abs":\n    pass\nelif x == "Cos":\n    pass'
    assert max(len(names) for _, names in collections_of_names(parsed(source))) < 2

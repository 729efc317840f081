"""Reads which part of the package imports which, and compares it with what the design allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from jaxport.importer.parts import cycles
from tests.architecture.sources import nodes_of, tree_of

# A part of the package may import itself and the parts named here. Parts that are not listed may see all.
MAY_SEE: dict[str, frozenset[str]] = {
    "printable": frozenset(),
    "columns": frozenset({"printable"}),
    "errors": frozenset({"columns", "printable"}),
    "arguments": frozenset({"errors"}),
    "collecting": frozenset(),
    "lazy_sympy": frozenset(),
    "deprecations": frozenset(),
    "scoped": frozenset(),
    "phases": frozenset({"printable", "scoped"}),
    "onnx_facts": frozenset({"scoped"}),
    "graph": frozenset({"errors", "onnx_facts", "jaxprs", "scoped", "sizes"}),
    "jaxprs": frozenset({"errors"}),
    "sizes": frozenset({"errors", "jaxprs"}),
    "files": frozenset({"errors"}),
    "saving": frozenset({"errors", "files", "phases"}),
    "blocks": frozenset({"errors", "jaxprs", "phases"}),
    "frameworks": frozenset({"errors", "jaxprs", "blocks", "importer", "stablehlo"}),
    "mox": frozenset(
        {"columns", "errors", "collecting", "jaxprs", "files", "blocks", "frameworks", "printable", "sizes"}
    ),
    "export": frozenset(
        {
            "arguments",
            "columns",
            "errors",
            "onnx_facts",
            "graph",
            "collecting",
            "jaxprs",
            "saving",
            "blocks",
            "mox",
            "phases",
            "printable",
            "sizes",
        }
    ),
    "importer": frozenset(
        {
            "arguments",
            "columns",
            "errors",
            "onnx_facts",
            "graph",
            "jaxprs",
            "files",
            "saving",
            "scoped",
            "sizes",
            "blocks",
            "phases",
            "printable",
        }
    ),
    "stablehlo": frozenset({"blocks", "errors", "importer", "jaxprs", "phases", "printable"}),
    "codegen": frozenset({"blocks", "errors", "onnx_facts", "graph", "files", "jaxprs", "importer", "phases", "sizes"}),
}

# Convenience methods and annotations that look upward, each with its reason: (file, part that it sees).
UPWARD: dict[tuple[str, str], str] = {
    (
        "blocks/marking/window.py",
        "frameworks",
    ): "by default, the frameworks that the process has imported are looked at",
    ("codegen/recorded/functions.py", "export"): "a pattern is what the exporter writes for a JAX function",
    ("export/exported.py", "verify"): "`exported.verify()`",
    ("export/rules/calls.py", "stablehlo"): "a trace that calls an artifact has its operations in the artifact alone",
    ("graph/patterns.py", "export"): "a pattern is what the exporter emits for a JAX function",
    ("importer/program.py", "codegen"): "`program.to_source()`",
    ("importer/program.py", "verify"): "`program.verify()`",
}


# Names of one room that others import. A name that one file alone uses belongs beside its reader.
MOST_DOORS = 1321


@dataclass(frozen=True)
class Import:
    """One import: the file (relative to the package), its line, the module, and whether it runs at import time."""

    file: str
    line: int
    module: str
    at_import: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


@lru_cache
def imports_of(package: Path) -> Sequence[Import]:
    """All imports of the files below `package`, as absolute module names."""
    return tuple(_imports_of(package))


def _imports_of(package: Path) -> Iterator[Import]:
    for path in sorted(package.rglob("*.py")):
        for node, late in _with_time(tree_of(path), False):
            for module in _modules(node, package):
                yield Import(path.relative_to(package).as_posix(), node.lineno, module, not late)


def _with_time(node: ast.AST, late: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the statements in a node, with whether they run after the file was imported."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt):
            yield inner, late
            yield from _with_time(inner, late or _runs_late(inner))
        elif isinstance(inner, ast.ExceptHandler | ast.match_case):
            yield from _with_time(inner, late)


def _runs_late(node: ast.AST) -> bool:
    """Whether what is inside `node` does not run when the file is imported."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _modules(node: ast.AST, package: Path) -> list[str]:
    """The modules that a statement imports: `from jaxport.verify import sampling` names one in its second half."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        inner = [name for name in whole if node.module == "jaxport" or file_of(name, package) is not None]
        return [*inner, *([str(node.module)] if len(inner) < len(whole) else [])]
    return []


def file_of(module: str, package: Path) -> str | None:
    """The file of a module of the package, relative to it; None for modules of others."""
    path = module.removeprefix("jaxport").removeprefix(".").replace(".", "/")
    found = (name for name in (f"{path}.py", f"{path}/__init__.py".removeprefix("/")) if (package / name).is_file())
    return next(found, None) if module.partition(".")[0] == "jaxport" else None


def circles(package: Path) -> list[list[str]]:
    """The files that import one another, over however many others: late imports and those of annotations count, too."""
    imported: dict[str, set[str]] = {}
    for found in imports_of(package):
        file = file_of(found.module, package)
        if file is not None and file != found.file:
            imported.setdefault(found.file, set()).add(file)
            imported.setdefault(file, set())
    return [sorted(circle) for circle in cycles(imported)]


def doors(package: Path) -> list[str]:
    """The names that files import from another folder: the file that is asked for each, and the name.

    A module that is imported whole counts with the names that are read of it.
    """
    found: set[str] = set()
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        modules: dict[str, str] = {}
        for node in nodes_of(path):
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                inner = file_of(f"{node.module}.{alias.name}", package)
                if inner is not None:
                    modules[alias.asname or alias.name] = inner
                elif (asked := file_of(str(node.module), package)) is not None and _room(asked) != _room(file):
                    found.add(f"{asked}: {alias.name}")
        found |= {
            f"{modules[node.value.id]}: {node.attr}"
            for node in nodes_of(path)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
            if _room(modules[node.value.id]) != _room(file)
        }
    return sorted(found)


def _room(file: str) -> str:
    """The folder of a file; a file beside the folders is a room of its own."""
    return file.rpartition("/")[0] or file


def part_of(module_or_file: str) -> str:
    """The part of the package that a file (`export/walk/walker.py`) or a module (`jaxport.export.walk.walker`) belongs to."""
    name = module_or_file.removeprefix("jaxport.").removesuffix(".py").replace("/", ".")
    return name.split(".")[0]


def wrong_directions(package: Path, upward: dict[tuple[str, str], str]) -> list[str]:
    """The imports that run against `MAY_SEE`; inside functions, those in `upward` are allowed."""
    wrong = []
    for found in imports_of(package):
        here, there = part_of(found.file), part_of(found.module)
        if not found.module.startswith("jaxport.") or here == there or here not in MAY_SEE:
            continue
        listed = not found.at_import and (found.file, there) in upward
        if there not in MAY_SEE[here] and not listed:
            wrong.append(str(found))
    return wrong

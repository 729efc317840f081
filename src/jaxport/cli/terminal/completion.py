"""What a shell offers where a user presses the tab key."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["precisions", "targets"]


def precisions(incomplete: str) -> list[str]:
    """Return the precisions that begin so.

    >>> precisions("int4")
    ['int4']
    """
    from jaxport.export.precision.names import PRECISIONS

    return [name for name in PRECISIONS if name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Return the modules in the current folder, or after a colon the functions, classes and variables of a module.

    Nothing is imported: the names are read from the source.
    """
    module, colon, attribute = incomplete.partition(":")
    if not colon:
        return sorted(f"{name}:" for name in _modules() if name.startswith(module))
    return sorted({f"{module}:{name}" for name in _names(module) if name.startswith(attribute)})


def _modules() -> Iterator[str]:
    """Yield the modules and packages of the current folder, and the modules of those packages."""
    for path in Path.cwd().iterdir():
        if path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem
        elif (path / "__init__.py").is_file():
            yield path.name
            yield from (f"{path.name}.{file.stem}" for file in path.glob("*.py") if file.stem != "__init__")


def _names(module: str) -> Iterator[str]:
    path = Path.cwd().joinpath(*module.split("."))
    files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    if not files:
        return
    try:
        tree = ast.parse(files[0].read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [statement.name]
        elif isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))

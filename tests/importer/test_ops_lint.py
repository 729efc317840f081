"""What keeps operator functions recordable: shared namespaces only, and few methods of their operands."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

import jaxport.importer.ops
from scripts.rule_lines import operator_lengths

FOLDER = Path(jaxport.importer.ops.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
MODULES = {
    "__future__",
    "collections",
    "contextlib",
    "dataclasses",
    "functools",
    "inspect",
    "io",
    "itertools",
    "math",
    "ml_dtypes",
    "numpy",
    "PIL",
    "operator",
    "re",
    "string",
    "typing",
    "warnings",
    "jaxport",
}
# Methods that arrays have and recorded values have not: the namespaces have functions for them.
METHODS = set(
    "all any argmax argmin argsort astype clip conj cumprod cumsum diagonal dot flatten imag max mean min nonzero prod ravel "
    "real repeat round sort squeeze std sum swapaxes take trace transpose var view".split()
)


def violations(source: str) -> list[str]:
    """What in a file of operators cannot be recorded."""
    tree = ast.parse(source)
    free = {inner for node in ast.walk(tree) if _is_helper(node) for inner in ast.walk(node)}
    problems = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            allowed = [
                a for a in node.names if a.name.partition(".")[0] in MODULES or (a.name, a.asname) == ("jax", None)
            ]
            problems += [f"{node.lineno}: imports {a.name}" for a in node.names if a not in allowed]
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] not in MODULES:
            problems.append(f"{node.lineno}: imports {node.module}")
        if isinstance(node, ast.Name) and node.id == "jax" and node not in free:
            problems.append(f"{node.lineno}: uses jax")
        if node in free or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        of_module = isinstance(owner, ast.Name) and owner.id in {"jnp", "lax", "nn", "np", "random", "math"}
        of_host_data = isinstance(owner, ast.Attribute) and owner.attr == "data"
        if node.func.attr in METHODS and not of_module and not of_host_data:
            problems.append(f"{node.lineno}: calls the method `{node.func.attr}`")
    return problems


def test_the_median_operator_is_short() -> None:
    assert statistics.median(operator_lengths().values()) <= 6


def _is_helper(node: ast.AST) -> bool:
    """A helper is printed as it is written: it may use all of JAX."""
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(d, ast.Name) and d.id == "helper" for d in node.decorator_list
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_operators_are_recordable(path: Path) -> None:
    assert violations(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import jax.numpy", ["1: imports jax.numpy"]),
        ("import jax as j", ["1: imports jax"]),
        ("from jax import numpy", ["1: imports jax"]),
        ("import jax\ndef f(x):\n    return jax.numpy.tanh(x)", ["3: uses jax"]),
        ("import jax\n@helper\ndef f(x):\n    return jax.jit(jnp.tanh)(x)", []),
        ("def f(x):\n    return x.sum()", ["2: calls the method `sum`"]),
        ("def f(x):\n    return jnp.sum(x.T, axis=0)", []),
        ("def f(x):\n    return x.data.sum()", []),
        ("@helper\ndef f(x):\n    return x.sum()", []),
    ],
)
def test_the_lint_sees_what_it_must(source: str, found: list[str]) -> None:
    assert violations(source) == found

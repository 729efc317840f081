"""How long the rules of the exporter and the operators of the importer are: code lines of each, its declaration and
body, without comments and docstrings.

python -m scripts.rule_lines        the medians, and the longest
"""

from __future__ import annotations

import ast
import inspect
import statistics
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import jaxport.importer  # noqa: F401  registers the operators
from jaxport.export.rules import RULES
from jaxport.importer.resolving.registry import operators


def lines_of(function: Callable[..., Any]) -> int:
    """The code lines of a function; one that another function makes, or an expression, is a row of a table.

    >>> def double(x):
    ...     # a comment
    ...     return x * 2
    >>> lines_of(double)
    2
    """
    if "<locals>" in function.__code__.co_qualname or function.__name__ == "<lambda>":
        return 1
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(tree, ast.FunctionDef):
        return 1
    source = inspect.getsource(function).splitlines()
    skipped = range(0)
    if ast.get_docstring(tree) is not None:
        skipped = range(tree.body[0].lineno, (tree.body[0].end_lineno or 0) + 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(source, 1)
        if number >= tree.lineno and number not in skipped
    )


def lengths() -> dict[str, int]:
    """The code lines of the rule of each primitive; of a JAX function that is the rule, of that function."""
    return {name: lines_of(inspect.unwrap(rule.function)) for name, rule in RULES.items() if _is_ours(rule.function)}


def operator_lengths() -> dict[str, int]:
    """The code lines of each operator function by its operator and first version; a row of a table is one line.

    A function that serves several operators or versions is counted once, with the first of them.
    """
    counted: set[Callable[..., Any]] = set()
    lengths = {}
    for entry in operators():
        function = inspect.unwrap(entry.lowering or entry.function)
        is_row = function in counted or not _is_ours(function)
        lengths[f"{entry.label} {entry.since}"] = 1 if is_row else lines_of(function)
        counted.add(function)
    return lengths


def _is_ours(function: Callable[..., Any]) -> bool:
    return hasattr(function, "__code__") and str(function.__module__).startswith("jaxport.")


if __name__ == "__main__":
    for kind, counts in (("rules", lengths()), ("operators", operator_lengths())):
        longest = sorted(counts, key=lambda name: -counts[name])[:10]
        sys.stdout.write(f"{len(counts)} {kind}, median {statistics.median(counts.values()):g} code lines\n")
        sys.stdout.writelines(f"{counts[name]:4} {name}\n" for name in longest)

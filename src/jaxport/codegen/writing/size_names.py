"""Sizes that only have names, read from the shapes of arguments: `batch, length, _ = x.shape`.

A size with one name in it is solved for this name: `height = x.shape[2] // 32` of an axis of `32*height` elements.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping

import jax

from jaxport.codegen.writing.literals import attribute
from jaxport.errors import InvalidArgument
from jaxport.importer.traced.assumptions import Bounds
from jaxport.importer.traced.recorded_program import Fixed
from jaxport.importer.traced.zero_sizes import size_text
from jaxport.importer.values.host import Dim, HostValue, is_dim
from jaxport.importer.values.recording import Variable

__all__ = ["LINEAR", "element_names", "size_names", "size_statements"]

LINEAR = re.compile(r"(?:(?P<factor>\d+)\*)?(?P<name>[A-Za-z_]\w*)(?: (?P<sign>[+-]) (?P<offset>\d+))?")
"""A size of which one name is the only open part: `height`, `32*height`, `2*length + 1`."""


def size_names(tree: object) -> set[str]:
    """Return the names of the sizes that can be read from the shapes of variables."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Variable))
    return _names(size for leaf in leaves for size in leaf.shape)


def element_names(read: Mapping[str, HostValue]) -> set[str]:
    """Return the names of the sizes that can be read from the elements of inputs."""
    return _names(size for elements in read.values() for size in elements.data.ravel())


def _names(sizes: Iterable[Dim]) -> set[str]:
    texts = (LINEAR.fullmatch(size_text(size)) for size in sizes if is_dim(size))
    return {linear["name"] for linear in texts if linear is not None}


def size_statements(
    arguments: Mapping[str, object],
    names: Collection[str],
    bounds: Mapping[str, Bounds] | None = None,
    fixed: Mapping[str, Fixed] | None = None,
) -> tuple[list[ast.stmt], set[str]]:
    """`batch, seq = x.shape`, for the sizes that are wanted; and `height = x.shape[2] // 32`.

    Args:
      arguments: the variables that the names of arguments stand for.
      names: the sizes.
      bounds: of the model itself, the sizes that it accepts, by name; inside it, inputs are as they have to be.
      fixed: by argument and axis, the sizes of the model's inputs that have to be a number.

    Returns:
      The statements, and the names that no argument has as the size of an axis.

    Raises:
      InvalidArgument: there are such names, of the model itself.
    """
    wanted = set(names)
    shapes = {
        name: [size_text(size) for size in tree.shape] for name, tree in arguments.items() if isinstance(tree, Variable)
    }
    statements: list[ast.stmt] = []
    for argument, axes in (fixed or {}).items():
        for axis, (size, number) in axes.items():
            refusal = f"raise ValueError({f'{size} has to be {number}'!r})"
            statements += ast.parse(f"if {argument}.shape[{axis}] != {number}:\n    {refusal}").body
    for argument, sizes in shapes.items():
        targets = []
        for size in sizes:
            targets.append(ast.Name(size if size in wanted else "_", ast.Store()))
            wanted -= {size}
        if any(target.id != "_" for target in targets):
            statements.append(ast.Assign([ast.Tuple(targets, ast.Store())], attribute(f"{argument}.shape"), lineno=0))
    for argument, axis, size in [(a, axis, size) for a, sizes in shapes.items() for axis, size in enumerate(sizes)]:
        linear = LINEAR.fullmatch(size)
        if linear is not None and linear["name"] in wanted:
            wanted -= {linear["name"]}
            statements += _solved(f"{argument}.shape[{axis}]", linear)[0 if bounds is not None else -1 :]
    if bounds is not None and wanted:
        raise _unreadable(min(wanted))
    for key, (least, most) in (bounds or {}).items():
        limits = [("<", "least", least)] * (least > 1) + [(">", "most", most)] * (most is not None)
        for comparison, word, number in limits:
            refusal = f"raise ValueError({f'{key} has to be at {word} {number}'!r})"
            statements += ast.parse(f"if {key} {comparison} {number}:\n    {refusal}").body
    return statements, wanted


def _unreadable(size: str) -> InvalidArgument:
    """Return the refusal of a program whose source would need a size that no input has."""
    return InvalidArgument(
        f"the size `{size}` cannot be read from an input",
        where="`to_source`",
        why="no input has it as the size of an axis",
        instead="record the program with other sizes",
    )


def _solved(size: str, linear: re.Match[str]) -> list[ast.stmt]:
    """Return the statements that compute the name in a size, and refuse one that has none."""
    if linear["sign"]:
        shifted = f"({size} {'-' if linear['sign'] == '+' else '+'} {linear['offset']})"
    else:
        shifted = size
    if not linear["factor"]:
        return ast.parse(f"{linear['name']} = {shifted}").body
    return ast.parse(
        f"if {shifted} % {linear['factor']}:\n    raise ValueError({f'{size} has to be {linear[0]}'!r})\n"
        f"{linear['name']} = {shifted} // {linear['factor']}"
    ).body

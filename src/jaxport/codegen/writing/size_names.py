"""Sizes that only have names, read from the shapes of arguments, whatever the language.

Of `x` of sizes `(batch, 4, 32*height)`:

    ReadShape(("batch", "_", "_"), "x")                             batch, _, _ = x.shape
    RefusedSize(AxisSize("x", 2), "%", 32, "… has to be …")    →    if x.shape[2] % 32: raise …
    SolvedSize("height", AxisSize("x", 2), 32)                      height = x.shape[2] // 32
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import jax

from jaxport.errors import InvalidArgument
from jaxport.importer.traced.recorded_program import Fixed
from jaxport.importer.traced.zero_sizes import size_text
from jaxport.importer.values.host import Dim, HostValue, is_dim
from jaxport.importer.values.recording import Variable
from jaxport.jaxprs.dim_text import symbols
from jaxport.sizes.conditions import SizeComparison

LINEAR = re.compile(r"(?:(?P<factor>\d+)\*)?(?P<name>[A-Za-z_]\w*)(?: (?P<sign>[+-]) (?P<offset>\d+))?")
"""A size of which one name is the only open part: `height`, `32*height`, `2*length + 1`."""


@dataclass(frozen=True)
class AxisSize:
    """The size of an axis of an argument, and what is added to it."""

    argument: str
    axis: int
    added: int = 0


@dataclass(frozen=True)
class ReadShape:
    """`batch, _ = x.shape`: all sizes of an argument, of which those that nothing reads are `_`."""

    names: tuple[str, ...]
    argument: str


@dataclass(frozen=True)
class SolvedSize:
    """`height = (x.shape[2] - 1) // 32`, of an axis of `32*height + 1` elements."""

    name: str
    size: AxisSize
    factor: int


@dataclass(frozen=True)
class RefusedSize:
    """`if x.shape[2] % 32: raise …`: the sizes that are refused, and what is said of them.

    Attributes:
      size: that of an axis, or an expression of names.
      comparison: how it compares where it is refused.
      other: a number, or another expression.
      message: what is said, before what the size is.
    """

    size: AxisSize | str
    comparison: Literal["!=", "<", ">", "%"]
    other: int | str
    message: str


_REFUSED: Mapping[str, Literal["!=", "<", ">"]] = {"==": "!=", ">=": "<", "<=": ">"}
_HAS_TO_BE = {"==": "", ">=": "at least ", "<=": "at most "}

SizeStatement = ReadShape | SolvedSize | RefusedSize


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
    checks: Sequence[SizeComparison] | None = None,
    fixed: Mapping[str, Fixed] | None = None,
) -> tuple[list[SizeStatement], set[str]]:
    """Return what reads the sizes that are wanted, and refuses those that the model does not accept.

    Args:
      arguments: the variables that the names of arguments stand for.
      names: the sizes.
      checks: of the model itself, what has to hold of its sizes; inside it, inputs are as they have to be.
      fixed: by argument and axis, the sizes of the model's inputs that have to be a number, or another size.

    Returns:
      The statements, and the names that no argument has as the size of an axis.

    Raises:
      InvalidArgument: there are such names, of the model itself.
    """
    others = [(argument, axis, *found) for argument, axes in (fixed or {}).items() for axis, found in axes.items()]
    wanted = set(names).union(*(symbols(made) for *_, made in others if isinstance(made, str)))
    shapes = {
        name: [size_text(size) for size in tree.shape] for name, tree in arguments.items() if isinstance(tree, Variable)
    }
    statements: list[SizeStatement] = [
        RefusedSize(AxisSize(argument, axis), "!=", number, f"{size} has to be {number}")
        for argument, axis, size, number in others
        if isinstance(number, int)
    ]
    read_from: set[tuple[str, int]] = set()
    for argument, sizes in shapes.items():
        read: list[str] = []
        for axis, size in enumerate(sizes):
            read.append(size if size in wanted else "_")
            read_from |= {(argument, axis)} if size in wanted else set()
            wanted -= {size}
        if {*read} - {"_"}:
            statements.append(ReadShape((*read,), argument))
    for argument, axis, size in [(a, axis, size) for a, sizes in shapes.items() for axis, size in enumerate(sizes)]:
        linear = LINEAR.fullmatch(size)
        if linear is not None and linear["name"] in wanted:
            wanted -= {linear["name"]}
            read_from.add((argument, axis))
            statements += _solved(argument, axis, linear)[0 if checks is not None else -1 :]
    if checks is not None and wanted:
        raise _unreadable(min(wanted))
    statements += [
        RefusedSize(AxisSize(argument, axis), "!=", made, f"{argument}.shape[{axis}] has to be {made}")
        for argument, axis, _, made in others
        if isinstance(made, str) and (argument, axis) not in read_from
    ]
    statements += [
        RefusedSize(
            one.left, _REFUSED[one.symbol], one.right, f"{one.left} has to be {_HAS_TO_BE[one.symbol]}{one.right}"
        )
        for one in checks or ()
    ]
    return statements, wanted


def _unreadable(size: str) -> InvalidArgument:
    """Return the refusal of a program whose source would need a size that no input has."""
    return InvalidArgument(
        f"the size `{size}` cannot be read from an input",
        where="`to_source`",
        why="no input has it as the size of an axis",
        instead="record the program with other sizes",
    )


def _solved(argument: str, axis: int, linear: re.Match[str]) -> list[SizeStatement]:
    """Return what computes the name in a size, and refuses one that has none."""
    offset = int(f"{linear['sign'] or ''}{linear['offset'] or 0}")
    size, factor = AxisSize(argument, axis, -offset), int(linear["factor"] or 1)
    place, least = f"{argument}.shape[{axis}]", offset + factor
    refused = [RefusedSize(size, "%", factor, f"{place} has to be {linear[0]}")] * (factor > 1)
    if factor > 1 and offset > 0:  # the name is 1 or more
        refused.append(RefusedSize(AxisSize(argument, axis), "<", least, f"{place} has to be at least {least}"))
    return [*refused, SolvedSize(linear["name"], size, factor)]

"""Rounds of a scan over layers as elements of a list.

A scan whose rounds are written out reads one row of each stacked weight per round: `blocks.norm.scale.0`,
`blocks.norm.scale.1` in the module `blocks`. Each round is a module of its own: `blocks.0` with `blocks.0.norm.scale`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxport.codegen.structure.modules.repeats import numbers_of_calls
from jaxport.codegen.tree import Leaf, Op
from jaxport.importer.calls import Chain
from jaxport.importer.values.recording import Variable

_ROW = re.compile(r"(.+)\.(\d{1,6})")


class Rounds(NamedTuple):
    """The modules and the names of weights with rounds as elements of lists.

    Attributes:
      chains: the modules around each operator.
      names: the names of weights, by variable.
      types: the types of modules, by path.
    """

    chains: dict[Leaf, Chain]
    names: dict[Variable, str]
    types: dict[str, str]


def with_rounds(
    ops: Sequence[Op], chains: Mapping[Leaf, Chain], names: Mapping[Variable, str], types: Mapping[str, str]
) -> Rounds:
    """Return modules and names in which the rounds of each stack of layers are told apart.

    Args:
      ops: the operators, in the order of the file.
      chains: the modules around each, by identity.
      names: the names of the parameters, by variable.
      types: the types of modules, by path.
    """
    made = Rounds(dict(chains), dict(names), dict(types))
    rows = _rows(ops, names)
    inside: dict[str, list[Op]] = {}
    for op in ops:
        for path in chains[op]:
            inside.setdefault(path, []).append(op)
    done: set[str] = set()
    largest: dict[str, int] = {}
    for path, found in inside.items():
        for around in _around(path):
            largest[around] = max(largest.get(around, 0), len(found))
    for path in sorted(inside, key=len):
        # A module that only has another one with all of its operators: that one has the rounds.
        is_around_one = largest.get(path) == len(inside[path])
        if is_around_one or not done.isdisjoint((path, *_around(path))):
            continue
        numbers = _numbers(path, inside[path], rows, names)
        if numbers is not None:
            done.add(path)
            _number(path, inside[path], numbers, rows, made)
    return made


def _rows(ops: Sequence[Op], names: Mapping[Variable, str]) -> dict[Variable, tuple[str, int, int]]:
    """Return the stack that each weight is a row of, its place, and the number of rows."""
    stacks: dict[str, dict[int, Variable]] = {}
    for variable in dict.fromkeys(variable for op in ops for variable in op.inputs if variable in names):
        row = _ROW.fullmatch(names[variable])
        if row is not None:
            stacks.setdefault(row[1], {})[int(row[2])] = variable
    return {
        variable: (stem, number, len(found))
        for stem, found in stacks.items()
        if sorted(found) == list(range(len(found))) and len({variable.shape for variable in found.values()}) == 1
        for number, variable in found.items()
        if len(found) > 1
    }


def _around(path: str) -> Iterator[str]:
    """Yield the paths around another one."""
    return (path[: match.start()] for match in re.finditer(r"\.", path))


def _numbers(
    path: str, ops: Sequence[Op], rows: Mapping[Variable, tuple[str, int, int]], names: Mapping[Variable, str]
) -> list[int] | None:
    """Return the round of each operator of a module, if all of its weights are rows of stacks of one height."""
    read = [variable for op in ops for variable in op.inputs if variable in names]
    found = [rows.get(variable) for variable in read]
    stacks = [row for row in found if row is not None]
    if not stacks or len(stacks) != len(found) or len({count for _, _, count in stacks}) != 1:
        return None
    if not all(stem.startswith(f"{path}.") for stem, _, _ in stacks):
        return None
    order = [number for _, number, _ in stacks]
    if order not in (sorted(order), sorted(order, reverse=True)):
        return None
    firsts = {stem: variable for variable, (stem, number, _) in rows.items() if number == 0}
    alike = {variable: firsts[stem] for variable, (stem, _, _) in rows.items()}
    numbers = numbers_of_calls(ops, alike)
    if numbers is None or max(numbers) + 1 != stacks[0][2]:
        return None
    return numbers  # in the order in which they run, which is that of a list


def _number(
    path: str, ops: Sequence[Op], numbers: Sequence[int], rows: Mapping[Variable, tuple[str, int, int]], made: Rounds
) -> None:
    """Give the modules and weights of each round of a module paths of their own."""
    for op, number in zip(ops, numbers, strict=True):
        chain = made.chains[op]
        depth = chain.index(path)
        inner = [f"{path}.{number}{each.removeprefix(path)}" for each in chain[depth:]]
        made.chains[op] = (*chain[:depth], *inner)
        made.types.update((new, made.types.get(old, "")) for new, old in zip(inner, chain[depth:], strict=True))
        for variable in op.inputs:
            if variable in rows:
                stem, _, _ = rows[variable]
                made.names[variable] = f"{path}.{number}{stem.removeprefix(path)}"

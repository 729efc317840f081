"""Calls of the elements of a list that follow one another, as a loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxport.codegen.tree import Call, Item, Loop, Module
from jaxport.importer.recording import Variable

__all__ = ["with_loops"]

_ELEMENT = re.compile(r"(.+)[._](\d+)")


def element_of(path: str) -> tuple[str, int] | None:
    """The list that a module is an element of, and its position, if its path says so.

    >>> element_of("encoder.layers.11"), element_of("blocks_0"), element_of("head")
    (('encoder.layers', 11), ('blocks', 0), None)
    """
    found = _ELEMENT.fullmatch(path)
    return (found[1], int(found[2])) if found is not None else None


def with_loops(module: Module) -> Module:
    """The module, and all modules inside it, with loops in place of runs of calls."""
    items = [replace(item, module=with_loops(item.module)) if isinstance(item, Call) else item for item in module.items]
    uses = Counter(variable for item in items for variable in item.inputs)
    uses.update(module.outputs)
    done: list[Item] = []
    index = 0
    while index < len(items):
        run = _run(items[index:], uses)
        done.append(_loop(run) if len(run) > 1 else items[index])
        index += max(len(run), 1)
    return replace(module, items=tuple(done))


def _run(items: Sequence[Item], uses: Mapping[Variable, int]) -> list[Call]:
    """The calls that a loop can be made of, from the first item on."""
    run: list[Call] = []
    places: dict[int, int] | None = None
    for item in items:
        if not isinstance(item, Call) or element_of(item.module.path) is None:
            break
        if run:
            found = _following(run[-1], item, uses)
            if found is None or (places is not None and found != places):
                break
            places = found
        run.append(item)
    return run


def _following(before: Call, call: Call, uses: Mapping[Variable, int]) -> dict[int, int] | None:
    """Which inputs of a call are results of the one before; None if they are not two rounds of a loop."""
    first, second = element_of(before.module.path), element_of(call.module.path)
    if first is None or second is None or second != (first[0], first[1] + 1):
        return None
    if len(before.inputs) != len(call.inputs) or len(before.outputs) != len(call.outputs):
        return None
    results = {variable: place for place, variable in enumerate(before.outputs)}
    carried = {place: results[variable] for place, variable in enumerate(call.inputs) if variable in results}
    # Each result goes into the next call, in one place, and nowhere else.
    if sorted(carried.values()) != list(range(len(before.outputs))) or any(uses[v] != 1 for v in before.outputs):
        return None
    same = all(
        a is b for place, (a, b) in enumerate(zip(before.inputs, call.inputs, strict=True)) if place not in carried
    )
    return carried if same else None


def _loop(run: Sequence[Call]) -> Loop:
    results = {variable: place for place, variable in enumerate(run[0].outputs)}
    carried = {place: results[variable] for place, variable in enumerate(run[1].inputs) if variable in results}
    return Loop(tuple(run), carried, run[0].inputs, run[-1].outputs)

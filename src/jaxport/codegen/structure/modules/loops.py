"""Calls that follow one another, of the elements of a list or of one module, as a loop.

    x = self.layers[0](x, mask)
    x = self.layers[1](x, mask)      →      for layer in self.layers:
    x = self.layers[2](x, mask)                 x = layer(x, mask)

What each call reads of another array, a cache for each layer, is looped over beside the layers: `zip(self.layers, caches)`. What
each call returns beside the carried value is collected in a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxport.codegen.structure.modules.rounds import with_rounds
from jaxport.codegen.structure.modules.scopes import element_of
from jaxport.codegen.structure.modules.sequences import elements_of
from jaxport.codegen.tree import Call, Item, Loop, Module, Op
from jaxport.importer.values.recording import Variable

__all__ = ["with_loops"]


def with_loops(module: Module, known: dict[Module, Module] | None = None) -> Module:
    """Return the module, and all modules inside it, with loops in place of runs of calls."""
    known = {} if known is None else known
    if module not in known:
        known[module] = _with_loops(module, known)
    return known[module]


def _with_loops(module: Module, known: dict[Module, Module]) -> Module:
    items = [
        replace(item, module=with_loops(item.module, known)) if isinstance(item, Call) else item
        for item in module.items
    ]
    if elements_of(module) is not None:  # it is printed as a list already
        return replace(module, items=tuple(items))
    items = with_rounds(items, module.outputs)
    uses = Counter(variable for item in items for variable in item.inputs)
    uses.update(module.outputs)
    makers = {variable: item for item in items for variable in item.outputs}
    done: list[Item] = []
    index = 0
    while index < len(items):
        run = _Rounds(items, index)
        if len(run.calls) < 2:
            item = items[index]
            done += item.module.items if isinstance(item, Call) and item.module.inline else [item]
            index += 1
            continue
        done += [*run.before, _loop(run, uses, makers), *run.after]
        index = run.end
    return replace(module, items=tuple(done))


MOST_BETWEEN = 64
"""Operators between two calls of a loop at most."""


class _Rounds:
    """The calls that a loop can be made of, from an item on.

    Attributes:
      calls: the calls, each with a result of the one before.
      carried: which inputs of a call are results of the one before.
      before: items between calls that do not depend on the calls.
      after: items between calls that depend on them, and that no later call needs.
      end: the place of the first item behind.
    """

    def __init__(self, items: Sequence[Item], begin: int):
        self.calls: list[Call] = []
        self.carried: dict[int, int] = {}
        self.before: list[Item] = []
        self.after: list[Item] = []
        self.end = begin + 1
        first = items[begin]
        if not isinstance(first, Call):
            return
        self.calls.append(first)
        made = set(first.outputs)
        between: list[Item] = []
        for place, item in enumerate(items[begin + 1 :], begin + 1):
            if isinstance(item, Call) and _is_next(self.calls[-1], item):
                carried = _carried(self.calls[-1], item)
                others = {variable for at, variable in enumerate(item.inputs) if at not in carried}
                if not carried or (self.carried and carried != self.carried) or not made.isdisjoint(others):
                    return
                for other in between:
                    (self.after if not made.isdisjoint(other.inputs) else self.before).append(other)
                self.calls.append(item)
                self.carried, self.end, between = carried, place + 1, []
                made |= set(item.outputs)
                continue
            between.append(item)
            if len(between) > MOST_BETWEEN:
                return
            if not made.isdisjoint(item.inputs):
                made |= set(item.outputs)


def _is_next(before: Call, call: Call) -> bool:
    """Whether a call is one of the same module, or of the one that follows in a list."""
    if len(before.inputs) != len(call.inputs) or len(before.outputs) != len(call.outputs):
        return False
    if before.module.inline is not call.module.inline:  # an element behind rounds of others is no round
        return False
    first, second = element_of(before.module.path), element_of(call.module.path)
    return call.module is before.module or (
        first is not None and second is not None and second == (first[0], first[1] + 1)
    )


def _carried(before: Call, call: Call) -> dict[int, int]:
    """Return which inputs of a call are results of the one before; none if one is several inputs."""
    results = {variable: place for place, variable in enumerate(before.outputs)}
    carried = {place: results[variable] for place, variable in enumerate(call.inputs) if variable in results}
    return carried if len({*carried.values()}) == len(carried) else {}


def _loop(run: _Rounds, uses: Mapping[Variable, int], makers: Mapping[Variable, Item]) -> Loop:
    rows: dict[int, Variable | tuple[Variable, ...]] = {}
    for place in range(len(run.calls[0].inputs)):
        values = tuple(call.inputs[place] for call in run.calls)
        if place not in run.carried and any(value is not values[0] for value in values):
            rows[place] = _array_of(values, makers) or values
    passed = {*run.carried.values()}
    collected = []
    for place in range(len(run.calls[0].outputs)):
        read = [uses[call.outputs[place]] - (place in passed) for call in run.calls[:-1]]
        if any(read) or (place not in passed and uses[run.calls[-1].outputs[place]]):
            collected.append(place)
    return Loop(tuple(run.calls), run.carried, rows, tuple(collected))


def _array_of(values: Sequence[Variable], makers: Mapping[Variable, Item]) -> Variable | None:
    """Return the array whose parts along the first axis values are, all of them in order."""
    arrays: list[Variable] = []
    for place, value in enumerate(values):
        item = makers.get(value)
        if not isinstance(item, Op) or item.step.form != "index" or len(item.step.args) != 2:
            return None
        array, index = item.step.args
        if not isinstance(array, Variable) or index not in (place, (place,)) or isinstance(index, bool):
            return None
        arrays.append(array)
    first = arrays[0]
    return first if all(array is first for array in arrays) and first.shape[0] == len(values) else None

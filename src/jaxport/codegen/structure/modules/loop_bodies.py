"""Rounds: elements of a list with operators between them, alike again and again, as modules that only a loop calls.

`for layer in self.layers: x = nn.relu(layer(x))` is one round for each element. A round begins with an element, and has
all that depends on the rounds so far; what does not is computed before.

    x = self.layers[0](x)           class Round:                         for round in rounds:
    x = nn.relu(x)                      x = self.layer(x)                    x = round(x)
    x = self.layers[1](x)       →       return nn.relu(x)           →
    x = nn.relu(x)

The class is never printed: `loops` makes the loop of the calls, and the printer writes the body of a round into it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, pairwise

import numpy as np

from jaxport.codegen.structure.modules.repeats import ModuleMatch
from jaxport.codegen.structure.modules.scopes import element_of
from jaxport.codegen.tree import Call, Item, Layer, Module
from jaxport.importer.values.recording import Variable

LONGEST = 64
"""Items of a round at most."""


def with_rounds(items: Sequence[Item], results: Collection[Variable]) -> list[Item]:
    """Return the items with a call of a module of its own in place of each round, if there are several.

    Args:
      items: the items of a module, each behind those that make its operands.
      results: the values that the module returns.
    """
    done: list[Item] = []
    places: dict[tuple[str, int], list[int]] = {}
    for place, element in enumerate(map(_element, items)):
        if element is not None:
            places.setdefault(element, []).append(place)
    begin = 0
    while begin < len(items):
        run = _RoundRun(items, begin, places)
        if len(run.rounds) < 2:
            done.append(items[begin])
            begin += 1
        else:
            done += [*run.before, *run.calls(results)]
            begin = run.end
    return done


def _element(item: Item) -> tuple[str, int] | None:
    """Return the list that an item is a call of an element of, and the element's position."""
    if isinstance(item, Layer):
        element = element_of(item.label)
        return element if element is not None and item.label == f"{element[0]}.{element[1]}" else None
    return element_of(item.module.path) if isinstance(item, Call) else None


def _next(places: Mapping[tuple[str, int], Sequence[int]], element: tuple[str, int], behind: int) -> int | None:
    """Return the first place of an element of a list behind another place."""
    found = places.get(element, ())
    at = bisect_right(found, behind)
    return found[at] if at < len(found) else None


def _anchors(places: Mapping[tuple[str, int], Sequence[int]], first: tuple[str, int], begin: int) -> Iterator[int]:
    """Yield the place of an element of a list, and of each that follows it in the list and in the items."""
    place: int | None = begin
    for number in count(first[1] + 1):
        if place is None:
            return
        yield place
        place = _next(places, (first[0], number), place)


class _RoundRun:
    """The rounds that begin with an item, the element of a list, and with the elements that follow it.

    Attributes:
      items: all items.
      before: those among the rounds that do not depend on them.
      rounds: the items of each round.
      names: the values of each round by those of the second.
      end: the place of the first item behind.
    """

    def __init__(self, items: Sequence[Item], begin: int, places: Mapping[tuple[str, int], Sequence[int]]):
        self.items = items
        self.before: list[Item] = []
        self.rounds: list[list[Item]] = []
        self.names: list[dict[Variable, Variable]] = []
        self.end = begin + 1
        first = _element(items[begin])
        if first is not None and _next(places, (first[0], first[1] + 1), begin) is not None:
            self._collect(_anchors(places, first, begin))

    def _collect(self, anchors: Iterable[int]) -> None:
        made: set[Variable] = set()
        length, independent = 0, []
        for low, high in pairwise(chain(anchors, [len(self.items)])):
            members, others, end = [], [], low
            for place in range(low, high):
                item = self.items[place]
                if place > low and made.isdisjoint(item.inputs):
                    others.append((place, item))
                elif not self.rounds or len(members) < length:
                    members.append(item)
                    made |= {*item.outputs}
                    end = place + 1
                else:
                    break
            if not self.rounds:
                length = len(members)
                if length > LONGEST or (length == 1 and isinstance(members[0], Call)):
                    return
            elif len(members) < length or not self._matches(members):
                return
            self.rounds.append(members)
            independent += [item for place, item in others if place < end]
            self.before, self.end = list(independent), end
            if any(not made.isdisjoint(item.inputs) for item in self.items[end:high]):
                return
            independent += self.items[end:high]

    def _matches(self, members: Sequence[Item]) -> bool:
        """Whether a round does the same as the others: all are compared with the second."""
        if len(self.rounds) == 1:
            own, first = Alike(0), Alike(-1)
            if not own.all(members, members) or not first.all(members, self.rounds[0]):
                return False
            self.names = [first.names, own.names]
            return True
        match = Alike(len(self.rounds) - 1)
        same = match.all(self.rounds[1], members)
        self.names += [match.names] if same else []
        return same

    def calls(self, results: Collection[Variable]) -> list[Call]:
        """Return the rounds as calls: their inputs are the values from outside, their outputs those that others
        read.
        """
        own = [{variable for item in members for variable in item.outputs} for members in self.rounds]
        read = [variable for item in self.rounds[1] for variable in item.inputs]
        inputs = dict.fromkeys(variable for variable in read if variable not in own[1])
        used: set[Variable] = {*results}
        inside = {item: number for number, members in enumerate(self.rounds) for item in members}
        for item in self.items:
            number = inside.get(item)
            used |= {variable for variable in item.inputs if number is None or variable not in own[number]}
        made = [variable for item in self.rounds[1] for variable in item.outputs]
        outputs = [variable for variable in made if any(names[variable] in used for names in self.names)]
        calls = []
        for members, names in zip(self.rounds, self.names, strict=True):
            element = _element(members[0])
            assert element is not None
            taken, returned = (tuple(names[variable] for variable in values) for values in (inputs, outputs))
            path = f"{element[0]}.{element[1]}"
            calls.append(Call(Module(path, "", tuple(members), taken, returned, inline=True), taken, returned))
        return calls


class Alike(ModuleMatch):
    """Says whether a round does the same as another: with the elements that are `distance` further in their lists."""

    def __init__(self, distance: int) -> None:
        super().__init__(())
        self.distance = distance

    def all(self, first: Sequence[Item], second: Sequence[Item]) -> bool:
        """Whether all items are alike, in their order."""
        return len(first) == len(second) and all(map(self.items, first, second))

    def items(self, first: Item, second: Item) -> bool:
        if isinstance(first, Call) and isinstance(second, Call):
            return self._are_elements(first, second, first.module is second.module) and self._values(first, second)
        return super().items(first, second)

    def layers(self, first: Layer, second: Layer) -> bool:
        if first.kind != second.kind or "carry" in first.config or "carry" in second.config:
            return False
        return self._are_elements(first, second, first.weights is second.weights) and self._values(first, second)

    def variables(self, first: Variable, second: Variable) -> bool:
        return np.dtype(first.dtype) == second.dtype and self.names.setdefault(first, second) is second

    def _values(self, first: Call | Layer, second: Call | Layer) -> bool:
        pairs = [(first.inputs, second.inputs), (first.outputs, second.outputs)]
        return all(len(one) == len(other) and all(map(self.variables, one, other)) for one, other in pairs)

    def _are_elements(self, first: Item, second: Item, are_one: bool) -> bool:
        one, other = _element(first), _element(second)
        if one is None or other is None:
            return are_one
        return other == (one[0], one[1] + self.distance)

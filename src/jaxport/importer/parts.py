"""Parts of a graph, each in one piece: which of them need each other, and an order of those that do not."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Set
from typing import TypeVar

Part = TypeVar("Part", bound=Hashable)


def cycles(needed: Mapping[Part, Set[Part]]) -> list[list[Part]]:
    """Return the groups of parts that need each other, so that no order of them exists.

    Args:
      needed: the parts that each part needs, without itself.

    >>> cycles({"a": {"b"}, "b": {"a", "c"}, "c": set()})
    [['b', 'a']]
    """
    return [component for component in _components(needed) if len(component) > 1]


def in_order(needed: Mapping[Part, Set[Part]], first: Mapping[Part, int]) -> list[Part]:
    """Return the parts in topological order, and where that leaves a choice, by their first place.

    Args:
      needed: the parts that each part needs, without itself; there is no cycle.
      first: the place of each part in the file.

    >>> in_order({"a": {"c"}, "b": set(), "c": set()}, {"a": 0, "b": 1, "c": 2})
    ['b', 'c', 'a']
    """
    waiting = {part: len(before) for part, before in needed.items()}
    after: dict[Part, list[Part]] = {}
    for part, before in needed.items():
        for other in before:
            after.setdefault(other, []).append(part)
    parts = dict(enumerate(needed))
    number = {part: key for key, part in parts.items()}
    ready = [(first[part], number[part]) for part, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    done: list[Part] = []
    while ready:
        part = parts[heapq.heappop(ready)[1]]
        done.append(part)
        for other in after.get(part, ()):
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, (first[other], number[other]))
    assert len(done) == len(parts)
    return done


def _components(needed: Mapping[Part, Set[Part]]) -> list[list[Part]]:
    """Return the strongly connected components of a graph (Tarjan's algorithm, without recursion)."""
    index: dict[Part, int] = {}
    low: dict[Part, int] = {}
    stack: list[Part] = []
    on_stack: set[Part] = set()
    components: list[list[Part]] = []
    for root in needed:
        if root in index:
            continue
        work = [(root, iter(needed[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            part, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[part])
                if low[part] == index[part]:
                    component = []
                    while True:
                        top = stack.pop()
                        on_stack.discard(top)
                        component.append(top)
                        if top is part or top == part:
                            break
                    components.append(component)
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(needed[following])))
            elif following in on_stack:
                low[part] = min(low[part], index[following])
    return components

"""Repeated blocks of a file that does not name its modules: the longest runs in which the same follows again and again.

A run only decides which operators are a module. If its calls are alike, and may be a loop, is decided later, where modules
are closed and classes are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxport.codegen.structure.loops import element_of
from jaxport.codegen.structure.scopes import Chain, called
from jaxport.codegen.tree import Layer, Leaf
from jaxport.importer.names import unique
from jaxport.importer.recording import Variable

__all__ = ["mine"]

FEWEST_LAYERS = 2
"""Layers with weights that a block has at least."""
NORMS = frozenset({"LayerNorm", "RMSNorm", "BatchNorm"})


def mine(
    leaves: Sequence[Leaf], chains: dict[int, Chain], results: Sequence[Variable], weights: Sequence[Variable]
) -> dict[str, str]:
    """Puts repeated blocks into modules `layers.0`, `layers.1` …, where the file has no such modules.

    Args:
      leaves: the layers and operators, in the order of the file.
      chains: the modules around each, by identity; changed.
      results: the values that the model returns.
      weights: the variables that stand for tensors.

    Returns:
      The types of the new modules, by path.
    """
    if any(element_of(path) or path != called(path) for chain in chains.values() for path in chain):
        return {}
    sequence = _sequence(leaves, frozenset(weights))
    tokens = _tokens(sequence, frozenset(weights))
    types: dict[str, str] = {}
    names: set[str] = set()
    for run in sorted(_runs(sequence, tokens, 0, len(sequence)), key=lambda run: run.begin):
        begin = run.begin + _phase(sequence, run, results)
        rounds = (run.end - begin) // run.period
        if rounds < 2:
            continue
        stem = unique("layers", names)
        names.add(stem)
        for place in range(rounds):
            path = f"{stem}.{place}"
            types[path] = "Block"
            for leaf in sequence[begin + place * run.period : begin + (place + 1) * run.period]:
                chains[id(leaf)] = (path, *chains[id(leaf)])
    return types


@dataclass(frozen=True)
class _Repeats:
    """A part of a sequence in which the same `period` leaves follow again and again."""

    begin: int
    end: int
    period: int


def _sequence(leaves: Sequence[Leaf], weights: frozenset[Variable]) -> list[Leaf]:
    """Return the leaves that are, or depend on, a layer: a mask, for example, belongs to no block."""
    deep: set[Variable] = set()
    kept: list[Leaf] = []
    for leaf in leaves:
        if isinstance(leaf, Layer) or not deep.isdisjoint(leaf.inputs) or not weights.isdisjoint(leaf.inputs):
            kept.append(leaf)
            deep |= set(leaf.outputs)
    return kept


def _tokens(sequence: Sequence[Leaf], weights: frozenset[Variable]) -> np.ndarray:
    """A number for each leaf: the same for those that do the same, whatever their sizes are."""
    numbers: dict[object, int] = {}
    keys = []
    for leaf in sequence:
        if isinstance(leaf, Layer):
            key: object = (leaf.kind, *sorted(leaf.weights))
        else:
            key = (leaf.step.form, leaf.step.name, len(leaf.inputs), sum(v in weights for v in leaf.inputs))
        keys.append(numbers.setdefault(key, len(numbers)))
    return np.array(keys, np.int64)


def _runs(sequence: Sequence[Leaf], tokens: np.ndarray, begin: int, end: int) -> list[_Repeats]:
    """The runs of a part of the sequence that do not overlap, those first that cover most of it."""
    found: list[_Repeats] = []
    pending = [(begin, end)]
    while pending:
        begin, end = pending.pop()
        best = _longest(sequence, tokens, begin, end)
        if best is not None:
            found.append(best)
            pending += [(begin, best.begin), (best.end, end)]
    return found


def _longest(sequence: Sequence[Leaf], tokens: np.ndarray, begin: int, end: int) -> _Repeats | None:
    """The run that covers most leaves; of several the one of the shortest period."""
    part = tokens[begin:end]
    best, covered = None, 0
    layers = np.cumsum([0, *(_is_heavy(leaf) for leaf in sequence[begin:end])])
    for period in range(FEWEST_LAYERS, len(part) // 2 + 1):
        same = np.concatenate([[False], part[:-period] == part[period:], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        starts, stops = edges[::2], edges[1::2]
        lengths = stops - starts
        for at in np.argsort(lengths)[::-1][:1]:
            rounds = int(lengths[at]) // period + 1
            first = int(starts[at])
            if rounds < 2 or rounds * period <= covered:
                continue
            if layers[first + period] - layers[first] >= FEWEST_LAYERS:
                best, covered = (
                    _Repeats(begin + first, begin + first + int(lengths[at]) + period, period),
                    rounds * period,
                )
    return best


def _is_heavy(leaf: Leaf) -> bool:
    return isinstance(leaf, Layer) and leaf.kind not in NORMS


def _phase(sequence: Sequence[Leaf], run: _Repeats, results: Sequence[Variable]) -> int:
    """Where a round begins best: where the fewest values go from one round to the next.

    A normalization belongs to the block before it, if only its result goes on.
    """
    made = {v: at for at in range(run.begin, run.end) for v in sequence[at].outputs}
    last = dict.fromkeys(results, len(sequence))
    for at, leaf in enumerate(sequence):
        for variable in leaf.inputs:
            last[variable] = max(at, last.get(variable, 0))
    crossing = []
    for phase in range(run.period):
        cut = run.begin + phase + run.period
        crossing.append(sum(place < cut <= last.get(variable, -1) for variable, place in made.items()))
    candidates = range(min(run.period, run.end - run.begin - 2 * run.period + 1))
    fewest = min(crossing[phase] for phase in candidates)
    best = next(phase for phase in candidates if crossing[phase] == fewest)
    while best + 1 in candidates and crossing[best + 1] == fewest and _is_norm(sequence[run.begin + best]):
        best += 1
    return best


def _is_norm(leaf: Leaf) -> bool:
    return isinstance(leaf, Layer) and leaf.kind in NORMS

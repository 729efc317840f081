"""Repeated blocks of a file that does not name its modules: the longest runs in which the same follows again and again.

A run only decides which operators are a module. If its calls are alike, and may be a loop, is decided later, where
modules are closed and classes are made.

    linear relu linear relu linear relu softmax   →   layers.0(linear relu) layers.1(…) layers.2(…) softmax
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxport.codegen.structure.modules.scopes import element_of, places_of
from jaxport.codegen.tree import Layer, Leaf, Op
from jaxport.importer.calls import Chain, called, common
from jaxport.importer.names import unique
from jaxport.importer.values.recording import Variable

FEWEST_LAYERS = 2
"""Layers with weights that a block has at least."""
NORMS = frozenset({"LayerNorm", "RMSNorm", "BatchNorm"})
_COUNTED = re.compile(
    r"(?i)(depthwise_|separable_)?(conv|batch_?norm(alization)?|layer_?norm(alization)?|linear|dense|fc|embedding)"
    r"(\dd)?(_transpose)?_\d+"
)
"""The names of layers that frameworks count through the whole model: `conv2d_31` is no element of a list."""


def mine(
    leaves: Sequence[Leaf],
    chains: dict[Leaf, Chain],
    weights: Sequence[Variable],
    around_node: Callable[[Leaf], Chain],
) -> dict[str, str]:
    """Put repeated blocks into modules `layers.0`, `layers.1` …, if the file has no such modules.

    Args:
      leaves: the layers and operators, in the order of the file.
      chains: the modules around each, by identity; changed.
      weights: the variables that stand for tensors.
      around_node: returns the modules that the file names around the node of a leaf; the names of weights may tell
        more.

    Returns:
      The types of the new modules, by path.
    """
    counted = {key for key, path in places_of(leaves, chains).items() if _COUNTED.fullmatch(path.rpartition(".")[2])}
    named = {key: chain[:-1] if key in counted else chain for key, chain in chains.items()}
    if any(element_of(path) or path != called(path) for chain in named.values() for path in chain):
        return {}
    mining = _Mining(_sequence(leaves, frozenset(weights)), frozenset(weights))
    types: dict[str, str] = {}
    names: set[str] = set()
    for run in sorted(mining.runs(), key=lambda run: run.begin):
        inside = mining.sequence[run.begin : run.end]
        around = common(named[leaf] for leaf in inside)
        if any(isinstance(leaf, Layer) and len(around_node(leaf)) > len(around) + 1 for leaf in inside):
            continue  # the file names the modules around these layers
        rounds = [inside[begin : begin + run.period] for begin in range(0, len(inside), run.period)]
        stack = _stack(rounds, named, around)
        stem = unique(stack[-1] if stack else ".".join((*around[-1:], "layers")), names)
        single = all(sum(isinstance(leaf, Layer) for leaf in one) == 1 for one in rounds)
        if mining.layers_in(run) < FEWEST_LAYERS and any(len(named[leaf]) > len(around) for leaf in inside):
            continue  # the author has named each of these layers
        names.add(stem)
        for place, leaves_of_round in enumerate(rounds):
            path = f"{stem}.{place}"
            if single:  # elements of a list, and what is computed between them stays around it
                chains |= {leaf: (*around, path) for leaf in leaves_of_round if isinstance(leaf, Layer)}
                continue
            types[path] = "Block" if mining.layers_in(run) >= FEWEST_LAYERS else ""
            for leaf in leaves_of_round:
                chain = named[leaf]
                if stack and chain[: len(stack)] == stack:
                    chain = (*around, *(f"{path}{one.removeprefix(stack[-1])}" for one in chain[len(stack) :]))
                chains[leaf] = (*around, path, *chain[len(around) :])
    return types


def _stack(rounds: Sequence[Sequence[Leaf]], chains: Mapping[Leaf, Chain], around: Chain) -> Chain:
    """Return the module that the weights of all rounds are named after; empty if there is none.

    Slices of stacked weights have the names of the stack: the blocks are its elements.
    """
    named = [[chains[leaf] for leaf in one if isinstance(leaf, Layer)] for one in rounds]
    stack = common(chain for chain in named[0])[: len(around) + 1]
    return stack if len(stack) > len(around) and all(one == named[0] for one in named) else ()


@dataclass(frozen=True)
class _Repeats:
    """Rounds of the same `period` leaves, one after another, and how many values go from one round to the next."""

    begin: int
    period: int
    rounds: int
    crossing: int

    @property
    def end(self) -> int:
        return self.begin + self.rounds * self.period


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
    """Return a number for each leaf: the same for those that do the same, whatever their sizes are."""
    numbers: dict[object, int] = {}
    keys = []
    for leaf in sequence:
        if isinstance(leaf, Layer):
            is_grouped = leaf.config.get("feature_group_count", 1) > 1
            key: object = (leaf.kind, *sorted(leaf.weights), is_grouped, {*leaf.config.get("kernel_size", ())} == {1})
        else:
            key = (leaf.step.form, leaf.step.name, len(leaf.inputs), sum(v in weights for v in leaf.inputs))
        keys.append(numbers.setdefault(key, len(numbers)))
    return np.array(keys, np.int64)


class _Mining:
    """Looks for runs in a sequence of leaves.

    Attributes:
      sequence: the leaves.
      tokens: a number for each: the same for those that do the same.
      made: the places at which values are made.
      last: the places at which these values are read last; where they are made, if none reads them.
    """

    def __init__(self, sequence: Sequence[Leaf], weights: frozenset[Variable]):
        self.sequence = sequence
        self.tokens = _tokens(sequence, weights)
        made = {variable: at for at, leaf in enumerate(sequence) for variable in leaf.outputs}
        last = {variable: at for at, leaf in enumerate(sequence) for variable in leaf.inputs}
        self.made = np.array([*made.values()], np.int64)
        self.last = np.array([last.get(variable, at) for variable, at in made.items()], np.int64)

    def layers_in(self, run: _Repeats) -> int:
        """Return the number of layers in one round, apart from normalizations."""
        return sum(map(_is_heavy, self.sequence[run.begin : run.begin + run.period]))

    def runs(self) -> list[_Repeats]:
        """Return the runs that do not overlap, the best first."""
        runs_so_far: list[_Repeats] = []
        pending = [(0, len(self.sequence))]
        while pending:
            begin, end = pending.pop()
            best = self._best(begin, end)
            if best is not None:
                runs_so_far.append(best)
                pending += [(begin, best.begin), (best.end, end)]
        return runs_so_far

    def _best(self, begin: int, end: int) -> _Repeats | None:
        """Return the run that covers most leaves for each value that goes from round to round."""
        part = self.tokens[begin:end]
        layers = np.cumsum([0, *(_is_heavy(leaf) for leaf in self.sequence[begin:end])])
        best: _Repeats | None = None
        for period in range(FEWEST_LAYERS, len(part) // 2 + 1):
            same = np.concatenate([[False], part[:-period] == part[period:], [False]])
            edges = np.flatnonzero(same[1:] != same[:-1])
            starts, stops = edges[::2], edges[1::2]
            if not len(starts):
                continue
            at = int(np.argmax(stops - starts))
            first, length = int(starts[at]), int(stops[at] - starts[at]) + period
            if length < 2 * period or layers[first + period] - layers[first] < FEWEST_LAYERS:
                continue
            run = self._in_phase(begin + first, length, period)
            if best is None or run.rounds * period * best.crossing > best.rounds * best.period * run.crossing:
                best = run
        return None if best is None else self._divided(best, begin, end)

    def _divided(self, run: _Repeats, begin: int, end: int) -> _Repeats:
        """Return a run whose rounds are themselves rounds of one layer each, as those: four layers, not two pairs."""
        inside = self.tokens[run.begin : run.end]
        periods = [period for period in range(1, run.period) if run.period % period == 0]
        period = next((p for p in periods if np.array_equal(inside[p:], inside[:-p])), run.period)
        if period == run.period:
            return run
        first, last = run.begin, run.end
        while first - period >= begin and np.array_equal(self.tokens[first - period : first], inside[:period]):
            first -= period
        while last + period <= end and np.array_equal(self.tokens[last : last + period], inside[:period]):
            last += period
        return _Repeats(first, period, (last - first) // period, run.crossing)

    def _in_phase(self, begin: int, length: int, period: int) -> _Repeats:
        """Return the rounds from where the fewest values go from one to the next.

        A normalization and an activation belong to the block before them, if only their result goes on.
        """
        counts = self._crossing(period)[begin + period :]
        crossing = counts[: min(period, length - 2 * period + 1)].tolist()
        fewest = min(crossing)
        best = crossing.index(fewest)
        while best + 1 < len(crossing) and crossing[best + 1] == fewest and _ends(self.sequence[begin + best]):
            best += 1
        return _Repeats(begin + best, period, (length - best) // period, max(fewest, 1))

    def _crossing(self, period: int) -> np.ndarray:
        """Return how many values, made in the `period` leaves before each place, are read from there on."""
        until = np.minimum(self.last, self.made + period)
        size = len(self.sequence) + period + 2
        return np.cumsum(np.bincount(self.made + 1, minlength=size) - np.bincount(until + 1, minlength=size))


def _is_heavy(leaf: Leaf) -> bool:
    return isinstance(leaf, Layer) and leaf.kind not in NORMS


def _ends(leaf: Leaf) -> bool:
    """Whether a leaf belongs to the block of what is before it."""
    return is_activation(leaf) or (isinstance(leaf, Layer) and leaf.kind in NORMS)


def is_activation(leaf: Leaf) -> bool:
    """Whether a leaf is an activation of one value."""
    return isinstance(leaf, Op) and leaf.step.name.startswith("nn.") and len(leaf.inputs) == 1

"""Calls of modules told apart: exporters number further calls in names, or write all calls under one name.

    /layer/fc/MatMul   /layer/Relu    /layer/fc_1/MatMul   /layer_1/Relu       PyTorch's older exporter
    layer.fc           layer          layer.fc             layer               its newer one

are two calls of `layer`, each with one of `layer.fc`. What tells calls apart are the weights: a call reads those of the
first, in its order.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

Chain = tuple[str, ...]
"""The paths of the modules around something, from the outside in."""


@dataclass(frozen=True, slots=True)
class PlacedOperation:
    """An operation, as far as it tells calls of modules apart.

    Attributes:
      chain: the modules around it.
      kind: what it computes.
      reads: the weights that it reads, in order.
    """

    chain: Chain
    kind: Hashable
    reads: tuple[Hashable, ...] = ()


def called(path: str) -> str:
    """Return the module that a path is a call of: further calls of a module are numbered.

    >>> called("encoder@1.layers.0@2")
    'encoder.layers.0'
    """
    return re.sub(r"@\d+", "", path)


def common(chains: Iterable[Chain]) -> Chain:
    """Return the modules that all chains have around them.

    >>> common([("a", "a.b"), ("a", "a.c")])
    ('a',)
    """
    first, *rest = list(chains) or [()]
    for chain in rest:
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, chain, strict=False))
        first = tuple(path for path, _ in pairs)
    return first


def unnumbered_paths(
    operations: Sequence[PlacedOperation],
    owners: Collection[str] = (),
    counts_calls: Callable[[str], bool] = lambda _: False,
) -> dict[str, str]:
    """Return the paths of modules without the numbers of calls, `layer` for `layer_1`, by the paths with them.

    A module whose name has a number is another call of the one without it if it reads its weights and no others.

    Args:
      operations: the operations of a model.
      owners: the paths that weights are named by: these are modules of their own, whatever they read.
      counts_calls: whether an exporter that numbers the calls of each module has named a path. There modules without
        weights, too, are calls of one if they compute the same, and a call may use a part of the weights.

    >>> operations = [PlacedOperation(("fc",), "MatMul", ("w",)), PlacedOperation(("fc_1",), "MatMul", ("w",))]
    >>> unnumbered_paths(operations), unnumbered_paths(operations, owners=["fc_1"])
    ({'fc': 'fc', 'fc_1': 'fc'}, {'fc': 'fc', 'fc_1': 'fc_1'})
    """
    read: dict[str, set[Hashable]] = {}
    kinds: dict[str, list[Hashable]] = {}
    for operation in operations:
        for path in operation.chain:
            read.setdefault(path, set()).update(operation.reads)
            kinds.setdefault(path, []).append(operation.kind)
    every = Counter(weight for operation in operations for weight in operation.reads)
    owned = {path[:end] for path in owners for end in (*(dot.start() for dot in re.finditer(r"\.", path)), len(path))}

    def is_call(path: str, base: str) -> bool:
        if base == path or base not in read or path in owned:
            return False
        own, of_base = read.get(path, set()), read[base]
        if not of_base:
            return not own and counts_calls(path) and kinds.get(path) == kinds[base]
        again = all(every[weight] > 1 for weight in of_base) or (bool(own) and counts_calls(path))
        return again and own <= of_base

    def plain(path: str) -> str:
        parts: list[str] = []
        for part in path.split("."):
            whole = ".".join([*parts, part])
            base = re.sub(r"_\d+$", "", whole)
            parts.append(base.rpartition(".")[2] if is_call(whole, base) else part)
        return ".".join(parts)

    return {path: plain(path) for path in read}


def listed_paths(paths: Collection[str]) -> dict[str, str]:
    """Return paths as PyTorch's older exporter means them: it repeats the name of a list before its elements.

    >>> listed_paths(["net", "net.net.0", "net.net.0.net.0.1", "net.net.0.net.0.1.fc"])
    {'net': 'net', 'net.net.0': 'net.0', 'net.net.0.net.0.1': 'net.0.1', 'net.net.0.net.0.1.fc': 'net.0.1.fc'}
    """
    plain: dict[str, str] = {}
    names: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        around = path
        while around not in plain and around:
            around = around.rpartition(".")[0]
        name = path[len(around) + 1 :] if around else path
        list_name = re.sub(r"_\d+$", "", names.get(around, ""))
        is_element = list_name and re.fullmatch(rf"{re.escape(list_name)}\.\d+(_\d+)?", name)
        inner = name[len(list_name) + 1 :] if is_element else name
        plain[path], names[path] = ".".join(filter(None, (plain.get(around, ""), inner))), name
    return plain if len({*plain.values()}) == len(plain) else {path: path for path in plain}


def separated(
    operations: Sequence[PlacedOperation], kept: Collection[str] = (), ranks: Sequence[int] | None = None
) -> tuple[list[Chain], set[str]]:
    """Return the modules around each operation, with a path for each call of a module, and the modules called so.

    Args:
      operations: the operations, in the order of the file.
      kept: the paths of modules that are left as they are.
      ranks: another order of the operations, for modules whose calls the file interleaves.

    >>> layer = [PlacedOperation(("layer",), "MatMul", ("w",)), PlacedOperation(("layer",), "Relu")]
    >>> separated([*layer, *layer])
    ([('layer',), ('layer',), ('layer@1',), ('layer@1',)], {'layer'})
    """
    separate = [operation.chain for operation in operations]
    repeated: set[str] = set()

    def visit(inside: Sequence[int], depth: int) -> None:
        parts: dict[str, list[int]] = {}
        for at in inside:
            if len(separate[at]) > depth:
                parts.setdefault(separate[at][depth], []).append(at)
        for path, part in parts.items():
            numbers = None if called(path) in kept else _numbers(part, depth)
            repeated.update([called(path)] if numbers else [])
            calls: dict[int, list[int]] = {}
            for at, number in zip(part, numbers or [0] * len(part), strict=True):
                calls.setdefault(number, []).append(at)
                if number:
                    chain = separate[at]
                    inner = (f"{path}@{number}{each.removeprefix(path)}" for each in chain[depth:])
                    separate[at] = (*chain[:depth], *inner)
            for number in sorted(calls):
                visit(calls[number], depth + 1)

    def _numbers(part: Sequence[int], depth: int) -> list[int] | None:
        def among(order: Sequence[int]) -> list[int] | None:
            below = [operations[at].chain[depth + 1 :] for at in order]
            return call_numbers(
                [(operations[at].kind, operations[at].reads, chain) for at, chain in zip(order, below, strict=True)]
            )

        numbers = among(part)
        if numbers is not None or ranks is None:
            return numbers
        order = sorted(part, key=ranks.__getitem__)
        other = among(order)
        found = None if other is None else dict(zip(order, other, strict=True))
        return None if found is None else [found[at] for at in part]

    visit(range(len(operations)), 0)
    return separate, repeated


def call_numbers(operations: Sequence[tuple[Hashable, Sequence[Hashable], Chain]]) -> list[int] | None:
    """Return the call that each operation of a module belongs to; None if it is called once, or that cannot be told.

    Args:
      operations: of each operation of the module, in the order of the file, what it computes, the weights that it
        reads, and the modules around it inside of this one.

    >>> call_numbers([("MatMul", ["w"], ()), ("Relu", [], ()), ("MatMul", ["w"], ()), ("Relu", [], ())])
    [0, 0, 1, 1]
    """
    reads = [(at, (below, weight)) for at, (_, weights, below) in enumerate(operations) for weight in weights]
    most = math.gcd(*Counter(read for _, read in reads).values())
    # A call may read a weight often.
    periods = [len(reads) // calls for calls in range(most, 1, -1) if most % calls == 0]
    period = next((p for p in periods if all(v == reads[at % p][1] for at, (_, v) in enumerate(reads))), None)
    if period is None:
        return None
    kinds = [kind for kind, _, _ in operations]
    spans = [(reads[at][0], reads[at + period - 1][0]) for at in range(0, len(reads), period)]
    head, tail = kinds[: spans[0][0]], kinds[spans[-1][1] + 1 :]
    cuts = []
    for (_, last), (first, _) in pairwise(spans):
        between = kinds[last + 1 : first]
        if first <= last:
            return None
        if between[: len(tail)] == tail:
            cuts.append(last + 1 + len(tail))
        elif head and between[-len(head) :] == head:
            cuts.append(first - len(head))
        else:
            return None
    return [sum(cut <= at for cut in cuts) for at in range(len(operations))]

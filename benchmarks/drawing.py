"""Draw an exported graph as a small SVG: a box per module, from the top down, and arrows for the data between them.

The nodes of a graph are in an order in which they can run. Neighbours of one module are one box, so that arrows only lead
down; like modules that follow each other are one box too.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import onnx_ir as ir

__all__ = ["Box", "boxes", "picture", "scope"]

WIDTH, HEIGHT, LOW, GAP, LANE, MOST_LANES = 264, 40, 24, 16, 10, 7
#: More boxes than these are not made by looking into modules.
MOST = 11


@dataclass
class Box:
    """Some modules that are alike and follow each other, or the operators between modules."""

    path: str
    kind: str
    nodes: list[ir.Node] = field(default_factory=list)
    last: str = ""
    times: int = 1

    def operators(self, shown: int = 3) -> str:
        """The operators by name, those that it has most of first."""
        counts = Counter(node.op_type for node in _whole(self.nodes))
        if self.path and counts.total() > 6:
            return f"{counts.total()} operators"
        names = [name if count == 1 else f"{count} {name}" for name, count in counts.most_common(shown)]
        rest = counts.total() - sum(count for _, count in counts.most_common(shown))
        return " · ".join(names) + (f" · {rest} more" if rest else "")

    @property
    def height(self) -> int:
        """Operators outside of modules have no name, and one line."""
        return HEIGHT if self.path else LOW


def scope(node: ir.Node) -> tuple[tuple[str, str], ...]:
    """The modules around a node as pairs of path and type, or else the function of the user that it comes from."""
    parts = [part.partition(": ")[::2] for part in node.metadata_props.get("namespace", "").split("/") if part]
    function = node.metadata_props.get("jaxport.source", "").rpartition(" in ")[2]
    if not parts and function.strip("_").isidentifier() and function != "__call__":
        return ((f"{function}()", ""),)
    # A method of a model may enter the model a second time, and a model around all is no box.
    within = [(path, kind.rpartition(".")[2]) for path, kind in parts]
    return tuple(each for each in within if each[0] != each[1])


def boxes(nodes: Sequence[ir.Node]) -> list[Box]:
    """The nodes in boxes, looking as deep into the modules as few boxes allow."""
    deepest = max((len(scope(node)) for node in nodes), default=0)
    made = _boxes(nodes, 1)
    for depth in range(2, deepest + 1):
        if len(deeper := _boxes(nodes, depth)) > MOST:
            break
        made = deeper
    return made


def _boxes(nodes: Iterable[ir.Node], depth: int) -> list[Box]:
    made: list[Box] = []
    for (path, kind), group in itertools.groupby(nodes, key=lambda node: (scope(node)[:depth] or (("", ""),))[-1]):
        before, here = (made[-1] if made else None), list(group)
        if before and path and kind == before.kind and _alike(path) == _alike(before.last or before.path):
            before.times += before.last != path and before.path != path
            before.last, before.nodes = path, [*before.nodes, *here]
        else:
            made.append(Box(path, kind, here))
    return made


def _alike(path: str) -> str:
    return re.sub(r"\d+", "0", path)


def _whole(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes, and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _whole(attribute.as_graph())


def _flows(graph: ir.Graph, made: Sequence[Box]) -> set[tuple[int, int]]:
    """From which box to which there is data, the borders of the graph included; sizes and other integers of it are none."""
    place: dict[Any, int] = {node: number for number, box in enumerate(made, 1) for node in _whole(box.nodes)}
    found = set()
    for node, there in place.items():
        for value in node.inputs if node.op_type != "Shape" else ():
            if value is None or value.const_value is not None or value.dtype == ir.DataType.INT64:
                continue
            here = place.get(value.producer(), 0 if value in graph.inputs else None)
            if here is not None and here != there:
                found.add((here, there))
    for value in graph.outputs:
        found.add((place.get(value.producer(), 0), len(made) + 1))
    return found


def picture(graph: ir.Graph, title: str) -> str:
    """The SVG of a graph."""
    made = boxes(list(graph))
    ends = [_border(graph.inputs, "input"), *made, _border(graph.outputs, "output")]
    tops = list(itertools.accumulate((end.height + GAP for end in ends), initial=1))
    lanes: list[int] = []  # where the last arrow of each lane at the side ends
    arrows = []
    for start, stop in sorted(_flows(graph, made)):
        if stop == start + 1:
            arrows.append(f'<path d="M{WIDTH // 2} {tops[stop] - GAP}v{GAP - 2}" marker-end="url(#head)"/>')
            continue
        lane = next((number for number, until in enumerate(lanes) if until <= start), len(lanes))
        if lane == MOST_LANES:
            continue  # what is left out are the arrows of a graph that has too many to follow
        lanes[lane:] = [stop, *lanes[lane + 1 :]]
        y, z, x = tops[start] + ends[start].height - 8, tops[stop] + 8, WIDTH + 12 + LANE * lane
        arrows.append(
            f'<path d="M{WIDTH + 1} {y}H{x - 5}q5 0 5 5V{z - 5}q0 5 -5 5H{WIDTH + 4}" marker-end="url(#head)"/>'
        )
    width, height = WIDTH + 8 + LANE * (len(lanes) + bool(lanes)), tops[-1] - GAP + 1
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11.5">'
    )
    marker = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    drawn = "".join(_drawn(box, top) + "\n" for box, top in zip(ends, tops, strict=False))
    return (
        f'{head}\n<title>{escape(title)}</title>\n<defs>{marker}<path d="M0 0 8 4 0 8z" fill="#8c96b4"/></marker></defs>\n'
        f'<g fill="none" stroke="#8c96b4" stroke-width="1.3">{"".join(arrows)}</g>\n{drawn}</svg>\n'
    )


def _border(values: Sequence[ir.Value], what: str) -> Box:
    names = [f"{value.name}: {_shape(value)}" for value in values]
    return Box("", names[0] if len(names) == 1 else f"{len(names)} {what}s")


def _shape(value: ir.Value) -> str:
    dtype = value.dtype.numpy().name if value.dtype else "?"
    return f"{dtype}[{', '.join(str(dim if isinstance(dim, int) else dim.value) for dim in value.shape or ())}]"


def _drawn(box: Box, top: int) -> str:
    if not box.nodes:
        return (
            f'<rect x="1" y="{top}" width="{WIDTH}" height="{box.height}" rx="12" fill="#4051b5"/>'
            f'<text x="{WIDTH // 2}" y="{top + 16}" text-anchor="middle" fill="#fff">{escape(_short(box.kind, 42))}</text>'
        )
    if not box.path:
        return (
            f'<rect x="1" y="{top}" width="{WIDTH}" height="{box.height}" rx="4" fill="#fff" stroke="#8c96b4"/>'
            f'<text x="{WIDTH // 2}" y="{top + 16}" text-anchor="middle" fill="#3c4254">{escape(box.operators())}</text>'
        )
    name = f"{box.path} – {box.last}" if box.times > 1 else box.path
    kind = f"{box.kind} × {box.times}" if box.times > 1 else box.kind
    return (
        f'<rect x="1" y="{top}" width="{WIDTH}" height="{box.height}" rx="6" fill="#eef0fa" stroke="#4051b5"/>'
        f'<text x="9" y="{top + 16}" font-weight="bold" fill="#26306d">{escape(_short(name, 34 - len(kind) // 2))}</text>'
        f'<text x="{WIDTH - 7}" y="{top + 16}" text-anchor="end" fill="#3c4254">{escape(_short(kind, 22))}</text>'
        f'<text x="9" y="{top + 32}" fill="#3c4254">{escape(box.operators())}</text>'
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"

"""Draw `docs/architecture.svg`: the parts of the package, and which imports which, read from the source.

A part stands above those that it imports. An arrow that follows from others is left out. Run it after a change of the
imports between parts: `python -m scripts.architecture_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

from tests.architecture.imports import imports_of, part_of
from tests.architecture.sources import SOURCE

TARGET = Path(__file__).parents[1] / "docs" / "architecture.svg"
#: One line on each part that the picture shows: all but the files of the package itself, on which much rests.
PARTS: Mapping[str, str] = {
    "errors": "one family of errors",
    "jaxprs": "JAX's private names",
    "sizes": "what holds of sizes",
    "blocks": "module calls in a trace",
    "frameworks": "Flax, Equinox, Keras, Haiku",
    "mox": "module expressions",
    "graph": "tools on ONNX graphs",
    "export": "JAX → ONNX",
    "importer": "ONNX → JAX",
    "codegen": "programs as source",
    "verify": "both sides, compared",
    "testing": "checks for tests",
    "cli": "the command",
}
WIDTH, HEIGHT, ACROSS, DOWN = 176, 52, 206, 112


def edges() -> dict[str, set[str]]:
    """Which parts each part imports while it is imported itself."""
    imported: dict[str, set[str]] = {part: set() for part in PARTS}
    for entry in imports_of(SOURCE / "jaxport"):
        here, there = part_of(entry.file), part_of(entry.module)
        if entry.at_import and entry.module.startswith("jaxport.") and here != there and here in PARTS:
            imported[here] |= {there} & PARTS.keys()
    return imported


def reach(part: str, graph: Mapping[str, Set[str]]) -> set[str]:
    """What a part imports, through others too."""
    return {end for below in graph[part] for end in {below, *reach(below, graph)}}


def needed(graph: Mapping[str, Set[str]]) -> dict[str, set[str]]:
    """The edges that do not follow from others."""
    return {part: {b for b in below if not any(b in reach(o, graph) for o in below)} for part, below in graph.items()}


def rows(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """The parts from top to bottom: each above all that it imports."""
    depth: dict[str, int] = {}

    def level(part: str) -> int:
        if part not in depth:
            depth[part] = 1 + max(map(level, graph[part]), default=-1)
        return depth[part]

    highest = max(map(level, PARTS))
    return [[part for part in PARTS if depth[part] == number] for number in range(highest, -1, -1)]


def picture() -> str:
    """The SVG."""
    graph = edges()
    lines = rows(graph)
    across = max(map(len, lines))
    width, height = across * ACROSS, (len(lines) - 1) * DOWN + HEIGHT + 8
    places = {
        part: (round((across - len(line)) * ACROSS / 2) + column * ACROSS + (ACROSS - WIDTH) // 2, 4 + row * DOWN)
        for row, line in enumerate(lines)
        for column, part in enumerate(line)
    }
    arrows = [
        _arrow(places[part], places[below]) for part, ends in sorted(needed(graph).items()) for below in sorted(ends)
    ]
    boxes = [_box(part, *places[part]) for part in PARTS]
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<title>The parts of jaxport: each imports those that its arrows lead to</title>",
        f'<defs>{head}<path d="M0 0 8 4 0 8z" fill="#8c96b4"/></marker></defs>',
        *arrows,
        *boxes,
        "</svg>\n",
    ])  # fmt: skip


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x, y), (u, v) = (start[0] + WIDTH // 2, start[1] + HEIGHT), (end[0] + WIDTH // 2, end[1])
    bend = DOWN // 2
    return (
        f'<path d="M{x} {y}C{x} {y + bend} {u} {v - bend} {u} {v - 2}" fill="none" stroke="#8c96b4" '
        'stroke-width="1.4" marker-end="url(#head)"/>'
    )


def _box(part: str, x: int, y: int) -> str:
    middle = x + WIDTH // 2
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#eef0fa" stroke="#4051b5"/>'
        f'<text x="{middle}" y="{y + 22}" text-anchor="middle" font-size="15" font-weight="bold" fill="#26306d">{part}</text>'
        f'<text x="{middle}" y="{y + 40}" text-anchor="middle" font-size="11.5" fill="#3c4254">{PARTS[part]}</text>'
    )


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")

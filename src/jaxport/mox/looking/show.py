"""A Mox as text: its blocks and equations as a tree, with shapes; long bodies and repeated blocks are folded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxport import jaxprs
from jaxport.blocks.block import Block
from jaxport.errors import SaveError
from jaxport.jaxprs.body_inputs import body_names, runs_bodies
from jaxport.jaxprs.walk import bodies
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.programs.tree import joined, name_below, short_name, value_text
from jaxport.printable import printable, shown

# So many equations of a body in a row are shown; a block is always shown.
_SHOWN = 8
# So many characters of a config field are shown.
_WIDTH = 24


def text(mox: TracedProgram, depth: int | None = None) -> str:
    """Return the tree as text: so many levels of it, or what fits into a page."""
    traced = mox.traced
    avals = mox.jaxpr.in_avals[len(mox.weights) :]
    names = [*traced.input_paths, *mox.inputs]
    inputs = ", ".join(f"{name}: {aval.str_short(short_dtypes=True)}" for name, aval in zip(names, avals, strict=True))
    made = ", ".join(aval.str_short(short_dtypes=True) for aval in mox.jaxpr.out_avals[: len(traced.output_paths)])
    title = f"{mox.name} {inputs} -> {made}"
    body = mox.jaxpr.jaxpr
    if depth is not None:
        return _joined([title, *_Drawing(_SHOWN, depth).lines(body, "", 0)])
    lines: list[str] = []
    for kinds, levels in _PAGES:
        lines = list(_Drawing(kinds, levels).lines(body, "", 0))
        if len(lines) < _PAGE:
            break
    return _joined([title, *lines])


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(map(printable, lines))


# A program is printed on so many lines, unless its blocks alone are more.
_PAGE = 80
# How many equations in a row, and how many levels, are tried for that.
_PAGES = ((_SHOWN, 100), (3, 100), (1, 100), *((1, levels) for levels in (6, 5, 4, 3, 2)))

_Row = tuple[str, Sequence[tuple[str, jaxprs.Jaxpr]], Block | None]


@dataclass(frozen=True)
class _Drawing:
    """One way to draw a tree: so many equations in a row, so many levels; of blocks in a row that are alike, the
    first.
    """

    shown: int
    levels: int

    def lines(self, jaxpr: jaxprs.Jaxpr, indent: str, level: int) -> list[str]:
        """Return the lines of a body."""
        if level >= self.levels:
            return []
        return list(self.drawn(self.rows(jaxpr), indent, level))

    def rows(self, jaxpr: jaxprs.Jaxpr) -> list[_Row]:
        """Return the title of each equation that is shown, and its bodies."""
        rows: list[_Row] = []
        plain = hidden = 0
        for equation in jaxpr.eqns:
            inner = runs_bodies(equation)
            plain = 0 if inner else plain + 1
            if plain > self.shown:
                hidden += 1
                continue
            if hidden:
                rows.append((_more(hidden), (), None))
                hidden = 0
            names = body_names(equation)
            below = bodies(equation.params) if inner else []
            within = [(n if len(below) > 1 else "", b) for n, b in zip(names, below, strict=False)]
            rows.append((title(equation), within, equation.params.get("block")))
        if hidden:
            rows.append((_more(hidden), (), None))
        return rows

    def drawn(self, rows: Sequence[_Row], indent: str, level: int) -> Iterator[str]:
        """Yield the rows as branches of a tree."""
        branches: list[list[str]] = []
        alike: list[str] = []
        before: tuple[str, ...] | None = None
        first = ""
        for title, below, block in rows:
            inside = [line for name, body in self.within(below) for line in self.body(name, body, level)]
            pattern = _pattern([title, *inside], block) if below else None
            if block is not None and pattern is not None and pattern == before:
                alike.append(block.path)
                continue
            branches += _repeated(first, alike)
            alike, before, first = [], pattern, "" if block is None else block.path
            branches.append([title, *inside])
        branches += _repeated(first, alike)
        for position, (title, *inside) in enumerate(branches):
            last = position == len(branches) - 1
            yield f"{indent}{'└─' if last else '├─'} {title}"
            yield from (f"{indent}{'   ' if last else '│  '}{line}" for line in inside)

    def within(self, below: Sequence[tuple[str, jaxprs.Jaxpr]]) -> Iterator[tuple[str, jaxprs.Jaxpr]]:
        """Yield the bodies, each with what its line begins with."""
        for number, (name, body) in enumerate(below):
            yield (f"{'└─' if number == len(below) - 1 else '├─'} {name}" if name else ""), body

    def body(self, name: str, body: jaxprs.Jaxpr, level: int) -> list[str]:
        """Return the lines of a body of an equation, below its name if it has one."""
        if not name:
            return self.lines(body, "", level + 1)
        inside = "   " if name.startswith("└") else "│  "
        return [name, *self.lines(body, inside, level + 1)]


def _pattern(lines: Sequence[str], block: Block | None) -> tuple[str, ...] | None:
    """Return what blocks that are alike have in common: all but the path."""
    if block is None or not block.path:
        return None
    return tuple(line.replace(f"{block.path}.", ".").replace(f"{block.path}:", ":") for line in lines)


def _repeated(first: str, paths: Sequence[str]) -> list[list[str]]:
    """Return the line for blocks that are like the first one before them: others, or more calls of the same module."""
    if not paths:
        return []
    if {*paths} == {first}:
        return [[f"… {first}: {len(paths)} more call{'s' if len(paths) > 1 else ''}"]]
    return [[f"… {paths[0]}{f' to {paths[-1]}' if len(paths) > 1 else ''}: the same"]]


def _more(count: int) -> str:
    return f"… {count} more equation{'s' if count > 1 else ''}"


def title(equation: jaxprs.JaxprEqn) -> str:
    """Return the title of an equation or a block in a tree."""
    block = equation.params.get("block")
    made = ", ".join(
        atom.aval.str_short(short_dtypes=True) for atom in equation.outvars[: None if block is None else block.results]
    )
    if block is None:
        name = equation.params.get("name")
        return f"{equation.primitive.name}{f'[{name}]' if isinstance(name, str) else ''}  {made}"
    config = ", ".join(
        f"{key}={value_text(value)}"
        for key, value in joined(block.config).items()
        if value is not None and not callable(value) and len(value_text(value)) <= _WIDTH
    )
    method = f".{block.method}" if block.method not in ("", "__call__") else ""
    edited = " (edited)" if block.edited else ""
    head = f"{block.path}: " if block.path else ""
    return f"{head}{short_name(block.target)}{method}({config}){edited}  {_params(equation, block)}{made}"


def _params(equation: jaxprs.JaxprEqn, block: Block) -> str:
    own = [
        f"{name}: {equation.invars[index].aval.str_short(short_dtypes=True)}"
        for index, path in block.weights.items()
        if block.path and "." not in (name := name_below(path, block.path))
    ]
    return f"[{', '.join(own)}] -> " if own else ""


class Text:
    """A tree as text, as a prompt shows it."""

    def __init__(self, data: str):
        self.data = data

    def __repr__(self) -> str:
        return shown(self.data)


class Html:
    """A tree as HTML: a notebook shows it; `data` is its source, and `page` makes a document of its own."""

    def __init__(self, data: str, page: Callable[[], str]):
        self.data, self._page = data, page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that any browser shows: it unfolds, and is searched by text or XPath.

        Raises:
          SaveError: the file cannot be written.
        """
        try:
            Path(path).write_text(self._page(), encoding="utf-8")
        except OSError as error:
            raise SaveError(f"`{path}` cannot be written", where="`show().save`", why=str(error)) from error

    def _repr_html_(self) -> str:
        return self.data

    def __repr__(self) -> str:
        return f"<{len(self.data)} characters of HTML; a notebook shows them>"


def count(sizes: Iterable[int]) -> str:
    """Return a number of elements."""
    return f"{sum(sizes):,}"

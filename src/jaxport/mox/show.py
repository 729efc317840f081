"""A Mox as text: its blocks and equations as a tree, with shapes; long bodies are folded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from jaxport import jaxprs
from jaxport.blocks.labels import bodies
from jaxport.mox.calls import body_names, runs_bodies
from jaxport.mox.tree import name_below, short_name, value_text

if TYPE_CHECKING:
    from jaxport.mox.mox import Mox

__all__ = ["Html", "html", "text"]

# So many equations of a body in a row are shown; a block is always shown.
_SHOWN = 8
# So many characters of a config field are shown.
_WIDTH = 24


def text(mox: Mox) -> str:
    """The tree as text."""
    traced = mox.traced
    avals = mox.jaxpr.in_avals[len(mox.weights) :]
    names = [*traced.input_paths, *mox.inputs]
    given = ", ".join(f"{name}: {aval.str_short(short_dtypes=True)}" for name, aval in zip(names, avals, strict=True))
    made = ", ".join(aval.str_short(short_dtypes=True) for aval in mox.jaxpr.out_avals[: len(traced.output_paths)])
    return "\n".join([f"{mox.name} {given} -> {made}", *_lines(mox.jaxpr.jaxpr, "")])


def _lines(jaxpr: jaxprs.Jaxpr, indent: str) -> Iterator[str]:
    rows: list[tuple[str, Sequence[tuple[str, jaxprs.Jaxpr]]]] = []
    plain = 0
    hidden = 0
    for equation in jaxpr.eqns:
        inner = runs_bodies(equation)
        plain = 0 if inner else plain + 1
        if plain > _SHOWN:
            hidden += 1
            continue
        if hidden:
            rows.append((_more(hidden), ()))
            hidden = 0
        names = body_names(equation)
        below = bodies(equation.params) if inner else []
        rows.append((_title(equation), [(n if len(below) > 1 else "", b) for n, b in zip(names, below, strict=False)]))
    if hidden:
        rows.append((_more(hidden), ()))
    yield from _drawn(rows, indent)


def _more(count: int) -> str:
    return f"… {count} more equation{'s' if count > 1 else ''}"


def _drawn(rows: Sequence[tuple[str, Sequence[tuple[str, jaxprs.Jaxpr]]]], indent: str) -> Iterator[str]:
    for position, (title, below) in enumerate(rows):
        last = position == len(rows) - 1
        yield f"{indent}{'└─' if last else '├─'} {title}"
        inside = f"{indent}{'   ' if last else '│  '}"
        for number, (name, body) in enumerate(below):
            if not name:
                yield from _lines(body, inside)
                continue
            end = number == len(below) - 1
            yield f"{inside}{'└─' if end else '├─'} {name}"
            yield from _lines(body, f"{inside}{'   ' if end else '│  '}")


def _title(equation: jaxprs.JaxprEqn) -> str:
    block = equation.params.get("block")
    made = ", ".join(
        atom.aval.str_short(short_dtypes=True) for atom in equation.outvars[: None if block is None else block.results]
    )
    if block is None:
        name = equation.params.get("name")
        return f"{equation.primitive.name}{f'[{name}]' if isinstance(name, str) else ''}  {made}"
    config = ", ".join(
        f"{key}={value_text(value)}"
        for key, value in block.config.items()
        if value is not None and not callable(value) and len(value_text(value)) <= _WIDTH
    )
    method = f".{block.method}" if block.method not in ("", "__call__") else ""
    edited = " (edited)" if block.edited else ""
    head = f"{block.path}: " if block.path else ""
    return f"{head}{short_name(block.target)}{method}({config}){edited}  {_params(equation, block)}{made}"


def _params(equation: jaxprs.JaxprEqn, block: Any) -> str:
    own = [
        f"{name}: {equation.invars[index].aval.str_short(short_dtypes=True)}"
        for index, path in block.weights.items()
        if block.path and "." not in (name := name_below(path, block.path))
    ]
    return f"[{', '.join(own)}] -> " if own else ""


class Html:
    """A page that a notebook shows; `data` is its source."""

    def __init__(self, data: str):
        self.data = data

    def _repr_html_(self) -> str:
        return self.data

    def __repr__(self) -> str:
        return f"<{len(self.data)} characters of HTML; a notebook shows them>"


def html(mox: Mox) -> Html:
    """The tree as HTML in which each block and body unfolds."""
    head = text(mox).partition("\n")[0]
    counts = [f"{len(mox.params)} parameters, {_count(value.size for value in mox.params.values())} elements"]
    if mox.inputs:
        counts.append(f"inputs of edits: {', '.join(mox.inputs)}")
    body = "".join(_items(mox.jaxpr.jaxpr, 0))
    return Html(
        f'<div style="font-family: monospace; white-space: nowrap"><b>{escape(head)}</b>'
        f"<div>{escape('; '.join(counts))}</div>{body}</div>"
    )


def _count(sizes: Iterable[int]) -> str:
    return f"{sum(sizes):,}"


def _items(jaxpr: jaxprs.Jaxpr, depth: int) -> Iterator[str]:
    yield '<div style="margin-left: 1.5em">'
    for equation in jaxpr.eqns:
        title = escape(_title(equation))
        if not runs_bodies(equation):
            yield f"<div>{title}</div>"
            continue
        block = equation.params.get("block")
        if block is not None and block.weights:
            sizes = (math.prod(map(int, equation.invars[index].aval.shape)) for index in block.weights)
            title += f' <span style="opacity: 0.6">{_count(sizes)} elements</span>'
        yield f"<details{' open' if depth < _OPEN else ''}><summary>{title}</summary>"
        inner = bodies(equation.params)
        for name, body in zip(body_names(equation), inner, strict=True):
            if len(inner) > 1:
                yield f'<div style="margin-left: 1.5em"><i>{escape(name)}</i></div>'
            yield from _items(body, depth + 1)
        yield "</details>"
    yield "</div>"


# So many levels are open at first.
_OPEN = 2

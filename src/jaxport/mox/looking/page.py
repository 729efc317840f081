"""A Mox as a page of HTML that needs nothing else: it unfolds, is searched by text or XPath, and shows what arrays
hold.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from html import escape as escape_html
from importlib.resources import files

import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.block import Block
from jaxport.blocks.callables.values import is_tracer
from jaxport.jaxprs import Array, aval_of
from jaxport.jaxprs.body_inputs import body_names, runs_bodies
from jaxport.jaxprs.walk import bodies
from jaxport.mox.looking.show import Html, count, text, title
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.programs.tree import joined, name_below, short_name, value_text
from jaxport.printable import printable

# So many levels are open at first.
_OPEN = 2
# Arrays with more elements are not looked into.
_MOST = 1 << 22
_BINS = 12
_BARS = "▁▂▃▄▅▆▇█"


def html(mox: TracedProgram) -> Html:
    """Return the tree as HTML in which each block and body unfolds, for a notebook."""
    return Html(f"<style>{_STYLE}</style>{_tree(mox)}", lambda: page(mox))


def page(mox: TracedProgram) -> str:
    """Return the tree as a document of its own."""
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    # What a query of the page looks at; `<` would end the script that holds it.
    document = json.dumps(etree.tostring(mox.tree.program.root).decode()).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(mox.name)}</title>'
        f"<style>{_STYLE}</style></head><body>"
        '<input id="query" type="search" placeholder="text, or an XPath expression: //Linear" autofocus>'
        f'<span id="count"></span>{_tree(mox)}'
        f"<script>const model = {document};{_SCRIPT}</script></body></html>"
    )


def escape(text: str) -> str:
    """Return a text as HTML shows it."""
    return escape_html(printable(text))


def _tree(mox: TracedProgram) -> str:
    head = text(mox).partition("\n")[0]
    counts = [f"{len(mox.params)} parameters, {count(value.size for value in mox.params.values())} elements"]
    if mox.inputs:
        counts.append(f"inputs of edits: {', '.join(mox.inputs)}")
    rows = "".join(_Rows(mox).body(mox.jaxpr.jaxpr, 0))
    return f'<div class="mox"><b>{escape(head)}</b><div>{escape("; ".join(counts))}</div>{rows}</div>'


class _Rows:
    """The rows of all equations, in the order of the elements of the tree."""

    def __init__(self, mox: TracedProgram):
        self.held = {weight.path: weight.value for weight in mox.weights}
        self.shown: set[str] = set()

    def body(self, jaxpr: jaxprs.Jaxpr, depth: int) -> Iterator[str]:
        yield '<div class="body">'
        for equation in jaxpr.eqns:
            block = equation.params.get("block")
            if not runs_bodies(equation):
                yield f'<div class="row">{escape(title(equation))}</div>'
                continue
            hue = "" if block is None else f' style="--hue: {zlib.crc32(short_name(block.target).encode()) % 360}"'
            kind = "row" if block is None else "row block"
            yield (
                f"<details{' open' if depth < _OPEN else ''}><summary "
                f"class={kind!r}{hue}>{escape(title(equation))}</summary>"
            )
            if block is not None:
                yield from self.about(equation, block)
            inner = bodies(equation.params)
            for name, body in zip(body_names(equation), inner, strict=True):
                if len(inner) > 1:
                    yield f"<div class='body'><i>{escape(name)}</i></div>"
                yield from self.body(body, depth + 1)
            yield "</details>"
        yield "</div>"

    def about(self, equation: jaxprs.JaxprEqn, block: Block) -> Iterator[str]:
        """Yield the config of a block, folded, and its own parameters, each at the first block that has it."""
        lines = [f"{key} = {value_text(value)}" for key, value in joined(block.config).items() if value is not None]
        if lines:
            yield f"<details class='body note'><summary>config</summary>{'<br>'.join(map(escape, lines))}</details>"
        for index, path in block.weights.items():
            name = name_below(path, block.path)
            if "." in name or path in self.shown:
                continue
            self.shown.add(path)
            aval = aval_of(equation.invars[index])
            known = _summary(self.held[path]) if path in self.held else ""
            yield f"<div class='body note'>{escape(f'{name}: {aval.str_short(short_dtypes=True)}')} {known}</div>"


def _summary(value: Array) -> str:
    """Return the mean, the range and a histogram of an array."""
    if is_tracer(value) or not value.size or value.size > _MOST or not jnp.issubdtype(value.dtype, jnp.number):
        return ""
    numbers = np.asarray(value).astype(np.float64 if value.dtype != jnp.dtype("complex64") else np.complex128)
    if np.iscomplexobj(numbers) or not np.isfinite(numbers).all():
        return "complex" if np.iscomplexobj(numbers) else "with infinities or NaN"
    counts, _ = np.histogram(numbers, _BINS)
    bars = "".join(_BARS[round(int(number) * (len(_BARS) - 1) / max(int(counts.max()), 1))] for number in counts)
    return f"mean {numbers.mean():.3g}, {numbers.min():.3g} to {numbers.max():.3g} {bars}"


# The rows and the elements that the script counts come in the same order; those of bodies stand for no row.
_STYLE, _SCRIPT = (files("jaxport.mox.looking").joinpath(file).read_text("utf-8") for file in ("page.css", "page.js"))

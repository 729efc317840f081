"""Sizes with names that may be 0.

A name stands for a size of 1 or more in JAX, which then decides what happens at 0 without being asked. So a size that
may be 0, `past`, is traced as `past_and_1 - 1`: what depends on whether it is 0 is not decided. Texts for people and
printed source have `past`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import jax
import onnx_ir as ir

from jaxport.importer.interface import ImportedProgram
from jaxport.importer.resolving.graph import BoundNode
from jaxport.importer.resolving.registry import Operator
from jaxport.importer.traced.assumptions import Assumptions
from jaxport.importer.traced.conditions import names_in
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.dims import evaluate, known
from jaxport.sizes.sums import only_name

SUFFIX = "_and_1"
"""The end of a name that stands for a size and 1."""


def with_zero(name: str, assumed: Assumptions, scope: jax.export.SymbolicScope) -> Dim:
    """Return what stands for a size of this name that may be 0."""
    return assumed.symbol(f"{name}{SUFFIX}", scope) - 1


def may_be_nothing(size: Dim) -> bool:
    """Whether a size may be 0: nothing was decided as if it were not."""
    return is_dim(size) and not known(lambda: size >= 1)


def size_text(size: Dim | str) -> str:
    """Return the text of a size, without the names that sizes which may be 0 are traced by.

    >>> size_text("2*count_and_1 - 2"), size_text("batch")
    ('2*count', 'batch')
    """
    text = str(size)
    return _spelled(text) if SUFFIX in text else text


@lru_cache(maxsize=1024)
def _spelled(text: str) -> str:
    scope = jax.export.SymbolicScope()
    names = {name: name.removesuffix(SUFFIX) for name in sorted(symbols(text))}
    plain = {chosen: jax.export.symbolic_shape(chosen, scope=scope)[0] for chosen in sorted({*names.values()})}
    return str(evaluate(text, {name: plain[chosen] + (name != chosen) for name, chosen in names.items()}))


def spelled_assumptions(assumed: Assumptions) -> Assumptions:
    """Return what is assumed of sizes, without the names that those are traced by which may be 0.

    >>> spelled_assumptions(Assumptions(("past_and_1 >= 3", "past_and_1 <= 8"))).constraints
    ('past >= 2', 'past <= 7')
    """
    names = {name for text in assumed.constraints for name in names_in(text)}
    return replace(
        assumed,
        constraints=tuple(map(_constraint, assumed.constraints)),
        empty=frozenset(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)),
        sizes={name.removesuffix(SUFFIX): _size(name, text) for name, text in assumed.sizes.items()},
        because={
            (_constraint(text) if re.search("[<>=]=", text) else text.removesuffix(SUFFIX)): where
            for text, where in assumed.because.items()
        },
    )


def _constraint(text: str) -> str:
    if SUFFIX not in text:
        return text
    left, comparison, right = re.split(" ?([<>=]=) ?", text)
    sides = size_text(left), size_text(right)
    linear = only_name(sides[0])
    if linear is None or not sides[1].isdecimal():
        return f"{sides[0]} {comparison} {sides[1]}"
    name, scale, offset = linear
    return f"{scale}*{name}".removeprefix("1*") + f" {comparison} {int(sides[1]) - offset}"


def _size(name: str, text: str) -> str:
    if not name.endswith(SUFFIX):
        return size_text(text)
    scope = jax.export.SymbolicScope()
    values = {one: jax.export.symbolic_shape(one, scope=scope)[0] for one in sorted(symbols(text))}
    return size_text(evaluate(text, values) - 1)


def appended(program: ImportedProgram) -> frozenset[str]:
    """Return the sizes of inputs along which new rows are appended, as those of caches, which begin empty.

    Each is the text that the model has for it, or the input's name and the axis, as in `past_2`.
    """
    inputs = {value for value in program.inputs if isinstance(value.type, ir.TensorType) and value.shape is not None}
    return frozenset(
        size.value or f"{value.name}_{axis}"
        for node in program.body.nodes
        for value, axis in _joined(node)
        if value in inputs and not isinstance(size := value.shape.dims[axis], int)  # type: ignore[union-attr]
    )


def _joined(node: BoundNode) -> Iterator[tuple[ir.Value, int]]:
    """Yield the inputs of a node that it appends to, each with the axis."""
    axis = node.attributes.get("axis")
    if node.node.op_type == "Concat" and isinstance(node.target, Operator) and isinstance(axis, int):
        for value in node.inputs:
            rank = 0 if value is None or value.shape is None else len(value.shape)
            if value is not None and rank:
                yield value, axis % rank
    elif isinstance(node.target, Operator):
        for parameter, value in zip(node.target.inputs, node.inputs, strict=False):
            rank = 0 if value is None or value.shape is None else len(value.shape)
            if value is not None and parameter.name.startswith("past") and rank > 3:  # the size of vectors is last
                yield value, rank - 2

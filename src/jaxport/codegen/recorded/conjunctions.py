"""Conjunctions of conditions in which that of causal attention comes last, so that attention says it in its own way.

    ((key <= query) & (key > query - 4)) & padded   →   ((key > query - 4) & padded) & (key <= query)

What is left is one mask, which all layers share.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from jaxport.graph.editing import dims_of, is_op
from jaxport.graph.facts.forms import unit
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse


def conjunctions(model: ir.Model) -> str:
    """Move the condition that hides the keys behind each query to the end of conjunctions."""
    return fuse(model, partial(_find, known=Knowledge(model)), Anchor(at=("And",)))


def _find(node: ir.Node, known: Knowledge) -> Fusion | None:
    result, terms = node.outputs[0], [*_terms(node)]
    if any(is_op(user, "And") for user, _ in result.uses()):
        return None
    causal = [term for term in terms if _is_causal(term, known)]
    others = [term for term in terms if term not in causal]
    ranks = {None if (dims := dims_of(term)) is None else len(dims) for term in (*terms, result)}
    if not causal or len(others) < 2 or {*causal} & {*node.inputs} or len(ranks) > 1 or None in ranks:
        return None

    def build(builder: Builder) -> ir.Value:
        return functools.reduce(partial(builder.pairwise, "And"), [*others, causal[0]])

    return Fusion("And", result, terms, build)


def _terms(node: ir.Node) -> Iterator[ir.Value]:
    for value in node.inputs:
        before = None if value is None else value.producer()
        if before is not None and is_op(before, "And"):
            yield from _terms(before)
        elif value is not None:
            yield value


def _is_causal(term: ir.Value, known: Knowledge) -> bool:
    """Whether a condition holds where the index of the last axis is at most that of the axis before."""
    band, rank = known.of(term).band, len(dims_of(term) or ())
    return band is not None and rank > 1 and band.conditions == {unit(rank - 2, rank) - unit(rank - 1, rank)}

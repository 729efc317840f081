"""From what was traced to what the walker can take: jaxpr to jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxport.export.prepare.complex import without_complex
from jaxport.export.prepare.dead_code import without_dead_code
from jaxport.export.prepare.exact_dims import with_exact_dims
from jaxport.export.prepare.implementations import with_implementations
from jaxport.export.prepare.keys import without_keys
from jaxport.export.prepare.references import without_references
from jaxport.export.registry import Rule
from jaxport.jaxprs import ClosedJaxpr


@dataclass(frozen=True)
class Program:
    """A closed jaxpr without constants, whose leading inputs are the weights, with the names of both ends."""

    jaxpr: ClosedJaxpr
    weights: Sequence[Any]
    input_paths: Sequence[str]
    output_paths: Sequence[str]


#: Rewritings of the jaxpr, in order, after what has no rule was replaced by its implementation.
STEPS: list[Callable[[ClosedJaxpr], ClosedJaxpr]] = [
    without_references,
    without_dead_code,
    without_keys,
    without_complex,
    with_exact_dims,
]


def rewritten(jaxpr: ClosedJaxpr, rules: Mapping[str, Rule]) -> ClosedJaxpr:
    """A closed jaxpr after all steps; the same object where none of them has anything to do."""
    jaxpr = with_implementations(jaxpr, rules)
    for step in STEPS:
        jaxpr = step(jaxpr)
    return jaxpr


def prepare(traced: Any, rules: Mapping[str, Rule]) -> Program:
    """The program that the walker exports by these rules."""
    outputs = (*traced.output_paths, *traced.state_outputs)
    return Program(rewritten(traced.jaxpr, rules), traced.weights, tuple(traced.input_paths), outputs)

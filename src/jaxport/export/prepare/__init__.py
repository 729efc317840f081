"""Rewrite a traced jaxpr into one that the walker can export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxport.blocks import block_p
from jaxport.export.ports import is_key
from jaxport.export.prepare.complex import is_complex, without_complex
from jaxport.export.prepare.dead_code import without_dead_code
from jaxport.export.prepare.exact_dims import with_exact_dims
from jaxport.export.prepare.fixed_keys import with_fixed_keys
from jaxport.export.prepare.implementations import with_implementations
from jaxport.export.prepare.interleaving import with_interleaving
from jaxport.export.prepare.keys import RANDOM, without_keys
from jaxport.export.prepare.references import without_references
from jaxport.export.prepare.rewriting import Contents
from jaxport.export.registry import Rule
from jaxport.jaxprs import ClosedJaxpr


@dataclass(frozen=True)
class PreparedProgram:
    """A closed jaxpr without constants whose leading inputs are the weights, with the names of both ends."""

    jaxpr: ClosedJaxpr
    weights: Sequence[Any]
    input_paths: Sequence[str]
    output_paths: Sequence[str]


@dataclass(frozen=True)
class PreparationStep:
    """A rewriting of jaxprs, and a predicate that tells from a program's contents whether it may apply."""

    rewrite: Callable[[ClosedJaxpr], ClosedJaxpr]
    concerns: Callable[[Contents], bool]


#: The steps, in order; they run after the two that depend on the rules: implementations, and the numbers of fixed keys.
STEPS: tuple[PreparationStep, ...] = (
    PreparationStep(without_references, lambda contents: bool(contents.effects) or "run_state" in contents.primitives),
    PreparationStep(with_interleaving, lambda contents: "pad" in contents.primitives),
    PreparationStep(without_dead_code, lambda _: True),
    PreparationStep(without_keys, lambda contents: any(map(is_key, contents.dtypes))),
    PreparationStep(without_complex, lambda contents: any(map(is_complex, contents.dtypes))),
    PreparationStep(with_exact_dims, lambda contents: "dim_as_value" in contents.primitives),
)


def rewritten(jaxpr: ClosedJaxpr, rules: Mapping[str, Rule]) -> ClosedJaxpr:
    """Run all steps on a closed jaxpr; return the same object if none applies."""
    contents = Contents.of(jaxpr)
    implemented = PreparationStep(
        lambda program: with_implementations(program, rules),
        lambda contents: not contents.primitives <= {*rules, block_p.name},
    )
    fixed = PreparationStep(
        lambda program: with_fixed_keys(program, rules),
        lambda contents: not RANDOM.isdisjoint(contents.primitives),
    )
    for step in (implemented, fixed, *STEPS):
        if step.concerns(contents):
            before, jaxpr = jaxpr, step.rewrite(jaxpr)
            contents = contents if jaxpr is before else Contents.of(jaxpr)
    return jaxpr


def prepare(traced: Any, rules: Mapping[str, Rule]) -> PreparedProgram:
    """Return the program that the walker exports with these rules."""
    outputs = (*traced.output_paths, *traced.state_outputs)
    return PreparedProgram(rewritten(traced.jaxpr, rules), traced.weights, tuple(traced.input_paths), outputs)

"""Rewrite a traced jaxpr into one that the walker can export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from jaxport.blocks.block import Block, block_p
from jaxport.blocks.liveness import without_dead_code
from jaxport.export.emit.registry import Rule
from jaxport.export.ports import is_key
from jaxport.export.prepare.complex import is_complex, without_complex
from jaxport.export.prepare.exact_dims import with_exact_dims
from jaxport.export.prepare.fixed_keys import with_fixed_keys
from jaxport.export.prepare.implementations import with_implementations
from jaxport.export.prepare.interleaving import with_interleaving
from jaxport.export.prepare.keys import RANDOM, without_keys
from jaxport.export.prepare.references import without_references
from jaxport.jaxprs import ClosedJaxpr
from jaxport.jaxprs.walk import equations_within


@dataclass(frozen=True)
class PreparedProgram:
    """A closed jaxpr without constants whose leading inputs are the weights, with the names of both ends."""

    jaxpr: ClosedJaxpr
    weights: Sequence[Any]
    input_paths: Sequence[str]
    output_paths: Sequence[str]


@dataclass(frozen=True)
class Contents:
    """The kinds of things in a program, at any depth, so that a step that does not apply need not visit each equation.

    Attributes:
      primitives: the names of its primitives.
      dtypes: the dtypes of its variables and literals.
      effects: the effects of the whole program.
    """

    primitives: Set[str]
    dtypes: Set[Any]
    effects: Set[Any]

    @classmethod
    def of(cls, closed: ClosedJaxpr) -> Contents:
        """Collect the contents of a closed jaxpr; a shared jaxpr is visited once."""
        primitives: set[str] = set()
        inputs = (*closed.jaxpr.invars, *closed.jaxpr.constvars)
        dtypes = {getattr(variable.aval, "dtype", None) for variable in inputs}
        for equation in equations_within(closed.jaxpr):
            primitives.add(equation.primitive.name)
            dtypes.update(getattr(atom.aval, "dtype", None) for atom in (*equation.invars, *equation.outvars))
        return cls(primitives, dtypes - {None}, closed.effects)


@dataclass(frozen=True)
class PreparationStep:
    """A rewriting of jaxprs, and a predicate that tells from a program's contents whether it may apply."""

    rewrite: Callable[[ClosedJaxpr], ClosedJaxpr]
    concerns: Callable[[Contents], bool]


def steps(rules: Mapping[str, Rule], is_whole: Callable[[Block], bool]) -> tuple[PreparationStep, ...]:
    """Return all steps, in order."""
    is_known = {*rules, block_p.name}.issuperset
    return (
        PreparationStep(lambda p: with_implementations(p, rules), lambda contents: not is_known(contents.primitives)),
        PreparationStep(
            lambda p: with_fixed_keys(p, rules), lambda contents: not RANDOM.isdisjoint(contents.primitives)
        ),
        PreparationStep(
            without_references, lambda contents: bool(contents.effects) or "run_state" in contents.primitives
        ),
        PreparationStep(with_interleaving, lambda contents: "pad" in contents.primitives),
        PreparationStep(lambda p: without_dead_code(p, is_whole), lambda _: True),
        PreparationStep(without_keys, lambda contents: any(map(is_key, contents.dtypes))),
        PreparationStep(without_complex, lambda contents: any(map(is_complex, contents.dtypes))),
        PreparationStep(with_exact_dims, lambda contents: "dim_as_value" in contents.primitives),
    )


def rewritten(jaxpr: ClosedJaxpr, rules: Mapping[str, Rule], is_whole: Callable[[Block], bool]) -> ClosedJaxpr:
    """Run all steps on a closed jaxpr; return the same object if none applies.

    A block that `is_whole` keeps the results that nobody reads (see `blocks.liveness.live`).
    """
    contents = Contents.of(jaxpr)
    for step in steps(rules, is_whole):
        if step.concerns(contents):
            before, jaxpr = jaxpr, step.rewrite(jaxpr)
            contents = contents if jaxpr is before else Contents.of(jaxpr)
    return jaxpr


def prepare(traced: Any, rules: Mapping[str, Rule], is_whole: Callable[[Block], bool]) -> PreparedProgram:
    """Return the program that the walker exports with these rules; see `rewritten`."""
    outputs = (*traced.output_paths, *traced.state_outputs)
    return PreparedProgram(rewritten(traced.jaxpr, rules, is_whole), traced.weights, tuple(traced.input_paths), outputs)

"""Find the first place where the two sides diverge.

The results of all blocks are made outputs of the program, on both sides; the first that differs names the block. The
same for the equations of that block, and of those around it, names the equation. Values inside scans are compared step
by step, and an earlier step comes before a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax.typing import DTypeLike

from jaxport import jaxprs
from jaxport.blocks import Block, block_p
from jaxport.export.exported import Exported
from jaxport.export.rules import BLOCK_RULES
from jaxport.export.sources import source_lines
from jaxport.jaxprs import Array
from jaxport.verify import reference
from jaxport.verify.comparing import FAILURES, difference
from jaxport.verify.precision import narrowest
from jaxport.verify.report import Divergence
from jaxport.verify.taps import Choice, Tap, tapped


@dataclass(frozen=True)
class Localizer:
    """Finds where a model diverges from the JAX function.

    Attributes:
      exported: the model.
      leaves: the arguments of the JAX function, as operands of the traced program.
      inputs: the same as inputs of the model.
      rtol, atol: the tolerances; by default those of the dtypes.
    """

    exported: Exported
    leaves: Sequence[Array]
    inputs: Mapping[str, np.ndarray]
    rtol: float | None = None
    atol: float | None = None

    def divergence(self) -> Divergence:
        """Return the first block, and the first equation in it, whose result differs."""
        try:
            block = self._first(lambda equation, _: equation.primitive is block_p)
            chain = () if block is None else _chain([*block.tap.around, block.tap.equation])

            def in_chain(equation: jaxprs.JaxprEqn, around: tuple[jaxprs.JaxprEqn, ...]) -> bool:
                inner = _chain(around)
                return equation.primitive is not block_p and inner == chain[: len(inner)]

            equation = self._first(in_chain)
            differing = [first for first in (equation, block) if first is not None]
            if not differing:
                return self._of_the_passes()
        except FAILURES as error:
            return Divergence("not localized", "", f"{type(error).__name__}: {str(error).splitlines()[0]}")
        first = min(differing, key=_DifferingStep.time)
        source = _source([*first.tap.around, first.tap.equation])
        return Divergence(_place(first), source + self._rule(first.tap, source), first.problem)

    def _of_the_passes(self) -> Divergence:
        """Return the graph pass after which the outputs differ, if no single equation does."""
        traced = self.exported.traced
        expected, inside = [np.asarray(value) for value in self._in_jax(traced.jaxpr)], narrowest(traced.jaxpr)
        names = [report.name for report in self.exported.pass_reports]
        for count in range(len(names) + 1):
            model = self.exported.again(traced, passes=count)
            if any(
                difference(e, a, self.rtol, self.atol, inside=dtype).problem
                for e, a, dtype in zip(expected, self._run(model), inside, strict=False)
            ):
                cause = f"the graph pass `{names[count - 1]}`" if count else "the runtime"
                return Divergence(cause, "", "the graph agrees before it, and each equation by itself")
        return Divergence("not localized", "", "exported once more, the model agrees")

    def _in_jax(self, jaxpr: jaxprs.ClosedJaxpr) -> list[Array]:
        weights = [weight.value for weight in self.exported.traced.weights]
        return reference.run_program(jaxpr, [*weights, *self.leaves])

    def _run(self, model: Exported) -> list[Array]:
        results = model.session.run({**model.defaults, **self.inputs})
        return [port.to_jax(result) for port, result in zip(model.outputs, results, strict=True)]

    def _first(self, choice: Choice) -> _DifferingStep | None:
        """Return the first of the chosen values that differs."""
        traced = self.exported.traced
        jaxpr, taps = tapped(traced.jaxpr, choice, frozenset(BLOCK_RULES))
        if not taps:
            return None
        names = (f"tap_{index}" for index in range(len(taps)))
        paths = (*traced.output_paths, *traced.state_outputs, *names)
        model = self.exported.again(replace(traced, jaxpr=jaxpr, output_paths=paths, state_outputs=()))
        actual, expected = self._run(model)[-len(taps) :], self._in_jax(jaxpr)[-len(taps) :]
        inside = narrowest(jaxpr)[-len(taps) :]
        differing_steps = map(self._compared, taps, map(np.asarray, expected), actual, inside)
        return min((f for f in differing_steps if f is not None), key=_DifferingStep.time, default=None)

    def _compared(
        self, tap: Tap, expected: np.ndarray, actual: Array, inside: DTypeLike | None
    ) -> _DifferingStep | None:
        """Return the first step in which a value differs."""
        whole = difference(expected, actual, self.rtol, self.atol, inside=inside).problem
        if not whole or expected.shape != actual.shape:
            return _DifferingStep(tap, (0,) * tap.steps, expected.shape, whole) if whole else None
        differing = []
        for steps in np.ndindex(expected.shape[: tap.steps]):
            problem = difference(expected[steps], actual[steps], self.rtol, self.atol, inside=inside).problem
            if problem:
                differing.append(_DifferingStep(tap, steps, expected.shape, problem))
        # A value that is small in every step may only differ as a whole.
        whole_found = _DifferingStep(tap, (0,) * tap.steps, expected.shape, whole)
        return min(differing, key=_DifferingStep.time, default=whole_found)

    def _rule(self, tap: Tap, source: str) -> str:
        """Return the name of the rule that exported the equation."""
        for record in self.exported.records:
            if record.place.primitive == tap.equation.primitive.name and record.place.source == source:
                return f", exported by `{record.rule}`"
        return ""


@dataclass(frozen=True)
class _DifferingStep:
    """A tap that differs, the first steps of the scans around it in which it does, and the difference."""

    tap: Tap
    steps: tuple[int, ...]
    shape: tuple[int, ...]
    problem: str

    def time(self) -> tuple[float, ...]:
        """Return the time at which it is computed."""
        return self.tap.time(self.steps)


def _chain(around: Sequence[jaxprs.JaxprEqn]) -> tuple[Block, ...]:
    return tuple(equation.params["block"] for equation in around if equation.primitive is block_p)


def _place(differing: _DifferingStep) -> str:
    tap = differing.tap
    blocks = _chain([*tap.around, tap.equation])
    inside = f"`{blocks[-1].path or blocks[-1].name}` ({blocks[-1].target})" if blocks else ""
    if tap.equation.primitive is block_p:
        place = f"the block {inside}"
    else:
        place = f"`{tap.equation.primitive.name}` " + (f"in the block {inside}" if inside else "outside of all blocks")
    steps = [f"step {step} of {count}" for step, count in zip(differing.steps, differing.shape, strict=False)]
    return ", ".join([place, *steps])


def _source(equations: Sequence[jaxprs.JaxprEqn]) -> str:
    """Return the user's line of the last equation, or of the innermost one around it that has any."""
    tracebacks = [equation.source_info.traceback for equation in reversed(equations)]
    lines = [source_lines(traceback) for traceback in tracebacks if traceback is not None]
    return next((users for users, _ in lines if users), lines[0][1] if lines else "")

"""Find the first place where the two sides diverge.

The results of all blocks are made outputs of the program, on both sides; the first that differs names the block. The
same for the equations of that block, and of those around it, names the equation. Values inside scans are compared step
by step, and an earlier step comes before a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxport import jaxprs
from jaxport.blocks.block import Block, block_p
from jaxport.export.exported_model import ExportedModel
from jaxport.export.walk.sources import source_lines
from jaxport.jaxprs import Array
from jaxport.verify.comparing import FAILURES, OF_DTYPES, Tolerance, difference
from jaxport.verify.per_block.taps import Measured, measured, run
from jaxport.verify.precision import narrowest
from jaxport.verify.report import Divergence
from jaxport.verify.running import run_program


@dataclass(frozen=True)
class Localizer:
    """Finds where a model diverges from the JAX function.

    Attributes:
      exported: the model.
      leaves: the arguments of the JAX function, as operands of the traced program.
      inputs: the same as inputs of the model.
      tolerance: that of each element; by default that of its dtype.
    """

    exported: ExportedModel
    leaves: Sequence[Array]
    inputs: Mapping[str, np.ndarray]
    tolerance: Tolerance = OF_DTYPES

    def divergence(self) -> Divergence:
        """Return the first block, and the first equation in it, whose result differs."""
        try:
            block = self._first(lambda equation, _: equation.primitive is block_p)
            chain = () if block is None else _chain(block.equations)

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
        source = _source(first.equations)
        return Divergence(_place(first), source + self._rule(first.equations[-1], source), first.problem)

    def _of_the_passes(self) -> Divergence:
        """Return the graph pass after which the outputs differ, if no single equation does."""
        traced = self.exported.traced
        weights = [weight.value for weight in traced.weights]
        expected = list(map(np.asarray, run_program(traced.jaxpr, [*weights, *self.leaves])))
        inside = narrowest(traced.jaxpr)
        names = [report.name for report in self.exported.pass_reports]
        for count in range(len(names) + 1):
            model = self.exported.again(traced, passes=count)
            if any(
                difference(e, a, *self.tolerance, inside=dtype).problem
                for e, a, dtype in zip(expected, run(model, self.inputs), inside, strict=False)
            ):
                cause = f"the graph pass `{names[count - 1]}`" if count else "the runtime"
                return Divergence(cause, "", "the graph agrees before it, and each equation by itself")
        return Divergence("not localized", "", "exported once more, the model agrees")

    def _first(self, wanted: Callable[[jaxprs.JaxprEqn, tuple[jaxprs.JaxprEqn, ...]], bool]) -> _DifferingStep | None:
        """Return the first of the wanted values that differs."""
        values = measured(self.exported, wanted, self.leaves, self.inputs)
        differing = filter(None, map(self._compared, values))
        return min(differing, key=_DifferingStep.time, default=None)

    def _compared(self, value: Measured) -> _DifferingStep | None:
        """Return the first step in which a value differs."""
        expected, actual = np.asarray(value.expected), value.actual

        def problem(steps: tuple[int, ...]) -> str:
            return difference(expected[steps], actual[steps], *self.tolerance, inside=value.inside).problem

        whole = problem(())
        if not whole:
            return None
        # A value that is small in every step may only differ as a whole.
        differing = _DifferingStep(value, (0,) * value.steps, expected.shape, whole)
        if expected.shape != actual.shape:
            return differing
        steps = ((step, problem(step)) for step in np.ndindex(expected.shape[: value.steps]))
        by_step = [_DifferingStep(value, step, expected.shape, text) for step, text in steps if text]
        return min(by_step, key=_DifferingStep.time, default=differing)

    def _rule(self, equation: jaxprs.JaxprEqn, source: str) -> str:
        """Return the name of the rule that exported the equation."""
        for record in self.exported.records:
            if record.place.primitive == equation.primitive.name and record.place.source == source:
                return f", exported by `{record.rule}`"
        return ""


@dataclass(frozen=True)
class _DifferingStep:
    """A value that differs, the first steps of the scans around it in which it does, and the difference."""

    value: Measured
    steps: tuple[int, ...]
    shape: tuple[int, ...]
    problem: str

    @property
    def equations(self) -> tuple[jaxprs.JaxprEqn, ...]:
        """The equation that computes it, after those around it."""
        return (*self.value.tap.around, self.value.tap.equation)

    def time(self) -> tuple[float, ...]:
        """Return the time at which it is computed."""
        return self.value.time(self.steps)


def _chain(around: Sequence[jaxprs.JaxprEqn]) -> tuple[Block, ...]:
    return tuple(equation.params["block"] for equation in around if equation.primitive is block_p)


def _place(differing: _DifferingStep) -> str:
    equation, blocks = differing.equations[-1], _chain(differing.equations)
    inside = f"`{blocks[-1].path or blocks[-1].name}` ({blocks[-1].target})" if blocks else ""
    if equation.primitive is block_p:
        place = f"the block {inside}"
    else:
        place = f"`{equation.primitive.name}` " + (f"in the block {inside}" if inside else "outside of all blocks")
    steps = [f"step {step} of {count}" for step, count in zip(differing.steps, differing.shape, strict=False)]
    return ", ".join([place, *steps])


def _source(equations: Sequence[jaxprs.JaxprEqn]) -> str:
    """Return the user's line of the last equation, or of the innermost one around it that has any."""
    tracebacks = [equation.source_info.traceback for equation in reversed(equations)]
    lines = [source_lines(traceback) for traceback in tracebacks if traceback is not None]
    return next((users for users, _ in lines if users), lines[0][1] if lines else "")

"""Values inside a model on both sides: they become outputs of the program, which is run in JAX and exported again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxport.export.ports import is_key
from jaxport.export.rules import BLOCK_RULES
from jaxport.jaxprs import Array, JaxprEqn
from jaxport.jaxprs.taps import Tap, tapped
from jaxport.onnx_facts.operation import operation_of
from jaxport.verify.precision import narrowest
from jaxport.verify.running import run_program

if TYPE_CHECKING:
    from jaxport.export.exported_model import ExportedModel


@dataclass(frozen=True)
class Measured:
    """A value in both sides.

    Attributes:
      tap: where it is computed.
      expected: the value in JAX; scans around it add leading axes.
      actual: the value in the model.
      inside: the narrowest float type that a value it depends on is rounded to.
    """

    tap: Tap
    expected: Array
    actual: Array
    inside: np.dtype | None

    @property
    def steps(self) -> int:
        """The number of leading axes that are steps of scans around it."""
        return sum(equation.primitive.name == "scan" for equation in self.tap.around)

    def time(self, steps: Sequence[int]) -> tuple[float, ...]:
        """Return when it is computed in these steps of the scans around it: earlier times compare as smaller."""
        remaining = iter(steps)
        time: list[float] = []
        for index, equation in zip(self.tap.location[::2], self.tap.around, strict=False):
            time.append(index)
            if equation.primitive.name == "scan":
                time.append(-next(remaining) if equation.params["reverse"] else next(remaining))
        # The results of an equation come after everything inside it.
        return (*time, self.tap.location[-1], math.inf)


def measured(
    exported: ExportedModel,
    wanted: Callable[[JaxprEqn, tuple[JaxprEqn, ...]], bool],
    leaves: Sequence[Array],
    inputs: Mapping[str, np.ndarray],
    reduced: bool = False,
) -> list[Measured]:
    """Return the results of some equations on both sides. What a rule exports as a whole is not looked into.

    Args:
      exported: the model.
      wanted: whether to measure the results of an equation, given the equations around it.
      leaves: the arguments of the JAX function, as operands of the traced program.
      inputs: the same as inputs of the model.
      reduced: whether to export in the model's precision.
    """

    def results(equation: JaxprEqn, around: tuple[JaxprEqn, ...], _: object) -> list:
        return [v for v in equation.outvars if _is_array(v.aval)] if wanted(equation, around) else []

    def enters(equation: JaxprEqn) -> bool:
        block = equation.params.get("block")
        return block is None or (block.target not in BLOCK_RULES and operation_of(block.options) is None)

    traced = exported.traced
    jaxpr, taps = tapped(traced.jaxpr, results, enters)
    if not taps:
        return []
    names = (f"tap_{index}" for index in range(len(taps)))
    paths = (*traced.output_paths, *traced.state_outputs, *names)
    model = exported.again(replace(traced, jaxpr=jaxpr, output_paths=paths, state_outputs=()), reduced=reduced)
    expected = run_program(jaxpr, [*(weight.value for weight in traced.weights), *leaves])
    sides = (taps, expected[-len(taps) :], run(model, inputs)[-len(taps) :], narrowest(jaxpr)[-len(taps) :])
    return [Measured(*value) for value in zip(*sides, strict=True)]


def run(model: ExportedModel, inputs: Mapping[str, np.ndarray]) -> list[Array]:
    """Return the outputs of a model, as JAX has them."""
    results = model.session.run({**model.defaults, **inputs})
    return [port.to_jax(result) for port, result in zip(model.outputs, results, strict=True)]


def _is_array(aval: Any) -> bool:
    return hasattr(aval, "dtype") and hasattr(aval, "shape") and not is_key(aval.dtype)

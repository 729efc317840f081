"""The steps that compute values, and what rules ask about them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxport.graph.facts.facts import Facts
from jaxport.importer.values.host import HostValue, is_dim
from jaxport.importer.values.recording import Step, Variable


@dataclass(eq=False)
class Producers:
    """The steps that compute values.

    Attributes:
      made: the step that makes each value.
      parts: the step that makes each value together with others, and its place among them.
      facts: what is known of values, as far as somebody has asked.
    """

    made: dict[Variable, Step] = field(default_factory=dict)
    parts: dict[Variable, tuple[Step, int]] = field(default_factory=dict)
    facts: dict[Variable, Facts] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Producers:
        """Return those of these steps."""
        made = cls()
        for step in steps:
            made.note(step)
        return made

    def note(self, step: Step) -> None:
        """Record a step."""
        if isinstance(step.outputs, Variable):
            self.made[step.outputs] = step
        elif isinstance(step.outputs, tuple | list):
            for place, output in enumerate(step.outputs):
                if isinstance(output, Variable):
                    self.parts[output] = step, place

    def step(self, value: object, *names: str) -> Step | None:
        """Return the step that makes a value, if it is one of these; `""` is an index."""
        step = self.made.get(value) if isinstance(value, Variable) else None
        return step if step is not None and step.name in names and step.form != "vmap" else None

    def scaled(self, value: Any) -> tuple[object, float]:
        """Return a value without the constants that it is multiplied with or divided by, and their product."""
        factor = 1.0
        while True:
            product, quotient = self.step(value, "*"), self.step(value, "/")
            if product is not None:
                a, b = product.args
                known, rest = (number(a), b) if number(a) is not None else (number(b), a)
            elif quotient is not None:
                divisor = number(quotient.args[1])
                known, rest = (1 / divisor if divisor else None), quotient.args[0]
            else:
                return value, factor
            if known is None or not math.isfinite(known) or not isinstance(rest, Variable):
                return value, factor
            if rest.shape != value.shape:
                return value, factor
            value, factor = rest, factor * known


def number(value: object) -> float | None:
    """Return a number that is known and not more than one element, or None."""
    if isinstance(value, HostValue) and value.size == 1 and not value.symbolic and value.dtype.kind in "iuf":
        return float(value.data.reshape(())[()])
    return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else None


def is_number(value: object, wanted: float) -> bool:
    """Whether a value is one known number."""
    found = number(value)
    return found is not None and found == wanted


def is_like(x: object, out: Variable) -> bool:
    """Whether a value has the shape and type of another, so that it may stand for it."""
    return isinstance(x, Variable) and (x.shape, x.dtype) == (out.shape, out.dtype)


def plain_size(n: object) -> object:
    """Return a known integer or size as a Python value, or None."""
    if isinstance(n, HostValue):
        return n.item() if n.ndim == 0 and n.dtype.kind in "iu" else None
    return n if type(n) is int or is_dim(n) else None


def as_tuple(parts: object) -> tuple[Any, ...]:
    """Return the parts of an index, or axes, of which there may be one alone."""
    return parts if isinstance(parts, tuple) else (parts,)


def index_of(*parts: object) -> Any:
    """Return the index of these parts, without those at its end that take all of an axis; None if all do.

    >>> index_of(slice(None), 2, slice(None)), index_of(2)
    ((slice(None, None, None), 2), 2)
    """
    count = next((count for count in range(len(parts), 0, -1) if parts[count - 1] != slice(None)), 0)
    return parts[:count] if count > 1 else parts[0] if count else None


def axes_of(axes: Any, rank: int) -> list[int] | None:
    """Return one axis or several as places; None if they are not known.

    >>> axes_of(-1, 3), axes_of((0, -2), 3)
    ([2], [0, 1])
    """
    every = axes if isinstance(axes, tuple | list) else (axes,)
    return [axis % rank for axis in every] if all(isinstance(axis, int) for axis in every) else None


def added_axes(added: Step) -> list[int] | None:
    """Return the axes that a step adds, as places in its result."""
    axes = added.kwargs.get("axis", added.args[1] if len(added.args) > 1 else None)
    return axes_of(axes, len(added.outputs.shape))

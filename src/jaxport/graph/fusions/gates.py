"""Recognise what an expert computes between its matrices: activations, with or without a gate, of projections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxport.graph.editing import constant_of
from jaxport.graph.fusions.scores import unrounded
from jaxport.graph.fusions.sums import multiplied, selected, stack
from jaxport.graph.matching import Axis, Seen

#: The activations that have no gate.
PLAIN = {"Relu": "relu", "Gelu": "gelu"}
#: The name of the gated activation: `x * sigmoid(alpha * x)` times another projection.
GATED = "swiglu"


@dataclass(frozen=True)
class Projection:
    """A product with the weights of experts.

    Attributes:
      x: what is multiplied.
      weights: the matrix, or the stack of matrices.
      bias: what is added; None for nothing.
      column: the label of the axis of its columns.
      places: the columns that are taken; None for all.
    """

    x: Seen
    weights: Seen
    bias: Seen | None
    column: Axis
    places: np.ndarray | None = None

    @classmethod
    def of(cls, seen: Seen, column: Axis) -> Projection | None:
        """Return the projection that a value is."""
        seen, places = unrounded(seen), None
        if (part := selected(seen, column)) is not None:
            seen, places = unrounded(part[0]), part[1]
            column = ("whole", column)
        bias = None
        if (added := seen.commuted("Add", stack)) is not None:
            bias, seen = added[0], unrounded(added[1])
        for x, matrix in _orders(multiplied(seen)):
            weights = stack(matrix)
            if weights is not None and stack(x) is None:
                return cls(unrounded(x), weights, bias, column, places)
        return None


@dataclass(frozen=True)
class Activated:
    """An activation of projections.

    Attributes:
      kind: its name, as the runtime's operator has it.
      projection: what it is applied to.
      gate: what multiplies it; None if it has no gate.
      alpha: the factor inside the sigmoid.
      beta: what is added to the gate.
      limit: the bound of both; None for none.
    """

    kind: str
    projection: Projection
    gate: Projection | None = None
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None


def activated(seen: Seen, column: Axis) -> Activated | str | None:
    """Return the activation that a value is, the reason why the operator has no such one, or None.

    Args:
      seen: the value.
      column: the label of the axis of the columns of the projections.
    """
    factors = list(_factors(seen))
    if len(factors) == 1:
        return _plain(factors[0], column)
    found = _sigmoid(factors)
    if found is None:
        kinds = [one for one in factors if Projection.of(_behind(one), column) is not None]
        return "it has a gate whose activation is not SiLU" if len(kinds) == len(factors) == 2 else None
    value, alpha, others = found
    bounded, upper = _bounded_above(value)
    projection = Projection.of(bounded, column)
    if projection is None:
        return None
    if not others:
        if upper is not None or alpha != 1:
            return "its activation is SiLU with a bound or a factor, and without a gate"
        return Activated("silu", projection)
    if len(others) > 1:
        return None
    shifted = others[0].commuted("Add", lambda one: one.scalar if constant_of(one.value) is not None else None)
    beta, inner = (0.0, others[0]) if shifted is None else shifted
    inner, bounds = _bounded(unrounded(inner))
    gate = Projection.of(inner, column)
    if gate is None:
        return None
    if (upper, bounds) != (None, None) and (upper is None or bounds != (-upper, upper)):
        return "the bounds of its gate are not those that the operator has"
    return Activated(GATED, projection, gate, alpha, float(beta), upper)


def _plain(seen: Seen, column: Axis) -> Activated | str | None:
    projection = Projection.of(seen, column)
    if projection is not None:
        return Activated("identity", projection)
    inner = (seen.operands(*PLAIN) or [None])[0]
    projection = None if inner is None else Projection.of(inner, column)
    if projection is None:
        behind = Projection.of(_behind(seen), column)
        return None if behind is None else f"the operator has no activation {seen.node.op_type}"
    approximate = seen.node.attributes.get("approximate")
    if seen.is_op("Gelu") and (approximate is None or approximate.as_string() != "tanh"):
        return "the operator's Gelu is the approximate one, and this one is exact"
    return Activated(PLAIN[seen.node.op_type], projection)


def _behind(seen: Seen) -> Seen:
    """Return the operand of an elementwise operator of one operand; the value itself if it is of another."""
    node = seen.value.producer()
    operands = None if node is None or len(node.inputs) != 1 else seen.operands(node.op_type)
    return seen if not operands else operands[0]


def _factors(seen: Seen) -> list[Seen]:
    seen = unrounded(seen)
    operands = seen.operands("Mul")
    return [seen] if operands is None else [factor for one in operands for factor in _factors(one)]


def _sigmoid(factors: list[Seen]) -> tuple[Seen, float, list[Seen]] | None:
    """Return `x` and `alpha` of the factors `x` and `sigmoid(alpha * x)`, and the others."""
    for place, factor in enumerate(factors):
        others = [one for index, one in enumerate(factors) if index != place]
        if factor.is_op("Swish"):
            attribute = factor.node.attributes.get("alpha")
            (x,) = factor.operands("Swish") or (None,)
            if x is not None:
                return unrounded(x), 1.0 if attribute is None else attribute.as_float(), others
        (inside,) = factor.operands("Sigmoid") or (None,)
        if inside is None:
            continue
        inside = unrounded(inside)
        scaled = inside.commuted("Mul", lambda one: one.scalar)
        for alpha, x in ([] if scaled is None else [scaled]) + [(1.0, inside)]:
            same = [one for one in others if one == unrounded(x)]
            if same:
                others.remove(same[0])
                return same[0], float(alpha), others
    return None


def _bounded_above(seen: Seen) -> tuple[Seen, float | None]:
    """Return a value before it is bounded from above, and the bound."""
    inner, bounds = _bounded(seen)
    if bounds is None:
        return seen, None
    return (inner, bounds[1]) if bounds[0] == -np.inf else (seen, None)


def _bounded(seen: Seen) -> tuple[Seen, tuple[float, float] | None]:
    """Return a value before it is bounded, and the bounds."""
    if seen.is_op("Clip"):
        numbers = [None if one is None else constant_of(one) for one in seen.node.inputs[1:]]
        if any(one is not None and array is None for one, array in zip(seen.node.inputs[1:], numbers, strict=True)):
            return seen, None
        low, high = (
            infinite if place >= len(numbers) or (one := numbers[place]) is None else float(one.item())
            for place, infinite in enumerate((-np.inf, np.inf))
        )
        inner = _clipped(seen)
        return (seen, None) if inner is None else (unrounded(inner), (low, high))
    low, high, found = -np.inf, np.inf, False
    for op_type in ("Min", "Max", "Min"):
        bounded = seen.commuted(op_type, lambda one: one.scalar)
        if bounded is not None:
            found, seen = True, unrounded(bounded[1])
            low, high = (max(low, bounded[0]), high) if op_type == "Max" else (low, min(high, bounded[0]))
    return seen, (low, high) if found else None


def _clipped(seen: Seen) -> Seen | None:
    """Return the first operand of an operator whose other operands are single numbers."""
    operands = seen.operands("Clip")
    return None if operands is None else operands[0]


def _orders(sides: tuple[Seen, Seen] | None) -> list[tuple[Seen, Seen]]:
    return [] if sides is None else [sides, (sides[1], sides[0])]

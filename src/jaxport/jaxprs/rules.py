"""What a primitive of ours does under JAX's transformations, registered in the form that the release wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxport.jaxprs.names import JaxprEqn, Primitive, ad, batching, mlir, partial_eval
from jaxport.jaxprs.versions import release

__all__ = ["LivenessRule", "ad", "batching", "dce_jaxpr", "liveness_rule", "mlir"]

LivenessRule = Callable[[Sequence[bool], JaxprEqn], tuple[list[bool], JaxprEqn | None]]
"""From which results are used to which operands are used, and the equation that is left; None where none is."""

dce_jaxpr = partial_eval.dce_jaxpr


def liveness_rule(primitive: Primitive) -> Callable[[LivenessRule], LivenessRule]:
    """Register how dead code leaves the equations of a primitive whose operands are values."""

    def register(function: LivenessRule) -> LivenessRule:
        rules: dict[Primitive, Any] = partial_eval.dce_rules
        # From 0.12 on the operands that are read later are the second argument; only mutable ones may not be.
        rules[primitive] = function if release < (0, 12) else lambda used, _, equation: function(used, equation)
        return function

    return register

"""Register the behaviour of our own primitives under JAX's transformations, in the form of the release."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxport.jaxprs import PythonFunction, PyTree
from jaxport.jaxprs.names import JaxprEqn, Primitive, ad, batching, mlir, partial_eval
from jaxport.jaxprs.versions import release

__all__ = ["LivenessRule", "ad", "batching", "dce_jaxpr", "liveness_rule", "mlir", "partial_eval_rules"]

LivenessRule = Callable[[Sequence[bool], JaxprEqn], tuple[list[bool], JaxprEqn | None]]
"""From the used results to the used operands and the remaining equation; None if none remains."""

dce_jaxpr = partial_eval.dce_jaxpr
#: Partial evaluation of a primitive of whose operands some are known, and others, as tangents, are not.
partial_eval_rules: dict[Primitive, PythonFunction] = partial_eval.custom_partial_eval_rules


def liveness_rule(primitive: Primitive) -> Callable[[LivenessRule], LivenessRule]:
    """Register dead-code elimination for the equations of a primitive whose operands are values."""

    def register(function: LivenessRule) -> LivenessRule:
        rules: dict[Primitive, PyTree] = partial_eval.dce_rules
        # From 0.12 on the second argument tells which operands are read later; it only matters for mutable ones.
        rules[primitive] = function if release < (0, 12) else lambda used, _, equation: function(used, equation)
        return function

    return register

"""Group and instance normalization with channels last, from operators that compute it with channels first.

    x of (batch, channels, height, width), as groups → (x - mean) * rsqrt(var + eps) → as channels, * scale + bias

is `group_norm(x.transpose(0, 2, 3, 1), groups, eps, scale, bias).transpose(0, 3, 1, 2)`, or with `framework="burn"`, whose channels
are first, the same without transposes.
"""

from __future__ import annotations

import math
from typing import Any

from jaxport.codegen.rewriting.patterns import bindings, pattern
from jaxport.codegen.rewriting.producers import Producers, as_tuple, number
from jaxport.codegen.rewriting.step_rewriting import RuleTable, StepRewriting
from jaxport.codegen.structure.spelling.channels import CHANNELS_LAST, transposed
from jaxport.codegen.structure.spelling.idioms import is_single
from jaxport.importer.values.recording import Step, Variable

FIRST = "channels_first.group_norm"
"""The normalization of groups of channels of the second axis, with its scale and bias."""

GROUPS_FIRST = RuleTable()
"""The rule on normalizations of groups whose channels stay first."""

CENTERED = (
    "(centered := x - jnp.mean(x, axis=axes, keepdims=True))"
    " * lax.rsqrt(jnp.mean(centered * centered, axis=axes, keepdims=True) + epsilon)"
)
"""The division of what differs from the mean by its root mean square."""


def _of_groups(normal: object, scale: Any, shift: Any, step: Step, rewriting: StepRewriting) -> tuple[Any, ...] | None:
    """Return the operand of a standardization of groups of the second axis, their number, the epsilon, and a scale and a bias."""
    out: Variable = step.outputs
    if not is_single(out) or len(out.shape) < 3 or not isinstance(out.shape[1], int):
        return None
    if not all(_is_per_channel(value, out, rewriting) for value in (scale, shift)):
        return None
    found = _standardized(normal, out, rewriting.producers)
    return None if found is None else (*found, *(_vector(value, step, rewriting) for value in (scale, shift)))


def _of_last_axis(
    normal: object, scale: object, shift: object, step: Step, rewriting: StepRewriting
) -> Variable | None:
    """Return the same of groups of the last axis."""
    found = _of_groups(normal, scale, shift, step, rewriting)
    if found is None:
        return None
    x, groups, epsilon, *vectors = found
    x = transposed(x, (0, *range(2, len(x.shape)), 1), step, rewriting)
    y = rewriting.call(step, "helper.group_norm", (x, groups, epsilon), x.shape)
    for name, vector in zip("*+", vectors, strict=True):
        y = rewriting.call(step, name, (y, vector), x.shape, "operator")
    return y


GROUPS_FIRST.rewrite("normal * scale + shift", f"{FIRST}(*operands)", operands=_of_groups)
CHANNELS_LAST.rewrite("normal * scale + shift", "jnp.transpose(y, order)", y=_of_last_axis,
                      order=lambda out: (0, len(out.shape) - 1, *range(1, len(out.shape) - 1)))  # fmt: skip


def _standardized(normal: object, out: Variable, producers: Producers) -> tuple[Variable, int, float] | None:
    """Return the operand of a standardization, the number of groups, and the epsilon."""
    spatial, channels = tuple(range(2, len(out.shape))), out.shape[1]
    for bound in bindings(pattern(CENTERED), normal, producers):
        x, epsilon = bound["x"], number(bound["epsilon"])
        if (
            as_tuple(bound["axes"]) == spatial
            and epsilon is not None
            and isinstance(x, Variable)
            and x.shape == out.shape
        ):
            return x, int(channels), epsilon
    for bound in bindings(pattern(f"jnp.reshape({CENTERED}, _)"), normal, producers):
        rows, epsilon, grouped = bound["x"], number(bound["epsilon"]), producers.step(bound["x"], "jnp.reshape")
        x, (batch, groups, *others) = (None if grouped is None else grouped.args[0]), rows.shape
        is_grouped = (
            as_tuple(bound["axes"]) == (2,) and len(others) == 1 and isinstance(groups, int) and not channels % groups
        )
        if (
            is_grouped
            and epsilon is not None
            and isinstance(x, Variable)
            and x.shape == out.shape
            and batch == x.shape[0]
        ):
            return x, groups, epsilon
    return None


def _is_per_channel(value: object, out: Variable, rewriting: StepRewriting) -> bool:
    """Whether a value is a parameter of one element per channel, spread over channels first."""
    if not isinstance(value, Variable):
        return False
    shaped = rewriting.producers.step(value, "jnp.reshape")
    origin = shaped.args[0] if shaped is not None else value
    rank, channels = len(out.shape), out.shape[1]
    spread = value.shape in ((channels, *[1] * (rank - 2)), (1, channels, *[1] * (rank - 2)))
    return isinstance(origin, Variable) and origin in rewriting.weights and spread


def _vector(value: Variable, like: Step, rewriting: StepRewriting) -> object:
    size = math.prod(value.shape)
    return rewriting.call(like, "jnp.reshape", (value, [size]), Variable((size,), value.dtype))

"""The steps of a program as a person would have written them: all tables of rules, applied until none applies.

Those of the last table see what no other rule changes:

    ab = concatenate((a, b)); abc = concatenate((a, b, c))   →   abc = concatenate((ab, c))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from jaxport.codegen.rewriting.same_bits import SAME_BITS
from jaxport.codegen.rewriting.step_rewriting import RuleTable, StepRewriting
from jaxport.codegen.rewriting.steps import in_place
from jaxport.codegen.structure.spelling import attention, functions, lookups, matmul_rules, updates  # noqa: F401  they add rules
from jaxport.codegen.structure.spelling.channels import CHANNELS_LAST
from jaxport.codegen.structure.spelling.group_norm_rules import GROUPS_FIRST
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN
from jaxport.codegen.tree import Op
from jaxport.importer.values.recording import Step, Variable, map_leaves

ROLES = frozenset({"mask", "cos", "sin"})
"""Names of values that keep their meaning in every module."""

MOVING = frozenset({"jnp.reshape", "jnp.transpose", "jnp.expand_dims", "jnp.squeeze", "astype"})
"""Functions whose result is named as their operand."""

AT_LAST = RuleTable()
"""Rules on what no other rule changes."""


def rewritten(
    ops: Iterable[Op], result: object, weights: Collection[Variable], channels_last: bool = True
) -> tuple[list[Step], Any]:
    """Return the steps of operators with idioms in place of spelled-out ones, and the result in terms of them.

    Args:
      ops: the operators, in order.
      result: the values that they compute.
      weights: the parameters.
      channels_last: whether convolutions and normalizations of groups have their channels last, or first, as in files.
    """
    layout = CHANNELS_LAST if channels_last else GROUPS_FIRST
    rewriting = StepRewriting([SAME_BITS, AS_WRITTEN, layout, AT_LAST], weights)
    steps = rewriting.all(op.step for op in ops)
    return steps, map_leaves(rewriting.current, result)


@AT_LAST.on("jnp.concatenate")
def continued(step: Step, rewriting: StepRewriting) -> Step | None:
    """`concatenate((a, b, c), axis=1)` is `concatenate((ab, c), axis=1)` if `ab` is those two already."""
    (parts, *others), axis = step.args, step.kwargs.get("axis", 0) % len(step.outputs.shape)
    if others or step.kwargs.keys() - {"axis"} or not all(isinstance(part, Variable) for part in parts):
        return None
    for length in range(len(parts) - 1, 1, -1):
        whole = rewriting.notes.get((axis, *parts[:length]))
        if whole is not None:
            return in_place(step, step.name, (whole, *parts[length:]), axis=axis)
    rewriting.notes[axis, *parts] = step.outputs
    return None


@AT_LAST.on("jnp.cos", "jnp.sin")
def angle(step: Step) -> None:
    """Name cosines and sines so in every module."""
    step.outputs.hint = step.name.removeprefix("jnp.")


@AT_LAST.on(*MOVING, "")
def role(step: Step) -> None:
    """Name what is moved, and a part of a value, as before."""
    source = step.args[0] if step.args else None
    if isinstance(source, Variable) and source.hint in ROLES:
        step.outputs.hint = source.hint

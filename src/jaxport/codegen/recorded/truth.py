"""Truth values that are known, or follow from others, in a recorded program: negations, comparisons with True, choices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxport.codegen.recorded.spelled import is_number
from jaxport.codegen.structure.spelling.spellings import Spellings
from jaxport.importer.values.host import HostValue, RuntimeValue, is_dim
from jaxport.importer.values.recording import Step, Variable

__all__ = ["REARRANGING", "Truth", "is_like"]

Value = Variable | HostValue
REARRANGING = frozenset({"jnp.reshape", "jnp.transpose", "jnp.expand_dims", "jnp.squeeze", "jnp.broadcast_to"})
DEEPEST = 32
"""How many steps back are asked whether a value may be negative."""


@dataclass(eq=False)
class Truth:
    """Rules on steps that make or read truth values.

    Attributes:
      spellings: the step that makes each value.
    """

    spellings: Spellings

    def denied(self, step: Step) -> Value | None:
        """`~~x` is `x`, of truth values."""
        before = self.spellings.step(step.args[0], "jnp.logical_not", "~")
        return before.args[0] if before is not None and is_like(before.args[0], step.outputs) else None

    def compared(self, step: Step) -> Value | Step | None:
        """`x == False` is `~x`, and `x == True` is `x`."""
        for known, x in (step.args, step.args[::-1]):
            if isinstance(known, HostValue) and known.dtype == bool and known.ndim == 0 and is_like(x, step.outputs):
                if known.item() == (step.name == "=="):
                    return x
                return Step("call", "jnp.logical_not", (x,), {}, step.outputs, step.node)
        return None

    def chosen(self, step: Step) -> Value | None:
        """`where(False, x, y)` is `y`, and so is `where(y < 0, x, y)` if no element of `y` is negative."""
        known = step.args[0] if len(step.args) == 3 else None
        below = self.spellings.step(known, "<")
        if below is not None and is_number(below.args[1], 0) and below.args[0] is step.args[2]:
            y = step.args[2]
            return y if is_like(y, step.outputs) and self._is_count(y) else None
        if not isinstance(known, HostValue) or known.symbolic or known.ndim or known.dtype != bool:
            return None
        chosen = step.args[1 if known.item() else 2]
        return chosen if is_like(chosen, step.outputs) else None

    def _is_count(self, value: RuntimeValue, depth: int = 0) -> bool:
        """Whether integers are never negative: remainders by what is positive, and positions."""
        made = self.spellings.step(value, "%", "jnp.arange", *REARRANGING)
        if made is None or np.dtype(made.outputs.dtype).kind != "i" or depth > DEEPEST:
            return False
        if made.name == "jnp.arange":
            return len(made.args) == 1 and np.dtype(made.outputs.dtype).itemsize >= 4
        if made.name == "%":
            divisor = made.args[1]
            return is_dim(divisor) or (type(divisor) is int and divisor > 0)
        return self._is_count(made.args[0], depth + 1)


def is_like(value: RuntimeValue, output: Variable) -> bool:
    """Whether a value has the shape and type of another, so that it may stand for it."""
    return isinstance(value, Variable) and (value.shape, value.dtype) == (output.shape, output.dtype)

"""Group and instance normalization with channels last, from operators that compute it with channels first."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from jaxport.codegen.structure.spelling.channels import Channels
from jaxport.codegen.structure.spelling.spellings import Spellings, number
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.recording import Step, Variable

__all__ = ["FIRST", "Groups"]

FIRST = "channels_first.group_norm"
"""The normalization of groups of channels of the second axis, with its scale and bias."""


@dataclass(eq=False)
class Groups:
    """The rule on normalizations of groups of channels.

    Attributes:
      spellings: the step that made each value.
      channels: the rules on layouts.
      weights: the parameters.
      channels_last: whether they become normalizations of the last axis.
    """

    spellings: Spellings
    channels: Channels
    weights: Collection[Variable]
    channels_last: bool = True

    def normalization(self, step: Step) -> Step | None:
        """`standardized(x) * scale + bias`, of groups of the second axis, as the same of groups of the last."""
        out = step.outputs
        if out.dtype != np.float32 or len(out.shape) < 3 or not isinstance(out.shape[1], int):
            return None
        for shift, other in (step.args, step.args[::-1]):
            product = self.spellings.step(other, "*")
            for scale, normal in (product.args, product.args[::-1]) if product is not None else ():
                grouped = self._grouped(normal, out)
                if grouped is not None and self._is_per_channel(scale, out) and self._is_per_channel(shift, out):
                    return self._last(step, grouped, self._vector(scale, step), self._vector(shift, step))
        return None

    def _last(self, step: Step, grouped: tuple[Variable, int, float], scale: Variable, shift: Variable) -> Step:
        x, groups, epsilon = grouped
        if not self.channels_last:
            return Step("call", FIRST, (x, groups, epsilon, scale, shift), {}, step.outputs, step.node)
        rank, add = len(x.shape), self.channels.add
        x = self.channels.transposed(x, (0, *range(2, rank), 1), step)

        def made(form: RuntimeValue, name: str, *args: RuntimeValue) -> Variable:
            return add(Step(form, name, args, {}, Variable(x.shape, x.dtype), step.node))

        normal = made("call", "helper.group_norm", x, groups, epsilon)
        y = made("operator", "+", made("operator", "*", normal, scale), shift)
        return Step("call", "jnp.transpose", (y, (0, rank - 1, *range(1, rank - 1))), {}, step.outputs, step.node)

    def _grouped(self, value: RuntimeValue, out: Variable) -> tuple[Variable, int, float] | None:
        """Return the operand of a standardization, the number of groups, and the epsilon."""
        shaped = self.spellings.step(value, "jnp.reshape")
        if shaped is None:
            standardized = self._standardized(value, tuple(range(2, len(out.shape))))
            return (
                (standardized[0], out.shape[1], standardized[1])
                if standardized is not None and standardized[0].shape == out.shape
                else None
            )
        standardized = self._standardized(shaped.args[0], (2,))
        grouped = self.spellings.step(standardized[0], "jnp.reshape") if standardized is not None else None
        if standardized is None or grouped is None or not isinstance(grouped.args[0], Variable):
            return None
        x, groups = grouped.args[0], standardized[0].shape[1]
        known = len(standardized[0].shape) == 3 and isinstance(groups, int) and out.shape[1] % groups == 0
        return (
            (x, groups, standardized[1])
            if known and x.shape == out.shape and standardized[0].shape[0] == x.shape[0]
            else None
        )

    def _standardized(self, value: RuntimeValue, axes: tuple[int, ...]) -> tuple[Variable, float] | None:
        """Return the operand of a standardization along these axes, and the epsilon."""
        product = self.spellings.step(value, "*")
        for centered, factor in (product.args, product.args[::-1]) if product is not None else ():
            root, difference = self.spellings.step(factor, "lax.rsqrt"), self.spellings.step(centered, "-")
            total = self.spellings.step(root.args[0], "+") if root is not None else None
            epsilon = number(total.args[1]) if total is not None else None
            if total is None or difference is None or epsilon is None or len(difference.args) != 2:
                continue
            square = self.spellings.step(self._mean(total.args[0], axes), "*")
            x = difference.args[0]
            if square is None or square.args[0] is not centered or square.args[1] is not centered:
                continue
            if isinstance(x, Variable) and self._mean(difference.args[1], axes) is x:
                return x, epsilon
        return None

    def _mean(self, value: RuntimeValue, axes: tuple[int, ...]) -> RuntimeValue:
        step = self.spellings.step(value, "jnp.mean")
        if step is None or len(step.args) != 1 or step.kwargs.keys() != {"axis", "keepdims"}:
            return None
        axis = step.kwargs["axis"]
        same = (axis if isinstance(axis, tuple) else (axis,)) == axes and step.kwargs["keepdims"] is True
        return step.args[0] if same else None

    def _is_per_channel(self, value: RuntimeValue, out: Variable) -> bool:
        """Whether a value is a parameter of one element per channel, spread over channels first."""
        if not isinstance(value, Variable):
            return False
        shaped = self.spellings.step(value, "jnp.reshape")
        origin = shaped.args[0] if shaped is not None else value
        rank, channels = len(out.shape), out.shape[1]
        spread = value.shape in ((channels, *[1] * (rank - 2)), (1, channels, *[1] * (rank - 2)))
        return isinstance(origin, Variable) and origin in self.weights and spread

    def _vector(self, value: Variable, like: Step) -> Variable:
        size = math.prod(value.shape)
        step = Step("call", "jnp.reshape", (value, [size]), {}, Variable((size,), value.dtype), like.node)
        return self.channels.add(step)

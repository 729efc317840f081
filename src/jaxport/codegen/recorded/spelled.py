"""Functions of JAX that its exports spell out, because ONNX's operators differ: the rules give the same bits for every input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxport.codegen.structure.spelling.spellings import Spellings, number
from jaxport.importer.values.host import Dim, HostValue, RuntimeValue, is_dim
from jaxport.importer.values.recording import Step, Variable

__all__ = ["Spelled", "is_number", "plain_sizes"]


def is_number(value: RuntimeValue, wanted: float) -> bool:
    """Whether a value is one known number."""
    found = number(value)
    return found is not None and found == wanted


def plain_sizes(value: RuntimeValue) -> RuntimeValue:
    """Return a known integer or size as a Python value, or None."""
    if isinstance(value, HostValue) and value.ndim == 0 and value.dtype.kind in "iu":
        return value.item()
    return value if type(value) is int or (not isinstance(value, HostValue) and is_dim(value)) else None


def _count(value: RuntimeValue) -> float | Dim | None:
    """Return a known number or a size, which are at least one if they are positive; None for anything else."""
    if isinstance(value, HostValue) and value.symbolic and value.ndim == 0:
        return value.item()
    found = number(value)
    return found if found is None or found >= 1 else None


def _is_count(value: RuntimeValue, wanted: float | Dim) -> bool:
    found = _count(value)
    return found is not None and bool(found == wanted)


@dataclass(eq=False)
class Spelled:
    """Rules on calls that end what an export spells out.

    Attributes:
      spellings: the step that makes each value.
    """

    spellings: Spellings

    def floor(self, step: Step) -> Step | None:
        """`where(~(sign(x) == 1) & ~(x - q * c == 0), q - 1, q)`, with `q = div(x, c)`, is `x // c`, of a positive `c`."""
        condition, less, quotient = step.args if len(step.args) == 3 and not step.kwargs else (None, None, None)
        parts, lowered = self._both(condition), self.spellings.step(less, "-")
        divided = self._quotient(quotient)
        if parts is None or divided is None or lowered is None or len(lowered.args) != 2:
            return None
        x, divisor = divided
        if lowered.args[0] is not quotient or not is_number(lowered.args[1], 1):
            return None
        for sign, rest in (parts, parts[::-1]):
            if self._is_not_positive(sign, x) and self._is_unequal_to_zero(rest, x, quotient, divisor):
                return Step("operator", "//", (x, _whole(divisor)), {}, step.outputs, step.node)
        return None

    def floor_of_product(self, step: Step) -> Step | None:
        """`where(x < q * c, q - 1, q)`, with `q = div(x, c)`, is `x // c`, of a positive `c`."""
        condition, less, quotient = step.args if len(step.args) == 3 and not step.kwargs else (None, None, None)
        compared, lowered = self.spellings.step(condition, "<"), self.spellings.step(less, "-")
        divided = self._quotient(quotient)
        product = self.spellings.step(compared.args[1], "*") if compared is not None else None
        if compared is None or lowered is None or product is None or divided is None:
            return None
        x, divisor = divided
        if compared.args[0] is not x or lowered.args[0] is not quotient or not is_number(lowered.args[1], 1):
            return None
        if not any(one is quotient and _is_count(other, divisor) for one, other in (product.args, product.args[::-1])):
            return None
        return Step("operator", "//", (x, _whole(divisor)), {}, step.outputs, step.node)

    def modulo(self, step: Step) -> Step | None:
        """`mod(x, c)` of integers is `x % c`."""
        x, divisor = step.args if len(step.args) == 2 and not step.kwargs else (None, None)
        if not isinstance(x, Variable) or np.dtype(x.dtype).kind not in "iu":
            return None
        count = divisor if isinstance(divisor, Variable) else _count(divisor)
        if count is None:
            return None
        count = count if isinstance(count, Variable) else _whole(count)
        return Step("operator", "%", (x, count), {}, step.outputs, step.node)

    def remainder(self, step: Step) -> Step | None:
        """`where((r < 0) & ~(r == 0), r + c, r)`, with `r = x - div(x, c) * c`, is `x % c`, of a positive `c`."""
        condition, more, rest = step.args if len(step.args) == 3 and not step.kwargs else (None, None, None)
        parts, added = self._both(condition), self.spellings.step(more, "+")
        divided = self._rest(rest)
        if parts is None or added is None or divided is None:
            return None
        x, divisor = divided
        pairs = (added.args, added.args[::-1])
        if not any(one is rest and _is_count(other, divisor) for one, other in pairs):
            return None
        for negative, unequal in (parts, parts[::-1]):
            if self._is_negative(negative, rest) and self._is_not_zero(unequal, rest):
                return Step("operator", "%", (x, _whole(divisor)), {}, step.outputs, step.node)
        return None

    def lookup(self, step: Step) -> Step | None:
        """`where(i == clip(i, -n, n - 1), take(t, clip(i, …)), nan)` is `take(t, i)`, which gives NaN outside of the table."""
        condition, found, missing = step.args if len(step.args) == 3 and not step.kwargs else (None, None, None)
        taken, value = self.spellings.step(found, "jnp.take"), number(missing)
        if (
            taken is None
            or value is None
            or not np.isnan(value)
            or set(taken.kwargs) != {"axis"}
            or len(taken.args) != 2
        ):
            return None
        (table, at), axis = taken.args, taken.kwargs["axis"]
        clipped = self.spellings.step(at, "jnp.clip")
        if clipped is None or clipped.kwargs or len(clipped.args) != 3 or not isinstance(table, Variable):
            return None
        index, size = clipped.args[0], table.shape[axis]
        if not isinstance(index, Variable) or not isinstance(size, int) or np.dtype(table.dtype).kind != "f":
            return None
        if not is_number(clipped.args[1], -size) or not is_number(clipped.args[2], size - 1):
            return None
        before, behind = axis % len(table.shape), len(table.shape) - 1 - axis % len(table.shape)
        shape = (*[1] * before, *index.shape, *[1] * behind)
        if not self._is_comparison(condition, index, at, shape) or step.outputs.shape != taken.outputs.shape:
            return None
        return Step("call", "jnp.take", (table, index), taken.kwargs, step.outputs, step.node)

    def _is_comparison(self, value: RuntimeValue, index: Variable, at: RuntimeValue, shape: tuple) -> bool:
        """Whether a value is where two are equal, along axes of its own."""
        own = value.shape if isinstance(value, Variable) else ()
        if (*[1] * (len(shape) - len(own)), *own) != shape:
            return False
        while (added := self.spellings.step(value, "jnp.expand_dims", "jnp.reshape")) is not None:
            value = added.args[0]
        compared = self.spellings.step(value, "==")
        return compared is not None and {*map(id, compared.args)} == {id(index), id(at)}

    def converted(self, step: Step) -> Step | None:
        """`clip(x, -128, 127).astype(int8)` is `x.astype(int8)`: XLA's conversion saturates. A rounded `x` is quantized."""
        limits = _limits(step.args[1]) if len(step.args) == 2 and not step.kwargs else None
        clipped = self.spellings.step(step.args[0], "jnp.clip")
        if limits is None or clipped is None or clipped.kwargs or len(clipped.args) != 3:
            return None
        x = self._without_nan(clipped.args[0])
        if x is None or not all(is_number(clipped.args[1 + at], limits[at]) for at in range(2)):
            return None
        shifted = self.spellings.step(x, "+", "-")
        if self.spellings.step(x if shifted is None else shifted.args[0], "jnp.round") is not None:
            return None
        return Step(step.form, step.name, (x, step.args[1]), {}, step.outputs, step.node)

    def saturated(self, step: Step) -> Step | None:
        """`where(x >= 2**31, 2**31 - 1, maximum(x, -2**31).astype(int32))`, of numbers, is `x.astype(int32)`."""
        above, largest, other = step.args if len(step.args) == 3 and not step.kwargs else (None, None, None)
        converted, compared = self.spellings.step(other, "astype"), self.spellings.step(above, ">=")
        limits = _limits(step.outputs.dtype)
        if converted is None or compared is None or limits is None or not is_number(largest, limits[1]):
            return None
        bounded = self.spellings.step(converted.args[0], "jnp.maximum")
        if bounded is None or converted.outputs.dtype != step.outputs.dtype:
            return None
        value, low = bounded.args if isinstance(bounded.args[0], Variable) else bounded.args[::-1]
        x, lowest, limit = self._without_nan(value), number(low), number(compared.args[1])
        if x is None or compared.args[0] is not value or lowest is None or limit is None or x.dtype != np.float32:
            return None
        if np.float32(lowest) != np.float32(limits[0]) or np.float32(limit) != np.float32(limits[1]):
            return None
        return Step("method", "astype", (x, converted.args[1]), {}, step.outputs, step.node)

    def _without_nan(self, value: RuntimeValue) -> Variable | None:
        """Return `x` of `where(isnan(x), 0, x)`, or of `x`, of floats in single precision: XLA converts NaN to zero."""
        chosen = self.spellings.step(value, "jnp.where")
        if chosen is not None and len(chosen.args) == 3 and is_number(chosen.args[1], 0):
            told = self.spellings.step(chosen.args[0], "jnp.isnan")
            value = chosen.args[2] if told is not None and told.args[0] is chosen.args[2] else value
        return value if isinstance(value, Variable) and value.dtype == np.float32 else None

    def largest(self, step: Step) -> Step | None:
        """`where(any(isnan(x)), nan, max(x))` is `max(x)`: ONNX Runtime's maximum may ignore NaN, JAX's does not."""
        condition, nan, most = step.args if len(step.args) == 3 and not step.kwargs else (None, None, None)
        reduced, value = self.spellings.step(most, "jnp.max", "jnp.min"), number(nan)
        told = self.spellings.step(condition, "astype")
        counted = self.spellings.step(told.args[0], "jnp.max") if told is not None else None
        small = self.spellings.step(counted.args[0], "astype") if counted is not None else None
        asked = self.spellings.step(small.args[0], "jnp.isnan") if small is not None else None
        if reduced is None or counted is None or asked is None or value is None or not np.isnan(value):
            return None
        if asked.args[0] is not reduced.args[0] or counted.kwargs != reduced.kwargs or len(reduced.args) != 1:
            return None
        if not isinstance(condition, Variable) or condition.dtype != bool or reduced.outputs.dtype != np.float32:
            return None
        return Step(reduced.form, reduced.name, reduced.args, reduced.kwargs, step.outputs, step.node)

    def _both(self, value: RuntimeValue) -> tuple[RuntimeValue, RuntimeValue] | None:
        both = self.spellings.step(value, "jnp.logical_and", "&")
        return (both.args[0], both.args[1]) if both is not None and len(both.args) == 2 else None

    def _denied(self, value: RuntimeValue) -> RuntimeValue:
        """Return what a value is the negation of, or None."""
        denied = self.spellings.step(value, "jnp.logical_not", "~")
        if denied is not None:
            return denied.args[0]
        compared = self.spellings.step(value, "==")  # with a constant False
        known = compared.args[1] if compared is not None and isinstance(compared.args[1], HostValue) else None
        is_false = known is not None and known.dtype == bool and known.size == 1 and not bool(known.data.any())
        return compared.args[0] if is_false and compared is not None else None

    def _quotient(self, value: RuntimeValue) -> tuple[Variable, float | Dim] | None:
        """Return what is divided, and the positive whole number or size by which, rounded towards zero."""
        divided = self.spellings.step(value, "lax.div")
        if divided is None or len(divided.args) != 2:
            return None
        x, divisor = map(self._unbroadcast, divided.args)
        count = _count(divisor)
        if not isinstance(x, Variable) or np.dtype(x.dtype).kind != "i" or x.shape != divided.outputs.shape:
            return None
        return (x, count) if count is not None else None

    def _unbroadcast(self, value: RuntimeValue) -> RuntimeValue:
        made = self.spellings.parts.get(value) if isinstance(value, Variable) else None
        if made is None or made[0].name != "jnp.broadcast_arrays":
            return value
        return made[0].args[made[1]]

    def _rest(self, value: RuntimeValue) -> tuple[Variable, float | Dim] | None:
        """Return what is divided, and by which number, if a value is the rest that has the sign of what is divided."""
        rest = self.spellings.step(value, "-")
        product = self.spellings.step(rest.args[1], "*") if rest is not None and len(rest.args) == 2 else None
        if rest is None or product is None:
            return None
        for quotient, factor in (product.args, product.args[::-1]):
            divided = self._quotient(quotient)
            if divided is not None and divided[0] is rest.args[0] and _is_count(factor, divided[1]):
                return divided
        return None

    def _is_not_positive(self, value: RuntimeValue, x: Variable) -> bool:
        compared = self.spellings.step(self._denied(value), "==")
        sign = self.spellings.step(compared.args[0], "jnp.sign") if compared is not None else None
        return sign is not None and compared is not None and sign.args[0] is x and is_number(compared.args[1], 1)

    def _is_unequal_to_zero(
        self, value: RuntimeValue, x: Variable, quotient: RuntimeValue, divisor: float | Dim
    ) -> bool:
        compared = self.spellings.step(self._denied(value), "==")
        if compared is None or not is_number(compared.args[1], 0):
            return False
        rest = self.spellings.step(compared.args[0], "-")
        product = self.spellings.step(rest.args[1], "*") if rest is not None and len(rest.args) == 2 else None
        if rest is None or product is None or rest.args[0] is not x:
            return False
        pairs = (product.args, product.args[::-1])
        return any(one is quotient and _is_count(other, divisor) for one, other in pairs)

    def _is_not_zero(self, value: RuntimeValue, rest: RuntimeValue) -> bool:
        compared = self.spellings.step(self._denied(value), "==")
        return compared is not None and compared.args[0] is rest and is_number(compared.args[1], 0)

    def _is_negative(self, value: RuntimeValue, rest: RuntimeValue) -> bool:
        inner = self._denied(value)
        inner = self._denied(inner) if inner is not None else value
        compared = self.spellings.step(inner if inner is not None else value, "<")
        return compared is not None and compared.args[0] is rest and is_number(compared.args[1], 0)


def _whole(divisor: float | Dim) -> Dim:
    return int(divisor) if isinstance(divisor, int | float) else divisor


def _limits(dtype: RuntimeValue) -> tuple[int, int] | None:
    kind = np.dtype(dtype)
    return (int(np.iinfo(kind).min), int(np.iinfo(kind).max)) if kind.kind in "iu" else None

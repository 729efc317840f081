"""A recorded program without operations that have no effect, and with JAX's own calls in place of what an export spelled out.

Every printer gets the program in this form. A rule rewrites a step only if the result has the same bits for every input, NaN
and -0.0 included. So `x + 0.0`, which makes 0.0 of -0.0, goes only where `x` cannot be -0.0, or where all that read the sum do
not tell one zero from the other; `x - 0.0` and `x * 1.0` always do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from jaxport.codegen.recorded.spelled import Spelled, is_number, plain_sizes
from jaxport.codegen.recorded.truth import REARRANGING, Truth, is_like
from jaxport.codegen.structure.spelling.spellings import Spellings, number
from jaxport.codegen.structure.steps import reads, renamed, variables
from jaxport.importer.traced.tracing import RecordedProgram
from jaxport.importer.values.host import HostValue, RuntimeValue, is_dim
from jaxport.importer.values.recording import Function, Step, Variable, map_leaves

__all__ = ["simplified"]

Value = Variable | HostValue
Rule = Callable[[Step], "Value | Step | None"]

LONGEST_FRACTION = 32
"""A factor of one part in more than these is written as a division."""

LEAST_SCALE = 2.0**-80
"""A factor with which no whole number but zero becomes zero."""

WITHOUT_NEGATIVE_ZERO = frozenset(
    """jnp.abs jnp.exp jnp.square jnp.arange jnp.ones nn.sigmoid nn.softmax nn.softplus nn.one_hot jnp.cosh
    jnp.ones_like""".split()
)
"""Functions whose result is never -0.0."""
BLIND_TO_ZEROS = frozenset(
    """== != < <= > >= jnp.abs jnp.exp jnp.cos jnp.square nn.sigmoid nn.softmax nn.log_softmax nn.softplus
    jnp.logical_not jnp.isnan jnp.isinf jnp.cosh""".split()
)
"""Functions that give the same bits for -0.0 and 0.0."""


def simplified(recorded: RecordedProgram) -> RecordedProgram:
    """Return a recorded program that computes the same with fewer operations.

    >>> import onnx.parser
    >>> from jaxport.importer import from_onnx
    >>> from jaxport.importer.traced.tracing import record
    >>> program = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[n] x) => (float[n] y) <float one = {1}> { h = Mul(x, one) y = Tanh(h) }''')
    ... )
    >>> [step.name for step in simplified(record(program)).steps]
    ['jnp.tanh']
    """
    rewriting = _Simplifying(_readers(recorded.steps), {*variables(recorded.outputs)})
    steps = rewriting.all(recorded.steps)
    return replace(recorded, steps=steps, outputs=map_leaves(rewriting.current, recorded.outputs))


def _readers(steps: Sequence[Step]) -> dict[Variable, list[Step]]:
    """Return the steps that read each value; a nested function is read by its steps."""
    readers: dict[Variable, list[Step]] = {}
    for step in steps:
        inner = [leaf for leaf in jax.tree.leaves((step.args, step.kwargs)) if isinstance(leaf, Function)]
        for variable in reads(step):
            readers.setdefault(variable, []).append(step)
        for function in inner:
            for variable, found in _readers(function.steps).items():
                readers.setdefault(variable, []).extend(found)
    return readers


@dataclass(eq=False)
class _Simplifying:
    """The steps so far.

    Attributes:
      readers: the steps that read each value, as they were.
      results: the values that the program, or a nested function, returns.
      same: what stands for values that are gone.
      spellings: the step that makes each value.
    """

    readers: Mapping[Variable, Sequence[Step]]
    results: Collection[Variable]
    same: dict[Variable, Value] = field(default_factory=dict)
    spellings: Spellings = field(default_factory=Spellings)

    def __post_init__(self) -> None:
        spelled, truth = Spelled(self.spellings), Truth(self.spellings)
        self.rules: Mapping[str, tuple[Rule, ...]] = {
            "jnp.minimum": (self._bounded,),
            "jnp.maximum": (self._bounded,),
            "jnp.clip": (self._clipped,),
            "+": (self._plus_zero, self._broadcast),
            "jnp.mod": (spelled.modulo,),
            "-": (self._minus_zero, self._broadcast),
            "*": (self._times_one, self._over_whole, self._broadcast),
            "/": (self._over_one, self._broadcast),
            "": (self._part,),
            "astype": (spelled.converted, self._counted),
            "jnp.arange": (self._from_zero,),
            "jnp.stack": (self._stacked_alone,),
            "helper.gather_nd": (self._element,),
            **dict.fromkeys(REARRANGING - {"jnp.broadcast_to"}, (self._rearranged,)),
            "jnp.logical_not": (truth.denied,),
            **dict.fromkeys(("==", "!="), (truth.compared,)),
            "jnp.where": (
                truth.chosen,
                spelled.floor,
                spelled.floor_of_product,
                spelled.remainder,
                spelled.lookup,
                spelled.saturated,
                spelled.largest,
            ),
        }

    def current(self, leaf: RuntimeValue) -> RuntimeValue:
        return self.same.get(leaf, leaf) if isinstance(leaf, Variable) else leaf

    def all(self, steps: Sequence[Step]) -> list[Step]:
        """Return steps in simple form; what stands for their results is in `same`."""
        made: list[Step] = []
        for original in steps:
            step = self._with_simple_functions(renamed(original, self.same))
            while True:
                output = step.outputs
                rules = self.rules.get(step.name, ()) if isinstance(output, Variable) and step.form != "vmap" else ()
                found = next((found for rule in rules if (found := rule(step)) is not None), None)
                if not isinstance(found, Step):
                    break
                step = found
            if found is None:
                made.append(step)
                self.spellings.note(step)
            else:
                if isinstance(found, Variable) and not found.hint:
                    found.hint = step.outputs.hint
                self.same[step.outputs] = found
        return made

    def _with_simple_functions(self, step: Step) -> Step:
        def simple(leaf: RuntimeValue) -> RuntimeValue:
            if not isinstance(leaf, Function):
                return leaf
            inner = _Simplifying(self.readers, {*self.results, *variables(leaf.result)}, self.same, self.spellings)
            steps = inner.all(leaf.steps)
            return Function(leaf.name, leaf.parameters, steps, map_leaves(inner.current, leaf.result))

        if not any(isinstance(leaf, Function) for leaf in jax.tree.leaves((step.args, step.kwargs))):
            return step
        args, kwargs = map_leaves(simple, step.args), map_leaves(simple, step.kwargs)
        return Step(step.form, step.name, args, kwargs, step.outputs, step.node)

    def _bounded(self, step: Step) -> Value | None:
        """`maximum(x, -inf)` and `minimum(x, inf)` are `x`; a double beyond a type's range is infinite in it."""
        side = -np.inf if step.name == "jnp.maximum" else np.inf
        for bound, other in (step.args, step.args[::-1]) if len(step.args) == 2 and not step.kwargs else ():
            if _is_everywhere(bound, side, step.outputs.dtype) and is_like(other, step.outputs):
                return other
        return None

    def _clipped(self, step: Step) -> Value | Step | None:
        """`clip(x, -inf, b)` is `minimum(x, b)`."""
        x, low, high = step.args if len(step.args) == 3 and not step.kwargs else (None, None, None)
        if not is_like(x, step.outputs):
            return None
        dtype = step.outputs.dtype
        is_low = low is None or _is_everywhere(low, -np.inf, dtype)
        is_high = high is None or _is_everywhere(high, np.inf, dtype)
        if is_low and is_high:
            return x
        if is_low or is_high:
            name, bound = ("jnp.minimum", high) if is_low else ("jnp.maximum", low)
            return Step("call", name, (x, bound), {}, step.outputs, step.node) if not _is_large(bound) else None
        return None

    def _plus_zero(self, step: Step) -> Value | None:
        """`x + 0` is `x`, of integers; of floats if that is the same bits where it matters, and `x + -0.0` always."""
        for zero, other in (step.args, step.args[::-1]):
            if not _is_everywhere(zero, 0.0, step.outputs.dtype) or not is_like(other, step.outputs):
                continue
            whole = np.dtype(step.outputs.dtype).kind in "iu"
            negative = isinstance(zero, HostValue) and bool(np.signbit(zero.data.astype(np.float64)).all())
            if whole or negative or self._is_never_negative_zero(other) or self._is_blind(step.outputs):
                return other
        return None

    def _is_never_negative_zero(self, value: RuntimeValue, depth: int = 0) -> bool:
        if isinstance(value, HostValue):
            return not value.symbolic and not bool((np.signbit(value.data) & (value.data == 0)).any())
        if isinstance(value, Variable) and np.dtype(value.dtype).kind != "f":
            return True
        step = self.spellings.made.get(value) if isinstance(value, Variable) else None
        if step is None or step.form == "vmap" or depth > LONGEST_FRACTION:
            return False
        if step.name in WITHOUT_NEGATIVE_ZERO:
            return True
        if step.name == "+":  # two zeros are -0.0 only if both are
            return any(self._is_never_negative_zero(arg, depth + 1) for arg in step.args)
        if step.name == "-" and len(step.args) == 2:  # -0.0 is -0.0 - 0.0 only
            return self._is_never_negative_zero(step.args[0], depth + 1)
        if step.name == "*":  # a whole number and a positive one that is not so small that the product is 0
            scales = [arg for arg in step.args if isinstance(arg, HostValue) and _are_at_least(arg, LEAST_SCALE)]
            return bool(scales) and any(self._is_whole(arg) for arg in step.args if arg not in scales)
        if step.name in ("astype", *REARRANGING):
            return self._is_never_negative_zero(step.args[0], depth + 1)
        return False

    def _is_whole(self, value: RuntimeValue) -> bool:
        """Whether a value is a conversion of integers, or one less a whole number: it is never -0.0."""
        step = self.spellings.step(value, "astype", "-")
        if step is not None and step.name == "-" and len(step.args) == 2:
            shift = number(step.args[1])
            return shift is not None and float(shift).is_integer() and self._is_whole(step.args[0])
        source = step.args[0] if step is not None else None
        return isinstance(source, Variable) and np.dtype(source.dtype).kind in "iu"

    def _is_blind(self, value: Variable) -> bool:
        """Whether all that read a value do not tell one zero from the other."""
        if value in self.results or not self.readers.get(value):
            return False
        return all(reader.form != "vmap" and self._is_blind_reader(reader, value) for reader in self.readers[value])

    def _is_blind_reader(self, reader: Step, value: Variable) -> bool:
        """Whether a step gives the same bits for -0.0 and 0.0, or results which all that read them do not tell apart."""
        if reader.name in BLIND_TO_ZEROS:
            return True
        if reader.name == "astype":
            return np.dtype(reader.outputs.dtype).kind in "iu"
        others = [arg for arg in reader.args if arg is not value]
        if not all(isinstance(arg, HostValue | int | float) for arg in others):
            return False
        passes = reader.name in ("jnp.round", "jnp.clip") or (reader.name in ("*", "/") and reader.args[0] is value)
        return passes and isinstance(reader.outputs, Variable) and self._is_blind(reader.outputs)

    def _minus_zero(self, step: Step) -> Value | None:
        """`x - 0.0` is `x`."""
        if len(step.args) != 2:
            return None
        x, zero = step.args
        if not _is_everywhere(zero, 0.0, step.outputs.dtype) or not is_like(x, step.outputs):
            return None
        return None if isinstance(zero, HostValue) and bool(np.signbit(zero.data.astype(np.float64)).any()) else x

    def _times_one(self, step: Step) -> Value | None:
        """`x * 1` is `x`."""
        for one, other in (step.args, step.args[::-1]):
            if _is_everywhere(one, 1.0, step.outputs.dtype) and is_like(other, step.outputs):
                return other
        return None

    def _over_one(self, step: Step) -> Value | None:
        """`x / 1` is `x`."""
        x, one = step.args
        return x if _is_everywhere(one, 1.0, step.outputs.dtype) and is_like(x, step.outputs) else None

    def _broadcast(self, step: Step) -> Step | None:
        """`x + expand_dims(b, 0)` is `x + b`: axes of one element are added in front, and one element meets any shape."""
        for place, value in enumerate(step.args):
            spread = self.spellings.step(value, "jnp.expand_dims", "jnp.reshape") if len(step.args) == 2 else None
            inner, other = spread.args[0] if spread is not None else None, step.args[place - 1]
            if not isinstance(inner, Variable) or not isinstance(other, Variable) or other.shape != step.outputs.shape:
                continue
            added = len(value.shape) - len(inner.shape)
            if added > 0 and (value.shape == (*[1] * added, *inner.shape) or {*value.shape} == {1}):
                args = (inner, other) if place == 0 else (other, inner)
                return Step(step.form, step.name, args, step.kwargs, step.outputs, step.node)
        return None

    def _over_whole(self, step: Step) -> Step | None:
        """`x * 0.001953125` is `x / 512`: both are the exact quotient, rounded once."""
        for factor, other in (step.args, step.args[::-1]):
            value = number(factor)
            if value is None or not isinstance(other, Variable) or np.dtype(step.outputs.dtype) != np.float32:
                continue
            mantissa, exponent = np.frexp(value)
            if mantissa == 0.5 and -24 < exponent <= 0 and 1 / value >= LONGEST_FRACTION and not _is_large(factor):
                divisor = HostValue(np.asarray(1 / value, step.outputs.dtype))
                return Step("operator", "/", (other, divisor), {}, step.outputs, step.node)
        return None

    def _part(self, step: Step) -> Value | Step | None:
        """`x[0:, 0:129, 0:]` is `x[:, :129]`, and `x[:]` is `x`."""
        if step.form != "index":
            return None
        x, index = step.args
        parts: tuple[RuntimeValue, ...] = index if isinstance(index, tuple) else (index,)
        if (
            not isinstance(x, Variable)
            or not all(isinstance(part, slice) for part in parts)
            or len(parts) > len(x.shape)
        ):
            return None
        plain = [_plain_slice(part, size) for part, size in zip(parts, x.shape, strict=False)]
        while plain and plain[-1] == slice(None):
            plain.pop()
        if not plain:
            return x
        if len(plain) == len(parts) and all(map(_are_same_bounds, plain, parts)):
            return None
        chosen = tuple(plain) if len(plain) > 1 else plain[0]
        return Step("index", "", (x, chosen), {}, step.outputs, step.node)

    def _stacked_alone(self, step: Step) -> Step | None:
        """`stack([x], axis=1)` is `expand_dims(x, 1)`."""
        parts, axis = step.args[0], step.kwargs.get("axis", 0)
        if len(parts) != 1 or not isinstance(parts[0], Variable) or len(step.args) > 1 or type(axis) is not int:
            return None
        return Step(
            "call", "jnp.expand_dims", (parts[0], (axis % len(step.outputs.shape),)), {}, step.outputs, step.node
        )

    def _element(self, step: Step) -> Step | None:
        """`gather_nd(x, concatenate([expand_dims(i, 1), expand_dims(j, 1)], axis=1), 0)` is `x[i, j]`."""
        joined = (
            self.spellings.step(step.args[1], "jnp.concatenate") if len(step.args) == 3 and step.args[2] == 0 else None
        )
        if joined is None or not isinstance(step.args[0], Variable) or len(joined.args) != 1:
            return None
        parts, last = joined.args[0], len(joined.outputs.shape) - 1
        added = [self.spellings.step(part, "jnp.expand_dims") for part in parts]
        found = [part.args[0] for part in added if part is not None and part.outputs.shape == (*part.args[0].shape, 1)]
        if len(found) != len(parts) or len(parts) < 2 or joined.kwargs.get("axis", 0) % (last + 1) != last:
            return None
        if not all(isinstance(part, Variable) for part in found):
            return None
        return Step("index", "", (step.args[0], tuple(found)), {}, step.outputs, step.node)

    def _rearranged(self, step: Step) -> Value | Step | None:
        """`expand_dims(x.reshape(b, n, 1), 1).transpose(0, 3, 2, 1)` is `expand_dims(x, 3)`: only axes of one element move."""
        first, source = step, step.args[0]
        if step.name == "jnp.squeeze" and (part := self._single(step)) is not None:
            return part
        is_in_order = _moves_only_ones(step)
        while is_in_order and (before := self.spellings.step(source, *REARRANGING - {"jnp.broadcast_to"})) is not None:
            first, source, is_in_order = before, before.args[0], _moves_only_ones(before)
        if (
            not is_in_order
            or first is step
            or not isinstance(source, Variable)
            or not _keeps_order(source.shape, step.outputs.shape)
        ):
            return None
        one, other = source.shape, step.outputs.shape
        if one == other:
            return source
        added, removed = _ones_beside(one, other), _ones_beside(other, one)
        if added is not None:
            return Step("call", "jnp.expand_dims", (source, added), {}, step.outputs, step.node)
        if removed is not None:
            return Step("call", "jnp.squeeze", (source, removed), {}, step.outputs, step.node)
        return None

    def _single(self, step: Step) -> Step | None:
        """`squeeze(x[1:2], 0)` is `x[1]`."""
        cut = self.spellings.step(step.args[0], "")
        axes = step.args[1] if len(step.args) == 2 and not step.kwargs else None
        if (
            cut is None
            or cut.form != "index"
            or not isinstance(axes, int | tuple)
            or not isinstance(cut.args[0], Variable)
        ):
            return None
        x, parts = cut.args[0], [*(cut.args[1] if isinstance(cut.args[1], tuple) else (cut.args[1],))]
        if not all(isinstance(part, slice) for part in parts):
            return None
        for axis in axes if isinstance(axes, tuple) else (axes,):
            axis %= len(x.shape)
            part, size = parts[axis] if axis < len(parts) else slice(None), x.shape[axis]
            begin = 0 if part.start is None else part.start
            end = size if part.stop is None else part.stop
            if part.step not in (None, 1) or type(begin) is not int or type(end) is not int or end - begin != 1:
                return None
            if begin < 0 or (part.start is None and part.stop is None):
                return None
            parts[axis] = begin
        return Step("index", "", (x, tuple(parts) if len(parts) > 1 else parts[0]), {}, step.outputs, step.node)

    def _counted(self, step: Step) -> Step | None:
        """`arange(n).astype(float32)` is `arange(n, dtype=float32)`."""
        counted = self.spellings.step(step.args[0], "jnp.arange")
        dtype = np.dtype(step.args[1]) if len(step.args) == 2 else None
        if counted is None or dtype not in (np.float32, np.int32) or not set(counted.kwargs) <= {"dtype"}:
            return None
        if np.dtype(counted.outputs.dtype).kind not in "iu":
            return None
        return Step("call", "jnp.arange", counted.args, {"dtype": dtype}, step.outputs, step.node)

    def _from_zero(self, step: Step) -> Step | None:
        """`arange(0, n, 1)` is `arange(n)`."""
        if len(step.args) != 3 or not is_number(step.args[0], 0) or not is_number(step.args[2], 1):
            return None
        end = plain_sizes(step.args[1])
        is_default = step.kwargs.keys() == {"dtype"} and np.dtype(step.kwargs["dtype"]) == np.int64
        options = {} if is_default else step.kwargs
        return None if end is None else Step("call", step.name, (end,), options, step.outputs, step.node)


def _is_everywhere(value: RuntimeValue, wanted: float, dtype: np.dtype) -> bool:
    """Whether a value is a constant whose elements are all this number in a type."""
    if isinstance(value, HostValue):
        if value.symbolic or not value.size or value.dtype.kind not in "iuf":
            return False
        data = value.data
    elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
        data = np.asarray(value)
    else:
        return False
    if np.isinf(wanted) and np.dtype(dtype).kind != "f":
        return False
    with np.errstate(over="ignore"):
        return bool((data.astype(dtype) == wanted).all())


def _moves_only_ones(step: Step) -> bool:
    """Whether the elements of a result are in the order of the operand: of the axes that move, at most one has several."""
    if step.name != "jnp.transpose":
        return True
    order = step.args[1] if len(step.args) == 2 and not step.kwargs else None
    if not isinstance(step.args[0], Variable) or not isinstance(order, tuple):
        return False
    several = [axis for axis in order if not _is_one(step.args[0].shape[axis])]
    return several == sorted(several)


def _keeps_order(one: Sequence[RuntimeValue], other: Sequence[RuntimeValue]) -> bool:
    """Whether shapes differ in axes of one element only."""
    sizes, others = ([size for size in shape if not _is_one(size)] for shape in (one, other))
    return len(sizes) == len(others) and all(a is b or bool(a == b) for a, b in zip(sizes, others, strict=True))


def _is_one(size: RuntimeValue) -> bool:
    return type(size) is int and size == 1


def _ones_beside(few: Sequence[RuntimeValue], many: Sequence[RuntimeValue]) -> tuple[int, ...] | None:
    """Return the axes of one element that a shape has beside those of another; None if that has others."""
    added: list[int] = []
    sizes = [*few]
    for axis, size in enumerate(many):
        if sizes and bool(sizes[0] == size):
            sizes.pop(0)
        elif _is_one(size):
            added.append(axis)
        else:
            return None
    return tuple(added) if not sizes and added else None


def _are_at_least(value: HostValue, least: float) -> bool:
    return not value.symbolic and value.dtype.kind == "f" and bool((value.data >= least).all())


def _is_large(value: RuntimeValue) -> bool:
    return isinstance(value, HostValue) and value.size > 1


def _plain_slice(part: slice, size: RuntimeValue) -> slice:
    """Return a slice without bounds that are those of the axis."""
    begin, end, step = part.start, part.stop, part.step
    if step not in (None, 1) or any(isinstance(bound, Variable) for bound in (begin, end)):
        return part
    begin = None if type(begin) is int and begin == 0 else begin
    whole = type(end) is int and isinstance(size, int) and end >= size
    same = is_dim(end) and is_dim(size) and end == size
    return slice(begin, None if whole or same else end, None)


def _are_same_bounds(one: slice, other: slice) -> bool:
    return all(a is b or (type(a) is int and a == b) for a, b in zip(_bounds(one), _bounds(other), strict=True))


def _bounds(part: slice) -> tuple[RuntimeValue, ...]:
    return part.start, part.stop, part.step

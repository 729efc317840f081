"""Rules whose result has the same bits for every input, NaN and -0.0 included: every printer gets programs in this
form.

`x + 0.0`, which makes 0.0 of -0.0, goes only where `x` cannot be -0.0, or where all that read the sum do not tell one
zero from the other; `x - 0.0` and `x * 1.0` always do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxport.codegen.rewriting.known import is_never_negative_zero, truth_of
from jaxport.codegen.rewriting.patterns import bindings, pattern, view
from jaxport.codegen.rewriting.producers import (
    Producers,
    as_tuple,
    axes_of,
    index_of,
    is_like,
    is_number,
    number,
    plain_size,
)
from jaxport.codegen.rewriting.step_rewriting import RuleTable, StepRewriting, Value
from jaxport.codegen.rewriting.steps import REARRANGING, in_place
from jaxport.importer.values.host import Dim, HostValue, is_dim
from jaxport.importer.values.recording import Step, Variable

SAME_BITS = RuleTable()

BLIND_TO_ZEROS = frozenset(
    """== != < <= > >= jnp.abs jnp.exp jnp.cos jnp.square nn.sigmoid nn.softmax nn.log_softmax nn.softplus
    jnp.logical_not jnp.isnan jnp.isinf jnp.cosh""".split()
)
"""Functions that give the same bits for -0.0 and 0.0."""

RESHAPING = REARRANGING - {"T"}


# What changes nothing


def _is_large(value: object) -> bool:
    return isinstance(value, HostValue) and value.size > 1


def _is_negative_zero(zero: object) -> bool:
    return isinstance(zero, HostValue) and bool(np.signbit(zero.data.astype(np.float64)).all())


def _is_blind(value: Variable, rewriting: StepRewriting) -> bool:
    """Whether all that read a value do not tell one zero from the other."""
    readers = rewriting.readers.get(value, ())
    if value in rewriting.results or not readers:
        return False
    return all(reader.form != "vmap" and _is_blind_reader(reader, value, rewriting) for reader in readers)


def _is_blind_reader(reader: Step, value: Variable, rewriting: StepRewriting) -> bool:
    """Whether a step gives the same bits for -0.0 and 0.0, or results which all that read them do not tell apart."""
    if reader.name in BLIND_TO_ZEROS:
        return True
    if reader.name == "astype":
        return np.dtype(reader.outputs.dtype).kind in "iu"
    if not all(isinstance(arg, HostValue | int | float) for arg in reader.args if arg is not value):
        return False
    passes = reader.name in ("jnp.round", "jnp.clip") or (reader.name in ("*", "/") and reader.args[0] is value)
    return passes and isinstance(reader.outputs, Variable) and _is_blind(reader.outputs, rewriting)


def _keeps_zeros(x: object, zero: object, out: Variable, rewriting: StepRewriting) -> bool:
    whole = np.dtype(out.dtype).kind in "iu"
    return (
        whole or _is_negative_zero(zero) or is_never_negative_zero(x, rewriting.producers) or _is_blind(out, rewriting)
    )


SAME_BITS.rewrite("x + (zero := 0)", "x", when=_keeps_zeros)
SAME_BITS.rewrite("jnp.where(x == 0, 0, x)", "x", when=lambda x, out, rewriting: is_like(x, out)
                  and is_never_negative_zero(x, rewriting.producers))  # fmt: skip
SAME_BITS.rewrite("x - (zero := 0)", "x", when=lambda zero: not _is_negative_zero(zero))
SAME_BITS.rewrite("x * 1", "x")
SAME_BITS.rewrite("x / 1", "x")
SAME_BITS.rewrite("jnp.minimum(x, inf)", "x")
SAME_BITS.rewrite("jnp.maximum(x, -inf)", "x")
for _none in ("None", "-inf"):
    SAME_BITS.rewrite(f"jnp.clip(x, {_none}, high)", "jnp.minimum(x, high)",
                      when=lambda x, high, out: is_like(x, out) and high is not None
                      and not _is_large(high))  # fmt: skip
for _none in ("None", "inf"):
    SAME_BITS.rewrite(f"jnp.clip(x, low, {_none})", "jnp.maximum(x, low)",
                      when=lambda x, low, out: is_like(x, out) and low is not None and not _is_large(low))  # fmt: skip
SAME_BITS.rewrite("jnp.clip(x, None, None)", "x")
for _same in (
    "jnp.bitwise_not(jnp.bitwise_not(x))", "jnp.where(_, x, x)", "jnp.broadcast_to(x, _)", "jnp.concatenate([x], **_)",
):  # fmt: skip
    SAME_BITS.rewrite(_same, "x")


# Truth values

SAME_BITS.rewrite("~~x", "x", when=lambda out: out.dtype == bool)
for _same, _opposite in (("x == True", "x == False"), ("x != False", "x != True")):
    SAME_BITS.rewrite(_same, "x")
    SAME_BITS.rewrite(_opposite, "jnp.logical_not(x)", when=is_like)
SAME_BITS.rewrite("~(x == y)", "x != y", when=lambda x, y: isinstance(x, Variable) or isinstance(y, Variable))
SAME_BITS.rewrite("x != x", "jnp.isnan(x)", when=lambda x: isinstance(x, Variable) and np.dtype(x.dtype).kind == "f")
SAME_BITS.rewrite("~(jnp.isinf(x) | jnp.isnan(x))", "jnp.isfinite(x)")
for _reduction, _quantifier in (("jnp.max", "jnp.any"), ("jnp.min", "jnp.all")):
    SAME_BITS.rewrite(f"{_reduction}(c.astype(_), **options).astype(kind)", f"{_quantifier}(c, **options)",
                      when=lambda c, kind: isinstance(c, Variable) and c.dtype == bool and np.dtype(kind) == bool
                      and 0 not in c.shape)  # fmt: skip
SAME_BITS.rewrite("x & True", "x", when=lambda out: out.dtype == bool)
SAME_BITS.rewrite("x | False", "x", when=lambda out: out.dtype == bool)
SAME_BITS.rewrite("jnp.where(c, x, y)", "x", when=lambda c, rewriting: truth_of(c, rewriting.producers) is True)
SAME_BITS.rewrite("jnp.where(c, x, y)", "y", when=lambda c, rewriting: truth_of(c, rewriting.producers) is False)

# Arithmetic


@SAME_BITS.on("+", "-", "*", "/", "jnp.minimum", "jnp.maximum", "<", "<=", ">", ">=", "==", "!=")
def broadcast(step: Step, rewriting: StepRewriting) -> Step | None:
    """`x + expand_dims(b, 0)` is `x + b`: axes of one element are added in front, and one element meets any shape.

    `x / broadcast_to(y, shape)` is `x / y` if `x` has the shape.
    """
    for place, value in enumerate(step.args if len(step.args) == 2 else ()):
        expanded, other = rewriting.producers.step(value, "jnp.broadcast_to"), step.args[place - 1]
        if expanded is not None and isinstance(other, Variable) and other.shape == step.outputs.shape:
            args = (expanded.args[0], other) if place == 0 else (other, expanded.args[0])
            return in_place(step, step.name, *args, form=step.form)
    for place, value in enumerate(step.args):
        spread = rewriting.producers.step(value, "jnp.expand_dims", "jnp.reshape") if len(step.args) == 2 else None
        inner, other = spread.args[0] if spread is not None else None, step.args[place - 1]
        if not isinstance(inner, Variable) or not isinstance(other, Variable) or other.shape != step.outputs.shape:
            continue
        added = len(value.shape) - len(inner.shape)
        if added > 0 and (value.shape == (*[1] * added, *inner.shape) or {*value.shape} == {1}):
            args = (inner, other) if place == 0 else (other, inner)
            return in_place(step, step.name, *args, form=step.form)
    return None


# Functions with a threshold behind which they are their operand, as PyTorch writes them


LARGEST_LOGISTIC = 17
"""From here on `log(1 + exp(x))` is `x` in single precision: the rest is less than half of the last digit."""

SAME_BITS.rewrite("jnp.where(x > threshold, x, nn.softplus(x))", "nn.softplus(x)",
                  when=lambda x, out, threshold: is_like(x, out) and out.dtype == np.float32
                  and (number(threshold) or 0) >= LARGEST_LOGISTIC)  # fmt: skip


# Quotients and remainders

SAME_BITS.rewrite(  # not of other integers, where `x // 0` is 0 for NumPy's arrays
    "jnp.floor_divide(x, y)",
    "x // y",
    when=lambda x, y, out: is_like(x, out) and (out.dtype.kind == "f" or bool(number(y))),
)


def _count(c: object) -> int | Dim | None:
    """Return a known positive number, or a size, as a Python value."""
    if isinstance(c, HostValue) and c.symbolic and c.ndim == 0:
        return c.item()
    found = number(c)
    return None if found is None or found < 1 else int(found)


SAME_BITS.rewrite(
    "jnp.mod(x, c)", "x % count", when=lambda x: isinstance(x, Variable) and np.dtype(x.dtype).kind in "iu",
    count=lambda c: c if isinstance(c, Variable) else _count(c),
)  # fmt: skip


# Functions of JAX that exports spell out, because ONNX's operators differ


@view
def without_nan(value: object, producers: Producers) -> object:
    """Return `x` of `where(isnan(x), 0, x)`, or of `x`, of floats in single precision: XLA converts NaN to zero."""
    found = next(bindings(pattern("jnp.where(jnp.isnan(x), 0, x)"), value, producers), {"x": value})["x"]
    return found if isinstance(found, Variable) and found.dtype == np.float32 else None


@view
def unexpanded(value: object, producers: Producers) -> object:
    """Return a value before axes of one element were added to it."""
    while (added := producers.step(value, "jnp.expand_dims", "jnp.reshape")) is not None:
        value = added.args[0]
    return value


def _is_whole_lookup(
    table: object,
    i: object,
    axis: int,
    low: object,
    high: object,
    told: object,
    found: Variable,
    out: Variable,
) -> bool:
    """Whether a lookup in a table is hidden exactly where an index is not in it."""
    if not isinstance(table, Variable) or not isinstance(i, Variable) or not jnp.issubdtype(table.dtype, np.floating):
        return False
    size, before = table.shape[axis], axis % len(table.shape)
    own = told.shape if isinstance(told, Variable) else ()
    shape = (*[1] * before, *i.shape, *[1] * (len(table.shape) - 1 - before))
    is_in_place = (*[1] * (len(shape) - len(own)), *own) == shape and out.shape == found.shape
    return is_in_place and isinstance(size, int) and is_number(low, -size) and is_number(high, size - 1)


SAME_BITS.rewrite(
    "jnp.where((told := unexpanded(i == at)), (found := jnp.take(table, (at := jnp.clip(i, low, high)), axis=axis)), "
        "nan)",
    "jnp.take(table, i, axis=axis)", when=_is_whole_lookup,
)  # fmt: skip


def _limits(dtype: Any) -> tuple[int, int] | None:
    kind = np.dtype(dtype)
    return (int(np.iinfo(kind).min), int(np.iinfo(kind).max)) if kind.kind in "iu" else None


def _is_saturating(x: object, low: object, high: object, kind: object, rewriting: StepRewriting) -> bool:
    """Whether a value is clipped to the range of an integer type, as XLA's conversion does; a rounded one is
    quantized.
    """
    limits, producers = _limits(kind), rewriting.producers
    shifted = producers.step(x, "+", "-")
    is_rounded = producers.step(x if shifted is None else shifted.args[0], "jnp.round") is not None
    is_clipped = limits is not None and is_number(low, limits[0]) and is_number(high, limits[1])
    return is_clipped and isinstance(x, Variable) and not is_rounded


def _is_in_limits(least: object, most: object, bound: object, x: object, out: Variable) -> bool:
    limits, low, high = _limits(out.dtype), number(least), number(bound)
    if limits is None or low is None or high is None or not isinstance(x, Variable):
        return False
    return is_number(most, limits[1]) and (np.float32(low), np.float32(high)) == (
        np.float32(limits[0]),
        np.float32(limits[1]),
    )


SAME_BITS.rewrite("jnp.clip(without_nan(x), low, high).astype(kind)", "x.astype(kind)", when=_is_saturating)
SAME_BITS.rewrite(
    "jnp.where((y := jnp.maximum(without_nan(x), least)) >= bound, most, y.astype(kind))", "x.astype(kind)",
    when=_is_in_limits,
)  # fmt: skip

for _extreme in ("jnp.max", "jnp.min"):  # ONNX Runtime's may ignore NaN, JAX's does not
    SAME_BITS.rewrite(
        f"jnp.where(jnp.any(jnp.isnan(x), **options), nan, {_extreme}(x, **options))", f"{_extreme}(x, **options)",
        when=lambda x: isinstance(x, Variable) and x.dtype == np.float32,
    )  # fmt: skip


# Positions, parts, and axes of one element

SAME_BITS.rewrite("jnp.arange(0, n, 1, **options)", "jnp.arange(end, **others)", end=plain_size,
                  others=lambda options: {} if options == {"dtype": np.dtype(np.int64)} else options)  # fmt: skip
SAME_BITS.rewrite(
    "(whole := jnp.arange(*ends, **options)).astype(kind)", "jnp.arange(*ends, dtype=kind)",
    when=lambda options, kind, whole: options.keys() <= {"dtype"} and np.dtype(kind) in (np.float32,
        np.int32) and whole.dtype.kind in "iu",
)  # fmt: skip
SAME_BITS.rewrite("jnp.stack([x], **options)", "jnp.expand_dims(x, axes)", when=lambda x: isinstance(x, Variable),
                  axes=lambda options, out: (options.get("axis", 0) % len(out.shape),))  # fmt: skip


@SAME_BITS.on("")
def part(step: Step) -> Value | Step | None:
    """`x[0:, 0:129, 0:]` is `x[:, :129]`, and `x[:]` is `x`."""
    if step.form != "index":
        return None
    x, index = step.args
    parts = as_tuple(index)
    if not isinstance(x, Variable) or not all(isinstance(part, slice) for part in parts) or len(parts) > len(x.shape):
        return None
    plain = as_tuple(index_of(*map(_plain_slice, parts, x.shape)))
    if plain == (None,):
        return x
    return None if plain == parts else in_place(step, "", x, index_of(*plain), form="index")


@SAME_BITS.on("helper.gather_nd")
def element(step: Step, rewriting: StepRewriting) -> Step | None:
    """`gather_nd(x, concatenate([expand_dims(i, 1), expand_dims(j, 1)], axis=1), 0)` is `x[i, j]`."""
    (x, at, *_), producers = step.args, rewriting.producers
    joined = producers.step(at, "jnp.concatenate") if step.args[2:] == (0,) else None
    if joined is None or not isinstance(x, Variable) or len(joined.args) != 1:
        return None
    parts, last = joined.args[0], len(joined.outputs.shape) - 1
    added = [part for each in parts if (part := producers.step(each, "jnp.expand_dims")) is not None]
    found = [part.args[0] for part in added if part.outputs.shape == (*part.args[0].shape, 1)]
    if len(found) != len(parts) or len(parts) < 2 or joined.kwargs.get("axis", 0) % (last + 1) != last:
        return None
    return (
        in_place(step, "", x, tuple(found), form="index") if all(isinstance(each, Variable) for each in found) else None
    )


@SAME_BITS.on("jnp.squeeze")
def single(step: Step, rewriting: StepRewriting) -> Step | None:
    """`squeeze(x[:, 1:2], 1)` is `x[:, 1]`."""
    cut = rewriting.producers.step(step.args[0], "")
    axes = axes_of(step.args[1], len(step.args[0].shape)) if len(step.args) == 2 and not step.kwargs else None
    if cut is None or cut.form != "index" or axes is None or not isinstance(cut.args[0], Variable):
        return None
    x, parts = cut.args[0], as_tuple(cut.args[1])
    if not all(isinstance(part, slice) for part in parts) or {*axes}.isdisjoint(range(len(parts))):
        return None
    index: list[Any] = [*parts, *[slice(None)] * (max(axes) + 1 - len(parts))]
    for axis in axes:
        index[axis] = _place_of_single(index[axis], x.shape[axis])
    return None if None in index else in_place(step, "", x, index_of(*index), form="index")


def _place_of_single(part: slice, size: Dim) -> int | None:
    """Return the place of the only element that a slice takes, if it is known."""
    if any(type(end) is not int for end in (part.start, part.stop) if end is not None):
        return None
    if isinstance(size, int):
        return part.indices(size)[0]
    begin, end = part.start or 0, part.stop or 0
    return begin if begin >= 0 and end - begin == 1 and part.step in (None, 1) else None


@SAME_BITS.on(*RESHAPING)
def rearranged(step: Step, out: Variable, rewriting: StepRewriting) -> Value | Step | None:
    """`expand_dims(x.reshape(b, n, 1), 1).transpose(0, 3, 2, 1)` is `expand_dims(x, 3)`: only axes of one element
    move.
    """
    source: Variable | None = None
    before: Step | None = step
    while before is not None and _moves_only_ones(before):
        x = before.args[0]
        if (
            isinstance(x, Variable)
            and _keeps_order(x.shape, out.shape)
            and (before is not step or x.shape == out.shape)
        ):
            source = x
        before = rewriting.producers.step(x, *RESHAPING)
    if source is None or source.shape == out.shape:
        return source
    added, removed = _ones_beside(source.shape, out.shape), _ones_beside(out.shape, source.shape)
    if added is not None:
        return in_place(step, "jnp.expand_dims", source, added)
    return None if removed is None else in_place(step, "jnp.squeeze", source, removed)


def _moves_only_ones(step: Step) -> bool:
    """Whether the elements of a result are in the order of the operand: of the axes that move, at most one has
    several.
    """
    if step.name != "jnp.transpose":
        return True
    order = step.args[1] if len(step.args) == 2 and not step.kwargs else None
    if not isinstance(step.args[0], Variable) or not isinstance(order, tuple):
        return False
    several = [axis for axis in order if not _is_one(step.args[0].shape[axis])]
    return several == sorted(several)


def _keeps_order(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether shapes differ in axes of one element only."""
    sizes, others = ([size for size in shape if not _is_one(size)] for shape in (one, other))
    return len(sizes) == len(others) and all(a is b or bool(a == b) for a, b in zip(sizes, others, strict=True))


def _is_one(size: object) -> bool:
    return type(size) is int and size == 1


def _ones_beside(few: Sequence[object], many: Sequence[object]) -> tuple[int, ...] | None:
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


def _plain_slice(part: slice, size: object) -> slice:
    """Return a slice without bounds that are those of the axis."""
    begin, end, step = part.start, part.stop, part.step
    if (begin, step) == (-1, -1):
        return slice(None, end, step)
    if step not in (None, 1) or any(isinstance(bound, Variable) for bound in (begin, end)):
        return part
    begin = None if type(begin) is int and begin == 0 else begin
    whole = type(end) is int and isinstance(size, int) and end >= size
    same = is_dim(end) and is_dim(size) and end == size
    return slice(begin, None if whole or same else end, None)


SAME_BITS.rewrite("jnp.reshape(x, _)[0]", "x", when=lambda out: not out.shape)

"""JAX's functions that an export spells out, because ONNX has other operators.

r = fmod(x, 3); where((r < 0) & (r != 0), r + 3, r)                   →   x % 3
take_along_axis(x, top_k(-where(isnan(x), inf, x), n)[1], axis=1)      →   sort(x, axis=1)
where(arange(n)[:, None] >= arange(m), x, 0)                           →   tril(x)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxport.codegen.rewriting.known import diagonal_of
from jaxport.codegen.rewriting.patterns import bindings, pattern, view
from jaxport.codegen.rewriting.producers import Producers, as_tuple, axes_of, index_of, is_like, is_number, number
from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.rewriting.steps import in_place, variables
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN, is_single
from jaxport.importer.values.host import Dim, HostValue, is_dim
from jaxport.importer.values.recording import Step, Variable
from jaxport.jaxprs import Parameters
from jaxport.jaxprs.dim_text import parse
from jaxport.onnx_facts import OF_PYTORCH

# Order

ONE_ZERO = "jnp.where(x == 0, 0, x)"
"""Elements whose zeros have one sign."""


@view
def key(value: object, producers: Producers) -> Any:
    """Return the elements that a sort orders: without NaN as infinity, which JAX puts behind it, and zeros with one sign."""
    for text in (ONE_ZERO, "jnp.where(jnp.isnan(x), inf, x)"):
        value = _inside(text, value, producers)
    return value


@view
def with_signs_of_zeros(value: object, producers: Producers) -> object:
    """Return elements before their zeros got one sign."""
    return _inside(ONE_ZERO, value, producers)


def _inside(text: str, value: object, producers: Producers) -> object:
    """Return the `x` of a pattern that a value has; any other value as it is."""
    return next(bindings(pattern(text), value, producers), {"x": value})["x"]


@AS_WRITTEN.on_several("lax.top_k")
def ordered(step: Step, rewriting: StepRewriting) -> None:
    """The positions of `lax.top_k(-x, n)` of all `n` elements are `argsort(x)`, and the negated values `sort(x)`."""
    (x, count), (values, indices), axis = step.args, step.outputs, step.kwargs.get("axis", -1)
    inverse = rewriting.producers.step(x, "-", "jnp.negative", "jnp.bitwise_not")
    if step.kwargs.keys() - {"axis"} or inverse is None or len(inverse.args) != 1 or not _is_size(count, x.shape[axis]):
        return
    source = key(inverse.args[0], rewriting.producers)
    if not isinstance(source, Variable) or source.shape != values.shape:
        return
    order = rewriting.call(step, "jnp.argsort", (source,), _like(indices), axis=axis)
    ascending = rewriting.call(step, "jnp.sort", (source,), _like(values), axis=axis)
    descending = rewriting.call(step, inverse.name, (ascending,), _like(values), inverse.form)
    rewriting.same |= {indices: order, values: descending}


@AS_WRITTEN.on_several("lax.top_k")
def of_equals_in_any_order(step: Step, rewriting: StepRewriting) -> None:
    """`lax.top_k(where(x == 0, 0, x), k)` is `lax.top_k(x, k)` in a model of PyTorch, which leaves the order of equal elements open."""
    x = _inside(ONE_ZERO, step.args[0], rewriting.producers)
    if x is step.args[0] or OF_PYTORCH not in getattr(step.node, "metadata_props", ()):
        return
    outputs = tuple(map(_like, step.outputs))
    rewriting.add(Step("call", step.name, (x, *step.args[1:]), step.kwargs, outputs, step.node))
    rewriting.same |= dict(zip(step.outputs, outputs, strict=True))


def _are_all(x: Any, n: object, options: Parameters, others: Parameters, axis: int) -> bool:
    """Whether a first order is of all elements along an axis, and a second one along the same."""
    if not isinstance(x, Variable) or options.keys() | others.keys() > {"axis"}:
        return False
    axes = {each % len(x.shape) for each in (axis, options.get("axis", -1), others.get("axis", -1))}
    return len(axes) == 1 and _is_size(n, x.shape[axis])


def _indices(x: Any, k: Any, axis: int, out: Variable, step: Step, rewriting: StepRewriting) -> object:
    """Return the positions of the largest elements, by a step that has their values, too."""
    if not isinstance(x, Variable):
        return None
    outputs = (Variable(out.shape, x.dtype), _like(out))
    rewriting.add(Step("call", "lax.top_k", (x, k), {"axis": axis}, outputs, step.node))
    return outputs[1]


# Zeros of both signs, and NaN, are told apart by the reciprocal, which is ordered first.
for _one, _other in (
    ("jnp.where((m := jnp.isnan(x)), inf, jnp.reciprocal(x))", "jnp.where(m, inf, x)"),
    ("jnp.reciprocal(x)", "x"),
):
    AS_WRITTEN.rewrite(
        f"jnp.take_along_axis((o := lax.top_k(with_signs_of_zeros({_one}), n, **options)[1]),"
        f" lax.top_k(with_signs_of_zeros(jnp.take_along_axis({_other}, o, axis=axis)), k, **others)[1], axis=axis)",
        "indices", indices=_indices, when=_are_all,
    )  # fmt: skip


def _is_size(count: object, size: Dim) -> bool:
    return bool(count == size) if is_dim(size) or isinstance(count, int) else False


def _like(value: Variable) -> Variable:
    return Variable(value.shape, value.dtype)


# NaN goes behind all others first, and stays behind infinity.
_BEHIND = "(o := jnp.argsort((m := jnp.isnan(x)).astype(_), axis=axis))"
AS_WRITTEN.rewrite(
    "jnp.take_along_axis(o, jnp.argsort("
    f"jnp.take_along_axis(jnp.where(m, inf, x), {_BEHIND}, axis=axis), axis=axis), axis=axis)",
    "jnp.argsort(x, axis=axis)",
)
AS_WRITTEN.rewrite("jnp.take_along_axis(x, jnp.argsort(x, axis=axis), axis=axis)", "jnp.sort(x, axis=axis)")


def _is_middle(x: Variable, axis: int, i: Any, j: Any) -> bool:
    """Whether indices are those of the two elements in the middle of an axis, which may be one."""
    size = x.shape[axis] if isinstance(x, Variable) else None
    places = {_place(index, axis % len(x.shape)) for index in (i, j)}
    return isinstance(size, int) and places == {(size - 1) // 2, size // 2}


def _place(index: object, axis: int) -> int:
    """Return the number in an index that takes one element of an axis, and all of those before; -1 of any other one."""
    parts = as_tuple(index)
    is_plain = len(parts) == axis + 1 and all(part == slice(None) for part in parts[:-1]) and type(parts[-1]) is int
    return parts[-1] if is_plain else -1


_SORTED = "(s := jnp.sort(jnp.where(jnp.expand_dims(jnp.any(jnp.isnan(x), axis=axis), _), nan, x), axis=axis))"
AS_WRITTEN.rewrite(f"({_SORTED}[i] + s[j]) * 0.5", "jnp.median(x, axis=axis)", when=_is_middle)


AS_WRITTEN.rewrite(
    "jnp.take_along_axis(x, (top := lax.top_k(with_signs_of_zeros(x), _, **options))[1], axis=axis)", "values",
    when=lambda options, axis: options.get("axis", -1) == axis, values=lambda top: top.outputs[0],
)  # fmt: skip

# Elementwise functions

AS_WRITTEN.rewrite("jnp.minimum(high, jnp.maximum(low, x))", "jnp.clip(x, low, high)",
                   when=lambda x, low, high, out: is_like(x, out) and out.dtype.kind == "i" and None not in (number(low), number(high)))  # fmt: skip
AS_WRITTEN.rewrite("jnp.clip(x, 0, 6)", "nn.relu6(x)", when=is_like)
AS_WRITTEN.rewrite("jnp.where(x > 1, 1, jnp.where(x < -1, -1, x))", "nn.hard_tanh(x)", when=is_like)
AS_WRITTEN.rewrite("nn.elu(x, 1)", "nn.elu(x)")
AS_WRITTEN.rewrite("nn.celu(x, 1)", "nn.celu(x)")
AS_WRITTEN.rewrite(
    "nn.leaky_relu(x, slope)", "nn.leaky_relu(x)", when=lambda slope, out: is_single(out) and _is_rounded(slope, 0.01)
)
AS_WRITTEN.rewrite("scale * nn.elu(x, alpha)", "nn.selu(x)", when=lambda scale, alpha, out: is_single(out)
                   and _is_rounded(scale, 1.0507009873554805) and _is_rounded(alpha, 1.6732632423543772))  # fmt: skip


def _is_rounded(value: object, wanted: float) -> bool:
    """Whether a value is a number in single precision."""
    found = number(value)
    return found is not None and np.float32(found) == np.float32(wanted)


AS_WRITTEN.rewrite("(halves := jnp.split(x, 2, axis=axis))[0] * nn.sigmoid(halves[1])", "nn.glu(x, axis=axis)")

# Complex numbers, which files have as pairs

AS_WRITTEN.rewrite("lax.complex(jnp.real(z), jnp.imag(z))", "z")
# Reductions

AS_WRITTEN.rewrite(
    "jnp.log(jnp.sum(jnp.exp(x - most), axis=axes, keepdims=True)) + (most := jnp.max(x, axis=axes, keepdims=True))",
    "nn.logsumexp(x, axis=axes, keepdims=True)",
)
AS_WRITTEN.rewrite("jnp.sqrt(jnp.sum(x * x, axis=axes, **options))", "jnp.linalg.norm(x, axis=axis, **options)", when=is_single,
                   axis=lambda axes: axes[0] if isinstance(axes, tuple) and len(axes) == 1 else axes if isinstance(axes, int) else None)  # fmt: skip
for _name in ("jnp.argmax", "jnp.argmin", "jnp.prod"):
    AS_WRITTEN.rewrite(f"{_name}(x, keepdims=False, **options)", f"{_name}(x, **options)")
AS_WRITTEN.rewrite("jnp.mean((d := x - jnp.mean(x, axis=whole, keepdims=True)) * d, axis=axes)", "jnp.var(x, axis=axes)",
                   when=lambda x, whole, axes: axes_of(whole, len(x.shape)) == axes_of(axes, len(x.shape)) and x.dtype == np.float32)  # fmt: skip
AS_WRITTEN.rewrite("jnp.sqrt(jnp.var(x, axis=axes))", "jnp.std(x, axis=axes)")

# Lookups


def are_bounds(low: object, high: object, size: Dim) -> bool:
    """Whether indices between two numbers are those of an axis, counted from either end."""
    return isinstance(size, int) and is_number(low, -size) and is_number(high, size - 1)


AS_WRITTEN.rewrite(
    "jnp.where(i == at, jnp.take_along_axis(x, (at := jnp.clip(i, low, high)), axis=axis), nan)", "jnp.take_along_axis(x, i, axis=axis)",
    when=lambda x, i, low, high, axis, out: isinstance(x, Variable) and isinstance(i, Variable) and i.shape == out.shape
    and out.dtype == np.float32 and are_bounds(low, high, x.shape[axis]),
)  # fmt: skip


OF_OPERAND = frozenset({"jnp.reshape", "jnp.transpose", "jnp.swapaxes", "astype", "T", "mT"})
"""Steps that print as methods: their result is an array of the kind of their operand."""


def is_of_jax(x: object, rewriting: StepRewriting) -> bool:
    """Whether a value is an array of JAX, also if the inputs are NumPy's: methods and operators of those give theirs."""
    pending, seen = [x], set()
    while pending:
        value = pending.pop()
        if not isinstance(value, Variable):
            return isinstance(value, HostValue)  # which is printed as one
        step = rewriting.producers.made.get(value)
        if value in rewriting.weights or value in rewriting.producers.parts:
            return True
        if step is None or value in seen:
            continue
        if step.form in ("call", "vmap") and step.name not in OF_OPERAND:
            return True
        seen.add(value)
        pending += variables(step.args if step.form == "operator" else step.args[:1])
    return False


def _bounded(x: Variable | HostValue, i: Any, low: Any, high: Any, axis: int, rewriting: StepRewriting) -> object:
    """Return the index of elements along an axis, which JAX bounds itself; of a parameter, it is an embedding.

    NumPy, whose arrays inputs may be, refuses indices that are outside.
    """
    is_table = isinstance(x, HostValue) or x in rewriting.weights
    if is_table or not is_of_jax(x, rewriting) or not isinstance(i, Variable) or np.dtype(i.dtype).kind != "i":
        return None
    return index_of(*[slice(None)] * (axis % len(x.shape)), i) if are_bounds(low, high, x.shape[axis]) else None


AS_WRITTEN.rewrite("jnp.take(x, jnp.clip(i, low, high), axis=axis)", "x[index]", index=_bounded)


def _rows(x: Variable, at: Variable, i: Any, step: Step, rewriting: StepRewriting) -> object:
    """Return the positions of rows, of which each has an index."""
    if not is_of_jax(x, rewriting) or not isinstance(i, Variable) or at.shape != (x.shape[0], 1):
        return None
    return rewriting.call(step, "jnp.arange", (x.shape[0],), Variable((x.shape[0],), np.dtype(np.int32)))


AS_WRITTEN.rewrite("helper.gather_nd(x, (at := jnp.expand_dims(jnp.clip(i, low, high), _)), 1)", "x[rows, i]", rows=_rows,
                   when=lambda x, low, high: are_bounds(low, high, x.shape[1]))  # fmt: skip
AS_WRITTEN.rewrite("helper.gather_nd(x, (at := jnp.expand_dims(i, _)), 1)", "x[rows, i]", rows=_rows)


def _of_classes(i: object, counted: object, out: Variable) -> dict[str, Any] | None:
    """Return the axis and the type of vectors that say which of 0, 1, 2 … an index is; None if it is compared with others."""
    if not isinstance(counted, HostValue) or counted.symbolic or counted.dtype.kind not in "iu" or counted.size < 2:
        return None
    axis = next((at for at, size in enumerate(counted.shape) if size > 1), 0) + len(out.shape) - counted.ndim
    is_counted = counted.size == out.shape[axis] and np.array_equal(counted.data.ravel(), np.arange(counted.size))
    if not is_counted or not isinstance(i, Variable) or np.dtype(i.dtype).kind not in "iu":
        return None
    if out.shape != (*i.shape[:axis], counted.size, *i.shape[axis:]) or np.dtype(out.dtype).kind not in "iuf":
        return None
    return ({} if axis == len(out.shape) - 1 else {"axis": axis}) | {"dtype": np.dtype(out.dtype)}


for _index in ("i", "jnp.expand_dims(i, _)", "jnp.reshape(i, _)"):
    AS_WRITTEN.rewrite(f"({_index} == counted).astype(_)", "nn.one_hot(i, count, **options)", options=_of_classes,
                       count=lambda counted: counted.size if isinstance(counted, HostValue) else None)  # fmt: skip


# Axes


def _turned(begin: object, size: Dim) -> int | None:
    """Return by how many places a concatenation moves elements, from the size `mod(-shift, size)` that it begins at."""
    if not is_dim(begin) or not is_dim(size):
        return None
    found = parse(str(begin))
    if found.form != "mod" or str(parse(str(size))) != str(found.parts[1]):
        return None
    first = found.parts[0]
    sign, first = (-1, first.parts[0]) if first.form == "neg" else (1, first)
    return -sign * first.value if first.form == "number" else None


def _shift(x: Variable, behind: object, before: object, options: Parameters) -> int | None:
    """Return by how many places elements are moved if the part behind a place is put before the others."""
    axis = options.get("axis", 0) % len(x.shape)
    size = x.shape[axis]
    if isinstance(size, int):
        cut, end = _bounds(behind, axis, size) or (0, 0)
        return min(-cut, size - cut, key=abs) if end == size and _bounds(before, axis, size) == (0, cut) else None
    (*others, first), (*more, second) = as_tuple(behind), as_tuple(before)
    if [*others, *more] != [slice(None)] * 2 * axis or not isinstance(first, slice) or not isinstance(second, slice):
        return None
    begin, is_whole = first.start, (first.stop, first.step, second.start, second.step) == (None,) * 4
    return _turned(begin, size) if is_whole and is_dim(second.stop) and bool(begin == second.stop) else None


def _bounds(index: object, axis: int, size: int) -> tuple[int, int] | None:
    """Return the first place and the place behind the last of a slice along an axis; None for other indices."""
    parts = as_tuple(index)
    if len(parts) != axis + 1 or not all(isinstance(part, slice) for part in parts):
        return None
    *others, part = parts
    if any(other != slice(None) for other in others) or part.step not in (None, 1):
        return None
    if not all(end is None or type(end) is int for end in (part.start, part.stop)):
        return None
    begin, end, _ = part.indices(size)
    return begin, end


AS_WRITTEN.rewrite(
    "jnp.concatenate([x[behind], x[before]], **options)", "jnp.roll(x, shift, axis=axis)",
    when=lambda x, out: isinstance(x, Variable) and len(x.shape) == len(out.shape),
    axis=lambda options, out: options.get("axis", 0) % len(out.shape), shift=_shift,
)  # fmt: skip


@AS_WRITTEN.on("jnp.reshape")
def repeated(step: Step, rewriting: StepRewriting) -> Step | None:
    """`broadcast_to(expand_dims(x, 2), (n, m, 3)).reshape(n, 3 * m)` is `repeat(x, 3, axis=1)`."""
    spread = rewriting.producers.step(step.args[0], "jnp.broadcast_to")
    added = rewriting.producers.step(spread.args[0], "jnp.expand_dims") if spread is not None else None
    x = added.args[0] if added is not None else None
    axes = axes_of(added.args[1], len(added.outputs.shape)) if added is not None and len(added.args) > 1 else None
    if spread is None or not isinstance(x, Variable) or axes is None or len(axes) != 1 or not axes[0]:
        return None
    (axis,), wide = axes, spread.outputs.shape
    times = wide[axis]
    if not isinstance(times, int) or not _are_sizes(x.shape, [*wide[:axis], *wide[axis + 1 :]]):
        return None
    merged = [*x.shape[: axis - 1], x.shape[axis - 1] * times, *x.shape[axis:]]
    return in_place(step, "jnp.repeat", x, times, axis=axis - 1) if _are_sizes(step.outputs.shape, merged) else None


def _are_sizes(one: Sequence[Dim], other: Sequence[Dim]) -> bool:
    return len(one) == len(other) and all(bool(a == b) for a, b in zip(one, other, strict=True))


@AS_WRITTEN.on("jnp.reshape")
def tiled(step: Step, rewriting: StepRewriting) -> Step | None:
    """`broadcast_to(x, (3, n, m)).reshape(3 * n, m)`, of one `x` of shape `(1, n, m)`, is `tile(squeeze(x, 0), (3, 1))`."""
    spread = rewriting.producers.step(step.args[0], "jnp.broadcast_to")
    x, out = spread.args[0] if spread is not None else None, step.outputs.shape
    if spread is None or not isinstance(x, Variable | HostValue) or not 1 < len(x.shape) == len(spread.outputs.shape):
        return None
    (times, rows, *rest), (one, *own) = spread.outputs.shape, x.shape
    if one != 1 or times == 1 or rows == 1 or not _are_sizes([rows, *rest], own) or not out:
        return None
    if not _are_sizes([times * rows, *_several(rest)], [out[0], *_several(out[1:])]):
        return None
    shape = (rows, *out[1:])
    if isinstance(x, Variable):
        part = rewriting.call(step, "jnp.reshape", (x, [*shape]), shape)
    else:
        part = HostValue(x.data.reshape(shape), x.dtype, x.name)
    return in_place(step, "jnp.tile", part, (times, *[1] * len(shape[1:])))


def _several(shape: Sequence[Dim]) -> list[Dim]:
    return [size for size in shape if not isinstance(size, int) or size != 1]


@AS_WRITTEN.on("jnp.where")
def triangle(step: Step, rewriting: StepRewriting) -> Step | None:
    """`where(arange(n)[:, None] >= arange(m), x, 0)` is `tril(x)`, and the other way around `triu(x, 1)`."""
    condition, *choices = step.args
    if len(step.args) != 3 or not isinstance(condition, Variable | HostValue) or len(step.outputs.shape) < 2:
        return None
    for place, x in enumerate(choices):
        zero = choices[1 - place]
        is_zero = is_number(zero, 0) and not (
            isinstance(zero, HostValue) and np.signbit(zero.data.astype(np.float64)).any()
        )
        found = diagonal_of(condition, rewriting.producers) if is_zero and is_like(x, step.outputs) else None
        if found is None:
            continue
        is_upper, last = found
        if place:  # what the condition holds for is hidden
            is_upper, last = not is_upper, (last - 1 if is_upper else last + 1)
        return in_place(step, "jnp.triu" if is_upper else "jnp.tril", x, *([last] if last else []))
    return None


def _moves_inside(x: Variable, size: Any, last: Any, length: Any, options: Parameters) -> bool:
    """Whether where a slice begins is counted from the end if it is negative, and moved inside, as JAX does."""
    whole = x.shape[options.get("axis", 0)] if isinstance(x, Variable) else None
    if not isinstance(whole, int) or not isinstance(length, int):
        return False
    return is_number(size, whole) and is_number(last, whole - length)


AS_WRITTEN.rewrite(
    "lax.dynamic_slice_in_dim(x, jnp.clip(jnp.where(i < 0, i + size, i), 0, last), length, **options)",
    "lax.dynamic_slice_in_dim(x, i, length, **options)", when=_moves_inside,
)  # fmt: skip


# The spectrum of real numbers, whose imaginary parts exports write out


def element(value: object, producers: Producers) -> Any:
    """Return the number that all elements of a value are; None if they differ, or are not known."""
    full = producers.step(value, "jnp.broadcast_to")
    array = full.args[0] if full is not None else value
    if not isinstance(array, HostValue) or array.symbolic or not array.size or array.dtype.kind not in "iuf":
        return None
    first = array.data.flat[0]
    return first if (array.data == first).all() and (np.signbit(array.data) == np.signbit(first)).all() else None


AS_WRITTEN.rewrite(
    "jnp.fft.fft(lax.complex(x, zero), *options)", "jnp.fft.fft(x, *options)",
    when=lambda x, zero, rewriting: isinstance(x, Variable) and is_number(element(zero, rewriting.producers), 0),
)  # fmt: skip

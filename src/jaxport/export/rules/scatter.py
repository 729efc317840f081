"""Writing parts of an array: scatters in full generality, and dynamic updates.

A scatter writes one window into the operand for each element of the indices, combined with the old elements. JAX drops
a window that does not lie wholly inside, while ONNX fails: such an update is replaced by a neutral one, or written to
spare rows that are cut off, so that all sizes are known. A single window is cut out, changed and put back; many are
written by ScatterElements or ScatterND.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode
from numpy.typing import ArrayLike

from jaxport.export.emit.registry import rule
from jaxport.export.emit.value import Value
from jaxport.export.rules import elementwise, window_starts
from jaxport.export.rules.indexing import arranged, many_windows, one_window, sliced, stacked
from jaxport.export.rules.window_starts import INT64
from jaxport.export.rules.windows import highest, lowest
from jaxport.jaxprs import ClosedJaxpr, Dim, PythonFunction, dims, jaxpr_as_fun
from jaxport.onnx_facts import releases

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter

#: From this many elements on, a row is scattered as a whole rather than element by element.
LONG_ROW = 8
#: The opset that introduced TensorScatter.
TENSOR_SCATTER = 24
#: The dtypes for which ONNX Runtime's reducing scatters fail at run time, with the dtype to use.
REDUCED_IN = {"bool": np.uint8, "float16": np.float32, "bfloat16": np.float32}


@dataclass(frozen=True)
class Combination:
    """How an update is combined with the old elements.

    Attributes:
      apply: `apply(op, old, update)`, element by element.
      reduction: ONNX's name for it; None if it has none.
      neutral: the update of a dtype that changes nothing, if there is one.
      since: the opset that introduced the reduction.
    """

    apply: PythonFunction
    reduction: str | None = None
    neutral: Callable[[np.dtype], ArrayLike] | None = None
    since: int = 0

    def reduces(self, opset: int) -> bool:
        """Whether ONNX has it at an opset."""
        return self.reduction is not None and opset >= self.since


REPLACE = Combination(lambda _op, _old, new: new, "none")
ADD = Combination(
    lambda op, old, new: op.Add(old, new), "add", lambda dtype: 0 if dtype.kind in "iu" else -0.0, since=16
)
MULTIPLY = Combination(lambda op, old, new: op.Mul(old, new), "mul", lambda _: 1, since=16)
MAXIMUM = Combination(lambda op, old, new: op.Max(old, new), "max", lowest, since=18)
MINIMUM = Combination(lambda op, old, new: op.Min(old, new), "min", highest, since=18)


@rule("dynamic_update_slice")
def dynamic_update_slice(op, x, update, *indices):
    columns = {axis: window_starts.signed(op, index) for axis, index in enumerate(indices)}
    starts = window_starts.of(op, x.shape, update.shape, columns, negative=counts_from_end(op, x, update.shape))
    return written(op, x, update, starts.at)


@rule("scatter", irrelevant=("indices_are_sorted",))
def scatter(op, x, indices, updates, *, dimension_numbers, mode, unique_indices, update_jaxpr, update_consts):
    if update_jaxpr is None:
        return combined(op, x, indices, updates, REPLACE, dimension_numbers, mode, unique_indices)
    scalar = jaxpr_as_fun(ClosedJaxpr(update_jaxpr, update_consts))
    function = jnp.vectorize(lambda old, new: scalar(old, new)[0])
    change = Combination(lambda op, old, new: op.expanded(op.call(function, old, new)))
    return combined(op, x, indices, updates, change, dimension_numbers, mode, unique_indices)


def reduction(combination):
    def emits(op, x, indices, updates, *, dimension_numbers, mode, unique_indices):
        wide = REDUCED_IN.get(x.dtype.name, x.dtype)
        operands = (op.cast(x, wide), indices, op.cast(updates, wide))
        return op.cast(combined(op, *operands, combination, dimension_numbers, mode, unique_indices), x.dtype)

    emits.__qualname__ = f"scatter with {combination.reduction}"
    return emits


_REDUCTION_HINTS = ("indices_are_sorted", "update_jaxpr", "update_consts")
_add = rule("scatter-add", irrelevant=_REDUCTION_HINTS)(reduction(ADD))
rule("scatter-mul", irrelevant=_REDUCTION_HINTS)(reduction(MULTIPLY))
rule("scatter-max", irrelevant=_REDUCTION_HINTS)(reduction(MAXIMUM))
rule("scatter-min", irrelevant=_REDUCTION_HINTS)(reduction(MINIMUM))


@rule("scatter-sub", irrelevant=_REDUCTION_HINTS)
def scatter_sub(op, x, indices, updates, *, dimension_numbers, mode, unique_indices):
    negated = elementwise.negative(op, updates)
    return _add(op, x, indices, negated, dimension_numbers=dimension_numbers, mode=mode, unique_indices=unique_indices)


def combined(op, x, indices, updates, combination, numbers, mode, unique):
    """Return the operand of a scatter with its windows combined into it."""
    batch, sizes = indices.shape[:-1], [1] * x.rank
    shared = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    windows = [a for a in range(x.rank) if a not in numbers.inserted_window_dims and a not in shared]
    for axis, position in zip(windows, numbers.update_window_dims, strict=True):
        sizes[axis] = updates.shape[position]
    columns = window_starts.columns(op, indices, numbers.scatter_dims_to_operand_dims)
    single = all(dims.same(d, 1) for d in batch)
    if not shared and not single:
        shared = window_starts.counted(op, columns, x.shape, sizes, batch)
    check = mode != GatherScatterMode.CLIP
    if combination is REPLACE and not check and writes_one_block_each(x, indices, sizes, shared, numbers):
        return one_block_each(op, x, updates, window_starts.of(op, x.shape, sizes, columns, batch, negative=False))
    rows = check and not single and not shared and are_rows(x, sizes, batch, columns)
    number = filling(x) if rows and combination.reduces(op.opset) else None
    alone = combination.neutral is None and len(shared) == len(batch)  # no two windows overlap
    spares = not single and (number is not None or (combination.neutral is None and not alone))
    mark = op.scope.mark()
    starts = window_starts.of(
        op, x.shape, sizes, columns, batch, check=check, negative=counts_from_end(op, x, sizes) if single else True
    )
    overflows = spares and starts.inside is not None
    if overflows:
        op.scope.undo(mark)
        starts = starts_with_a_spare(op, x, sizes, columns, batch)
    if single:
        starts = window_starts.of_one_window(op, starts)
        return one_update(op, x, op.reshape(updates, sizes), starts, combination)
    rest = iter([("batch", i) for i in range(len(batch))])
    labels = [next(rest) if p not in numbers.update_window_dims else None for p in range(updates.rank)]
    for axis, position in zip(windows, numbers.update_window_dims, strict=True):
        labels[position] = ("window", axis)
    many = Updates(updates, labels, sizes, starts, shared)
    if overflows:
        return many.with_a_spare(op, x, next(iter((*starts.at, *columns))), number, combination, unique)
    if starts.inside is not None and combination.neutral is not None:
        neutral = op.const(combination.neutral(x.dtype), x.dtype)
        many.settle(op.Where(many.inside(op), updates, neutral))
    elif alone:  # each window is a single one
        if starts.inside is not None or combination is not REPLACE:
            old = arranged(op, *many_windows(op, x, starts, shared, sizes), labels, updates.shape)
            new = combination.apply(op, old, updates)
            many.settle(new if starts.inside is None else elementwise.where(op, many.inside(op), new, old))
        if starts.inside is None and many.has_long_rows():
            return many.rows(op, x, REPLACE, unique, list(range(max((*shared, *starts.at), default=-1) + 1)))
        combination = REPLACE
    return many.written(op, x, combination, unique)


def starts_with_a_spare(op, x, sizes, columns, batch):
    """Return starts of windows in an array that is longer by one, or those of whole windows, and which are inside."""
    ((axis, column), *others) = columns.items()
    if others or not dims.same(sizes[axis], 1):  # a negative start would be counted from the end of a longer array
        return window_starts.of(op, x.shape, sizes, columns, batch, check=True, negative=False)
    count = x.shape[axis]
    column = column if dims.is_static(count) else op.cast(column, INT64)
    return window_starts.Starts(tuple(batch), {axis: op.Clip(column, -1, count)})  # -1 is the last row, too


def filling(x):
    """Return the number that an array is filled with, or None: only such an array is longer by a row at no cost."""
    origin = x.origin
    number = origin.operands[0] if origin is not None and origin.op_type == "Expand" else None
    return number if number is not None and number.is_constant and math.prod(number.shape) == 1 else None


def are_rows(x, sizes, batch, columns):
    """Whether windows of these sizes are rows of `x`, of which there are probably fewer than windows."""
    if list(columns) != [0] or not dims.same(sizes[0], 1) or not all(map(dims.same, sizes[1:], x.shape[1:])):
        return False
    static = [dims.is_static(dim) for dim in (x.shape[0], math.prod(batch))]
    return x.shape[0] <= math.prod(batch) if all(static) else not any(static)


def one_update(op, x, update, starts, combination):
    """Return `x` with one window combined into it, dropped unless it lies inside."""
    if starts.inside is not None or combination is not REPLACE:
        old = one_window(op, x, starts.at, update.shape)
        update = combination.apply(op, old, update)
        update = update if starts.inside is None else elementwise.where(op, starts.inside, update, old)
    return written(op, x, update, starts.at)


def has_tensor_scatter(op, x, axis):
    """Whether TensorScatter can write along an axis."""
    return axis > 0 and op.opset >= TENSOR_SCATTER and x.dtype not in releases.missing("TensorScatter", releases.NEWEST)


def writes_one_block_each(x, indices, sizes, shared, numbers):
    """Whether a scatter writes one block of rows into each element of the first axis, not along the second one."""
    narrow = [axis for axis in narrower(sizes, x.shape) if axis != 0]
    in_order = list(numbers.update_window_dims) == list(range(1, x.rank))
    # Along the second axis, ScatterND needs no transpose.
    return shared == {0: 0} and indices.rank == 2 and in_order and len(narrow) == 1 and narrow[0] > 1


def one_block_each(op, x, updates, starts):
    """Return `x` with a block of rows replaced in each element of the first axis, without a transpose."""
    (axis,) = narrower(updates.shape, x.shape)
    start = op.expand(op.cast(starts.at.get(axis, op.const(0, INT64)), INT64), starts.batch)
    if has_tensor_scatter(op, x, axis):
        return op.TensorScatter(x, updates, start, axis=axis)
    kept = [dim if at in (0, axis) else 1 for at, dim in enumerate(updates.shape)]
    places = op.reshape(start, [kept[0], *[1] * (x.rank - 1)])
    if not dims.same(kept[axis], 1):
        rows = window_starts.positions(op, kept[axis], INT64)
        within = op.reshape(rows, [dim if at == axis else 1 for at, dim in enumerate(kept)])
        places = op.Add(places, within)
    return op.ScatterElements(x, op.expand(places, updates.shape), updates, axis=axis)


def counts_from_end(op, x, sizes):
    """Whether a window of these sizes is written by an operator that counts a negative start from the end."""
    narrow = narrower(sizes, x.shape)
    return len(narrow) == 1 and not has_tensor_scatter(op, x, narrow[0])


def narrower(shape, whole):
    """Return the axes on which a window of `shape` does not span the whole."""
    return [axis for axis, (size, full) in enumerate(zip(shape, whole, strict=True)) if not dims.same(size, full)]


def written(op, x, update, starts):
    """Return `x` overwritten by a window that begins at scalar `starts` (by axis, 0 for missing ones)."""
    narrow = narrower(update.shape, x.shape)
    if not narrow:
        return update
    axis, size = narrow[0], update.shape[narrow[0]]
    start = starts.get(axis, op.const(0, INT64))
    if start.constant is None and len(narrow) == 1:
        if has_tensor_scatter(op, x, axis):
            begins = op.expand(op.reshape(op.cast(start, INT64), (1,)), x.shape[:1])
            return op.TensorScatter(x, update, begins, axis=axis)
        if dims.same(size, 1):
            return op.ScatterND(x, rows_of(op, start, axis, update.shape), update)
    if len(narrow) > 1:
        band = one_window(op, x, {axis: start}, [size if a == axis else d for a, d in enumerate(x.shape)])
        update = written(op, band, update, starts)
    parts = [update]
    if start.constant is not None:
        begin = int(start.constant)
        end = begin + size
        if begin:
            parts.insert(0, sliced(op, x, {axis: 0}, [begin] * x.rank))
        if not dims.same(end, x.shape[axis]):
            parts.append(sliced(op, x, {axis: end}, [x.shape[axis] - end] * x.rank))
    else:
        begin = window_starts.vector(op, [start])
        end = op.Add(begin, (size,))
        parts.insert(0, op.emit("Slice", x, (0,), begin, (axis,), results=[(x.dtype, None)]))
        parts.append(op.emit("Slice", x, end, (np.iinfo(INT64).max,), (axis,), results=[(x.dtype, None)]))
    return op.emit("Concat", *parts, axis=axis, results=[(x.dtype, x.shape)])


def rows_of(op, start, axis, shape):
    """Return the ScatterND index of the rows of an array that a window of `shape` covers.

    The window begins at a scalar `start` on its last indexed axis, where it has size one, and spans the axes before.
    """
    leading = (*shape[:axis], 1)
    if dims.all_static(leading):
        places = op.const(np.moveaxis(np.indices(leading), 0, -1), INT64)
    else:
        wide = [a for a in range(axis) if not dims.same(shape[a], 1)]
        places = stacked(op, [op.const(0, INT64)] * len(leading), range(len(leading)), shape, wide)
        places = op.reshape(places, (*leading, len(leading)))
    return op.Where(op.const(np.arange(axis + 1) == axis, np.bool_), op.cast(start, INT64), places)


@dataclass
class Updates:
    """The many updates of a scatter.

    Attributes:
      value: the updates, whose axes have labels: ("batch", i) is axis i of the indices, ("window", a) the window's
        extent along axis a of the operand.
      sizes: the size of a window on each axis of the operand.
      starts: the starts of the windows.
      shared: the axis of the indices for each batch axis of the operand.
    """

    value: Any
    labels: list[Any]
    sizes: list[Dim]
    starts: window_starts.Starts
    shared: dict[int, int]

    def inside(self, op: Any) -> Value:
        """Return which updates lie inside, in a shape that broadcasts to theirs."""
        shown = [1 if label[0] == "window" else d for label, d in zip(self.labels, self.value.shape, strict=True)]
        return op.reshape(op.expand(self.starts.inside, self.starts.batch), shown)

    def settle(self, updates: Value) -> None:
        """Replace the updates by ones that change nothing if they lie outside."""
        self.value, self.starts.inside = updates, None

    def along_one_axis(self) -> bool:
        """Whether ScatterElements suffices, and the operand would have to be transposed for ScatterND."""
        indexed = list(self.starts.at)
        if len(indexed) != 1 or not dims.same(self.sizes[indexed[0]], 1):
            return False
        return indexed[0] > 0 or bool(self.shared)

    def has_long_rows(self) -> bool:
        """Whether ScatterND moves many elements for each index without transposing the operand."""
        last = max((*self.shared, *self.starts.at), default=-1)
        row = [size for size in self.sizes[last + 1 :] if dims.is_static(size)]
        return (
            last > 0
            and math.prod(map(int, row)) >= LONG_ROW
            and all(dims.same(size, 1) for axis, size in enumerate(self.sizes) if axis in self.starts.at)
        )

    def written(self, op: Emitter, x: Any, combination: Combination, unique: bool) -> Value:
        """Combine updates that all lie inside."""
        if self.along_one_axis() and combination.reduces(op.opset):
            return self.elements(op, x, combination)
        return self.rows(op, x, combination, unique)

    def with_a_spare(
        self, op: Emitter, x: Any, first: int, number: Value | None, combination: Combination, unique: bool
    ) -> Value:
        """Combine updates, of which those that lie outside go into rows that are cut off.

        Args:
          op: the emitter.
          x: the operand.
          first: the axis that gets more rows.
          number: the number that it is filled with, if it is.
          combination: how updates are combined with it.
          unique: whether no two windows overlap.
        """
        count, size = x.shape[first], self.sizes[first]
        shape = [count + size if axis == first else d for axis, d in enumerate(x.shape)]
        if number is None:
            spare = op.expand(op.const(0, x.dtype), [size if axis == first else d for axis, d in enumerate(x.shape)])
            longer = op.emit("Concat", x, spare, axis=first, results=[(x.dtype, shape)])
        else:
            longer = op.expand(number, shape)
        for axis in {} if self.starts.inside is None else {first: None, **self.starts.at}:
            outside, zero = op.dim(count) if axis == first else op.const(0, INT64), op.const(0, INT64)
            self.starts.at[axis] = op.Where(self.starts.inside, op.cast(self.starts.at.get(axis, zero), INT64), outside)
        self.starts.inside = None
        written = self.written(op, longer, combination, unique)
        return op.emit("Slice", written, (0,), op.dims((count,)), (first,), results=[(x.dtype, x.shape)])

    def elements(self, op: Emitter, x: Any, combination: Combination) -> Any:
        """Scatter along the only axis that has an index."""
        ((axis, start),) = self.starts.at.items()
        batch = self.starts.batch
        free = [i for i in range(len(batch)) if i not in self.shared.values()]
        labels, index_order, index_shape, shape = [], [], [], []
        for a, size in enumerate(self.sizes):
            mine = free if a == axis else [self.shared[a]] if a in self.shared else []
            index_order += mine
            index_shape.append(math.prod(batch[i] for i in mine))
            shape.append(size if not mine and a != axis else index_shape[-1])
            labels += [("batch", i) for i in mine] or [("window", a)]
        index = op.reshape(op.transpose(op.expand(start, batch), index_order), index_shape)
        index, updates = op.expand(index, shape), arranged(op, self.value, self.labels, labels, shape)
        return reduced(
            op, lambda x, u, how: op.ScatterElements(x, index, u, axis=axis, reduction=how), x, updates, combination
        )

    def rows(self, op: Emitter, x: Any, combination: Combination, unique: bool, lead: Sequence[int] = ()) -> Any:
        """Scatter whole rows: the window's extent along the axes that need no index; `lead` overrides which axes do."""
        batch, starts = self.starts.batch, self.starts
        lead = lead or [
            a for a in range(x.rank) if a in (*self.shared, *starts.at) or not dims.same(self.sizes[a], x.shape[a])
        ]
        rest = [a for a in range(x.rank) if a not in lead]
        wide = [a for a in lead if not dims.same(self.sizes[a], 1)]
        labels = [("batch", i) for i in range(len(batch))] + [("window", a) for a in (*wide, *rest)]
        updates = arranged(op, self.value, self.labels, labels, [*batch, *(self.sizes[a] for a in (*wide, *rest))])
        data = op.transpose(x, (*lead, *rest))
        columns = [op.expand(self.column(op, a), batch) for a in lead]
        if not lead:  # every window is the whole operand: a row of a matrix with one row
            data, columns = op.unsqueeze(data, (0,)), [op.expand(op.const(0, INT64), batch)]
        index = stacked(op, columns, lead or [-1], self.sizes, wide)
        result = scattered_rows(op, data, index, updates, len(batch), combination, unique)
        result = result if lead else op.squeeze(result, (0,))
        order = (*lead, *rest)
        return op.transpose(result, [order.index(a) for a in range(x.rank)])

    def column(self, op: Emitter, axis: int) -> Value:
        """Return the index on an axis of the operand, in a shape that broadcasts to that of the indices."""
        if axis in self.shared:
            batch, place = self.starts.batch, self.shared[axis]
            return op.reshape(
                window_starts.positions(op, batch[place], INT64), [d if i == place else 1 for i, d in enumerate(batch)]
            )
        return self.starts.at.get(axis, op.const(0, INT64))


def scattered_rows(op, x, index, updates, batch_rank, combination, unique):
    """Combine rows into `x` at the places in `index`, as ScatterND takes it."""
    if combination.reduction is None and unique:
        updates, combination = combination.apply(op, op.GatherND(x, index), updates), REPLACE
    if not combination.reduces(op.opset):  # one axis for the whole batch
        index_row, row = index.shape[batch_rank:], updates.shape[batch_rank:]
        count = math.prod(index.shape[:batch_rank])
        index, updates = op.reshape(index, (count, *index_row)), op.reshape(updates, (count, *row))
        return one_by_one(op, x, (index, index_row), (updates, row), combination)
    return reduced(op, lambda x, u, how: op.ScatterND(x, index, u, reduction=how), x, updates, combination)


def reduced(op, scatter, x, updates, combination):
    """Scatter with ONNX's reduction, which loses a NaN when comparing it with a number."""
    if combination is REPLACE:
        return scatter(x, updates, None)
    result = scatter(x, updates, combination.reduction)
    if x.dtype.kind in "iu" or combination not in (MAXIMUM, MINIMUM) or not op.walker.keeps_nan:
        return result
    nan = scatter(op.cast(op.IsNaN(x), np.uint8), op.cast(op.IsNaN(updates), np.uint8), "max")
    return op.Where(op.cast(nan, np.bool_), op.const(np.nan, x.dtype), result)


def one_by_one(op, x, index, updates, combination):
    """Combine updates into `x` in turn, each with the result of those before; `index` and `updates` have a row's
    shape.
    """

    def body(op, turn, go_on, x):
        place, update = (op.emit("Gather", v, turn, results=[(v.dtype, shape)]) for v, shape in (index, updates))
        new = combination.apply(op, op.GatherND(x, place), update)
        return op.alias(go_on), op.ScatterND(x, place, new)

    inputs = [(INT64, (), "turn"), (np.bool_, (), "go_on"), (x.dtype, x.shape, "x")]
    count = op.squeeze(op.emit("Shape", index[0], start=0, end=1, results=[(INT64, (1,))]), (0,))
    return op.emit("Loop", count, None, x, body=op.graph(body, inputs), results=[(x.dtype, x.shape)])

"""Recognise RotaryEmbedding (opset 23): pairs of elements rotated by angles that depend on the position.

1. The halves of `x` paired: `concat(a cos - b sin, b cos + a sin)`.
2. The same with the halves rotated first: `x cos + concat(-b, a) sin`, with both tables repeated, or their angles.
3. Neighbours paired: `stack(a cos - b sin, b cos + a sin)` of every second element, merged into one axis.
4. The same with the neighbours exchanged first: `x cos + stack(-b, a) sin`, with the elements of both tables, or of their
   angles, repeated.

The last elements of `x` may be joined to the rotated ones as they are.

The axes are those of batches, positions, heads and vectors, in any order; the tables are of positions, or of positions
and batches. In half precision there may be casts between the operators: the operator computes in the dtype of the
products, and rounds once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import Arrangement, goes_into_transpose
from jaxport.graph.editing import Dim, begins_at, constant_of, dims_of, integer, is_op, source, sources
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle
from jaxport.graph.fusions.scores import HALVES, uncast, unrounded
from jaxport.graph.matching import Axis, Seen, look, parts_of
from jaxport.onnx_facts import VIEWS

#: The label of the axis of vectors; the other axes are labelled by position.
VECTOR = 3

#: A rotation of neighbours ends with joining them; one of halves with a sum that depends on joined halves.
ANCHORS = (Anchor(at=("Concat",)), Anchor(at=("Add",), below=("Concat",), through=(*VIEWS, "Mul", "Cast")))


@begins_at({"Concat"})
def rotary(model: ir.Model) -> str:
    """Recognise RotaryEmbedding, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    return fuse(model, lambda node: _find(node, opset), *ANCHORS)


@dataclass(frozen=True)
class Table:
    """A table of cosines or sines, as it broadcasts to half of `x`.

    Attributes:
      seen: the value that it is computed from.
      functions: the elementwise operators that compute it from that value, the first one first.
    """

    seen: Seen
    functions: tuple[ir.Node, ...] = ()

    def emit(self, builder: Builder) -> ir.Value:
        """Return the table itself."""
        value = builder.owned(self.seen.value)
        for node in self.functions:
            operands = [operand if _is_factor(operand, node) else value for operand in node.inputs]
            if is_op(node, "Cast"):
                value = builder.cast(value, node.outputs[0].dtype)
            else:
                value = builder.emit(node.op_type, operands, dims_of(self.seen.value), value.dtype)
        return value


def _is_factor(operand: ir.Value | None, node: ir.Node) -> bool:
    """Whether an operand is the number in a product; the other one, the angles, may be known, too."""
    array = constant_of(operand)
    return len(node.inputs) == 2 and array is not None and array.size == 1


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of elements.

    Attributes:
      result: the rotated value; the labels of its axes are their positions.
      x: the operand.
      cos, sin: the tables.
      interleaved: whether pairs are neighbours instead of halves.
      dtype: the dtype of the products of elements and tables.
      count: how many elements of a vector of `x` are rotated, the first ones.
      width: how many elements it has.
    """

    result: ir.Value
    x: Seen
    cos: Table
    sin: Table
    interleaved: bool
    dtype: ir.DataType | None
    count: int
    width: int


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    rank = len(dims_of(node.outputs[0]) or ())
    if not rank:  # nothing is known of its shape
        return None
    rotation = next(_rotations(node, rank), None)
    if rotation is None:
        return None
    dims = dims_of(rotation.result) or []
    if len(dims) != 4 or not isinstance(dims[VECTOR], int):
        return "it is not of batches, heads and positions"
    along = {axis for axis in (*rotation.cos.seen.axes, *rotation.sin.seen.axes) if axis is not None} - {0, VECTOR}
    along = along or {axis for axis in (1, 2) if dims[axis] == 1}  # a sequence of length one
    sequence = next(iter(along), None)
    if len(along) != 1 or not isinstance(sequence, int):
        return "its angles depend on more than the position"
    return obstacle("RotaryEmbedding", rotation.dtype, opset) or _fusion(rotation, dims, sequence)


def _fusion(rotation: Rotation, dims: list[Dim], sequence: int) -> Fusion | str:
    heads, half = dims[3 - sequence], rotation.count // 2
    sizes: dict[Axis, Dim] = dict(enumerate(dims))
    table, halved = [dims[0], dims[sequence], half], sizes | {VECTOR: half}
    tables = [
        (one, how)
        for one in (rotation.cos, rotation.sin)
        if (how := Arrangement.of(dims_of(one.seen.value) or (), one.seen.axes, [[0], [sequence], [VECTOR]], halved))
    ]
    options = []
    for flat in (True, False):
        groups = [[0], [sequence], [3 - sequence, VECTOR]] if flat else [[0], [3 - sequence], [sequence], [VECTOR]]
        x = Arrangement.of(dims_of(rotation.x.value) or (), rotation.x.axes, groups, sizes)
        result = Arrangement.of(dims, range(4), groups, sizes)
        if x is not None and result is not None:
            moves = x.moves + (result.moves != goes_into_transpose(rotation.result))
            only_views = 1 in (dims[sequence], dims[3 - sequence])  # a single step, or a single head
            options.append((0 if only_views else moves, not flat, x, result))
    if not isinstance(heads, int) or len(tables) < 2 or not options:
        return "its shapes cannot be told before it runs"
    _, _, x, result = min(options, key=lambda option: option[:2])

    def build(builder: Builder) -> ir.Value:
        dtype = rotation.dtype
        caches = [
            builder.expanded(builder.cast(_arranged(builder, one.emit(builder), how), dtype), table)
            for one, how in tables
        ]
        attributes: dict[str, Any] = {"interleaved": 1} if rotation.interleaved else {}
        attributes |= {"rotary_embedding_dim": rotation.count} if rotation.count != dims[VECTOR] else {}
        attributes |= {"num_heads": heads} if len(x.merged) == 3 or rotation.count != dims[VECTOR] else {}
        arranged = builder.cast(x.apply(builder, builder.now(rotation.x.value)), dtype)
        turned = builder.emit("RotaryEmbedding", [arranged, *caches], x.merged, dtype, **attributes)
        return result.revert(builder, builder.cast(turned, rotation.result.dtype))

    leaves = [rotation.x.value, rotation.cos.seen.value, rotation.sin.seen.value]
    return Fusion("RotaryEmbedding", rotation.result, leaves, build)


def _arranged(builder: Builder, value: ir.Value, how: Arrangement) -> ir.Value:
    """Return a table in another arrangement; a sine or cosine of what is: angles for all heads are views of them."""
    node = value.producer()
    if is_op(node, "Cos", "Sin") and is_op(source(node).producer(), *VIEWS) and dims_of(value) == list(how.dims):
        angles = how.apply(builder, builder.now(source(node)))
        return builder.emit(node.op_type, [angles], how.merged, value.dtype)
    return how.apply(builder, value)


def _rotations(node: ir.Node, rank: int) -> Iterator[Rotation]:
    """Match a rotation of vectors, or of their first elements with the others behind them."""
    found = itertools.chain(_joined(node, rank), _partial(node, rank)) if is_op(node, "Concat") else _turned(node, rank)
    for rotation in found:
        dims = dims_of(rotation.result)
        if dims is not None and dims[-1] == rotation.width:
            yield rotation


def _joined(node: ir.Node, rank: int) -> Iterator[Rotation]:
    """Match `a cos - b sin` and `b cos + a sin`, concatenated or interleaved; the last elements may be behind them."""
    result = node.outputs[0]
    stacked = len(node.inputs) == 2 and all(is_op(x.producer(), "Unsqueeze") for x in sources(node))
    if len(node.inputs) not in (2, 3) or integer(node, "axis", 0) % rank != rank - 1:
        return
    if stacked:
        users = [user for user, _ in result.uses()]
        if len(users) != 1 or not is_op(users[0], "Reshape") or rank != VECTOR + 2:
            return
        result = users[0].outputs[0]
        dims, half = dims_of(result) or [], dims_of(node.inputs[0]) or []
        if len(dims) != VECTOR + 1 or dims[:-1] != half[:-2] or dims[-1] != 2 * half[-2]:
            return
    first, second, *rest = (look(x, range(rank)) for x in sources(node))
    first, second = unrounded(first), unrounded(second)
    for a, b, cos, sin in _pairs(first, second):
        parted = _parted(uncast(a), uncast(b), alternating=stacked)
        if parted is None:
            continue
        x, count, width = parted
        rotation = Rotation(result, x, Table(cos), Table(sin), stacked, first.value.dtype, count, width)
        whole = _beside(rotation, rest[0], result) if rest else rotation
        if whole is not None:
            yield whole


def _partial(node: ir.Node, rank: int) -> Iterator[Rotation]:
    """Match a rotation, concatenated with the last elements."""
    if len(node.inputs) != 2 or rank != VECTOR + 1 or integer(node, "axis", 0) % rank != VECTOR:
        return
    rest, turned = look(source(node, 1), range(rank)), source(node)
    while is_op(cast := turned.producer(), "Cast") and turned.dtype in (ir.DataType.FLOAT, *HALVES):
        turned = source(cast)
    last = turned.producer()
    stack = source(last).producer() if is_op(last, "Reshape") else None
    inner: Iterable[Rotation] = ()
    if is_op(stack, "Concat"):
        inner = _joined(stack, rank + 1)
    elif is_op(last, "Concat"):
        inner = _joined(last, rank)
    elif is_op(last, "Add"):
        inner = _turned(last, rank)
    for part in inner:
        whole = _beside(part, rest, node.outputs[0]) if part.result is turned else None
        if whole is not None:
            yield whole


def _beside(part: Rotation, rest: Seen, result: ir.Value) -> Rotation | None:
    """Return a rotation with the elements behind those that it rotates; None if these are others, or would be rounded."""
    behind = _extent(uncast(rest))
    if behind is None:
        return None
    x, taken, width = uncast(behind[0]), behind[1], behind[2]
    before = (x, range(part.count), width) if part.x == x else _extent(part.x)
    if before is None or uncast(before[0]) != x:
        return None
    if (before[1], taken) != (range(part.count), range(part.count, width)):
        return None
    if x.value.dtype != part.dtype and not (x.value.dtype in HALVES and part.dtype == ir.DataType.FLOAT):
        return None
    return replace(part, result=result, x=x, width=width)


def _pairs(first: Seen, second: Seen) -> Iterator[tuple[Seen, Seen, Seen, Seen]]:
    """Yield `(a, b, cos, sin)` if the two values are `a cos - b sin` and `b cos + a sin`."""
    minus, plus = first.operands("Sub"), second.operands("Add")
    one, other = (_products(operand) for operand in minus) if minus else (None, None)
    sums = [{*(_products(operand) or ())} for operand in plus or ()]
    if one is None or other is None or not sums:
        return
    for a, cos in (one, one[::-1]):
        for b, sin in (other, other[::-1]):
            wanted = [{b, cos}, {a, sin}]
            if sums in (wanted, wanted[::-1]):
                yield a, b, cos, sin


def _products(seen: Seen) -> list[Seen] | None:
    """Return the operands of a product, which may be rounded before it is added to another one."""
    return unrounded(seen).operands("Mul")


def _turned(node: ir.Node, rank: int) -> Iterator[Rotation]:
    """Match `x cos + t sin`, with `t` the halves or the neighbours of `x` exchanged, one of each two negated."""
    products = look(node.outputs[0], range(rank)).operands("Add") or []
    for straight, crossed in (products, products[::-1]) if products else ():
        one, other = _products(straight), _products(crossed)
        if one is None or other is None:
            continue
        for (x, cos), (turned, sin) in itertools.product((one, one[::-1]), (other, other[::-1])):
            exchanged = _exchanged(uncast(turned), uncast(x))
            if exchanged is None:
                continue
            width, interleaved = exchanged
            cosines, sines = (_half_of(table, width, interleaved=interleaved) for table in (cos, sin))
            result = node.outputs[0]
            if cosines is not None and sines is not None:
                yield Rotation(result, uncast(x), cosines, sines, interleaved, result.dtype, width, width)


def _exchanged(seen: Seen, x: Seen) -> tuple[int, bool] | None:
    """Return the size of vectors if a value is `-b` joined to `a`, with `a` and `b` the halves or the neighbours of `x`.

    With it is whether they are neighbours. None if the value is something else.
    """
    if not seen.is_op("Concat") or len(seen.node.inputs) != 2:
        return None
    pair, element = parts_of(VECTOR, 2)
    along = seen.axes[integer(seen.node, "axis", 0)]
    if along not in (VECTOR, element):
        return None
    interleaved = along == element
    labels = [VECTOR if axis == pair else axis for axis in seen.axes]
    negative, a = (look(part, labels) for part in sources(seen.node))
    b = unrounded(negative).operands("Neg")
    parted = _parted(uncast(a), uncast(b[0]), alternating=interleaved) if b else None
    if parted is None:
        return None
    whole, count, width = parted
    return (width, interleaved) if whole == x and count == width else None


def _parted(a: Seen, b: Seen, *, alternating: bool) -> tuple[Seen, int, int] | None:
    """Return the value whose vectors begin with `a` and `b`, halves or alternating elements, the size of both, and its own."""
    one, other = _extent(a), _extent(b)
    if one is None or other is None or one[0] != other[0]:
        return None
    count = 2 * len(one[1])
    halves = (range(count // 2), range(count // 2, count))
    wanted = (range(0, count, 2), range(1, count, 2)) if alternating else halves
    return (uncast(one[0]), count, one[2]) if (one[1], other[1]) == wanted else None


def _extent(part: Seen) -> tuple[Seen, range, int] | None:
    """Return the value that elements are taken from along the axis of vectors, which ones, and how many it has."""
    node = part.value.producer()
    if VECTOR not in part.axes or not is_op(node, "Split", "Slice", "Gather"):
        return None
    place = part.axes.index(VECTOR)
    width = _size_along(source(node), place)
    if width is None:
        return None
    taken = _elements(part.value, node, place, width)
    return _of_pairs(part, node, place, width) if taken is None else (look(source(node), part.axes), taken, width)


def _of_pairs(part: Seen, node: ir.Node, place: int, count: int) -> tuple[Seen, range, int] | None:
    """Return the same of elements that are taken from pairs: `x.reshape(…, count, 2)[..., 0]`."""
    dims = dims_of(source(node)) or [0]
    if len(dims) != place + 2 or dims[-1] != 2:
        return None
    index = constant_of(source(node, 1)) if is_op(node, "Gather") else None
    if index is not None and index.ndim == 0 and integer(node, "axis", 0) % len(dims) == place + 1:
        taken = range(2)[int(index) % 2 :][:1]
    else:
        taken = _elements(part.value, node, place + 1, 2)
    if taken is None or len(taken) != 1:
        return None
    whole = look(source(node), [*part.axes[:place], *parts_of(VECTOR, 2)])
    return whole, range(taken.start, 2 * count, 2), 2 * count


def _elements(part: ir.Value, node: ir.Node, place: int, width: int) -> range | None:
    """Return the elements that a Split, Slice or Gather takes along one axis, if it takes all along the others."""
    if not is_op(node, "Split"):
        return _taken(node, place, width)
    if integer(node, "axis", 0) % len(dims_of(source(node)) or (0,)) != place:
        return None
    start = 0
    for value in node.outputs:
        size = _size_along(value, place)
        if size is None:
            return None
        if value is part:
            return range(start, start + size)
        start += size
    return None


def _size_along(value: ir.Value, place: int) -> int | None:
    """Return the size of a value along an axis, if it is known."""
    dims = dims_of(value)
    return size if dims is not None and place < len(dims) and isinstance(size := dims[place], int) else None


def _taken(node: ir.Node, place: int, width: int) -> range | None:
    """Return the elements that a Slice or Gather takes along one axis, if it takes all along the others."""
    if is_op(node, "Gather"):
        return _gathered(node, place)
    arrays = [array for value in node.inputs[1:] if (array := constant_of(value)) is not None and array.size == 1]
    if len(arrays) < max(3, len(node.inputs) - 1):
        return None
    start, end, axis, *step = (int(array.ravel()[0]) for array in arrays)
    if axis % len(dims_of(node.inputs[0]) or ()) != place:
        return None
    return range(width)[slice(start, end, *step)]


def _gathered(node: ir.Node, place: int) -> range | None:
    """Return the elements that a Gather takes along one axis, if they are known and evenly spaced."""
    places = constant_of(source(node, 1))
    if places is None or places.ndim != 1 or len(places) == 0:
        return None
    if integer(node, "axis", 0) % len(dims_of(node.inputs[0]) or ()) != place:
        return None
    first, *others = places.tolist()
    step = max(1, others[0] - first) if others else 2
    taken = range(first, first + len(places) * step, step)
    return taken if [*taken] == places.tolist() else None


def _half_of(table: Seen, width: int, *, interleaved: bool) -> Table | None:
    """Return half of a table that repeats vectors, or elements if pairs are neighbours; or that is elementwise functions of one."""
    functions: list[ir.Node] = []
    while (half := _repeated(table, width, interleaved=interleaved)) is None:
        node, factor = table.value.producer(), table.commuted("Mul", lambda operand: operand.scalar is not None)
        inner = [factor[1]] if factor is not None else table.operands("Cos", "Sin", "Cast")
        if node is None or inner is None:
            return None
        functions.insert(0, node)
        (table,) = inner
    return Table(half, tuple(functions))


def _repeated(table: Seen, width: int, *, interleaved: bool) -> Seen | None:
    """Return half of a value that repeats vectors, or elements; half of a constant is not yet a value of the graph."""
    if VECTOR not in table.axes:
        return _before_repetition(table, width) if interleaved else None
    place, rank = table.axes.index(VECTOR), len(table.axes)
    array = constant_of(table.value)
    if array is not None:
        if array.shape[place] % 2:
            return None
        places = np.arange(array.shape[place])
        parts = places.reshape(-1, 2).T if interleaved else np.split(places, 2)
        first, second = (array.take(part, place) for part in parts)
        half = ir.Value(name=table.value.name, type=table.value.type, shape=ir.Shape(first.shape))
        half.const_value = ir.Tensor(first, name=table.value.name)
        return Seen(half, table.axes, half) if np.array_equal(first, second) else None
    if interleaved or not table.is_op("Concat", "Tile"):
        return None
    node = table.node
    if node.op_type == "Concat":
        repeated = [*node.inputs] == [node.inputs[0]] * 2 and integer(node, "axis", 0) % rank == place
    else:
        repeats = constant_of(node.inputs[1])
        repeated = repeats is not None and repeats.tolist() == [1 + (axis == place) for axis in range(rank)]
    return look(source(node), table.axes) if repeated else None


def _before_repetition(table: Seen, width: int) -> Seen | None:
    """Return the value whose elements are repeated: broadcast along an axis behind them, or stacked with themselves."""
    pair, element = parts_of(VECTOR, 2)
    if table.is_op("Concat") and element in table.axes:
        node = table.node
        is_stack = [*node.inputs] == [node.inputs[0]] * 2 and table.axes[integer(node, "axis", 0)] == element
        table = look(source(node), table.axes) if is_stack else table
    if pair not in table.axes or element in table.axes:
        return None
    if 2 * (_size_along(table.value, table.axes.index(pair)) or 0) != width:
        return None
    return replace(table, axes=tuple(VECTOR if axis == pair else axis for axis in table.axes))

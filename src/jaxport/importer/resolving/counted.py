"""Loops and ranges that are something else in JAX, which can be traced where their length is a size with a name.

1. Running maxima, minima, products and sums of exponentials along an axis, which ONNX has as a loop only. It joins what
  is twice as far away in each
   step: `x = max(x, pad(x[:-distance], distance, -inf))`, while the distance is below the size. How often depends on
   the size; JAX's function has a gradient, and is one line of source.
2. Rows that a loop reads by the number of its step. An export writes such a loop where there may be no rows, of which
  ONNX's
   Scan is not defined. In JAX it is a scan over the rows, whose indices are in no doubt.
3. Ranges of floats: PyTorch writes `arange(n, dtype=float32)` as one whose end is a cast of a size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, is_op, number_of
from jaxport.graph.patterns import pattern_of
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.resolving.registry import lookup
from jaxport.importer.values.dtypes import STRING, dtype_of
from jaxport.onnx_facts import RESHAPING

DOMAIN = "jaxport"
DEEPEST = 20
OPSET = 18
"""An opset whose operators of sums of exponentials are those of all others."""
LOOP_INPUTS = ("M", "cond", "x", "distance")
_MOVING = RESHAPING | {"Cast", "Identity"}
_LOG_ADD_EXP = ("LogAddExp", "jnp.logaddexp")
"""The sum of exponentials as an export spells it, and as the function that a fusion has made of that."""
_JOINED = {"Max": "cummax", "Min": "cummin", "Mul": "cumprod", **dict.fromkeys(_LOG_ADD_EXP, "cumlogsumexp")}
"""The functions of `jax.lax` by the operator that joins two elements."""


class _Shift(NamedTuple):
    """Elements moved along an axis, with a number where none arrive."""

    x: ir.Value
    distance: ir.Value
    axis: int
    is_backward: bool
    fill: float


class _Reduction(NamedTuple):
    """A running reduction: how a step moves what it joins, the function of `jax.lax`, and the size of the axis."""

    shift: _Shift
    function: str
    size: ir.Value


def rewrite_counted(body: Body) -> None:
    """Make operators of loops that JAX has a function for, pass those arrays to others that they go over, and count
    ranges.
    """
    _name_running_reductions(body)
    for node in body.nodes:
        if is_op(node.node, "Loop") and len(node.inputs) > 1 and node.inputs[0] is not None:
            _pass_rows(node)
    _count_ranges(body)


def _name_running_reductions(body: Body) -> None:
    loops = [node for node in body.nodes if is_op(node.node, "Loop") and len(node.inputs) == len(LOOP_INPUTS)]
    conditions = {node.node: node.inputs[1] for node in loops}
    named = {node.node for node in loops if _is_named(node)}
    needless = {
        value
        for value in (conditions[node] for node in named)
        if value is not None and not value.is_graph_output() and {*value.consumers()} <= named
    }
    if needless:
        body.nodes[:] = [node for node in body.nodes if node.outputs[0] not in needless]


def _is_named(node: BoundNode) -> bool:
    """Make a loop one operator if it is a running reduction, and return whether it is."""
    times, starts, _, first = node.inputs
    inner, target = node.attributes.get("body"), lookup(DOMAIN, "RunningReduction", 1)
    last = node.node.outputs[1]
    if not isinstance(inner, Body) or times is not None or target is None or starts is None or number_of(first) != 1:
        return False
    found = None if last.uses() or last.is_graph_output() else _reduction(inner)
    if found is None or not _begins(starts, found.size):
        return False
    node.target, node.inputs = target, (None, None, *node.inputs[2:], found.size)
    node.outputs = node.outputs[:1]
    shift = found.shift
    node.attributes |= {"function": found.function, "axis": shift.axis, "reverse": int(shift.is_backward)}
    return True


def _begins(condition: ir.Value, size: ir.Value) -> bool:
    """Whether a condition holds if there is more than one element; of one element a step changes nothing."""
    limit, is_true = _limit(condition.producer()), constant_of(condition)
    if limit is None:
        return is_true is not None and bool(is_true.all())
    return number_of(limit[0]) == 1 and _plain(limit[1]) is _plain(size)


def _limit(node: ir.Node | None) -> tuple[ir.Value | None, ir.Value | None] | None:
    """Return what is below what; None if the node is another comparison."""
    return (node.inputs[0], node.inputs[1]) if is_op(node, "Less") else None


def _reduction(body: Body) -> _Reduction | None:
    """Return what all steps of a loop are."""
    (_, _, x, distance), (goes_on, joined, twice) = body.inputs, body.outputs
    doubled, join, limit = twice.producer(), joined.producer(), _limit(goes_on.producer())
    if not is_op(doubled, "Add") or any(term is not distance for term in doubled.inputs):
        return None
    if limit is None or limit[0] is not twice or limit[1] is None or join is None:
        return None
    joined_by = join.op_type
    if is_op(join, "Where"):  # of exponentials: the sum of the operands where their difference is none
        joined_by, join = "LogAddExp", None if join.inputs[1] is None else join.inputs[1].producer()
    if joined_by not in _JOINED or join is None or len(join.inputs) != 2:
        return None
    for kept, moved in (join.inputs, reversed(join.inputs)):
        shift = _shift(moved) if kept is x else None
        if shift is None or shift.x is not x or shift.distance is not distance or not _is_neutral(joined_by, shift):
            continue
        if joined_by != "LogAddExp" or _is_log_add_exp(joined, kept, moved):
            return _Reduction(shift, _JOINED[joined_by], limit[1])
    return None


def _is_log_add_exp(value: ir.Value, *operands: ir.Value | None) -> bool:
    """Whether a value is `jnp.logaddexp` of two, in either order, as an export writes it."""
    pattern = pattern_of(_log_add_exp, np.dtype(np.float32), OPSET)
    return any(pattern.is_of(value, order) for order in (operands, operands[::-1]))


def _log_add_exp(x: jax.Array, *, y: jax.Array) -> jax.Array:
    return jnp.logaddexp(x, y)


def _is_neutral(joined_by: str, shift: _Shift) -> bool:
    """Whether what is joined with the number of a shift stays what it is."""
    dtype = None if shift.x.dtype is None else shift.x.dtype.numpy()
    if dtype is None or joined_by == "Mul":
        return dtype is not None and shift.fill == 1
    if joined_by in _LOG_ADD_EXP:
        return shift.fill == -np.inf
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)
    return shift.fill == float(low if joined_by == "Max" else high)


def _uncast(value: ir.Value | None) -> ir.Node | None:
    """Return the node whose result a value is, maybe cast: integers of few bits are padded in a wider type."""
    made = None if value is None else value.producer()
    return made if not is_op(made, "Cast") or made.inputs[0] is None else made.inputs[0].producer()


def _shift(value: ir.Value | None) -> _Shift | None:
    """Return what a value is if it is a `Pad` of as many elements as a `Slice` has taken."""
    pad = _uncast(value)
    if not is_op(pad, "Pad") or len(pad.inputs) != len(("data", "pads", "value")) or pad.inputs[0] is None:
        return None
    if pad.attributes.get_string("mode", "constant") != "constant":
        return None
    cut, pads = _uncast(pad.inputs[0]), pad.inputs[1]
    scaled, fill = None if pads is None else pads.producer(), number_of(pad.inputs[2])
    if not is_op(cut, "Slice") or len(cut.inputs) != len(("data", "starts", "ends", "axes")) or fill is None:
        return None
    x, starts, ends, axes = cut.inputs
    along, wide = None if axes is None else constant_of(axes), pad.outputs[0].dtype
    if not is_op(scaled, "Mul") or x is None or x.shape is None or along is None or along.size != 1:
        return None
    if pad.inputs[0] is not cut.outputs[0] and not (x.dtype and wide and np.can_cast(x.dtype.numpy(), wide.numpy())):
        return None
    for by, sides in (scaled.inputs, reversed(scaled.inputs)):
        found = None if sides is None else constant_of(sides)
        distance = _plain(by)
        if found is None or distance is None or found.shape != (2 * len(x.shape),) or sorted(found)[-2:] != [0, 1]:
            continue
        end, axis = divmod(int(found.argmax()), len(x.shape))
        if found.min() < 0 or axis != int(along.item()) % len(x.shape) or _taken(starts, ends) != (distance, bool(end)):
            continue
        return _Shift(x, distance, axis, bool(end), float(fill))
    return None


def _taken(starts: ir.Value | None, ends: ir.Value | None) -> tuple[ir.Value | None, bool] | None:
    """Return how many elements a slice leaves out, and whether these are the first ones."""
    start, end = (None if place is None else constant_of(place) for place in (starts, ends))
    if start is None and end is not None and end.size == 1 and end.item() >= np.iinfo(np.int32).max:
        return _plain(starts), True
    negated = None if ends is None else ends.producer()
    if start is not None and start.size == 1 and start.item() == 0 and is_op(negated, "Neg"):
        return _plain(negated.inputs[0]), False
    return None


def _plain(value: ir.Value | None) -> ir.Value | None:
    """Return the value whose one element another value is."""
    for _ in range(DEEPEST):
        node = None if value is None else value.producer()
        if not is_op(node, *_MOVING):
            break
        value = node.inputs[0]
    return value


def _pass_rows(node: BoundNode) -> None:
    """Give a loop the arrays that its body reads row by row, from the first one on or from the last one."""
    inner, target = node.attributes.get("body"), lookup(DOMAIN, "LoopOverRows", 1)
    if not isinstance(inner, Body) or target is None:
        return
    step = inner.inputs[0]
    made = {value: other for other in inner.nodes for value in other.outputs if value is not None}
    own = {*inner.inputs, *inner.initializers, *made}
    arrays: list[ir.Value] = []
    lasts: list[ir.Value | None] = []
    rows: dict[ir.Value, BoundNode] = {}
    for other in inner.nodes:
        row, last = other.outputs[0], None
        if not is_op(other.node, "Gather") or other.attributes.get("axis", 0) != 0 or row is None:
            continue
        x, index = other.inputs
        if index is not step:
            turned = made.get(index) if index is not None else None
            if turned is None or not is_op(turned.node, "Sub") or turned.inputs[1] is not step:
                continue
            last = turned.inputs[0]
            if last is None or last in own:
                continue
        if x is not None and x not in own:
            arrays, lasts, rows = [*arrays, x], [*lasts, last], {**rows, row: other}
    if not rows:
        return
    node.target, node.inputs = target, (*node.inputs, *arrays, *lasts)
    inner.inputs = (*inner.inputs, *rows)
    inner.nodes[:] = _needed([other for other in inner.nodes if other not in rows.values()], inner)
    inner.expire()
    counts = any(step in _read(other) for other in inner.nodes) or step in inner.outputs
    node.attributes |= {"row_count": len(rows), "counts": int(counts)}


def _needed(nodes: list[BoundNode], body: Body) -> list[BoundNode]:
    """Return the nodes without those whose results nothing reads any more."""
    read, needed = {*body.outputs}, []
    for node in reversed(nodes):
        if any(value in read for value in node.outputs):
            needed.append(node)
            read |= _read(node)
    return needed[::-1]


def _read(node: BoundNode) -> set[ir.Value | None]:
    """Return the values that a node reads, those that its bodies do included."""
    return {*node.inputs, *(value for inner in node.bodies() for value in inner.captured)}


def _count_ranges(body: Body) -> None:
    """Compute ranges of floats whose bounds are casts of integers on the integers, and cast their elements.

    A size that only has a name stays one that way; as a float it would be an array, of which the length of no range can
    be known.
    """
    makers = {value: node for node in body.nodes for value in node.outputs if value is not None}
    for node in body.nodes:
        if is_op(node.node, "Range") and len(node.inputs) == 3:
            _count(body, node, makers)


def _count(body: Body, node: BoundNode, makers: Mapping[ir.Value, BoundNode]) -> None:
    origins = [_integers(value, makers) for value in node.inputs]
    kind = next((kind for kind, _ in filter(None, origins)), None)
    numbers = [constant_of(value) if value is not None else None for value in node.inputs]
    if kind is None or any(
        origin is None and not _is_whole(number) for origin, number in zip(origins, numbers, strict=True)
    ):
        return
    inputs = []
    for value, origin, number in zip(node.inputs, origins, numbers, strict=True):
        if origin is not None:
            inputs.append(origin[1])
            continue
        assert value is not None
        assert number is not None
        whole = ir.Value(name=f"{value.name}_integer")
        body.initializers[whole] = ir.tensor(number.astype(np.int64).reshape(()), name=whole.name)
        inputs.append(whole)
    node.inputs, node.output_types = tuple(inputs), (kind,)


def _is_whole(number: np.ndarray | None) -> bool:
    """Whether a constant is one whole number."""
    return (
        number is not None
        and number.size == 1
        and bool(np.isfinite(number).all())
        and float(number.item()).is_integer()
    )


def _integers(value: ir.Value | None, makers: Mapping[ir.Value, BoundNode]) -> tuple[np.dtype, ir.Value] | None:
    """Return the floating point type to which integers are cast for a value, and the integers."""
    for _ in range(DEEPEST):
        node = makers.get(value) if value is not None else None
        if node is None or not is_op(node.node, "Cast", "Identity") or node.inputs[0] is None:
            return None
        if node.node.op_type == "Cast":
            to = node.attributes.get("to")
            kind, source = dtype_of(to) if isinstance(to, int) else None, _dtype(node.inputs[0], makers)
            if kind is None or source is None or kind.kind != "f" or source.kind not in "iu":
                return None
            return kind, node.inputs[0]
        value = node.inputs[0]
    return None


def _dtype(value: ir.Value | None, makers: Mapping[ir.Value, BoundNode]) -> np.dtype | None:
    """Return the type of the elements of a value: the declared one, or that of what makes it."""
    for _ in range(DEEPEST):
        if value is None:
            return None
        if value.dtype is not None and value.dtype != ir.DataType.STRING:
            return value.dtype.numpy()
        node = makers.get(value)
        kind = None if node is None else node.output_types[[*node.outputs].index(value)]
        if node is None or not isinstance(kind, int):
            return kind if isinstance(kind, np.dtype) and kind != STRING else None
        value = node.inputs[kind]
    return None

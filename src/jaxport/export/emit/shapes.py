"""Shape inference for operators, with dims that may be symbolic.

It checks the results of a rule before they reach a runtime, and lets rules ask for the shapes of the values they built.
An operator without an entry gives values of unknown shape, which are not checked: absent, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxport.export.emit.value import Value
from jaxport.jaxprs import Dim, Parameters, dims
from jaxport.onnx_facts import BROADCASTING, GLOBAL_POOLS, POOLS, POSITIONS, REDUCTIONS, SHAPED_LIKE_THE_FIRST

Shape = tuple[Dim, ...]
Attributes = Parameters
ShapeFunction = Callable[[Sequence[Value | None], Attributes], Sequence[Shape | None]]

FUNCTIONS: dict[str, ShapeFunction] = {}


class Unknown(Exception):
    """The shape depends on data that is not known."""


def infer(op_type: str, operands: Sequence[Value | None], attributes: Attributes, outputs: int) -> list[Shape | None]:
    """Return the shapes of an operator's results; None for unknown ones."""
    function = FUNCTIONS.get(op_type)
    if function is None:
        return [None] * outputs
    try:
        shapes = list(function(operands, attributes))
    except (Unknown, TypeError):  # an operand of unknown shape or value; dims of undecided order
        return [None] * outputs
    return (shapes + [None] * outputs)[:outputs]


def shape_of(value: Value | None) -> Shape:
    """Return the shape of an operand. Raises `Unknown` if there is none."""
    if value is None or value.shape is None:
        raise Unknown
    return value.shape


def vector_of(value: Value | None) -> list[int]:
    """Return the integers in a constant operand. Raises `Unknown` if it is not a constant."""
    if value is None or value.constant is None:
        raise Unknown
    return [int(n) for n in value.constant.ravel()]


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that several shapes broadcast to, as in NumPy and ONNX. Raises `ValueError` if they do not."""
    first, *others = map(tuple, shapes)
    if all(shape == first for shape in others):
        return first
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result = []
    for column in zip(*padded, strict=True):
        wide = [d for d in column if not (dims.is_static(d) and int(d) == 1)] or [1]
        if any(dims.surely_differ(wide[0], d) for d in wide[1:]):
            raise ValueError(f"shapes {shapes} do not broadcast")
        result.append(next((d for d in wide if dims.is_static(d)), wide[0]))
    return tuple(result)


def _shape_function(*names: str) -> Callable[[ShapeFunction], ShapeFunction]:
    def register(function: ShapeFunction) -> ShapeFunction:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


@_shape_function(*SHAPED_LIKE_THE_FIRST)
def _same(operands, attributes):
    return [shape_of(operands[0])]


@_shape_function(*BROADCASTING)
def _broadcasting(operands, attributes):
    return [broadcast(*map(shape_of, operands))]


@_shape_function("MatMul")
def _matmul(operands, attributes):
    a, b = map(shape_of, operands)
    left, right = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    if dims.surely_differ(left[-1], right[-2]):
        raise ValueError(f"MatMul of {a} and {b}")
    rows, columns = left[-2:-1] if len(a) > 1 else (), right[-1:] if len(b) > 1 else ()
    return [(*broadcast(left[:-2], right[:-2]), *rows, *columns)]


@_shape_function("Gemm")
def _gemm(operands, attributes):
    a, b = map(shape_of, operands[:2])
    return [(a[1] if attributes.get("transA") else a[0], b[0] if attributes.get("transB") else b[1])]


@_shape_function("Transpose")
def _transpose(operands, attributes):
    shape = shape_of(operands[0])
    return [tuple(shape[i] for i in attributes.get("perm", range(len(shape))[::-1]))]


@_shape_function("Concat")
def _concat(operands, attributes):
    shapes = [shape_of(x) for x in operands]
    axis = attributes["axis"] % len(shapes[0])
    return [(*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])]


@_shape_function("Unsqueeze")
def _unsqueeze(operands, attributes):
    shape, axes = list(shape_of(operands[0])), vector_of(operands[1])
    rank = len(shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        shape.insert(axis, 1)
    return [tuple(shape)]


@_shape_function("Squeeze")
def _squeeze(operands, attributes):
    shape = shape_of(operands[0])
    axes = {a % len(shape) for a in vector_of(operands[1] if len(operands) > 1 else None)}
    return [tuple(d for i, d in enumerate(shape) if i not in axes)]


@_shape_function("Reshape")
def _reshape(operands, attributes):
    old, new = shape_of(operands[0]), list(vector_of(operands[1]))
    new = [old[i] if d == 0 and not attributes.get("allowzero") else d for i, d in enumerate(new)]
    if -1 in new:
        total, rest = 1, 1
        for d in old:
            total = total * d
        for d in new:
            rest = rest * (1 if dims.is_static(d) and d == -1 else d)
        if (dims.is_static(rest) and rest == 0) or not dims.known(lambda: total % rest == 0):
            raise Unknown
        new[new.index(-1)] = total // rest
    return [tuple(new)]


@_shape_function("Expand")
def _expand(operands, attributes):
    return [broadcast(shape_of(operands[0]), tuple(vector_of(operands[1])))]


@_shape_function("ConstantOfShape")
def _constant_of_shape(operands, attributes):
    return [tuple(vector_of(operands[0]))]


@_shape_function("Tile")
def _tile(operands, attributes):
    return [tuple(d * n for d, n in zip(shape_of(operands[0]), vector_of(operands[1]), strict=True))]


@_shape_function("Shape")
def _shape(operands, attributes):
    rank = len(shape_of(operands[0]))
    start, end, _ = slice(attributes.get("start"), attributes.get("end")).indices(rank)
    return [(end - start,)]


@_shape_function("Size")
def _size(operands, attributes):
    return [()]


@_shape_function("Gather")
def _gather(operands, attributes):
    data, indices = map(shape_of, operands)
    axis = attributes.get("axis", 0) % len(data)
    return [(*data[:axis], *indices, *data[axis + 1 :])]


@_shape_function("GatherElements")
def _gather_elements(operands, attributes):
    return [shape_of(operands[1])]


@_shape_function("GatherND")
def _gather_nd(operands, attributes):
    data, indices, batch = *map(shape_of, operands), attributes.get("batch_dims", 0)
    if not dims.is_static(indices[-1]):
        raise Unknown
    return [(*indices[:-1], *data[batch + int(indices[-1]) :])]


@_shape_function("Slice")
def _slice(operands, attributes):
    shape, starts, ends = list(shape_of(operands[0])), vector_of(operands[1]), vector_of(operands[2])
    axes = vector_of(operands[3]) if len(operands) > 3 and operands[3] is not None else list(range(len(starts)))
    steps = vector_of(operands[4]) if len(operands) > 4 else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not dims.is_static(shape[axis]):
            raise Unknown
        shape[axis] = len(
            range(*slice(start, None if step < 0 and end < -shape[axis] else end, step).indices(int(shape[axis])))
        )
    return [tuple(shape)]


@_shape_function("Pad")
def _pad(operands, attributes):
    shape, pads = list(shape_of(operands[0])), vector_of(operands[1])
    axes = vector_of(operands[3]) if len(operands) > 3 and operands[3] is not None else list(range(len(shape)))
    for i, axis in enumerate(axes):
        shape[axis] = shape[axis] + pads[i] + pads[i + len(axes)]
    return [tuple(shape)]


@_shape_function("Split")
def _split(operands, attributes):
    shape = shape_of(operands[0])
    axis = attributes.get("axis", 0) % len(shape)
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in vector_of(operands[1] if len(operands) > 1 else None)]


def _reduced(shape: Shape, axes: Sequence[int], keepdims: int) -> Shape:
    hit = {a % len(shape) for a in axes} if shape else set()
    return tuple(1 if i in hit else d for i, d in enumerate(shape) if keepdims or i not in hit)


@_shape_function(*REDUCTIONS)
def _reduce(operands, attributes):
    shape = shape_of(operands[0])
    axes_operand = operands[1] if len(operands) > 1 else None
    axes = attributes.get("axes", vector_of(axes_operand) if axes_operand is not None else None)
    if not axes and attributes.get("noop_with_empty_axes"):
        return [shape]
    return [_reduced(shape, axes or range(len(shape)), attributes.get("keepdims", 1))]


@_shape_function(*POSITIONS)
def _arg_reduce(operands, attributes):
    return [_reduced(shape_of(operands[0]), [attributes.get("axis", 0)], attributes.get("keepdims", 1))]


@_shape_function("TopK")
def _top_k(operands, attributes):
    shape, (k,) = list(shape_of(operands[0])), vector_of(operands[1])
    shape[attributes.get("axis", -1)] = k
    return [tuple(shape)] * 2


@_shape_function("OneHot")
def _one_hot(operands, attributes):
    shape, (depth,) = list(shape_of(operands[0])), vector_of(operands[1])
    shape.insert(attributes.get("axis", -1) % (len(shape) + 1), depth)
    return [tuple(shape)]


@_shape_function("Range")
def _range(operands, attributes):
    start, limit, delta = (vector_of(x)[0] for x in operands)
    return [(max(0, -((start - limit) // delta)),)]


def _window(size: Dim, kernel: Dim, stride: int, dilation: int, padding: int) -> Dim:
    return (size + padding - (dilation * (kernel - 1) + 1)) // stride + 1


def _windows(spatial: Shape, kernel: Sequence[Dim], attributes: Attributes) -> Shape:
    if attributes.get("ceil_mode"):
        raise Unknown
    n = len(spatial)
    strides, dilations = attributes.get("strides", [1] * n), attributes.get("dilations", [1] * n)
    if attributes.get("auto_pad", "NOTSET").startswith("SAME"):
        return tuple(-(-size // stride) for size, stride in zip(spatial, strides, strict=True))
    pads = attributes.get("pads", [0] * 2 * n)
    return tuple(_window(spatial[i], kernel[i], strides[i], dilations[i], pads[i] + pads[i + n]) for i in range(n))


@_shape_function("Conv", "ConvInteger")
def _conv(operands, attributes):
    data, kernel = map(shape_of, operands[:2])
    return [(data[0], kernel[0], *_windows(data[2:], kernel[2:], attributes))]


@_shape_function("ConvTranspose")
def _conv_transpose(operands, attributes):
    (data, kernel), n = map(shape_of, operands[:2]), len(shape_of(operands[0])) - 2
    strides, dilations = attributes.get("strides", [1] * n), attributes.get("dilations", [1] * n)
    pads, extra = attributes.get("pads", [0] * 2 * n), attributes.get("output_padding", [0] * n)
    spatial = (
        strides[i] * (data[2 + i] - 1) + extra[i] + dilations[i] * (kernel[2 + i] - 1) + 1 - pads[i] - pads[n + i]
        for i in range(n)
    )
    return [(data[0], kernel[1] * attributes.get("group", 1), *spatial)]


@_shape_function(*POOLS)
def _pool(operands, attributes):
    data = shape_of(operands[0])
    return [(*data[:2], *_windows(data[2:], attributes["kernel_shape"], attributes))] * 2


@_shape_function(*GLOBAL_POOLS)
def _global_pool(operands, attributes):
    data = shape_of(operands[0])
    return [(*data[:2], *(1 for _ in data[2:]))]

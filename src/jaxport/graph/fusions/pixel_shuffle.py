"""Recognise `DepthToSpace` and `SpaceToDepth`, which move pixels between positions and channels.

Programs write both as a Reshape that splits axes, a Transpose, and a Reshape that merges others. Each axis of the
result is traced to its origin, in any layout and through any views.

1. Channels that hold blocks of pixels (rows, columns, rest: mode DCR; rest, rows, columns: mode CRD): DepthToSpace.
2. Blocks of pixels that become channels (rows, columns, rest): SpaceToDepth.

Both operators want channels second. `plain_shuffles`, after the layout pass:
3. one of them between two Transposes that stayed: a Reshape, a Transpose and a Reshape, as it was written.

https://onnx.ai/onnx/operators/onnx__DepthToSpace.html, https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import atoms, sizes_of, target
from jaxport.graph.editing import Dim, Editor, begins_at, dims_of, is_op, nodes_of, permutation, source, substitute
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle
from jaxport.graph.matching import Axis, Part, Seen

CHANNELS_SECOND, CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


@begins_at({"Reshape"})
def pixel_shuffle(model: ir.Model) -> str:
    """Recognise DepthToSpace and SpaceToDepth, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    return fuse(model, lambda node: _find(node, opset), Anchor(at=("Reshape",)))


@dataclass(frozen=True)
class Shuffle:
    """A move of pixels between positions and channels.

    Attributes:
      operator: DepthToSpace or SpaceToDepth.
      mode: the order in the channels; empty if the operator has no choice.
      size: the extent of a block.
      before, after: the axes of the operand, and of the result, that are batch, channels, rows and columns.
    """

    operator: str
    mode: str
    size: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    result = node.outputs[0]
    seen = Seen.whole(result)
    if seen is None or seen.value is result or len(seen.axes) != 4 or len(dims_of(result) or ()) != 4:
        return None
    shuffle = _to_space(seen) or _to_depth(seen)
    if shuffle is None or isinstance(shuffle, str):
        return shuffle
    return obstacle(shuffle.operator, seen.value.dtype, opset) or _fusion(seen, shuffle, result)


def _to_space(seen: Seen) -> Shuffle | str | None:
    """Match DepthToSpace: the second parts of two axes of the result are in one axis of the operand."""
    inner: dict[Axis, int] = {}
    for place, axis in enumerate(seen.axes):
        if isinstance(axis, Part) and (axis.place, axis.count) == (0, 2):
            inner[Part(axis.whole, 1, 2)] = place
    held = [atoms([axis]) for axis in seen.axes]
    channels = next((i for i, parts in enumerate(held) if len(inner) == 2 and inner.keys() <= set(parts)), None)
    if channels is None or len(held[channels]) > 3:
        return None
    order = [axis for axis in held[channels] if axis in inner]
    (rest,) = [axis for axis in held[channels] if axis not in inner] or [None]
    (batch,) = {0, 1, 2, 3} - {channels, *inner.values()}
    rows, columns = (inner[axis] for axis in order)
    wholes = [axis.whole for axis in order if isinstance(axis, Part)]
    modes = {(*order, rest): "DCR", (rest, *order): "CRD"}
    mode = "DCR" if rest is None else modes.get(tuple(held[channels]))
    after = _placed(seen.axes[batch], rest, wholes)
    if after is None or mode is None:
        return "what the channels hold is not a block and the rest"
    return _shuffle("DepthToSpace", mode, seen, order, (batch, channels, rows, columns), after)


def _to_depth(seen: Seen) -> Shuffle | str | None:
    """Match SpaceToDepth: a part of each of two axes of the operand ends up in one axis of the result."""
    blocks: dict[Part, int] = {}
    outer: dict[Part, Axis] = {}
    for place, axis in enumerate(seen.axes):
        parts = atoms([axis])
        if len(parts) == 2 and isinstance(parts[1], Part) and isinstance(parts[0], int):
            blocks[parts[1]], outer[parts[1]] = place, parts[0]
    order = sorted(blocks, key=lambda part: part.place)
    if len(order) != 2 or len({part.whole for part in order}) > 1:
        return None
    whole, count = order[0].whole, order[0].count
    if order != [Part(whole, 0, count), Part(whole, 1, count)]:
        return "the channels come before the blocks, which SpaceToDepth has no mode for"
    rest = Part(whole, 2, 3) if count == 3 else None
    left = [place for place in range(4) if place not in blocks.values()]
    channels = next((place for place in left if seen.axes[place] == rest), None)
    if channels is None:
        return "the channels are not one axis"
    (batch,) = [place for place in left if place != channels]
    after = _placed(seen.axes[batch], whole, [outer[part] for part in order])
    if after is None:
        return "the batch is not one axis"
    return _shuffle("SpaceToDepth", "", seen, order, (batch, channels, *(blocks[part] for part in order)), after)


def _placed(batch: Axis, channels: Axis, positions: Sequence[Axis]) -> tuple[int, ...] | None:
    """Return the axes of the result by role; one of the two labels is None if that axis has size one."""
    free = [place for place in range(4) if place not in positions]
    for first, second in (free, free[::-1]) if len(free) == 2 else ():
        if batch in (first, None) and channels in (second, None):
            return (first, second, *positions)  # pyright: ignore[reportReturnType]
    return None


def _shuffle(
    operator: str, mode: str, seen: Seen, order: Sequence[Axis], before: tuple[int, ...], after: tuple[int, ...]
) -> Shuffle | str:
    sizes = sizes_of(seen)
    height, width = (sizes.get(part) for part in order)
    if not isinstance(height, int) or height != width:
        return "its blocks are not squares of a known size"
    if before[2] > before[3] or after[2] > after[3]:
        return "rows and columns change places"
    return Shuffle(operator, mode, height, before, after)


def _fusion(seen: Seen, shuffle: Shuffle, result: ir.Value) -> Fusion:
    dims = dims_of(result) or []
    attributes: dict[str, Any] = {"mode": shuffle.mode} if shuffle.mode else {}

    def build(builder: Builder) -> ir.Value:
        data = builder.transposed(seen.value, shuffle.before)
        shape = [dims[axis] for axis in shuffle.after]
        moved = builder.emit(shuffle.operator, [data], shape, blocksize=shuffle.size, **attributes)
        return builder.transposed(moved, np.argsort(shuffle.after).tolist())

    return Fusion(shuffle.operator, result, [seen.value], build)


@begins_at({"DepthToSpace", "SpaceToDepth"})
def plain_shuffles(model: ir.Model) -> str:
    """Expand shuffles that are between Transposes of their own into Reshape, Transpose and Reshape."""
    editor, changed = Editor(model), 0
    for node in nodes_of(model, "DepthToSpace", "SpaceToDepth"):
        changed += _written_out(editor, node)
    return f"{changed} written out: nothing around them has its channels second" if changed else "nothing to do"


def _written_out(editor: Editor, node: ir.Node) -> bool:
    before, moved = source(node).producer(), node.outputs[0]
    users = [user for user, _ in moved.uses()]
    if len(users) != 1 or moved.is_graph_output() or not is_op(before, "Transpose") or not is_op(users[0], "Transpose"):
        return False
    x, result = source(before), users[0].outputs[0]
    old, new, size = dims_of(x), dims_of(result), node.attributes["blocksize"].as_int()
    if (permutation(before), permutation(users[0])) != (CHANNELS_SECOND, CHANNELS_LAST) or old is None or new is None:
        return False
    if node.op_type == "SpaceToDepth":
        apart, order = [new[0], new[1], size, new[2], size, old[3]], (0, 1, 3, 2, 4, 5)
    elif node.attributes["mode"].as_string() == "DCR":
        apart, order = [*old[:3], size, size, new[3]], (0, 1, 3, 2, 4, 5)
    else:
        apart, order = [*old[:3], new[3], size, size], (0, 1, 4, 2, 5, 3)
    steps = (old, apart), ([apart[axis] for axis in order], new)
    if any(target(*step) is None for step in steps):
        return False

    def put(op_type: str, value: ir.Value, shape: Sequence[Dim], **attributes: Any) -> ir.Value:
        operands = [value] if attributes else [value, vector(dims_of(value) or (), shape)]
        return editor.insert(node.graph, op_type, operands, before=users[0], like=result, shape=shape, **attributes)

    def vector(shape: Sequence[Dim], wanted: Sequence[Dim]) -> ir.Value:
        return editor.constant(node.graph, np.array(target(shape, wanted)), "shape")

    value = put("Transpose", put("Reshape", x, apart), steps[1][0], perm=order)
    return substitute(result, put("Reshape", value, new))

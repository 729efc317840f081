"""Fuse the operators around convolutions and pools into them.

`average_pools`, before the layout pass, on the mean times size that the rule for sums over windows emits:
1. divided by the size again: AveragePool alone;
2. divided by the same sum of ones: AveragePool that does not count the padding.

`convolution_biases`, after the layout pass:
3. Conv or ConvTranspose, plus or minus one number per channel: their bias.

`global_pools`, after it too:
4. a mean over all positions whose user is a convolution, as in squeeze and excitation: GlobalAveragePool.

`padded_pools`, after it too:
5. Pad before a pool: its axes are named, which keeps ONNX Runtime from fusing it into the pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import (
    Dim,
    Editor,
    begins_at,
    constant_of,
    dims_of,
    discard,
    integer,
    is_op,
    is_weight,
    nodes_of,
    operand,
    permutation,
    source,
    substitute,
)
from jaxport.graph.fusing import obstacle
from jaxport.graph.matching import reduction_axes
from jaxport.onnx_facts import KERNEL_PRODUCTS, MOVEMENTS

#: The first operator set whose Pad takes axes.
AXES_OF_PAD = 18


@begins_at({"AveragePool"}, {"Div"})
def average_pools(model: ir.Model) -> str:
    """Recognise means over windows."""
    editor, count = Editor(model), 0
    for node in nodes_of(model, "Div"):
        count += node.graph is not None and _average(editor, node)
    return f"{count} means recognised" if count else "nothing to do"


@dataclass(frozen=True)
class _WindowSum:
    """A sum over windows, `Mul(AveragePool, size)`, that is moved afterwards and used once."""

    pool: ir.Node
    product: ir.Node
    size: float
    moves: tuple[ir.Node, ...]


def _window_sum(value: ir.Value) -> _WindowSum | None:
    moves: list[ir.Node] = []
    node = value.producer()
    while is_op(node, *MOVEMENTS):
        moves.append(node)
        node = source(node).producer()
    if not is_op(node, "Mul") or any(
        len(n.outputs[0].uses()) > 1 or n.outputs[0].is_graph_output() for n in (*moves, node)
    ):
        return None
    pool, size = source(node).producer(), constant_of(node.inputs[1])
    if not is_op(pool, "AveragePool") or size is None or size.ndim or not integer(pool, "count_include_pad", 0):
        return None
    whole = math.prod(pool.attributes["kernel_shape"].as_ints())
    return _WindowSum(pool, node, float(size), tuple(moves)) if size == whole else None


def _average(editor: Editor, node: ir.Node) -> bool:
    total = _window_sum(source(node))
    if total is None:
        return False
    divisor, counts = constant_of(node.inputs[1]), _window_sum(source(node, 1))
    counts_padding = divisor is not None and divisor.size == 1 and float(divisor.ravel()[0]) == total.size
    if not counts_padding and (counts is None or not _counts_elements(total, counts, node.outputs[0])):
        return False
    pool, result = total.pool, total.pool.outputs[0]
    attributes = {name: attribute.value for name, attribute in pool.attributes.items()}
    if not counts_padding or not {"pads", "auto_pad"} & attributes.keys():
        del attributes["count_include_pad"]
    mean = editor.insert(
        node.graph, "AveragePool", pool.inputs, after=total.product, like=result, shape=dims_of(result), **attributes
    )
    moved = node.inputs[0]
    total.product.outputs[0].replace_all_uses_with(mean)
    discard(total.product)
    return substitute(node.outputs[0], moved if total.moves else mean)


def _counts_elements(total: _WindowSum, counts: _WindowSum, quotient: ir.Value) -> bool:
    """Whether one sum is that of ones over the same windows, moved in the same way: it counts their elements."""
    both = (total, counts)
    moves = [[permutation(move) if is_op(move, "Transpose") else move.op_type for move in s.moves] for s in both]
    attributes = [{name: a.value for name, a in s.pool.attributes.items()} for s in both]
    if moves[0] != moves[1] or attributes[0] != attributes[1] or not _is_one(source(counts.pool)):
        return False
    data, ones = (dims_of(s.pool.inputs[0]) for s in both)
    end, counted = (dims_of((s.moves[0] if s.moves else s.product).outputs[0]) for s in both)
    if data is None or ones is None or end is None or counted is None or data[2:] != ones[2:]:
        return False
    return (
        end == dims_of(quotient)
        and len(end) == len(counted)
        and all(n in (1, d) for d, n in zip(end, counted, strict=True))
    )


def _is_one(value: ir.Value) -> bool:
    """Whether a value is one everywhere."""
    while is_op(node := value.producer(), "Expand", *MOVEMENTS):
        value = source(node)
    array = constant_of(value)
    return array is not None and array.size > 0 and bool((array == 1).all())


@begins_at({"Add", "Sub"}, KERNEL_PRODUCTS)
def convolution_biases(model: ir.Model) -> str:
    """Fuse additions after convolutions into their biases."""
    editor, count = Editor(model), 0
    for node in nodes_of(model, "Add", "Sub"):
        count += node.graph is not None and _bias(editor, node)
    return f"{count} biases" if count else "nothing to do"


def _bias(editor: Editor, node: ir.Node) -> bool:
    graph = node.graph
    for place in (0, 1) if node.op_type == "Add" else (0,):
        value = source(node, place)
        transpose = value.producer() if is_op(value.producer(), "Transpose") else None
        convolution = value.producer() if transpose is None else source(transpose).producer()
        if graph is None or convolution is None or not is_op(convolution, *KERNEL_PRODUCTS):
            continue
        chain = [convolution] if transpose is None else [convolution, transpose]
        if any(n.graph is not graph or len(n.outputs[0].uses()) > 1 or n.outputs[0].is_graph_output() for n in chain):
            continue
        axis = 1 if transpose is None else permutation(transpose).index(1)
        bias = _per_channel(editor, node, 1 - place, dims_of(value), axis, operand(convolution, 2))
        if bias is not None:
            for moved in chain:  # to the place at which the bias is known
                graph.remove(moved)
                graph.insert_before(node, moved)
            convolution.resize_inputs(3)
            convolution.replace_input_with(2, bias)
            return substitute(node.outputs[0], value)
    return False


def _per_channel(
    editor: Editor, node: ir.Node, place: int, dims: list[Dim] | None, axis: int, before: ir.Value | None
) -> ir.Value | None:
    """Return the bias that adding an operand of `node` to the one before gives; None if it is not one number per
    channel.
    """
    added, added_dims = source(node, place), dims_of(node.inputs[place])
    if dims is None or added_dims is None or len(added_dims) > len(dims):
        return None
    aligned, channels = [1] * (len(dims) - len(added_dims)) + added_dims, dims[axis]
    if not isinstance(channels, int) or aligned[axis] not in (1, channels):
        return None
    if any(dim != 1 for place, dim in enumerate(aligned) if place != axis):
        return None
    array, first = constant_of(added), constant_of(before)
    merged = before is not None or node.op_type == "Sub" or aligned[axis] != channels
    computed = merged and (is_weight(added) or is_weight(before))
    if array is None or computed or (before is not None and first is None):
        whole = before is None and aligned[axis] == channels and node.op_type == "Add"
        return editor.viewed(node.graph, added, [channels], before=node) if whole else None
    numbers = np.broadcast_to(array.ravel(), (channels,))
    if node.op_type == "Sub":
        return editor.constant(node.graph, (0 if first is None else first) - numbers, f"{added.name}/Neg")
    if first is not None:
        return editor.constant(node.graph, first + numbers, f"{added.name}/Add")
    editor.replace_constant(node, place, numbers)
    return node.inputs[place]


@begins_at({"ReduceMean"})
def global_pools(model: ir.Model) -> str:
    """Replace means over the positions of images that convolutions use by pools, which keep the layout."""
    count, opset = 0, model.opset_imports[""]
    for node in nodes_of(model, "ReduceMean"):
        if not _is_global(node) or obstacle("GlobalAveragePool", source(node).dtype, opset):
            continue
        node.op_type = "GlobalAveragePool"
        node.attributes.clear()
        node.resize_inputs(1)
        count += 1
    return f"{count} pools" if count else "nothing to do"


def _is_global(node: ir.Node) -> bool:
    """Whether a node is the mean over all positions of an image, used by a convolution."""
    rank, axes = len(dims_of(source(node)) or ()), reduction_axes(node)
    users = [user for user, _ in node.outputs[0].uses()]
    over_positions = rank > 3 and axes == set(range(2, rank)) and integer(node, "keepdims", 1)
    return bool(over_positions) and any(is_op(user, "Conv") for user in users)


def padded_pools(model: ir.Model) -> str:
    """Keep a Pad apart from the pool after it.

    ONNX Runtime's optimizer fuses the two if the Pad names no axes. The maximum of a window then ignores the zeros of
    the padding, and a pool refuses a padding as long as its window.
    """
    if (model.opset_imports[""] or 0) < AXES_OF_PAD:
        return f"operator set {model.opset_imports['']} has no axes in Pad"
    editor, count = Editor(model), 0
    for node in nodes_of(model, "Pad"):
        pools = [use.node for use in node.outputs[0].uses()]
        pads = constant_of(operand(node, 1)) if any(is_op(pool, "MaxPool", "AveragePool") for pool in pools) else None
        if pads is not None and operand(node, 3) is None:
            axes = editor.constant(node.graph, np.arange(pads.size // 2, dtype=np.int64), "axes")
            node.resize_inputs(4)
            node.replace_input_with(3, axes)
            count += 1
    return f"{count} pools" if count else "nothing to do"

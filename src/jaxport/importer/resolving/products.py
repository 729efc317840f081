"""Find products that are computed otherwise than a file spells them.

1. Products of values in half precision that a file computes in float32, because a runtime has no kernel in half
  precision.
   An export of a model in bfloat16 casts both operands to float32, multiplies, and casts the result back. The product
   of two numbers of 16 bits is exact in float32, so XLA may multiply the operands as they are and sum in float32: on a
   GPU, that is a kernel of half the memory and several times the speed, where casts of weights are copies.
2. Products of groups of rows, whose sizes depend on data while their sum does not: the rows of each expert of a
  mixture.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, is_op, number_of, source
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.resolving.registry import lookup
from jaxport.importer.values.dtypes import dtype_of

_HALVES = frozenset({ir.DataType.BFLOAT16, ir.DataType.FLOAT16})
DOMAIN = "jaxport"


def find_halves(body: Body) -> None:
    """Record at each product what its operands are before they are cast from half precision to float32."""
    before: dict[ir.Value, ir.Value] = {}
    for node in body.nodes:
        to = node.attributes.get("to")
        if is_op(node.node, "Cast") and isinstance(to, int) and dtype_of(to) == np.float32:
            (narrow,), (wide,) = node.inputs, node.outputs
            if narrow is not None and wide is not None and narrow.dtype in _HALVES:
                before[wide] = narrow
        elif _is_product(node):
            operands = [None if value is None else before.get(value) for value in node.inputs[:2]]
            known = tuple(value for value in operands if value is not None)
            if len(known) == len(operands) and len({value.dtype for value in known}) == 1:
                node.halves = known


def _is_product(node: BoundNode) -> bool:
    """Whether a node multiplies two operands and adds up: convolutions of groups of channels are computed otherwise."""
    if is_op(node.node, "Conv"):
        return node.attributes.get("group", 1) == 1
    return is_op(node.node, "MatMul", "Gemm") or (is_op(node.node, "Einsum") and len(node.inputs) == 2)


def join_grouped_products(body: Body) -> None:
    """Let products of groups of rows be traced, whatever the sizes of the groups are.

    `Concat(Split(x, sizes)[0] @ w[0], Split(x, sizes)[1] @ w[1], …, zeros)` becomes one operator: the parts have sizes
    that only data tells, and the whole has as many rows as `x`.
    """
    makers = {value: node for node in body.nodes for value in node.outputs if value is not None}
    spared: set[int] = set()
    for node in body.nodes:
        if is_op(node.node, "Concat") and node.attributes.get("axis") == 0 and len(node.inputs) > 1:
            spared |= _as_product(node, makers)
    if spared:
        body.nodes[:] = [node for node in body.nodes if node.index not in spared]


def _as_product(node: BoundNode, makers: dict[ir.Value, BoundNode]) -> set[int]:
    """Make a Concat of products one operator; return the indices of the nodes that nothing needs then."""
    *parts, rest = node.inputs
    products = [makers.get(part) for part in parts if part is not None]
    if not products or any(product is None or not is_op(product.node, "MatMul") for product in products):
        return set()
    known = [product for product in products if product is not None]
    split = makers.get(known[0].inputs[0]) if known[0].inputs[0] is not None else None
    target = lookup(DOMAIN, "GroupedProduct", 1)
    if split is None or target is None or not is_op(split.node, "Split") or split.attributes.get("axis", 0) != 0:
        return set()
    x, sizes = (*split.inputs, None)[:2]
    taken = [product.inputs[0] for product in known]
    if sizes is None or constant_of(sizes) is not None or taken != list(split.outputs[:-1]):
        return set()
    zeros = None if rest is None else makers.get(rest)
    if zeros is None or not _are_rows_of_zeros(zeros.node, sizes, len(known)):
        return set()
    node.inputs, node.attributes = (x, sizes, *(product.inputs[1] for product in known)), {}
    node.target = target
    users = {node.node, *(product.node for product in known)}
    return {inner.index for inner in (split, zeros, *known) if _is_only_used_by(inner.node, users)}


def _is_only_used_by(node: ir.Node, users: set[ir.Node]) -> bool:
    """Whether no other nodes need what a node computes."""
    return not any(value.is_graph_output() or set(value.consumers()) - users for value in node.outputs)


def _are_rows_of_zeros(node: ir.Node, sizes: ir.Value, place: int) -> bool:
    """Whether a node computes zeros, with as many rows as the size at some place says."""
    if not is_op(node, "Expand") or number_of(source(node)) != 0:
        return False
    shape = source(node, 1).producer()
    rows = source(shape).producer() if is_op(shape, "Concat") else None
    if not is_op(rows, "Slice") or len(rows.inputs) < len(("x", "starts", "ends", "axes")) or source(rows) is not sizes:
        return False
    bounds = [constant_of(bound) for bound in rows.inputs[1:4]]
    return [None if bound is None else bound.tolist() for bound in bounds] == [[place], [place + 1], [0]]

"""The lowest opset in which a finished graph means the same, so that older runtimes load it.

A version of an operator that only accepts more dtypes than the one before, or has more attributes, is the same for nodes
that use none of these. A node that uses them, or an operator that an older opset lacks, keeps the opset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from jaxport.export import opsets, schema
from jaxport.export.passes.editing import graphs

Formals = Callable[[int], schema.Formal | None]
"""The formal parameter at a position."""

FLOOR = 18
"""The lowest opset that is chosen; older ones have to be asked for."""

#: Operators of which some version means something else than the one before, with the same signature.
REDEFINED = frozenset({"Attention", "GridSample", "GroupNormalization"})
#: Values of attributes that a version brought or redefined.
REDEFINED_VALUES = frozenset(
    {
        ("Pad", "mode", "wrap"),
        ("Resize", "coordinate_transformation_mode", "half_pixel_symmetric"),
        *((operator, "ceil_mode", 1) for operator in ("AveragePool", "LpPool", "MaxPool")),
    }
)


def lower(model: ir.Model) -> None:
    """Write the lowest opset that the model needs, and the IR version of that opset if it is lower; changes the model.

    Example:
      >>> import jax.numpy as jnp, jaxport
      >>> jaxport.to_onnx(jnp.tanh, [("B",)]).model.opset_imports[""]
      18
    """
    opset = lowest(model)
    for holder in (model.graph, *model.functions.values()):
        holder.opset_imports[""] = opset
    model.ir_version = min(model.ir_version, opsets.ir_version(opset))


def lowest(model: ir.Model) -> int:
    """Return the lowest opset in which every node means the same as in the opset that the model is written in."""
    written = model.opset_imports[""]
    nodes = [node for graph in graphs(model) for node in graph if not node.domain]
    return next((opset for opset in range(FLOOR, written) if not needing(nodes, written, opset)), written)


def needing(nodes: Iterable[ir.Node], written: int, opset: int) -> list[ir.Node]:
    """Return the nodes that do not mean in an older opset what they mean in that which they are written in."""
    return [node for node in nodes if not _means_the_same(node, written, opset)]


def _means_the_same(node: ir.Node, written: int, opset: int) -> bool:
    newer, older = schema.find("", node.op_type, written), schema.find("", node.op_type, opset)
    if newer is None or older is None:
        return False
    if newer.since == older.since:
        return True
    if node.op_type in REDEFINED:
        return False
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return (
        all(
            name in older.attributes and (node.op_type, name, _text(given[name])) not in REDEFINED_VALUES
            for name in given
        )
        and all(newer.defaults.get(name) == default for name, default in older.defaults.items() if name not in given)
        and _takes(older.input, newer.input, node.inputs)
        and _takes(older.output, newer.output, node.outputs)
    )


def _text(value: object) -> object:
    """Return the value of an attribute as `REDEFINED_VALUES` has it; arrays and graphs are not in it."""
    return value if isinstance(value, (str, int)) else None


def _takes(older: Formals, newer: Formals, values: Sequence[ir.Value | None]) -> bool:
    """Whether values are operands, or results, of the older version under the same names and in its dtypes."""
    for index, value in enumerate(values):
        if value is None:
            continue
        before, now = older(index), newer(index)
        if before is None or now is None or before.name != now.name:
            return False
        if value.dtype is None or value.dtype is ir.DataType.STRING or value.dtype.numpy() not in before.dtypes:
            return False
    return True

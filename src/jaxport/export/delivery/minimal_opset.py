"""The lowest opset in which a finished graph means the same, so that older runtimes load it.

A newer version of an operator often only accepts more dtypes or attributes. A node that uses none of these means the
same in the older version; one that does, or whose operator an older opset lacks, requires the newer opset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from jaxport.export.delivery import opsets
from jaxport.graph.editing import graphs
from jaxport.onnx_facts import POOLS, releases, schema
from jaxport.onnx_facts.versions import means_the_same

Formals = Callable[[int], schema.Formal | None]
"""The formal parameter at a position."""

FLOOR = 18
"""The lowest opset that is chosen automatically."""

RECORD = "jaxport.opset_for"
"""The key of the metadata of a model that says which operators require its opset: `23: Attention, RMSNormalization`."""

#: Values of attributes that a version added or redefined.
REDEFINED_VALUES = frozenset(
    {
        ("Pad", "mode", "wrap"),
        ("Resize", "coordinate_transformation_mode", "half_pixel_symmetric"),
        *((operator, "ceil_mode", 1) for operator in POOLS),
    }
)


def lower(model: ir.Model) -> None:
    """Lower a model, in place, to the oldest opset that it can use, and to the IR version of that opset if that is
    older.

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


def record(model: ir.Model) -> None:
    """Write into the metadata of a finished model which operators require its opset, if any does.

    Example:
      >>> import jax, jaxport
      >>> jaxport.to_onnx(jax.nn.gelu, [("B",)]).model.metadata_props[RECORD]
      '20: Gelu'
    """
    required = _requiring(model)
    if required:
        model.metadata_props[RECORD] = f"{model.opset_imports['']}: {', '.join(required)}"


def recorded(model: ir.Model) -> tuple[str, ...]:
    """Return the operators in the record of a model; none if there is no record, or the model was changed since."""
    opset, _, names = model.metadata_props.get(RECORD, "").partition(": ")
    required = tuple(filter(None, names.split(", ")))
    present = {node.op_type for graph in graphs(model) for node in graph if not node.domain}
    return required if opset == str(model.opset_imports.get("")) and present.issuperset(required) else ()


def requiring(model: ir.Model) -> tuple[str, ...]:
    """Return the operators that require the opset of a model, unless it is one that is written in any case.

    The record goes first: a file may lack the types of values, without which an operator counts as requiring its
    version.
    """
    return recorded(model) or _requiring(model)


def _requiring(model: ir.Model) -> tuple[str, ...]:
    opset = model.opset_imports[""]
    if opset <= FLOOR:
        return ()
    nodes = [node for graph in graphs(model) for node in graph if not node.domain]
    return tuple(sorted({node.op_type for node in needing(nodes, opset, opset - 1)}))


def needing(nodes: Iterable[ir.Node], written: int, opset: int) -> list[ir.Node]:
    """Return the nodes that an older opset lacks, or gives another meaning than the opset `written`."""
    return [node for node in nodes if not _means_the_same(node, written, opset)]


def _means_the_same(node: ir.Node, written: int, opset: int) -> bool:
    newer, older = schema.find("", node.op_type, written), schema.find("", node.op_type, opset)
    if newer is None or older is None:
        return False
    if newer.since == older.since:
        return True
    if means_the_same(node.op_type, list(node.attributes), written, opset):
        return False
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return (
        all(
            name in older.attributes and (node.op_type, name, _text(attributes[name])) not in REDEFINED_VALUES
            for name in attributes
        )
        and all(
            newer.defaults.get(name) == default for name, default in older.defaults.items() if name not in attributes
        )
        and _takes(node.op_type, older.since, older.input, newer.input, node.inputs)
        and _takes(node.op_type, older.since, older.output, newer.output, node.outputs)
    )


def _text(value: object) -> object:
    """Return the value of an attribute if `REDEFINED_VALUES` may contain it, else None."""
    return value if isinstance(value, (str, int)) else None


def _takes(name: str, since: int, older: Formals, newer: Formals, values: Sequence[ir.Value | None]) -> bool:
    """Whether the older version has the same formal parameters for these operands or results, and kernels of their
    dtypes.
    """
    chosen: dict[str, ir.DataType] = {}
    for index, value in enumerate(values):
        if value is None:
            continue
        before, now = older(index), newer(index)
        if before is None or now is None or before.name != now.name:
            return False
        if value.dtype is None or value.dtype is ir.DataType.STRING or value.dtype.numpy() not in before.dtypes:
            return False
        if releases.has_newer_kernel(name, since, value.dtype.numpy()):
            return False
        if before.homogeneous and chosen.setdefault(before.type, value.dtype) != value.dtype:
            return False  # the newer version has a type of its own for it
    return True

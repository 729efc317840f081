"""Attributes that a file has and its operators have not, where ONNX Runtime does not look at them."""

from __future__ import annotations

import difflib
import warnings

import onnx_ir as ir

from jaxport.errors import Refusal, Unsupported
from jaxport.graph.editing import nodes_of
from jaxport.importer.resolving.graph import describe
from jaxport.importer.resolving.registry import KNOWN_OPSETS, lookup
from jaxport.onnx_facts import WITHOUT_ATTRIBUTE_CHECK
from jaxport.printable import printable


def is_ignored(node: ir.Node) -> bool:
    """Whether ONNX Runtime ignores attributes of a node that its operator does not have."""
    return node.domain == "" and node.op_type in WITHOUT_ATTRIBUTE_CHECK


def unknown_attributes(model: ir.Model) -> list[Refusal]:
    """Return the attributes of a model that are ignored: the name of each, its node, and what may have been meant."""
    found = []
    opset = model.opset_imports.get("", KNOWN_OPSETS[""])
    for node in nodes_of(model):
        operator = lookup("", node.op_type, opset) if is_ignored(node) else None
        if operator is None:
            continue
        for name in node.attributes:
            if name not in operator.attributes:
                meant = difflib.get_close_matches(name, operator.attributes, 1)
                hint = f"; `{meant[0]}` may be meant, which has its default then" if meant else ""
                found.append(Refusal(name, describe(node), f"`{node.op_type}` has no such attribute{hint}"))
    return found


def tell_ignored(model: ir.Model, strict: bool) -> None:
    """Warn about attributes that are ignored, as ONNX Runtime ignores them; or refuse them.

    Raises:
      Unsupported: there are some, and `strict` is true.
    """
    found = unknown_attributes(model)
    if not found:
        return
    count = f"{len(found)} attribute{'s' * (len(found) > 1)} of `{model.graph.name}`"
    if strict:
        raise Unsupported(f"{count} cannot be imported", found)
    first = found[0]
    told = f"{count} {'are' if len(found) > 1 else 'is'} ignored, as ONNX Runtime does"
    warnings.warn(
        printable(f"{told}: `{first.name}` of {first.where}: {first.why}; `from_onnx(…, strict=True)` refuses them"),
        stacklevel=4,
    )

"""The largest of repeated values is the largest of the values: known where they are, however often they are
repeated.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import nodes_of
from jaxport.importer.interface import ImportedProgram, rebuilt
from jaxport.onnx_facts import VIEWS

REPEATS = frozenset({"Expand", "Tile"})
"""Operators that repeat the elements of the first operand, each at least once: sizes that are names are no zeros."""


def of_values_once(program: ImportedProgram) -> ImportedProgram:
    """Return the program with the largest and smallest of all values taken before these are repeated; itself if there
    are none.

    Then a size such as `positions.max() + 1` is known though the positions are repeated for each row of an open batch.
    """
    if not _repeated(program.model):
        return program
    model = program.model.clone()
    for node, value in _repeated(model).items():
        node.replace_input_with(0, value)
    return rebuilt(program, model)


def _repeated(model: ir.Model) -> dict[ir.Node, ir.Value]:
    """Return the values before they are repeated, by the node that takes the largest or smallest of all of them."""
    found: dict[ir.Node, ir.Value] = {}
    for node in nodes_of(model, "ReduceMax", "ReduceMin"):
        if len(node.inputs) > 1 or {"axes", "keepdims"} & node.attributes.keys() != {"keepdims"}:
            continue
        value, repeated = node.inputs[0], False
        while value is not None and (producer := value.producer()) is not None:
            if producer.op_type not in VIEWS | REPEATS or producer.domain:
                break
            repeated |= producer.op_type in REPEATS
            value = producer.inputs[0]
        if repeated and value is not None and not node.attributes.get_int("keepdims", 1):
            found[node] = value
    return found

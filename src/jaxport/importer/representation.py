"""What `repr` and errors show of a program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import onnx_ir as ir

from jaxport.columns import counted
from jaxport.printable import printable

if TYPE_CHECKING:
    from jaxport.importer.program import Program

__all__ = ["declared", "summary"]


def declared(value: ir.Value, quote: str = "") -> str:
    """Return a value with its type and shape, as far as the model declares them: `x: FLOAT [batch,4]`."""
    parts = [str(part) for part in (value.type, value.shape) if part is not None]
    return f"{quote}{value.name}{quote}: {' '.join(parts) or 'of any type'}"


def summary(program: Program) -> str:
    """Return the inputs, outputs, parameters, operators and modules of a program."""
    body, weights = program.body, program.weights
    operators = Counter(node.target.label for node in body.nodes)
    rows = [f"Program `{program.model.graph.name}` of {counted(len(body.nodes), 'operation')}"]
    for label, values in (("input", program.inputs), ("output", body.outputs)):
        rows += [f"  {label:<7} {declared(value)}" for value in values]
    count = sum(body.initializers[value].size for value in weights.initializers.values())
    rows.append(f"  params  {counted(len(weights), 'array')}, {counted(count, 'element')}")
    if program.untied:
        (name, tensor), *others = program.untied.items()
        also = f", and {len(others):,} more such" if others else ""
        rows.append(f"  ties    {name} is stored as {tensor}{also}; each is a parameter")
    rows.append("  ops     " + ", ".join(f"{name} {times}" for name, times in operators.most_common()))
    rows.append(f"  calls   {program._calls}")
    if program.modules.children:
        rows.append(f"  modules {program.modules.type}".rstrip())
        rows += [f"    {line}" for line in program.modules.lines()]
    return "\n".join(map(printable, rows))

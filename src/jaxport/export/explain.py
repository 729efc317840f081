"""`exported.explain()`: how each equation and each function call was exported, and what each pass changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from jaxport.columns import titled
from jaxport.graph.editing import operator_name
from jaxport.printable import Shown

if TYPE_CHECKING:
    from jaxport.export.delivery.requirements import Requirements
    from jaxport.export.emit.places import Record
    from jaxport.export.functions import FunctionCall
    from jaxport.export.passes import PassReport

_OWN = ("jaxport.export.rules.", "jaxport.export.emit.registry.")


@dataclass(frozen=True)
class EquationRow:
    """How one equation was exported.

    Attributes:
      source: the user's line, as `train.py:88 in step`.
      path: the path of the innermost block around it.
      primitive: the name of the primitive, or of the block that a rule exports whole.
      rule: the rule that was applied; a rule of this package is named by its file and function.
      nodes: the operators of the nodes that the rule emitted itself; those that a later pass removed are in brackets.
      note: why a rule declined, or how its nodes differ from JAX.
    """

    source: str
    path: str
    primitive: str
    rule: str
    nodes: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """How the equations of a program were exported; its text is a table.

    >>> import jaxport
    >>> explanation = jaxport.to_onnx(lambda x: x * 2 + 1, [("B", 3)]).explain()
    >>> [(row.primitive, row.nodes) for row in explanation.rows]
    [('mul', ('Mul',)), ('add', ('Add',))]
    """

    rows: tuple[EquationRow, ...]
    calls: tuple[FunctionCall, ...]
    passes: tuple[PassReport, ...]
    requirements: Requirements

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        calls: Sequence[FunctionCall],
        passes: Sequence[PassReport],
        requirements: Requirements,
    ) -> Explanation:
        """Return the explanation of what the walker recorded."""
        claimed: set[ir.Node] = set()
        rows = []
        for record in records:  # a rule's record follows those of the equations that it exported in place
            own = [node for node in record.nodes if node not in claimed]
            claimed.update(own)
            if own or not record.nodes:
                place = record.place
                rule = record.rule.removeprefix(_OWN[0]).removeprefix(_OWN[1])
                nodes = tuple(_operator(node) for node in own)
                rows.append(EquationRow(place.source, place.path, place.primitive, rule, nodes, record.note))
        return cls(tuple(rows), tuple(calls), tuple(passes), requirements)

    def text(self) -> str:
        """Return a row for each equation, each call of a function and each pass."""
        equations = [(row.source, row.path, row.primitive, row.rule, _cell(row)) for row in self.rows]
        calls = [(call.source, call.path, call.function, call.note) for call in self.calls]
        passes = [(report.name, report.text) for report in self.passes]
        tables = {
            "equations": [("line", "block", "primitive", "rule", "nodes"), *equations],
            "functions": [("line", "block", "function", ""), *calls],
            "passes": [("pass", "report"), *passes],
        }
        sections = [titled(title, rows, gap=3) for title, rows in tables.items() if len(rows) > 1]
        return "\n\n".join([*sections, "\n  ".join(["needs", *str(self.requirements).splitlines()])])


def _cell(row: EquationRow) -> str:
    return ": ".join(text for text in (_counted(row.nodes), row.note) if text) or "no node"


def _operator(node: ir.Node) -> str:
    name = operator_name(node)
    return name if node.graph is not None else f"[{name}]"


def _counted(nodes: Sequence[str]) -> str:
    """Abbreviate runs of equal operators: `Mul Add×2`."""
    runs: list[list] = []
    for name in nodes:
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    return " ".join(name if count == 1 else f"{name}×{count}" for name, count in runs)

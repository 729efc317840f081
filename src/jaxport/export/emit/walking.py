"""The walk that an emitter is part of, as far as rules and the emitter ask it: `jaxport.export.walk.walker.Walker`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import onnx_ir as ir

from jaxport.blocks import Block
from jaxport.errors import Refusal
from jaxport.export.emit.places import Record
from jaxport.export.emit.registry import Rule
from jaxport.export.emit.value import Value
from jaxport.export.signature.choices import Nonfinite
from jaxport.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, PythonFunction, PyTree

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter

__all__ = ["Walk"]


class Walk(Protocol):
    """One walk over one program; the attributes are those of the walker."""

    opset: int
    rules: Mapping[str, Rule]
    is_whole: Callable[[Block], bool]
    legalize: bool
    nonfinite: Nonfinite
    discards_checks: bool
    unroll_scans: int | None
    offers: Callable[[str, str], bool]
    domains: dict[str, int]
    functions: Any
    derived: dict[tuple, Value]
    records: list[Record]
    refusals: list[Refusal]

    @property
    def keeps_nan(self) -> bool:
        """Whether results have JAX's NaN."""
        ...

    def walk_block(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Export a block."""
        ...

    def inline(self, op: Emitter, jaxpr: ClosedJaxpr | Jaxpr, operands: Sequence[Value]) -> list[Value]:
        """Export a jaxpr in place."""
        ...

    def call(self, op: Emitter, function: PythonFunction, operands: Sequence[Value], parameters: dict) -> Any:
        """Export a JAX function of the operands in place."""
        ...

    def traced(
        self, function: PythonFunction, avals: Sequence[jax.ShapeDtypeStruct], parameters: dict
    ) -> tuple[ClosedJaxpr, PyTree]:
        """Return a JAX function of these abstract values as a jaxpr, and the tree of its results."""
        ...

    def finish_graph(self, op: Emitter, outputs: Sequence[Value], name: str) -> ir.Graph:
        """Return the graph of the scope of `op`, with these outputs."""
        ...

    def source_lines(self, equation: JaxprEqn) -> tuple[str, str]:
        """Return the user's line of an equation, and that of a library."""
        ...

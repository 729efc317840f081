"""The printer of each framework."""

from __future__ import annotations

from collections.abc import Mapping

from jaxport.codegen.equinox import EQUINOX
from jaxport.codegen.flax import NNX
from jaxport.codegen.fused import record_fused
from jaxport.codegen.modules import ModuleSource, to_modules
from jaxport.codegen.source import Source, to_source
from jaxport.errors import InvalidArgument
from jaxport.importer.host import RuntimeValue
from jaxport.importer.program import Program
from jaxport.importer.tracing import record
from jaxport.phases import phase

__all__ = ["FRAMEWORKS", "printed"]

_DIALECTS = {dialect.name: dialect for dialect in (NNX, EQUINOX)}
FRAMEWORKS = ("jax", *_DIALECTS)
"""The frameworks that source can be printed for; `"jax"` is one function."""


def printed(program: Program, inputs: Mapping[str, RuntimeValue] | None, framework: str) -> Source | ModuleSource:
    """Return a program as source for a framework.

    Args:
      program: the imported model.
      inputs: for `jaxport.importer.tracing.record`: sizes other than the declared ones, and values that decide shapes.
      framework: one of `FRAMEWORKS`.

    Raises:
      InvalidArgument: there is no such framework.
    """
    if framework not in FRAMEWORKS:
        raise InvalidArgument(
            f"source cannot be printed for {framework!r}",
            where="`to_source`",
            instead=f"give one of {', '.join(f'`{name}`' for name in FRAMEWORKS)}",
        )
    dialect = _DIALECTS.get(framework)
    with phase("Printing"):
        with phase("Recording"):
            recorded = record(program, inputs) if dialect is None else record_fused(program, inputs)
        return to_source(recorded) if dialect is None else to_modules(recorded, dialect)

"""The printer of each framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import metadata

import jax
import numpy as np

from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.burn.rules.drawing import draws
from jaxport.codegen.burn.rules.registry import PRIMITIVES
from jaxport.codegen.burn.source import CrateSource, crate_source
from jaxport.codegen.equinox import EQUINOX
from jaxport.codegen.flax import NNX
from jaxport.codegen.modules import ModuleSource, to_modules
from jaxport.codegen.recorded.fused import record_fused
from jaxport.codegen.recorded.simplified import simplified
from jaxport.codegen.source import Source, to_source
from jaxport.codegen.writing.literals import comment
from jaxport.errors import InvalidArgument, NeedsWideTypes
from jaxport.importer.interface import ImportedProgram, in_model_order, with_states
from jaxport.importer.names import Framework
from jaxport.importer.traced.read_sizes import elements_for
from jaxport.phases import phase

AnySource = Source | ModuleSource | CrateSource
"""The source of a program, whatever it is printed for."""
Sample = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
_DIALECTS = {dialect.name: dialect for dialect in (NNX, EQUINOX)}
FRAMEWORKS = ("jax", *_DIALECTS, "burn")
"""The frameworks that source can be printed for; `"jax"` is one function, and `"burn"` a crate of Rust."""


DRAWN = (
    "random values are drawn by Burn, others than JAX's, so that no test compares results; dropout drops in "
    "training only"
)
"""What a crate says of random values."""


def printed(
    program: ImportedProgram,
    inputs: Mapping[str, object] | None,
    framework: Framework,
    sample: Callable[[Collection[str], Mapping[str, np.ndarray]], Sample | None] | None = None,
    *,
    strict: bool = False,
) -> AnySource:
    """Return a program as source for a framework.

    Args:
      program: the imported model.
      inputs: for `jaxport.importer.traced.recorded_program.record`: sizes other than the declared ones, and values that
        decide shapes.
      framework: one of `FRAMEWORKS`.
      sample: of the names of a crate's inputs, and of the values of those that decide sizes, returns inputs and outputs
        by name for the crate's test; or None.
      strict: whether guards that act on NaN alone stay.

    Raises:
      InvalidArgument: there is no such framework.
    """
    if framework not in FRAMEWORKS:
        raise InvalidArgument(
            f"source cannot be printed for {framework!r}",
            where="`to_source`",
            instead=f"give one of {', '.join(f'`{name}`' for name in FRAMEWORKS)}",
        )
    try:
        return _printed(program, inputs, framework, sample, strict)
    except NeedsWideTypes:
        if framework != "burn":
            raise
        with jax.enable_x64(True):  # Rust has such integers, whatever JAX is told
            return _printed(program, inputs, framework, sample, strict)


def _printed(
    program: ImportedProgram,
    inputs: Mapping[str, object] | None,
    framework: Framework,
    sample: Callable[[Collection[str], Mapping[str, np.ndarray]], Sample | None] | None,
    strict: bool,
) -> AnySource:
    """Return a program as source, with the types of JAX as they are set."""
    dialect = _DIALECTS.get(framework)
    with phase("Printing"):
        with phase("Recording"):
            trained = frozenset(program.weights)
            program = in_model_order(program) if framework == "burn" else program
            program = with_states(program, has_left_out=framework != "jax")
            is_rust, is_plain = framework == "burn", framework == "jax"
            recorded = record_fused(
                program, inputs, strict=strict, reads_sizes=is_rust, has_helpers=not is_rust,
                primitives=PRIMITIVES.keys() if is_rust else None, only_functions=is_plain,
            )  # fmt: skip
            recorded = simplified(recorded)
        if framework == "burn":
            crate = to_crate(recorded, trained)
            elements = elements_for(recorded.read, recorded.assumed)
            is_random, arrays = draws(recorded), None
            if sample is not None and elements is not None and not is_random:
                arrays = sample(recorded.inputs.keys(), elements)
            notes = (*recorded.notes, *([DRAWN] if is_random else []))
            return crate_source(crate, comment(program.name) or "model", metadata.version("jaxport"), arrays, notes)
        return to_source(recorded) if dialect is None else to_modules(recorded, dialect, trained)

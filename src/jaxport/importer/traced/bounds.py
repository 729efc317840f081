"""Errors of calls whose sizes a model cannot have: they say which sizes it can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from jaxport.errors import JaxportError, ModelError
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.traced.assumptions import Assumptions, with_assumptions
from jaxport.importer.traced.input_specs import input_specs
from jaxport.jaxprs import Dim, dims


@contextmanager
def bounds_are_told(program: ImportedProgram) -> Iterator[dict[str, object]]:
    """Run a call; if it fails because a size is beyond what the model can have, raise an error that says what it can.

    Yields the inputs of the call by name: empty, for the caller to fill.

    Raises:
      ModelError: the call fails; because of its sizes, if the model needs others.
    """
    inputs: dict[str, object] = {}
    try:
        yield inputs
    except ModelError as error:
        shapes = {name: getattr(value, "shape", None) for name, value in inputs.items()}
        broken = _broken(program, {name: shape for name, shape in shapes.items() if shape is not None})
        if broken is None:
            raise
        (sizes, needed, because), stopped = broken, f"{error.refused}, at {error.where}"
        raise ModelError(
            f"the program cannot be called with {sizes}",
            where=f"`{program.name}`",
            why=f"{needed}{f', for {because}' if because else ''}; else {stopped}",
            instead="pass inputs of such sizes",
        ) from error


def _broken(program: ImportedProgram, shapes: Mapping[str, tuple[Dim, ...]]) -> tuple[str, str, str] | None:
    """Return the sizes of a call, and what the model needs instead and for which node; None if that is not known."""

    def traced(assumed: Assumptions) -> Assumptions:
        specs = input_specs(program, assumed)
        jax.eval_shape(lambda params, named: program.apply(params, **named), program.param_specs, specs)
        return assumed

    if program.static_inputs:
        return None
    try:
        declared = input_specs(program)
        sizes = {
            str(dim): int(size)
            for name, spec in declared.items()
            for dim, size in zip(getattr(spec, "shape", ()), shapes.get(name, ()), strict=False)
            if not dims.is_static(dim) and dims.is_static(size)
        }
        if not sizes:  # tracing would fail as this call
            return None
        assumed = with_assumptions(traced)
    except JaxportError:
        return None
    for text in assumed.constraints:
        if dims.is_broken(text, sizes):
            shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
            return shown, f"`{text}` has to hold", assumed.because.get(text, "")
    return None

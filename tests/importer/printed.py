"""Running printed source where jaxport cannot be imported."""

from __future__ import annotations

import builtins
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import numpy as np

from jaxport.codegen import Source
from jaxport.errors import ValueNotKnown
from jaxport.importer import Program, from_onnx
from tests.importer.backend import Case, call_jitted, split


def check(case: Case) -> None:
    """Prints the case's program for the sizes of its inputs, runs that, and compares every output."""
    model = case.model()
    program = from_onnx(model)
    with jax.enable_x64(True):
        for inputs, expected in case.data(model):
            source, arguments = source_of(program, inputs)
            case.compare(run(load(source), arguments), expected)


def source_of(program: Program, inputs: list[Any], framework: str = "jax") -> tuple[Any, dict[str, Any]]:
    """The program as source for inputs of these sizes, and the inputs that stayed arguments, by name."""
    for known, traced in (split(program, inputs), split(program, inputs, scalars_known=True)):
        try:
            return _source(program, known, traced, framework)
        except ValueNotKnown:
            continue
    # The size of a result depends on the inputs: the source is for their values.
    return _source(program, dict(zip(program.input_names, inputs, strict=False)), {}, framework)


def _source(
    program: Program, known: dict[str, Any], traced: dict[str, Any], framework: str
) -> tuple[Any, dict[str, Any]]:
    specs = {name: jax.tree.map(_spec, value) for name, value in traced.items()}
    return program.to_source(inputs=known | specs, framework=framework), traced


def _spec(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


@contextmanager
def without_jaxport() -> Iterator[None]:
    """Makes `import jaxport` fail in what is imported inside."""
    original = builtins.__import__

    def guarded(name: str, *args: Any, **kwargs: Any) -> ModuleType:
        if name.partition(".")[0] == "jaxport":
            raise ImportError("printed source must not import jaxport")
        return original(name, *args, **kwargs)

    builtins.__import__ = guarded
    try:
        yield
    finally:
        builtins.__import__ = original


def load(source: Source) -> ModuleType:
    """The module that the source is, imported from a folder of its own."""
    folder = tempfile.TemporaryDirectory()
    path = source.save(folder.name)
    spec = importlib.util.spec_from_file_location("printed_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with without_jaxport():
        spec.loader.exec_module(module)
    module.params = module.load_params()  # type: ignore[attr-defined]
    folder.cleanup()
    return module


def run(module: ModuleType, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The outputs of `module.model` under `jax.jit`."""
    return call_jitted(module.model, module.params, *arguments.values())

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
from jaxport.importer import Program


def source_of(program: Program, inputs: list[Any]) -> tuple[Source, dict[str, Any]]:
    """The program as source for inputs of these sizes, and the inputs that stayed arguments, by name."""
    known, traced = split(program, inputs)
    specs = {name: jax.tree.map(_spec, value) for name, value in traced.items()}
    return program.to_source(inputs=known | specs), traced


def split(program: Program, inputs: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs that shapes depend on, with strings and absent optionals, and the others."""
    named = dict(zip(program.input_names, inputs, strict=False))
    traced = {name: value for name, value in named.items() if name not in program.static_inputs and _is_array(value)}
    return {name: value for name, value in named.items() if name not in traced}, traced


def _is_array(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "OUST" for leaf in leaves)


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
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with without_jaxport():
        spec.loader.exec_module(module)
    module.params = module.load_params()  # type: ignore[attr-defined]
    folder.cleanup()
    return module


def run(module: ModuleType, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The outputs of `module.model` under `jax.jit`."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    outputs = jax.jit(module.model, compiler_options=options)(module.params, *arguments.values())
    return outputs if isinstance(outputs, tuple) else (outputs,)



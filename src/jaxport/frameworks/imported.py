"""Imported ONNX models: a program is a model, and the modules that its file names are its modules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import jax.numpy as jnp

from jaxport.blocks.callables.framework import Framework, Leaf
from jaxport.importer.modules import NodeModule
from jaxport.importer.program import Program
from jaxport.jaxprs import Module, Parameters, PythonFunction, PyTree

__all__ = ["framework"]


class Imported(Framework):
    """`jaxport.importer`: the program itself opens and closes its blocks (see `jaxport.importer.running.segments`)."""

    namespaces = ("jaxport",)

    def is_module(self, value: object) -> bool:
        """Whether it is a program, or a module of one."""
        return isinstance(value, Program | NodeModule)

    def submodules(self, module: Module) -> Iterator[tuple[str, Module]]:
        """Yield the program, then its modules, parents first."""
        yield "", module
        if isinstance(module, Program):
            yield from ((inner.path, inner) for inner in module.modules.walk() if inner.path)

    def leaves(self, module: Module) -> list[Leaf]:
        """Return the parameters and the statistics, under the names of the initializers."""
        if not isinstance(module, Program):
            return []
        params = [Leaf(name, array, jnp.issubdtype(array.dtype, jnp.inexact)) for name, array in module.params.items()]
        return params + [Leaf(v.name or "", array, False) for v, array in module.weights.untrained.items()]

    def config(self, module: Module) -> dict[str, PyTree]:
        """Return nothing: the static fields of a module of a graph are in its nodes."""
        del module
        return {}

    def signature(self, fn: PythonFunction, keywords: Parameters) -> inspect.Signature | None:
        """Return the inputs of the model, by their names made into identifiers."""
        if not isinstance(fn, Program):
            return None
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in fn.keywords if name not in keywords])


framework = Imported()

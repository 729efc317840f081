"""Imported ONNX models: a program is a model, and the modules that its file names are its modules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import jax.numpy as jnp
import onnx_ir as ir

from jaxport.blocks.callables.framework import Framework, Leaf
from jaxport.importer.modules import NodeModule
from jaxport.importer.program import Program
from jaxport.jaxprs import Module, Parameters, PythonFunction


class Imported(Framework[Program | NodeModule]):
    """`jaxport.importer`: the program itself opens and closes its blocks (see `jaxport.importer.segments`)."""

    namespaces = ("jaxport",)

    def is_module(self, value: object) -> bool:
        """Whether it is a program, or a module of one."""
        return isinstance(value, Program | NodeModule)

    def submodules(self, module: Program | NodeModule) -> Iterator[tuple[str, Module]]:
        """Yield the program, then its modules, parents first."""
        yield "", module
        if isinstance(module, Program):
            yield from ((inner.path, inner) for inner in module.modules.walk() if inner.path)

    def leaves(self, module: Program | NodeModule) -> list[Leaf]:
        """Return the parameters and the statistics, under the names of the initializers."""
        if not isinstance(module, Program):
            return []
        params = [Leaf(name, array, jnp.issubdtype(array.dtype, jnp.inexact)) for name, array in module.params.items()]
        return params + [Leaf(v.name or "", array, False) for v, array in module.weights.untrained.items()]

    def signature(self, fn: PythonFunction, keywords: Parameters) -> inspect.Signature | None:
        """Return the inputs of the model, by their names made into identifiers, each annotated with its dtype."""
        if not isinstance(fn, Program):
            return None
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        inputs = [
            inspect.Parameter(name, kind, annotation=_dtype(value))
            for name, value in zip(fn.keywords, fn.inputs, strict=True)
        ]
        return inspect.Signature([parameter for parameter in inputs if parameter.name not in keywords])


def _dtype(value: ir.Value) -> object:
    """Return the dtype of an input, or nothing if it is not a tensor of numbers."""
    plain = isinstance(value.type, ir.TensorType) and value.dtype not in (None, ir.DataType.STRING)
    return value.dtype.numpy() if plain and value.dtype is not None else inspect.Parameter.empty


framework = Imported()

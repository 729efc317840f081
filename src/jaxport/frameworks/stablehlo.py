"""Compiled artifacts: a program is a model, and the scopes that its locations name are its modules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import jax.numpy as jnp

from jaxport.blocks.callables.framework import Framework, Leaf
from jaxport.importer.modules import NodeModule
from jaxport.jaxprs import Module, Parameters, PythonFunction
from jaxport.stablehlo.program import HloProgram


class CompiledPrograms(Framework[HloProgram | NodeModule]):
    """`jaxport.stablehlo`: the program itself opens and closes the blocks of its scopes."""

    namespaces = ("jaxport",)

    def is_module(self, value: object) -> bool:
        """Whether it is a program, or a module of one."""
        return isinstance(value, HloProgram | NodeModule)

    def submodules(self, module: HloProgram | NodeModule) -> Iterator[tuple[str, Module]]:
        """Yield the program, then its modules, parents first."""
        yield "", module
        if isinstance(module, HloProgram):
            yield from ((path, inner) for path, inner in module.scopes.items() if path)

    def leaves(self, module: HloProgram | NodeModule) -> list[Leaf]:
        """Return the parameters, under the names of their scopes."""
        weights = module.weights if isinstance(module, HloProgram) else {}
        return [Leaf(name, array, bool(jnp.issubdtype(array.dtype, jnp.inexact))) for name, array in weights.items()]

    def signature(self, fn: PythonFunction, keywords: Parameters) -> inspect.Signature | None:
        """Return the parameters of a program, by the names that the artifact has for them."""
        del keywords
        return fn.signature if isinstance(fn, HloProgram) else None


framework = CompiledPrograms()

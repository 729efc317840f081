"""Artifacts of `jax.export`: a call of one, `exported.call(x)`, runs the operations that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxport.blocks.callables.framework import Framework, Leaf
from jaxport.jaxprs import Module, PythonFunction


class Artifacts(Framework[jax.export.Exported]):
    """`jax.export`."""

    namespaces = ("jax.export",)
    methods = frozenset({"call"})

    def is_module(self, value: object) -> bool:
        """Whether it is an artifact."""
        return isinstance(value, jax.export.Exported)

    def module_classes(self) -> Iterator[type]:
        """Yield the class of artifacts."""
        yield jax.export.Exported

    def open_sizes(self) -> Iterator[tuple[type, str, Callable[[PythonFunction], PythonFunction]]]:
        """Yield the call of an artifact, and what is called instead: its program."""
        yield jax.export.Exported, "call", lambda _: lambda self, *args, **kwargs: _program(self)(*args, **kwargs)

    def submodules(self, module: jax.export.Exported) -> Iterator[tuple[str, Module]]:
        """Yield the artifact, then the modules that its locations name, parents first."""
        yield "", module
        yield from ((path, inner) for path, inner in _program(module).scopes.items() if path)

    def leaves(self, module: jax.export.Exported) -> list[Leaf]:
        """Return the constants that are parameters."""
        return [Leaf(name, array) for name, array in _program(module).weights.items()]


def _program(module: jax.export.Exported) -> Any:
    from jaxport.stablehlo.program import program_of  # loaded with the first artifact

    return program_of(module)


framework = Artifacts()

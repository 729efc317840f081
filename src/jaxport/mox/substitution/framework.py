"""A Mox as a model: the interface of a framework, so that a traced program can be traced again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from jaxport.blocks.callables.framework import Framework, Leaf
from jaxport.jaxprs import Module, Parameters, PythonFunction
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.querying.calls import TracedCall


class Programs(Framework[TracedProgram]):
    """Traced programs: they hold arrays by path, and their own blocks are found when they run."""

    def is_module(self, value: object) -> bool:
        """Return False: a Mox is not a module, it has some."""
        del value
        return False

    def is_opaque(self, value: object) -> bool:
        """Whether a value is a Mox, which is not looked into."""
        return isinstance(value, TracedProgram)

    def is_root(self, value: object) -> bool:
        """Whether a value is a Mox."""
        return isinstance(value, TracedProgram)

    def submodules(self, module: TracedProgram) -> Iterator[tuple[str, Module]]:
        """Yield no modules."""
        del module
        return iter(())

    def leaves(self, module: TracedProgram) -> list[Leaf]:
        """Return the arrays that the program holds.

        A block that is being replaced has no arrays of its own: it calls the original.
        """
        if isinstance(module, TracedCall) and module.is_replaced:
            return []
        return [
            Leaf(weight.path, weight.value, weight.trainable, owned=weight.trainable or weight.is_held)
            for weight in module.weights
        ]

    def signature(self, fn: PythonFunction, keywords: Parameters) -> inspect.Signature | None:
        """Return the signature of the traced callable."""
        del keywords
        return fn.signature if isinstance(fn, TracedProgram) else None


framework = Programs()

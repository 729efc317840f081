"""Flax Linen: modules are descriptions bound to variables for the time of a call; they know their own path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields

from flax import linen
from jax.extend import source_info_util

from jaxport.blocks.framework import Framework, Leaf, static_items
from jaxport.blocks.targets import BOUNDARY
from jaxport.blocks.values import is_array

__all__ = ["framework"]

source_info_util.register_exclusion(__file__)

# Methods that Linen itself calls around the user's own.
_INNER_METHODS = frozenset({"setup", "__post_init__"})


class Linen(Framework):
    """`flax.linen`."""

    namespaces = ("flax.linen",)

    def is_module(self, value: object) -> bool:
        """An `nn.Module`."""
        return isinstance(value, linen.Module)

    def is_opaque(self, value: object) -> bool:
        """A module, bound or not, and Linen's own handle on variables."""
        return isinstance(value, linen.Module | linen.module.Variable)

    def interception(self, call: Callable[..., object]) -> AbstractContextManager[object]:
        """Linen's own hook, which is local to the thread."""

        def intercept(
            method: Callable, args: tuple, kwargs: dict, context: linen.module.InterceptorContext
        ) -> object:
            module, name = context.module, context.method_name
            inner = name in _INNER_METHODS or (name.startswith("_") and name != "__call__")
            if inner or module.scope is None or hasattr(getattr(type(module), name, None), BOUNDARY):
                return method(*args, **kwargs)
            return call(module, name, method, args, kwargs)

        return linen.intercept_methods(intercept)

    def own_path(self, module: object) -> str | None:
        """A bound module knows its path."""
        return ".".join(module.path) if module.scope is not None else None

    def submodules(self, module: object) -> Iterator[tuple[str, object]]:
        """The module alone: those below it are made anew in each call."""
        yield "", module

    def leaves(self, module: object) -> list[Leaf]:
        """None of its own; see `parameters`."""
        del module
        return []

    def parameters(self, module: object) -> list[object]:
        """The arrays of the module's own scope; those of its submodules are found in their own calls."""
        return [value for values in module.variables.values() for value in values.values() if is_array(value)]

    def config(self, module: object) -> dict[str, object]:
        """The dataclass fields."""
        values = {field.name: getattr(module, field.name, None) for field in fields(module)}
        return static_items({k: v for k, v in values.items() if k not in ("name", "parent")}, self.is_opaque)


framework = Linen()

"""Haiku: modules are recreated in each call of a transformed function, and know their own name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import haiku  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp
from haiku._src import base  # pyright: ignore[reportMissingImports]  the running transformation has no public name

from jaxport.blocks.callables.framework import CallRecorder, Framework, Leaf, OwnPlace, static_items
from jaxport.blocks.callables.values import is_array
from jaxport.blocks.marking.targets import BOUNDARY
from jaxport.jaxprs import source_info_util

source_info_util.register_exclusion(__file__)


class Haiku(Framework[haiku.Module]):
    """`haiku`."""

    namespaces = ("haiku", "haiku.nets")

    def is_module(self, value: object) -> bool:
        """Whether it is an `hk.Module`."""
        return isinstance(value, haiku.Module)

    def interception(self, recorder: Callable[[], CallRecorder | None]) -> AbstractContextManager[Any]:
        """Return a context with Haiku's own hook, which is local to the thread."""

        def intercept(method: Callable, args: tuple, kwargs: dict, context: haiku.MethodContext) -> object:
            module, name, current = context.module, context.method_name, recorder()
            defined = getattr(type(module), name, None)
            inner = name.startswith("_") and name != "__call__"
            if current is None or inner or defined is None or hasattr(defined, BOUNDARY) or not base.frame_stack:
                return method(*args, **kwargs)
            return current.call_method(module, name, method, args, kwargs, named_by=context.orig_method)

        return haiku.intercept_methods(intercept)

    def own_place(self, module: haiku.Module) -> OwnPlace:
        """Return the place below the root of the running transformation's parameters, by the name of the module."""
        params = base.current_frame().params

        def leaves() -> list[tuple[str, Leaf]]:
            return [("params", leaf) for name, tree in params.items() for leaf in _leaves(name, tree)]

        return OwnPlace(params, "", _dotted(module.module_name), leaves)

    def parameters(self, module: haiku.Module) -> list[Any]:
        """Return the arrays under the name of the module; those of its submodules are found in their own calls."""
        own = base.current_frame().params.get(module.module_name, {})
        return [value for value in own.values() if is_array(value)]

    def config(self, module: haiku.Module) -> dict[str, Any]:
        """Return the public attributes that hold no arrays or modules."""
        return static_items({k: v for k, v in vars(module).items() if k not in _NAMES}, self.is_opaque)


_NAMES = frozenset({"module_name", "name"})


def _dotted(name: str) -> str:
    """Return the name of a module as a path.

    >>> _dotted("mlp/~/linear_0")
    'mlp.linear_0'
    """
    return ".".join(part for part in name.split("/") if not part.startswith("~"))


def _leaves(name: str, tree: Any) -> Iterator[Leaf]:
    for key, value in tree.items():
        if is_array(value):
            yield Leaf(f"{name}.{key}", value, bool(jnp.issubdtype(value.dtype, jnp.inexact)))


framework = Haiku()

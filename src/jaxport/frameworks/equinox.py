"""Equinox: modules are immutable pytrees; every transformation makes new objects of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import equinox
import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from jaxport.blocks.callables.framework import Framework, Leaf, static_items
from jaxport.blocks.callables.values import is_array
from jaxport.blocks.marking.targets import subclasses
from jaxport.jaxprs import Module, PythonFunction
from jaxport.jaxprs.identity import IdentitySet


class Equinox(Framework[equinox.Module]):
    """`equinox`."""

    namespaces = ("equinox.nn", "equinox")
    bases = (equinox.Module,)

    def is_module(self, value: object) -> bool:
        """Whether it is an `eqx.Module` other than Equinox's own wrappers around functions."""
        return isinstance(value, equinox.Module) and _is_layer(type(value))

    def is_opaque(self, value: object) -> bool:
        """Whether it is a module, or an `eqx.nn.State`, which may only be read once."""
        return isinstance(value, equinox.Module | equinox.nn.State | equinox.nn.StateIndex)

    def is_state(self, value: object) -> bool:
        """Whether it is an `eqx.nn.State`: the statistics of normalizations, for example."""
        return isinstance(value, equinox.nn.State)

    def module_classes(self) -> Iterator[type]:
        """Yield all layers: Equinox's and the user's."""
        return (cls for cls in subclasses(equinox.Module) if _is_layer(cls))

    def submodules(self, module: equinox.Module) -> Iterator[tuple[str, Module]]:
        """Yield the module and those below it, parents first."""
        seen: IdentitySet[Any] = IdentitySet()
        waiting = [("", module)]
        while waiting:
            path, node = waiting.pop()
            if isinstance(node, equinox.Module):
                if node in seen:
                    continue
                seen.add(node)
                if self.is_module(node):
                    yield path, node
                children = [(field.name, getattr(node, field.name, None)) for field in fields(node)]
            elif isinstance(node, list | tuple):
                children = list(enumerate(node))
            elif isinstance(node, dict):
                children = list(node.items())
            else:
                continue
            waiting += [(f"{path}.{key}" if path else str(key), child) for key, child in reversed(children)]

    def leaves(self, module: equinox.Module) -> list[Leaf]:
        """Return the arrays among the leaves of the pytree."""
        return [
            Leaf(jax.tree_util.keystr(keys, simple=True, separator="."), leaf, jnp.issubdtype(leaf.dtype, jnp.inexact))
            for keys, leaf in jax.tree_util.tree_flatten_with_path(module)[0]
            if is_array(leaf)
        ]

    def open_sizes(self) -> Iterator[tuple[type, str, Callable[[PythonFunction], PythonFunction]]]:
        """Yield the rotary embedding, which looks its table up by the length of the sequence."""
        yield equinox.nn.RotaryPositionalEmbedding, "__call__", _rotary_embedding

    def with_part(self, model: Module, old: Module, part: Module) -> Any | None:
        """The model with another module in the place of each occurrence of the old one."""
        if not self.is_module(old) or not isinstance(part, equinox.Module):
            return None
        is_old = lambda node: node is old
        return jax.tree.map(lambda node: part if node is old else node, model, is_leaf=is_old)

    def config(self, module: equinox.Module) -> dict[str, Any]:
        """Return the fields that hold no arrays or modules."""
        values = {field.name: getattr(module, field.name, None) for field in fields(module)}
        return static_items(values, lambda item: isinstance(item, equinox.Module))


def _rotary_embedding(original: PythonFunction) -> PythonFunction:
    @functools.wraps(original)
    def call(self: Any, x: jax.Array, *, key: Any = None) -> jax.Array:
        if not is_symbolic_dim(x.shape[0]):
            return original(self, x, key=key)
        if x.shape[-1] != self.embedding_size:
            raise ValueError(f"x.shape[-1] must match self.embedding_size, but {x.shape[-1]} != {self.embedding_size}")
        exponents = jnp.arange(0.0, self.embedding_size, 2) / self.embedding_size
        positions = jnp.arange(x.shape[0], dtype=exponents.dtype)
        angles = jnp.tile(jnp.outer(positions, 1.0 / self.theta**exponents), (1, 2))
        cosines, sines = jnp.cos(angles).astype(self.dtype), jnp.sin(angles).astype(self.dtype)
        return (x * cosines + self.rotate_half(x) * sines).astype(x.dtype)

    return call


def _is_layer(cls: type) -> bool:
    package = cls.__module__.partition(".")[0]
    return package != "equinox" or cls.__module__.startswith("equinox.nn.")


framework = Equinox()

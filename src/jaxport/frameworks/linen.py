"""Flax Linen: modules are descriptions bound to variables during a call; they know their own path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from jaxport.blocks.callables.framework import CallRecorder, Framework, Leaf, Lifted, OwnPlace, Snapshot, static_items
from jaxport.blocks.callables.values import is_array
from jaxport.blocks.marking.targets import BOUNDARY
from jaxport.jaxprs import Parameters, source_info_util

source_info_util.register_exclusion(__file__)

# Methods that Linen itself calls around the user's own.
_INNER_METHODS = frozenset({"setup", "__post_init__"})

# The number of arrays per collection that locate the call of a body: all agree, except shared ones.
_WITNESSES = 4


class Linen(Framework[linen.Module]):
    """`flax.linen`."""

    namespaces = ("flax.linen",)
    parameter_collection = "params"

    def is_module(self, value: object) -> bool:
        """Whether it is an `nn.Module`."""
        return isinstance(value, linen.Module)

    def is_opaque(self, value: object) -> bool:
        """Whether it is a module, bound or not, or Linen's own handle on variables."""
        return isinstance(value, linen.Module | linen.module.Variable)

    def interception(self, recorder: Callable[[], CallRecorder | None]) -> AbstractContextManager[Any]:
        """Return a context with Linen's own hook, which is local to the thread."""

        def intercept(method: Callable, args: tuple, kwargs: dict, context: linen.module.InterceptorContext) -> object:
            module, name = context.module, context.method_name
            current = recorder()
            if current is None:
                return method(*args, **kwargs)
            if (copy := current.stand_in(module)) is not module:
                return getattr(copy, name)(*args, **kwargs)
            inner = name in _INNER_METHODS or (name.startswith("_") and name != "__call__")
            # A lifted transformation calls something that is not a method of the class; decorated classes mark
            # themselves.
            defined = getattr(type(module), name, None)
            if inner or defined is None or module.scope is None or hasattr(defined, BOUNDARY):
                return method(*args, **kwargs)
            return current.call_method(
                module, name, method, args, kwargs, named_by=defined.__get__(module, type(module))
            )

        return linen.intercept_methods(intercept)

    def own_place(self, module: linen.Module) -> OwnPlace:
        """Return the path of a bound module; a lifted transformation gives its body a root scope of its own."""
        assert module.scope is not None
        root = module.scope.root

        def leaves() -> list[tuple[str, Leaf]]:
            return [
                (name, leaf) for name, tree in root.variables().items() for leaf in list(_leaves(tree))[:_WITNESSES]
            ]

        return OwnPlace(root, ".".join(root.path), ".".join(module.path[len(root.path) :]), leaves)

    def parameters(self, module: linen.Module) -> list[Any]:
        """Return the arrays of the module's own scope; those of its submodules are found in their own calls."""
        return [value for values in module.variables.values() for value in values.values() if is_array(value)]

    def lift(self, module: linen.Module) -> Lifted | None:
        """Lift a bound module: it holds variables, which a call may change."""
        scope: Any = module.scope
        if scope is None:
            return None
        unbound, variables = module.unbind()
        leaves = tuple(_leaves(variables))
        flat, tree = jax.tree.flatten(variables)
        positions = [index for index, leaf in enumerate(flat) if is_array(leaf)]
        rngs = {name: rng.as_jax_rng() for name, rng in scope.rngs.items()}

        def rebuild(values: Sequence[object]) -> object:
            new = list(flat)
            for index, value in zip(positions, values, strict=True):
                new[index] = value
            return unbound.bind(jax.tree.unflatten(tree, new), rngs=rngs, mutable=scope.mutable)

        def snapshot(bound: linen.Module) -> Snapshot:
            return Snapshot({leaf.path: leaf for leaf in _leaves(bound.variables)}, {})

        return Lifted(leaves, {}, rebuild, snapshot)

    def part(self, value: Any, original: linen.Module, copy: linen.Module) -> Any | None:
        """Return a directly called submodule of a bound module, bound to the copy of its variables."""
        assert original.scope is not None
        assert copy.scope is not None
        if value.scope is None or value is original or value.scope.root is not original.scope.root:
            return None
        scope = copy.scope.root
        for name in value.scope.path:
            scope = scope.push(name, reuse=True)
        return value.clone(parent=scope, _deep_clone=True)

    def is_outside(self, module: object, known: Sequence[bool]) -> bool:
        """Whether a bound module existed before; one that the callable does not hold looks like one bound for a
        call.
        """
        del module, known
        return False

    def signature(self, fn: Any, keywords: Parameters) -> inspect.Signature | None:
        """Return the signature of `apply` with the inputs of the applied method, which it does not name itself."""
        if getattr(fn, "__func__", None) is not linen.Module.apply:
            return None
        of_apply = inspect.signature(fn).parameters
        method = keywords.get("method") or "__call__"
        applied = getattr(type(fn.__self__), method) if isinstance(method, str) else method
        of_call = inspect.signature(applied).parameters
        inputs = [p for name, p in list(of_call.items())[1:] if name not in of_apply or name in ("args", "kwargs")]
        options = [p for name, p in of_apply.items() if name not in ("variables", "args", "kwargs")]
        options = [p for p in options if p.kind is inspect.Parameter.KEYWORD_ONLY]
        order = sorted([of_apply["variables"], *inputs, *options], key=lambda parameter: parameter.kind)
        # A default before an input without one is dropped: only the names matter.
        return inspect.Signature([p.replace(default=inspect.Parameter.empty) for p in order])

    def config(self, module: linen.Module) -> dict[str, Any]:
        """Return the dataclass fields."""
        values = {field.name: getattr(module, field.name, None) for field in fields(module)}
        return static_items({k: v for k, v in values.items() if k not in ("name", "parent")}, self.is_opaque)


def _leaves(tree: object) -> Iterator[Leaf]:
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if is_array(leaf):
            path = jax.tree_util.keystr(keys, simple=True, separator=".")
            yield Leaf(path, leaf, bool(jnp.issubdtype(leaf.dtype, jnp.inexact)))


framework = Linen()

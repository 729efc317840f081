"""Flax NNX: modules are mutable graphs of objects; a trace works on a copy and compares its state afterwards."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import graphlib
from jax.export import is_symbolic_dim

from jaxport.blocks.callables.framework import Framework, Leaf, Lifted, Look, Prepare, Snapshot, static_items
from jaxport.blocks.callables.naming import dotted
from jaxport.blocks.callables.places import joined
from jaxport.blocks.callables.values import children, is_array
from jaxport.blocks.marking.targets import public_methods, subclasses
from jaxport.jaxprs import Module, PythonFunction
from jaxport.jaxprs.identity import IdentitySet


class Nnx(Framework[nnx.Module]):
    """`flax.nnx`."""

    namespaces = ("flax.nnx", "flax.nnx.bridge")
    bases = (nnx.Module, nnx.Pytree)

    def is_module(self, value: object) -> bool:
        """Whether it is an `nnx.Module`."""
        return isinstance(value, nnx.Module)

    def is_opaque(self, value: object) -> bool:
        """Whether it is one of NNX's graph objects, all of which have identity."""
        return _kind_of(value).is_opaque

    def is_root(self, value: object) -> bool:
        """Whether it is a module, a random number stream or a Variable; the latter are state too."""
        return isinstance(value, nnx.Pytree | nnx.Variable)

    def is_variable(self, value: object) -> bool:
        """Whether it is an `nnx.Variable`."""
        return isinstance(value, nnx.Variable)

    def module_classes(self) -> Iterator[type]:
        """Yield all subclasses of `nnx.Module`."""
        return subclasses(nnx.Module)

    def state_methods(self) -> Iterator[tuple[type, str, Prepare | None]]:
        """Yield the methods of streams, optimizers and metrics, and the accessors of Variables and attributes."""
        for cls in subclasses(nnx.Pytree):
            if not issubclass(cls, nnx.Module):
                yield from ((cls, name, None) for name in public_methods(cls))
        for base, names in _ACCESS.items():
            for cls in (base, *subclasses(base)):
                yield from ((cls, name, _PREPARED.get(name)) for name in names if name in vars(cls))

    def submodules(self, module: nnx.Module) -> Iterator[tuple[str, Module]]:
        """Yield parents first; a shared module is at the first of its paths in the order of their names."""
        return iter(_Visit.of(module).modules())

    def leaves(self, module: nnx.Module) -> list[Leaf]:
        """Return one leaf per array of a Variable, and the arrays that are attributes themselves."""
        return _Visit.of(module).leaves()

    def config(self, module: nnx.Module) -> dict[str, Any]:
        """Return the attributes that hold no arrays, Variables or modules."""
        return static_items(vars(module), self.is_opaque)

    lifts_together = True

    def lift(self, module: nnx.Module) -> Lifted:
        """Split outside and merge inside the trace, so that counts and statistics never leak into the user's module."""
        graphdef, flat = graphlib.flatten(module, graph=True)
        variables = [(".".join(map(str, path)), node, _kind_of(node)) for path, node in flat]
        leaves = [list(_leaves_of(*variable)) for variable in variables]

        def rebuild(values: Sequence[object]) -> object:
            waiting = iter(values)
            # A Variable may hold a tree of arrays; most hold one, and are recreated from it.
            return nnx.merge(
                graphdef,
                [
                    next(waiting)
                    if len(own) == 1 and own[0].path == path
                    else jax.tree.map(lambda leaf: next(waiting) if is_array(leaf) else leaf, node)
                    for (path, node, _), own in zip(variables, leaves, strict=True)
                ],
            )

        visit = _Visit.of(module)
        held = [(vars(node), dict(vars(node))) for _, node, kind in visit.nodes if kind.category == "node"]

        def restore() -> None:
            # A transformation refills a module in place, which would leave it at the level of the trace.
            for current, before in held:
                if any(current.get(name) is not value for name, value in before.items()) or len(current) > len(before):
                    current.clear()
                    current.update(before)

        flat_leaves = tuple(leaf for own in leaves for leaf in own)
        return Lifted(flat_leaves, visit.attributes, rebuild, self._snapshot, restore, visit.objects())

    def nodes(self, module: nnx.Module) -> Iterator[Any]:
        """Yield all graph nodes and Variables, each once."""
        return iter(_Visit.of(module).objects())

    def look(self, module: nnx.Module) -> Look:
        """Return all of it from one walk."""
        visit = _Visit.of(module)
        return Look(visit.objects(), visit.leaves(), visit.modules())

    def open_sizes(self) -> Iterator[tuple[type, str, Callable[[PythonFunction], PythonFunction]]]:
        """Yield the rotary embedding of newer releases: it has as many positions, or rows of its table, as x."""
        if (rotary := getattr(nnx, "RoPE", None)) is not None:
            yield rotary, "__call__", _rotary_embedding

    def with_part(self, model: nnx.Module, old: Module, part: Module) -> Any | None:
        """The model, which is a copy, with a field changed; a module that is shared changes in all of its places."""
        if not isinstance(old, nnx.Module) or not isinstance(part, nnx.Module):
            return None
        changed = False
        for node in self.nodes(model):
            if isinstance(node, nnx.Variable):
                continue
            for name, value in list(vars(node).items()):
                if value is old:
                    is_item = name.isdecimal()
                    node.__setitem__(int(name), part) if is_item else setattr(node, name, part)
                    changed = True
        return model if changed else None

    def is_outside(self, module: Any, known: Sequence[bool]) -> bool:
        """NNX only lets objects be changed at the level of the transformation that made them, and so records it.

        A Variable of a state that the callable holds is read in place.
        """
        if isinstance(module, nnx.Variable) and all(known):
            return False
        state = module if isinstance(module, nnx.Variable) else module._pytree__state
        return not state._trace_state.is_valid()

    def _snapshot(self, copy: Module) -> Snapshot:
        visit = _Visit.of(copy)
        return Snapshot({leaf.path: leaf for leaf in visit.leaves()}, visit.attributes)


def _rotary_embedding(original: PythonFunction) -> PythonFunction:
    @functools.wraps(original)
    def call(self: Any, x: jax.Array, input_positions: jax.Array | None = None) -> jax.Array:
        if input_positions is not None or not is_symbolic_dim(x.shape[-2]):
            return original(self, x, input_positions)
        if self.cached_sin is None or self.cached_cos is None:
            return original(self, x, jnp.arange(x.shape[-2], dtype=float))
        positions = jnp.arange(x.shape[-2])  # behind the end of the table `take` gives NaN, where Flax has an error
        sines, cosines = (
            jnp.tile(jnp.take(table[...], positions, axis=0), (1, 2)) for table in (self.cached_sin, self.cached_cos)
        )
        return x * cosines + self._rotate_half(x) * sines

    return call


# The methods that read and write state, also used by NNX itself, and those that check whether that is allowed.
_ACCESS: Mapping[type, Sequence[str]] = {
    nnx.Variable: (
        *("get_value", "set_value", "get_raw_value", "set_raw_value", "update_from_state", "copy_from"),
        *("__getattr__", "__setattr__", "__getitem__", "__setitem__", "_can_update", "_check_can_update"),
    ),
    nnx.Pytree: ("_setattr", "__delattr__", "_check_valid_context"),
}


def _whole(variable: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Turn `variable[...] = value` into an assignment without the scatter that NNX needs for untraced values."""
    old, new = variable.get_raw_value(), args[0] if args else kwargs.get("value")
    what = lambda value: (value.shape, value.dtype) if is_array(value) else None
    is_same = what(old) is not None and what(old) == what(new)
    return args, {k: v for k, v in kwargs.items() if not (k == "index" and v is ... and is_same)}


_PREPARED = {"set_value": _whole}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the type of a value in a module's graph says about it.

    `category` is a graph "node", a "variable", an "array", a "container" (any other pytree), or "" for anything else.
    """

    category: str
    is_opaque: bool
    is_module: bool
    trainable: bool
    counter: bool


# NNX's own checks are slow: those of Variables ask every object what it is traced as.
_kinds: weakref.WeakKeyDictionary[type, _Kind] = weakref.WeakKeyDictionary()


def _kind_of(value: object) -> _Kind:
    """Return the kind of a value, which depends on its type."""
    known = _kinds.get(type(value))
    if known is None:
        tests = {"node": nnx.Pytree, "variable": nnx.Variable, "array": jax.Array | np.ndarray}
        category = next((name for name, cls in tests.items() if isinstance(value, cls)), "")
        if not category and not jax.tree_util.all_leaves([value]):
            category = "container"
        opaque = nnx.Pytree | nnx.Variable | nnx.GraphDef | nnx.State
        flags = (isinstance(value, cls) for cls in (opaque, nnx.Module, nnx.Param, nnx.RngCount))
        known = _kinds[type(value)] = _Kind(category, *flags)
    return known


@dataclass(frozen=True)
class _Visit:
    """What one walk through a module finds.

    `nodes` are all graph nodes, Variables and arrays, each once, by path: parents come first, and a shared node is at
    the first of its paths in the order of their names. `attributes` are the others, by path.
    """

    nodes: Sequence[tuple[str, Any, _Kind]]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, module: Module) -> _Visit:
        seen: IdentitySet[Any] = IdentitySet()
        nodes: list[tuple[str, Any, _Kind]] = []
        attributes: dict[str, Any] = {}
        kinds: dict[type, _Kind] = {}  # a local cache of `_kinds`, which is slower
        waiting: list[tuple[str, Any, _Kind]] = [("", module, _kind_of(module))]
        while waiting:
            path, node, kind = entry = waiting.pop()
            if kind.category in ("node", "variable"):
                if node in seen:
                    continue
                seen.add(node)
            if kind.category != "container":
                nodes.append(entry)
            prefix = f"{path}." if path else ""
            below = []
            for key, child in _children(node, kind):
                if child is None:  # a tree without leaves
                    continue
                child_kind = kinds.get(type(child))
                if child_kind is None:
                    child_kind = kinds[type(child)] = _kind_of(child)
                if child_kind.category:
                    below.append((f"{prefix}{key}", child, child_kind))
                elif not str(key).startswith("_pytree__"):
                    attributes[f"{prefix}{key}"] = child
            waiting += reversed(below)
        return cls(nodes, attributes)

    def objects(self) -> list[Any]:
        """Return the graph nodes and Variables."""
        return [node for _, node, kind in self.nodes if kind.category in ("node", "variable")]

    def modules(self) -> list[tuple[str, Module]]:
        """Return the modules, with their paths."""
        return [(path, node) for path, node, kind in self.nodes if kind.is_module]

    def leaves(self) -> list[Leaf]:
        """Return one leaf per array of a Variable, and the arrays that are attributes themselves."""
        return [leaf for path, node, kind in self.nodes for leaf in _leaves_of(path, node, kind)]


def _children(node: Any, kind: _Kind) -> Iterable[tuple[object, object]]:
    if kind.category == "node":
        return sorted(vars(node).items())
    if kind.category == "container":
        if type(node) in (tuple, list):  # most containers are tuples of sizes
            return enumerate(node)
        return [(dotted(keys), child) for keys, child in children(node) or ()]
    return ()


def _leaves_of(path: str, node: Any, kind: _Kind) -> Iterable[Leaf]:
    if kind.category == "array":
        return (Leaf(path, node, trainable=False),) if is_array(node) else ()
    if kind.category != "variable":
        return ()
    value = node.get_raw_value()
    if is_array(value):
        return (Leaf(path, value, kind.trainable, kind.counter),)
    keystr = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    return [
        Leaf(joined(path, keystr(keys)), leaf, kind.trainable, kind.counter)
        for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
        if is_array(leaf)
    ]


framework = Nnx()

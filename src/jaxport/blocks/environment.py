"""What a callable brings with it: modules and arrays in closures, partials, bound methods, defaults and globals.

Modules with mutable state are taken out, so that a trace works on copies: the callable is rebuilt around the copies,
object by object, and the user's own objects stay as they are. Everything else stays where it is: arrays that are
closed over reach the jaxpr as constants and are found again by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.blocks.closures import Node, bound_again, opened
from jaxport.blocks.framework import Framework, Leaf, Lifted
from jaxport.blocks.naming import dotted, leaf_paths
from jaxport.blocks.places import Places, Types, joined
from jaxport.blocks.values import is_array

__all__ = ["Changes", "Environment", "Model", "merged", "models_in"]


@dataclass(frozen=True)
class Changes:
    """What a call did to module state: new values of arrays, by path, and the paths of everything else."""

    arrays: Mapping[str, Any]
    others: tuple[str, ...]


def merged(changes: Iterable[Changes]) -> Changes:
    """All changes together."""
    changes = list(changes)
    arrays = {path: value for change in changes for path, value in change.arrays.items()}
    return Changes(arrays, tuple(path for change in changes for path in change.others))


@dataclass(frozen=True)
class Model:
    """A module inside a trace, and what it held before the call; `before` is None where no call can change it."""

    name: str
    value: Any
    before: Lifted | None
    arrays: Sequence[Any] = ()

    def changes(self, counters: bool = False) -> Changes:
        """What the call did to it, to its `counters` only where they are asked for."""
        if self.before is None:
            return Changes({}, ())
        arrays = dict(zip((leaf.path for leaf in self.before.leaves), self.arrays, strict=True))
        after = self.before.snapshot(self.value)
        changed = {
            joined(self.name, path): leaf.value
            for path, leaf in after.leaves.items()
            if arrays.get(path) is not leaf.value and (counters or not leaf.counter)
        }
        others = [path for path in arrays if path not in after.leaves]
        one, other = self.before.attributes, after.attributes
        kept = {path for path in one if path in other and _same(one[path], other[path])}
        others += [path for path in {**one, **other} if path not in kept]
        return Changes(changed, tuple(joined(self.name, path) for path in others))


def models_in(named: Iterable[tuple[str, Any]], places: Places) -> list[Model]:
    """The modules among the arguments, registered with their paths."""
    models = []
    for name, tree in named:
        is_root = lambda value: places.types.root_framework_of(value) is not None
        for keys, value in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_root)[0]:
            framework = places.types.root_framework_of(value)
            if framework is not None:
                path = joined(name, dotted(keys))
                places.register(value, path)
                lifted = framework.lift(value)
                models.append(Model(path, value, lifted, [leaf.value for leaf in lifted.leaves] if lifted else ()))
    return models


@dataclass(frozen=True)
class _Root:
    """A module, or a container of arrays, and the name by which the callable refers to it."""

    name: str
    value: Any
    framework: Framework | None = None
    lifted: Lifted | None = None


class Environment:
    """The modules and arrays that `fn` brings with it.

    `leaves` are the arrays of the modules that were taken out; the trace gives a value for each to `rebuilt`.
    """

    def __init__(self, fn: Callable, places: Places):
        self.fn, self.places = fn, places
        types = places.types
        self._nodes: dict[int, tuple[Any, Node]] = {}
        self._roots: dict[int, _Root] = {}
        self._visit(fn, "", True)
        holding = [root for root in self._roots.values() if not is_array(root.value) and _has_parameters(root, types)]
        modules = [root for root in holding if root.framework is not None]
        # A single model needs no name of its own; nor does a single tree of parameters.
        alone = next((group[0] for group in (modules, holding) if len(group) == 1), None)
        taken: set[str] = set()
        for root in holding:
            name = "" if root is alone else unused(root.name, taken)
            taken.add(name)
            self._roots[id(root.value)] = replace(root, name=name)
        self.leaves: list[Leaf] = []
        self._lifted: list[tuple[_Root, Lifted, slice]] = []
        self._arrays: dict[Any, Leaf] = {}
        for root in self._roots.values():
            if root.lifted is not None:
                before = len(self.leaves)
                self.leaves += [replace(leaf, path=joined(root.name, leaf.path)) for leaf in root.lifted.leaves]
                self._lifted.append((root, root.lifted, slice(before, len(self.leaves))))
            else:
                places.register(root.value, root.name)
                for leaf in root.framework.leaves(root.value) if root.framework else _arrays_in(root.value, types):
                    named = replace(leaf, path=joined(root.name, leaf.path))
                    self._arrays.setdefault(_identity(leaf.value), named)
        self._positions = {identity: position for position, identity in enumerate(self._arrays)}

    def _visit(self, value: Any, name: str, rebuildable: bool) -> None:
        """Notes `value` if it is a model or holds arrays, and looks into it if it is anything else."""
        if id(value) in self._nodes or id(value) in self._roots:
            return
        framework = self.places.types.root_framework_of(value)
        if framework is not None:
            self._roots[id(value)] = _Root(name, value, framework, framework.lift(value) if rebuildable else None)
            return
        node = opened(value) if callable(value) or self._holds_callables(value) else None
        if node is not None:
            self._nodes[id(value)] = value, node
            around = name if node.is_place else ""
            for reference in node.references:
                self._visit(reference.value, joined(around, reference.name), rebuildable and node.rebuild is not None)
        elif any(map(is_array, _leaves_of(value))):
            self._roots[id(value)] = _Root(name, value)

    def _holds_callables(self, value: Any) -> bool:
        """Whether a container holds modules or functions, so that it has to be looked into."""
        types = self.places.types
        leaves = _leaves_of(value, is_leaf=lambda leaf: types.root_framework_of(leaf) is not None)
        return any(opened(leaf) is not None or types.root_framework_of(leaf) for leaf in leaves)

    # -- copies ----------------------------------------------------------------------------------------------------

    def rebuilt(self, values: Sequence[Any]) -> tuple[Callable, list[Any]]:
        """The callable around copies of the modules that were taken out, made of `values`; and the copies."""
        copies = [lifted.rebuild(values[span]) for _, lifted, span in self._lifted]
        for (root, _, _), made in zip(self._lifted, copies, strict=True):
            self.places.register(made, root.name)
        replaced = {id(root.value): made for (root, _, _), made in zip(self._lifted, copies, strict=True)}
        return _Rebuilding(self._nodes, replaced, self._methods()).made(self.fn), copies

    def _methods(self) -> list[int]:
        """The bound methods that the window has patched since they were bound."""
        return [key for key, (value, _) in self._nodes.items() if bound_again(value) is not None]

    def changes(self, copies: Sequence[Any], values: Sequence[Any], counters: bool) -> list[Changes]:
        """What became of the copies, which were made of `values`."""
        return [
            Model(root.name, made, lifted, values[span]).changes(counters)
            for (root, lifted, span), made in zip(self._lifted, copies, strict=True)
        ]

    # -- names -----------------------------------------------------------------------------------------------------

    def order_of(self, constant: Any) -> int:
        """The position of an array that was closed over among all that the callable has; unknown ones come last."""
        return self._positions.get(_identity(constant), len(self._positions))

    def named(self, constants: Iterable[Any], taken: set[str]) -> Iterator[Leaf]:
        """A leaf for each array that was closed over: where the callable has it, or else under a name of its own."""
        unknown = 0
        for constant in constants:
            leaf = self._arrays.get(_identity(constant))
            if leaf is None:
                leaf = Leaf(f"constant_{unknown}", constant, _is_inexact(constant), anonymous=True)
                unknown += 1
            path = unused(leaf.path, taken)
            taken.add(path)
            yield replace(leaf, path=path, value=constant)


def unused(name: str, taken: Collection[str]) -> str:
    """The name, or the name with a number, that is not taken.

    >>> unused("w", {"w", "w_1"})
    'w_2'
    """
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}" if name else f"model_{number}"
    return candidate


def _has_parameters(root: _Root, types: Types) -> bool:
    """Whether there are arrays that training could change (no keys, no counts): those make a model."""
    if root.lifted is not None:
        leaves = root.lifted.leaves
    else:
        leaves = root.framework.leaves(root.value) if root.framework else _arrays_in(root.value, types)
    return any(_is_inexact(leaf.value) for leaf in leaves)


class _Rebuilding:
    """The objects on the way to the modules that were taken out, made anew; all others stand for themselves."""

    def __init__(self, nodes: Mapping[int, tuple[Any, Node]], replaced: Mapping[int, Any], methods: Iterable[int]):
        self._rebuilds = {key: node.rebuild for key, (_, node) in nodes.items() if node.rebuild is not None}
        self._made: dict[int, Any] = dict(replaced)
        self._new = {*replaced, *(key for key in methods if key in self._rebuilds)}
        referrers: dict[int, list[int]] = {}
        for key, (_, node) in nodes.items():
            if key in self._rebuilds:
                for reference in node.references:
                    referrers.setdefault(id(reference.value), []).append(key)
        waiting = list(self._new)
        while waiting:
            for key in referrers.get(waiting.pop(), ()):
                if key not in self._new:
                    self._new.add(key)
                    waiting.append(key)

    def is_new(self, value: Any) -> bool:
        return id(value) in self._new

    def made(self, value: Any) -> Any:
        if id(value) not in self._new:
            return value
        if id(value) not in self._made:
            steps = self._rebuilds[id(value)](self)
            self._made[id(value)] = next(steps)
            for _ in steps:
                pass
        return self._made[id(value)]


def _leaves_of(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    try:
        return jax.tree.leaves(value, is_leaf=is_leaf)
    except ValueError:  # a pytree that may not be read any more, such as an old state of Equinox
        return []


def _arrays_in(value: Any, types: Types) -> list[Leaf]:
    paths = leaf_paths([("", value)], types.is_variable)
    return [
        Leaf(path, leaf, _is_inexact(leaf))
        for path, leaf in zip(paths, jax.tree.leaves(value), strict=True)
        if is_array(leaf)
    ]


def _is_inexact(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _identity(array: Any) -> Any:
    """What an array and the constant that JAX makes of it have in common."""
    if isinstance(array, jax.Array):
        return id(array)
    # JAX wraps NumPy arrays anew, around the same memory.
    view = np.asarray(array)
    return (view.__array_interface__["data"][0], view.shape, str(view.dtype)) if view.size else id(array)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except (TypeError, ValueError):  # values that do not compare, such as arrays
        return False

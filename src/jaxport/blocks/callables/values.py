"""The arrays in the arguments and results of a call, and how they pass through a marker.

The callee must see the user's own objects: it may write into a list that it gets, and it may compare by identity. So
only tuples are flattened and rebuilt; in lists and dicts the arrays are replaced in place, and restored after the call;
arrays inside any other object are passed to the marker and left in place.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import core as jax_core

from jaxport import jaxprs
from jaxport.jaxprs import Array, PyTree

__all__ = [
    "NamedArrays",
    "children",
    "collect",
    "contents",
    "exchange",
    "is_array",
    "is_tracer",
    "is_value",
    "put_back",
]

_MUTABLE = {list: enumerate, dict: dict.items, OrderedDict: dict.items, defaultdict: dict.items}


@functools.cache
def _kind(cls: type) -> str:
    if issubclass(cls, jax_core.Tracer):
        return "tracer"
    return "array" if issubclass(cls, jax.Array) else "numpy" if issubclass(cls, np.ndarray) else ""


def is_array(value: object) -> bool:
    """Whether `value` is a JAX array, a tracer, or a NumPy array of a dtype that JAX has.

    It checks the type: `isinstance` would ask the object for attributes, and a foreign one may fail.

    >>> is_array(np.zeros(3)), is_array(3.0), is_array(np.array(["text"]))
    (True, False, False)
    """
    kind = _kind(type(value))
    return jaxprs.valid_jaxtype(value) if kind == "numpy" else bool(kind)


def is_tracer(value: object) -> bool:
    """Whether `value` is a traced value (of an array or of a mutable reference).

    >>> is_tracer(np.zeros(3))
    False
    """
    return _kind(type(value)) == "tracer"


def is_value(aval: object) -> bool:
    """Whether an aval is that of an array. A marker that passed on a mutable reference would alias it.

    >>> is_value(jax.typeof(np.zeros(3)))
    True
    """
    return isinstance(aval, jax_core.ShapedArray)


@dataclass
class NamedArrays:
    """The arrays in some values: `arrays[i]` has the path `paths[i]`; `static` has everything else, by path."""

    arrays: list[Array] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    static: dict[str, PyTree] = field(default_factory=dict)


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def collect(value: PyTree, path: str, is_opaque: Callable[[PyTree], bool], into: NamedArrays, seen: set[int]) -> None:
    """Add the contents of `value`, in a fixed order; modules (`is_opaque`) are skipped."""
    if is_array(value):
        if not is_tracer(value) or is_value(jax.typeof(value)):
            into.arrays.append(value)
            into.paths.append(path)
        return
    if is_opaque(value):
        return
    items = _MUTABLE.get(type(value)) or (enumerate if issubclass(type(value), tuple) else None)
    if items is None:
        children = _pytree_children(value)
        if children is None:
            into.static[path] = value
            return
    else:
        children = _named_items(value) if issubclass(type(value), tuple) else items(value)
    if id(value) in seen:
        return
    seen.add(id(value))
    for key, item in list(children):
        collect(item, _joined(path, key), is_opaque, into, seen)


def _named_items(value: tuple) -> Iterator[tuple[PyTree, PyTree]]:
    return zip(getattr(value, "_fields", range(len(value))), value, strict=True)


def _pytree_children(value: PyTree) -> list[tuple[PyTree, PyTree]] | None:
    if value is None or issubclass(type(value), str | int | float | complex | bool | type) or callable(value):
        return None
    below = children(value)
    if below is None:
        return None
    return [(jax.tree_util.keystr(key, simple=True, separator="."), leaf) for key, leaf in below]


def children(tree: PyTree) -> list[tuple[PyTree, PyTree]] | None:
    """Return the children of a pytree with their keys; None for a leaf.

    JAX itself never recurses here: on a tree that is deeper than the stack, or contains itself, it fails in a way that
    leaves the interpreter's stack marked as full.

    >>> children({"w": [1, 2]})
    [((DictKey(key='w'),), [1, 2])]
    """
    asked = itertools.count()  # the tree itself is the first
    below = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda _: next(asked) > 0)[0]
    return None if len(below) == 1 and below[0][0] == () else below


def contents(tree: PyTree, is_leaf: Callable[[PyTree], bool]) -> list[tuple[list[PyTree], PyTree]]:
    """Return the leaves of a pytree with their keys, in order; each container counts once, at its first place.

    It works on trees of any depth and on those that contain themselves, and treats an unreadable node as a leaf.

    >>> tree = {"w": [1.0, 2.0]}
    >>> tree["x"] = tree
    >>> [leaf for _, leaf in contents(tree, lambda _: False)]
    [1.0, 2.0]
    """
    leaves: list[tuple[list[PyTree], PyTree]] = []
    # A path is a linked list of keys, leaf to root: only those of leaves are written out.
    waiting: list[tuple[PyTree, PyTree]] = [(None, tree)]
    seen: dict[int, PyTree] = {}  # kept alive, so that no id is reused
    while waiting:
        path, item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        try:
            below = None if is_leaf(item) else children(item)
        except Exception:  # noqa: BLE001 - a foreign pytree may do anything; its arrays lose their names
            below = None
        if below is None:
            leaves.append((_keys(path), item))
        else:
            seen[id(item)] = item
            waiting += [((path, keys), child) for keys, child in reversed(below)]
    return leaves


def _keys(path: PyTree) -> list[PyTree]:
    """Return the keys of a linked path, the outermost first."""
    links = []
    while path is not None:
        path, keys = path
        links.append(keys)
    return [key for keys in reversed(links) for key in keys]


def exchange(
    value: PyTree,
    new: Callable[[PyTree, bool], PyTree],
    is_opaque: Callable[[PyTree], bool],
    undo: list,
    seen: set[int],
    shared: bool = False,
) -> PyTree:
    """Return `value` with `new(tracer, shared)` for each reachable tracer; record each change of a container in `undo`.

    `shared` tells whether the tracer is in a container that others may hold too. An entry of `undo` is (container, key,
    the value before, the value after); it keeps these values alive.
    """
    if is_tracer(value):
        return new(value, shared)
    if is_opaque(value):
        return value
    if issubclass(type(value), tuple):
        items = [exchange(item, new, is_opaque, undo, seen, shared) for item in value]
        if all(after is before for after, before in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    items = _MUTABLE.get(type(value))
    if items is not None and id(value) not in seen:
        seen.add(id(value))
        for key, before in list(items(value)):
            after = exchange(before, new, is_opaque, undo, seen, True)
            if after is not before:
                value[key] = after
                undo.append((value, key, before, after))
    return value


def put_back(undo: list) -> None:
    """Revert what `exchange` changed, wherever in its container the callee may have moved it."""
    before_by_container: dict[int, tuple[PyTree, dict[int, PyTree]]] = {}
    for container, _, before, after in undo:
        before_by_container.setdefault(id(container), (container, {}))[1][id(after)] = before
    for container, before_by_id in before_by_container.values():
        for key, item in list(_MUTABLE[type(container)](container)):
            if id(item) in before_by_id:
                container[key] = before_by_id[id(item)]

"""The arrays in the arguments and results of a call, and how they pass through a marker.

The callee must see the user's own objects: it may write into a list that it gets, and it may compare by identity. So
only tuples are flattened and rebuilt; in lists and dicts the arrays are replaced in place, and restored after the call;
arrays inside any other object are passed to the marker and left in place, where they are found by their identity.

An array at two places of a call is two arguments, or two results: each place gets an array of its own.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import core as jax_core

from jaxport import jaxprs
from jaxport.jaxprs import Array, TreeDef
from jaxport.jaxprs.identity import IdentityMap, IdentitySet

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


@dataclass(frozen=True)
class CallPart:
    """A value in the arguments or results of a call, and the places below it.

    Attributes:
      value: an array, a container, or anything else.
      position: the position of an array among all arrays of the call, one per place; None for other values.
      items: the parts of a container, by key.
    """

    value: Any
    position: int | None = None
    items: Sequence[tuple[Any, CallPart]] = ()

    def positions(self) -> Iterator[int]:
        """Yield the positions of the arrays at and below this place, in order."""
        if self.position is not None:
            yield self.position
        for _, part in self.items:
            yield from part.positions()

    def within(self, containers: Container[object]) -> Iterator[int]:
        """Yield the positions of the arrays in lists and dicts that are among `containers`."""
        if type(self.value) in _MUTABLE and self.value in containers:
            yield from self.positions()
        else:
            for _, part in self.items:
                yield from part.within(containers)


@dataclass
class NamedArrays:
    """The arrays in some values: `arrays[i]` has the path `paths[i]`; `static` has everything else, by path.

    An array at two places is in `arrays` twice.
    """

    arrays: list[Array] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    static: dict[str, Any] = field(default_factory=dict)
    visits: IdentityMap[Any, int] = field(default_factory=IdentityMap)

    @property
    def repeated(self) -> set[int]:
        """The positions of arrays that have an earlier place, too."""
        first: IdentityMap[Array, int] = IdentityMap()
        return {position for position, array in enumerate(self.arrays) if first.setdefault(array, position) != position}


# A container has so many places at most: containers in containers, each of which holds the next twice, have 2**n.
_MOST_PLACES = 1000


def _joined(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def collect(
    value: Any, path: str, is_opaque: Callable[[Any], bool], into: NamedArrays, around: tuple[Any, ...] = ()
) -> CallPart:
    """Add the contents of `value`, in a fixed order, and return its parts; modules (`is_opaque`) are skipped.

    `around` has the containers around it: one that contains itself ends there.
    """
    if is_array(value):
        if is_tracer(value) and not is_value(jax.typeof(value)):
            return CallPart(value)
        into.arrays.append(value)
        into.paths.append(path)
        return CallPart(value, len(into.arrays) - 1)
    if is_opaque(value):
        return CallPart(value)
    items = _MUTABLE.get(type(value)) or (enumerate if issubclass(type(value), tuple) else None)
    if items is None:
        children = _pytree_children(value)
        if children is None:
            into.static[path] = value
            return CallPart(value)
    else:
        children = _named_items(value) if issubclass(type(value), tuple) else items(value)
    visits = into.visits.get(value, 0)
    if any(value is container for container in around) or visits == _MOST_PLACES:
        return CallPart(value)
    into.visits[value] = visits + 1
    around = (*around, value)
    return CallPart(
        value,
        items=[(key, collect(item, _joined(path, key), is_opaque, into, around)) for key, item in list(children)],
    )


def _named_items(value: tuple) -> Iterator[tuple[object, object]]:
    return zip(getattr(value, "_fields", range(len(value))), value, strict=True)


def _pytree_children(value: object) -> list[tuple[object, object]] | None:
    if value is None or issubclass(type(value), str | int | float | complex | bool | type) or callable(value):
        return None
    below = children(value)
    if below is None:
        return None
    return [(jax.tree_util.keystr(key, simple=True, separator="."), leaf) for key, leaf in below]


def children(tree: object) -> list[tuple[Any, Any]] | None:
    """Return the children of a pytree with their keys; None for a leaf.

    JAX itself never recurses here: on a tree that is deeper than the stack, or contains itself, it fails in a way that
    leaves the interpreter's stack marked as full.

    >>> children({"w": [1, 2]})
    [((DictKey(key='w'),), [1, 2])]
    """
    below = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_below())[0]
    return None if len(below) == 1 and below[0][0] == () else below


def _is_below() -> Callable[[object], bool]:
    asked = itertools.count()  # the tree itself is the first
    return lambda _: next(asked) > 0


def _structure(tree: object) -> TreeDef:
    """Return the structure of a pytree whose children are leaves."""
    return jax.tree.structure(tree, is_leaf=_is_below())


def twin(array: Array) -> Array:
    """Return another object for a stored array, of the same memory if that is possible.

    >>> array = jax.numpy.ones(3)
    >>> other = twin(array)
    >>> other is array, other.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    (False, True)
    """
    if not isinstance(array, jax.Array):
        return np.asarray(array).view()
    parts = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def contents(tree: object, is_leaf: Callable[[object], bool]) -> list[tuple[list[Any], Any]]:
    """Return the leaves of a pytree with their keys, in order; each container counts once, at its first place.

    It works on trees of any depth and on those that contain themselves, and treats an unreadable node as a leaf.

    >>> tree = {"w": [1.0, 2.0]}
    >>> tree["x"] = tree
    >>> [leaf for _, leaf in contents(tree, lambda _: False)]
    [1.0, 2.0]
    """
    leaves: list[tuple[list[Any], Any]] = []
    # A path is a linked list of keys, leaf to root: only those of leaves are written out.
    waiting: list[tuple[Any, Any]] = [(None, tree)]
    seen: IdentitySet[Any] = IdentitySet()
    while waiting:
        path, item = waiting.pop()
        if item is None or item in seen:
            continue
        try:
            below = None if is_leaf(item) else children(item)
        except Exception:  # noqa: BLE001 - a foreign pytree may do anything; its arrays lose their names
            below = None
        if below is None:
            leaves.append((_keys(path), item))
        else:
            seen.add(item)
            waiting += [((path, keys), child) for keys, child in reversed(below)]
    return leaves


def _keys(path: Any) -> list[object]:
    """Return the keys of a linked path, the outermost first."""
    links = []
    while path is not None:
        path, keys = path
        links.append(keys)
    return [key for keys in reversed(links) for key in keys]


class Exchange:
    """Puts other values at the places of arrays, by their position; all others stay.

    Tuples are rebuilt and other containers changed in place, which `undo` reverts. A container at a second place is
    copied there, and so is a pytree of another kind, if it has an array at one of the places to keep `apart`: places
    whose array cannot be found by its identity.

    >>> x, named = jax.numpy.ones(2), NamedArrays()
    >>> part = collect([x, x], "", lambda _: False, named)
    >>> Exchange({0: "first", 1: "second"}).value(part)
    ['first', 'second']
    """

    def __init__(self, new: Mapping[int, object], apart: Container[int] = ()):
        self.new = new
        self.apart = apart
        #: The positions whose array has been exchanged.
        self.exchanged: set[int] = set()
        self._undo: list[tuple[Any, Any, Any]] = []
        self._changed: IdentitySet[Any] = IdentitySet()
        self._copies: list[tuple[Any, list[Any]]] = []

    def value(self, part: CallPart) -> Any:
        """Return the value of a part with others in the places of its arrays."""
        value = part.value
        if part.position is not None:
            if part.position not in self.new:
                return value
            self.exchanged.add(part.position)
            return self.new[part.position]
        if not part.items:
            return value
        if issubclass(type(value), tuple):
            items = [self.value(below) for _, below in part.items]
            if all(after is below.value for after, (_, below) in zip(items, part.items, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if type(value) in _MUTABLE:
            return self._mutable(part)
        return self._rebuilt(part) if any(position in self.apart for position in part.positions()) else value

    def _mutable(self, part: CallPart) -> object:
        value = part.value
        is_first = value not in self._changed
        self._changed.add(value)
        after = [(key, below.value, self.value(below)) for key, below in part.items]
        if is_first:
            for key, before, new in after:
                if new is not before:
                    value[key] = new
                    self._undo.append((value, before, new))
            return value
        if all(new is before for _, before, new in after):
            return value
        made = copy.copy(value)
        for key, _, new in after:
            made[key] = new
        self._copies.append((made, [new for _, _, new in after]))
        return made

    def _rebuilt(self, part: CallPart) -> object:
        items = [self.value(below) for _, below in part.items]
        made = jax.tree.unflatten(_structure(part.value), items)
        self._copies.append((made, items))
        return made

    def changed_copies(self) -> list[Any]:
        """Return the copies whose contents have been changed since."""
        changed = []
        for made, items in self._copies:
            now = [item for _, item in (_MUTABLE[type(made)](made) if type(made) in _MUTABLE else children(made) or [])]
            if len(now) != len(items) or any(one is not other for one, other in zip(now, items, strict=True)):
                changed.append(made)
        return changed

    def undo(self) -> None:
        """Revert the changes, wherever in its container the callee may have moved a value."""
        changes: IdentityMap[Any, IdentityMap[Any, Any]] = IdentityMap()
        for container, before, after in self._undo:
            changes.setdefault(container, IdentityMap())[after] = before
        for container, before_by_after in changes.items():
            for key, item in list(_MUTABLE[type(container)](container)):
                if item in before_by_after:
                    container[key] = before_by_after[item]

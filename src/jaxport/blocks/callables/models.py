"""The models of a traced callable: a model is discovered when it is called, and the call is made on a copy of it.

A module that can change is copied inside the trace, once, so that its new state are values of the trace and the user's
objects stay as they are. The window redirects every call of the original to the copy; nothing has to be found
beforehand, and no object of the user's is recreated. Its arrays are closed over: they reach the jaxpr as constants, and
are identified by identity.

A model is copied at the start of the trace if the callable holds it, or else at its first call. That fails for a model
that is first called inside a transformation, or after a part of it was: then the trace is repeated, with that model
copied at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.blocks.callables.framework import Framework, Leaf, Lifted, Look
from jaxport.blocks.callables.held_models import named_models
from jaxport.blocks.callables.naming import dotted, unused
from jaxport.blocks.callables.places import Places, Types, joined
from jaxport.blocks.callables.values import contents, is_array, is_tracer
from jaxport.jaxprs import Array, Module, PythonFunction, get_opaque_trace_state
from jaxport.jaxprs.identity import IdentityMap, IdentitySet


@dataclass(frozen=True)
class Changes:
    """The changes of a call to module state: new values of arrays, by path, and the paths of everything else."""

    arrays: Mapping[str, Array]
    others: tuple[str, ...]


def merged(changes: Iterable[Changes]) -> Changes:
    """Merge changes."""
    changes = list(changes)
    arrays = {path: value for change in changes for path, value in change.arrays.items()}
    return Changes(arrays, tuple(path for change in changes for path in change.others))


@dataclass(frozen=True)
class Argument:
    """A model among the arguments, and its contents before the call; `before` is None if no call can change it."""

    name: str
    value: Any
    before: Lifted | None

    def changes(self, counters: bool = False) -> Changes:
        """Return the changes that the call made to it, to its `counters` only if requested."""
        if self.before is None:
            return Changes({}, ())
        path = lambda below: joined(self.name, below)
        return _changes(path, self.value, self.before, [leaf.value for leaf in self.before.leaves], counters)


def arguments(named: Iterable[tuple[str, object]], places: Places) -> list[Argument]:
    """Return the models among the arguments, registered with their paths."""
    models = []
    for name, tree in named:
        is_root = lambda value: places.types.root_framework_of(value) is not None
        for keys, value in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_root)[0]:
            framework = places.types.root_framework_of(value)
            if framework is not None:
                path = joined(name, dotted(keys))
                places.register(value, path)
                models.append(Argument(path, value, framework.lift(value)))
    return models


class MetLate(BaseException):
    """A model was first used where it cannot be copied any more: the trace is repeated, with the model known.

    It is not an `Exception`, since it passes through the user's code.
    """

    def __init__(self, model: Module):
        self.model = model


@dataclass(eq=False)
class _Root:
    """A model, or a tree of arrays, and the name by which the callable refers to it."""

    name: str
    value: Any
    leaves: Sequence[Leaf]
    framework: Framework | None = None


@dataclass(eq=False)
class _Copied:
    """Some roots decomposed together, with the arrays and the copy made from them.

    If there are several roots, the paths in `lifted` begin with the index of the root.
    """

    roots: Sequence[_Root]
    lifted: Lifted
    arrays: Sequence[Array]
    together: bool
    copy: Module = None

    def path(self, path: str) -> str:
        """Return the whole path of a `path` relative to the decomposed roots."""
        if not self.together:
            return joined(self.roots[0].name, path)
        index, _, below = path.partition(".")
        return joined(self.roots[int(index)].name, below)


class Models:
    """The models of one trace of `fn`, including those `known` from an earlier attempt."""

    def __init__(self, fn: PythonFunction, known: Sequence[object], places: Places):
        self.places, self._types = places, places.types
        self._roots: list[_Root] = []
        self._copied: list[_Copied] = []
        self._level: Any = None
        self._is_looking = False
        # The copy of each original, and the reverse. Objects that are neither (made by the trace itself, or immutable)
        # are in `_own`.
        self._copies: IdentityMap[Any, Any] = IdentityMap()
        self._originals: IdentityMap[Any, Any] = IdentityMap()
        self._own: IdentitySet[Any] = IdentitySet()
        self._arrays: dict[Hashable, Leaf] = {}
        items = named_models(fn, self._types)
        named = IdentitySet(value for _, value in items)
        items += [(type(value).__name__, value) for value in known if value not in named]
        looks = IdentityMap((value, self._look(value)) for _, value in items)
        parts = IdentitySet(node for value, look in looks.items() for node in self._parts(value, look))
        roots = [self._root(name, value, looks[value]) for name, value in items if value not in parts]
        together = [root for root in roots if root.framework is not None and root.framework.lifts_together]
        for group in [together, *([root] for root in roots if root not in together)]:
            if group:
                self._lift(group)

    def _look(self, value: object) -> Look:
        """Return the objects, arrays and modules below a model, or the arrays of a tree."""
        framework = self._types.root_framework_of(value)
        return Look((), _arrays_in(value, self._types), ()) if framework is None else framework.look(value)

    def _parts(self, value: object, look: Look) -> Iterator[object]:
        return (node for node in look.nodes if node is not value)

    def _root(self, name: str, value: object, look: Look) -> _Root:
        root = _Root(name, value, look.leaves, self._types.root_framework_of(value))
        self._roots.append(root)
        self._arrays |= {_identity(leaf.value): leaf for leaf in look.leaves}
        for _, module in look.submodules:
            self.places.expect(module)
        return root

    def _lift(self, roots: Sequence[_Root]) -> _Copied | None:
        """Decompose models, if they can change."""
        framework = roots[0].framework
        if framework is None:
            return None
        together = framework.lifts_together
        lifted = framework.lift(tuple(root.value for root in roots) if together else roots[0].value)
        if lifted is None:
            return None
        # JAX turns NumPy scalars into literals.
        arrays = [_untouched(leaf.value) for leaf in lifted.leaves]
        if not together:
            roots[0].leaves = lifted.leaves
            self._arrays |= {_identity(leaf.value): leaf for leaf in lifted.leaves}
        copied = _Copied(roots, lifted, arrays, together)
        self._copied.append(copied)
        return copied

    # -- inside the trace ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Copy the known models, at the level of the trace."""
        for copied in self._copied:
            self._copy(copied)
        self._level = _level()

    def _copy(self, copied: _Copied) -> None:
        copied.copy = copied.lifted.rebuild(copied.arrays)
        values = tuple(root.value for root in copied.roots)
        framework = copied.roots[0].framework
        assert framework is not None
        originals = copied.lifted.nodes
        if originals is None:
            originals = framework.nodes(values if copied.together else values[0])
        for original, copy in zip(originals, framework.nodes(copied.copy), strict=True):
            self._copies[original], self._originals[copy] = copy, original

    def stand_in(self, value: object) -> Any:
        """Return the copy of `value` in this trace, or `value` itself."""
        if value in self._copies:
            return self._copies[value]
        if self._level is None or self._is_looking or value in self._originals or value in self._own:
            return value
        framework = self._types.root_framework_of(value)
        if framework is not None:
            self._is_looking = True  # code that inspects a model reads its values, and has to get the original's
            try:
                part = self._part(framework, value)
                if part is not None:
                    return part
                if self._is_met(framework, value):
                    return self._met(value)
            finally:
                self._is_looking = False
        self._own.add(value)
        return value

    def _part(self, framework: Framework, value: object) -> object | None:
        parts = (
            framework.part(value, copied.roots[0].value, copied.copy)
            for copied in self._copied
            if not copied.together and copied.roots[0].framework is framework
        )
        return next((part for part in parts if part is not None), None)

    def _is_met(self, framework: Framework, value: object) -> bool:
        """Whether `value` is a model of the user's that was not known so far."""
        if self.places.knows(value):
            return False
        leaves = framework.leaves(value)
        if any(is_tracer(leaf.value) for leaf in leaves):
            return False
        return framework.is_outside(value, [_identity(leaf.value) in self._arrays for leaf in leaves])

    def _met(self, value: object) -> object:
        look = self._look(value)
        copied = self._lift([self._root(type(value).__name__, value, look)])
        if copied is None:
            return value
        if self._level != _level() or any(part in self._copies for part in self._parts(value, look)):
            raise MetLate(value)
        self._copy(copied)
        return self._copies[value]

    def original(self, module: Module) -> Any:
        """Return the user's module of a copy; any other is itself."""
        return self._originals.get(module, module)

    # -- after the trace -------------------------------------------------------------------------------------------

    def name(self) -> None:
        """Give each root its final name, and register its modules under it."""
        single = lambda value: is_array(value) or self._types.is_variable(value)
        holding = [root for root in self._roots if not single(root.value) and _is_trained(root.leaves)]
        modules = [root for root in holding if root.framework is not None]
        # A single model needs no name of its own, and neither does a single tree of parameters.
        alone = next((group[0] for group in (modules, holding) if len(group) == 1), None)
        taken: set[str] = set()
        for root in holding:
            root.name = "" if root is alone else unused(root.name, taken)
            taken.add(root.name)
        self._arrays.clear()
        converted = IdentityMap(
            (leaf.value, array) for c in self._copied for leaf, array in zip(c.lifted.leaves, c.arrays, strict=True)
        )
        for root in self._roots:
            self.places.register(root.value, root.name)
            for leaf in root.leaves:
                array = converted.get(leaf.value, leaf.value)
                is_whole = root.framework is not None and root.framework.has_whole_paths
                path = leaf.path if is_whole else joined(root.name, leaf.path)
                self._arrays.setdefault(_identity(array), replace(leaf, path=path))
        self._positions = {identity: position for position, identity in enumerate(self._arrays)}

    def restore(self) -> None:
        """Restore the originals."""
        for copied in self._copied:
            copied.lifted.restore()

    def changes(self, counters: bool) -> Changes:
        """Return the changes of the copies."""
        return merged(
            _changes(copied.path, copied.copy, copied.lifted, copied.arrays, counters)
            for copied in self._copied
            if copied.copy is not None
        )

    def collected(self, leaves: Mapping[str, Leaf], counters: bool) -> Changes:
        """Changes of state that a framework collected itself."""
        return Changes({path: leaf.value for path, leaf in leaves.items() if counters or not leaf.counter}, ())

    def order_of(self, constant: Array) -> int:
        """Return the position of a closed-over array among all known ones; unknown ones come last."""
        return self._positions.get(_identity(constant), len(self._positions))

    def named(self, constants: Iterable[Array], taken: set[str]) -> Iterator[Leaf]:
        """Yield a leaf for each closed-over array: that of the model, if one has it."""
        unknown = 0
        for constant in constants:
            leaf = self._arrays.get(_identity(constant))
            if leaf is None:
                leaf = Leaf(f"constant_{unknown}", constant, trainable=False, anonymous=True, owned=False)
                unknown += 1
            path = unused(leaf.path or "value", taken)  # of a dict with the key ""
            taken.add(path)
            yield replace(leaf, path=path, value=constant)


def _level() -> object:
    """Return the transformation that runs."""
    return get_opaque_trace_state(convention="nnx")


def _changes(
    path_of: Callable[[str], str], copy: Module, before: Lifted, arrays: Sequence[Array], counters: bool
) -> Changes:
    old = dict(zip((leaf.path for leaf in before.leaves), arrays, strict=True))
    after = before.snapshot(copy)
    changed = {
        path_of(path): leaf.value
        for path, leaf in after.leaves.items()
        if old.get(path) is not leaf.value and (counters or not leaf.counter)
    }
    others = [path for path in old if path not in after.leaves]
    one, other = before.attributes, after.attributes
    kept = {path for path in one if path in other and _same(one[path], other[path])}
    others += [path for path in {**one, **other} if path not in kept]
    return Changes(changed, tuple(map(path_of, others)))


def _arrays_in(value: object, types: Types) -> list[Leaf]:
    """Return the arrays of a tree: parameters if it has no collections; a single array is a constant."""
    nodes = contents(value, lambda node: types.is_variable(node) or types.is_state(node))
    collections = frozenset(f.parameter_collection for f in types.frameworks if f.parameter_collection)
    paths = [tuple(dotted((key,)) for key in keys) for keys, _ in nodes]
    divided = {path[:end] for path in paths for end, key in enumerate(path) if key in collections}
    leaves = []
    for (keys, node), path in zip(nodes, paths, strict=True):
        # The key of the value within a variable is internal to the variable.
        is_variable, is_state = types.is_variable(node), types.is_state(node)
        below = [(k[is_variable:], x) for k, x in contents(node, is_array)] if is_variable or is_state else [([], node)]
        trained = is_variable or (bool(path) and not is_state)
        in_collections = [key in collections for end, key in enumerate(path) if path[:end] in divided]
        trained &= all(in_collections)
        # Linen's modules hold nothing themselves: the other collections are their states.
        owned = is_variable or is_state or not all(in_collections)
        leaves += [
            Leaf(dotted((*keys, *more)), x, trained and _is_inexact(x), owned=owned) for more, x in below if is_array(x)
        ]
    return leaves


def _is_trained(leaves: Iterable[Leaf]) -> bool:
    """Whether training could change one of the arrays (no keys, no counts), which makes them a model."""
    return any(_is_inexact(leaf.value) for leaf in leaves)


def _is_inexact(array: Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _untouched(array: Array) -> Array:
    """Return an array for a copy of a model, which cannot change the user's: NumPy's are JAX's there.

    A weight that is mapped from a file stays there, whatever its size is.
    """
    if isinstance(array, np.memmap) and array.ndim:  # JAX turns scalars into literals
        view = array.view()
        view.flags.writeable = False
        return view
    return jnp.asarray(array) if isinstance(array, np.ndarray | np.generic) else array


def _identity(array: object) -> Hashable:
    """Return a key that an array and JAX's constant for it share."""
    if isinstance(array, jax.Array):
        return id(array)
    # JAX rewraps NumPy arrays around the same memory.
    view = np.asarray(array)
    return (view.__array_interface__["data"][0], view.shape, str(view.dtype)) if view.size else id(array)


def _same(one: object, other: object) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - values that do not compare, such as arrays
        return False

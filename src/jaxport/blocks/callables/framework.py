"""The interface to a framework: one subclass per framework, each in its own file of `jaxport.frameworks`."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from jaxport.blocks.block import freeze
from jaxport.blocks.callables.values import is_array
from jaxport.jaxprs import Module, Parameters, PythonFunction

ModuleType = TypeVar("ModuleType")
"""What a framework's modules are."""

# Packages whose objects and globals hold nothing of the user's.
LIBRARIES = frozenset(
    {*sys.stdlib_module_names, "equinox", "flax", "haiku", "jax", "jaxlib", "jaxport", "keras", "numpy", "optax"}
)


def package_of(thing: object) -> str:
    """Return the top-level package in which a class or function was defined.

    >>> package_of(Leaf)
    'jaxport'
    """
    module = getattr(thing, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


# Maps the object, the arguments and the keyword arguments of a call to those that the call is made with.
Prepare = Callable[[Any, tuple, dict], tuple[tuple, dict]]


@dataclass(frozen=True)
class Leaf:
    """An array of a model: its `path`, its `value`, and whether training changes it.

    `counter` marks bookkeeping of random number streams, whose changes are dropped; `anonymous` is an array with a
    generated path, because no module or container is known to have it; `owned` are those that a module holds.
    """

    path: str
    value: Any
    trainable: bool = True
    counter: bool = False
    anonymous: bool = False
    owned: bool = True


@dataclass(frozen=True)
class OwnPlace:
    """The place that a module reports for itself: `path` below the `body` that is being traced, itself at `body_path`.

    `leaves()` gives some arrays of the body, each with the name of its collection.
    """

    body: Module
    body_path: str
    path: str
    leaves: Callable[[], list[tuple[str, Leaf]]]


@dataclass(frozen=True)
class Snapshot:
    """The contents of a module: its arrays, and its other attributes, by path."""

    leaves: Mapping[str, Leaf]
    attributes: Parameters


@dataclass(frozen=True)
class Lifted:
    """A module with mutable state, decomposed so that a trace works on a copy of it.

    `rebuild(values)` makes the copy from one value per leaf, inside the trace; `snapshot(copy)` reads it again after
    the call; `restore()` undoes what the framework's transformations did to the user's own objects. `nodes` are those
    of the module (see `Framework.nodes`); None if they are to be asked for.
    """

    leaves: tuple[Leaf, ...]
    attributes: Parameters
    rebuild: Callable[[Sequence[Any]], Any]
    snapshot: Callable[[Any], Snapshot]
    restore: Callable[[], None] = lambda: None
    nodes: Sequence[Any] | None = None


@dataclass(frozen=True)
class Look:
    """What one walk through a module finds: see `Framework.nodes`, `Framework.leaves` and `Framework.submodules`."""

    nodes: Sequence[Any]
    leaves: Sequence[Leaf]
    submodules: Sequence[tuple[str, Module]]


class CallRecorder(Protocol):
    """What a framework reports calls of modules to: `jaxport.blocks.marking.recorder.Recorder`."""

    def call_method(
        self,
        owner: Module,
        method: str,
        function: Callable,
        args: tuple,
        kwargs: dict,
        *,
        named_by: Callable | None = None,
    ) -> Any:
        """Call `function(*args, **kwargs)`, the bound `method` of `owner`, between markers."""
        ...

    def stand_in(self, value: object) -> Any:
        """Return the running trace's copy of a module, or of another object with state."""
        ...


class Framework(Generic[ModuleType]):
    """How a framework's modules are recognised, named, inspected and called. The base class knows no modules."""

    #: the public names of the framework's namespaces, in the order in which they are searched
    namespaces: tuple[str, ...] = ()

    def is_module(self, value: object) -> bool:
        """Whether `value` is a module of this framework."""
        raise NotImplementedError

    def is_opaque(self, value: object) -> bool:
        """Whether an argument of a call is to be left alone: modules and other objects with identity."""
        return self.is_module(value)

    def is_root(self, value: object) -> bool:
        """Whether `value` is a model, or a piece of one, that a callable may hold."""
        return self.is_module(value)

    def is_state(self, value: object) -> bool:
        """Whether `value` is a container of what calls change, and training leaves alone."""
        del value
        return False

    def is_variable(self, value: object) -> bool:
        """Whether `value` is a box around an array, without a name of its own in paths."""
        del value
        return False

    def module_classes(self) -> Iterator[type]:
        """Yield the classes whose methods are patched; none if `interception` sees the calls."""
        return iter(())

    #: classes whose methods are not calls of a module: the framework's own bases
    bases: tuple[type, ...] = ()

    #: the methods of module classes that are calls; None for all public ones
    methods: frozenset[str] | None = None

    #: if variables are kept in collections, the name of that of the parameters
    parameter_collection = ""

    #: whether the paths of arrays are relative to the whole program, without the model's name in front
    has_whole_paths = False

    def state_methods(self) -> Iterator[tuple[type, str, Prepare | None]]:
        """Yield the classes and their methods or properties that read or write state outside of calls of modules.

        Inside a window they work on the running trace's copy of an object.
        """
        return iter(())

    def open_sizes(self) -> Iterator[tuple[type, str, Callable[[PythonFunction], PythonFunction]]]:
        """Yield the classes and their methods that need a size as a number, and what wraps each to take symbolic
        ones.
        """
        return iter(())

    def interception(self, recorder: Callable[[], CallRecorder | None]) -> AbstractContextManager[Any]:
        """Return a context in which the framework itself reports each call of a module, in this thread only.

        `recorder()` is the one to pass the call to (`CallRecorder.call_method`), None if no window is open any more.
        """
        del recorder
        return nullcontext()

    def session(self) -> AbstractContextManager[Callable[[], Mapping[str, Leaf]] | None]:
        """Return a context to enter inside a trace, around the call, if the framework itself collects changes of state.

        Its value is a function to call after the call, which returns the new values by path.
        """
        return nullcontext()

    def submodules(self, module: ModuleType) -> Iterator[tuple[str, Module]]:
        """Yield the module and all modules below it, with their paths; shared ones once, at their first path.

        By default only the module: those below it are created in each call.
        """
        yield "", module

    def leaves(self, module: ModuleType) -> list[Leaf]:
        """Return all arrays of the module and of the modules below it; by default none: they are arguments."""
        del module
        return []

    def config(self, module: ModuleType) -> dict[str, Any]:
        """Return the static fields of a module; by default none."""
        del module
        return {}

    def own_place(self, module: ModuleType) -> OwnPlace | None:
        """Return the place that the module reports for itself, or None if it does not know."""
        del module
        return None

    def parameters(self, module: ModuleType) -> list[Any]:
        """Return the arrays that are the module's own parameters although they reach the trace as arguments."""
        del module
        return []

    def carry(self, before: object, after: object) -> None:
        """Copy the attributes of an argument of a call to the marker's result for it."""
        del before, after

    def named_by(self, module: ModuleType, method: str) -> Callable | None:
        """Return the function whose signature names the arguments of a method that hides its own."""
        del module, method
        return None

    def signature(self, fn: PythonFunction, keywords: Parameters) -> inspect.Signature | None:
        """Return the signature of a callable of the framework that hides the names of its arguments, else None.

        `keywords` are always passed to it.
        """
        del fn, keywords
        return None

    #: whether `lift` takes a tuple of models, too, which may share parts
    lifts_together = False

    def lift(self, module: ModuleType) -> Lifted | None:
        """Return the module decomposed, or None if a call cannot change it."""
        del module
        return None

    def nodes(self, module: ModuleType) -> Iterator[Any]:
        """Yield all objects below the module, itself included, that a copy of it copies, in the same order."""
        return (node for _, node in self.submodules(module))

    def look(self, module: ModuleType) -> Look:
        """Return the objects, arrays and modules below a module, in one walk."""
        return Look(list(self.nodes(module)), self.leaves(module), list(self.submodules(module)))

    def part(self, value: object, original: ModuleType, copy: ModuleType) -> Any | None:
        """Return the part of `copy` that corresponds to the part `value` of `original`, or None if it is not part."""
        del value, original, copy
        return None

    def with_part(self, model: ModuleType, old: Module, part: Module) -> Any | None:
        """Return the model with `part` in every place of `old`; None if it cannot hold a module there.

        A mutable model is a copy of the user's, and is changed in place.
        """
        del model, old, part
        return None

    def is_outside(self, module: object, known: Sequence[bool]) -> bool:
        """Whether a module that is used in a trace existed before it.

        Its arrays are concrete; `known` tells for each whether it belongs to a known model.
        """
        del module
        return bool(known) and not any(known)


def public_name(thing: object, namespaces: Sequence[str]) -> str:
    """Return the qualified name of a class or function, as users spell it if one of `namespaces` has it.

    >>> import jax
    >>> public_name(jax.nn.gelu, ["jax.nn"])
    'jax.nn.gelu'
    >>> public_name(public_name, [])
    'jaxport.blocks.callables.framework.public_name'
    """
    name = getattr(thing, "__qualname__", type(thing).__qualname__).replace("<locals>.", "")
    short_name = name.rpartition(".")[2]
    for namespace in namespaces:
        if namespace in sys.modules and getattr(sys.modules[namespace], short_name, None) is thing:
            return f"{namespace}.{short_name}"
    return f"{getattr(thing, '__module__', type(thing).__module__)}.{name}"


def static_items(fields: Parameters, is_dynamic: Callable[[object], bool]) -> dict[str, Any]:
    """Return the public fields without those that hold arrays or are `is_dynamic`, with their values frozen.

    >>> import numpy as np
    >>> static_items({"features": 3, "kernel": np.ones(3), "_cache": 1}, lambda value: False)
    {'features': 3}
    """
    dynamic = lambda item: is_array(item) or is_dynamic(item)
    return {
        name: value if type(value) in _SIMPLE else freeze(value)
        for name, value in fields.items()
        if not name.startswith("_") and (type(value) in _SIMPLE or not _holds(value, dynamic))
    }


# Most fields have one of these types, which contain nothing else.
_SIMPLE = frozenset({int, float, str, bool, type(None), type, types.FunctionType, types.BuiltinFunctionType})


def _holds(value: object, predicate: Callable[[object], bool]) -> bool:
    if type(value) in _SIMPLE:
        return False
    if isinstance(value, list | tuple | set):
        return any(_holds(item, predicate) for item in value)
    if isinstance(value, Mapping):
        return any(_holds(item, predicate) for item in value.values())
    return predicate(value)

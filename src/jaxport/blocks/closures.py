"""How a callable refers to other objects, and how it is made anew around others in their place."""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Node", "Reference", "opened"]


@dataclass(frozen=True)
class Reference:
    """An object that another refers to, and the name by which it does."""

    name: str
    value: object


@dataclass(frozen=True)
class Node:
    """An opened object: what it refers to, and how it is made anew, if it can be.

    `rebuild(made)` returns the new object and a function that completes it: between the two the new object is
    known, so that a function may refer to itself. `made(value)` is what stands for `value` in the new world.
    """

    references: tuple[Reference, ...]
    rebuild: Callable[[Callable[[object], object]], tuple[object, Callable[[], None]]] | None


def opened(value: object) -> Node | None:
    """What `value` refers to; None for objects that are not looked into.

    >>> import functools
    >>> opened(functools.partial(max, default=3)).references[1]
    Reference(name='default', value=3)
    """
    match value:
        case functools.partial():
            return _partial(value)
        case types.FunctionType():
            return _function(value)
        case list() | tuple() | dict():
            return _container(value)
        case _ if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            return None
        case _ if hasattr(value, "__func__") and hasattr(value, "__self__"):
            return _method(value)
        case _ if callable(value) and callable(getattr(value, "__wrapped__", None)):
            # `jax.jit` and the like: their options are not known, so they stay as they are.
            return Node((Reference("", value.__wrapped__),), None)
        case _ if hasattr(value, "__dict__") and _package(type(value)) not in _LIBRARIES:
            return _instance(value)
    return None


# Their objects and globals hold nothing of the user's.
_LIBRARIES = frozenset({*sys.stdlib_module_names, "equinox", "flax", "jax", "jaxlib", "jaxport", "numpy", "optax"})


def _package(thing: object) -> str:
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


def _done() -> None:
    """Nothing to complete."""


def _partial(value: functools.partial) -> Node:
    try:
        given = inspect.signature(value.func).bind_partial(*value.args).arguments
        names = list(given)[: len(value.args)]
    except (TypeError, ValueError):  # no signature
        names = []
    names += [f"args_{index}" for index in range(len(names), len(value.args))]
    references = [
        Reference("", value.func),
        *map(Reference, names, value.args),
        *map(Reference, value.keywords, value.keywords.values()),
    ]

    def rebuild(made: Callable) -> tuple[object, Callable[[], None]]:
        keywords = {name: made(item) for name, item in value.keywords.items()}
        return type(value)(made(value.func), *map(made, value.args), **keywords), _done

    return Node(tuple(references), rebuild)


def _method(value: types.MethodType) -> Node:
    rebuild = None
    if isinstance(value, types.MethodType):
        rebuild = lambda made: (types.MethodType(made(value.__func__), made(value.__self__)), _done)  # noqa: E731
    return Node((Reference("", value.__self__), Reference("", value.__func__)), rebuild)


def _container(value: list | tuple | dict) -> Node | None:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    references = tuple(Reference(str(key), item) for key, item in items)
    if type(value) is dict:
        rebuild = lambda made: _filled({}, lambda new: new.update({k: made(v) for k, v in value.items()}))  # noqa: E731
    elif type(value) is list:
        rebuild = lambda made: _filled([], lambda new: new.extend(map(made, value)))  # noqa: E731
    elif type(value) is tuple:
        rebuild = lambda made: (tuple(map(made, value)), _done)  # noqa: E731
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        rebuild = lambda made: (type(value)(*map(made, value)), _done)  # noqa: E731
    else:
        rebuild = None
    return Node(references, rebuild)


def _filled(new: object, fill: Callable[[object], None]) -> tuple[object, Callable[[], None]]:
    return new, functools.partial(fill, new)


def _instance(value: object) -> Node:
    references = tuple(Reference(name, item) for name, item in vars(value).items())

    def rebuild(made: Callable) -> tuple[object, Callable[[], None]]:
        new = copy.copy(value)
        return new, lambda: vars(new).update({name: made(item) for name, item in vars(value).items()})

    return Node(references, rebuild)


def _function(value: types.FunctionType) -> Node:
    cells = [Reference(name, _content(cell)) for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ())]
    positional = inspect.getfullargspec(value).args if value.__defaults__ else []
    defaults = value.__defaults__ or ()
    references = [
        *cells,
        *map(Reference, positional[len(positional) - len(defaults) :], defaults),
        *(Reference(name, item) for name, item in (value.__kwdefaults__ or {}).items()),
    ]
    global_names = list(_global_names(value))
    references += [Reference(name, value.__globals__[name]) for name in global_names]

    def rebuild(made: Callable) -> tuple[object, Callable[[], None]]:
        # A cell is shared with other functions that write to it; only one with new content is a new one.
        new_cells = [cell if made(_content(cell)) is _content(cell) else types.CellType() for cell in value.__closure__ or ()]
        changed = {n: made(value.__globals__[n]) for n in global_names}
        changed = {n: item for n, item in changed.items() if item is not value.__globals__[n]}
        new = types.FunctionType(
            value.__code__,
            {**value.__globals__, **changed} if changed else value.__globals__,
            value.__name__,
            value.__defaults__,
            tuple(new_cells),
        )
        return new, lambda: None

    return Node(tuple(references), rebuild)

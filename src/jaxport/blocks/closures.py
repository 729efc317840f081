"""How a callable refers to other objects, and how it is made anew around others in their place."""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

__all__ = ["LIBRARIES", "Node", "Reference", "World", "bound_again", "opened", "package_of"]


class World(Protocol):
    """What stands for each object once some of them are replaced."""

    def is_new(self, value: Any) -> bool:
        """Whether something else stands for `value`."""
        ...

    def made(self, value: Any) -> Any:
        """What stands for `value`: itself, if it is not new."""
        ...


@dataclass(frozen=True)
class Reference:
    """An object that another refers to, and the name by which it does."""

    name: str
    value: Any


@dataclass(frozen=True)
class Node:
    """An opened object: what it refers to, and how it is made anew, if it can be.

    `rebuild` yields the new object and completes it afterwards, so that an object may refer to itself. A container
    or an instance is a place where its user keeps things, so that its name is part of theirs; a function is none.
    """

    references: tuple[Reference, ...]
    rebuild: Callable[[World], Iterator[Any]] | None = None
    is_place: bool = False


# Their objects and globals hold nothing of the user's.
LIBRARIES = frozenset({*sys.stdlib_module_names, "equinox", "flax", "jax", "jaxlib", "jaxport", "numpy", "optax"})


def opened(value: Any) -> Node | None:
    """What `value` refers to; None for an object that is not looked into.

    >>> opened(functools.partial(print, end="")).references[1]
    Reference(name='end', value='')
    """
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | str):
        return None
    if isinstance(value, functools.partial):
        return _partial(value)
    if isinstance(value, types.FunctionType):
        return _function(value)
    if hasattr(value, "__func__") and hasattr(value, "__self__"):  # a bound method, Python's or another library's
        return _method(value)
    if isinstance(value, list | tuple | dict):
        return _container(value)
    if all(hasattr(value, name) for name in ("func", "args", "keywords")):  # another library's partial
        return replace(_partial(value), rebuild=None)
    if callable(value) and callable(wrapped := getattr(value, "__wrapped__", None)):
        # `jax.jit` and the like: with what options they were made is not known, so they stay as they are.
        return Node((Reference("", wrapped),))
    if hasattr(value, "__dict__") and package_of(type(value)) not in LIBRARIES:
        return _instance(value)
    return None


def package_of(thing: Any) -> str:
    """The top-level package that a class or function was defined in.

    >>> package_of(Node)
    'jaxport'
    """
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


def _partial(value: functools.partial) -> Node:
    try:
        names = list(inspect.signature(value.func).bind_partial(*value.args).arguments)[: len(value.args)]
    except (TypeError, ValueError):  # it has no signature, or not this one
        names = []
    names += [f"args_{index}" for index in range(len(names), len(value.args))]

    def rebuild(world: World) -> Iterator[Any]:
        keywords = {name: world.made(item) for name, item in value.keywords.items()}
        yield type(value)(world.made(value.func), *map(world.made, value.args), **keywords)

    given = [*zip(names, value.args, strict=True), *value.keywords.items()]
    return Node((Reference("", value.func), *(Reference(*item) for item in given)), rebuild)


def bound_again(method: Any, owner: Any = None) -> Any:
    """The method as the class of its owner has it now, None where that is the same function or another method.

    >>> class Model:
    ...     def call(self):
    ...         return 1
    >>> call = Model().call
    >>> bound_again(call) is None
    True
    """
    function = getattr(method, "__func__", None)
    name = getattr(function, "__name__", "")
    owner = getattr(method, "__self__", None) if owner is None else owner
    current = getattr(type(owner), name, None)
    if (
        function is None
        or current is None
        or current is function
        or inspect.unwrap(current) is not inspect.unwrap(function)
    ):
        return None
    return getattr(owner, name)


def _method(value: types.MethodType) -> Node:
    def rebuild(world: World) -> Iterator[Any]:
        owner = world.made(value.__self__)
        again = bound_again(value, owner)
        yield type(value)(world.made(value.__func__), owner) if again is None else again

    return Node((Reference("", value.__self__), Reference("", value.__func__)), rebuild)


def _container(value: list | tuple | dict) -> Node:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    references = tuple(Reference(str(key), item) for key, item in items)

    def rebuild(world: World) -> Iterator[Any]:
        if isinstance(value, tuple):
            made = map(world.made, value)
            yield type(value)(*made) if hasattr(value, "_fields") else tuple(made)
            return
        new = copy.copy(value)
        yield new
        for key, item in items if isinstance(value, dict) else enumerate(value):
            new[key] = world.made(item)

    return Node(references, rebuild, is_place=True)


def _instance(value: Any) -> Node:
    def rebuild(world: World) -> Iterator[Any]:
        new = copy.copy(value)
        yield new
        vars(new).update({name: world.made(item) for name, item in vars(value).items()})

    return Node(tuple(Reference(name, item) for name, item in vars(value).items()), rebuild, is_place=True)


def _function(value: types.FunctionType) -> Node:
    cells = value.__closure__ or ()
    defaults, keyword_defaults = value.__defaults__ or (), value.__kwdefaults__ or {}
    code = value.__code__
    positional = code.co_varnames[: code.co_argcount]
    global_names = _global_names(value)

    def rebuild(world: World) -> Iterator[Any]:
        changed = {name: value.__globals__[name] for name in global_names if world.is_new(value.__globals__[name])}
        # A cell is shared with other functions that write to it: only one whose content changes is a new one.
        new_cells = [types.CellType() if world.is_new(_content(cell)) else cell for cell in cells]
        namespace = {**value.__globals__} if changed else value.__globals__
        new = types.FunctionType(code, namespace, value.__name__, None, tuple(new_cells))
        yield functools.update_wrapper(new, value, updated=())
        vars(new).update({name: item for name, item in vars(value).items() if name != "__wrapped__"})
        namespace.update({name: world.made(item) for name, item in changed.items()} if changed else {})
        new.__defaults__ = tuple(map(world.made, defaults)) or None
        new.__kwdefaults__ = {name: world.made(item) for name, item in keyword_defaults.items()} or None
        for cell, new_cell in zip(cells, new_cells, strict=True):
            if new_cell is not cell:
                new_cell.cell_contents = world.made(_content(cell))

    references = [
        *(Reference(name, _content(cell)) for name, cell in zip(code.co_freevars, cells, strict=True)),
        *map(Reference, positional[len(positional) - len(defaults) :], defaults),
        *map(Reference, keyword_defaults, keyword_defaults.values()),
        *(Reference(name, value.__globals__[name]) for name in global_names),
    ]
    # A function that assigns to globals must keep the ones it has.
    assigns = any(instruction.opname == "STORE_GLOBAL" for instruction in dis.get_instructions(code))
    return Node(tuple(references), None if assigns and global_names else rebuild)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _global_names(function: types.FunctionType) -> list[str]:
    """The globals that the function, or a function defined in it, refers to, where they may lead to a model."""
    package = package_of(function)
    if package in LIBRARIES:
        return []
    names: dict[str, None] = {}
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        names.update(dict.fromkeys(code.co_names))
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    # Functions of other packages are not followed: they bring their own world.
    return [
        name
        for name, value in found.items()
        if not isinstance(value, types.FunctionType) or package_of(value) == package
    ]

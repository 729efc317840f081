"""What a callable holds: the names by which it refers to models and arrays.

Only the callable is looked at, and the functions that it holds: their closure cells, defaults, globals and bound
arguments, and the attributes of an instance that is called or held, one level deep. Everything is looked up
statically, so that no code of anybody else runs; whatever is not found here costs names and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxport.blocks.framework import LIBRARIES, package_of
from jaxport.blocks.naming import dotted
from jaxport.blocks.places import Types, joined
from jaxport.blocks.values import contents, is_array

__all__ = ["held", "restored", "static_attribute"]


# What holds nothing. (All checks go by the type: `isinstance` asks an object for its class, and a foreign one may fail.)
_WITHOUT = type | types.ModuleType | types.BuiltinFunctionType | str | bytes | int | float


def static_attribute(thing: Any, name: str) -> Any:
    """The attribute as it lies in the instance or its class: no descriptor, property or `__getattr__` runs.

    >>> static_attribute(functools.partial(print), "missing") is None
    True
    """
    try:
        return inspect.getattr_static(thing, name, None)
    except Exception:  # noqa: BLE001 - foreign metaclasses may do anything; a name is not worth an error
        return None


def held(fn: Any, kinds: Types) -> list[tuple[str, Any]]:
    """The models, arrays and trees of arrays that `fn` holds, each with its name, in the order in which it names them.

    >>> import numpy as np
    >>> weights = {"dense": [np.ones(3)]}
    >>> [name for name, _ in held(functools.partial(print, params=weights), Types(()))]
    ['params']
    """
    found: list[tuple[str, Any]] = []
    seen: dict[int, Any] = {}  # kept, so that no id is used a second time
    # Each with its name, and whether it may be an instance that is looked into.
    waiting: list[tuple[str, Any, bool]] = [("", fn, True)]
    while waiting:
        name, value, opened = waiting.pop(0)
        if id(value) in seen or value is None or issubclass(type(value), _WITHOUT):
            continue
        seen[id(value)] = value
        if kinds.root_framework_of(value) is not None or is_array(value):
            found.append((name, value))
        elif issubclass(type(value), types.FunctionType | types.MethodType | functools.partial):
            waiting[:0] = [(below, item, opened) for below, item in _references(value, fn)]
        elif (wrapped := _wrapped(value)) is not None:  # `jax.jit` and the like
            waiting.insert(0, (name, wrapped, opened))
        elif contents := _contents(value, kinds):
            if any(_is_looked_into(item, kinds) for _, item in contents):
                waiting[:0] = [(joined(name, below), item, opened) for below, item in contents]
            elif any(is_array(item) or kinds.is_variable(item) for _, item in contents):
                found.append((name, value))
        elif opened and package_of(type(value)) not in LIBRARIES:
            waiting[:0] = [(joined(name, below), item, False) for below, item in (_instance(value) or {}).items()]
    return found


@contextmanager
def restored(fn: Any) -> Iterator[None]:
    """Puts the attributes of the instance that is called back to what they were."""
    owner = fn.__self__ if issubclass(type(fn), types.MethodType) else fn
    is_plain = not issubclass(type(owner), types.FunctionType | type | types.ModuleType)
    attributes = _instance(owner) if is_plain and package_of(type(owner)) not in LIBRARIES else None
    before = dict(attributes or {})
    try:
        yield
    finally:
        if attributes is not None:
            changed = [name for name in attributes if attributes[name] is not before.get(name, attributes)]
            for name in changed:
                del attributes[name]
            attributes.update({name: value for name, value in before.items() if name not in attributes})


def _is_looked_into(item: Any, kinds: Types) -> bool:
    """Whether what lies in a container is a model or a function, and not just a value."""
    return not kinds.is_variable(item) and (kinds.root_framework_of(item) is not None or callable(item))


def _wrapped(value: Any) -> Any:
    """The function that a transformed one was made of; of a library that is known, a property may say so."""
    wrapped = static_attribute(value, "__wrapped__")
    if isinstance(wrapped, property):
        return getattr(value, "__wrapped__", None) if package_of(type(value)) in LIBRARIES else None
    return wrapped


def _references(value: Any, fn: Any) -> Iterator[tuple[str, Any]]:
    """What a function, a method or a partial refers to."""
    if issubclass(type(value), functools.partial):
        yield "", value.func
        yield from _given(value)
    elif issubclass(type(value), types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    else:
        yield from _of_function(value, fn)


def _instance(value: Any) -> dict[str, Any] | None:
    """The attributes of an instance, None if it has none of its own."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # noqa: BLE001 - there are none, or a descriptor of its own makes them
        return None
    return attributes if type(attributes) is dict else None


def _given(value: functools.partial) -> Iterator[tuple[str, Any]]:
    """The bound arguments under the names of the parameters that take them."""
    try:
        names = list(inspect.signature(value.func).bind_partial(*value.args).arguments)[: len(value.args)]
    except (TypeError, ValueError):  # it has no signature, or not this one
        names = []
    names += [f"args_{index}" for index in range(len(names), len(value.args))]
    yield from zip(names, value.args, strict=True)
    yield from value.keywords.items()


def _of_function(function: types.FunctionType, fn: Any) -> Iterator[tuple[str, Any]]:
    """The contents of the closure cells, the defaults, and the globals by name."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    wrapped = function.__dict__.get("__wrapped__")
    if wrapped is not None:
        yield "", wrapped
    if package_of(function) in LIBRARIES:
        return
    for name in _names_in(code):
        value = function.__globals__.get(name)
        # A function of another file brings a world of its own.
        is_function = issubclass(type(value), types.FunctionType)
        foreign = is_function and getattr(value, "__globals__", None) is not function.__globals__
        if value is not fn and not foreign:
            yield name, value


def _names_in(code: types.CodeType) -> dict[str, None]:
    """The names of globals that a function, or one defined in it, refers to, in order."""
    names: dict[str, None] = {}
    waiting = [code]
    while waiting:
        code = waiting.pop()
        names.update(dict.fromkeys(code.co_names))
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return names


def _contents(value: Any, kinds: Types) -> list[tuple[str, Any]]:
    """The models, arrays and functions in a container, with their paths; none in what is no container."""
    leaves = contents(value, lambda item: kinds.root_framework_of(item) is not None)
    return [(dotted(keys), leaf) for keys, leaf in leaves if keys]

"""The models and arrays that a callable holds, and the names by which it refers to them.

Only the callable is searched, and the functions that it holds: their closure cells, defaults, globals and bound
arguments, and the attributes of an instance that is called or held, one level deep. Everything is looked up statically,
so that no foreign code runs; an object that is not found only loses its name.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxport.blocks.callables.framework import LIBRARIES, package_of
from jaxport.blocks.callables.naming import dotted
from jaxport.blocks.callables.places import Types, joined
from jaxport.blocks.callables.values import contents, is_array
from jaxport.jaxprs import PythonFunction
from jaxport.jaxprs.identity import IdentitySet

# Types that hold nothing. (All checks use the type: `isinstance` asks an object for its class, and a foreign one may
# fail.)
_WITHOUT = type | types.ModuleType | types.BuiltinFunctionType | str | bytes | int | float


def static_attribute(thing: object, name: str) -> Any:
    """Return the attribute stored in the instance or its class: no descriptor, property or `__getattr__` runs.

    >>> static_attribute(functools.partial(print), "missing") is None
    True
    """
    try:
        return inspect.getattr_static(thing, name, None)
    except Exception:  # noqa: BLE001 - foreign metaclasses may do anything; a name is not worth an error
        return None


def named_models(fn: PythonFunction, kinds: Types) -> list[tuple[str, Any]]:
    """Return the models, arrays and trees of arrays that `fn` holds with their names, in the order of reference.

    >>> import numpy as np
    >>> weights = {"dense": [np.ones(3)]}
    >>> [name for name, _ in named_models(functools.partial(print, params=weights), Types(()))]
    ['params']
    """
    items: list[tuple[str, Any]] = []
    seen: IdentitySet[Any] = IdentitySet()
    # Each with its name, and whether it may be an instance to search.
    waiting: list[tuple[str, Any, bool]] = [("", fn, True)]
    while waiting:
        name, value, opened = waiting.pop(0)
        if value in seen or value is None or issubclass(type(value), _WITHOUT):
            continue
        seen.add(value)
        if kinds.root_framework_of(value) is not None or is_array(value):
            items.append((name, value))
        elif issubclass(type(value), types.FunctionType | types.MethodType | functools.partial):
            waiting[:0] = [(below, item, opened) for below, item in _references(value, fn)]
        elif (wrapped := _wrapped(value)) is not None:  # `jax.jit` and the like
            waiting.insert(0, (name, wrapped, opened))
        elif contents := _contents(value, kinds):
            if any(_is_looked_into(item, kinds) for _, item in contents):
                waiting[:0] = [(joined(name, below), item, opened) for below, item in contents]
            elif any(is_array(item) or kinds.is_variable(item) for _, item in contents):
                items.append((name, value))
        elif opened and package_of(type(value)) not in LIBRARIES:
            waiting[:0] = [(joined(name, below), item, False) for below, item in (_instance(value) or {}).items()]
    return items


@contextmanager
def restored(fn: Any) -> Iterator[None]:
    """Restore the attributes of the called instance at the end."""
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


def _is_looked_into(item: object, kinds: Types) -> bool:
    """Whether an item of a container is a model or a function, and not just a value."""
    return not kinds.is_variable(item) and (kinds.root_framework_of(item) is not None or callable(item))


def _wrapped(value: object) -> object:
    """Return the function inside a transformed one; a property is only asked in a known library."""
    wrapped = static_attribute(value, "__wrapped__")
    if isinstance(wrapped, property):
        return getattr(value, "__wrapped__", None) if package_of(type(value)) in LIBRARIES else None
    return wrapped


def _references(value: Any, fn: PythonFunction) -> Iterator[tuple[str, object]]:
    """Yield the references of a function, a method or a partial."""
    if issubclass(type(value), functools.partial):
        yield "", value.func
        yield from _given(value)
    elif issubclass(type(value), types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    else:
        yield from _of_function(value, fn)


def _instance(value: object) -> dict[str, object] | None:
    """Return the attributes of an instance, None if it has none of its own."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # noqa: BLE001 - there are none, or a descriptor of its own makes them
        return None
    return attributes if type(attributes) is dict else None


def _given(value: functools.partial) -> Iterator[tuple[str, object]]:
    """Yield the bound arguments under the names of the parameters that take them."""
    try:
        names = list(inspect.signature(value.func).bind_partial(*value.args).arguments)[: len(value.args)]
    except (TypeError, ValueError):  # without a signature, or with another one
        names = []
    names += [f"args_{index}" for index in range(len(names), len(value.args))]
    yield from zip(names, value.args, strict=True)
    yield from value.keywords.items()


def _of_function(function: types.FunctionType, fn: PythonFunction) -> Iterator[tuple[str, object]]:
    """Yield the contents of the closure cells, the defaults, and the globals by name."""
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
        # The globals of a function from another file are not searched.
        is_function = issubclass(type(value), types.FunctionType)
        foreign = is_function and getattr(value, "__globals__", None) is not function.__globals__
        if value is not fn and not foreign:
            yield name, value


def _names_in(code: types.CodeType) -> dict[str, None]:
    """Return the names of globals that a function, or one defined in it, refers to, in order."""
    names: dict[str, None] = {}
    waiting = [code]
    while waiting:
        code = waiting.pop()
        names.update(dict.fromkeys(code.co_names))
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return names


def _contents(value: object, kinds: Types) -> list[tuple[str, object]]:
    """Return the models, arrays and functions in a container, with their paths; none for other objects."""
    leaves = contents(value, lambda item: kinds.root_framework_of(item) is not None)
    return [(dotted(keys), leaf) for keys, leaf in leaves if keys]

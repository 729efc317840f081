"""Arguments of public functions by kind: one of another kind is refused by name, before anything runs."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from jaxport.errors import InvalidArgument

Taken = ParamSpec("Taken")
Made = TypeVar("Made")


class Kind(NamedTuple):
    """What an argument has to be: a test, and the same in words."""

    holds: Callable[[Any], object]
    what: str


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0


def _is_list_of(value: object, holds: Callable[[Any], object]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(holds, value))


def _is_named(value: object, holds: Callable[[Any], object] = lambda _: True) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and holds(each) for name, each in value.items())


def _is_collection(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping) and all(map(_is_text, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are_integers(value: object) -> bool:
    if not isinstance(value, Iterable) or isinstance(value, str):
        return False
    return all(isinstance(each, numbers.Integral | np.integer) for each in value)


def _is_tolerance(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and float(value) >= 0


def _are_sizes(value: object) -> bool:
    return _is_named(value, _is_count) or _is_list_of(value, lambda one: _is_named(one, _is_count))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


KINDS = {
    "arguments": Kind(
        lambda value: callable(value) or isinstance(value, Mapping) or _is_list_of(value, lambda _: True),
        "a list of arguments, a dict of them by name, or a sampler",
    ),
    "axes": Kind(lambda value: _is_flag(value) or _is_named(value), "True, False, or a dict of axes by name"),
    "chosen by name": Kind(lambda value: callable(value) or _is_named(value), "a dict by name, or a function of names"),
    "count": Kind(_is_count, "a whole number, 0 or more"),
    "counts": Kind(lambda value: _is_named(value, _is_count), "whole numbers by name, 0 or more"),
    "flag": Kind(_is_flag, "True or False"),
    "functions": Kind(lambda value: _is_list_of(value, callable), "a list of functions"),
    "integers": Kind(lambda value: _is_named(value, _are_integers), 'lists of integers by name, {"ids": [0]}'),
    "mode or names": Kind(
        lambda value: _is_text(value) or _is_collection(value), "a mode, or a list or a set of names"
    ),
    "named": Kind(_is_named, "a dict by name"),
    "names": Kind(lambda value: _is_list_of(value, lambda name: isinstance(name, str)), "a list of names"),
    "patterns": Kind(
        lambda value: callable(value) or _is_text(value) or _is_list_of(value, _is_text),
        "a pattern, a list of patterns, or a predicate",
    ),
    "positions": Kind(lambda value: _is_list_of(value, _is_count), "a list of positions, counted from 0"),
    "sizes": Kind(_are_sizes, 'sizes by name, {"B": 4}, or a list of these'),
    "some names": Kind(_is_collection, "a list or a set of names"),
    "text": Kind(_is_text, "a text that is not empty"),
    "tolerance": Kind(_is_tolerance, "a finite number, 0 or more"),
}


def _kind(kind: str | type) -> Kind:
    """Return a kind by its name, or that of the instances of a class."""
    return KINDS[kind] if isinstance(kind, str) else Kind(lambda value: isinstance(value, kind), f"a `{kind.__name__}`")


def check_kinds(where: str, values: Mapping[str, object], **kinds: str | type) -> None:
    """Check values by the names of their arguments.

    Raises:
      InvalidArgument: one is of another kind.

    >>> check_kinds("to_onnx", {"unroll_scans": -4}, unroll_scans="count")
    Traceback (most recent call last):
    jaxport.InvalidArgument: unroll_scans=-4 is not a whole number, 0 or more
      where:   `to_onnx(unroll_scans=...)`
    """
    for name, kind in ((name, _kind(kind)) for name, kind in kinds.items()):
        if name in values and not kind.holds(values[name]):
            shown = repr(values[name])
            shown = f"{name}={shown}" if len(shown) < _LONG else f"`{name}`, a `{type(values[name]).__name__}`,"
            raise InvalidArgument(f"{shown} is not {kind.what}", where=f"`{where}({name}=...)`")


_LONG = 80


def takes(where: str, **kinds: str | type) -> Callable[[Callable[Taken, Made]], Callable[Taken, Made]]:
    """Check the arguments of a function by their kinds before each call; None is taken where it is the default."""

    def decorate(function: Callable[Taken, Made]) -> Callable[Taken, Made]:
        parameters = inspect.signature(function).parameters
        optional = {name for name in kinds if parameters[name].default is None}

        @functools.wraps(function)
        def call(*args: Taken.args, **kwargs: Taken.kwargs) -> Made:
            given = {**dict(zip(parameters, args, strict=False)), **kwargs}
            left_out = {name for name in optional if given.get(name) is None}
            check_kinds(where, {name: v for name, v in given.items() if name not in left_out}, **kinds)
            return function(*args, **kwargs)

        return call

    return decorate

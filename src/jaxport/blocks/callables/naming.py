"""Names of the inputs and outputs of a traced callable, as its user knows them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType
from typing import Any

import jax

from jaxport.blocks.callables.places import Types, joined
from jaxport.jaxprs import Parameters


def argument_values(
    signature: inspect.Signature | None, args: Sequence[object], kwargs: Parameters
) -> list[tuple[str, Any]]:
    """Return the arguments with their names, in the order in which ``(args, kwargs)`` is flattened.

    >>> argument_values(inspect.signature(lambda x, *more, scale: x), (1, 2, 3), {"scale": 4})
    [('x', 1), ('more_0', 2), ('more_1', 3), ('scale', 4)]
    """
    return [*zip(_argument_names(signature, args), args, strict=True), *sorted(kwargs.items())]


def leaf_paths(named: Sequence[tuple[str, object]], is_variable: Callable[[object], bool]) -> list[str]:
    """Return a path per leaf of the named trees, each another; a variable, a box around an array, has the path of the
    box.

    >>> leaf_paths([("batch", {"ids": 1, "mask": (2, 3)})], lambda value: False)
    ['batch.ids', 'batch.mask.0', 'batch.mask.1']
    """
    paths = []
    for name, tree in named:
        for keys, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_variable)[0]:
            # The key of the value within its box is internal to the box.
            below = [k[1:] for k, _ in jax.tree_util.tree_flatten_with_path(node)[0]] if is_variable(node) else [()]
            paths += [joined(name, dotted((*keys, *more))) for more in below]
    if len(set(paths)) == len(paths):
        return paths
    unique: dict[str, None] = {}  # `{"a": {"b": …}, "a.b": …}` has one path twice
    for path in paths:
        unique[unused(path, unique)] = None
    return list(unique)


def dotted(keys: Sequence[object]) -> str:
    """Return a key path as text.

    >>> dotted((jax.tree_util.DictKey("layers"), jax.tree_util.SequenceKey(0)))
    'layers.0'
    """
    return jax.tree_util.keystr(tuple(keys), simple=True, separator=".")


def output_paths(result: object, is_variable: Callable[[object], bool]) -> list[str]:
    """Return a path per leaf of a result: ``output`` for a bare one, ``output_0``, ``output_1`` for those of a tuple.

    >>> output_paths((1, {"loss": 2}), lambda value: False), output_paths(1, lambda value: False)
    (['output_0', 'output_1.loss'], ['output'])
    """
    paths = leaf_paths([("", result)], is_variable)
    if isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        return [f"output_{path}" for path in paths]
    return [path or "output" for path in paths]


def _argument_names(signature: inspect.Signature | None, args: Sequence[object]) -> list[str]:
    try:
        bound = signature.bind_partial(*args) if signature is not None else None
    except TypeError:  # the call itself will report it
        bound = None
    if signature is None or bound is None:
        return [f"x_{index}" if len(args) > 1 else "x" for index in range(len(args))]
    names: list[str] = []
    for name, value in bound.arguments.items():
        spread = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}_{index}" for index in range(len(value))] if spread else [name]
    return names


def signature_of(fn: Any, types: Types, keywords: Parameters = MappingProxyType({})) -> inspect.Signature | None:
    """Return the signature of a callable under the names that its user knows, or None if it has none.

    `keywords` are always passed to it.
    """
    if all(hasattr(fn, name) for name in ("func", "args", "keywords")):  # a partial, or another library's
        inner = signature_of(fn.func, types, {**fn.keywords, **keywords})
        if inner is None:
            return None
        bound = _argument_names(inner, fn.args)
        return inner.replace(parameters=[p for name, p in inner.parameters.items() if name not in bound])
    for framework in types.frameworks:
        signature = framework.signature(fn, keywords)
        if signature is not None:
            return signature
    if isinstance(getattr(fn, "__wrapped__", None), functools.partial):  # `jax.jit` of a partial
        return signature_of(fn.__wrapped__, types, keywords)
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # it has none
        return None


def unused(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number if it is taken.

    >>> unused("w", {"w", "w_1"})
    'w_2'
    """
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}" if name else f"model_{number}"
    return candidate

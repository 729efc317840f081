"""Arguments as they were traced: those given by name that were traced by position, and the other way round."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxport.jaxprs import TreeDef
from jaxport.jaxprs.alike import same_value

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def as_traced(
    signature: inspect.Signature, in_tree: TreeDef, args: Sequence[object], kwargs: Mapping[str, object]
) -> Arguments:
    """Return the arguments of a call in the positions and by the names with which they were traced.

    They are returned as they are if the signature does not take them, or if one is given that the trace left to its
    default and that differs from it.

    >>> signature = inspect.signature(lambda x, y, z=None: x)
    >>> as_traced(signature, jax.tree.structure(((0, 0), {})), (1,), {"y": 2})
    ((1, 2), {})
    """
    traced: Arguments = jax.tree.unflatten(in_tree, range(in_tree.num_leaves))
    try:
        wanted = signature.bind_partial(*traced[0], **traced[1]).arguments
        by_position = signature.bind_partial(*traced[0]).arguments
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError:  # the caller refuses what has another structure
        return tuple(args), dict(kwargs)
    bound.apply_defaults()
    parameters = signature.parameters
    new_args: list[Any] = []
    new_kwargs: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = parameters[name].kind
        if name not in wanted:
            if not _is_default(value, parameters[name]):
                return tuple(args), dict(kwargs)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            new_kwargs |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            new_args += value
        elif name in by_position:
            new_args.append(value)
        else:
            new_kwargs[name] = value
    return tuple(new_args), new_kwargs


def _is_default(value: object, parameter: inspect.Parameter) -> bool:
    if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
        return not value
    default = parameter.default
    return value is default or (isinstance(value, bool | int | float | str) and same_value(value, default))

"""The decorator that gives a function, a method or a class a boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from jaxport.blocks.block import FrozenMapping
from jaxport.blocks.callables.framework import public_name
from jaxport.blocks.marking.recorder import Boundary
from jaxport.blocks.marking.targets import declare, with_markers
from jaxport.blocks.marking.window import current_recorder
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Parameters

Decorated = TypeVar("Decorated")


def boundary(
    thing: Decorated,
    *,
    target: str | None = None,
    options: Parameters | None = None,
    prepare: Callable[[dict], dict] = dict,
) -> Decorated:
    """Make each call of `thing` a block, wherever it is called from while a trace is running.

    Outside a trace nothing changes: results, signature, `isinstance` and pickling are those of `thing`.

    Args:
      thing: a function, a method, or a class: then the calls of its instances, by their public methods.
      target: the qualified name of the blocks; by default that of `thing`.
      options: any values, which `Block.options` returns.
      prepare: changes or checks the keyword arguments of each call that is traced.

    Returns:
      The class itself, or a wrapper of a function.

    Raises:
      InvalidArgument: `thing` cannot be called.

    >>> import jax, jax.numpy as jnp
    >>> @boundary
    ... def double(x):
    ...     return x * 2
    >>> double(3)
    6
    >>> from jaxport.blocks.tracing import trace
    >>> jaxpr = trace(lambda x: double(x) + 1, (jnp.ones(3),)).jaxpr
    >>> [equation.primitive.name for equation in jaxpr.eqns]
    ['block', 'add']
    """
    if isinstance(thing, type):
        declare(thing, Boundary(target, FrozenMapping(options or {}), prepare))
        return cast("Decorated", thing)
    if isinstance(thing, staticmethod | classmethod):
        inner = boundary(thing.__func__, target=target, options=options, prepare=prepare)
        return cast("Decorated", type(thing)(inner))
    if not callable(thing):
        raise InvalidArgument(
            f"`{thing!r}` cannot be given a boundary",
            where="the argument of `boundary`",
            why=f"a `{type(thing).__name__}` cannot be called",
            instead="decorate a function, a method or a class",
        )
    named = Boundary(target or public_name(thing, ()), FrozenMapping(options or {}), prepare)
    return cast("Decorated", with_markers(thing, named, current_recorder))

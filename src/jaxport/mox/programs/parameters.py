"""The parameters that a user gives for those of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxport.blocks.tracing import TracedWeight
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array
from jaxport.jaxprs.alike import takes_values
from jaxport.mox.programs.names import near

_NESTED = "it is a dict: parameters are named by full paths here, `layers.0.kernel`, in one dict"


def is_parameter(weight: TracedWeight) -> bool:
    """Whether training changes an array of a program."""
    return weight.trainable and bool(jnp.issubdtype(weight.value.dtype, jnp.inexact))


def as_float(value: Array, dtype: DTypeLike) -> Array:
    """Return a parameter in the type that the program computes in, if it is stored in another floating-point type."""
    if value.dtype == dtype or not (jnp.issubdtype(value.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.floating)):
        return value
    return jnp.asarray(value).astype(dtype)


def check_names(params: Mapping[str, Array], weights: Sequence[TracedWeight], where: str) -> None:
    """Refuse what is no mapping from the paths of a program's arrays.

    Raises:
      InvalidArgument: it is none, or a path is unknown.
    """
    if not isinstance(params, Mapping):
        raise InvalidArgument(
            f"the parameters are a `{type(params).__name__}`",
            where=where,
            why="they are given by path",
            instead="give a dict such as `mox.params`",
        )
    held = {weight.path for weight in weights}
    for path, value in params.items():
        if path not in held:
            raise InvalidArgument(
                f"`{path}` is not a parameter of the Mox",
                where=where,
                why=_NESTED if isinstance(value, Mapping) else near(str(path), held),
                instead="`mox.params` and `mox.state` list the existing ones",
            )


def with_values(weights: Sequence[TracedWeight], params: Mapping[str, Array], where: str) -> tuple[TracedWeight, ...]:
    """Return the arrays of a program with other values for some of them.

    Raises:
      InvalidArgument: a path is unknown, or a value has another shape, or a dtype of another kind.
    """
    check_names(params, weights, where)
    held = {weight.path: weight for weight in weights}
    for path, value in params.items():
        wanted = jax.typeof(held[path].value)
        try:
            new = jax.typeof(value)
        except TypeError as error:
            raise InvalidArgument(
                f"`{path}` is given a `{type(value).__name__}`",
                where=where,
                why=f"the program has {wanted.str_short()}",
            ) from error
        if not takes_values(wanted, new):
            raise InvalidArgument(
                f"`{path}` is given {new.str_short()}", where=where, why=f"the program has {wanted.str_short()}"
            )
    given = {path: replace(held[path], value=value, is_given=True) for path, value in params.items()}
    return tuple(given.get(weight.path, weight) for weight in weights)

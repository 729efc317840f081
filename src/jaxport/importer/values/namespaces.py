"""The namespaces that operator functions are written against.

`jnp`, `lax` and `nn` are JAX's own, `vmap` and `cast` replace `jax.vmap` and `astype`. A call through them executes on
arrays, infers types under a trace, folds host values, and is recorded while a recording is active.

>>> from jaxport.importer.values.host import host
>>> jnp.concatenate([host([2]), host([3, 4])], axis=0)
host([2, 3, 4], int64)
>>> jnp.tanh(jnp.zeros((2,)))
Array([0., 0.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import jax
import jax.core
import numpy as np

from jaxport.errors import Refusal, ValueNotKnown
from jaxport.importer.values.dtypes import STRING, canonical
from jaxport.importer.values.host import HostValue, host
from jaxport.importer.values.recording import Recordable, Recorded, active, lower, paused


class Namespace:
    """A module of JAX whose functions are recordable; types, constants and submodules are its own.

    Args:
      name: the name of the module in printed source.
      module: the module.
    """

    def __init__(self, name: str, module: ModuleType):
        self._name, self._module = name, module

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._module, attribute)
        qualified = f"{self._name}.{attribute}"
        if isinstance(value, ModuleType):
            value = Namespace(qualified, value)
        elif callable(value) and not isinstance(value, type):
            value = Recordable(qualified, value)
        setattr(self, attribute, value)
        return value

    def __repr__(self) -> str:
        return self._name


# Typed as `Any`: they also take host values and recorded values, unlike JAX's own.
jnp: Any = Namespace("jnp", jax.numpy)
lax: Any = Namespace("lax", jax.lax)
nn: Any = Namespace("nn", jax.nn)
random: Any = Namespace("random", jax.random)


def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """`jax.vmap`, recordable.

    >>> vmap(lambda row: jnp.sum(row))(jnp.ones((2, 3)))
    Array([3., 3.], dtype=float32)
    """
    options = {key: axes for key, axes in (("in_axes", in_axes), ("out_axes", out_axes)) if axes != 0}
    return _transformed("jax.vmap", jax.vmap, function, options)


def grad(function: Callable[..., Any], argnums: tuple[int, ...]) -> Callable[..., Any]:
    """`jax.grad` with respect to several arguments, recordable.

    >>> grad(lambda x, y: jnp.sum(x * y), (0, 1))(jnp.ones(2), jnp.zeros(2))
    (Array([0., 0.], dtype=float32), Array([1., 1.], dtype=float32))
    """
    return _transformed("jax.grad", jax.grad, function, {"argnums": argnums})


def _transformed(
    name: str, transform: Callable[..., Any], function: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., object]:
    """Return a transformation of JAX applied to a function that may have to be recorded."""

    def mapped(*args: Any) -> object:
        recording = active()
        if recording is None:
            return transform(lower(function), **options)(*lower(args))

        def call(traced: Callable[..., Any], *live: Any, **options: Any) -> Any:
            return transform(traced, **options)(*live)

        return recording.run("vmap", name, call, (function, *args), options)

    return mapped


def cast(x: Any, dtype: Any) -> Any:
    """Return `x` with another element type: a host value stays one, an array gets the type that JAX uses for it.

    >>> cast(host([1, 2]), np.dtype("float32"))
    host([1.0, 2.0], float32)
    """
    dtype = np.dtype(dtype)
    if dtype == STRING:
        return host(for_strings(x), dtype)
    if isinstance(x, HostValue) and x.symbolic and dtype.kind not in "iu":
        return jnp.asarray(x, dtype)  # a size that is only a name has no fractions: it becomes an array
    if isinstance(x, HostValue):
        return host(x, dtype)
    if x.dtype == canonical(dtype):
        return x
    recording = active()
    if recording is None:
        return x.astype(canonical(dtype))
    return recording.run("method", "astype", lambda array, to: array.astype(to), (x, dtype))


def known(x: Any) -> HostValue | None:
    """Return `x` as a host value if its elements are known now, else None.

    >>> known(jnp.ones(2)), known(None)
    (host([1.0, 1.0], float32), None)
    """
    if isinstance(x, HostValue):
        return x
    if isinstance(x, Recorded):
        return known(x.value)
    if isinstance(x, np.ndarray) or (isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)):
        return HostValue(np.asarray(x))
    return None


def for_strings(x: Any) -> HostValue:
    """Return `x`, on which strings depend, as a host value.

    Raises:
      ValueNotKnown: JAX traces it, and has no strings.
    """
    host_value = known(x)
    if host_value is None:
        why = "strings exist only outside `jax.jit`: call the program there, or have the model return numbers"
        raise ValueNotKnown("strings depend on values", [Refusal("", "", why)])
    return host_value


def at_once(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function on host values now, even while JAX traces, without recording it.

    >>> at_once(jnp.nonzero, host([0, 3, 4]))
    (Array([1, 2], dtype=int32),)
    """
    with paused(), jax.ensure_compile_time_eval():
        return lower(function)(*lower(args))


HELPERS: dict[str, Recordable] = {}
"""The helper functions by name."""


def helper(function: Callable[..., Any]) -> Recordable:
    """Register a helper function, which is copied into printed source.

    It takes and returns arrays (host values arrive as arrays) and plain Python values, and may use `jax`, `jnp`, `lax`,
    `nn`, `np` and other helpers. The call of the helper is recorded, not the calls inside it.

    >>> @helper
    ... def half(x):
    ...     return x / 2
    >>> half(jnp.ones(1))
    Array([0.5], dtype=float32)
    """

    @wraps(function)
    def unrecorded(*args: Any, **kwargs: Any) -> object:
        with paused():
            return function(*args, **kwargs)

    HELPERS[function.__name__] = recordable = Recordable(f"helper.{function.__name__}", unrecorded)
    return recordable

"""`make_mox`: from a callable to a Mox."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from jaxport import collecting, jaxprs
from jaxport.blocks.callables.naming import signature_of
from jaxport.blocks.callables.places import Types
from jaxport.blocks.tracing import trace
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import PythonFunction
from jaxport.mox.expressions import Mox


def make_mox(fn: PythonFunction, *, functions: Iterable[str] = ()) -> Callable[..., Mox]:
    """Return a function that traces `fn` with the arguments that it is called with, and returns a Mox.

    Args:
      fn: an NNX or Equinox module, the `apply` of a Linen module, a method, a function, an imported program, a Mox:
        any callable. It is not changed.
      functions: qualified names of functions whose calls become blocks of the tree, in addition to calls of modules.

    Returns:
      A function of `fn`'s arguments: arrays, or `jax.ShapeDtypeStruct` in their place; anything else is baked in.

    Raises:
      InvalidArgument: `fn` cannot be called or is a module class, or a name in `functions` does not exist.
      StateChanged: the call changes attributes of modules that are not arrays.

    >>> import jax, jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jax.nn.relu(x) + 1)(jax.ShapeDtypeStruct((3,), jnp.float32))
    >>> mox.select('//pjit[@name="relu"]').count()
    1
    >>> gelu = mox.sub('//pjit[@name="relu"]', jax.nn.gelu)
    >>> bool((gelu(jnp.ones(3)) == jax.nn.gelu(jnp.ones(3)) + 1).all())
    True
    """

    @jaxprs.failures_name_untested_jax()
    @collecting.paused()
    def make(*args: object, **kwargs: object) -> Mox:
        from jaxport.frameworks import loaded

        if isinstance(fn, type) and any(issubclass(fn, framework.bases) for framework in loaded()):
            raise InvalidArgument(
                f"`{fn.__name__}` is a class",
                where="`make_mox`",
                why="a model is an instance of it",
                instead=f"`make_mox({fn.__name__}(...))`",
            )
        traced = trace(fn, args, kwargs, state="outputs", functions=functions, counters=True, operators="all")
        return Mox(traced, name=_name_of(fn), signature=signature_of(fn, Types(loaded())))

    return make


def _name_of(fn: PythonFunction) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, Mox):
        return fn.name
    owner = getattr(fn, "__self__", None)
    named = type(owner) if owner is not None and not isinstance(owner, type) else fn
    name = getattr(named, "__qualname__", None) or type(fn).__qualname__
    return str(name).rsplit(".", 1)[-1]


def eval_mox(mox: Mox, *args: object, **kwargs: object) -> Any:
    """Return what the model returns for these arguments: ``mox(*args, **kwargs)``.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.square)(jnp.ones(2))
    >>> jaxport.mox.eval_mox(mox, jnp.array([2.0, 3.0]))
    Array([4., 9.], dtype=float32)
    """
    return mox(*args, **kwargs)

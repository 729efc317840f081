"""Modules and layers with fixed seeds, and with parameters that reveal mistakes."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxport.jaxprs import PythonFunction

Tree = TypeVar("Tree")


def seeded(
    make: PythonFunction,
    *args: object,
    dtype: DTypeLike = np.float32,
    seed: int = 0,
    inputs: Sequence[object] | None = None,
    **kwargs: object,
) -> Any:
    """Build a module of any framework from a fixed seed, with parameters of a given dtype.

    `make` is passed those of `rngs`, `key`, `dtype` and `param_dtype` that its signature has. Parameters that start at
    zero or one (biases, scales, statistics) are given other values, so that a test notices if one is omitted.

    Args:
      make: a class or a function that builds a module.
      args, kwargs: its arguments.
      dtype: the dtype of the parameters and the computation.
      seed: the seed of the parameters.
      inputs: for a module that creates its parameters in `init` (Flax Linen), arrays to call it on; the result is
        then its `apply` with the parameters bound.

    Returns:
      The module; with `inputs`, a function.

    >>> import numpy as np
    >>> from jaxport.testing import seeded
    >>> import equinox
    >>> layer = seeded(equinox.nn.Linear, 4, 3, dtype=np.float16)
    >>> layer(np.ones(4, np.float16)).dtype
    dtype('float16')
    """
    # A framework may hide the signature of a class behind a metaclass; that of its `__init__` is the user's.
    parameters = inspect.signature(make.__init__ if isinstance(make, type) else make).parameters
    offered: dict[str, Callable[[], Any]] = {
        "rngs": lambda: sys.modules["flax.nnx"].Rngs(seed),  # a user of such a class has imported it
        "key": lambda: jax.random.key(seed),
        "dtype": lambda: dtype,
        "param_dtype": lambda: dtype,
    }
    extra = {name: value() for name, value in offered.items() if name in parameters and name not in kwargs}
    module = make(*args, **extra, **kwargs)
    if inputs is None:
        return perturbed(module, seed)
    return functools.partial(module.apply, perturbed(module.init(jax.random.key(seed), *inputs), seed))


def perturbed(tree: Tree, seed: int = 0) -> Tree:
    """Move each float array of a pytree by a tenth of a normal deviate, away from zero and one.

    Variances and scales stay positive: no positive number becomes negative.
    """
    generator = np.random.default_rng(seed)

    def moved(leaf: Any) -> object:
        if not (hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, np.inexact)):
            return leaf
        array = np.asarray(leaf)
        noise = np.abs(generator.normal(size=array.shape)) * 0.1 + 0.05
        return jax.numpy.asarray((array + np.where(array < 0, -noise, noise)).astype(array.dtype))

    return jax.tree.map(moved, tree)

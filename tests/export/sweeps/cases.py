"""What a case of a sweep is: a function, the arrays that it is called with, and how it is crossed.

A table maps each public name of a namespace to one case. A case says its arrays with names for their dims and without
a dtype; the crossing (`crossing.py`) puts sizes or symbols in the place of the names, each dtype that JAX accepts, and
`jit`, `vmap` and `grad` around the function.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.testing import sample

#: The sizes of the names of dims. They differ, so that axes that are mixed up show.
SIZES: Mapping[str, int] = {"B": 2, "T": 3, "N": 4, "M": 5, "L": 12, "H": 6, "W": 7, "E": 2}

FLOATS = ("float32", "float16", "bfloat16", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int32", "uint32", "int8", "int16", "uint8", "uint16", "int64", "uint64")
#: The dtypes that a case is crossed with; the first one that JAX accepts is the one that it always runs in.
DTYPES = ("float32", "int32", "bool", *FLOATS[1:], *INTEGERS[1:], *COMPLEX)

Values = Callable[[np.random.Generator, Sequence[int], np.dtype], Any]


@dataclass(frozen=True, eq=False)
class Array:
    """An array argument.

    Attributes:
      shape: sizes, and names of `SIZES`.
      dtype: None for that of the crossing.
      values: draws it.
    """

    shape: tuple[int | str, ...]
    dtype: Any = None
    values: Values = sample

    def sized(self) -> tuple[int, ...]:
        """Its shape with sizes for the names."""
        return tuple(SIZES[d] if isinstance(d, str) else d for d in self.shape)


def array(*shape: int | str, dtype: Any = None, values: Values = sample) -> Array:
    """An array argument; see `Array`."""
    return Array(shape, dtype, values)


@dataclass(frozen=True, eq=False)
class Case:
    """One call of a function.

    Attributes:
      args, kwargs: its arguments: pytrees of `Array`, and of anything else, which is static.
      call: how it is called: `call(function, *args, **kwargs)`.
      make: what is called, from the public name and the dtype: a layer is built first.
      dtypes: the dtypes to cross with.
      rtol, atol: tolerances of float32, and of what is wider by as much less; None for the defaults.
      narrow: it is computed in a narrower dtype, whatever the dtype: so much is rounded in wider ones too.
      options: of the export.
      without: the cells that are left out, by words of their names, each with why: `{"float16, static, grad": …}`.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    make: Callable[[Any, Any], Any] | None = None
    dtypes: Sequence[str] = DTYPES
    rtol: float | None = None
    atol: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    narrow: bool = False

    @property
    def arrays(self) -> list[Array]:
        """The arrays among the arguments."""
        leaves = jax.tree.leaves((self.args, dict(self.kwargs)), is_leaf=_is_array)
        return [leaf for leaf in leaves if _is_array(leaf)]

    def leaves_out(self, cell: Any) -> bool:
        """Whether a cell is left out."""
        words = set(str(cell).split(", "))
        return any(words >= set(part.split(", ")) for part in self.without)

    def function(self, subject: Any, dtype: Any) -> Callable[..., Any]:
        """The function of the arrays alone."""
        subject = self.make(subject, dtype) if self.make else subject
        leaves, tree = jax.tree.flatten((self.args, dict(self.kwargs)), is_leaf=_is_array)

        def call(*arrays: Any) -> Any:
            given = iter(arrays)
            args, kwargs = jax.tree.unflatten(tree, [next(given) if _is_array(x) else x for x in leaves])
            result = self.call(subject, *args, **kwargs) if self.call else subject(*args, **kwargs)
            return jax.tree.map(jnp.asarray, result)

        call.__name__ = getattr(subject, "__name__", None) or type(subject).__name__
        return call

    def draw(self, name: str, dtype: Any, lead: int | None = None) -> list[Any]:
        """The arrays, seeded by the name; with `lead`, so many of each, stacked."""
        generator = np.random.default_rng(zlib.crc32(name.encode()))
        drawn = []
        for argument in self.arrays:
            one = lambda a=argument: a.values(generator, a.sized(), a.dtype or np.dtype(dtype))
            drawn.append(one() if lead is None else _stacked([one() for _ in range(lead)]))
        return drawn


def case(
    *args: Any,
    call: Callable[..., Any] | None = None,
    make: Callable[[Any, Any], Any] | None = None,
    dtypes: Sequence[str] = DTYPES,
    rtol: float | None = None,
    atol: float | None = None,
    options: Mapping[str, Any] | None = None,
    without: Mapping[str, str] | None = None,
    narrow: bool = False,
    **kwargs: Any,
) -> Case:
    """A case; see `Case`."""
    return Case(args, kwargs, call, make, dtypes, rtol, atol, options or {}, without or {}, narrow)


def each(names: str, *args: Any, **kwargs: Any) -> dict[str, Case]:
    """The same case for several names."""
    return dict.fromkeys(names.split(), case(*args, **kwargs))


def names_of(module: Any) -> list[str]:
    """The public callables of a namespace."""
    return [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Array)


def _stacked(values: Sequence[Any]) -> Any:
    return np.stack(values) if isinstance(values[0], (np.ndarray, np.generic)) else jnp.stack(values)


# Values -----------------------------------------------------------------------------------------------------------


def unit(generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> Any:
    """Numbers of a size around one, whose sums of products stay small."""
    return (
        sample(generator, shape, dtype) if dtype.kind in "biu" else (sample(generator, shape, dtype) / 4).astype(dtype)
    )


def positive(generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> Any:
    """Above a quarter; of integers, above zero."""
    values = np.abs(sample(generator, shape, dtype))
    return values if values.dtype == bool else (values + np.asarray(1 if dtype.kind in "iu" else 0.25)).astype(dtype)


def between(low: float, high: float) -> Values:
    """Uniform between two bounds."""
    return lambda generator, shape, dtype: (low + (high - low) * generator.random(shape)).astype(dtype)


def below(bound: int) -> Values:
    """Integers from zero to below a bound."""
    return lambda generator, shape, dtype: generator.integers(0, bound, shape).astype(dtype)


def ordered(generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> Any:
    """Ascending along the last axis."""
    return np.sort(sample(generator, shape, dtype))


def definite(generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> Any:
    """Well-conditioned Hermitian positive definite matrices."""
    root = sample(generator, shape, dtype).astype(
        np.result_type(np.float32, dtype) if dtype.kind != "V" else np.float32
    )
    matrix = root @ np.conj(np.swapaxes(root, -1, -2)) / shape[-1] + np.eye(shape[-1])
    return matrix.astype(dtype)


def distinct(generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> Any:
    """A permutation of small numbers: no ties."""
    return generator.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


def key(generator: np.random.Generator, shape: Sequence[int], dtype: Any) -> Any:
    """PRNG keys."""
    words = generator.integers(0, 2**32, (*shape, 2), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def indices(*shape: int | str, bound: int) -> Array:
    """An int32 array of positions below a bound."""
    return Array(shape, np.dtype(np.int32), below(bound))


KEY = Array((), jax.random.key(0).dtype, key)

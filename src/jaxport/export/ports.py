"""The border of a model: how an argument or a result of the JAX function is stored in the model.

Most arrays are stored unchanged. Six kinds are not: an input declared with 64 bits, which JAX narrows, keeps them in
the model; floats of 16 bits may be float32 in the model (`to_onnx(io="float32")`); an image may be NHWC in JAX and NCHW
in the model; a complex array is stored as a float array with a trailing axis of two, the real and the imaginary part;
an array of PRNG keys as the uint32 array of their data (`jax.random.key_data`); and the derivative of an integer
(`float0`), which has no values, as booleans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import ArrayLike

from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Shape
from jaxport.jaxprs.meshes import on_host

NHWC_TO_NCHW, NCHW_TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass
class Port:
    """One input or output of the model.

    Attributes:
      name: its name in the model.
      shape: its shape in JAX, whose dims may be symbolic.
      dtype: its dtype in JAX: NumPy's, or that of PRNG keys.
      nchw: whether it is NHWC in JAX and NCHW in the model.
      weight: whether it is a parameter that has a default.
      declared: the dtype that it has in the model, if JAX computes in a narrower one; else None.
    """

    name: str
    shape: Shape
    dtype: Any
    nchw: bool = False
    weight: bool = False
    declared: np.dtype | None = None

    @property
    def model_dtype(self) -> np.dtype:
        """Its dtype in the model.

        >>> Port("x", (2,), np.dtype(np.complex64)).model_dtype
        dtype('float32')
        """
        if is_key(self.dtype):
            return np.dtype(np.uint32)
        if self.dtype == jax.dtypes.float0:
            return np.dtype(np.bool_)
        dtype: Any = self.dtype if self.declared is None else self.declared
        return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype

    @property
    def model_shape(self) -> Shape:
        """Its shape in the model.

        >>> Port("x", (1, 6, 6, 3), np.dtype(np.complex64), nchw=True).model_shape
        (1, 3, 6, 6, 2)
        """
        if is_key(self.dtype):
            keys = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=key_implementation(self.dtype))))
            return (*self.shape, *keys.shape)
        pairs = (2,) if self.dtype.kind == "c" else ()
        shape = tuple(self.shape[axis] for axis in NHWC_TO_NCHW) if self.nchw else self.shape
        return (*shape, *pairs)

    def to_model(self, value: ArrayLike, x64: bool) -> np.ndarray:
        """Return an argument of the JAX function as the model takes it.

        Args:
          value: an array, or a Python number, which takes the port's dtype if that can hold it.
          x64: whether 64-bit arrays stay so; otherwise they become 32-bit arrays, as under `jax.jit`.

        Raises:
          InvalidArgument: it has another dtype.
        """
        if is_key(self.dtype):
            if getattr(value, "dtype", None) != self.dtype:
                raise self._wrong_dtype(self.dtype, getattr(value, "dtype", type(value).__name__))
            return stored(value)
        array = self._as_dtype(value, self.dtype, x64) if self.declared is None else self._widened(value)
        return stored(array.transpose(NHWC_TO_NCHW) if self.nchw else array)

    def checked(self, value: ArrayLike, x64: bool) -> np.ndarray:
        """Return an input of the model as a NumPy array, in the model's layout.

        Raises:
          InvalidArgument: it has another dtype.
        """
        return self._as_dtype(value, self.model_dtype, x64)

    def to_jax(self, array: Any) -> Array:
        """Return a result of the model as the JAX function does: a NumPy array, or an array of PRNG keys."""
        if is_key(self.dtype):
            return jax.random.wrap_key_data(array, impl=key_implementation(self.dtype))
        if self.dtype == jax.dtypes.float0:
            return np.zeros(array.shape, self.dtype)
        if self.dtype.kind == "c":
            array = np.ascontiguousarray(array).view(self.dtype if self.declared is None else self.declared)[..., 0]
        if self.declared is not None:
            array = array.astype(self.dtype)
        return array.transpose(NCHW_TO_NHWC) if self.nchw else array

    def _widened(self, value: ArrayLike) -> np.ndarray:
        """Return an argument in the declared dtype, which holds all values that JAX narrows to the function's dtype."""
        array = np.asarray(value)
        if array.dtype == self.declared:
            return array
        return self._as_dtype(value, self.dtype, x64=False).astype(self.declared)

    def _as_dtype(self, value: Any, dtype: np.dtype, x64: bool) -> np.ndarray:
        array = np.asarray(value)
        if array.dtype == dtype:
            return array
        if type(value) in (bool, int, float, complex):  # `np.float64` is a `float`, but has a dtype of its own
            fits = _weaker(array.dtype, dtype) and _holds(dtype, value)
        else:
            fits = not x64 and jax.dtypes.canonicalize_dtype(array.dtype) == dtype
        if not fits:
            raise self._wrong_dtype(dtype if self.declared is None else self.declared, array.dtype)
        return array.astype(dtype)

    def _wrong_dtype(self, wanted: DTypeLike, actual: DTypeLike) -> InvalidArgument:
        return InvalidArgument(
            f"the input `{self.name}` has dtype {actual}",
            why=f"it was exported as {wanted}",
            instead=f"pass {'PRNG keys' if is_key(wanted) else 'an array'} of that dtype",
        )


def port_of(name: str, aval: Any, nchw: bool, declared: Any) -> Port:
    """Return the port of an argument or a result, from its abstract value and the dtype that the user declared."""
    return Port(
        name, tuple(aval.shape), aval.dtype, nchw, declared=None if declared == aval.dtype else np.dtype(declared)
    )


def in_single(dtype: Any) -> Any:
    """Return the dtype of an input or output whose floats have 32 bits: float32 for 16 bits, else the same.

    >>> in_single(np.dtype("bfloat16")), in_single(np.dtype("int8"))
    (dtype('float32'), dtype('int8'))
    """
    is_half = not is_key(dtype) and jax.dtypes.issubdtype(dtype, np.floating) and np.dtype(dtype).itemsize == 2
    return np.dtype(np.float32) if is_half else dtype


def _weaker(dtype: np.dtype, other: np.dtype) -> bool:
    """Whether a Python number of one dtype may be converted to the other: bool < integer < float < complex."""
    order = ("b", "iu", "fV", "c")  # V: bfloat16 and its kin
    ranks = [next(rank for rank, kinds in enumerate(order) if d.kind in kinds) for d in (dtype, other)]
    return ranks[0] <= ranks[1]


def _holds(dtype: np.dtype, number: complex) -> bool:
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return limits.min <= int(number.real) <= limits.max


def is_key(dtype: Any) -> bool:
    """Whether a dtype is that of PRNG keys.

    >>> is_key(jax.random.key(0).dtype), is_key(np.dtype(np.uint32))
    (True, False)
    """
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def stored(value: Any) -> np.ndarray:
    """Return an array as a model stores it: complex numbers as pairs, PRNG keys as their data.

    >>> stored(np.complex64([1 + 2j]))
    array([[1., 2.]], dtype=float32)
    """
    if is_key(getattr(value, "dtype", np.float32)):
        return np.asarray(jax.random.key_data(value))
    array: Any = on_host(value)
    if array.dtype.kind != "c":
        return array
    return np.stack([array.real, array.imag], axis=-1)


def key_implementation(dtype: Any) -> Any:
    """Return the implementation of a key dtype: its functions, and the shape of a key."""
    # JAX has a public way from an array of keys to their implementation, but none from their dtype.
    return dtype._impl


def unique_names(names: Sequence[str] | None, paths: Sequence[str], argument: str) -> list[str]:
    """Return the names of inputs or outputs: those that the user gives, or their paths.

    Raises:
      InvalidArgument: there is not one name for each, one is empty, or one is used twice.
    """
    if names is None:
        return list(paths)
    if len(names) != len(paths):
        raise InvalidArgument(
            f"{len(names)} names were given for {len(paths)} leaves",
            where=f"`to_onnx({argument}=...)`",
            why=f"the leaves are {', '.join(paths)}",
            instead="give one name per leaf, in this order",
        )
    twice = sorted({n for n in names if list(names).count(n) > 1})
    if twice:
        raise InvalidArgument(
            f"the name `{twice[0]}` is used twice", where=f"`to_onnx({argument}=...)`", instead="give each leaf its own"
        )
    if "" in names:
        raise InvalidArgument(
            "a name is empty",
            where=f"`to_onnx({argument}=...)`",
            why="in ONNX the empty name is that of an input that is left out",
            instead="give a name of at least one character",
        )
    return list(names)


def check_nchw(positions: Sequence[int], shapes: Sequence[Shape], argument: str) -> None:
    """Check the positions of inputs or outputs that are images.

    Raises:
      InvalidArgument: there is no such position, or it is of another rank.
    """
    for position in positions:
        if not 0 <= position < len(shapes):
            raise InvalidArgument(
                f"position {position} is out of range",
                where=f"`to_onnx({argument}=...)`",
                instead=f"0 to {len(shapes) - 1}",
            )
        if len(shapes[position]) != 4:
            raise InvalidArgument(
                f"position {position} has shape {tuple(shapes[position])}",
                where=f"`to_onnx({argument}=...)`",
                why="NCHW and NHWC are layouts of rank 4",
                instead="name positions of rank 4 only",
            )

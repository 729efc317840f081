"""Host values: tensors known while a program is traced, with ONNX's element types.

Shapes, axes, pads and loop counts are host values. The elements of a host value are integers, floats, bools or strings,
or *dims*: sizes that `jax.export` knows by name only. Arithmetic between host values follows ONNX: no promotion, and
integers wrap. Undecidable questions about a dim (whether `batch == 1`) are refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxport.errors import ModelError, NeedsWideTypes
from jaxport.importer.values.dtypes import STRING, canonical
from jaxport.jaxprs import Array, Dim, InconclusiveDimensionOperation, PythonFunction, Shape
from jaxport.jaxprs.aliases import SymbolicDim

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_Maps: TypeAlias = "Mapping[str, RuntimeValue] | Mapping[int, RuntimeValue]"
RuntimeValue: TypeAlias = "Tensor | HostValue | np.ndarray | Sequence[RuntimeValue] | _Maps | None"
"""What an edge of a graph carries while the graph runs: a tensor, a sequence or a map of values, or None for what is
absent.
"""

Key = Array
"""A key of `jax.random`, or the numbers that it consists of."""


def is_dim(value: object) -> TypeIs[SymbolicDim]:
    """Whether a value is a size that `jax.export` knows by name only."""
    return isinstance(value, SymbolicDim)


class SizesNeeded(InconclusiveDimensionOperation):
    """An operator has one result for some sizes and another one for others.

    Args:
      constraint: the sizes for which the program may be traced, as `jax.export.symbolic_shape` takes them.
    """

    def __init__(self, constraint: str):
        super().__init__(f"whether {constraint} depends on the sizes")
        self.constraint = constraint


class SizesDiffer(InconclusiveDimensionOperation):
    """Two sizes that have to be equal are not, for most values of their names; the texts of both."""

    def __init__(self, left: object, right: object):
        super().__init__(f"{left} is not {right} for all sizes")
        self.left, self.right = str(left), str(right)


class Undecided(InconclusiveDimensionOperation):
    """A comparison of sizes that holds for some of them only; the texts of its sides and its symbol."""

    def __init__(self, left: object, symbol: str, right: object):
        super().__init__(f"whether {left} {symbol} {right} depends on the sizes")
        self.left, self.symbol, self.right = str(left), symbol, str(right)


class Tensor(Protocol):
    """What operators compute on: an array of JAX or NumPy, a tracer, a `Recorded` value or a `HostValue`.

    It is the part of an array's interface that operators may use directly; everything else goes through
    `jaxport.importer.values.namespaces`. The operators of `HostValue` are set in a loop, which type checkers do not
    see: `Tensor | HostValue` names it beside the others. Operands are `Any`: arrays of JAX take no more than arrays and
    numbers, host values take sizes, too.
    """

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> Dim: ...
    @property
    def T(self) -> Tensor: ...  # noqa: N802  as arrays have it
    @property
    def mT(self) -> Tensor: ...  # noqa: N802
    @property
    def at(self) -> Any: ...
    def __getitem__(self, index: Any, /) -> Tensor: ...
    def __add__(self, other: Any, /) -> Tensor: ...
    def __radd__(self, other: Any, /) -> Tensor: ...
    def __sub__(self, other: Any, /) -> Tensor: ...
    def __rsub__(self, other: Any, /) -> Tensor: ...
    def __mul__(self, other: Any, /) -> Tensor: ...
    def __rmul__(self, other: Any, /) -> Tensor: ...
    def __truediv__(self, other: Any, /) -> Tensor: ...
    def __rtruediv__(self, other: Any, /) -> Tensor: ...
    def __floordiv__(self, other: Any, /) -> Tensor: ...
    def __mod__(self, other: Any, /) -> Tensor: ...
    def __pow__(self, other: Any, /) -> Tensor: ...
    def __rpow__(self, other: Any, /) -> Tensor: ...
    def __matmul__(self, other: Any, /) -> Tensor: ...
    def __and__(self, other: Any, /) -> Tensor: ...
    def __or__(self, other: Any, /) -> Tensor: ...
    def __xor__(self, other: Any, /) -> Tensor: ...
    def __lshift__(self, other: Any, /) -> Tensor: ...
    def __rshift__(self, other: Any, /) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __lt__(self, other: Any, /) -> Tensor: ...
    def __le__(self, other: Any, /) -> Tensor: ...
    def __gt__(self, other: Any, /) -> Tensor: ...
    def __ge__(self, other: Any, /) -> Tensor: ...


class HostValue:
    """A tensor whose elements are known at trace time.

    Args:
      data: the elements; an object array if some are dims or strings.
      dtype: the ONNX element type, as a NumPy dtype.
      name: its name in the model, if it is a tensor of the model.

    >>> shape = HostValue(np.array([2, 3, 4]))
    >>> shape[1:] * 2
    host([6, 8], int64)
    >>> int(shape[0])
    2
    """

    __slots__ = ("data", "dtype", "name")
    __array_priority__ = 1000  # NumPy arrays defer `array + host` to this class

    def __init__(self, data: np.ndarray, dtype: np.dtype | None = None, name: str = ""):
        self.data, self.name = data, name
        self.dtype = np.dtype(data.dtype if dtype is None else dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def T(self) -> HostValue:  # noqa: N802  as arrays have it
        return HostValue(self.data.T, self.dtype)

    @property
    def symbolic(self) -> bool:
        """Whether some element is a dim, so that no NumPy array of `dtype` can hold it."""
        return self.data.dtype == object and self.dtype != STRING

    def reshape(self, *shape: Any) -> HostValue:
        return HostValue(self.data.reshape(*shape), self.dtype)

    def tolist(self) -> Any:
        """Return the elements as Python values: ints, floats, bools, strings and dims, in nested lists.

        `Any`, as NumPy's: the caller knows which of them a model has there.
        """
        return self.data.tolist()

    def item(self) -> Any:
        """Return the only element, as a Python value."""
        return self.data.item()

    def to_jax(self) -> Any:
        """Return the value as an argument for JAX: a NumPy array of the type that JAX uses, or a dim.

        Raises:
          ModelError: 64-bit types are off and an integer does not fit into 32 bits, or the elements are strings.
        """
        if self.dtype == STRING:
            raise ModelError(
                "a tensor of strings cannot become an array",
                where=self._place,
                why="JAX has no strings",
                instead="keep it on the host",
            )
        dtype = canonical(self.dtype)
        if self.symbolic:
            if self.ndim == 0:
                return self.data.item()
            elements = [jnp.asarray(element, dtype=dtype) for element in self.data.ravel()]
            return jnp.stack(elements).reshape(self.shape)
        if dtype != self.dtype and dtype.kind in "iu" and self.size:
            limits, data = np.iinfo(dtype), _stand_ins(self.data, dtype)
            low, high = data.min(), data.max()
            if data is not self.data and low >= limits.min and high <= limits.max:
                return data.astype(dtype)
            if low < limits.min or high > limits.max:
                raise NeedsWideTypes(
                    f"{high if high > limits.max else low} does not fit into {dtype}",
                    where=self._place,
                    why="64-bit types are off, and the model computes with this integer",
                    instead='turn them on: `jax.config.update("jax_enable_x64", True)`',
                )
        with np.errstate(over="ignore"):  # a double that is too large for a float becomes infinite
            return self.data.astype(dtype) if dtype != self.data.dtype else self.data

    @property
    def _place(self) -> str:
        return f"the tensor `{self.name}`" if self.name else ""

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements of a vector as Python values."""
        return iter(self.data.tolist())

    def __getitem__(self, index: Any) -> HostValue:
        data = np.asarray(self.data[_plain(index)], dtype=self.data.dtype)
        is_plain = self.symbolic and not any(map(is_dim, data.ravel()))
        return HostValue(data.astype(self.dtype) if is_plain else data, self.dtype)

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self) -> str:
        return f"host({self.data.tolist()!r}, {'string' if self.dtype == STRING else self.dtype})"

    __hash__ = None  # type: ignore[assignment]  # `==` compares elements

    def __neg__(self) -> HostValue:
        return HostValue(-self.data, self.dtype)

    def __invert__(self) -> HostValue:
        return HostValue(~self.data, self.dtype)

    def __abs__(self) -> HostValue:
        return HostValue(np.abs(self.data), self.dtype)


def _stand_ins(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Replace the limits of `data`'s type, which denote "beyond all others", by those of the narrower one."""
    own, limits = np.iinfo(data.dtype), np.iinfo(dtype)
    for limit, other in ((own.max, limits.max), (own.min, limits.min)):
        if limit and (is_limit := data == limit).any():
            data = np.where(is_limit, data.dtype.type(other), data)
    return data


def has_stand_ins(value: HostValue) -> bool:
    """Whether some of its integers are limits of a type that is narrower in JAX now."""
    if value.symbolic or value.dtype.kind not in "iu" or canonical(value.dtype) == value.dtype:
        return False
    return _stand_ins(value.data, canonical(value.dtype)) is not value.data


def is_array(value: object) -> TypeIs[Tensor | HostValue | np.ndarray]:
    """Whether a value of a graph has a shape and a dtype: it is no sequence, no map, and not absent."""
    return hasattr(value, "dtype")


def as_array(value: RuntimeValue) -> Tensor | HostValue | np.ndarray:
    """Return a value that has to be an array.

    Raises:
      TypeError: it is something else.
    """
    if not is_array(value):
        raise TypeError(f"a tensor is needed, not {'nothing' if value is None else f'a {type(value).__name__}'}")
    return value


def host(value: object, dtype: DTypeLike | None = None) -> HostValue:
    """Return a host value of nested lists of Python numbers and dims, or of a NumPy array.

    Integers are int64 and floats float32 unless `dtype` is given, as in ONNX's attributes.

    >>> host([1, 2]), host(2.5), host(True)
    (host([1, 2], int64), host(2.5, float32), host(True, bool))
    """
    if isinstance(value, HostValue):
        return value if dtype is None else _cast(value, np.dtype(dtype))
    if isinstance(value, np.ndarray | np.generic):
        return HostValue(np.asarray(value, dtype=dtype))
    data = np.array(value, dtype=object)
    if any(map(is_dim, data.ravel())):
        return HostValue(data, np.dtype(dtype or np.int64))
    plain = np.asarray(value)
    if plain.dtype.kind == "U":
        return HostValue(data, STRING)
    default = {"i": np.int64, "f": np.float32, "b": np.bool_}[plain.dtype.kind] if data.size else np.int64
    return HostValue(np.asarray(value, dtype=dtype or default))


def _cast(value: HostValue, dtype: np.dtype) -> HostValue:
    if value.symbolic:
        if dtype.kind not in "iu":
            raise InconclusiveDimensionOperation(f"{value} has no value as {dtype} before sizes are known")
        return HostValue(value.data, dtype)
    if dtype == STRING and value.dtype != STRING:
        texts = [_text(element) for element in value.data.ravel().tolist()]
        return HostValue(np.array(texts, dtype=object).reshape(value.shape), STRING)
    if value.dtype == STRING and dtype.kind in "iub":
        numbers = [_integer(text) for text in value.data.ravel().tolist()]
        return HostValue(np.array(numbers, dtype=object).astype(dtype).reshape(value.shape))
    with np.errstate(all="ignore"):  # a double beyond a float's range is infinite
        return HostValue(value.data.astype(dtype))


_SPECIAL = {"inf": "INF", "-inf": "-INF", "nan": "NaN"}
"""ONNX's spelling of non-finite numbers."""


def _text(element: float) -> str:
    """Return a number as ONNX Runtime writes it: eight fractional digits, 1 and 0 for booleans."""
    if isinstance(element, float):
        text = f"{element:.8g}"
        return _SPECIAL.get(text, text)
    return str(int(element))


def _integer(text: str) -> int:
    """Return the integer that a text begins with, as ONNX Runtime reads it."""
    match = re.match(r"\s*([+-]?\d+)", text)
    if match is None:
        raise ValueError(f"{text!r} does not begin with an integer")
    return int(match[1])


def _plain(index: Any) -> Any:
    """Return an index with its host values as NumPy arrays."""
    if isinstance(index, tuple):
        return tuple(map(_plain, index))
    return index.data if isinstance(index, HostValue) else index


def dims_compare(symbol: str, left: Dim, right: Dim) -> bool:
    """Evaluate `left < right` and the like between integers and dims, if it is decidable.

    Raises:
      Undecided: it depends on the sizes.

    >>> dims_compare("==", jax.export.symbolic_shape("n")[0], -1)
    False
    """
    if symbol in ("==", "!=") and (is_dim(left) or is_dim(right)):
        # JAX's own `==` on dims returns False if it cannot decide.
        if left == right:
            return symbol == "=="
        try:
            return (left > right or left < right) == (symbol == "!=")
        except InconclusiveDimensionOperation:
            if _never_greater(left, right):
                return symbol == "!="
        raise Undecided(left, symbol, right)
    try:
        return bool(_COMPARISONS[symbol](left, right))
    except InconclusiveDimensionOperation as error:
        raise Undecided(left, symbol, right) from error


def _never_greater(left: Dim, right: Dim) -> bool:
    try:
        return bool(left < right)
    except InconclusiveDimensionOperation:
        return False


_COMPARISONS: dict[str, PythonFunction] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: dict[str, PythonFunction] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "matmul": operator.matmul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}


def _arithmetic(function: PythonFunction, swapped: bool) -> Callable[[HostValue, object], object]:
    def method(self: HostValue, other: object) -> object:
        if isinstance(other, jax.Array):
            mine = jnp.asarray(self.to_jax())
            return function(other, mine) if swapped else function(mine, other)
        if not isinstance(other, HostValue | np.ndarray | np.generic | int | float | bool) and not is_dim(other):
            return NotImplemented
        theirs = other.data if isinstance(other, HostValue) else other
        left, right = (theirs, self.data) if swapped else (self.data, theirs)
        with np.errstate(all="ignore"):
            result = np.asarray(function(left, right))
        return HostValue(result, self.dtype if result.dtype == object else None)

    return method


def _comparison(symbol: str) -> Callable[[HostValue, object], object]:
    def method(self: HostValue, other: object) -> object:
        if isinstance(other, jax.Array):
            return _COMPARISONS[symbol](jnp.asarray(self.to_jax()), other)
        if not isinstance(other, HostValue | np.ndarray | np.generic | int | float | bool | str) and not is_dim(other):
            return NotImplemented
        theirs: Any = other.data if isinstance(other, HostValue) else other
        if object not in (self.data.dtype, np.asarray(theirs).dtype):
            return HostValue(np.asarray(_COMPARISONS[symbol](self.data, theirs)))
        compared = np.frompyfunc(lambda left, right: dims_compare(symbol, left, right), 2, 1)(self.data, theirs)
        return HostValue(np.asarray(compared, dtype=bool))

    return method


for _name, _function in _ARITHMETIC.items():
    setattr(HostValue, f"__{_name}__", _arithmetic(_function, swapped=False))
    setattr(HostValue, f"__r{_name}__", _arithmetic(_function, swapped=True))
for _name, _symbol in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(HostValue, f"__{_name}__", _comparison(_symbol))

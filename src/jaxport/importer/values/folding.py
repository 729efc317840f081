"""Fold functions of the shared namespaces on the host if all their operands are host values.

The table has one row per function: how NumPy computes it, and the element type of the result. A function without a row,
or whose row declines, runs as array code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import core
from numpy.typing import ArrayLike

from jaxport.importer.limits import budget_in_force
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, dims_compare, is_dim
from jaxport.jaxprs import Dim, PythonFunction
from jaxport.jaxprs.dims import rounded_down
from jaxport.onnx_facts.integers import quotient

LARGEST_CREATED = 4096
"""Elements that folding may create out of fewer: a larger mask or table is cheaper as array code."""

MOST_BITS = 63
"""The largest exponent of integers that is folded: any larger one overflows."""

SAME, BOOL, INDEX = "same", "bool", "index"


def fold(name: str, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of the namespace function `name` on host values, or NotImplemented if it has to be array code.

    >>> from jaxport.importer.values.host import host
    >>> fold("jnp.concatenate", ([host([1]), host([2, 3])],), {"axis": 0})
    host([1, 2, 3], int64)
    """
    row = _ROWS.get(name)
    if row is None:
        return NotImplemented
    function, result = row
    operands = _operands(args)
    symbolic = any(operand.symbolic for operand in operands)
    if symbolic and name not in _SYMBOLIC:
        return NotImplemented
    typed_by = _TYPED_BY.get(name, 0)
    if typed_by >= len(operands):  # Python numbers take the type that JAX gives them
        return NotImplemented
    dtype = operands[typed_by].dtype
    if dtype.kind not in "iufbO" and result == SAME:
        return NotImplemented  # NumPy's arithmetic on bfloat16 and smaller types differs from XLA's
    if name in _GROWING and _is_large(name, operands, args, kwargs):
        return NotImplemented
    with np.errstate(all="ignore"):
        data = function(*_plain(args), **{key: _plain(value) for key, value in kwargs.items()})
    if data is NotImplemented:
        return NotImplemented
    if result == BOOL:
        dtype = np.dtype(bool)
    elif result == INDEX:
        dtype = np.dtype(np.int64)
    elif kwargs.get("dtype") is not None:
        dtype = np.dtype(kwargs["dtype"])
    if isinstance(data, list):
        return [_wrap(part, dtype) for part in data]
    return _wrap(data, dtype)


def _is_large(name: str, operands: list[HostValue], args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether the result would be much larger than the operands: as array code, its size is checked first."""
    elements = sum(operand.size for operand in operands)
    if name in _JOINING:
        return sum(operand.nbytes for operand in operands) * JOINED_OF > budget_in_force().largest
    sizes = operands[0].shape
    if name == "jnp.pad":
        added = sum(_numbers((args[1:], kwargs.get("pad_width"))))
        made = np.prod([float(size + added) for size in sizes])
    elif name == "jnp.repeat":
        made = float(operands[0].size) * max(_numbers((args[1:], kwargs.get("repeats"))), default=1)
    elif name == "jnp.diag":
        made = float(operands[0].size) ** 2 if len(sizes) == 1 else 0.0
    else:
        try:
            made = np.prod([float(size) for size in np.broadcast_shapes(*(operand.shape for operand in operands))])
        except ValueError:
            return False  # the function itself refuses them
    return bool(made > max(elements, LARGEST_CREATED))


def _numbers(tree: object) -> list[int]:
    if isinstance(tree, HostValue):
        return [abs(int(n)) for n in tree.data.ravel()] if tree.dtype.kind in "iu" and not tree.symbolic else []
    if isinstance(tree, tuple | list):
        return [n for part in tree for n in _numbers(part)]
    return [abs(tree)] if isinstance(tree, int) and not isinstance(tree, bool) else []


def _wrap(data: ArrayLike, dtype: np.dtype) -> HostValue:
    data = np.asarray(data)
    if data.dtype == object and dtype != STRING:
        if any(map(is_dim, data.ravel())):
            return HostValue(data, dtype)
        return HostValue(data.astype(dtype))
    return HostValue(data.astype(dtype) if dtype != STRING else data, dtype)


def _operands(args: object) -> list[HostValue]:
    if isinstance(args, HostValue):
        return [args]
    if isinstance(args, tuple | list):
        return [operand for arg in args for operand in _operands(arg)]
    return []


def _plain(arg: object) -> Any:
    if isinstance(arg, HostValue):
        return arg.data
    if isinstance(arg, tuple | list):
        return type(arg)(map(_plain, arg))
    return arg


def _created(function: PythonFunction) -> PythonFunction:
    """Return `function`, declining if its result is large."""

    def bounded(data: np.ndarray, shape: Dim, *rest: object, **kwargs: object) -> np.ndarray:
        sizes = np.atleast_1d(np.asarray(shape, dtype=object)).ravel()
        if any(map(is_dim, sizes)) or np.prod([float(size) for size in sizes]) > LARGEST_CREATED:
            return NotImplemented
        return function(data, tuple(int(size) for size in sizes), *rest, **kwargs)

    return bounded


def _tile(data: np.ndarray, repeats: ArrayLike) -> np.ndarray:
    sizes = np.atleast_1d(repeats).ravel()
    if any(map(is_dim, sizes)):
        return NotImplemented
    counts = [int(count) for count in sizes]
    return np.tile(data, counts) if data.size * np.prod(counts) <= LARGEST_CREATED else NotImplemented


def _arange(start: Any, stop: Any = None, step: Any = 1, **_: object) -> np.ndarray:
    start, stop = (0, start) if stop is None else (start, stop)
    first, last, by = (np.asarray(number).item() for number in (start, stop, step))
    if by == 0 or abs((last - first) / by) > LARGEST_CREATED:
        return NotImplemented
    if all(isinstance(number, int) for number in (first, last, by)):  # NumPy's differences wrap
        return np.array(range(first, last, by), np.result_type(start, stop, step))
    return np.arange(start, stop, step)


def _take(data: np.ndarray, indices: np.ndarray, axis: int | None = None, **_: object) -> np.ndarray:
    # Out-of-range positions depend on `mode`, which differs from NumPy's.
    size = data.size if axis is None else data.shape[axis]
    indices = np.asarray(indices)
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        return NotImplemented
    return np.take(data, indices, axis=axis)


def _truncated(left: ArrayLike, right: ArrayLike) -> ArrayLike | Dim:
    """Divide integers as the helper `quotient`: rounding towards zero; by zero it is all ones."""
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype == object or right.dtype == object:
        return np.frompyfunc(_truncated_dim, 2, 1)(left, right)
    if left.dtype.kind == "f":
        return left / right
    return quotient(left, right)


def _truncated_dim(left: Dim, right: Dim) -> Dim:
    if not is_dim(right) and right == 0:
        return -1
    if not is_dim(left) and not is_dim(right):
        whole = abs(int(left)) // abs(int(right))
        return whole if (left < 0) == (right < 0) else -whole
    divided = rounded_down(left, right) if is_dim(left) and isinstance(right, int) and right > 0 else None
    if divided is not None:  # nothing is left to round
        return divided // right
    if dims_compare(">=", left, 0) and dims_compare(">", right, 0):
        return left // right
    return -(-left // right) if dims_compare("<=", left, 0) and dims_compare(">", right, 0) else -(left // -right)


def _power(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if np.asarray(left).dtype.kind in "iu" and np.any((right < 0) | (right > MOST_BITS)):
        return NotImplemented  # for JAX to decide
    return np.power(left, right)


def _compared(symbol: str) -> Callable[[ArrayLike, ArrayLike], np.ndarray]:
    pick = np.frompyfunc(lambda left, right: dims_compare(symbol, left, right), 2, 1)
    return lambda left, right: np.asarray(pick(left, right), dtype=bool)


def _extreme(symbol: str) -> PythonFunction:
    of_dims = np.frompyfunc(core.max_dim if symbol == ">=" else core.min_dim, 2, 1)

    def extreme(left: ArrayLike, right: ArrayLike) -> ArrayLike | Dim:
        if np.asarray(left).dtype != object and np.asarray(right).dtype != object:
            return (np.maximum if symbol == ">=" else np.minimum)(left, right)
        return of_dims(left, right)

    return extreme


def _clip(data: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None) -> ArrayLike:
    data = data if low is None else _extreme(">=")(data, low)
    return data if high is None else _extreme("<=")(data, high)


def _where(condition: ArrayLike, left: ArrayLike, right: ArrayLike) -> np.ndarray:
    if np.asarray(condition).dtype == object:
        return NotImplemented
    return np.where(condition, left, right)


def _one_hot(data: np.ndarray, size: int, *, axis: int, dtype: np.dtype) -> np.ndarray:
    """Return a row of booleans for each number; used for repetition in shape arithmetic."""
    if dtype != np.bool_ or np.size(data) * size > LARGEST_CREATED:
        return NotImplemented
    return np.moveaxis(np.asarray(data)[..., None] == np.arange(size), -1, axis)


_ROWS: dict[str, tuple[PythonFunction, str]] = {
    **{
        f"jnp.{name}": (getattr(np, name), SAME)
        for name in (
            "add subtract multiply mod fmod negative abs sign square floor ceil round trunc sqrt reciprocal "
            "bitwise_and bitwise_or bitwise_xor bitwise_not invert left_shift right_shift "
            "concatenate stack expand_dims squeeze reshape ravel transpose swapaxes moveaxis flip roll sort diag "
            "sum prod max min cumsum cumprod repeat pad split atleast_1d hstack vstack"
        ).split()
    },
    **{
        f"jnp.{name}": (getattr(np, name), BOOL)
        for name in "logical_and logical_or logical_xor logical_not isnan isinf any all".split()
    },
    **{f"jnp.{name}": (getattr(np, name), INDEX) for name in ("argmax", "argmin", "argsort", "count_nonzero")},
    **{
        f"jnp.{name}": (_compared(symbol), BOOL)
        for name, symbol in {
            "equal": "==",
            "not_equal": "!=",
            "less": "<",
            "less_equal": "<=",
            "greater": ">",
            "greater_equal": ">=",
        }.items()
    },
    "jnp.maximum": (_extreme(">="), SAME),
    "jnp.minimum": (_extreme("<="), SAME),
    "jnp.clip": (_clip, SAME),
    "jnp.where": (_where, SAME),
    "jnp.take": (_take, SAME),
    "jnp.arange": (_arange, SAME),
    "jnp.tile": (_tile, SAME),
    "jnp.broadcast_arrays": (lambda *arrays: list(np.broadcast_arrays(*arrays)), SAME),
    "jnp.broadcast_to": (_created(np.broadcast_to), SAME),
    "nn.one_hot": (_one_hot, BOOL),
    "nn.relu": (lambda data: np.maximum(data, np.zeros((), data.dtype)), SAME),
    "lax.div": (_truncated, SAME),
    "helper.quotient": (_truncated, SAME),
    "jnp.power": (_power, SAME),
    "helper.integer_power": (_power, SAME),
}
_TYPED_BY = {"jnp.where": 1}
JOINED_OF = 4
"""The part of the budget that concatenation counts against: a file may join a constant with itself over and over."""
_JOINING = {f"jnp.{name}" for name in "concatenate stack hstack vstack".split()}
_DIVIDING = {"lax.div", "helper.quotient"}
_BROADCASTING = (
    {
        f"jnp.{name}"
        for name in (
            "add subtract multiply power bitwise_and bitwise_or bitwise_xor left_shift right_shift logical_and "
            "logical_or logical_xor equal not_equal less less_equal greater greater_equal maximum minimum where mod "
            "fmod "
            "broadcast_arrays"
        ).split()
    }
    | _DIVIDING
    | {"helper.integer_power"}
)
_GROWING = _JOINING | _BROADCASTING | {"jnp.pad", "jnp.repeat", "jnp.diag"}
_SYMBOLIC = {
    f"jnp.{name}"
    for name in (
        "add subtract multiply mod negative concatenate stack expand_dims squeeze reshape ravel transpose "
        "swapaxes moveaxis flip roll sum prod cumsum cumprod split where take clip maximum minimum atleast_1d hstack "
        "vstack pad "
        "broadcast_arrays broadcast_to equal not_equal less less_equal greater greater_equal"
    ).split()
} | _DIVIDING

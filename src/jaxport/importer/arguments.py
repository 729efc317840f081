"""Conversions of a program's inputs and outputs between the caller's form and the evaluator's."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from jaxport.errors import InvalidArgument
from jaxport.importer.values.dtypes import STRING, canonical
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.recording import Recorded
from jaxport.jaxprs import Dim


def declaration(value: ir.Value, quote: str = "") -> str:
    """Return a value with its type and shape, as far as the model declares them: `x: FLOAT [batch,4]`."""
    parts = [str(part) for part in (value.type, value.shape) if part is not None]
    return f"{quote}{value.name}{quote}: {' '.join(parts) or 'of any type'}"


def by_name(
    declared: Sequence[ir.Value],
    keywords: Mapping[str, ir.Value],
    inputs: Sequence[object],
    named: Mapping[str, object],
) -> dict[str, object]:
    """Return the inputs of a call by their names in the model, in the order in which the caller gives them.

    Args:
      declared: the inputs as the model declares them.
      keywords: the same by the names that a call may use.
      inputs: the inputs that are given by position.
      named: those that are given by name.

    Raises:
      InvalidArgument: an input is missing, unknown, or given twice.
    """

    def refused(problem: str) -> InvalidArgument:
        return InvalidArgument(problem, instead=f"give {', '.join(declaration(value, '`') for value in declared)}")

    if len(inputs) > len(declared):
        raise refused(f"{len(inputs)} inputs are given, the model has {len(declared)}")
    arguments = dict(zip(declared, inputs, strict=False))
    for name, value in named.items():
        target = keywords.get(name)
        if target is None or target in arguments:
            problem = "is given twice" if target is not None else "is not an input of the model"
            raise refused(f"`{name}` {problem}")
        arguments[target] = value
    absent = [v.name for v in declared if v not in arguments and not isinstance(v.type, ir.OptionalType)]
    if absent:
        raise refused(f"the input `{absent[0]}` is missing")
    return {value.name or "": array for value, array in arguments.items()}


def checked(declared: ir.Value, value: Any, static: bool, batched: Container[tuple[str, int]]) -> RuntimeValue:
    """Return an input in the evaluator's form: of the declared dtype, on the host if shapes depend on it.

    Args:
      declared: the input as the model declares it.
      value: the caller's value.
      static: whether shapes depend on it.
      batched: the names and axes of inputs along which a call may have any number of rows.

    Raises:
      InvalidArgument: it has another dtype or shape than the model declares.
    """
    if isinstance(value, Mapping):
        return {key: _internal(element) for key, element in value.items()}
    value = _shared(value, static)
    if value is None or isinstance(declared.type, ir.SequenceType | ir.OptionalType):
        return [_internal(element) for element in value] if isinstance(value, list | tuple) else _internal(value)
    wanted = np.dtype(declared.dtype.numpy()) if declared.dtype is not None else None
    if isinstance(value, bool | int | float | str | list | tuple):
        value = _of_python(declared, value, wanted)
    if wanted == STRING or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OUST"):
        return HostValue(np.asarray(value, dtype=object), STRING)
    if wanted is not None and value.dtype not in (wanted, canonical(wanted)):
        if not (value.dtype.kind == wanted.kind in "iu" and value.dtype.itemsize < wanted.itemsize):
            raise InvalidArgument(
                f"the input `{declared.name}` is {value.dtype}, the model declares {wanted}",
                where="the call of the program",
                instead=f"convert it: `.astype({canonical(wanted)})`",
            )
        value = value.astype(canonical(wanted))
    _check_shape(declared, value.shape, batched)
    if isinstance(value, np.ndarray | np.generic) and (static or value.size == 1):
        return HostValue(np.asarray(value), name=declared.name or "")
    return value if _is_held(value) else jnp.asarray(HostValue(np.asarray(value), name=declared.name or "").to_jax())


def _shared(value: Any, static: bool = False) -> Any:
    """Return an array of another library, such as a tensor of PyTorch, as one of JAX, without a copy where none is
    needed.

    It is one of NumPy if its values have to be known or its type is wider than those of JAX; others are returned as
    they are.
    """
    if not hasattr(value, "__dlpack__") or isinstance(value, np.ndarray | np.generic) or _is_held(value):
        return value
    value = value.detach() if hasattr(value, "detach") else value
    try:
        host = np.from_dlpack(value)
    except (RuntimeError, BufferError, TypeError):  # of a type that NumPy lacks, or not in the memory of the host
        return jnp.from_dlpack(value)
    is_shared = host.flags.c_contiguous and host.dtype == canonical(host.dtype) and host.size != 1 and not static
    return jnp.from_dlpack(value) if is_shared else host


def _is_held(value: object) -> bool:
    """Whether the evaluator takes a value as it is."""
    return isinstance(value, jax.Array | Recorded | HostValue)


def _check_shape(declared: ir.Value, shape: tuple[Dim, ...], batched: Container[tuple[str, int]]) -> None:
    if declared.shape is None or declared.shape.rank() == 0:  # exporters write a rank of zero for any rank
        return
    sizes = declared.shape.dims
    same_rank = len(sizes) == len(shape)
    pairs = enumerate(zip(sizes, shape, strict=True) if same_rank else ())
    wrong = [
        axis
        for axis, (size, actual) in pairs
        if isinstance(size, int) and isinstance(actual, int) and size != actual
        if (declared.name or "", axis) not in batched
    ]
    if not same_rank or wrong:
        rebatched = ", or another number of rows by `from_onnx(…, batch=True)` (or `jax.vmap`)" * (wrong == [0])
        raise InvalidArgument(
            f"the input `{declared.name}` has shape {list(shape)}, the model declares {declared.shape}",
            where="the call of the program",
            instead=f"give it the declared sizes; the named ones may be any{rebatched}",
        )


def _of_python(declared: ir.Value, value: ArrayLike, wanted: np.dtype | None) -> np.ndarray:
    """Convert Python numbers, or lists of them, to the declared type of an input."""
    try:
        array = np.asarray(value)
        if array.dtype.kind != "f" or wanted is None or not (wanted.kind == "b" or jnp.issubdtype(wanted, np.integer)):
            return np.asarray(value, dtype=wanted)
        why = "fractions are not integers"
    except (ValueError, TypeError, OverflowError) as error:
        why = str(error)
    raise InvalidArgument(
        f"the input `{declared.name}` cannot be {wanted}",
        where="the call of the program",
        why=why,
        instead="give an array of the declared type",
    )


def _internal(value: Any) -> RuntimeValue:
    """Convert an input to the evaluator's form."""
    value = _shared(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OUST":
        return HostValue(np.asarray(value, dtype=object), STRING)
    return jnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def external(value: RuntimeValue) -> Any:
    """Convert an output to the caller's form."""
    if isinstance(value, list):
        return [external(element) for element in value]
    if isinstance(value, dict):
        return {key: external(element) for key, element in value.items()}
    if isinstance(value, HostValue):
        return value.data if value.dtype == STRING else jnp.asarray(value.to_jax())
    return value

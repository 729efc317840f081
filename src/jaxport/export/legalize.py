"""Choose a dtype that the runtime has a kernel for, if it has none for an operator in the given dtype.

Integers and booleans are computed in a wider integer type and bfloat16 in float32, then cast back, which wraps and
rounds as JAX does. A dtype with nothing wider (float64, uint64) is left as it is: its rule decomposes, or refuses; but
if only bits are moved or sums wrap, uint64 may be replaced by int64.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from jaxport.export.kernels import MISSING, RELEASES
from jaxport.export.schema import Schema
from jaxport.export.value import Value

#: Dtypes that hold all values of a dtype, the cheapest first.
WIDER: dict[str, tuple[str, ...]] = {
    "bool": ("uint8", "int32", "int64"),
    "int4": ("int8", "int32", "int64"),
    "uint4": ("uint8", "int32", "int64"),
    "int2": ("int8", "int32", "int64"),
    "uint2": ("uint8", "int32", "int64"),
    "int8": ("int32", "int64"),
    "uint8": ("int32", "uint32", "int64"),
    "int16": ("int32", "int64"),
    "uint16": ("int32", "uint32", "int64"),
    "int32": ("int64",),
    "uint32": ("int64", "uint64"),
    "float16": ("float32",),
    "bfloat16": ("float32",),
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), ("float32",)
    ),
}

#: Operators that give the same bits for unsigned and signed integers.
SIGNLESS = frozenset({"CumSum", "ReduceProd", "Where"})


#: Dtypes with a kernel whose values are not those of the operator (Sign of NaN in half precision is 1), and dtypes
#: newer than the opset of the table of kernels.
BESIDE: dict[str, tuple[str, ...]] = {
    "Sign": ("float16", "bfloat16"),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze"), ("float8_e8m0fnu",)),
}


#: The releases of ONNX Runtime that models support unless a target asks for others: all from the oldest on, which is
#: the lower bound of the extra `runtime`.
OLDEST, NEWEST = "1.28", next(reversed(RELEASES))

_made_for: contextvars.ContextVar[str] = contextvars.ContextVar("release", default=OLDEST)


@contextlib.contextmanager
def made_for(release: str) -> Iterator[None]:
    """Make models for this release and all newer ones inside the context.

    >>> with made_for("1.17"):
    ...     sorted(dtype.name for dtype in missing("BitShift"))
    ['uint16']
    """
    token = _made_for.set(release)
    try:
        yield
    finally:
        _made_for.reset(token)


def missing(op_type: str, release: str | None = None) -> frozenset[np.dtype]:
    """Return the dtypes for which a release of the runtime has no kernel of an operator, or no exact one.

    Args:
      op_type: the operator.
      release: the release of the runtime; by default the oldest that models are made for.

    >>> sorted(dtype.name for dtype in missing("BitShift") - missing("BitShift", NEWEST))
    ['uint16']
    """
    return _missing(op_type, release or _made_for.get())


@functools.lru_cache(maxsize=2048)
def _missing(op_type: str, release: str) -> frozenset[np.dtype]:
    releases = list(RELEASES)
    entries = (entry.partition("<") for entry in MISSING.get(op_type, "").split())
    names = [name for name, _, since in entries if not since or releases.index(release) < releases.index(since)]
    return frozenset(
        np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in (*names, *BESIDE.get(op_type, ()))
    )


def type_parameter(facts: Schema, values: Sequence[Value | None]) -> tuple[str, np.dtype]:
    """Return the type parameter that an operator computes in, and the dtype that the operands give it."""
    given = {}
    for index, value in enumerate(values):
        formal = facts.input(index)
        if value is not None and formal is not None:
            given.setdefault(formal.type, value.dtype)
    computed = facts.outputs[0].type
    parameter = computed if computed in given else next(iter(given), "")
    return parameter, given.get(parameter, np.dtype(np.float32))


def compute_dtype(op_type: str, facts: Schema, values: Sequence[Value | None]) -> np.dtype | None:
    """Return the dtype to compute in, or None if the operands' own dtype works or nothing wider exists."""
    parameter, dtype = type_parameter(facts, values)
    return _compute_dtype(op_type, facts, parameter, dtype, _made_for.get())


@functools.lru_cache(maxsize=8192)
def _compute_dtype(op_type: str, facts: Schema, parameter: str, dtype: np.dtype, oldest: str) -> np.dtype | None:
    accepted = next((f.dtypes for f in facts.inputs if f.type == parameter), frozenset())
    if not accepted or (dtype in accepted and dtype not in missing(op_type, oldest)):
        return None
    if op_type == "Cast":  # a cast of its operand would be the same node again
        return None
    signed = ("int64",) if dtype == np.uint64 and op_type in SIGNLESS else ()
    others = [np.dtype(name) for name in (*WIDER.get(dtype.name, ()), *signed)]
    # If the oldest release supports no dtype at all, the newest release decides.
    for release in (oldest, NEWEST):
        for other in (dtype, *others):
            if other in accepted and other not in missing(op_type, release):
                return other if other != dtype else None
    return None

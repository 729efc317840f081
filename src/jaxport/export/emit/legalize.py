"""Choose a dtype that the runtime has a kernel for, if it has none for an operator in the given dtype.

Integers and booleans are computed in a wider integer type and bfloat16 in float32, then cast back, which wraps and
rounds as JAX does. A dtype with nothing wider (float64, uint64) is left as it is: its rule decomposes, or refuses; but
if only bits are moved or sums wrap, uint64 may be replaced by int64.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from jaxport.export.emit.value import Value
from jaxport.onnx_facts.releases import NEWEST, current_release, missing
from jaxport.onnx_facts.schema import Schema

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


def type_parameter(facts: Schema, values: Sequence[Value | None]) -> tuple[str, np.dtype]:
    """Return the type parameter that an operator computes in, and the dtype that the operands give it."""
    dtypes = {}
    for index, value in enumerate(values):
        formal = facts.input(index)
        if value is not None and formal is not None:
            dtypes.setdefault(formal.type, value.dtype)
    computed = facts.outputs[0].type
    parameter = computed if computed in dtypes else next(iter(dtypes), "")
    return parameter, dtypes.get(parameter, np.dtype(np.float32))


def compute_dtype(op_type: str, facts: Schema, values: Sequence[Value | None]) -> np.dtype | None:
    """Return the dtype to compute in, or None if the operands' own dtype works or nothing wider exists."""
    parameter, dtype = type_parameter(facts, values)
    return _compute_dtype(op_type, facts, parameter, dtype, current_release())


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

"""Choose a dtype that the runtime has a kernel for, if it has none for an operator in the given dtype.

Integers and booleans are computed in a wider integer type and bfloat16 in float32, then cast back, which wraps and
rounds as JAX does. A dtype with nothing wider (float64, uint64) is left as it is: its rule decomposes, or refuses; but
if only bits are moved or sums wrap, uint64 may be replaced by int64.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jax.typing import DTypeLike

from jaxport.export.emit.value import Value
from jaxport.onnx_facts import releases
from jaxport.onnx_facts.releases import NEWEST, current_release, has_newer_kernel, lacks_kernel, missing, registered
from jaxport.onnx_facts.schema import Schema, find

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

BELOW_A_BYTE = frozenset({"int2", "int4", "uint2", "uint4"})

#: Operators that rules and passes emit in a newer version; `delivery/older_opsets.py` writes them in that of the opset.
WRITTEN_LATER = {"Shape": 15}

#: Operators that give the same bits for unsigned and signed integers.
SIGNLESS = frozenset({"CumSum", "ReduceProd", "Where"})


def type_parameter(facts: Schema, values: Sequence[Value | None]) -> tuple[str, np.dtype]:
    """Return the type parameter that an operator computes in, and the dtype that the operands give it."""
    dtypes = types_of(facts, values)
    computed = facts.outputs[0].type
    parameter = computed if computed in dtypes else next(iter(dtypes), "")
    return parameter, dtypes.get(parameter, np.dtype(np.float32))


def types_of(facts: Schema, values: Sequence[Value | None]) -> dict[str, np.dtype]:
    """Return the dtypes that the operands give the type parameters of an operator."""
    dtypes: dict[str, np.dtype] = {}
    for index, value in enumerate(values):
        formal = facts.input(index)
        if value is not None and formal is not None:
            dtypes.setdefault(formal.type, value.dtype)
    return dtypes


def for_a_kernel(
    cast: Callable[[Value, np.dtype], Value], op_type: str, facts: Schema, values: list[Value | None]
) -> list[Value | None]:
    """Return the operands in dtypes that a kernel takes together, such as indices in int64."""
    dtypes = {} if op_type == "Cast" else _wider_operands(op_type, facts, values)
    for index, value in enumerate(values):
        formal = facts.input(index)
        if value is not None and formal is not None and formal.type in dtypes:
            values[index] = cast(value, dtypes[formal.type])
    return values


def _wider_operands(op_type: str, facts: Schema, values: Sequence[Value | None]) -> Mapping[str, np.dtype]:
    """Return the dtypes for operands such as indices, by type parameter, if no kernel takes those that they have.

    Only dtypes that hold the same values are chosen, and only for parameters that are not the type of a result.
    """
    dtypes = types_of(facts, values)
    names = {parameter: dtype.name for parameter, dtype in dtypes.items()}
    web = bool(releases.made_for_web() and registered(op_type, facts.since, web=True)[0])
    parameters, _ = registered(op_type, facts.since, web)
    if len(parameters) < 2 or not lacks_kernel(op_type, facts.since, names, web):
        return {}
    results = {formal.type for formal in facts.outputs}
    free = [parameter for parameter in parameters if parameter in dtypes and parameter not in results]
    choices = [(names[parameter], *WIDER.get(names[parameter], ())) for parameter in free]
    cost = lambda each: sum(choice.index(name) for choice, name in zip(choices, each, strict=True))
    for chosen in sorted(itertools.product(*choices), key=cost):
        if not lacks_kernel(op_type, facts.since, names | dict(zip(free, chosen, strict=True)), web):
            return {parameter: np.dtype(name) for parameter, name in zip(free, chosen, strict=True)}
    return {}


def compute_dtype(op_type: str, facts: Schema, values: Sequence[Value | None]) -> np.dtype | None:
    """Return the dtype to compute in, or None if the operands' own dtype works or nothing wider exists."""
    parameter, dtype = type_parameter(facts, values)
    return _compute_dtype(op_type, facts, parameter, dtype, current_release(), releases.made_for_web())


def dtype_of_kernel(op_type: str, opset: int, dtype: DTypeLike) -> np.dtype:
    """Return the dtype that an operator of the default domain is computed in, for operands of `dtype`.

    >>> str(dtype_of_kernel("MatMul", 18, "bfloat16")), str(dtype_of_kernel("MatMul", 18, "float32"))
    ('float32', 'float32')
    """
    own, facts = np.dtype(dtype), find("", op_type, opset)
    if facts is None:
        return own
    web = releases.made_for_web()
    return _compute_dtype(op_type, facts, facts.inputs[0].type, own, current_release(), web) or own


@functools.lru_cache(maxsize=8192)
def _compute_dtype(
    op_type: str, facts: Schema, parameter: str, dtype: np.dtype, oldest: str, web: releases.Build
) -> np.dtype | None:
    accepted = next((f.dtypes for f in facts.inputs if f.type == parameter), frozenset())
    has_kernel = dtype not in missing(op_type, oldest, web) and not has_newer_kernel(op_type, facts.since, dtype)
    if not accepted or (dtype in accepted and has_kernel):
        return None
    if op_type == "Cast":  # a cast of its operand would be the same node again
        return None
    signed = ("int64",) if dtype == np.uint64 and op_type in SIGNLESS else ()
    others = [np.dtype(name) for name in (*WIDER.get(dtype.name, ()), *signed)]
    # If the oldest release supports no dtype at all, the newest release decides.
    for release in (oldest, NEWEST):
        for other in (dtype, *others):
            if other == dtype and has_newer_kernel(op_type, facts.since, dtype):
                continue
            if other in accepted and other not in missing(op_type, release, web):
                return other if other != dtype else None
    return None

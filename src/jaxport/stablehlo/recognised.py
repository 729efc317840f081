"""What JAX has spelled out while it lowered a function: recognised by lowering the function again, and comparing."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxport.importer.limits import Limits
from jaxport.jaxprs import PythonFunction
from jaxport.stablehlo.reading import read_module
from jaxport.stablehlo.tree import Body, HloModule, Operation, Tensor, canonical

__all__ = ["first_extreme", "function", "monoid", "of_sizes", "returned_argument", "sort_keys"]

_MONOIDS: dict[str, PythonFunction] = {
    "stablehlo.add": lax.add,
    "stablehlo.multiply": lax.mul,
    "stablehlo.maximum": lax.max,
    "stablehlo.minimum": lax.min,
    "stablehlo.and": lax.bitwise_and,
    "stablehlo.or": lax.bitwise_or,
    "stablehlo.xor": lax.bitwise_xor,
}


def monoid(region: Any) -> PythonFunction | None:
    """Return the function of JAX that a region of two numbers is; None if it computes anything else."""
    body: Body = region.body
    if len(body.operations) != 1 or len(body.arguments) != 2:
        return None
    operation = body.operations[0]
    is_whole = operation.results == body.returned and sorted(operation.operands) == sorted(body.arguments)
    return _MONOIDS.get(operation.name) if is_whole else None


def returned_argument(region: Any) -> int | None:
    """Return which of its arguments a region returns as it is."""
    body: Body = region.body
    is_one = len(body.returned) == 1 and body.returned[0] in body.arguments
    return body.arguments.index(body.returned[0]) if is_one else None


@functools.lru_cache(256)
def _lowered(function: PythonFunction, *specs: Any) -> HloModule:
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs]
    return read_module(jax.jit(function).lower(*structs).as_text(), Limits())


def _region(function: PythonFunction, name: str, *dtypes: np.dtype) -> Any:
    module = _lowered(function, *(((3, 3), dtype) for dtype in dtypes))
    found = next((o for o in module.operations() if o.name == name), None)
    return found and canonical(module, found.bodies[0])


@functools.cache
def _first(which: PythonFunction, index: np.dtype) -> PythonFunction:
    return lambda x: which(x, 1, index)


def first_extreme(module: HloModule, operation: Operation) -> PythonFunction | None:
    """Return `lax.argmax` or `lax.argmin` if a reduction gives the extreme and the first of its positions."""
    kinds, makers = operation.types, [module.makers.get(value) for value in operation.operands]
    if len(kinds) != 2 or len(operation.attributes["dimensions"]) != 1 or kinds[1].dtype.kind not in "iu":
        return None
    position, extreme, zero = makers[1:]
    while position is not None and position.name == "stablehlo.broadcast_in_dim":
        position = module.makers.get(position.operands[0])
    (axis,) = operation.attributes["dimensions"]
    if position is None or position is not makers[1] or position.name != "stablehlo.iota":
        return None
    if position.attributes["iota_dimension"] != axis or not (_is_constant(extreme) and _is_constant(zero)):
        return None
    if np.any(zero.attributes["value"] != 0):  # type: ignore[union-attr]
        return None
    wanted = canonical(module, operation.bodies[0])
    for which, worst in ((lax.argmax, -1), (lax.argmin, 1)):
        kind = kinds[0].dtype
        limit = worst * np.inf if kind.kind in "fV" else worst > 0
        if kind.kind in "iu":
            limit = np.iinfo(kind).min if worst < 0 else np.iinfo(kind).max
        if np.any(extreme.attributes["value"] != np.asarray(limit, kind)):  # type: ignore[union-attr]
            continue
        if _region(_first(which, kinds[1].dtype), "stablehlo.reduce", kind) == wanted:
            return which
    return None


def _is_constant(operation: Operation | None) -> bool:
    return operation is not None and operation.name == "stablehlo.constant"


@functools.cache
def _sorted(keys: int) -> PythonFunction:
    return lambda *xs: lax.sort(xs, 1, num_keys=keys)


def sort_keys(module: HloModule, body: Body, dtypes: Sequence[np.dtype]) -> int:
    """Return by how many leading operands a comparator orders, as `lax.sort` does; 0 if it orders otherwise, and -1 if downward."""
    if any(dtype.kind == "V" and dtype.itemsize < 2 for dtype in dtypes):
        return 0
    key = canonical(module, body)
    for keys in range(1, min(len(dtypes), 4) + 1):
        if _region(_sorted(keys), "stablehlo.sort", *dtypes) == key:
            return keys
    steps = body.operations
    if len(steps) == 1 and steps[0].name == "stablehlo.compare" and steps[0].results == body.returned:
        given, is_total = steps[0].attributes, steps[0].attributes.get("compare_type") == "TOTALORDER"
        direction, first = given["comparison_direction"], body.arguments[:2]
        turned = steps[0].operands == first[::-1]
        if dtypes[0].kind in "iu" and (steps[0].operands == first or turned):
            up = (direction == "LT") != turned
            return {"LT": 1, "GT": 1}.get(direction, 0) * (1 if up else -1) if not is_total else 0
    return 0


def function(module: HloModule, plain: str, name: str) -> PythonFunction | None:
    """Return the function of `jax.nn` that a private function is, so that its own derivative is back; None if it is another."""
    meaning = getattr(jax.nn, plain, None)
    body = module.functions[name].body
    if meaning is None or not callable(meaning) or len(body.types) != 1 or not isinstance(body.types[0], Tensor):
        return None
    if None in body.types[0].shape:
        return None
    try:
        lowered = _lowered(meaning, (body.types[0].shape, body.types[0].dtype))
    except Exception:  # noqa: BLE001  functions of other arguments
        return None
    same = [f for f in lowered.functions.values() if canonical(lowered, f.body) == canonical(module, body)]
    return meaning if same else None


_OF_SIZES: dict[str, PythonFunction] = {"floor_divide": operator.floordiv, "remainder": operator.mod}
_PROBES = [(7, 2), (8, 2), (1, 3), (0, 5), (9, 4), (-7, 2), (-8, 4), (-1, 3), (12, 5)]


def of_sizes(walk: Any, plain: str, name: str, operands: Sequence[np.ndarray]) -> Any:
    """Return the quotient of sizes, of which some have names, that JAX has written as a function with choices; else None."""
    meaning = _OF_SIZES.get(plain)
    if meaning is None or len(operands) < 2 or all(x.dtype != object for x in operands[-2:]):
        return None
    body = walk.module.functions[name].body
    dtype = body.types[-1].dtype
    for pair in _PROBES:  # it may be another function of this name
        (found,) = walk.run(body, [*operands[:-2], *(np.array(number, dtype) for number in pair)], {})
        if found != meaning(*pair):
            return None
    made = np.empty((), object)
    made[()] = meaning(*(x[()] for x in operands[-2:]))
    return made

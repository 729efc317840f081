"""What JAX has spelled out while it lowered a function: recognised by lowering the function again, and comparing."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.importer.limits import Limits
from jaxport.jaxprs import PythonFunction
from jaxport.stablehlo.reading import read_module
from jaxport.stablehlo.tree import HloBody, HloModule, HloOperation, TensorType, canonical

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
    body: HloBody = region.body
    if len(body.operations) != 1 or len(body.arguments) != 2:
        return None
    operation = body.operations[0]
    is_whole = operation.results == body.returned and sorted(operation.operands) == sorted(body.arguments)
    return _MONOIDS.get(operation.name) if is_whole else None


def returned_argument(region: Any) -> int | None:
    """Return which of its arguments a region returns as it is."""
    body: HloBody = region.body
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


def first_extreme(module: HloModule, operation: HloOperation) -> PythonFunction | None:
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


def _is_constant(operation: HloOperation | None) -> bool:
    return operation is not None and operation.name == "stablehlo.constant"


@functools.cache
def _sorted(keys: int) -> PythonFunction:
    return lambda *xs: lax.sort(xs, 1, num_keys=keys)


def sort_keys(module: HloModule, body: HloBody, dtypes: Sequence[np.dtype]) -> int:
    """Return by how many leading operands a comparator orders, as `lax.sort` does; 0 if it orders otherwise, and -1 if
    downward.
    """
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
    """Return the function of JAX that a private function is, so that its own derivative is back; None if it is another.

    Those of `jax.nn` take one array; `jnp.take` takes rows along an axis.
    """
    candidates = [getattr(jax.nn, plain, None)] if plain != "_take" else [_taking(axis) for axis in range(3)]
    body, attributes = module.functions[name].body, module.functions[name].argument_attributes
    names = [of["jax.global_constant"] for of in attributes if "jax.global_constant" in of]
    types = [kind for kind in body.types[len(names) :] if isinstance(kind, TensorType)]
    if not all(map(callable, candidates)) or len(types) != (2 if plain == "_take" else 1):
        return None
    wanted = canonical(module, body)
    opened = sum(size is None for kind in types for size in kind.shape)
    orders = itertools.islice(itertools.permutations(names, opened), 6)
    for candidate, order in itertools.product(candidates, list(orders) or [()]):
        try:
            specs = ((kind.shape, kind.dtype) for kind in types)
            lowered = _lowered_alone(candidate, tuple(names), order, *specs)
        except Exception:  # noqa: BLE001  functions of other arguments, or of other sizes
            continue
        if any(canonical(lowered, f.body) == wanted for f in lowered.functions.values()):
            sizes = len(names)
            return lambda *operands, found=candidate: found(*operands[sizes:])
    return None


@functools.cache
def _taking(axis: int) -> PythonFunction:
    return lambda x, indices: jnp.take(x, indices, axis)


@functools.lru_cache(256)
def _lowered_alone(function: PythonFunction, names: tuple[str, ...], order: tuple[str, ...], *specs: Any) -> HloModule:
    """Return the module of a function in a program with sizes of these names, those that are open in this order."""
    if not names:
        return _lowered(function, *specs)
    scope, left = jax.export.SymbolicScope(), iter(order)
    structs = []
    for shape, dtype in [*(((None,), np.dtype(np.float32)) for _ in names), *specs]:
        at = len(structs)
        text = names[at] if at < len(names) else ", ".join(next(left) if n is None else str(n) for n in shape)
        structs.append(jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), dtype))
    whole = lambda *xs: (*(x + 1 for x in xs[: len(names)]), function(*xs[len(names) :]))
    return read_module(bytes(jax.export.export(jax.jit(whole))(*structs).mlir_module_serialized), Limits())


_OF_SIZES: dict[str, PythonFunction] = {"floor_divide": operator.floordiv, "remainder": operator.mod}
_PROBES = [(7, 2), (8, 2), (1, 3), (0, 5), (9, 4), (-7, 2), (-8, 4), (-1, 3), (12, 5)]


def of_sizes(walk: Any, plain: str, name: str, operands: Sequence[np.ndarray]) -> Any:
    """Return the quotient of sizes, of which some have names, that JAX has written as a function with choices; else
    None.
    """
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

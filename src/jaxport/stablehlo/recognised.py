"""What JAX has spelled out while it lowered a function: recognised by lowering the function again, and comparing."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from jaxport.importer.limits import Limits
from jaxport.jaxprs import Array, Dim, PythonFunction
from jaxport.stablehlo.reading import read_module, unread
from jaxport.stablehlo.registry import definitions
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
_OF_BOOLS = {"stablehlo.add": lax.bitwise_or, "stablehlo.multiply": lax.bitwise_and}


def monoid(region: Any) -> PythonFunction | None:
    """Return the function of JAX that a region of two numbers is; None if it computes anything else."""
    body: HloBody = region.body
    kind = body.types[0].dtype
    if len(body.operations) > 4 and len(body.arguments) == 2 and jnp.issubdtype(kind, jnp.floating):
        is_sum = _region(_cumlogsumexp, "stablehlo.reduce_window", kind) == canonical(region.module, body)
        return jnp.logaddexp if is_sum else None
    if len(body.operations) != 1 or len(body.arguments) != 2:
        return None
    operation = body.operations[0]
    is_whole = operation.results == body.returned and sorted(operation.operands) == sorted(body.arguments)
    of = _OF_BOOLS if kind.kind == "b" else {}
    return {**_MONOIDS, **of}.get(operation.name) if is_whole else None


def returned_argument(region: Any) -> int | None:
    """Return which of its arguments a region returns as it is."""
    body: HloBody = region.body
    is_one = len(body.returned) == 1 and body.returned[0] in body.arguments
    return body.arguments.index(body.returned[0]) if is_one else None


@functools.lru_cache(256)
def _lowered(function: PythonFunction, is_wide: bool, *specs: Any) -> HloModule:
    with jax.enable_x64(is_wide):
        structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs]
        return read_module(jax.jit(jax.jit(function)).lower(*structs).as_text(), Limits())


def _is_wide(dtype: np.dtype) -> bool:
    return dtype.itemsize == (16 if dtype.kind == "c" else 8)


def _region(function: PythonFunction, name: str, *dtypes: np.dtype, is_wide: bool = False) -> Any:
    module = _lowered(function, is_wide or any(map(_is_wide, dtypes)), *(((3, 3), dtype) for dtype in dtypes))
    found = next((o for o in module.operations() if o.name == name), None)
    return found and canonical(module, found.bodies[0])


def _cumlogsumexp(x: jax.Array) -> jax.Array:
    return lax.cumlogsumexp(x, 0)


@functools.cache
def _first(which: PythonFunction, index: np.dtype) -> PythonFunction:
    return lambda x: which(x, 1, index)


def first_extreme(module: HloModule, operation: HloOperation) -> PythonFunction | None:
    """Return `lax.argmax` or `lax.argmin` if a reduction gives the extreme and the first of its positions."""
    kinds = operation.types
    if len(kinds) != 2 or len(operation.attributes["dimensions"]) != 1 or kinds[1].dtype.kind not in "iu":
        return None
    (axis,) = operation.attributes["dimensions"]
    positions = module.makers.get(operation.operands[1])
    while positions is not None and positions.name in BROADCASTS:
        places = positions.attributes["broadcast_dimensions"]
        if axis not in places:
            return None
        axis, positions = places.index(axis), module.makers.get(positions.operands[0])
    extreme, zero = (number(module, value) for value in operation.operands[2:])
    if positions is None or positions.name not in ("stablehlo.iota", "stablehlo.dynamic_iota"):
        return None
    if positions.attributes["iota_dimension"] != axis or extreme is None or zero is None or zero != 0:
        return None
    wanted = canonical(module, operation.bodies[0])
    for which, worst in ((lax.argmax, -1), (lax.argmin, 1)):
        kind = kinds[0].dtype
        limit = worst * np.inf if kind.kind in "fV" else worst > 0
        if kind.kind in "iu":
            limit = np.iinfo(kind).min if worst < 0 else np.iinfo(kind).max
        if extreme != np.asarray(limit, kind):
            continue
        is_wide = _is_wide(kinds[1].dtype)
        if _region(_first(which, kinds[1].dtype), "stablehlo.reduce", kind, is_wide=is_wide) == wanted:
            return which
    return None


def is_lowered(context: Any, result: int, function: PythonFunction, operands: Sequence[int]) -> bool:
    """Whether JAX lowers a function of values to all the steps that compute a result; sizes may be open."""
    module, values = context.walk.module, context.values
    kinds, shapes = [module.kinds[value] for value in operands], [np.shape(values[value]) for value in operands]
    opened = _opened(kinds, shapes)
    texts = [str(size) if is_symbolic_dim(size) else f"n{size}" for size in opened]
    names = tuple(dict.fromkeys(name for text in texts for name in _SYMBOL.findall(text)))
    specs = [(kind.shape, kind.dtype) for kind in kinds]
    is_wide = bool(names) and jax.config.read("jax_enable_x64")
    lowered = _lowered_alone(function, is_wide, names, tuple(texts), *specs)
    for body in (f.body for f in lowered.functions.values()):
        bound: dict[int, int] = {}
        if _matches(lowered, body.returned[0], module, result, body.arguments, bound, True):
            own = [bound.get(value) for value in body.arguments]
            sizes = [name if v is None else str(values[v]) for v, name in zip(own[: len(names)], names, strict=True)]
            if own[len(names) :] == [*operands] and sizes == [
                name.removeprefix("n") if name[1:].isdigit() else name for name in names
            ]:
                return True
    return False


_SYMBOL = re.compile(r"\b(?!(?:mod|floordiv|max|min)\b)[A-Za-z_]\w*")


def _opened(kinds: Sequence[TensorType], shapes: Sequence[Sequence[Dim]]) -> list[Dim]:
    """Return the sizes that types leave open."""
    pairs = zip(kinds, shapes, strict=True)
    return [size for kind, shape in pairs for own, size in zip(kind.shape, shape, strict=True) if own is None]


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


def take_row(x: Array, index: Array) -> jax.Array:
    """Return a row, as a scan takes it."""
    return lax.dynamic_index_in_dim(x, index, 0, keepdims=False, allow_negative_indices=False)


def put_row(x: Array, row: Array, index: Array) -> jax.Array:
    """Return an array with a row written, as a scan writes it."""
    return lax.dynamic_update_index_in_dim(x, row, index, 0, allow_negative_indices=False)


@functools.cache
def _candidates(plain: str) -> tuple[int, Sequence[PythonFunction]]:
    """Return the functions that a private function of a name may be, and how many arrays they take."""
    match plain:
        case "_take":
            return 2, [lambda x, indices, axis=axis: jnp.take(x, indices, axis) for axis in range(3)]
        case "take_along_axis":
            return 2, [lambda x, indices, axis=axis: jnp.take_along_axis(x, indices, axis) for axis in range(4)]
        case "remainder" | "floor_divide":
            return 2, [getattr(jnp, plain)]
        case "dynamic_index_in_dim":
            return 2, [take_row]
        case "dynamic_update_index_in_dim":
            return 3, [put_row]
    found = getattr(jax.nn, plain, None)
    return 1, [found] if callable(found) else []


def plain_name(name: str) -> str:
    """Return the name that a function had before the module made it unique."""
    return re.sub(r"_\d+$", "", name)


def function(
    module: HloModule, name: str, sizes: Sequence[Dim | None], shapes: Sequence[Sequence[Dim]]
) -> PythonFunction | None:
    """Return the function of JAX that a private function is, so that its own derivative is back; None if it is another.

    Those of `jax.nn` take one array; `jnp.take` takes rows along an axis.

    Args:
      sizes: the values of its first arguments, those of sizes with names.
      shapes: the shapes of the others.
    """
    arity, candidates = _candidates(plain_name(name))
    body, attributes = module.functions[name].body, module.functions[name].argument_attributes
    names = [of["jax.global_constant"] for of in attributes if "jax.global_constant" in of]
    kinds = body.types[len(names) :]
    if not candidates or len(kinds) != arity or len(shapes) != arity or len(names) != len(sizes):
        return None
    opened = _opened(kinds, shapes)
    known = {str(value): name for name, value in zip(names, sizes, strict=True)}
    in_names = lambda size: _SYMBOL.sub(lambda found: known.get(found[0], found[0]), str(size))
    fitting = [
        [n for n, value in zip(names, sizes, strict=True) if value is size or value == size] or [in_names(size)]
        for size in opened
    ]
    wanted = canonical(module, body)
    wide = [_is_wide(body.types[0].dtype)] if names else [False, True]
    orders = itertools.islice(itertools.product(*fitting), 8)
    for candidate, order, is_wide in itertools.product(candidates, orders, wide):
        specs = [(kind.shape, kind.dtype) for kind in kinds]
        try:
            lowered = [_lowered_alone(candidate, is_wide, tuple(names), order, *specs)]
            lowered += [] if names else [_lowered(candidate, is_wide, *specs)]  # as text has it
        except Exception:  # noqa: BLE001  functions of other arguments, or of other sizes
            continue
        if any(canonical(each, f.body) == wanted for each in lowered for f in each.functions.values()):
            return candidate
    return None


@functools.lru_cache(256)
def _lowered_alone(
    function: PythonFunction,
    is_wide: bool,
    names: tuple[str, ...],
    order: tuple[str, ...],
    *specs: Any,
    platform: str = "cpu",
) -> HloModule:
    """Return the module of a function in a program with sizes of these names, those that are open in this order."""
    scope, left = jax.export.SymbolicScope(), iter(order)
    structs = []
    for shape, dtype in [*(((None,), np.dtype(np.float32)) for _ in names), *specs]:
        at = len(structs)
        text = names[at] if at < len(names) else ", ".join(next(left) if n is None else str(n) for n in shape)
        structs.append(jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), dtype))
    whole = lambda *xs: (*(x + 1 for x in xs[: len(names)]), jax.jit(function)(*xs[len(names) :]))
    with jax.enable_x64(is_wide):
        targets = ("ALL", *(f"lapack_{kind}geqp3_ffi" for kind in "sdcz"))  # JAX 0.9 wants each by name
        unchecked = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
        exported = jax.export.export(jax.jit(whole), platforms=(platform,), disabled_checks=unchecked)(*structs)
    return read_module(bytes(exported.mlir_module_serialized), Limits())


_SPELLED = {
    "stablehlo.logistic": "exponential divide",
    **dict.fromkeys(("chlo.acos", "chlo.asin"), "atan2"),
    **dict.fromkeys(("chlo.acosh", "chlo.asinh", "chlo.atanh", "chlo.erf_inv"), "log_plus_one"),
    **dict.fromkeys(("chlo.cosh", "chlo.sinh"), "exponential log"),
    "chlo.bessel_i1e": "sqrt sign",
    "chlo.digamma": "cosine floor",
    "chlo.erf": "clamp divide",
    "chlo.erfc": "exponential compare",
    "chlo.lgamma": "log_plus_one floor",
    "chlo.next_after": "bitcast_convert or",
    **dict.fromkeys(("chlo.polygamma", "chlo.zeta"), "power floor"),
}
"""Functions of numbers that exports spell out, each with operations without which a module is not searched."""
BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")


@functools.cache
def _spelled(name: str, dtype: np.dtype) -> tuple[HloModule, HloBody] | None:
    """Return what JAX exports for a function of numbers of a dtype; None if that is no sequence of operations."""
    function = definitions()[name].function
    given = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    try:
        with jax.enable_x64(_is_wide(dtype)):
            exported = jax.export.export(jax.jit(function))(*[jax.ShapeDtypeStruct((2, 3), dtype)] * len(given))
    except (TypeError, ValueError, NotImplementedError):  # which is not a function of this dtype
        return None
    module = read_module(bytes(exported.mlir_module_serialized), Limits())
    body = module.main.body
    steps = [o for o in body.operations if o.name not in ("stablehlo.constant", *BROADCASTS)]
    if len(steps) == 1 and "decomposition" in steps[0].attributes:
        body = module.functions[steps[0].attributes["decomposition"]].body
        steps = [o for o in body.operations if o.name not in ("stablehlo.constant", *BROADCASTS)]
    is_flat = len(steps) > 1 and not any(o.bodies or "callee" in o.attributes for o in steps)
    return (module, body) if is_flat else None


def restore(module: HloModule) -> None:
    """Make one operation again of each function of numbers that an export has spelled out."""
    present = {o.name.removeprefix("stablehlo.") for o in module.operations()}
    wanted = [name for name, needs in _SPELLED.items() if present.issuperset(needs.split())]
    bodies = [f.body for f in module.functions.values()]
    for body in [*bodies, *(inner for b in bodies for o in b.walk() for inner in o.bodies)]:
        inside: set[HloOperation] = set()
        for operation in [o for o in body.operations if _QR.search(o.attributes.get("call_target_name", ""))]:
            inside |= _factorized(module, body, operation)
        for operation in reversed(body.operations):
            kind = operation.types[0] if len(operation.types) == 1 else None
            if isinstance(kind, TensorType) and jnp.issubdtype(kind.dtype, jnp.inexact) and operation not in inside:
                inside |= _restored(module, operation, wanted, kind.dtype)
        if inside:
            _drop(body, inside)


def _restored(module: HloModule, operation: HloOperation, wanted: Sequence[str], dtype: np.dtype) -> set[HloOperation]:
    """Make an operation the function that it is the last step of; return the steps."""
    for name in wanted:
        found, bound = _spelled(name, dtype), dict[int, int]()
        if found and _matches(found[0], found[1].returned[0], module, operation.results[0], found[1].arguments, bound):
            operation.name, operation.attributes = name, {}
            operation.operands = tuple(bound[value] for value in found[1].arguments)
            return {module.makers[value] for value in bound.values() if value in module.makers}
    return set()


_QR = re.compile(r"geqrf|geqp3|^Qr$")


@functools.cache
def _qr(is_pivoting: bool, is_full: bool) -> PythonFunction:
    return lambda x: lax.linalg.qr(x, pivoting=is_pivoting, full_matrices=is_full)


def _factorized(module: HloModule, body: HloBody, operation: HloOperation) -> set[HloOperation]:
    """Make one operation, which has a derivative, of a factorization and of what makes Q and R; return the steps."""
    x, target = operation.operands[0], operation.attributes["call_target_name"]
    kind, platform = module.kinds[x], "tpu" if target == "Qr" else "cpu"
    names = tuple(f"n{axis}" for axis, size in enumerate(kind.shape) if size is None)
    wide = {_is_wide(kind.dtype), True}
    for has_all, is_full, is_wide in itertools.product((True, False), (False, True), wide):  # a module may use one only
        function = _qr("geqp3" in target, is_full)
        try:
            lowered = _lowered_alone(function, is_wide, names, names, (kind.shape, kind.dtype), platform=platform)
        except (TypeError, ValueError, NotImplementedError):  # what it factorizes is no matrix to JAX
            return set()
        steps = ((f.body, o) for f in lowered.functions.values() for o in f.body.operations)
        pattern, own = next(
            (pair for pair in steps if pair[1].attributes.get("call_target_name") == target), (body, None)
        )
        bound = {pattern.arguments[-1]: x}
        if own is None or not _matches(
            lowered, own.results[0], module, operation.results[0], pattern.arguments, bound, True
        ):
            continue
        found = [_found(lowered, root, module, body, pattern.arguments, bound) for root in pattern.returned]
        if found.count(None) > (0 if has_all else len(found) - 1):
            continue
        inside = {module.makers[value] for value in bound.values() if value in module.makers}
        results = [*itertools.islice(itertools.count(module.values), len(found))]
        results = [new if old is None else old for old, new in zip(found, results, strict=True)]
        module.values += len(found)
        made = replace(
            operation,
            name="jaxport.function",
            operands=(x,),
            results=(*results,),
            bodies=(),
            types=tuple(lowered.kinds[root] for root in pattern.returned),
            attributes={"function": function},
        )
        body.operations[:] = [o for o in body.operations if o.results[:1] not in [(value,) for value in found]]
        body.operations.insert(body.operations.index(operation), made)
        module.makers.update(dict.fromkeys(results, made))
        return inside - {module.makers.get(x)}
    return set()


def _found(
    own: HloModule, root: int, module: HloModule, body: HloBody, arguments: Sequence[int], bound: dict[int, int]
) -> int | None:
    """Return the value of a block that is computed as one of a pattern is, and add what they share to `bound`."""
    for operation in body.operations:
        for value in operation.results if operation.name == own.makers[root].name else ():
            tried = dict(bound)
            if _matches(own, root, module, value, arguments, tried, True):
                bound.update(tried)
                return value
    return None


_OF_SHAPES = frozenset(f"stablehlo.{name}" for name in ("concatenate", "get_dimension_size", "reshape")) | {*BROADCASTS}


def _drop(body: HloBody, candidates: set[HloOperation]) -> None:
    """Remove those of the operations whose results nothing reads, and the sizes that only they needed."""
    read = {value for o in body.walk() for inner in o.bodies for value in inner.returned} | {*body.returned}
    kept = []
    for operation in reversed(body.operations):
        is_free = operation in candidates or operation.name in _OF_SHAPES
        if not is_free or not read.isdisjoint(operation.results):
            kept.append(operation)
            read.update(operation.operands, *(o.operands for b in operation.bodies for o in b.walk()))
    body.operations[:] = kept[::-1]


def number(module: HloModule, value: int) -> np.generic | None:
    """Return the number that all elements of a value are, if it is a constant."""
    maker = module.makers.get(value)
    while maker is not None and maker.name in BROADCASTS:
        maker = module.makers.get(maker.operands[0])
    if maker is None or maker.name != "stablehlo.constant":
        return None
    array = maker.attributes["value"]
    return array.ravel()[0] if array.size and array.strides == (0,) * array.ndim else None


def _matches(
    own: HloModule,
    value: int,
    module: HloModule,
    other: int,
    arguments: Sequence[int],
    bound: dict[int, int],
    has_shapes: bool = False,
) -> bool:
    """Whether a value is computed as one of a pattern is; `bound` gets the pairs of values."""
    if value in bound:
        return bound[value] == other
    if value not in arguments:
        wanted, found = number(own, value), number(module, other)
        if wanted is not None or found is not None:
            return wanted is not None and found is not None and wanted.tobytes() == found.tobytes()
        ours, theirs = own.makers[value], module.makers.get(other)
        if theirs is None or ours.name != theirs.name or len(ours.operands) != len(theirs.operands):
            return False
        if ours.results.index(value) != theirs.results.index(other):
            return False
        is_alike = ours.types == theirs.types if has_shapes else ours.types[0].dtype == theirs.types[0].dtype
        if not is_alike or _key(own, ours) != _key(module, theirs):
            return False
        pairs = zip(ours.operands, theirs.operands, strict=True)
        if not all(_matches(own, x, module, y, arguments, bound, has_shapes) for x, y in pairs):
            return False
    bound[value] = other
    return True


def _key(module: HloModule, operation: HloOperation) -> tuple:
    """Return what an operation computes of its operands."""
    attributes = {name: repr(value) for name, value in unread(operation.attributes).items() if value is not False}
    return attributes, [canonical(module, body) for body in operation.bodies]


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

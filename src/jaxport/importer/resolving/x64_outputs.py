"""Find the outputs of a model that differ from their declaration if JAX's 64-bit types are off."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import is_op
from jaxport.importer.resolving.graph import Body, BodyFunction, BoundNode
from jaxport.importer.values.dtypes import canonical, dtype_of
from jaxport.onnx_facts import ARITHMETIC, CHOICES, GROWING, LOOKUPS, MEASURES, MODULAR, SCATTERS, SIGN_CHANGES
from jaxport.printable import printable

_DOUBLE = np.dtype(np.float64)
_EXACT = CHOICES | SIGN_CHANGES | {"Cast", "Constant"}
"""Operators of which converting to float32 before or after them gives the same, if what they give is a float."""
_LONG = frozenset({ir.DataType.INT64, ir.DataType.UINT64})
_LARGE_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.INT64, ir.DataType.UINT64})
"""Integers that a double holds, and float32 does not."""


def warning_of(body: Body, static: Collection[ir.Value]) -> str:
    """Return what to tell about the outputs that are affected by 64-bit types being off; nothing if none is."""
    narrower = {
        "are 32-bit": declared_wider(body),
        "are computed without doubles": computed_narrower(body, static),
        "are computed without integers of 64 bits": computed_wrapped(body, static),
    }
    parts = [f"the outputs {', '.join(f'`{n}`' for n in names)} {what}" for what, names in narrower.items() if names]
    advice = 'turn them on with `jax.config.update("jax_enable_x64", True)`'
    return printable(f"64-bit types are off: {', '.join(parts)}; {advice}") if parts else ""


def declared_wider(body: Body) -> list[str]:
    """Return the names of the outputs whose declared type is narrowed by JAX."""
    outputs = (value for value in body.outputs if value.dtype is not None)
    return [
        value.name or "" for value in outputs if value.dtype and value.dtype.numpy() != canonical(value.dtype.numpy())
    ]


def computed_narrower(body: Body, static: Collection[ir.Value]) -> list[str]:
    """Return the names of the other outputs that the model computes by way of doubles.

    Args:
      body: the model's graph.
      static: the values that are known while the program is traced: they are computed on the host, exactly.
    """
    doubles = {value for value in (*body.inputs, *body.initializers) if _is_double(value)}
    affected = _affected(body, doubles, set(), _known(body, static))
    return [v.name or "" for v in body.outputs if v in affected and (v.dtype is None or v.dtype != ir.DataType.DOUBLE)]


def computed_wrapped(body: Body, static: Collection[ir.Value]) -> list[str]:
    """Return the names of the outputs that depend on more than the lower 32 bits of sums, products and powers of int64.

    Sums of truth values, or of integers of 8 or 16 bits, have no more. A constant that is added or multiplied by counts
    as small.

    Args:
      body, static: as for `computed_narrower`.
    """
    longs = {value for value in (*body.inputs, *body.initializers) if value.dtype in _LONG}
    affected = _wrapped(body, longs, set(), _known(body, static))
    return [value.name or "" for value in body.outputs if value in affected]


def _wrapped(body: Body, longs: set[ir.Value], products: set[ir.Value], static: Collection[ir.Value]) -> set[ir.Value]:
    """Return the values that depend on upper bits; `longs`, and those of them that may have some, `products`, grow."""
    affected: set[ir.Value] = set()
    small: set[ir.Value] = set()
    for node in body.nodes:
        inputs = [value for value in node.inputs if value is not None]
        outputs = [value for value in node.outputs if value is not None]
        made = {value for index, value in enumerate(outputs) if _makes(node, index, longs, _LONG)}
        small.update(value for value, kind in zip(outputs, node.output_types, strict=False) if _is_small(kind))
        if is_op(node.node, "Cast") and (inputs[0] in small or _is_small(inputs[0].dtype)):
            made = set()
        called = node.target.body if isinstance(node.target, BodyFunction) else None
        # What looks up rows refuses positions that need more bits.
        reads = any(value in products for index, value in enumerate(inputs) if not _is_position(node, index))
        is_affected = not affected.isdisjoint(inputs) or (reads and called is None and not _is_modular(node))
        for inner in node.bodies():
            longs.update(value for value in inner.inputs if value.dtype in _LONG)
            is_affected |= bool(_wrapped(inner, longs, products, static)) or not affected.isdisjoint(inner.captured)
        if called is not None:
            formal = list(zip(node.inputs, called.inputs, strict=False))
            long, multiplied = ({inside for value, inside in formal if value in values} for values in (longs, products))
            is_affected |= bool(_wrapped(called, long, multiplied, static))
        variable = [value for value in inputs if value not in static]
        grows = node.node.op_type in GROWING and len(variable) >= (2 if node.node.op_type in ARITHMETIC else 1)
        longs |= made
        products.update(made if reads or (grows and not longs.isdisjoint(variable)) else ())
        affected.update(outputs if is_affected else ())
    return affected


def _is_small(dtype: ir.DataType | np.dtype | int | None) -> bool:
    """Whether a type has so few bits that no sum of its numbers needs more than 32."""
    if isinstance(dtype, ir.DataType):
        dtype = dtype.numpy()
    return isinstance(dtype, np.dtype) and dtype.kind in "biu" and dtype.itemsize <= 2


def _is_position(node: BoundNode, index: int) -> bool:
    return node.node.op_type in LOOKUPS | SCATTERS and index == 1


def _is_modular(node: BoundNode) -> bool:
    """Whether the lower bits of what a node gives depend on the lower bits of its operands only."""
    if is_op(node.node, "Cast") and isinstance(to := node.attributes.get("to"), int):
        return dtype_of(to).kind in "iu"
    shifts_right = is_op(node.node, "BitShift") and node.attributes.get("direction") == "RIGHT"
    return not shifts_right and (node.node.op_type in MODULAR or bool([*node.bodies()]))


def _known(body: Body, static: Collection[ir.Value]) -> set[ir.Value]:
    """Return the values that depend only on sizes, single numbers and static values, computed on the host."""
    known = {*static, *(value for value, tensor in body.initializers.items() if tensor.size == 1)}
    for node in body.nodes:
        inputs = [value for value in node.inputs if value is not None]
        if node.node.op_type in MEASURES | {"Constant"} or (inputs and known.issuperset(inputs)):
            known.update(value for value in node.outputs if value is not None)
    return known


def _affected(
    body: Body, doubles: set[ir.Value], integral: set[ir.Value], static: Collection[ir.Value]
) -> set[ir.Value]:
    """Return the values that depend on arithmetic with doubles.

    `doubles` has those of outer bodies, and `integral` those among them that are large integers; both grow.
    """
    affected: set[ir.Value] = set()
    for node in body.nodes:
        inputs = [value for value in node.inputs if value is not None]
        outputs = [value for value in node.outputs if value is not None]
        made = {value for index, value in enumerate(outputs) if _makes_double(node, index, doubles)}
        is_affected = any(value in affected or _is_computed(node, value, doubles, static) for value in inputs)
        is_integral = any(value in integral and value not in static for value in inputs)
        is_affected |= is_integral and _shows_integers(node, made)
        for inner in node.bodies():
            doubles.update(filter(_is_double, inner.inputs))
            is_affected |= bool(_affected(inner, doubles, integral, static)) or not affected.isdisjoint(inner.captured)
        if isinstance(node.target, BodyFunction):
            formal = list(zip(node.inputs, node.target.body.inputs, strict=False))
            inner_doubles = {inside for value, inside in formal if value in doubles}
            inner_integral = {inside for value, inside in formal if value in integral}
            is_affected |= bool(_affected(node.target.body, inner_doubles, inner_integral, static))
        doubles.update(made)
        is_converted = is_op(node.node, "Cast") and inputs[0].dtype in _LARGE_INTEGERS
        integral.update(made if is_converted or is_integral else ())
        affected.update(outputs if is_affected else ())
    return affected


def _shows_integers(node: BoundNode, doubles: Collection[ir.Value]) -> bool:
    """Whether a node makes anything but floats of doubles that are large integers: float32 does not tell neighbours
    apart.
    """
    if isinstance(node.target, BodyFunction):
        return False
    if is_op(node.node, "Cast") and isinstance(to := node.attributes.get("to"), int):
        return dtype_of(to).kind in "iu"
    return any(value is not None and value not in doubles for value in node.outputs)


def _is_double(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.DOUBLE


def _is_computed(node: BoundNode, value: ir.Value, doubles: set[ir.Value], static: Collection[ir.Value]) -> bool:
    calls = isinstance(node.target, BodyFunction)
    return value in doubles and value not in static and not calls and node.node.op_type not in _EXACT


def _makes_double(node: BoundNode, index: int, doubles: set[ir.Value]) -> bool:
    return _makes(node, index, doubles, frozenset({ir.DataType.DOUBLE}))


def _makes(node: BoundNode, index: int, known: set[ir.Value], wanted: Collection[ir.DataType]) -> bool:
    """Whether an output is of some dtypes, as those in `known` are, by the file, the schema, or the attribute of a
    cast.
    """
    value, kind = node.node.outputs[index], node.output_types[index]
    if isinstance(kind, int):
        return node.inputs[kind] in known
    if is_op(node.node, "Cast") and isinstance(to := node.attributes.get("to"), int):
        return ir.DataType(to) in wanted
    # NumPy takes `np.dtype(None)` for float64.
    return (kind is not None and any(kind == dtype.numpy() for dtype in wanted)) or value.dtype in wanted

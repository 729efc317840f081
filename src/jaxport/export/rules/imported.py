"""Blocks that are operators of an imported model: the operator itself is written, if it means the same at this
opset.
"""

from __future__ import annotations

import jax
import numpy as np
import onnx_ir as ir

from jaxport.export.delivery import requirements
from jaxport.export.emit.emitter import DTYPE_ATTRIBUTES
from jaxport.export.emit.registry import Rule
from jaxport.export.rules.older import Renewed, renewed
from jaxport.graph.editing import Held, operator_name
from jaxport.onnx_facts import (
    DECODERS,
    OF_INT32,
    OPEN_ON_INTEGERS,
    RUNTIME_DOMAIN,
    STATISTICS,
    UNSERVED,
    releases,
    schema,
)
from jaxport.onnx_facts.operation import ArrayOperand, KnownOperand
from jaxport.onnx_facts.versions import means_the_same

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
#: The domains whose operators runtimes compute; others are for those who registered them.
DOMAINS = ("", "ai.onnx.ml", RUNTIME_DOMAIN)
ALL_INT32 = frozenset((RUNTIME_DOMAIN, name) for name in OF_INT32)


def operator(op, *operands, block, jaxpr, operation):
    """Emit the operator of a block; its body is exported instead where that would not be the same."""
    if block.batched:
        op.decline("under `vmap` it computes something else")
    newer = (
        Renewed(operation) if _is_written_as_it_is(op, operation) else renewed(operation, _rank(operation, operands))
    )
    operation = newer.operation
    if operation.domain not in DOMAINS or not op.walker.offers(operation.domain, operation.name):
        op.decline("the target has no such operator")
    if _is_unserved(operation):
        op.decline("ONNX Runtime computes it in another layout only")
    if op.walker.nonfinite == "exact":
        op.decline("NaN has to be treated as JAX does")
    if operation.name not in DECODERS and all(x.is_constant for x in operands[: len(block.arguments)]):
        op.decline("its result is a constant")
    version = operation.version if operation.domain else op.opset
    facts = schema.find(operation.domain, operation.name, version)
    if not operation.domain:
        why = means_the_same(operation.name, [name for name, _ in operation.attributes], operation.version, op.opset)
        if why:
            op.decline(why)
    elif op.walker.domains.setdefault(operation.domain, operation.version) != operation.version:
        op.decline("another operator needs another version of its domain")
    may_narrow = not jax.config.read("jax_enable_x64") and (operation.domain, operation.name) not in ALL_INT32
    if facts is None and may_narrow and _has_int32([*operands, *op.outs]):
        op.decline("JAX may have narrowed its integers")
    places = [int(path or 0) for path in block.returns]
    if facts is not None and not all(facts.output(place).dtypes for place in places):
        op.decline("a result is not a tensor")
    values, attributes = _written(op, facts, operation, operands)
    values = [x if x is None else newer.operand(op, place, x, x.shape) for place, x in enumerate(values)]
    types = {} if facts is None else _typed(op, facts, values)
    if all(x is None or x.dtype != np.float64 for x in (*values, *op.outs)):  # as JAX computes without 64-bit types
        attributes = {name: _narrowed(value) for name, value in attributes.items()}
    kind = "" if not values or values[0] is None else values[0].dtype.kind
    if operation.name in OPEN_ON_INTEGERS and kind and kind in "iu":
        op.decline("for integers ONNX leaves some results open, and ONNX Runtime crashes on a division by zero")
    if operation.name == "Mod" and kind == "f" and not attributes.get("fmod"):
        op.decline("before opset 28 ONNX has only C's remainder for floats")
    batches = {x.shape[0] for x in values if x is not None and x.shape}
    if (operation.domain, operation.name) == ("", "RotaryEmbedding") and len(values) == 3 and len(batches) > 1:
        op.decline("its tables are for one element of the batch, and ONNX Runtime needs them for each")
    avals = dict(zip(places, op.outs, strict=True))
    stated = next((attributes[name] for name in ("to", "dtype", "output_dtype") if attributes.get(name)), None)
    count = operation.outputs if facts is None else max(facts.least_outputs, *(place + 1 for place in places))
    stamps = [_stamp(facts, types, place, avals.get(place), stated) for place in range(count)]
    stamps = [(kind, shape and newer.shape(place, shape)) for place, (kind, shape) in enumerate(stamps)]
    start = len(op.scope.nodes)
    made = op.emit(operation.name, *values, domain=operation.domain, outputs=len(stamps), results=stamps, **attributes)
    for node in op.scope.nodes[start:]:
        kernel = requirements.lack(node, op.opset, releases.current_release(), bool(releases.made_for_web()))
        if kernel is not None:
            op.decline(f"ONNX Runtime has no {operator_name(node)} of {kernel}")
    made = made if isinstance(made, tuple) else (made,)
    results = {place: newer.result(op, place, made[place], aval.shape) for place, aval in avals.items()}
    return [op.cast(results[place], aval.dtype) for place, aval in avals.items()]


def _is_unserved(operation):
    return any((operation.name, *each) in UNSERVED for each in operation.attributes if each[0] == "layout")


def _is_written_as_it_is(op, operation):
    """Whether the operator means the same at this opset, and ONNX Runtime computes it."""
    names = [name for name, _ in operation.attributes]
    differs = not operation.domain and means_the_same(operation.name, names, operation.version, op.opset)
    return not differs and not _is_unserved(operation)


def _rank(operation, operands):
    """Return the number of axes of the first operand; 0 if there is none."""
    first = operation.operands[0] if operation.operands else None
    if isinstance(first, ArrayOperand):
        return len(operands[first.index].shape)
    return 0 if first is None else first.data.ndim


def _has_int32(values):
    return any(value.dtype == INT32 for value in values)


def _stamp(facts, types, place, aval, stated):
    """Return dtype and shape of a result: the dtype is what attributes state or that of operands, else that of JAX."""
    dtype, shape = (np.dtype(np.float32), None) if aval is None else (aval.dtype, aval.shape)
    formal = None if facts is None else facts.output(place)
    if formal is None:
        return dtype, shape
    known = types.get(formal.type, np.dtype(stated) if stated is not None and place == 0 else dtype)
    return next(each for each in (known, INT64, *formal.dtypes) if each in formal.dtypes), shape


def _written(op, facts, operation, operands):
    """Return the operands and the attributes as this opset has them: an attribute may be an input by now."""
    values = []
    for operand in operation.operands:
        if isinstance(operand, ArrayOperand):
            value = operands[operand.index]
            values.append(value if operand.axes is None else op.transpose(value, operand.axes))
        else:
            values.append(None if operand is None else _constant(op, operand))
    for index in STATISTICS.get(operation.name, ()):
        operand = operation.operands[index]
        if isinstance(operand, KnownOperand) and operand.name and any(x.held for x in operands):
            values[index] = op.const(operand.data, operand.dtype, operand.name, Held(operand.name, "statistic"))
    attributes = {
        name: value.data if isinstance(value, KnownOperand) else value for name, value in operation.attributes
    }
    if facts is None:
        return values, attributes
    older = schema.find(operation.domain, operation.name, operation.version) or facts
    for name in older.attributes.keys() & facts.attributes.keys() - attributes.keys():
        if not operation.domain and older.defaults[name] != facts.defaults[name]:
            attributes[name] = schema.default_of(older, name)
    if operation.name == "EyeLike":
        attributes.setdefault(
            "dtype", ir.DataType.from_numpy(op.outs[0].dtype)
        )  # else that of the operand, maybe widened
    for name in attributes.keys() & {*DTYPE_ATTRIBUTES}:
        attributes[name] = ir.DataType(attributes[name]).numpy() if attributes[name] else None
    names = [formal.name for formal in facts.inputs]
    for name in [name for name in attributes if name not in facts.attributes and name in names]:
        place, value = names.index(name), attributes.pop(name)
        dtype = schema.dtype_of(facts.inputs[place].type) or values[0].dtype
        values += [None] * (place + 1 - len(values))
        values[place] = op.const(np.asarray(value), dtype)
    return values, attributes


def _narrowed(attribute):
    """Return an attribute, a tensor of doubles as float32."""
    is_double = isinstance(attribute, np.ndarray) and attribute.dtype == np.float64
    return attribute.astype(np.float32) if is_double else attribute


def _constant(op, known):
    if known.data.dtype != object:
        return op.const(known.data, known.dtype, known.name)
    sizes = op.dims(tuple(known.data.ravel()))
    return op.cast(op.reshape(sizes, known.data.shape), known.dtype)


def _typed(op, facts, values):
    """Cast operands to dtypes that the operator takes, in place: integers that JAX narrowed are widened again.

    Returns:
      The dtype that each type parameter of the operator stands for.
    """
    formals = [facts.input(index) for index in range(len(values))]
    if None in formals:
        op.decline(f"it has only {len(facts.inputs)} inputs at opset {op.opset}")
    types = {}
    for formal, value in zip(formals, values, strict=True):
        if value is not None and (formal.homogeneous or not formal.variadic):
            known = types.setdefault(formal.type, value.dtype)
            types[formal.type] = max(known, value.dtype, key=lambda dtype: dtype.itemsize)
    for formal in formals:
        if types.get(formal.type) == INT32 and INT32 not in formal.dtypes:
            types[formal.type] = INT64
    for index, (formal, value) in enumerate(zip(formals, values, strict=True)):
        if value is None:
            continue
        wanted = types.get(formal.type, value.dtype)
        if wanted not in formal.dtypes or (value.dtype != wanted and {value.dtype.kind, wanted.kind} != {"i"}):
            op.decline(f"it takes no {value.dtype} as `{formal.name}` at opset {op.opset}")
        values[index] = op.cast(value, wanted)
    return types


RULE = Rule("onnx", operator)

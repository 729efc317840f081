"""What newer operators mean in older ones: the function bodies of ONNX's own schemas, emitted node by node."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
from jax.typing import DTypeLike
from numpy.typing import ArrayLike

from jaxport.export.emit.value import Operand, Value, data_type
from jaxport.jaxprs import dims
from jaxport.onnx_facts import schema


class EmitsBodies(Protocol):
    """What a body asks of an emitter."""

    @property
    def opset(self) -> int: ...
    def refuse(self, why: str) -> NoReturn: ...
    def const(self, value: ArrayLike, dtype: DTypeLike | None = None) -> Value: ...
    def emit(self, op_type: str, *operands: Operand, outputs: int = 1, **attributes: Any) -> Any: ...


#: The newest version of an operator whose body is read: rules are written for the operators of the default opset.
NEWEST_MEANT = 24


def body(
    op_type: str, opset: int, attributes: Mapping[str, ir.Attr], values: Sequence[Value | None]
) -> ir.Function | None:
    """Return the body of an operator that `opset` lacks, for operands of these dtypes, or None if ONNX has none.

    >>> body("HardSwish", 13, {}, [Value("float32", (2,))]).name, body("GridSample", 13, {}, [])
    ('HardSwish', None)
    """
    known = (version for version in range(NEWEST_MEANT, opset, -1) if schema.find("", op_type, version))
    version = next(known, schema.first_opset("", op_type))
    if version is None or version <= opset:
        return None
    names = [f"x{index}" if value is not None else "" for index, value in enumerate(values)]
    inputs = [ir.Value(name=name) if name else None for name in names]
    facts = schema.find("", op_type, version)
    results = [ir.Value(name=f"y{index}") for index in range(len(facts.outputs) if facts else 1)]
    node = ir.to_proto(ir.Node("", op_type, inputs, list(attributes.values()), outputs=results))
    types = [int(data_type(value.dtype)) if value is not None else 0 for value in values]
    read = _read(op_type, version, node.SerializeToString(), tuple(types))
    return None if read is None else ir.from_proto(onnx.FunctionProto.FromString(read))


@functools.lru_cache(maxsize=256)
def _read(op_type: str, version: int, node: bytes, types: Sequence[int]) -> bytes | None:
    declared: Any = onnx.defs.get_schema(op_type, version, "")
    if declared.has_function:
        return declared.get_function_with_opset_version(min(declared.function_opset_versions))
    if declared.has_context_dependent_function:
        oldest = min(declared.context_dependent_function_opset_versions)
        kinds = [onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=kind)) for kind in types]
        texts = [kind.SerializeToString() for kind in kinds]
        return declared.get_context_dependent_function_with_opset_version(oldest, node, texts) or None
    return None


def written_out(
    op: EmitsBodies, op_type: str, values: Sequence[Value | None], attributes: Mapping[str, ir.Attr], outputs: int
) -> Value | tuple[Value | None, ...] | None:
    """Emit the body of an operator that the opset lacks, and return its results; refuse one without a body by name.

    Args:
      op: the emitter.
      op_type: the operator.
      values: the operands; None for those that are left out.
      attributes: the attributes.
      outputs: the number of results.
    """
    brought = schema.first_opset("", op_type)
    function, facts = body(op_type, op.opset, attributes, values), schema.find("", op_type, brought or op.opset)
    if function is None or facts is None:
        op.refuse(f"needs {op_type}, which is new in opset {brought}; export with opset={brought} or newer")
    given = (*values, *[None] * (len(function.inputs) - len(values)))
    known: dict[ir.Value | None, Value | None] = {None: None, **dict(zip(function.inputs, given, strict=True))}
    for node in function:
        stated = {}
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                own = attributes.get(attribute.ref_attr_name or "")
                value = own.value if own is not None else schema.default_of(facts, attribute.ref_attr_name or "")
            else:
                value = attribute.value.numpy() if name == "value" else attribute.value
            stated[name] = ir.DataType(value).numpy() if name == "to" else value
        if node.op_type == "Constant":
            (value,) = stated.values()
            integers = node.attributes.keys() & {"value_int", "value_ints"}
            floats = node.attributes.keys() & {"value_float", "value_floats"}
            results = [op.const(value, "int64" if integers else "float32" if floats else None)]
        elif node.op_type == "Size" and (shape := _shape(known[node.inputs[0]])) is not None:
            results = [op.const(math.prod(shape), "int64")]
        elif node.op_type == "Range" and (bounds := _numbers([known[bound] for bound in node.inputs])) is not None:
            results = [op.const(np.arange(*bounds))]
        else:
            made = op.emit(node.op_type, *[known[x] for x in node.inputs], outputs=len(node.outputs), **stated)
            results = made if isinstance(made, tuple) else [made]
        known.update(zip(node.outputs, results, strict=True))
    results = tuple(known[result] for result in function.outputs[:outputs])
    return results[0] if outputs == 1 else results


def _numbers(values: Sequence[Value | None]) -> list[Any] | None:
    arrays = [value.constant for value in values if value is not None and value.constant is not None]
    return arrays if len(arrays) == len(values) else None


def _shape(value: Value | None) -> Sequence[int] | None:
    """Return the shape of a value if it is numbers: that of a shape is the rank."""
    shape = None if value is None else value.shape
    return [int(size) for size in shape] if shape is not None and dims.all_static(shape) else None

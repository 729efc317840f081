"""Facts about ONNX operators, read once from the official schemas of the opset that is being written."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.defs
import onnx_ir as ir


@dataclass(frozen=True)
class Formal:
    """A formal input or output: its name, its type parameter (`T`) or concrete type, and whether it is variadic."""

    name: str
    type: str
    variadic: bool
    homogeneous: bool
    dtypes: frozenset[np.dtype]


@dataclass(frozen=True, eq=False)
class Schema:
    """The inputs, outputs and attributes of an operator at one opset, and the serialized defaults of attributes.

    A node has at least `least_outputs` outputs.
    """

    name: str
    since: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: Mapping[str, ir.AttributeType]
    defaults: Mapping[str, bytes]
    least_outputs: int

    def input(self, index: int) -> Formal | None:
        """Return the formal input of the operand at `index`."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.inputs and self.inputs[-1].variadic else None

    def accepts(self, index: int) -> frozenset[np.dtype]:
        """Return the dtypes that the operand at `index` may have."""
        formal = self.input(index)
        return formal.dtypes if formal else frozenset()

    def output(self, index: int) -> Formal:
        """Return the formal output of the result at `index`."""
        return self.outputs[min(index, len(self.outputs) - 1)]


def type_parameter(facts: Schema) -> str:
    """Return the type parameter that an operator computes in: that of its result, if an operand has it, or of the
    first.

    >>> type_parameter(find("", "Where", 18)), type_parameter(find("", "Equal", 18))
    ('T', 'T')
    """
    of_operands = [formal.type for formal in facts.inputs]
    return next(
        (formal.type for formal in facts.outputs[:1] if formal.type in of_operands), next(iter(of_operands), "")
    )


def default_of(facts: Schema, name: str) -> Any:
    """Return the default of an attribute of an operator of the default domain as a Python value; None if it has none.

    >>> default_of(find("", "Softmax", 23), "axis"), default_of(find("", "Cast", 23), "to")
    (-1, None)
    """
    if not facts.defaults.get(name):
        return None
    declared = onnx.defs.get_schema(facts.name, facts.since).attributes[name]
    value = ir.serde.deserialize_attribute(declared.default_value).value
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


@functools.lru_cache(maxsize=64)
def dtype_of(type_text: str) -> np.dtype | None:
    """Return the NumPy dtype of ONNX's `tensor(float)`, or None for other types than tensors, and for types without
    one.

    >>> dtype_of("tensor(float)")
    dtype('float32')
    >>> dtype_of("tensor(of_a_newer_onnx)")
    """
    if not type_text.startswith("tensor("):
        return None
    name = type_text.removeprefix("tensor(").removesuffix(")")
    try:
        return np.dtype(ir.DataType[name.upper()].numpy())
    except (KeyError, TypeError):  # a type that onnx_ir does not know, or a string, which has no dtype of its own
        return None


@functools.lru_cache(maxsize=1024)
def _dtypes(types: frozenset[str]) -> frozenset[np.dtype]:
    return frozenset(dtype for text in types if (dtype := dtype_of(text)) is not None)


@functools.lru_cache(maxsize=2048)
def find(domain: str, name: str, opset: int) -> Schema | None:
    """Return the schema in force at `opset`, or None if the operator does not exist there."""
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None

    def formals(parameters: Iterable[onnx.defs.OpSchema.FormalParameter]) -> tuple[Formal, ...]:
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        return tuple(
            Formal(p.name, p.type_str, p.option == variadic, p.is_homogeneous, _dtypes(frozenset(p.types)))
            for p in parameters
        )

    attributes = {
        name: ir.AttributeType[a.type.name]  # pyright: ignore[reportAttributeAccessIssue]  a nanobind enum
        for name, a in schema.attributes.items()
    }
    defaults = {name: a.default_value.SerializeToString() for name, a in schema.attributes.items()}
    inputs, outputs = formals(schema.inputs), formals(schema.outputs)
    return Schema(name, schema.since_version, inputs, outputs, attributes, defaults, schema.min_output)


def first_opset(domain: str, name: str) -> int | None:
    """Return the opset that introduced an operator, or None if no opset has it."""
    newest = onnx.defs.onnx_opset_version()
    return next((v for v in range(1, newest + 1) if find(domain, name, v)), None)


def first_with(name: str, attribute: str, after: int) -> int | None:
    """Return the first opset after another in which an operator has an attribute, or None if no opset has it.

    >>> first_with("Shape", "start", 13), first_with("Shape", "axis", 13)
    (15, None)
    """
    newer = ((version, find("", name, version)) for version in range(after + 1, NEWEST + 1))
    return next((version for version, facts in newer if facts and attribute in facts.attributes), None)


#: The newest opset of the default domain that the installed onnx knows.
NEWEST: int = onnx.defs.onnx_opset_version()

"""Resolve a loaded model into bound nodes: versions, schemas, attributes, functions; report all refusals together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter
from itertools import chain
from typing import Any, Protocol, cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema, SchemaError

from jaxport.errors import AGAIN, ModelError, Refusal, Unsupported, noted
from jaxport.graph.editing import operator_name, subgraphs
from jaxport.importer.limits import Limits
from jaxport.importer.resolving.counted import rewrite_counted
from jaxport.importer.resolving.data_dependent_slices import place_slices
from jaxport.importer.resolving.graph import (
    Attribute,
    Body,
    BodyFunction,
    BoundNode,
    InputType,
    Reference,
    SchemaFunction,
    describe,
)
from jaxport.importer.resolving.layouts import choose
from jaxport.importer.resolving.products import find_halves, join_grouped_products
from jaxport.importer.resolving.registry import ASSUMED_OPSETS, KNOWN_OPSETS, Operator, lookup, versions
from jaxport.importer.resolving.result_sizes import check_window
from jaxport.importer.resolving.unchecked import is_ignored
from jaxport.importer.values.dtypes import from_type_string
from jaxport.importer.values.stored import attribute_value

FIRST_IR_WITH_OPSETS = 3
"""Files of older versions have no opsets: their operators are those of version 1."""


class _Bodies(Protocol):
    """What an `OpSchema` says of the bodies that define its operator, which the stubs of onnx lack."""

    has_function: bool
    function_opset_versions: Sequence[int]
    has_context_dependent_function: bool
    context_dependent_function_opset_versions: Sequence[int]

    def get_function_with_opset_version(self, version: int, /) -> bytes: ...
    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, types: Sequence[bytes], /
    ) -> bytes: ...


def resolve(model: ir.Model, limits: Limits | None = None) -> Body:
    """Return the model's graph with every node bound to a function.

    Args:
      model: the model.
      limits: the maximum depth of function calls and number of operations.

    Raises:
      Unsupported: some operators, versions, domains or attributes are not supported; the message lists all of them.
      ModelError: the graph is malformed.
    """
    resolver = _Resolver(model, limits or Limits())
    body = resolver.body(model.graph, model.opset_imports, model.graph.initializers.values())
    resolver.refuse(f"`{model.graph.name or 'model'}`")
    return body


def schema_in_force(domain: str, name: str, opset: int) -> OpSchema | None:
    """ONNX's schema (`onnx.defs.OpSchema`) of the operator at this version of the domain's opset, or None.

    >>> schema_in_force("", "Softmax", 12).since_version
    11
    """
    try:
        return onnx.defs.get_schema(name, opset, domain)
    except SchemaError:
        return None


class _Resolver:
    def __init__(self, model: ir.Model, limits: Limits):
        self.model, self.limits = model, limits
        self.refusals: dict[tuple[str, str], tuple[Refusal, int]] = {}
        self.functions: dict[ir.OperatorIdentifier, BodyFunction] = {}
        self.building: list[ir.OperatorIdentifier] = []
        self.defined: set[ir.Value] = set()
        self.count = 0

    def refuse(self, subject: str) -> None:
        if self.refusals:
            rows = [
                Refusal(r.name, r.where if count == 1 else f"{r.where} and {count - 1} more", r.why)
                for r, count in self.refusals.values()
            ]
            plural = "s" if len(rows) > 1 else ""
            raise Unsupported(f"{len(rows)} operation{plural} of {subject} cannot be imported", rows)

    def add_refusal(self, name: str, node: ir.Node, why: str) -> None:
        refusal, count = self.refusals.get((name, why), (Refusal(name, describe(node), why), 0))
        self.refusals[name, why] = refusal, count + 1

    def body(self, graph: ir.Graph, opsets: Mapping[str, int], initializers: Iterable[ir.Value]) -> Body:
        """Return the bound nodes of a graph that its outputs need."""
        tensors = {value: value.const_value for value in initializers if value.const_value is not None}
        own = {*graph.inputs, *tensors}
        self.defined |= own
        live = list(_live(graph))
        captured: dict[ir.Value, None] = {}
        body = Body(graph.name or "", tuple(graph.inputs), tuple(graph.outputs), tensors)
        for node in live:
            for value in node.inputs:
                self.check_defined(value, node)
            try:
                resolved = self.node(node, opsets)
            except Exception as error:
                noted(error, describe(node))
                raise
            own.update(node.outputs)
            self.defined.update(node.outputs)
            used = [value for value in node.inputs if value is not None]
            if resolved is not None:
                body.nodes.append(resolved)
                body.operations += 1 + sum(inner.operations for inner in resolved.bodies())
                if isinstance(resolved.target, BodyFunction):
                    body.operations += resolved.target.body.operations
                used += [value for inner in resolved.bodies() for value in inner.captured]
            captured |= dict.fromkeys(value for value in used if value not in own)
        for value in graph.outputs:
            if value not in self.defined:
                refused = f"nothing computes the output `{value.name}`"
                raise ModelError(refused, where=f"graph `{graph.name}`", instead=AGAIN)
        if body.operations > max(self.limits.operations, len(live)):
            raise ModelError(
                f"the model has more than {self.limits.operations:,} operations",
                where=f"graph `{graph.name}`",
                why="its functions call each other many times",
                instead="write what repeats as a loop, or raise the limit: `jaxport.Limits(operations=…)`",
            )
        body.captured = tuple(captured | dict.fromkeys(value for value in graph.outputs if value not in own))
        place_slices(body)
        rewrite_counted(body)
        join_grouped_products(body)
        find_halves(body)
        body.expire()
        choose(body)
        return body

    def check_defined(self, value: ir.Value | None, node: ir.Node) -> None:
        if value is None or value in self.defined or not value.name:
            return
        raise ModelError(
            f"nothing computes `{value.name}`",
            where=describe(node),
            why="it is not an input, initializer or output of the graph or of those around it",
            instead=AGAIN,
        )

    def node(self, node: ir.Node, opsets: Mapping[str, int]) -> BoundNode | None:
        """Return the node bound to its function, or None if it is refused."""
        local = self.model.functions.get(node.op_identifier())
        opset = self.version(node.domain, opsets) if node.version is None else node.version
        schema = None
        if local is not None:
            target: Operator | BodyFunction | SchemaFunction | None = self.function(local)
        else:
            if not self.version_is_known(node, opset):
                return None
            assert opset is not None
            schema = schema_in_force(node.domain, node.op_type, opset)
            target = self.target(node, opset, self.version("", opsets) or KNOWN_OPSETS[""], schema)
        if target is None:
            return None
        attributes = self.attributes(node, target, schema, opsets)
        if attributes is None:
            return None
        inputs = tuple(value if value is not None and value.name else None for value in node.inputs)
        _check_inputs(node, inputs, target, schema)
        outputs = tuple(value if value.name else None for value in node.outputs)
        self.count += 1
        types = _output_types(schema, inputs, len(outputs))
        version = opset if local is None else None
        return BoundNode(node, target, inputs, outputs, attributes, types, self.count, version=version)

    def version(self, domain: str, opsets: Mapping[str, int]) -> int | None:
        """Return the version of a domain that a graph or function imports; without an import, the one that ONNX Runtime
        assumes.
        """
        for imported in (opsets, self.model.opset_imports):
            version = imported.get(domain, imported.get("ai.onnx") if domain == "" else None)
            if version is not None:
                return version
        if not self.model.opset_imports and self.model.ir_version >= FIRST_IR_WITH_OPSETS:
            return None
        return ASSUMED_OPSETS.get(domain) if self.model.opset_imports or domain else 1

    def version_is_known(self, node: ir.Node, opset: int | None) -> bool:
        domain = node.domain or "ai.onnx"
        if opset is None:
            self.add_refusal(f"{domain}.{node.op_type}", node, f"the model imports no opset of the domain `{domain}`")
            return False
        newest = KNOWN_OPSETS.get(node.domain)
        if newest is not None and opset > newest:
            self.add_refusal(
                node.op_type,
                node,
                f"opset {opset} of `{domain}` is newer than {newest}, the newest known; export at that one",
            )
            return False
        return True

    def target(
        self, node: ir.Node, opset: int, default_opset: int, schema: OpSchema | None
    ) -> Operator | BodyFunction | SchemaFunction | None:
        operator = lookup(node.domain, node.op_type, opset)
        if operator is not None:
            return operator
        if schema is not None and schema.deprecated:
            self.add_refusal(node.op_type, node, f"ONNX removed it in version {schema.since_version}")
            return None
        bodies = cast("_Bodies", schema)
        if schema is not None and bodies.has_function:
            data = bodies.get_function_with_opset_version(_body_version(bodies.function_opset_versions, opset))
            return _schema_body(schema, onnx.FunctionProto.FromString(data), default_opset)
        if schema is not None and bodies.has_context_dependent_function:
            references = tuple(name for name, attribute in node.attributes.items() if attribute.is_ref())
            body_for = cache(partial(_context_body, schema, node, opset, default_opset))
            return SchemaFunction(schema.name, body_for, references)
        served = versions(node.domain, node.op_type)
        label = operator_name(node)
        if served:
            why = f"version {opset} is not supported; {', '.join(_range(entry) for entry in served)} is"
        elif inside := [
            name for name, attribute in node.attributes.items() if attribute.type is ir.AttributeType.GRAPH
        ]:
            why = (
                f"it runs a graph of its own, as text generation does; import its `{inside[-1]}`, and write the "
                "loop in JAX"
            )
        elif node.domain in KNOWN_OPSETS and node.domain != "com.microsoft":
            why = "it is not implemented" if schema else "ONNX has no such operator at this version"
        else:
            why = f'register a function with `@jaxport.op("{node.domain}", "{node.op_type}")`'
        self.add_refusal(label, node, why)
        return None

    def function(self, function: ir.Function) -> BodyFunction:
        identifier = function.identifier()
        if identifier in self.building:
            raise ModelError(
                f"the function `{function.name}` calls itself",
                where=f"domain `{function.domain}`",
                why="ONNX functions cannot be recursive",
                instead=AGAIN,
            )
        if len(self.building) >= self.limits.nesting:
            raise ModelError(
                f"functions call each other more than {self.limits.nesting} deep",
                where=f"domain `{function.domain}`, function `{function.name}`",
                instead="inline some of them (`onnx.inliner`), or raise the limit: `jaxport.Limits(nesting=…)`",
            )
        if identifier not in self.functions:
            self.building.append(identifier)
            body = self.body(function.graph, function.opset_imports, ())
            self.building.pop()
            defaults = {
                attribute.name: attribute_value(attribute)
                for attribute in function.attributes.values()
                if attribute.type != ir.AttributeType.UNDEFINED
            }
            label = f"{function.domain}.{function.name}" if function.domain else function.name
            self.functions[identifier] = BodyFunction(label, body, defaults)
        return self.functions[identifier]

    def attributes(
        self, node: ir.Node, target: object, schema: OpSchema | None, opsets: Mapping[str, int]
    ) -> dict[str, Attribute] | None:
        """Return the node's attributes in the function's form, or None if something is refused."""
        values: dict[str, Attribute] = {}
        for attribute in node.attributes.values():
            declared = schema.attributes.get(attribute.name) if schema is not None else None
            if isinstance(target, Operator) and attribute.name not in target.attributes:
                if is_ignored(node):
                    continue
                known = ", ".join(target.attributes) or "it has none"
                self.add_refusal(
                    target.label, node, f"the attribute `{attribute.name}` is not one of its attributes: {known}"
                )
                return None
            if attribute.type != ir.AttributeType.UNDEFINED:
                wanted = cast("Any", declared.type).name if declared is not None else _kind(target, attribute)
                if attribute.type.name != wanted:
                    raise ModelError(
                        f"the attribute `{attribute.name}` is {attribute.type.name}, not {wanted}",
                        where=describe(node),
                        instead=AGAIN,
                    )
            check_window(attribute, node)
            if attribute.is_ref():
                assert attribute.ref_attr_name is not None
                values[attribute.name] = Reference(attribute.ref_attr_name)
            elif attribute.type == ir.AttributeType.GRAPH:
                graph = attribute.as_graph()
                values[attribute.name] = self.body(graph, opsets, graph.initializers.values())
            else:
                values[attribute.name] = attribute_value(attribute)
        if isinstance(target, Operator):
            for name, parameter in target.attributes.items():
                if parameter.default is Parameter.empty and name not in values:
                    raise ModelError(f"the attribute `{name}` is missing", where=describe(node), instead=AGAIN)
            for name, what in target.context.items():
                if what == "graph":
                    values[name] = self.differentiated(node, values, opsets)
        return values

    def differentiated(self, node: ir.Node, attributes: Mapping[str, Attribute], opsets: Mapping[str, int]) -> Body:
        """Return the part of the graph that computes the tensor `y` as a function of the tensors in `xs` and `zs`."""
        assert isinstance(node.graph, ir.Graph)
        made = [value for other in node.graph for value in other.outputs]
        named = {value.name: value for value in (*node.graph.inputs, *node.graph.initializers.values(), *made)}
        listed = (*_all_of(attributes["xs"]), *_all_of(attributes.get("zs")), attributes["y"])
        names = [name for name in listed if isinstance(name, str)]
        unknown = [name for name in names if name not in named]
        if unknown:
            raise ModelError(f"nothing computes `{unknown[0]}`", where=describe(node), instead=AGAIN)
        *inputs, output = (named[name] for name in names)
        wanted, chosen = {output}, []
        for other in reversed(node.graph):
            if other is not node and not wanted.isdisjoint(set(other.outputs) - set(inputs)):
                chosen.append(other)
                wanted.update(value for value in other.inputs if value is not None)
        bound = [self.node(other, opsets) for other in reversed(chosen)]
        body = Body("differentiated", tuple(inputs), (output,), {}, [other for other in bound if other is not None])
        own = {*inputs, *(value for other in chosen for value in other.outputs)}
        body.captured = tuple(
            value for value in dict.fromkeys(v for o in body.nodes for v in o.inputs) if value and value not in own
        )
        body.expire()
        choose(body)
        return body


def _all_of(attribute: Attribute) -> tuple[Attribute, ...]:
    """Return the elements of an attribute that has several; nothing if it is left out."""
    return attribute if isinstance(attribute, tuple) else ()


def _kind(target: object, attribute: ir.Attr) -> str:
    """Return the required kind of an attribute without a schema: text or a number, as its default."""
    parameter = target.attributes[attribute.name] if isinstance(target, Operator) else None
    kind = attribute.type.name
    match parameter.default if parameter is not None else None:
        case str():
            return "STRING"
        case int() | float():
            return kind if kind in ("INT", "FLOAT") else "a number"
    return kind


def _schema_body(schema: OpSchema, proto: onnx.FunctionProto, opset: int) -> BodyFunction:
    """Return ONNX's body for an operator, resolved by itself; `opset` is the model's, of ONNX's own operators."""
    if not any(entry.domain in ("", "ai.onnx") for entry in proto.opset_import):
        proto.opset_import.add(domain="", version=opset)
    made = {name for node in proto.node for name in node.output} | set(proto.input)
    kept = tuple(index for index, name in enumerate(proto.output) if name in made)
    # An optional output that the node omits is still declared, without a node that computes it.
    names = [proto.output[index] for index in kept]
    del proto.output[:]
    proto.output.extend(names)
    function = ir.from_proto(proto)
    resolver = _Resolver(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), Limits())
    body = resolver.body(function.graph, function.opset_imports, ())
    resolver.refuse(f"ONNX's definition of `{schema.name}`")
    defaults = {
        name: attribute_value(ir.serde.deserialize_attribute(attribute.default_value))
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    return BodyFunction(schema.name, body, defaults, kept)


def _context_body(
    schema: OpSchema,
    node: ir.Node,
    opset: int,
    default_opset: int,
    inputs: tuple[InputType, ...],
    references: tuple[tuple[str, Any], ...],
) -> BodyFunction:
    """Return ONNX's body for an operator whose body depends on the types of its inputs.

    `references` has the values of the attributes that the node takes from the enclosing function.
    """
    types = []
    for operand in inputs:
        proto = onnx.TypeProto()
        if operand is not None:
            dtype, shape = operand
            proto.tensor_type.elem_type = ir.DataType.from_numpy(dtype)
            for size in shape:
                dim = proto.tensor_type.shape.dim.add()
                if isinstance(size, int):
                    dim.dim_value = size
                else:
                    dim.dim_param = str(size)
        types.append(proto.SerializeToString())
    bodies = cast("_Bodies", schema)
    version = _body_version(bodies.context_dependent_function_opset_versions, opset)
    proto = ir.to_proto(node)
    own = [attribute for attribute in proto.attribute if not attribute.ref_attr_name]
    own += [ir.to_proto(ir.convenience.convert_attribute(name, value)) for name, value in references]
    del proto.attribute[:]
    proto.attribute.extend(own)
    data = bodies.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
    return _schema_body(schema, onnx.FunctionProto.FromString(data), default_opset)


def _body_version(versions: Sequence[int], opset: int) -> int:
    """Choose among a schema's bodies: the newest that the model could have written, else the oldest."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _range(entry: Operator) -> str:
    return f"{entry.since} to {entry.until}" if entry.until else f"{entry.since} and later"


def _live(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes that the outputs depend on, in order."""
    needed = set(graph.outputs)
    live = []
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs):
            continue
        live.append(node)
        inner = list(subgraphs([node]))
        needed.update(value for graph in inner for value in graph.outputs)
        needed.update(value for each in chain([node], *inner) for value in each.inputs if value is not None)
    return reversed(live)


def _check_inputs(node: ir.Node, inputs: tuple[ir.Value | None, ...], target: object, schema: OpSchema | None) -> None:
    if isinstance(target, BodyFunction):
        most, required = len(target.body.inputs), []
    elif isinstance(target, Operator) and not target.plain:
        most = None if target.variadic else len(target.inputs)
        required = [index for index, formal in enumerate(target.inputs) if formal.default is Parameter.empty]
    elif schema is not None:
        most, required = schema.max_input, range(schema.min_input)
    else:
        return
    missing = [index for index in required if index >= len(inputs) or inputs[index] is None]
    if missing or (most is not None and len(inputs) > most):
        if isinstance(target, BodyFunction):
            formal: Sequence[ir.Value | Parameter | OpSchema.FormalParameter] = target.body.inputs
        elif isinstance(target, Operator) and not target.plain:
            formal = target.inputs
        else:
            formal = [] if schema is None else list(schema.inputs)
        names = [parameter.name for parameter in formal]
        raise ModelError(
            f"the input `{names[missing[0]]}` is missing"
            if missing
            else f"{len(inputs)} inputs are given, {most} are taken",
            where=describe(node),
            instead=AGAIN,
        )


def _output_types(
    schema: OpSchema | None, inputs: tuple[ir.Value | None, ...], count: int
) -> tuple[int | np.dtype | None, ...]:
    """Return for each output the input that has the same type, or the only type that the schema allows, or None."""
    if schema is None:
        return (None,) * count
    formal_inputs, formal_outputs = list(schema.inputs), list(schema.outputs)
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    bound: dict[str, int] = {}
    for index, value in enumerate(inputs):
        formal = formal_inputs[min(index, len(formal_inputs) - 1)]
        if value is not None and (formal.option != OpSchema.FormalParameterOption.Variadic or formal.is_homogeneous):
            bound.setdefault(formal.type_str, index)
    types: list[int | np.dtype | None] = []
    for index in range(count):
        formal = formal_outputs[min(index, len(formal_outputs) - 1)]
        allowed = constraints.get(formal.type_str, [formal.type_str])
        varied = formal.option == OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
        if varied or (formal.type_str in bound and formal.type_str not in constraints):
            types.append(None)
        elif formal.type_str in bound:
            types.append(bound[formal.type_str])
        else:
            types.append(from_type_string(allowed[0]) if len(allowed) == 1 else None)
    return tuple(types)

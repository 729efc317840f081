"""Modules as structures of Rust: the classes of a tree."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from jaxport.codegen.burn.checks import check_statement, element_statements
from jaxport.codegen.burn.definitions import Struct, default_of, modules_in, parameter, snake_case
from jaxport.codegen.burn.forward import RustCalls
from jaxport.codegen.burn.helpers import names as helper_names
from jaxport.codegen.burn.layers import camel_case, layer_type, without_default_options
from jaxport.codegen.burn.steps import Functions
from jaxport.codegen.burn.values import NotPrintable, held, is_narrow, tensor_type
from jaxport.codegen.nodes import TreeNode, TreeNumber
from jaxport.codegen.rust.text import expression_text
from jaxport.codegen.rust.tree import (
    Closure,
    FieldAccess,
    For,
    Identifier,
    Invocation,
    Let,
    Literal,
    Method,
    Number,
    Return,
    RustExpression,
    RustFunction,
    RustRange,
    RustStatement,
    Structure,
    Tuple,
    Vector,
    constant,
    has_name,
    method,
    path_call,
    place,
    returned_at_once,
    walk,
)
from jaxport.codegen.tree import Layer, Module, Weight
from jaxport.codegen.writing.classes import Classes, Draft
from jaxport.codegen.writing.dialect import LayerLibrary
from jaxport.codegen.writing.drafts import plain_name
from jaxport.codegen.writing.fields import Entry, Fields, fields_of, key_of
from jaxport.codegen.writing.language import Language
from jaxport.codegen.writing.literals import storable
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.size_names import size_names
from jaxport.errors import Refusal
from jaxport.importer.traced.assumptions import Bounds
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Variable

MOST_TOGETHER = 4
"""Results of a model that are a tuple; more are a structure with names."""


@dataclass(eq=False)
class Structs(Classes[LayerLibrary[RustExpression], Struct, RustExpression, RustStatement]):
    """Makes the structures of a tree.

    `read` has the elements of those arguments of the model that are sizes, `counted` the sizes that follow from values.
    """

    private: Functions = field(default_factory=lambda: Functions(set()))
    refusals: list[Refusal] = field(default_factory=list)
    read: Mapping[str, HostValue] = field(default_factory=dict)
    counted: Mapping[str, Bounds] = field(default_factory=dict)

    def _read(self, names: Collection[str]) -> tuple[Sequence[RustStatement], set[str]]:
        statements, known = element_statements(self.read, names)
        if statements:
            self.private.helpers.add("sizes_in")
        return statements, known

    def _language(self, names: ModuleNames[RustExpression], arguments: Mapping[Variable, str]) -> RustCalls:
        # A value that has the name of a function would hide it.
        names.taken |= {"device", *helper_names(), *self.private.texts.values()}
        names.given = self.private.taken
        own = size_names([*arguments])
        counted = {size: bounds for size, bounds in self.counted.items() if size not in own}
        return RustCalls(names, self.dialect, self.private, self.refusals, counted)

    def _spelled(self, wanted: str) -> str:
        return camel_case(wanted)

    def _is_free(self, wanted: str) -> bool:
        """Whether a structure may have a name: none has it, and no configuration."""
        return not {wanted, f"{wanted}Config", wanted.removesuffix("Config")} & self.names

    def _unique(self, wanted: str) -> str:
        stem = self._spelled(wanted)
        numbered = (f"{stem}{number if number > 1 else ''}" for number in count(1))
        return next(filter(self._is_free, numbered))

    def _parts_of(self, module: Module) -> Fields:
        """Return the fields of a structure: the elements of a list are of one type, or fields of their own."""
        fields = fields_of(module, self.dialect.reserved, snake_case)
        for key in [*fields.lists]:
            children = [*_flat(fields.lists[key], ())]
            is_layer = len(children) == 1 and isinstance(children[0][0], Layer)
            if is_layer or len({self._type(child) for child, _ in children}) > 1:
                place = fields.order.index(key)
                own: list[str] = []
                del fields.lists[key]
                for child, path in children:
                    chosen = fields.fresh("_".join((key, *map(str, path))))
                    fields.single[chosen], fields.paths[key_of(child)] = child, (chosen,)
                    own.append(chosen)
                fields.order[place : place + 1] = own
        return fields

    def _type(self, entry: Entry) -> str:
        if isinstance(entry, list):
            return f"Vec<{self._type(entry[0])}>"
        return layer_type(entry) if isinstance(entry, Layer) else self.drafts[entry].constructor[0]

    def _method(
        self,
        language: Language[RustExpression, RustStatement],
        arguments: Mapping[Variable, str],
        sizes: Sequence[str],
        body: list[RustStatement],
        result: object,
        is_root: bool,
    ) -> RustFunction:
        assert isinstance(language, RustCalls)
        parameters, types = [*arguments.values()], [kind_of_value(variable, self) for variable in arguments]
        body = [check_statement(parameters), *body] if is_root and arguments else body
        statements = returned_at_once(body)
        kinds = [kind_of_value(one, self) for one in (result if isinstance(result, tuple | list) else [result])]
        returned = kinds[0] if not isinstance(result, tuple | list) else f"({', '.join(kinds)})"
        if is_root and isinstance(result, tuple) and len(result) > MOST_TOGETHER:
            last = statements[-1]
            assert isinstance(last, Return)
            parts = last.value
            if not isinstance(parts, Tuple):  # one call returns all of them
                assert parts is not None
                statements.insert(-1, Let(Tuple([Identifier(key) for key in self.result_names]), parts))
                parts = Tuple([Identifier(key) for key in self.result_names])
            statements[-1] = Return(Structure("Outputs", [*self.result_names], parts.elements))
            returned = "Outputs"
        named = {name: value for value, name in arguments.items()}
        named |= (
            dict(zip(self.output_names, result if isinstance(result, tuple) else (result,), strict=True))
            if is_root
            else {}
        )
        few_bits = _few_bits(named) if is_root else []
        if has_name(statements, "device"):
            statements.insert(int(is_root and bool(parameters)), self._device(parameters, language))
        parameters += sizes
        types += ["usize"] * len(sizes)
        return RustFunction(
            "forward", parameters, types, returned, statements,
            is_method=True, is_public=True, documentation="\n".join(["Computes the module.", *few_bits]),
        )  # fmt: skip

    @property
    def result_names(self) -> list[str]:
        """The names of the fields of the model's results."""
        from jaxport.importer.names import unique_identifiers

        return unique_identifiers([key.lower() for key in self.output_names], "output")

    output_names: Sequence[str] = ()

    def _device(self, parameters: Sequence[str], language: RustCalls) -> RustStatement:
        source: RustExpression
        if parameters:
            source = method(Identifier(parameters[0]), "device", borrows=True)
        else:
            source = path_call("Device::default")
            for key in language.names.fields.weights.values():
                source = method(method(_field(key), "val", borrows=True), "device", borrows=True)
                break
        return Let(Identifier("device"), source)

    def _init(self, fields: Fields, module: Module, tables: Mapping[str, HostValue]) -> dict[str, RustExpression]:
        init: dict[str, RustExpression] = {}
        for key in fields.order:
            init[key] = self._made(fields.single[key] if key in fields.single else fields.lists[key])
        for variable, key in fields.weights.items():
            weight = module.weights[variable]
            assert isinstance(weight, Weight)
            start = self.starts[weight.name] if weight.trained else "zeros"
            init[key] = parameter(weight.shape, weight.dtype, weight.trained, start)
        for key, value in tables.items():
            array, _ = storable(value.data)
            init[key] = parameter(array.shape, array.dtype, False)
        return init

    def _made(self, child: Entry) -> RustExpression:
        if isinstance(child, list):
            made = [self._made(one) for one in child]
            if len(made) > 1 and len({*map(expression_text, made)}) == 1:
                run = RustRange(Literal("0"), constant(len(made), "depth"))
                return method(method(run, "map", Closure(["_"], made[0])), "collect")
            return Vector(made)
        if isinstance(child, Layer):
            return self.dialect.layers[child.kind].build(child)
        made, arguments, options = self.drafts[child].constructor
        values = [copy.deepcopy(one) for one in (*arguments, *options.values()) if isinstance(one, Number)]
        if not values:
            return path_call(f"{made}::new", Identifier("device"))
        defaults = {value.role: default_of(value.role) for value in values}
        required = [value for value in values if defaults[value.role] is None]
        configured: RustExpression = path_call(f"{made}Config::new", *required)
        for value in values:
            default = defaults[value.role]
            if default is not None:
                configured = method(configured, f"with_{value.role}", value)
                configured.is_default = value.value == default
        return method(configured, "init", Identifier("device"))

    def _called(self, node: TreeNode) -> str:
        match node:
            case Invocation():
                return node.path
            case Method() | Structure():
                return node.name
        return ""

    def _argument(self, number: TreeNumber, role: str) -> Number:
        assert isinstance(number, Number)
        return Number(number.value, role=role)

    def _attribute(self, path: str) -> RustExpression:
        return place(path)

    def _returned(self, method: RustStatement) -> tuple[str, ...]:
        """Return what results are called, or the parts that make them; of one result nothing."""
        last = method.body[-1] if isinstance(method, RustFunction) else None
        result = last.value if isinstance(last, Return) else None
        return tuple(map(_name_of, result.elements)) if isinstance(result, Tuple) else ()

    def _class(
        self, made: str, draft: Draft, arguments: Mapping[str, list[int]], columns: Sequence[Sequence[TreeNumber]],
        functions: Sequence[str] = (),  # noqa: ARG002  a structure takes none
    ) -> Struct:  # fmt: skip
        kinds = {"int": "usize", "float": "f64", "bool": "bool"}
        types = {key: kinds[type(columns[places[0]][0].value).__name__] for key, places in arguments.items()}
        types = {key: kind for key, kind in types.items() if kind != "bool"} | {
            k: v for k, v in types.items() if v == "bool"
        }
        held = self._parameter_types(draft)
        fields: dict[str, str] = {}
        for key, value in draft.init.items():
            if key in draft.fields.single:
                fields[key] = self._type(draft.fields.single[key])
            elif key in draft.fields.lists:
                fields[key] = f"Vec<{self._type(draft.fields.lists[key][0])}>"
            elif isinstance(value, Identifier) and key in types:
                fields[key] = types[key]
            else:
                fields[key] = f"Param<{held[key]}>"
        init = {key: without_default_options(value) for key, value in draft.init.items()}
        assert isinstance(draft.method, RustFunction)
        copied = {*self.known_sizes, *draft.sizes, "device"}
        loops = {name for node in walk(draft.method) if isinstance(node, For) for name in modules_in(node)}
        return Struct(made, fields, types, init, draft.method, copied | loops, _title(draft), self.private.sizes)

    def _parameter_types(self, draft: Draft) -> dict[str, str]:
        """Return the types of the tensors that a module holds, by field."""
        weights = {key: draft.module.weights[variable] for variable, key in draft.fields.weights.items()}
        types = {key: tensor_type(one.shape, one.dtype) for key, one in weights.items() if isinstance(one, Weight)}
        arrays = {key: storable(value.data)[0] for key, value in draft.tables.items()}
        return types | {key: tensor_type(array.shape, array.dtype) for key, array in arrays.items()}


def _field(key: str) -> RustExpression:
    return FieldAccess(Identifier("self"), key)


def _name_of(result: RustExpression) -> str:
    """Return the name that a result has, or that the part of the module has that computes it; empty for others and for
    `x`.
    """
    receiver = result.receiver if isinstance(result, Method) else result
    if isinstance(receiver, FieldAccess) and isinstance(receiver.value, Identifier) and receiver.value.id == "self":
        return receiver.field
    return plain_name(receiver.id) if isinstance(receiver, Identifier) else ""


def _title(draft: Draft) -> str:
    from jaxport.codegen.writing.literals import comment

    path = draft.module.path
    return f"The module `{comment(path)}` of the model." if path else "The model."


def _few_bits(values: Mapping[str, Any]) -> list[str]:
    """Return the lines that say which inputs and results are numbers of few bits, by type."""
    names: dict[np.dtype, list[str]] = {}
    for name, value in values.items():
        dtype = np.dtype(value.dtype)
        if is_narrow(dtype):
            names.setdefault(dtype, []).append(f"`{name}`")
    return [f"Numbers of {dtype.name}, as {held(dtype).name}: {', '.join(some)}." for dtype, some in names.items()]


def kind_of_value(value: object, structs: Structs) -> str:
    """Return the type of a value of a program."""
    if isinstance(value, Variable):
        try:
            return tensor_type(value.shape, value.dtype)
        except NotPrintable as error:
            structs.refusals.append(error.refusal(f"`{value.hint}`"))
            return "()"
    if isinstance(value, HostValue):
        return tensor_type(value.shape, np.dtype(value.to_jax().dtype) if not value.symbolic else np.dtype("int32"))
    raise NotPrintable("a result that is not an array", "let the model return arrays")


def _flat(entries: Sequence[Entry], path: tuple[int, ...]) -> Iterator[tuple[Module | Layer, tuple[int, ...]]]:
    for number, entry in enumerate(entries):
        if isinstance(entry, list):
            yield from _flat(entry, (*path, number))
        else:
            yield entry, (*path, number)

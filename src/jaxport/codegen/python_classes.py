"""Modules as classes of Python: what a constructor assigns, and what a call computes.

Modules that are sequences become no classes of their own, and statements that a method repeats become functions.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxport.codegen.nodes import TreeNode, TreeNumber
from jaxport.codegen.python.calls import PythonCalls
from jaxport.codegen.python.numbers import activations_of, text_of
from jaxport.codegen.python.shared_functions import outlined
from jaxport.codegen.structure.sequences import elements_of
from jaxport.codegen.tree import Call, Layer, Module, Op, Weight
from jaxport.codegen.writing.calls import CallPrinter
from jaxport.codegen.writing.classes import Classes, Sequential
from jaxport.codegen.writing.dialect import Dialect, in_runs, listed, with_role, without_defaults
from jaxport.codegen.writing.drafts import Draft, plain_name
from jaxport.codegen.writing.fields import Entry, Fields
from jaxport.codegen.writing.initial_values import begun, filled
from jaxport.codegen.writing.language import Language
from jaxport.codegen.writing.literals import attribute, call, name, storable
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.size_names import size_statements
from jaxport.importer.names import identifier, unique
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Variable

FUNCTION = "Callable[[Array], Array]"
"""The type of an activation that is an argument."""


@dataclass(eq=False)
class PythonClasses(Classes[Dialect, ast.ClassDef | ast.FunctionDef, ast.expr, ast.stmt]):
    """Makes the classes of a tree for a framework of Python; `functions` are the names of those that sequences call, by
    their text.
    """

    functions: dict[str, str] = field(default_factory=dict)

    def _sequential(self, module: Module) -> Sequential | None:
        """Return the elements of a module that is a sequence, if its functions need nothing but their argument."""
        elements = elements_of(module)
        if elements is None or any(
            isinstance(item, Call) and item.module in self.drafts and self.drafts[item.module].sizes
            for item in elements.modules.values()
        ):
            return None
        made: list[Module | Layer | str] = ["nn.identity"] * elements.count
        for number, item in elements.modules.items():
            made[number] = item if isinstance(item, Layer) else item.module
        for number, ops in elements.functions.items():
            end = [item.inputs for item in elements.modules.values()] + [module.outputs]
            results = {variable for op in ops for variable in op.outputs}
            (result,) = {variable for inputs in end for variable in inputs if variable in results}
            path = re.split(r"\.(?=\D)", re.sub(r"@\d+", "", module.path))[-1]
            function = self._function(ops, result, identifier(f"{path}_{number}".lower(), "function"))
            if function is None:
                return None
            made[number] = function
        return Sequential(self.dialect.sequential[elements.stem], tuple(made))

    def _function(self, ops: Sequence[Op], result: Variable, wanted: str) -> str | None:
        """Return the name of a function that operators are: one of JAX, or one that is defined for them."""
        inside = {variable for op in ops for variable in op.outputs}
        (argument,) = {variable for op in ops for variable in op.inputs if variable not in inside}
        taken = {*self.reserved, *self.known_sizes, "x"}
        language = PythonCalls(ModuleNames(taken, name), library=self.dialect)
        printer = CallPrinter(language, roles=self.roles)
        printer.arguments({argument: "x"})
        body = printer.body(ops, result)
        reading, missing = size_statements({"x": argument}, language.dims & {*self.known_sizes})
        if missing or language.tables:
            return None
        statements = [*language.sizes(reading), *body]
        expression = body[-1].value if isinstance(body[-1], ast.Return) else None
        called = ast.unparse(expression.func) if isinstance(expression, ast.Call) else ""
        if len(statements) == 1 and expression is not None and ast.unparse(expression) == f"{called}(x)":
            return called
        parameters = ast.arguments([], [ast.arg("x", name("Array"))], None, [], [], None, [])
        text = "\n".join(map(ast.unparse, statements))
        if text not in self.functions:
            simple = called.rpartition(".")[2] if len(statements) == 1 and called.startswith(("nn.", "jnp.")) else ""
            chosen = unique(simple or wanted, self.names)
            self.names.add(chosen)
            self.functions[text] = chosen
            definition = ast.FunctionDef(chosen, parameters, statements, [], name("Array"), None, lineno=0)
            self.definitions.append(definition)
        return self.functions[text]

    def _language(self, names: ModuleNames[ast.expr], arguments: Mapping[Variable, str]) -> PythonCalls:  # noqa: ARG002
        return PythonCalls(names, library=self.dialect)

    def _called(self, node: TreeNode) -> str:
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute):
            return function.attr
        return function.id if isinstance(function, ast.Name) else ""

    def _method(
        self,
        language: Language[ast.expr, ast.stmt],  # noqa: ARG002  other targets ask it what the method needs
        arguments: Mapping[Variable, str],
        sizes: Sequence[str],
        body: list[ast.stmt],
        result: object,
        is_root: bool,  # noqa: ARG002  the model itself checks its inputs in some
    ) -> ast.stmt:
        """Return the method that computes a module."""
        return _method(arguments, sizes, body, result)

    def _returned(self, method: ast.stmt) -> tuple[str, ...]:
        """Return the names of the results of a method, or of the parts that make them."""
        return _returned_names(method)

    def _argument(self, number: TreeNumber, role: str) -> ast.Constant:
        """Return a number of a class as an argument of its constructor."""
        assert isinstance(number, ast.Constant)
        return with_role(ast.Constant(number.value), role)

    def _attribute(self, path: str) -> ast.expr:
        """Return a name, or the attribute at a path."""
        return attribute(path)

    def _activations(self, draft: Draft) -> list[tuple[TreeNode, str]]:
        return [(node, text_of(node)) for node in activations_of(draft.method)]

    def _plain(self, draft: Draft) -> Draft:
        init = {key: without_defaults(copy.deepcopy(value)) for key, value in draft.init.items()}
        return replace(draft, init=init, method=without_defaults(copy.deepcopy(draft.method)))

    def _init(self, fields: Fields, module: Module, tables: Mapping[str, HostValue]) -> dict[str, ast.expr]:
        init: dict[str, ast.expr] = {}
        for key in fields.order:
            if key in fields.single:
                init[key] = self._made(fields.single[key])
            else:
                init[key] = self._made(fields.lists[key])
        for variable, key in fields.weights.items():
            weight = module.weights[variable]
            assert isinstance(weight, Weight)
            if weight.trained:
                init[key] = self.dialect.parameter(begun(weight, self.starts[weight.name], self.dialect))
            else:
                init[key] = self.dialect.table(filled("zeros", weight.shape, weight.dtype))
        for key, value in tables.items():
            array, _ = storable(value.data)
            init[key] = self.dialect.table(filled("zeros", array.shape, array.dtype))
        return init

    def _made(self, child: Entry) -> ast.expr:
        if isinstance(child, list):
            return self._list([self._made(one) for one in child])
        if isinstance(child, Layer):
            return self.dialect.layers[child.kind].build(child)
        if child in self.sequences:
            sequence = self.sequences[child]
            elements = [attribute(one) if isinstance(one, str) else self._made(one) for one in sequence.elements]
            return sequence.form.build(in_runs(elements))
        made, arguments, options = self.drafts[child].constructor
        keyword = self.dialect.signature[0]
        return call(made, *map(copy.deepcopy, arguments), **copy.deepcopy(dict(options)), **{keyword: name(keyword)})

    def _list(self, elements: Sequence[ast.expr]) -> ast.expr:
        return self.dialect.sequence(listed(in_runs(elements)))

    def _class(
        self, made: str, draft: Draft, arguments: Mapping[str, list[int]], columns: Sequence[Sequence[TreeNumber]],
        functions: Sequence[str] = (),
    ) -> ast.ClassDef:  # fmt: skip
        keyword, kind = self.dialect.signature
        types = {argument: type(columns[places[0]][0].value).__name__ for argument, places in arguments.items()}
        positional = [ast.arg(argument, name(type_)) for argument, type_ in types.items() if type_ != "bool"]
        options = [ast.arg(argument, name(type_)) for argument, type_ in types.items() if type_ == "bool"]
        types |= dict.fromkeys(functions, FUNCTION)
        positional += [ast.arg(argument, _type(FUNCTION)) for argument in functions]
        options.append(ast.arg(keyword, attribute(kind)))
        parameters = ast.arguments([], [ast.arg("self"), *positional], None, options, [None] * len(options), None, [])
        body: list[ast.stmt] = [
            self._assigned(ast.Attribute(name("self"), key, ast.Store()), value, key in draft.fields.lists)
            for key, value in draft.init.items()
        ]
        init = ast.FunctionDef("__init__", parameters, body or [ast.Pass()], [], None, None, lineno=0)
        declared: list[ast.stmt] = []
        if self.dialect.declared:
            fields = [(key, *self._declared(draft, key, types)) for key in draft.init]
            declared = [ast.AnnAssign(ast.Name(key, ast.Store()), kind, default, 1) for key, kind, default in fields]
        assert isinstance(draft.method, ast.FunctionDef)
        found = outlined(draft.method, {*self.names, *draft.init})
        self.names |= {function.name for function in found.functions}
        self.definitions += found.functions
        methods = [*found.methods, found.method]
        made_class = ast.ClassDef(made, [attribute(self.dialect.base)], [], [*declared, init, *methods], [])
        return without_defaults(made_class)

    def _assigned(self, target: ast.Attribute, value: ast.expr, is_list: bool) -> ast.stmt:
        """Return the assignment of an attribute; type checkers know a list of several classes by its annotation
        only.
        """
        listed = next((node.elts for node in ast.walk(value) if isinstance(node, ast.List)), [])
        if not is_list or self.dialect.declared or len({ast.dump(_class_of(element)) for element in listed}) < 2:
            return ast.Assign([target], value, lineno=0)
        assert isinstance(value, ast.Call)
        annotation = ast.Subscript(value.func, name("Any"), ast.Load())
        return ast.AnnAssign(target, annotation, value, 0)

    def _declared(self, draft: Draft, key: str, types: Mapping[str, str]) -> tuple[ast.expr, ast.expr | None]:
        """Return the type of a field, and its default if it has one."""
        made = draft.init[key]
        if key in draft.fields.lists:
            return name("list"), None
        if key in draft.fields.single and isinstance(made, ast.Call):
            return made.func, None
        if isinstance(made, ast.Name):  # a number that is an argument of the constructor
            return _type(types[made.id]), call("eqx.field", static=ast.Constant(True))
        return name("Array"), None


def _method(
    arguments: Mapping[Variable, str], sizes: Sequence[str], body: list[ast.stmt], result: object
) -> ast.FunctionDef:
    returned = ast.parse("tuple[Array, ...]" if isinstance(result, tuple) else "Array", mode="eval").body
    parameters = ast.arguments(
        [],
        [ast.arg("self"), *(ast.arg(argument, name("Array")) for argument in arguments.values())],
        None,
        [ast.arg(size, name("int")) for size in sizes],
        [None] * len(sizes),
        None,
        [],
    )
    return ast.FunctionDef("__call__", parameters, body, [], returned, None, lineno=0)


def _returned_names(method: ast.stmt) -> tuple[str, ...]:
    """Return the names of the results of a method, or of the parts that make them; empty for what has none."""
    ends = [node.value for node in ast.walk(method) if isinstance(node, ast.Return)]
    return tuple(map(_name_of, ends[-1].elts)) if ends and isinstance(ends[-1], ast.Tuple) else ()


def _name_of(node: ast.expr) -> str:
    """Return the name that a value has, or that the part of the module has that computes it; empty for others and for
    `x`.

    >>> [_name_of(ast.parse(text, mode="eval").body) for text in ("key_2", "self.norm(x)", "x", "a + b")]
    ['key', 'norm', '', '']
    """
    receiver = node.func if isinstance(node, ast.Call) else node
    if isinstance(receiver, ast.Attribute) and isinstance(receiver.value, ast.Name) and receiver.value.id == "self":
        return receiver.attr
    return plain_name(receiver.id) if isinstance(receiver, ast.Name) else ""


def _class_of(element: ast.expr) -> ast.expr:
    """Return the class of an element of a list, or of a run of equal ones."""
    if isinstance(element, ast.Starred) and isinstance(element.value, ast.GeneratorExp):
        element = element.value.elt
    return element.func if isinstance(element, ast.Call) else element


def _type(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body

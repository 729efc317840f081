"""Modules as structures of Rust: the classes of a tree, and the statements of their `forward`."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import jax
import numpy as np

from jaxport.codegen.burn.checks import check_statement, element_statements, panicking, size_check
from jaxport.codegen.burn.definitions import Struct, default_of, modules_in, snake_case
from jaxport.codegen.burn.helpers import names as helper_names
from jaxport.codegen.burn.layers import (
    camel_case,
    forward,
    is_cell,
    last_step,
    layer_type,
    without_default_options,
)
from jaxport.codegen.burn.parameters import parameter
from jaxport.codegen.burn.steps import Functions, StepPrinter
from jaxport.codegen.burn.values import NotPrintable, kind_of, tensor_type
from jaxport.codegen.rust.nodes import (
    Array,
    Borrow,
    Closure,
    Invocation,
    Literal,
    Method,
    RustFunction,
    RustRange,
    Structure,
    Vector,
    method,
    path_call,
    returned_at_once,
)
from jaxport.codegen.rust.text import expression_text
from jaxport.codegen.tree import Call, Item, Layer, Module, Weight
from jaxport.codegen.writing.calls import CallPrinter
from jaxport.codegen.writing.classes import Classes, Draft
from jaxport.codegen.writing.dialect import constant
from jaxport.codegen.writing.fields import Entry, Fields, fields_of, key_of
from jaxport.codegen.writing.literals import attribute, name, storable
from jaxport.codegen.writing.sizes import size_names, size_statements
from jaxport.errors import Refusal
from jaxport.importer.traced.assumptions import Bounds
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.recording import Step, Variable

__all__ = ["RustCalls", "Structs"]

MOST_TOGETHER = 4
"""Results of a model that are a tuple; more are a structure with names."""


@dataclass
class RustCalls(CallPrinter):
    """Prints one module's computation as statements of Rust.

    Attributes:
      functions: the private functions of the model.
      refusals: what has no form in Rust.
      uses_device: whether a tensor is created.
      zeros: the values that are zeros, under names.
      counted: the sizes that follow from values, and what each has to be.
    """

    functions: Functions = field(default_factory=lambda: Functions(set()))
    refusals: list[Refusal] = field(default_factory=list)
    uses_device: bool = False
    zeros: set[Variable] = field(default_factory=set)
    counted: Mapping[str, Bounds] = field(default_factory=dict)

    def arguments(self, names: dict[Variable, str]) -> None:
        super().arguments(names)
        self.counted = {size: bounds for size, bounds in self.counted.items() if size not in size_names([*names])}

    def body(self, items: Sequence[Item], result: RuntimeValue) -> list[ast.stmt]:
        """Return the statements that compute a result; those that read sizes for nothing are left out."""
        statements = super().body(items, result)
        read = [getattr(one, "reads", None) for one in statements]
        return [one for one, sizes in zip(statements, read, strict=True) if sizes is None or sizes & self.dims]

    def text(self, expression: ast.expr) -> str:
        return expression_text(expression)

    def _free(self, wanted: str) -> str:
        """Return a name that no function has: a value would hide it."""
        self.taken |= {*helper_names(), *self.functions.texts.values()}
        chosen = super()._free(wanted)
        self.functions.taken.add(chosen)
        return chosen

    def _names_of(self, step: Step) -> str | Sequence[str]:
        return ("greatest", "indices") if step.name == "lax.top_k" else super()._names_of(step)

    def nested(self, step: Step) -> list[ast.stmt]:  # noqa: ARG002  functions inside a step are traced with it
        return []

    def _steps(self) -> StepPrinter:
        return StepPrinter(self.functions, self._read, self.stored, self.dims)

    def _read(self, variable: Variable) -> ast.expr:
        return copy.deepcopy(self.expressions[variable])

    def expression(self, step: Step) -> ast.expr:
        if isinstance(step.node, Layer):
            inputs = [self.value(value) for value in step.args]
            if step.node.config.get("is_causal"):
                return self.functions.helper("causal_attention", Borrow(self._part(step)), inputs[0])
            if step.node.kind == "Embed" and not _is_inside(step.node, step.args[0]):
                return self._embedded(self._part(step), inputs[0], len(step.node.inputs[0].shape))
            return forward(step.node, self._part(step), inputs)
        if step.name in self.tied.values():
            return self._embedded(
                ast.parse(step.name, mode="eval").body, self.value(step.args[0]), len(step.args[0].shape)
            )
        if isinstance(step.node, Call):
            return self.invoked(self._part(step), [self.value(value) for value in step.args], [*step.kwargs])
        steps = self._steps()
        try:
            made = steps.expression(step)
        except NotPrintable as error:
            self.refusals.append(error.refusal(_where(step)))
            made = Literal("()")
        self.uses_device |= steps.uses_device
        return self._with_lists(made)

    def _statements(self, step: Step, uses: Counter[Variable], reader: int | None, end: int) -> list[ast.stmt]:
        if isinstance(step.node, Layer) and is_cell(step.node):
            return self._cell(step, step.node, uses)
        found = self.counted.keys() & size_names(step.outputs) - self.made_sizes
        statements = super()._statements(step, uses, None if found else reader, end)
        statements += self._counting(step, found)
        if isinstance(step.outputs, Variable) and any(_is_zeros(getattr(one, "value", None)) for one in statements):
            self.zeros.add(step.outputs)
        return statements

    def _counting(self, step: Step, names: Collection[str]) -> list[ast.stmt]:
        """Return the statements that read sizes from the results of a step, of which they are, and check them."""
        outputs = [leaf for leaf in jax.tree.leaves(step.outputs) if isinstance(leaf, Variable)]
        made = {text.id: one for one in outputs if isinstance(text := self.expressions.get(one), ast.Name)}
        statements, missing = size_statements(made, names)
        found = {*names} - missing
        self.made_sizes |= found
        for statement in statements:
            statement.reads = found  # type: ignore[attr-defined]
        for size in sorted(found):
            least, most = self.counted[size]
            if (least, most) != (0, None) and not isinstance(step.node, Call):  # inside, it was checked
                self.dims.add(size)
                self.functions.helpers.add("check_size")
                statements.append(panicking(size_check(size, (least, most))))
        return statements

    def _cell(self, step: Step, layer: Layer, uses: Counter[Variable]) -> list[ast.stmt]:
        """Return the statements of a recurrent layer, such as `let (x, LstmState { cell, hidden }) = …`."""
        _, carry, x = step.args
        carry = carry if isinstance(carry, tuple) else (carry,)
        states = [self.value(state) for state in carry]
        is_new = all(
            _is_zeros(made) or (isinstance(state, Variable) and state in self.zeros)
            for state, made in zip(carry, states, strict=True)
        )
        states = states if layer.kind == "GRU" else [path_call("LstmState::new", *states)]
        state = Literal("None") if is_new else path_call("Some", *states)
        part = ast.parse(self.fields.text(layer), mode="eval").body
        last, rows = step.outputs
        if layer.kind != "GRU":
            parts = [self.target(one, uses, role) for one, role in zip(last, ("cell", "hidden"), strict=True)]
            pattern = [self.target(rows, uses, "x"), Structure("LstmState", ["cell", "hidden"], parts)]
            called = self.functions.helper("lstm_steps", Borrow(part), self.value(x), state)
            return [ast.Assign([ast.Tuple(pattern, ast.Store())], called, lineno=0)]
        is_reversed = layer.config["reverse"]  # Burn's GRU goes forward
        first = self.value(x)
        first = method(first, "flip", Array([Literal("0")])) if is_reversed else first
        made = self.functions.helper("gru_steps", Borrow(part), first, state)
        made = method(made, "flip", Array([Literal("0")])) if is_reversed else made
        target = ast.Name(self.bind(rows, "x"), ast.Store())
        statements: list[ast.stmt] = [ast.Assign([target], made, lineno=0)]
        if uses[last]:
            ending = last_step(ast.Name(target.id, ast.Load()), is_reversed)
            statements.append(ast.Assign([self.target(last, uses, "hidden")], ending, lineno=0))
        return statements

    def _embedded(self, part: ast.expr, indices: ast.expr, rank: int) -> ast.expr:
        """Return the rows of an embedding at indices that may be negative, or outside."""
        own = max(1, rank)
        called = self.functions.helper("embed", Borrow(part), indices, generics=f"{own}, {own + 1}")
        return called if rank else method(called, "squeeze_dim", Literal("0"), generics="1")

    def _part(self, step: Step) -> ast.expr:
        return self.function_name(step.name)

    def invoked(self, called: ast.expr, arguments: list[ast.expr], sizes: Sequence[str]) -> ast.expr:
        return method(called, "forward", *arguments, *(self.size(name(size)) for size in sizes), borrows=True)

    def rows(self, row: Variable | tuple[Variable, ...]) -> ast.expr:
        if isinstance(row, tuple):
            for chosen, made in self.lists.items():
                if len(made) == len(row) and all(one is other for one, other in zip(made, row, strict=True)):
                    return name(chosen)
            return Array([self.value(variable) for variable in row])
        rank = len(row.shape)
        if rank == 1:
            return method(self.value(row), "iter_dim", Literal("0"))
        cut = Closure(["row"], method(ast.Name("row", ast.Load()), "squeeze_dim", Literal("0"), generics=str(rank - 1)))
        return method(method(self.value(row), "iter_dim", Literal("0")), "map", cut)

    def appended(self, chosen: str, values: list[ast.expr]) -> list[ast.stmt]:
        return [ast.Expr(Method(name(chosen), "push", [value], "", True)) for value in values]

    def element(self, chosen: str, index: int) -> ast.expr:
        return method(ast.Subscript(name(chosen), Literal(str(index)), ast.Load()), "clone", borrows=True)

    def value(self, value: RuntimeValue) -> ast.expr:
        if isinstance(value, Variable):
            return self._read(value)
        if isinstance(value, HostValue):
            return self._known(value)
        if isinstance(value, tuple):
            return ast.Tuple([self.value(part) for part in value], ast.Load())
        if isinstance(value, list):
            return Vector([self.value(part) for part in value])
        return super().value(value)

    def _with_lists(self, tree: ast.expr) -> ast.expr:
        """Return an expression with the lists that loops have filled in place of all of their elements; it is changed."""
        whole = {
            ast.dump(Vector([self.element(chosen, index) for index in range(len(made))])): chosen
            for chosen, made in self.lists.items()
        }

        class WholeLists(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> RuntimeValue:
                chosen = whole.get(ast.dump(node)) if isinstance(node, Vector) else None
                return name(chosen) if chosen else self.generic_visit(node)

        return WholeLists().visit(tree) if whole else tree

    def _known(self, value: HostValue) -> ast.expr:
        """Return a tensor that is known."""
        variable = Variable(value.shape, np.dtype(value.to_jax().dtype) if not value.symbolic else np.dtype("int32"))
        step = Step("call", "jnp.asarray", (value,), {}, variable, None)
        return self.expression(step)

    def stored(self, value: HostValue) -> ast.expr:
        kind_of(np.dtype(value.to_jax().dtype))
        return super().stored(HostValue(np.asarray(value.to_jax()), name=value.name))

    def target(self, tree: RuntimeValue, uses: RuntimeValue, default: str | Sequence[str]) -> ast.expr:
        if isinstance(tree, tuple | list):
            flat = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Variable)]
            alike = [default if isinstance(default, str) else "x"] * len(flat)
            defaults = default if not isinstance(default, str) and len(default) == len(flat) else alike
            parts = [self.target(leaf, uses, own) for leaf, own in zip(flat, defaults, strict=True)]
            return parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Store())
        made = super().target(tree, uses, default)
        if isinstance(made, ast.Name) and isinstance(tree, Variable):
            made.type = tensor_type(tree.shape, tree.dtype)  # type: ignore[attr-defined]
        return made


def _is_inside(layer: Layer, indices: RuntimeValue) -> bool:
    """Whether indices are known to be rows of an embedding: their type has no others, or their values are known."""
    rows = layer.config["num_embeddings"]
    if isinstance(indices, HostValue) and not indices.symbolic:
        return bool(((indices.data >= 0) & (indices.data < rows)).all())
    dtype = np.dtype(layer.inputs[0].dtype)
    return dtype.kind == "u" and np.iinfo(dtype).max < rows


def _is_zeros(node: ast.expr | None) -> bool:
    return isinstance(node, Invocation) and node.path.endswith("::zeros")


def _where(step: Step) -> str:
    node = step.node
    label = getattr(node, "name", None) or getattr(node, "op_type", None)
    return f"`{label}`" if label else f"`{step.name or step.form}`"


@dataclass(eq=False)
class Structs(Classes):
    """Makes the structures of a tree.

    `read` has the elements of those arguments of the model that are sizes, `counted` the sizes that follow from values.
    """

    private: Functions = field(default_factory=lambda: Functions(set()))
    refusals: list[Refusal] = field(default_factory=list)
    read: Mapping[str, HostValue] = field(default_factory=dict)
    counted: Mapping[str, Bounds] = field(default_factory=dict)

    def _read(self, names: Collection[str]) -> tuple[list[ast.stmt], set[str]]:
        statements, known = element_statements(self.read, names)
        if statements:
            self.private.helpers.add("sizes_in")
        return statements, known

    def _sequential(self, module: Module) -> None:  # noqa: ARG002  Burn has no sequences
        return None

    def printer(self, taken: set[str], **options: RuntimeValue) -> CallPrinter:
        return RustCalls(
            {*taken, "device"}, functions=self.private, refusals=self.refusals, counted=self.counted, **options
        )

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
        printer: CallPrinter,
        arguments: Mapping[Variable, str],
        sizes: Sequence[str],
        body: list[ast.stmt],
        result: RuntimeValue,
        is_root: bool,
    ) -> ast.stmt:
        assert isinstance(printer, RustCalls)
        parameters, types = [*arguments.values()], [kind_of_value(variable, self) for variable in arguments]
        if is_root and arguments:  # `check` refuses sizes
            checked = check_statement(parameters)
            body = [checked, *(statement for statement in body if not isinstance(statement, ast.If))]
        statements = returned_at_once(body)
        kinds = [kind_of_value(one, self) for one in (result if isinstance(result, tuple | list) else [result])]
        returned = kinds[0] if not isinstance(result, tuple | list) else f"({', '.join(kinds)})"
        if is_root and isinstance(result, tuple) and len(result) > MOST_TOGETHER:
            last = statements[-1]
            assert isinstance(last, ast.Return)
            assert isinstance(last.value, ast.Tuple)
            statements[-1] = ast.Return(Structure("Outputs", [*self.result_names], last.value.elts))
            returned = "Outputs"
        if printer.uses_device:
            statements.insert(int(is_root and bool(parameters)), self._device(parameters, printer))
        parameters += sizes
        types += ["usize"] * len(sizes)
        return RustFunction("forward", parameters, types, returned, statements, "", True, True, "Computes the module.")

    @property
    def result_names(self) -> list[str]:
        """The names of the fields of the model's results."""
        from jaxport.importer.names import unique_identifiers

        return unique_identifiers([key.lower() for key in self.output_names], "output")

    output_names: Sequence[str] = ()

    def _device(self, parameters: Sequence[str], printer: RustCalls) -> ast.stmt:
        source: ast.expr
        if parameters:
            source = method(ast.Name(parameters[0], ast.Load()), "device", borrows=True)
        else:
            source = path_call("Device::default")
            for key in printer.fields.weights.values():
                source = method(method(attribute(f"self.{key}"), "val", borrows=True), "device", borrows=True)
                break
        return ast.Assign([ast.Name("device", ast.Store())], source, lineno=0)

    def _init(self, fields: Fields, module: Module, tables: Mapping[str, HostValue]) -> dict[str, ast.expr]:
        init: dict[str, ast.expr] = {}
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

    def _made(self, child: Entry) -> ast.expr:
        if isinstance(child, list):
            made = [self._made(one) for one in child]
            if len(made) > 1 and len({ast.dump(one) for one in made}) == 1:
                run = RustRange(Literal("0"), constant(len(made), "depth"), 1)
                return method(method(run, "map", Closure(["_"], made[0])), "collect")
            return Vector(made)
        if isinstance(child, Layer):
            return self.dialect.layers[child.kind].build(child)
        made, arguments, options = self.drafts[child].constructor
        values = [*map(copy.deepcopy, arguments), *copy.deepcopy(dict(options)).values()]
        if not values:
            return path_call(f"{made}::new", name("device"))
        defaults = {value.role: default_of(value.role) for value in values}  # type: ignore[attr-defined]
        required = [value for value in values if defaults[value.role] is None]  # type: ignore[attr-defined]
        configured: ast.expr = path_call(f"{made}Config::new", *required)
        for value in values:
            default = defaults[value.role]  # type: ignore[attr-defined]
            if default is not None:
                configured = method(configured, f"with_{value.role}", value)  # type: ignore[attr-defined]
                configured.is_default = value.value == default  # type: ignore[attr-defined]
        return method(configured, "init", name("device"))

    def _class(
        self, made: str, draft: Draft, arguments: Mapping[str, list[int]], columns: Sequence[Sequence[ast.Constant]],
        functions: Sequence[str] = (),  # noqa: ARG002  a structure takes none
    ) -> RuntimeValue:  # fmt: skip
        kinds = {"int": "usize", "float": "f64", "bool": "bool"}
        types = {key: kinds[type(columns[places[0]][0].value).__name__] for key, places in arguments.items()}
        types = {key: kind for key, kind in types.items() if kind != "bool"} | {
            k: v for k, v in types.items() if v == "bool"
        }
        fields: dict[str, str] = {}
        for key, value in draft.init.items():
            if key in draft.fields.single:
                fields[key] = self._type(draft.fields.single[key])
            elif key in draft.fields.lists:
                fields[key] = f"Vec<{self._type(draft.fields.lists[key][0])}>"
            elif isinstance(value, ast.Name) and key in types:
                fields[key] = types[key]
            else:
                fields[key] = f"Param<{value.type}>"  # type: ignore[attr-defined]
        init = {key: without_default_options(value) for key, value in draft.init.items()}
        assert isinstance(draft.method, RustFunction)
        copied = {*self.known_sizes, *draft.sizes, "device"}
        loops = {node.id for node in ast.walk(draft.method) if isinstance(node, ast.For) for node in modules_in(node)}
        return Struct(made, fields, types, init, draft.method, copied | loops, _title(draft), self.private.sizes)


def _title(draft: Draft) -> str:
    from jaxport.codegen.writing.literals import comment

    path = draft.module.path
    return f"The module `{comment(path)}` of the model." if path else "The model."


def kind_of_value(value: RuntimeValue, structs: Structs) -> str:
    """Return the type of a value of a program."""
    if isinstance(value, Variable):
        try:
            return tensor_type(value.shape, value.dtype)
        except NotPrintable as error:
            structs.refusals.append(error.refusal(f"`{value.hint}`"))
            return "()"
    if isinstance(value, HostValue):
        return tensor_type(value.shape, np.dtype(value.to_jax().dtype) if not value.symbolic else np.dtype("int32"))
    raise NotPrintable("a result that is no array", "let the model return arrays")


def _flat(entries: Sequence[Entry], path: tuple[int, ...]) -> Iterator[tuple[Module | Layer, tuple[int, ...]]]:
    for number, entry in enumerate(entries):
        if isinstance(entry, list):
            yield from _flat(entry, (*path, number))
        else:
            yield entry, (*path, number)

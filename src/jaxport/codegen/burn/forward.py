"""The computation of a module: the statements of its `forward`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jaxport.codegen.burn.checks import panicking, size_check, sizes_in_rust
from jaxport.codegen.burn.layers import forward, is_cell, last_step
from jaxport.codegen.burn.steps import Functions, StepPrinter
from jaxport.codegen.burn.values import NotPrintable, held, kind_of, tensor_type
from jaxport.codegen.rust.text import expression_text
from jaxport.codegen.rust.tree import (
    Array,
    Borrow,
    Closure,
    ExpressionStatement,
    For,
    Identifier,
    Index,
    Invocation,
    Let,
    Literal,
    Number,
    Return,
    RustExpression,
    RustRange,
    RustStatement,
    Structure,
    Tuple,
    Vector,
    Zipped,
    method,
    names,
    path_call,
    place,
    rewritten,
)
from jaxport.codegen.tree import Call, Layer
from jaxport.codegen.writing.dialect import LayerLibrary
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.size_names import SizeStatement, size_names, size_statements
from jaxport.codegen.writing.statements import stored_as
from jaxport.errors import Refusal
from jaxport.importer.traced.assumptions import Bounds
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Step, Variable


@dataclass
class RustCalls:
    """Writes the computation of a module in Rust: see `jaxport.codegen.writing.language.Language`.

    Attributes:
      functions: the private functions of the model.
      refusals: what has no form in Rust.
      counted: the sizes that follow from values, and what each has to be.
      zeros: the values that are zeros, under names.
      made_sizes: the sizes that statements inside read.
      reading: the sizes that statements read from results of steps.
    """

    names: ModuleNames[RustExpression]
    library: LayerLibrary[RustExpression]
    functions: Functions
    refusals: list[Refusal]
    counted: Mapping[str, Bounds]
    dims: set[str] = field(default_factory=set)
    tables: dict[str, HostValue] = field(default_factory=dict)
    tied: dict[Variable, str] = field(default_factory=dict)
    lists: dict[str, list[Variable]] = field(default_factory=dict)
    result_names: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"lax.top_k": ("greatest", "indices")})
    zeros: set[Variable] = field(default_factory=set)
    made_sizes: set[str] = field(default_factory=set)
    reading: dict[RustStatement, set[str]] = field(default_factory=dict)

    def of_round(self, names: ModuleNames[RustExpression]) -> RustCalls:
        return replace(self, names=names, lists={})

    def part(self, path: str) -> RustExpression:
        return place(path)

    def name_of(self, expression: RustExpression) -> str:
        return expression.id if isinstance(expression, Identifier) else ""

    def names_in(self, expression: RustExpression) -> list[str]:
        return [one.id for one in names([expression])]

    def text(self, expression: RustExpression) -> str:
        return expression_text(expression)

    def finished(self, statements: list[RustStatement]) -> list[RustStatement]:
        return [one for one in statements if one not in self.reading or self.reading[one] & self.dims]

    def unread(self) -> set[str]:
        return self.dims - self.made_sizes

    def nested(self, step: Step) -> list[RustStatement]:  # noqa: ARG002  functions inside a step are traced with it
        return []

    def _steps(self) -> StepPrinter:
        return StepPrinter(self.functions, self._read, self.stored, self.dims)

    def _read(self, variable: Variable) -> RustExpression:
        return copy.deepcopy(self.names.expressions[variable])

    def expression(self, step: Step) -> RustExpression:
        if isinstance(step.node, Layer):
            inputs = [self.value(value) for value in step.args]
            if step.node.config.get("is_causal"):
                return self.functions.helper("causal_attention", Borrow(self._part(step)), inputs[0])
            if step.node.kind == "Embed" and not _is_inside(step.node, step.args[0]):
                return self._embedded(self._part(step), inputs[0], len(step.node.inputs[0].shape))
            return forward(step.node, self._part(step), inputs)
        if step.name in self.tied.values():
            return self._embedded(place(step.name), self.value(step.args[0]), len(step.args[0].shape))
        if isinstance(step.node, Call):
            return self.invoked(self._part(step), [self.value(value) for value in step.args], [*step.kwargs])
        steps = self._steps()
        try:
            made = steps.expression(step)
        except NotPrintable as error:
            self.refusals.append(error.refusal(_where(step)))
            made = Literal("()")
        self.names.taken |= {*self.functions.texts.values()}  # a value of such a name would hide the function
        return self._with_lists(made)

    def statements_of(
        self,
        step: Step,
        uses: Counter[Variable],
        reader: int | None,
        usual: Callable[[int | None], list[RustStatement]],
    ) -> list[RustStatement]:
        if isinstance(step.node, Layer) and is_cell(step.node):
            return self._cell(step, step.node, uses)
        found = self.counted.keys() & size_names(step.outputs) - self.made_sizes
        statements = usual(None if found else reader)
        statements += self._counting(step, found)
        if isinstance(step.outputs, Variable) and any(_is_zeros(getattr(one, "value", None)) for one in statements):
            self.zeros.add(step.outputs)
        return statements

    def _counting(self, step: Step, names: Collection[str]) -> list[RustStatement]:
        """Return the statements that read sizes from the results of a step, of which they are, and check them."""
        outputs = [leaf for leaf in jax.tree.leaves(step.outputs) if isinstance(leaf, Variable)]
        made = {text.id: one for one in outputs if isinstance(text := self.names.expressions.get(one), Identifier)}
        reading, missing = size_statements(made, names)
        found = {*names} - missing
        self.made_sizes |= found
        statements = sizes_in_rust(reading)
        for statement in statements:
            self.reading[statement] = found
        for size in sorted(found):
            least, most = self.counted[size]
            if (least, most) != (0, None) and not isinstance(step.node, Call):  # inside, it was checked
                self.dims.add(size)
                self.functions.helpers.add("check_size")
                statements.append(panicking(size_check(size, (least, most))))
        return statements

    def _cell(self, step: Step, layer: Layer, uses: Counter[Variable]) -> list[RustStatement]:
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
        part = place(self.names.fields.text(layer))
        last, rows = step.outputs
        if layer.kind != "GRU":
            parts = [self.target(one, uses, role) for one, role in zip(last, ("cell", "hidden"), strict=True)]
            pattern: list[RustExpression] = [
                self.target(rows, uses, "x"),
                Structure("LstmState", ["cell", "hidden"], parts),
            ]
            called = self.functions.helper("lstm_steps", Borrow(part), self.value(x), state)
            return [Let(Tuple(pattern), called)]
        is_reversed = layer.config["reverse"]  # Burn's GRU goes forward
        first = self.value(x)
        first = method(first, "flip", Array([Literal("0")])) if is_reversed else first
        made: RustExpression = self.functions.helper("gru_steps", Borrow(part), first, state)
        made = method(made, "flip", Array([Literal("0")])) if is_reversed else made
        target = Identifier(self.names.bind(rows, "x"))
        statements: list[RustStatement] = [Let(target, made)]
        if uses[last]:
            ending = last_step(Identifier(target.id), is_reversed)
            statements.append(Let(self.target(last, uses, "hidden"), ending))
        return statements

    def _embedded(self, part: RustExpression, indices: RustExpression, rank: int) -> RustExpression:
        """Return the rows of an embedding at indices that may be negative, or outside."""
        own = max(1, rank)
        called = self.functions.helper("embed", Borrow(part), indices, generics=f"{own}, {own + 1}")
        return called if rank else method(called, "squeeze_dim", Literal("0"), generics="1")

    def _part(self, step: Step) -> RustExpression:
        return place(step.name)

    def invoked(
        self, called: RustExpression, arguments: Sequence[RustExpression], sizes: Sequence[str]
    ) -> RustExpression:
        self.dims |= {*sizes}
        return method(called, "forward", *arguments, *map(Identifier, sizes), borrows=True)

    def rows(self, row: Variable | tuple[Variable, ...]) -> RustExpression:
        if isinstance(row, tuple):
            for chosen, made in self.lists.items():
                if len(made) == len(row) and all(one is other for one, other in zip(made, row, strict=True)):
                    return Identifier(chosen)
            return Array([self.value(variable) for variable in row])
        rank = len(row.shape)
        if rank == 1:
            return method(self.value(row), "iter_dim", Literal("0"))
        cut = Closure(["row"], method(Identifier("row"), "squeeze_dim", Literal("0"), generics=str(rank - 1)))
        return method(method(self.value(row), "iter_dim", Literal("0")), "map", cut)

    def appended(self, chosen: str, values: list[RustExpression]) -> list[RustStatement]:
        pushed = (method(Identifier(chosen), "push", value, borrows=True) for value in values)
        return [*map(ExpressionStatement, pushed)]

    def element(self, chosen: str, index: int) -> RustExpression:
        return method(Index(Identifier(chosen), Literal(str(index))), "clone", borrows=True)

    def value(self, value: object) -> RustExpression:
        if isinstance(value, Variable):
            return self._read(value)
        if isinstance(value, HostValue):
            return self._known(value)
        if isinstance(value, tuple):
            return Tuple([self.value(part) for part in value])
        if isinstance(value, list):
            return Vector([self.value(part) for part in value])
        raise TypeError(f"`{type(value).__name__}` has no form in Rust")

    def _with_lists(self, tree: RustExpression) -> RustExpression:
        """Return an expression with the lists that loops have filled in place of all of their elements; it is
        changed.
        """
        whole = {
            expression_text(Vector([self.element(chosen, index) for index in range(len(made))])): chosen
            for chosen, made in self.lists.items()
        }

        def listed(node: RustExpression) -> RustExpression:
            chosen = whole.get(expression_text(node)) if isinstance(node, Vector) else None
            return Identifier(chosen) if chosen else node

        return rewritten(tree, listed) if whole else tree

    def _known(self, value: HostValue) -> RustExpression:
        """Return a tensor that is known."""
        variable = Variable(value.shape, np.dtype(value.to_jax().dtype) if not value.symbolic else np.dtype("int32"))
        step = Step("call", "jnp.asarray", (value,), {}, variable, None)
        return self.expression(step)

    def stored(self, value: HostValue) -> RustExpression:
        array = np.asarray(value.to_jax())
        kind_of(array.dtype)
        key = stored_as(
            self.tables,
            HostValue(array.astype(held(array.dtype), copy=False), name=value.name),
            self.names.fields,
        )
        return self.library.frozen(place(f"self.{key}"))

    def empty_list(self) -> RustExpression:
        return path_call("Vec::new")

    def pattern(self, names: Sequence[str]) -> RustExpression:
        parts: list[RustExpression] = [*map(Identifier, names)]
        return parts[0] if len(parts) == 1 else Tuple(parts)

    def target(self, tree: Any, uses: Any, default: str | Sequence[str]) -> RustExpression:
        if isinstance(tree, tuple | list):
            flat = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Variable)]
            alike = [default if isinstance(default, str) else "x"] * len(flat)
            defaults = default if not isinstance(default, str) and len(default) == len(flat) else alike
            parts = [self.target(leaf, uses, own) for leaf, own in zip(flat, defaults, strict=True)]
            return parts[0] if len(parts) == 1 else Tuple(parts)
        assert isinstance(default, str)
        if not isinstance(tree, Variable):
            return Identifier("_")
        kind = tensor_type(tree.shape, tree.dtype)
        return Identifier(self.names.bind(tree, default) if uses[tree] else "_", type=kind)

    def assigned(self, target: RustExpression, value: RustExpression) -> RustStatement:
        return Let(target, value)

    def loop(
        self, iterated: Sequence[tuple[str, RustExpression]], count: int, body: list[RustStatement]
    ) -> RustStatement:
        if not iterated:
            return For(Identifier("_"), RustRange(Literal("0"), Number(count)), body)
        values = [value for _, value in iterated]
        return For(self.pattern([one for one, _ in iterated]), Zipped(values) if len(values) > 1 else values[0], body)

    def returned(self, value: RustExpression) -> RustStatement:
        return Return(value)

    def sizes(self, statements: Iterable[SizeStatement]) -> list[RustStatement]:
        return sizes_in_rust(statements)


def _is_inside(layer: Layer, indices: object) -> bool:
    """Whether indices are known to be rows of an embedding: their type has no others, or their values are known."""
    rows = layer.config["num_embeddings"]
    if isinstance(indices, HostValue) and not indices.symbolic:
        return bool(((indices.data >= 0) & (indices.data < rows)).all())
    dtype = np.dtype(layer.inputs[0].dtype)
    return dtype.kind == "u" and np.iinfo(dtype).max < rows


def _is_zeros(node: object) -> bool:
    return isinstance(node, Invocation) and node.path.endswith("::zeros")


def _where(step: Step) -> str:
    node = step.node
    label = getattr(node, "name", None) or getattr(node, "op_type", None)
    return f"`{label}`" if label else f"`{step.name or step.form}`"

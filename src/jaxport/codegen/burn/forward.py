"""The computation of a module: the statements of its `forward`."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxport.codegen.burn.checks import panicking, size_check
from jaxport.codegen.burn.helpers import names as helper_names
from jaxport.codegen.burn.layers import forward, is_cell, last_step
from jaxport.codegen.burn.steps import Functions, StepPrinter
from jaxport.codegen.burn.values import NotPrintable, held, kind_of, tensor_type
from jaxport.codegen.rust.from_python import expression_of, parsed
from jaxport.codegen.rust.text import expression_text
from jaxport.codegen.rust.tree import (
    Array,
    Borrow,
    Closure,
    ExpressionStatement,
    Identifier,
    Index,
    Invocation,
    Let,
    Literal,
    RustExpression,
    Structure,
    Tuple,
    Vector,
    method,
    path_call,
    rewritten,
)
from jaxport.codegen.tree import Call, Item, Layer
from jaxport.codegen.writing.calls import CallPrinter
from jaxport.codegen.writing.size_names import size_names, size_statements
from jaxport.errors import Refusal
from jaxport.importer.traced.assumptions import Bounds
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Step, Variable

__all__ = ["RustCalls"]


@dataclass
class RustCalls(CallPrinter):
    """Prints one module's computation as statements of Rust.

    Attributes:
      functions: the private functions of the model.
      refusals: what has no form in Rust.
      uses_device: whether a tensor is created.
      zeros: the values that are zeros, under names.
      counted: the sizes that follow from values, and what each has to be.
      reading: the sizes that statements read from results of steps.
    """

    functions: Functions = field(default_factory=lambda: Functions(set()))
    refusals: list[Refusal] = field(default_factory=list)
    uses_device: bool = False
    zeros: set[Variable] = field(default_factory=set)
    counted: Mapping[str, Bounds] = field(default_factory=dict)
    reading: dict[ast.stmt, set[str]] = field(default_factory=dict)

    def arguments(self, names: dict[Variable, str]) -> None:
        super().arguments(names)
        self.counted = {size: bounds for size, bounds in self.counted.items() if size not in size_names([*names])}

    def body(self, items: Sequence[Item], result: object) -> list[ast.stmt]:
        """Return the statements that compute a result; those that read sizes for nothing are left out."""
        statements = super().body(items, result)
        return [one for one in statements if one not in self.reading or self.reading[one] & self.dims]

    def text(self, expression: ast.expr) -> str:
        return expression_text(expression_of(expression))

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

    def _read(self, variable: Variable) -> RustExpression:
        return expression_of(copy.deepcopy(self.expressions[variable]))

    def expression(self, step: Step) -> RustExpression:
        if isinstance(step.node, Layer):
            inputs = [self.value(value) for value in step.args]
            if step.node.config.get("is_causal"):
                return self.functions.helper("causal_attention", Borrow(self._part(step)), inputs[0])
            if step.node.kind == "Embed" and not _is_inside(step.node, step.args[0]):
                return self._embedded(self._part(step), inputs[0], len(step.node.inputs[0].shape))
            return forward(step.node, self._part(step), inputs)
        if step.name in self.tied.values():
            return self._embedded(parsed(step.name), self.value(step.args[0]), len(step.args[0].shape))
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
            self.reading[statement] = found
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
        part = parsed(self.fields.text(layer))
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
        target = Identifier(self.bind(rows, "x"))
        statements: list[ast.stmt] = [Let(target, made)]
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
        return expression_of(self.function_name(step.name))

    def invoked(self, called: ast.expr, arguments: Sequence[ast.expr], sizes: Sequence[str]) -> RustExpression:
        operands = [*arguments, *(self.size(Identifier(size)) for size in sizes)]
        return method(expression_of(called), "forward", *map(expression_of, operands), borrows=True)

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

    def appended(self, chosen: str, values: list[ast.expr]) -> list[ast.stmt]:
        pushed = (method(Identifier(chosen), "push", expression_of(value), borrows=True) for value in values)
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
        return expression_of(super().value(value))

    def _with_lists(self, tree: RustExpression) -> RustExpression:
        """Return an expression with the lists that loops have filled in place of all of their elements; it is changed."""
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
        return expression_of(super().stored(HostValue(array.astype(held(array.dtype), copy=False), name=value.name)))

    def target(self, tree: Any, uses: Any, default: str | Sequence[str]) -> RustExpression:
        if isinstance(tree, tuple | list):
            flat = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Variable)]
            alike = [default if isinstance(default, str) else "x"] * len(flat)
            defaults = default if not isinstance(default, str) and len(default) == len(flat) else alike
            parts = [self.target(leaf, uses, own) for leaf, own in zip(flat, defaults, strict=True)]
            return parts[0] if len(parts) == 1 else Tuple(parts)
        made = expression_of(super().target(tree, uses, default))
        if isinstance(made, Identifier) and isinstance(tree, Variable):
            made.type = tensor_type(tree.shape, tree.dtype)
        return made


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

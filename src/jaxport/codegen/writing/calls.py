"""The items of a module as the statements of its `__call__`.

    items: a layer `norm`, an operator `x * 2`, a call of the module `attention`

    x = self.norm(x)
    return self.attention(x * 2)

Each item becomes a call (`_step_of`); a call that is read once, right after, is written where it is read, as long as the line is
short. A `Loop` is a `for` with the calls of one of its rounds inside.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxport.codegen.rewriting.steps import JOINS, readers_of, reads
from jaxport.codegen.tree import Call, Item, Layer, Loop, Module, Op, Tie, Weight
from jaxport.codegen.writing.dialect import LayerLibrary
from jaxport.codegen.writing.fields import Child, common_name, key_of, table_name
from jaxport.codegen.writing.function_printer import LONGEST_INLINE, LOOP_ARGUMENTS, leaves, needed, with_inferred_size
from jaxport.codegen.writing.literals import attribute, call, name, number, restored
from jaxport.codegen.writing.naming.printer import NamingPrinter
from jaxport.codegen.writing.naming.values import DESCRIPTIONS, OPERANDS
from jaxport.codegen.writing.statements import (
    LONGEST_DISTANT,
    METHODS,
    WEAK,
    CellText,
    SizeName,
    attending,
    begin_in,
    direct_operands,
    for_loop,
    is_single_number,
    items_of_rounds,
    listed_parts,
    parts_by_place,
    plural,
    replaced_inputs,
    same_tensor,
    singular,
    swaps_last,
    uniform,
    with_plain_axis,
)
from jaxport.importer.names import identifier
from jaxport.importer.values.host import HostValue, has_stand_ins, is_dim
from jaxport.importer.values.recording import Function, Step, Variable

__all__ = ["CallPrinter"]

SHORT = 3
"""Characters that a description of a value counts at most, where it is decided what stands in one line."""


@dataclass
class CallPrinter(NamingPrinter):
    """Prints one module's computation: `body` turns its items into statements, once `arguments` and `keep` have bound what they read.

    The names in the statements, and when a name is free again, are those of `NamingPrinter`.

    Attributes:
      dialect: the layers that there are.
      sizes: the sizes that each module inside wants as arguments.
      ties: where the layers are whose weights are read here.
      tied: where the embeddings are whose tables are read here, by the variable that stands for each.
      tables: the tensors that are no parameters and too large for the source, by attribute.
      roles: the names of the arguments of modules whose values differ between calls.
      results: the names of the results of the model.
      lists: the values that a list holds, by its name.
      result: the values that the module returns.
      fixed: names that are not assigned to again.
      made_sizes: the sizes that statements inside read.
    """

    dialect: LayerLibrary | None = None
    sizes: dict[Child, tuple[str, ...]] = field(default_factory=dict)
    ties: dict[Layer, str] = field(default_factory=dict)
    tied: dict[Variable, str] = field(default_factory=dict)
    tables: dict[str, HostValue] = field(default_factory=dict)
    roles: Mapping[Variable, str] = field(default_factory=dict)
    results: Mapping[Variable, str] = field(default_factory=dict)
    lists: dict[str, list[Variable]] = field(default_factory=dict)
    result: Any = None
    fixed: Collection[str] = ()
    made_sizes: set[str] = field(default_factory=set)

    def arguments(self, names: dict[Variable, str]) -> None:
        """Binds the arguments of the module, which may be assigned to once nothing reads them."""
        for variable, chosen in names.items():
            self.expressions[variable] = name(chosen)
            self.busy[chosen] = math.inf

    def keep(self, module: Module) -> None:
        """Binds the weights of the module."""
        assert self.dialect is not None
        for variable, weight in module.weights.items():
            if isinstance(weight, Tie):
                self.tied |= {variable: self.ties[weight.layer]} if weight.layer.kind == "Embed" else {}
                place = self.dialect.layers[weight.layer.kind].fields(weight.layer)[weight.role].name
                expression = ast.parse(f"{self.ties[weight.layer]}.{place}", mode="eval").body
            else:
                expression = attribute(f"self.{self.fields.weights[variable]}")
            is_fixed = isinstance(weight, Weight) and not weight.trained
            self.expressions[variable] = (self.dialect.frozen if is_fixed else self.dialect.value)(expression)

    def function_name(self, path: str) -> ast.expr:
        """Return a function, or a part of the module."""
        if path.startswith("self") or path in self.fields.elements.values():
            return ast.parse(path, mode="eval").body
        return super().function_name(path)

    def stored(self, value: HostValue) -> ast.expr:
        """Return a tensor that the module keeps beside its parameters."""
        assert self.dialect is not None
        if has_stand_ins(value):  # a file has one width for all
            value = HostValue(value.to_jax(), name=value.name)
        known = next((key for key, other in self.tables.items() if same_tensor(other.data, value.data)), None)
        key = known or self.fields.fresh(table_name(value.name))
        self.tables.setdefault(key, value)
        return restored(value.data, self.dialect.frozen(attribute(f"self.{key}")))

    def of_tables(self, steps: list[Step]) -> list[Step]:
        """Return steps with calls of embeddings in place of operators that read the tables of those."""
        return attending(steps, self.tied, self.dialect.attends if self.dialect is not None else "")

    def body(self, items: Sequence[Item], result: object) -> list[ast.stmt]:
        """Return the statements that compute a result."""
        self.result = result
        items = [part for item in items for part in (items_of_rounds(item) if self._is_unlisted(item) else (item,))]
        loops: dict[Step, Loop] = {}
        steps: list[Step] = []
        for item in items:
            step = self._step_of(item)
            if isinstance(item, Loop):
                loops[step] = item
                self.started |= {item.calls[0].inputs[position] for position in item.carried}
            steps.append(step)
        steps = self.of_tables(steps)
        steps, uses = needed(steps, result)
        self.readers = readers_of(steps)
        self.makers = {step.outputs: step for step in steps if isinstance(step.outputs, Variable) and step not in loops}
        for index, step in enumerate(steps):
            for variable in reads(step):
                self.last[variable] = index
        readers = {leaf: at for at, step in enumerate(steps) for leaf in direct_operands(step, loops)}
        readers |= {leaf: len(steps) for leaf in leaves(result) if isinstance(leaf, Variable)}
        for variable in leaves(result):
            if isinstance(variable, Variable):
                self.last[variable] = math.inf
        for variable, expression in self.expressions.items():
            if isinstance(expression, ast.Name) and isinstance(variable, Variable):
                self.busy[expression.id] = math.inf if expression.id in self.fixed else self.last.get(variable, -1)
        statements: list[ast.stmt] = []
        for index, step in enumerate(steps):
            self.now = index
            if step in loops:
                statements += self._loop(loops[step])
                continue
            reader = readers.get(step.outputs) if isinstance(step.outputs, Variable) else None
            statements += self._statements(step, uses, reader, len(steps))
        statements.append(ast.Return(self.value(result)))
        return statements

    def _step_of(self, item: Item) -> Step:
        """Return an item as a call: of a layer, of a module, or of the function that computes an operator."""
        if isinstance(item, Layer) and "carry" in item.config:
            options = {"reverse": True} if item.config["reverse"] else {}
            args = (CellText(self.fields.text(item)), item.config["carry"], item.inputs[0])
            return Step("call", "lax.scan", args, options, item.config["outputs"], item)
        if isinstance(item, Layer):
            keywords = item.config.get("keywords", ())
            first = len(item.inputs) - len(keywords)
            options = dict(zip(keywords, item.inputs[first:], strict=True))
            return Step("call", self.fields.text(item), item.inputs[:first], options, item.outputs[0], item)
        if isinstance(item, Call):
            sizes = {key: SizeName(key) for key in self.sizes.get(item.module, ())}
            outputs = item.outputs[0] if len(item.outputs) == 1 else item.outputs
            return Step("call", self.fields.text(item.module), item.inputs, sizes, outputs, item)
        if isinstance(item, Loop):
            return Step("call", "loop", item.inputs, {}, item.outputs, item)
        return item.step

    def _statements(self, step: Step, uses: Counter[Variable], reader: int | None, end: int) -> list[ast.stmt]:
        """Return the statements of a step; none if its only reader, the step at place `reader`, has it in its expression."""
        statements = self.nested(step)
        expression, default = self.expression(step), self._names_of(step)
        if isinstance(step.outputs, Variable):
            variable = step.outputs
            if isinstance(expression, ast.Name) and expression.id in self.busy and not self.started:
                self.expressions[variable] = expression  # as it was: no name of its own
                self.busy[expression.id] = max(self.busy[expression.id], self.last[variable])
                return statements
            length, is_next = self.length(expression), reader == self.now + 1
            longest = math.inf if reader == end and is_next else LONGEST_INLINE if is_next else LONGEST_DISTANT
            if reader is not None and uses[variable] == 1 and not statements and length <= longest:
                self.expressions[variable] = expression
                for node in ast.walk(expression):
                    if isinstance(node, ast.Name) and node.id in self.busy:
                        self.busy[node.id] = max(self.busy[node.id], reader)
                return statements
            assert isinstance(default, str)
            target: ast.expr = ast.Name(self.bind(variable, default), ast.Store())
        else:
            unused = isinstance(step.outputs, tuple) and not any(uses[v] for v in leaves(step.outputs[0]))
            outputs = (None, *step.outputs[1:]) if unused and isinstance(step.node, Layer) else step.outputs
            target = self.target(outputs, uses, default)
        return [*statements, ast.Assign([target], expression, lineno=0)]

    def text(self, expression: ast.expr) -> str:
        """Return an expression as it is written."""
        return ast.unparse(expression)

    def length(self, expression: ast.expr) -> int:
        """Return how long an expression is, whatever describes the values in it: statements that are alike are printed alike."""
        names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name) and node.id in self.busy]
        described = [one for one in names if re.sub(r"_\d+$", "", one) in DESCRIPTIONS]
        return len(self.text(expression)) - sum(max(len(one) - SHORT, 0) for one in described)

    def nested(self, step: Step) -> list[ast.stmt]:
        """Return the functions that are defined for a step."""
        functions = [leaf for leaf in leaves((step.args, step.kwargs)) if isinstance(leaf, Function)]
        return [self.definition(one, LOOP_ARGUMENTS.get(step.name, ())) for one in functions if not self.is_short(one)]

    def invoked(self, called: ast.expr, arguments: list[ast.expr], sizes: Sequence[str]) -> ast.expr:
        """Return the call of a module, with the sizes that it wants."""
        return ast.Call(called, arguments, [ast.keyword(size, self.size(name(size))) for size in sizes])

    def rows(self, row: Variable | tuple[Variable, ...]) -> ast.expr:
        """Return what a loop over values runs over: several of them, or the parts of one along its first axis."""
        return self.value(row)

    def appended(self, chosen: str, values: list[ast.expr]) -> list[ast.stmt]:
        """Return the statements that append values to a list."""
        method = attribute(f"{chosen}.append") if len(values) == 1 else attribute(f"{chosen}.extend")
        argument = values[0] if len(values) == 1 else ast.Tuple(values, ast.Load())
        return [ast.Expr(ast.Call(method, [argument], []))]

    def element(self, chosen: str, index: int) -> ast.expr:
        """Return an element of a list."""
        return ast.Subscript(name(chosen), ast.Constant(index), ast.Load())

    def value(self, value: object) -> ast.expr:
        """Return any argument as an expression."""
        if isinstance(value, SizeName):
            return self.size(name(value))
        if isinstance(value, CellText):
            return value.function()
        if isinstance(value, tuple | list) and not hasattr(value, "_asdict"):
            for chosen, made in self.lists.items():
                begin = begin_in(value, made)
                if begin is None:
                    continue
                if len(value) == len(made):
                    return name(chosen) if isinstance(value, list) else call("tuple", name(chosen))
                parts = [*map(self.value, value[:begin]), ast.Starred(name(chosen), ast.Load())]
                parts += map(self.value, value[begin + len(made) :])
                return ast.Tuple(parts, ast.Load()) if isinstance(value, tuple) else ast.List(parts, ast.Load())
        return super().value(value)

    def expression(self, step: Step) -> ast.expr:
        """Return a call, of a method of arrays if there is one."""
        if step.form != "call" or not step.args:
            return super().expression(step)
        function = self.dialect.functions.get(step.name) if self.dialect is not None else None
        step = (function(step) if function is not None else None) or with_inferred_size(with_plain_axis(step))
        array, *rest = step.args
        if step.name in JOINS and any(
            begin_in(array, made) == 0 and len(array) == len(made) for made in self.lists.values()
        ):
            step = replace(step, args=([*array], *rest))
        if step.name == "jnp.where" and len(rest) == 2 and all(map(is_single_number, rest)):
            return call("jnp.where", self.value(array), number(rest[0].item()), self.value(rest[1]))
        if step.name in WEAK and isinstance(array, Variable) and array.dtype in (np.float32, np.int32, np.int64):
            return call(
                step.name.removeprefix("helper."),
                self.value(array),
                *(number(x.data[()]) if is_single_number(x, array.dtype) else self.value(x) for x in rest),
            )
        if step.name in METHODS and isinstance(array, Variable) and len(rest) == 1 and not step.kwargs:
            (axes,) = rest
            if step.name == "jnp.transpose" and swaps_last(axes):
                return ast.Attribute(self.value(array), "T" if len(axes) == 2 else "mT", ast.Load())
            if isinstance(axes, list | tuple) and axes and all(isinstance(axis, int) or is_dim(axis) for axis in axes):
                return call(ast.Attribute(self.value(array), METHODS[step.name], ast.Load()), *map(self.value, axes))
        if step.name == "jnp.broadcast_to" and isinstance(array, HostValue) and not array.ndim and not array.symbolic:
            return uniform(array, self.value(rest[0]))
        return super().expression(step)

    def host_value(self, value: HostValue) -> ast.expr:
        """Return a tensor that is known; the smallest number of float32, which masks are made of, by its name."""
        if is_single_number(value) and value.item() == np.finfo(np.float32).min:
            return ast.parse("jnp.finfo(jnp.float32).min", mode="eval").body
        return super().host_value(value)

    def _loop(self, loop: Loop) -> list[ast.stmt]:
        """`for layer, cache in zip(self.layers, caches): x = layer(x, mask, cache)`."""
        first = loop.calls[0]
        columns = parts_by_place(loop)
        self._hold(loop)
        statements, names = self._carried(loop)
        elements: dict[tuple[str | int, ...], str] = {}
        iterated: list[tuple[str, ast.expr]] = []
        for column in columns:
            *around, position = self.fields.paths[key_of(column[0])]
            if key_of(column[0]) is not key_of(column[-1]) and tuple(around) not in elements:
                element = elements[tuple(around)] = self._free(
                    singular(str(around[0])) if len(around) == 1 else "layer"
                )
                self.busy[element] = math.inf
                iterated.append((element, listed_parts(self.fields, around, int(position), len(loop.calls))))
        element = next(iter(elements.values()), "")
        for position, row in loop.rows.items():
            wanted = self.roles.get(first.module.inputs[position], "part")
            if wanted == "x" and isinstance(row, Variable):
                wanted = "row"
            if wanted in self.taken and element:
                wanted = f"{element}_{wanted}"
            names[position] = self._free(wanted)
            self.busy[names[position]] = math.inf
            iterated.append((names[position], self.rows(row)))
        arguments = [
            name(names[position]) if position in names else self.value(variable)
            for position, variable in enumerate(first.inputs)
        ]
        targets = {output: names[position] for position, output in loop.carried.items()}
        for output in loop.collected:
            if output not in targets:
                replaced = replaced_inputs(loop).get(output, -1)
                told = dict(enumerate(self.returned.get(first.module, ()))).get(output, "")
                wanted = told if told in OPERANDS else self._collected_name(loop, [output])
                targets[output] = names.get(replaced) or self._free(wanted)
                self.busy[targets[output]] = math.inf
        lists = self._lists(loop)
        for chosen in lists:
            statements.append(ast.Assign([ast.Name(chosen, ast.Store())], ast.List([], ast.Load()), lineno=0))
        stored = [ast.Name(targets.get(index, "_"), ast.Store()) for index in range(len(first.outputs))]
        target = stored[0] if len(stored) == 1 else ast.Tuple([*stored], ast.Store())
        body: list[ast.stmt]
        if first.module.inline:
            body = self._round(loop, arguments, elements, target)
        else:
            called = name(element) if element else ast.parse(self.fields.text(first.module), mode="eval").body
            body = [ast.Assign([target], self.invoked(called, arguments, self.sizes.get(first.module, ())), lineno=0)]
        for chosen, places in lists.items():
            body += self.appended(chosen, [name(targets[output]) for output in places])
        statements.append(for_loop(iterated, len(loop.calls), body))
        for chosen in [one for one, _ in iterated] + [targets[output] for output in loop.collected]:
            self.busy[chosen] = self.now
        for chosen, places in lists.items():
            made = [call.outputs[output] for call in loop.calls for output in places]
            self.lists[chosen] = made
            self.busy[chosen] = max(self.last.get(variable, -1) for variable in made)
            for index, variable in enumerate(made):
                self.expressions[variable] = self.element(chosen, index)
        for position, output in loop.carried.items():
            variable = loop.calls[-1].outputs[output]
            if output not in loop.collected:
                self.expressions[variable] = name(names[position])
            self.busy[names[position]] = self.last.get(variable, self.now)
        return statements

    def _hold(self, loop: Loop) -> None:
        """Keep the names of the values that each round reads: the loop must not assign to them."""
        rows = [row if isinstance(row, tuple) else (row,) for row in loop.rows.values()]
        same = [v for place, v in enumerate(loop.calls[0].inputs) if place not in (*loop.carried, *loop.rows)]
        self._hold_names((*same, *(variable for row in rows for variable in row)))

    def _hold_names(self, variables: Iterable[Variable]) -> None:
        """Keep the names that the expressions of values have, which are read after others were assigned."""
        for variable in variables:
            for node in ast.walk(self.expressions[variable]):
                if isinstance(node, ast.Name) and node.id in self.busy:
                    self.busy[node.id] = max(self.busy[node.id], self.now + 1)

    def _is_unlisted(self, item: Item) -> bool:
        """Whether an item is a loop over parts that are not all elements of lists that the module has."""
        if not isinstance(item, Loop):
            return False
        columns = parts_by_place(item)
        different = any(len({self.sizes.get(child, ()) for child in column}) > 1 for column in columns)
        return different or not self.fields.follow(columns)

    def _round(
        self, loop: Loop, arguments: Sequence[ast.expr], elements: Mapping[tuple[str | int, ...], str], target: ast.expr
    ) -> list[ast.stmt]:
        """Return the body of a loop: the items of its last round, with the variables of the loop in place of its parts."""
        module = loop.calls[-1].module
        for part in module.parts:
            if isinstance(part, Op):
                continue
            child = part.module if isinstance(part, Call) else part
            chosen = elements.get(self.fields.paths[key_of(child)][:-1])
            if chosen is not None:
                self.fields.elements[key_of(child)] = chosen
        bound = {**self.expressions, **dict(zip(module.inputs, arguments, strict=True))}
        inner = replace(self, expressions=bound, called={}, busy={}, last={}, lists={}, started=set(), fixed=self.taken)
        result = module.outputs[0] if len(module.outputs) == 1 else module.outputs
        *statements, returned = inner.body(module.items, result)
        assert isinstance(returned, ast.Return)
        assert returned.value is not None
        return [*statements, ast.Assign([target], returned.value, lineno=0)]

    def _carried(self, loop: Loop) -> tuple[list[ast.stmt], dict[int, str]]:
        """Return the statements that bind the carried values of a loop, and their names."""
        statements: list[ast.stmt] = []
        names: dict[int, str] = {}
        inputs = loop.calls[0].inputs
        for position in loop.carried:
            variable = inputs[position]
            expression = self.expressions[variable]
            alone = sum(other is variable for other in (*inputs, *loop.inputs)) == 2
            free = alone and isinstance(expression, ast.Name) and self.busy.get(expression.id, math.inf) <= self.now
            if free and isinstance(expression, ast.Name) and expression.id not in names.values():
                names[position] = expression.id
                self.busy[expression.id] = math.inf
        self._hold_names(inputs[position] for position in loop.carried if position not in names)
        for position in loop.carried:
            if position in names:
                continue
            chosen, expression = self._free(self.unless_free("hidden")), self.expressions[inputs[position]]
            self.busy[chosen] = math.inf
            statements.append(ast.Assign([ast.Name(chosen, ast.Store())], expression, lineno=0))
            names[position] = chosen
        return statements, names

    def _lists(self, loop: Loop) -> dict[str, list[int]]:
        """Return the lists that collect results of all calls, each with the positions of its results."""
        if not loop.collected:
            return {}
        everything = [call.outputs[output] for call in loop.calls for output in loop.collected]
        groups = [[output] for output in loop.collected]
        if isinstance(self.result, tuple) and begin_in(self.result, everything) is not None:
            groups = [[*loop.collected]]
        lists: dict[str, list[int]] = {}
        for group in groups:
            chosen = self._free(plural(self._collected_name(loop, group)))
            self.busy[chosen] = math.inf
            lists[chosen] = group
        return lists

    def _collected_name(self, loop: Loop, group: Sequence[int]) -> str:
        """Return a name for results of all calls: the one that the outputs of the model share, or `part`."""
        names = {common_name([call.outputs[output] for call in loop.calls], self.results) for output in group}
        if not any(names):
            formals, replaced = loop.calls[0].module.inputs, replaced_inputs(loop)
            names = {self.roles.get(formals[replaced[output]], "") for output in group if output in replaced} - {"x"}
        parts = [one.split("_") for one in names]
        shared = [each[0] for each in zip(*parts, strict=False) if len({*each}) == 1]
        return identifier("_".join(shared), "part") if all(names) and shared else "part"

"""The items of a module as the statements of its `__call__`.

    items: a layer `norm`, an operator `x * 2`, a call of the module `attention`

    x = self.norm(x)
    return self.attention(x * 2)

Each item becomes a call (`_step_of`); a call that is read once, right after, is written where it is read, as long as
the line is short. A `Loop` is a `for` with the calls of one of its rounds inside.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from jaxport.codegen.rewriting.steps import leaves, needed, readers_of, reads
from jaxport.codegen.tree import Call, Item, Layer, Loop, Module, Op, Tie, Weight
from jaxport.codegen.writing.fields import Child, common_name, key_of
from jaxport.codegen.writing.language import Language
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.naming.values import DESCRIPTIONS, OPERANDS
from jaxport.codegen.writing.statements import (
    LONGEST_DISTANT,
    LONGEST_INLINE,
    CellText,
    SizeName,
    attending,
    begin_in,
    direct_operands,
    items_of_rounds,
    listed_parts,
    parts_by_place,
    plural,
    replaced_inputs,
    singular,
)
from jaxport.importer.names import identifier
from jaxport.importer.values.recording import Step, Variable

Expression = TypeVar("Expression")
Statement = TypeVar("Statement")

SHORT = 3
"""Characters that a description of a value counts at most, where it is decided what stands in one line."""


@dataclass
class CallPrinter(Generic[Expression, Statement]):
    """Puts the computation of one module in order: `body` turns its items into statements, once `arguments` and `keep`
    have bound what they read.

    Attributes:
      language: how expressions and statements are written.
      sizes: the sizes that each module inside wants as arguments.
      roles: the names of the arguments of modules whose values differ between calls.
      results: the names of the results of the model.
      result: the values that the module returns.
      fixed: names that are not assigned to again.
    """

    language: Language[Expression, Statement]
    sizes: Mapping[Child, tuple[str, ...]] = field(default_factory=dict)
    roles: Mapping[Variable, str] = field(default_factory=dict)
    results: Mapping[Variable, str] = field(default_factory=dict)
    result: Any = None
    fixed: Collection[str] = ()

    @property
    def names(self) -> ModuleNames[Expression]:
        """The names of values, and when they are free again."""
        return self.language.names

    def arguments(self, names: Mapping[Variable, str]) -> None:
        """Binds the arguments of the module, which may be assigned to once nothing reads them."""
        for variable, chosen in names.items():
            self.names.expressions[variable] = self.language.part(chosen)
            self.names.busy[chosen] = math.inf

    def keep(self, module: Module, ties: Mapping[Layer, str]) -> None:
        """Binds the weights of the module; `ties` has where the layers are whose weights are read here."""
        library = self.language.library
        for variable, weight in module.weights.items():
            path = f"self.{self.names.fields.weights[variable]}" if isinstance(weight, Weight) else ties[weight.layer]
            if isinstance(weight, Tie):
                self.language.tied |= {variable: path} if weight.layer.kind == "Embed" else {}
                path = f"{path}.{library.layers[weight.layer.kind].fields(weight.layer)[weight.role].name}"
            is_fixed = isinstance(weight, Weight) and not weight.trained
            made = (library.frozen if is_fixed else library.value)(self.language.part(path))
            self.names.expressions[variable] = made

    def body(self, items: Sequence[Item], result: object) -> list[Statement]:
        """Return the statements that compute a result."""
        statements, value = self._computed(items, result)
        return [*statements, self.language.returned(value)]

    def _computed(self, items: Sequence[Item], result: object) -> tuple[list[Statement], Expression]:
        """Return the statements that compute a result, and what it is then."""
        self.result = result
        items = [part for item in items for part in (items_of_rounds(item) if self._is_unlisted(item) else (item,))]
        loops: dict[Step, Loop] = {}
        steps: list[Step] = []
        for item in items:
            step = self._step_of(item)
            if isinstance(item, Loop):
                loops[step] = item
                self.names.started |= {item.calls[0].inputs[position] for position in item.carried}
            steps.append(step)
        steps = attending(steps, self.language.tied, self.language.library.attends)
        steps, uses = needed(steps, result)
        self.names.readers = readers_of(steps)
        self.names.makers = {
            step.outputs: step for step in steps if isinstance(step.outputs, Variable) and step not in loops
        }
        for index, step in enumerate(steps):
            for variable in reads(step):
                self.names.last[variable] = index
        readers = {leaf: at for at, step in enumerate(steps) for leaf in direct_operands(step, loops)}
        readers |= {leaf: len(steps) for leaf in leaves(result) if isinstance(leaf, Variable)}
        for variable in leaves(result):
            if isinstance(variable, Variable):
                self.names.last[variable] = math.inf
        for variable, expression in self.names.expressions.items():
            if (chosen := self.language.name_of(expression)) and isinstance(variable, Variable):
                self.names.busy[chosen] = math.inf if chosen in self.fixed else self.names.last.get(variable, -1)
        statements: list[Statement] = []
        for index, step in enumerate(steps):
            self.names.now = index
            if step in loops:
                statements += self._loop(loops[step])
                continue
            reader = readers.get(step.outputs) if isinstance(step.outputs, Variable) else None
            usual = partial(self._statements, step, uses, len(steps))
            statements += self.language.statements_of(step, uses, reader, usual)
        value = self.language.value(result)  # it may read sizes, too
        return self.language.finished(statements), value

    def _step_of(self, item: Item) -> Step:
        """Return an item as a call: of a layer, of a module, or of the function that computes an operator."""
        if isinstance(item, Layer) and "carry" in item.config:
            options = {"reverse": True} if item.config["reverse"] else {}
            args = (CellText(self.names.fields.text(item)), item.config["carry"], item.inputs[0])
            return Step("call", "lax.scan", args, options, item.config["outputs"], item)
        if isinstance(item, Layer):
            keywords = item.config.get("keywords", ())
            first = len(item.inputs) - len(keywords)
            options = dict(zip(keywords, item.inputs[first:], strict=True))
            return Step("call", self.names.fields.text(item), item.inputs[:first], options, item.outputs[0], item)
        if isinstance(item, Call):
            sizes = {key: SizeName(key) for key in self.sizes.get(item.module, ())}
            outputs = item.outputs[0] if len(item.outputs) == 1 else item.outputs
            return Step("call", self.names.fields.text(item.module), item.inputs, sizes, outputs, item)
        if isinstance(item, Loop):
            return Step("call", "loop", item.inputs, {}, item.outputs, item)
        return item.step

    def _statements(self, step: Step, uses: Counter[Variable], end: int, reader: int | None) -> list[Statement]:
        """Return the statements of a step; none if its only reader, the step at place `reader`, has it in its
        expression.
        """
        statements = self.language.nested(step)
        expression = self.language.expression(step)
        default = self.language.result_names.get(step.name) or self.names.names_of(step)
        if isinstance(step.outputs, Variable):
            variable = step.outputs
            if (chosen := self.language.name_of(expression)) in self.names.busy and not self.names.started:
                self.names.expressions[variable] = expression  # as it was: no name of its own
                self.names.keep([chosen], self.names.last[variable])
                return statements
            is_next = reader == self.names.now + 1
            longest = math.inf if reader == end and is_next else LONGEST_INLINE if is_next else LONGEST_DISTANT
            is_read_once = uses[variable] == 1 and not statements
            if reader is not None and is_read_once and self.length(expression) <= longest:
                self.names.expressions[variable] = expression
                self.names.keep(self.language.names_in(expression), reader)
                return statements
            assert isinstance(default, str)
            target = self.language.pattern([self.names.bind(variable, default)])
        else:
            unused = isinstance(step.outputs, tuple) and not any(uses[v] for v in leaves(step.outputs[0]))
            outputs = (None, *step.outputs[1:]) if unused and isinstance(step.node, Layer) else step.outputs
            target = self.language.target(outputs, uses, default)
        return [*statements, self.language.assigned(target, expression)]

    def length(self, expression: Expression) -> int:
        """Return how long an expression is, whatever describes the values in it: statements that are alike are printed
        alike.
        """
        names = [one for one in self.language.names_in(expression) if one in self.names.busy]
        described = [one for one in names if re.sub(r"_\d+$", "", one) in DESCRIPTIONS]
        return len(self.language.text(expression)) - sum(max(len(one) - SHORT, 0) for one in described)

    def _loop(self, loop: Loop) -> list[Statement]:
        """`for layer, cache in zip(self.layers, caches): x = layer(x, mask, cache)`."""
        first = loop.calls[0]
        columns = parts_by_place(loop)
        self._hold(loop)
        statements, names = self._carried(loop)
        elements: dict[tuple[str | int, ...], str] = {}
        iterated: list[tuple[str, Expression]] = []
        for column in columns:
            *around, position = self.names.fields.paths[key_of(column[0])]
            if key_of(column[0]) is not key_of(column[-1]) and tuple(around) not in elements:
                element = elements[tuple(around)] = self.names.free(
                    singular(str(around[0])) if len(around) == 1 else "layer"
                )
                self.names.busy[element] = math.inf
                path = listed_parts(self.names.fields, around, int(position), len(loop.calls))
                iterated.append((element, self.language.part(path)))
        element = next(iter(elements.values()), "")
        for position, row in loop.rows.items():
            wanted = self.roles.get(first.module.inputs[position], "part")
            if wanted == "x" and isinstance(row, Variable):
                wanted = "row"
            if wanted in self.names.taken and element:
                wanted = f"{element}_{wanted}"
            names[position] = self.names.free(wanted)
            self.names.busy[names[position]] = math.inf
            iterated.append((names[position], self.language.rows(row)))
        arguments = [
            self.language.part(names[position]) if position in names else self.language.value(variable)
            for position, variable in enumerate(first.inputs)
        ]
        targets = {output: names[position] for position, output in loop.carried.items()}
        for output in loop.collected:
            if output not in targets:
                replaced = replaced_inputs(loop).get(output, -1)
                told = dict(enumerate(self.names.returned.get(first.module, ()))).get(output, "")
                wanted = told if told in OPERANDS else self._collected_name(loop, [output])
                targets[output] = names.get(replaced) or self.names.free(wanted)
                self.names.busy[targets[output]] = math.inf
        lists = self._lists(loop)
        for chosen in lists:
            statements.append(self.language.assigned(self.language.pattern([chosen]), self.language.empty_list()))
        target = self.language.pattern([targets.get(index, "_") for index in range(len(first.outputs))])
        if first.module.inline:
            body = self._round(loop, arguments, elements, target)
        else:
            called = self.language.part(element or self.names.fields.text(first.module))
            made = self.language.invoked(called, arguments, self.sizes.get(first.module, ()))
            body = [self.language.assigned(target, made)]
        for chosen, places in lists.items():
            body += self.language.appended(chosen, [self.language.part(targets[output]) for output in places])
        statements.append(self.language.loop(iterated, len(loop.calls), body))
        for chosen in [one for one, _ in iterated] + [targets[output] for output in loop.collected]:
            self.names.busy[chosen] = self.names.now
        for chosen, places in lists.items():
            made = [call.outputs[output] for call in loop.calls for output in places]
            self.language.lists[chosen] = made
            self.names.busy[chosen] = max(self.names.last.get(variable, -1) for variable in made)
            for index, variable in enumerate(made):
                self.names.expressions[variable] = self.language.element(chosen, index)
        for position, output in loop.carried.items():
            variable = loop.calls[-1].outputs[output]
            if output not in loop.collected:
                self.names.expressions[variable] = self.language.part(names[position])
            self.names.busy[names[position]] = self.names.last.get(variable, self.names.now)
        return statements

    def _hold(self, loop: Loop) -> None:
        """Keep the names of the values that each round reads: the loop must not assign to them."""
        rows = [row if isinstance(row, tuple) else (row,) for row in loop.rows.values()]
        same = [v for place, v in enumerate(loop.calls[0].inputs) if place not in (*loop.carried, *loop.rows)]
        self._hold_names((*same, *(variable for row in rows for variable in row)))

    def _hold_names(self, variables: Iterable[Variable]) -> None:
        """Keep the names that the expressions of values have, which are read after others were assigned."""
        for variable in variables:
            self.names.keep(self.language.names_in(self.names.expressions[variable]), self.names.now + 1)

    def _is_unlisted(self, item: Item) -> bool:
        """Whether an item is a loop over parts that are not all elements of lists that the module has."""
        if not isinstance(item, Loop):
            return False
        columns = parts_by_place(item)
        different = any(len({self.sizes.get(child, ()) for child in column}) > 1 for column in columns)
        return different or not self.names.fields.follow(columns)

    def _round(
        self,
        loop: Loop,
        arguments: Sequence[Expression],
        elements: Mapping[tuple[str | int, ...], str],
        target: Expression,
    ) -> list[Statement]:
        """Return the body of a loop: the items of its last round, with the variables of the loop in place of its
        parts.
        """
        module = loop.calls[-1].module
        for part in module.parts:
            if isinstance(part, Op):
                continue
            child = part.module if isinstance(part, Call) else part
            chosen = elements.get(self.names.fields.paths[key_of(child)][:-1])
            if chosen is not None:
                self.names.fields.elements[key_of(child)] = chosen
        bound = {**self.names.expressions, **dict(zip(module.inputs, arguments, strict=True))}
        language = self.language.of_round(self.names.of_round(bound))
        inner = replace(self, language=language, fixed=self.names.taken)
        result = module.outputs[0] if len(module.outputs) == 1 else module.outputs
        statements, value = inner._computed(module.items, result)
        return [*statements, self.language.assigned(target, value)]

    def _carried(self, loop: Loop) -> tuple[list[Statement], dict[int, str]]:
        """Return the statements that bind the carried values of a loop, and their names."""
        statements: list[Statement] = []
        names: dict[int, str] = {}
        inputs = loop.calls[0].inputs
        for position in loop.carried:
            variable = inputs[position]
            held = self.language.name_of(self.names.expressions[variable])
            alone = sum(other is variable for other in (*inputs, *loop.inputs)) == 2
            if alone and held and self.names.busy.get(held, math.inf) <= self.names.now and held not in names.values():
                names[position] = held
                self.names.busy[held] = math.inf
        self._hold_names(inputs[position] for position in loop.carried if position not in names)
        for position in loop.carried:
            if position in names:
                continue
            chosen = self.names.free(self.names.unless_free("hidden"))
            self.names.busy[chosen] = math.inf
            statements.append(
                self.language.assigned(self.language.pattern([chosen]), self.names.expressions[inputs[position]])
            )
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
            chosen = self.names.free(plural(self._collected_name(loop, group)))
            self.names.busy[chosen] = math.inf
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

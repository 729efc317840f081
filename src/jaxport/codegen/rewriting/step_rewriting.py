"""Tables of rules on recorded steps, and the engine that applies them until none applies.

Most rules are text: the steps that they replace, and the step or the value in their place.

>>> import numpy as np
>>> rules = RuleTable()
>>> rules.rewrite("1 / jnp.sqrt(x)", "lax.rsqrt(x)")
>>> rules.rewrite(
...     "jnp.transpose(jnp.transpose(x, p), q)",
...     "jnp.transpose(x, order)",
...     order=lambda p, q: tuple(p[axis] for axis in q),
... )
>>> x, root, output = (Variable((2,), np.dtype("float32")) for _ in range(3))
>>> rewriting = StepRewriting([rules])
>>> rewriting.add(Step("call", "jnp.sqrt", (x,), {}, root, None)) is root
True
>>> rewriting.add(Step("operator", "/", (HostValue(np.float32(1)), root), {}, output, None)) is output
True
>>> [step.name for step in rewriting.steps]
['jnp.sqrt', 'lax.rsqrt']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax

from jaxport.codegen.rewriting.patterns import (
    Anything,
    Bindings,
    Constant,
    Listed,
    Pattern,
    StepPattern,
    bindings,
    inner_steps,
    names,
    pattern,
)
from jaxport.codegen.rewriting.producers import Producers, is_like
from jaxport.codegen.rewriting.steps import renamed, variables
from jaxport.importer.values.host import Dim, HostValue
from jaxport.importer.values.recording import Form, Function, Step, Variable, map_leaves
from jaxport.jaxprs import PythonFunction

Value = Variable | HostValue

Structural = TypeVar("Structural", bound=PythonFunction)

AROUND = frozenset({"step", "out", "rewriting"})
"""What rules know beside the names of their pattern: the step, the variable of its result, and the steps so far."""

SHAPES: Mapping[str, Callable[..., Sequence[Dim]]] = {
    "jnp.reshape": lambda _, shape: shape,
    "jnp.transpose": lambda x, order: [x.shape[axis] for axis in order],
    "@": lambda x, kernel: (*x.shape[:-1], kernel.shape[-1]),
    "+": lambda x, _: x.shape,
}
"""The shapes of the results of steps that rules make inside others: of products with a matrix, and of sums with a
vector.
"""

MOST_ROUNDS = 100
"""How often a step is rewritten: rules that undo each other are applied no more."""


@dataclass(eq=False)
class RuleTable:
    """Rules by the name of the step that they begin at, in the order in which they are tried; and those that are text.

    `several` has those of steps with several results: they say what stands for these.
    """

    rules: dict[str, list[Rule]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    several: dict[str, list[Callable[[Step, StepRewriting], None]]] = field(default_factory=dict)

    def rewrite(
        self, wanted: str, made: str, *, when: Callable[..., object] | None = None, **computed: Callable[..., object]
    ) -> None:
        """Add a rule that is text.

        Args:
          wanted: the pattern of a step.
          made: the step in its place, or the name of the value that stands for it if that has its shape and dtype. Of
            steps inside it, those of `SHAPES`, `(y := x @ w)` takes the place of the one that makes `y`.
          when: whether the rule applies: a function of names of the pattern, and of `AROUND`.
          computed: what other names of `made` stand for, as functions of the same; None if the rule does not apply.

        Raises:
          SyntaxError: a text is no pattern, or a replacement has another step inside than those of `SHAPES`.
          TypeError: a function has a parameter that is none of these.
        """
        head, result = pattern(wanted), pattern(made)
        if not isinstance(head, StepPattern) or not isinstance(result, StepPattern | Anything):
            raise SyntaxError(f"no rule: {wanted} as {made}")
        known = names(head) | AROUND
        guard = None if when is None else _Known(when, known)
        rule = _TextRule(head, result, guard, {name: _Known(function, known) for name, function in computed.items()})
        if unknown := names(result) - known - computed.keys():
            raise SyntaxError(f"{wanted} does not say what {', '.join(sorted(unknown))} is")
        if unshaped := {inner.names[0] for inner in inner_steps(result)} - SHAPES.keys():
            raise SyntaxError(f"no rule knows the shape of {', '.join(sorted(unshaped))} inside {made}")
        self.texts[wanted] = made
        for name in head.names:
            self.rules.setdefault(name, []).append(rule)

    def on_several(
        self, name: str
    ) -> Callable[[Callable[[Step, StepRewriting], None]], Callable[[Step, StepRewriting], None]]:
        """Return a decorator that adds a rule of a step with several results, which says what stands for them."""

        def added(function: Callable[[Step, StepRewriting], None]) -> Callable[[Step, StepRewriting], None]:
            self.several.setdefault(name, []).append(function)
            return function

        return added

    def on(self, *names: str) -> Callable[[Structural], Structural]:
        """Return a decorator that adds a rule that is structural: a function of `step`, perhaps of `out` and
        `rewriting`.
        """

        def added(function: Structural) -> Structural:
            known = _Known(function, AROUND)
            rule: Rule = lambda step, rewriting: known(_around(step, rewriting))
            for name in names:
                self.rules.setdefault(name, []).append(rule)
            return function

        return added


@dataclass(eq=False)
class StepRewriting:
    """The steps so far, and what rules work with.

    Attributes:
      tables: the rules.
      weights: the parameters.
      readers: the steps that read each value, as they were.
      results: the values that the program, or a nested function, returns.
      steps: in order.
      same: the value that stands for another one.
      producers: the step that makes each value.
      notes: what rules remember.
    """

    tables: Sequence[RuleTable]
    weights: Collection[Variable] = ()
    readers: Mapping[Variable, Sequence[Step]] = field(default_factory=dict)
    results: Collection[Variable] = ()
    steps: list[Step] = field(default_factory=list)
    same: dict[Variable, Value] = field(default_factory=dict)
    producers: Producers = field(default_factory=Producers)
    notes: dict[Hashable, Variable] = field(default_factory=dict)

    def current(self, leaf: object) -> Any:
        """Return the value that stands for one."""
        return self.same.get(leaf, leaf) if isinstance(leaf, Variable) else leaf

    def all(self, steps: Iterable[Step]) -> list[Step]:
        """Add steps, and return what they have become."""
        for step in steps:
            self.add(self._with_functions(step))
        return self.steps

    def add(self, original: Step) -> Any:
        """Add a step as rules write it, and return its result, or what stands for that."""
        step, output = renamed(original, self.same), original.outputs
        for _ in range(MOST_ROUNDS if isinstance(output, Variable) else 0):
            found = self._rewritten(step)
            if found is None:
                break
            if not isinstance(found, Step):
                if isinstance(found, Variable) and not found.hint:
                    found.hint = output.hint
                self.same[output] = found
                return found
            step = renamed(found, self.same)
        self.steps.append(step)
        self.producers.note(step)
        if not isinstance(output, Variable) and step.form != "vmap":
            for table in self.tables:
                for rule in table.several.get(step.name, ()):
                    rule(step, self)
        return output

    def _rewritten(self, step: Step) -> Value | Step | None:
        if step.form == "vmap":
            return None
        rules = (rule for table in self.tables for rule in table.rules.get(step.name, ()))
        return next((found for rule in rules if (found := rule(step, self)) is not None), None)

    def call(
        self,
        like: Step,
        name: str,
        args: tuple[object, ...],
        shape: Sequence[Dim] | Variable,
        form: Form = "call",
        **kwargs: object,
    ) -> Variable:
        """Add a step whose result has the dtype of another one, or is a variable, and return its result."""
        result = shape if isinstance(shape, Variable) else Variable(tuple(shape), like.outputs.dtype)
        return self.add(Step(form, name, args, kwargs, result, like.node))

    def written(self, made: StepPattern, bound: Bindings, like: Step) -> Step:
        """Return the step that a pattern says, with what its names stand for, in place of another one."""
        keywords = {word: self._filled(value, bound, like) for word, value in made.keywords}
        keywords |= bound[made.options] if made.options else {}
        args = (*(self._filled(arg, bound, like) for arg in made.args), *(bound[made.rest] if made.rest else ()))
        return Step(made.form, made.names[0], args, keywords, like.outputs, like.node)

    def _filled(self, part: Pattern, bound: Bindings, like: Step) -> Any:
        match part:
            case Anything(name, None):
                return bound[name]
            case Anything(name, inner) if inner is not None:
                return self._filled(inner, bound, self.producers.made.get(bound[name], like))
            case Constant(value):
                return value
            case Listed(parts, kind):
                return kind(self._filled(each, bound, like) for each in parts)
            case StepPattern():
                step = self.written(part, bound, like)
                return self.call(like, step.name, step.args, SHAPES[step.name](*step.args), step.form)
        raise SyntaxError(f"no argument of a step: {part}")

    def _with_functions(self, step: Step) -> Step:
        """Return a step whose nested functions are rewritten."""

        def inside(leaf: object) -> Any:
            if not isinstance(leaf, Function):
                return leaf
            results = {*self.results, *variables(leaf.result)}
            inner = StepRewriting(
                self.tables, self.weights, self.readers, results, [], self.same, self.producers, {**self.notes}
            )
            steps = inner.all(leaf.steps)
            return Function(leaf.name, leaf.parameters, steps, map_leaves(inner.current, leaf.result))

        if not any(isinstance(leaf, Function) for leaf in jax.tree.leaves((step.args, step.kwargs))):
            return step
        args, kwargs = map_leaves(inside, step.args), map_leaves(inside, step.kwargs)
        return Step(step.form, step.name, args, kwargs, step.outputs, step.node)


Rule = Callable[[Step, StepRewriting], "Value | Step | None"]
"""Returns what a step is: another step with the same result, a value that stands for it, or None if it stays."""


def _around(step: Step, rewriting: StepRewriting) -> Bindings:
    return {"step": step, "out": step.outputs, "rewriting": rewriting}


class _Known:
    """A function of some of the values that a rule knows: those that its parameters name."""

    def __init__(self, function: PythonFunction, known: Collection[str]) -> None:
        parameters = inspect.signature(function).parameters
        self.function = function
        self.names = [name for name, each in parameters.items() if name in known or each.default is each.empty]
        if unknown := {*self.names} - {*known}:
            raise TypeError(f"a rule does not know {', '.join(sorted(unknown))}, but {', '.join(sorted(known))}")

    def __call__(self, known: Bindings) -> Any:
        return self.function(**{name: known[name] for name in self.names})


@dataclass(frozen=True)
class _TextRule:
    wanted: StepPattern
    made: StepPattern | Anything
    when: _Known | None
    computed: Mapping[str, _Known]

    def __call__(self, step: Step, rewriting: StepRewriting) -> Value | Step | None:
        around = _around(step, rewriting)
        for bound in bindings(self.wanted, step, rewriting.producers):
            known = {**bound, **around}
            if self.when is not None and not self.when(known):
                continue
            known |= {name: value for name, function in self.computed.items() if (value := function(known)) is not None}
            if not self.computed.keys() <= known.keys():
                continue
            if isinstance(self.made, StepPattern):
                return rewriting.written(self.made, known, step)
            if is_like(found := known[self.made.name], step.outputs):
                return found
        return None

"""One block or equation of a program: a program of its own, and the original that a replacement may call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import jax

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping
from jaxport.blocks.marking.window import current_recorder
from jaxport.blocks.tracing import Traced, TracedWeight
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Aval, Parameters, Var, aval_of
from jaxport.jaxprs.alike import same_aval
from jaxport.mox.programs.original import Site
from jaxport.mox.programs.parameters import is_parameter
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.programs.tree import Node, name_below
from jaxport.mox.querying.origins import evaluated, stacking_scans, value_of

IN_PLACE = "in place"
"""The option of a block that a replacement of one around it calls: its path and its parameters are what they were."""

REPLACED = "replaced"
"""The option of the block of a module that has taken the place of another."""

REWRITTEN = "rewritten"
"""The option of a block that computes in another way than its module, though nothing inside of it was replaced."""


@dataclass(frozen=True, eq=False, repr=False)
class TracedCall(TracedProgram):
    """A block or equation as a program: it takes the arrays of the call, in order, and returns the results of the call.

    A selected one is a `Match`; its docstring has the attributes.
    """

    node: Node = field(kw_only=True)
    root: TracedProgram = field(kw_only=True)
    lengths: tuple[int, ...] = ()
    position: tuple[int, ...] = ()
    _sites: list[tuple[Site | None, Sequence[Array] | None]] = field(default_factory=list, repr=False)

    def replaced(self, traced: Traced, **changes: object) -> Self:
        """Return the block with another program; called inside a replacement, it no longer runs the original."""
        return super().replaced(traced, _sites=[], **changes)

    @property
    def is_replaced(self) -> bool:
        """Whether its replacement is being traced, inside which calling it runs the original."""
        return bool(self._sites)

    @property
    def block(self) -> Block | None:
        """The module or function call that the block represents; None for an equation."""
        return self.node.block

    @property
    def type(self) -> str:
        """The short name of the block's type, or the name of the primitive."""
        return self.node.type

    @property
    def path(self) -> str:
        """Its path in the model."""
        return self.node.path

    @property
    def base(self) -> str:
        """See `Mox.base`."""
        return self.node.path if self.block is not None else ""

    @property
    def shown(self) -> str:
        """Its name in messages: its path, or at the root its type."""
        return self.path or self.type

    @property
    def config(self) -> Parameters:
        """The static fields of the module and the static arguments of the call; for an equation, its params."""
        return jaxprs.parameters(self.node.equation) if self.block is None else self.block.config

    @property
    def weight_avals(self) -> dict[str, Aval]:
        """The shape and dtype of each parameter of the block, by path; inside a scan, those of one step."""
        block, invars = self.block, self.node.equation.invars
        return {} if block is None else {path: aval_of(invars[index]) for index, path in block.named.items()}

    @property
    def params(self) -> dict[str, Array]:
        """The parameters of the block, by path; an operator of an imported model has its own among its arguments."""
        return {
            weight.path: weight.value for weight in (*self._arguments_held(), *self.weights) if is_parameter(weight)
        }

    def apply(self, params: Mapping[str, Array], /, *args: object, **kwargs: object) -> Any:
        """See `Mox.apply`; parameters that are arguments of the call are given as these."""
        held = {weight.path: weight.value for weight in self._arguments_held()}
        own = {weight.path for weight in self.weights}
        for path in held.keys() & params.keys() - own:
            if params[path] is not held[path]:
                raise InvalidArgument(
                    f"`{path}` is an argument of `{self.shown}`",
                    where="`Match.apply(params, …)`",
                    why="it would have two values",
                    instead="give the new value as the argument",
                )
        return super().apply(
            {path: v for path, v in params.items() if path in own or path not in held}, *args, **kwargs
        )

    @property
    def in_avals(self) -> list[Aval]:
        """The shape and dtype of each array that the call takes."""
        return [aval_of(atom) for atom in self.node.equation.invars[: len(arguments_of(self.node))]]

    @property
    def out_avals(self) -> list[Aval]:
        """The shape and dtype of each array that the call returns."""
        return [aval_of(atom) for atom in self.node.equation.outvars[: len(returns_of(self.node))]]

    def step(self, index: int) -> Self:
        """Return the block as it is in one step of the enclosing scans, with the parameters of that step.

        Raises:
          InvalidArgument: there is no such step.
        """
        steps = math.prod(self.lengths)
        if not 0 <= index < steps:
            raise InvalidArgument(
                f"there is no step {index} of `{self.shown}`", where="`Match.step`", why=f"it runs {steps} times"
            )
        position = []
        for length in reversed(self.lengths):
            position.insert(0, index % length)
            index //= length
        return call_of(type(self), self.root, self.node, tuple(position))

    def __call__(self, *args: object, params: Mapping[str, Array] | None = None, **kwargs: object) -> Any:
        """Return what the block returns for these arrays, in order.

        Inside a replacement this runs the original, with the parameters that the program runs with; `params` gives
        other values for some of them, by their names below the block.
        """
        site, operands = self._sites[-1] if self._sites else (None, None)
        if self._around is not None:
            return self._in_place(self._arguments(args, kwargs), self._exchanged(params or {}))
        if site is None or operands is None:
            if params:
                return self.apply(
                    {**self.params, **{self._full(name): v for name, v in params.items()}}, *args, **kwargs
                )
            # What takes the place of a parameter (a slice of a stack, a quantized weight) need not be given.
            for name in self.inputs:
                if name not in kwargs and (computed := self.computed(name)) is not None:
                    kwargs[name] = computed
            return super().__call__(*args, **kwargs)
        arrays = dict(zip(_argument_order(self.node), self._arguments(args, kwargs), strict=True))
        exchanged = self._exchanged(params or {})
        inputs = [exchanged.get(index, arrays.get(index, operand)) for index, operand in enumerate(operands)]
        results = site.call(inputs[: len(arrays)], inputs[len(arrays) :], frozenset(exchanged))
        return self._result([results[index] for index in _result_order(self.node)])

    @property
    def _around(self) -> Mapping[str, Array] | None:
        """If it lies in a block that is being replaced, the parameters that the program runs that with, by path."""
        if self._sites or not isinstance(self.root, TracedCall) or not self.root.is_replaced:
            return None
        operands, block = self.root._sites[-1][1], self.root.block
        if operands is None or block is None:
            return None
        return {path: operands[index] for index, path in block.named.items()}

    def _in_place(self, arrays: Sequence[Array], exchanged: Mapping[int, Array]) -> object:
        """Return the results of the block inside the replacement of one around it: it stays what and where it is."""
        equation, block = self.node.equation, self.block
        inputs = dict(zip(_argument_order(self.node), arrays, strict=True)) | dict(exchanged)
        if block is not None:
            around = self._around or {}
            known = {index: around[path] for index, path in block.named.items() if path in around}
            inputs = known | inputs
        avals = [aval_of(atom) for atom in equation.invars]
        for index, aval in enumerate(avals):
            one = jax.typeof(inputs[index]) if index in inputs else None
            if one is None or not same_aval(one, aval):
                raise InvalidArgument(
                    f"`{self.shown}` cannot be called inside the replacement of `{self.root.name}`",
                    where="the call of a block",
                    why=f"it takes {aval.str_short()}, and "
                    + ("a value from around it" if one is None else f"is given {one.str_short()}"),
                    instead="replace that block itself",
                )
        if block is not None:
            block = replace(block, options=FrozenMapping({**block.options, IN_PLACE: True}))
            equation = equation.replace(params={**equation.params, "block": block})
        results = evaluated(equation, [inputs[index] for index in range(len(avals))], current_recorder() is not None)
        return self._result([results[index] for index in _result_order(self.node)])

    def param(self, name: str) -> Array:
        """Return a parameter of the block, by its name below the block; inside a replacement, the value that the
        program uses.

        Raises:
          InvalidArgument: the block has no parameter of that name, or the program does not hold it.
        """
        path = self._full(name)
        operands = self._sites[-1][1] if self._sites else None
        if operands is not None and self.block is not None:
            return operands[next(index for index, known in self.block.named.items() if known == path)]
        if self._around is not None and path in self._around:
            return self._around[path]
        # An operator of an imported model has its weights among its arguments.
        held = {weight.path: weight.value for weight in (*self._arguments_held(), *self.weights)}
        if path not in held and (computed := self.computed(path)) is not None:
            return computed
        if path not in held:
            raise InvalidArgument(
                f"`{path}` is not a parameter that the program holds",
                where="`Match.param`",
                why="it is an argument of the program, or has a value for each step of a scan",
                instead="trace a function that holds the values (`make_mox(lambda x: model.apply(variables, x))`), "
                "read it "
                "inside the replacement (`original.param`), or take `match.step(index)`",
            )
        return held[path]

    def computed(self, path: str) -> Array | None:
        """Return the value that an edit computes for a parameter, or None if it is not known before the program
        runs.
        """
        exchanged = {} if self.block is None else self.block.exchanged
        index = next((index for index, known in exchanged.items() if known == path), None)
        if index is None:
            return None
        steps = dict(zip(stacking_scans(self.root, self.node), self.position, strict=False))
        return value_of(self.root, self.node, self.node.equation.invars[index], steps)

    def _full(self, name: str) -> str:
        """Return the path of a parameter, given relative to the block or in full."""
        known = self.weight_avals
        matching = [path for path in known if path == name or name_below(path, self.path) == name]
        if len(matching) != 1:
            raise InvalidArgument(
                f"`{self.shown}` has no parameter `{name}`",
                where="the call of a block",
                instead=f"it has {', '.join(f'`{name_below(path, self.path)}`' for path in known) or 'none'}",
            )
        return matching[0]

    def _arguments_held(self) -> list[TracedWeight]:
        """Return the arguments of the call that are whole parameters of the program."""
        block, avals = self.block, self.in_avals
        named = {} if block is None else {path: avals[i] for i, path in block.weights.items() if i < len(avals)}
        return [w for w in self.root.weights if w.path in named and w.value.shape == named[w.path].shape]

    def _exchanged(self, params: Mapping[str, Array]) -> dict[int, Array]:
        """Return the operands of the block that other values take the place of, by position."""
        if self.block is None or not params:
            return {}
        by_path = {self._full(name): value for name, value in params.items()}
        invars = self.node.equation.invars
        exchanged = {index: by_path[path] for index, path in self.block.named.items() if path in by_path}
        for index, value in exchanged.items():
            aval = aval_of(invars[index])
            new_aval = jax.typeof(value)
            if not same_aval(new_aval, aval):
                raise InvalidArgument(
                    f"`{self.block.named[index]}` is given {new_aval.str_short()}",
                    where=f"the call of the block `{self.shown}`",
                    why=f"the block takes {aval.str_short()}",
                )
        return exchanged


Call = TypeVar("Call", bound=TracedCall)


def arguments_of(node: Node) -> tuple[str, ...]:
    """Return the path of each array argument of the call; of an equation, every operand is one."""
    return node.block.arguments if node.block is not None else tuple(map(str, range(len(node.equation.invars))))


def returns_of(node: Node) -> tuple[str, ...]:
    """Return the path of each result of the call in what it returned."""
    if node.block is not None:
        returns = node.block.returns
        return returns if len(returns) == node.block.results else tuple(map(str, range(node.block.results)))
    count = len(node.equation.outvars)
    return ("",) if count == 1 else tuple(map(str, range(count)))


def nested(paths: Sequence[str], leaves: Sequence[object]) -> Any:
    """Return the containers that have the leaves at these paths: tuples if the keys are numbers, else dicts.

    What a tuple has between them is None.

    >>> nested([""], [1]), nested(["0", "2.a"], [1, 2])
    (1, (1, None, {'a': 2}))
    """
    if list(paths) == [""]:
        return leaves[0]
    groups: dict[str, tuple[list[str], list[Any]]] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        key, _, below = path.partition(".")
        group = groups.setdefault(key, ([], []))
        group[0].append(below)
        group[1].append(leaf)
    made = {key: nested(*group) for key, group in groups.items()}
    if not all(key.isdecimal() for key in made):
        return made
    size = 1 + max(map(int, made), default=-1)
    if size > len(made) + _MOST_GAPS:
        return made
    return tuple(made.get(str(index)) for index in range(size))


# Whole numbers that leave more out are keys of a dict.
_MOST_GAPS = 100


def call_arguments(node: Node, arrays: Sequence[object]) -> tuple[Any, ...]:
    """Return the positional arguments of the call, from its arrays."""
    groups = nested(arguments_of(node), arrays) if arrays else ()
    return tuple(groups.values()) if isinstance(groups, dict) else groups


# The arrays of a dict come in the order in which the call has them, the leaves of its tree in the order of their names.


def _argument_order(node: Node) -> list[int]:
    """Return which array of the call each leaf of its arguments is."""
    return jax.tree.leaves(call_arguments(node, list(range(len(arguments_of(node))))))


def _returned(node: Node) -> object:
    """Return what the call returns, with the number of each array in its place."""
    count = len(returns_of(node))
    return nested(returns_of(node), list(range(count))) if count else ()


def _result_order(node: Node) -> list[int]:
    """Return which array of the call each leaf of its result is."""
    return jax.tree.leaves(_returned(node))


def call_of(kind: type[Call], root: TracedProgram, node: Node, step: tuple[int, ...] | None = None) -> Call:
    """Return a node, or one step of it in the scans around it, as a program of its own."""
    scans = stacking_scans(root, node)
    jaxpr, arguments = _body(node)
    first = len(arguments)
    held = {weight.path: weight for weight in root.weights}
    weights: list[tuple[Var, TracedWeight]] = []
    inputs: list[tuple[Var, str]] = []
    taken = {""}
    named, exchanged = (node.block.named, node.block.exchanged) if node.block is not None else ({}, {})
    for index, variable in enumerate(jaxpr.invars[first:], first):
        aval = aval_of(variable)
        path = named.get(index)
        weight = held.get(path) if path is not None and index not in exchanged else None
        value = None if weight is None else weight.value
        if value is not None and value.shape != aval.shape and step is not None:
            value = value[step]
        if path in taken:
            path = None
        if weight is not None and path is not None and value is not None and value.shape == aval.shape:
            weights.append((variable, replace(weight, value=value)))
        else:
            inputs.append((variable, path or f"closed_over_{len(inputs)}"))
        taken.add(path or "")
    taken_in, returned = _argument_order(node), _result_order(node)
    invars = [*(v for v, _ in weights), *(jaxpr.invars[index] for index in taken_in), *(v for v, _ in inputs)]
    returns = returns_of(node)
    jaxpr = jaxpr.replace(
        invars=invars,
        outvars=[jaxpr.outvars[index] for index in returned],
        debug_info=jaxprs.nameless(jaxpr),
    )
    return kind(
        traced=Traced(
            jaxpr=jaxprs.closed(jaxpr, ()),
            weights=tuple(weight for _, weight in weights),
            in_tree=jax.tree.structure((call_arguments(node, list(range(first))), {})),
            out_tree=jax.tree.structure(_returned(node)),
            input_paths=tuple(arguments[index] for index in taken_in),
            output_paths=tuple(returns[index] for index in returned) if returns != ("",) else ("output",),
            state_outputs=(),
            static_inputs={},
            static_outputs={},
        ),
        name=node.path or node.type,
        inputs=tuple(name for _, name in inputs),
        node=node,
        root=root,
        lengths=tuple(scan.equation.params["length"] for scan in scans) if step is None else (),
        position=step or (),
    )


def _body(node: Node) -> tuple[jaxprs.Jaxpr, tuple[str, ...]]:
    """Return the body of a block, or one that has the equation alone; and the paths of the arguments."""
    arguments = arguments_of(node)
    if node.block is not None:
        return node.equation.params["jaxpr"].jaxpr, arguments
    equation = node.equation
    invars = [jaxprs.Var(atom.aval) for atom in equation.invars]
    outvars = [jaxprs.Var(atom.aval) for atom in equation.outvars]
    equation = equation.replace(invars=[*invars], outvars=outvars)
    debug_info = jaxprs.DebugInfo("equation", equation.primitive.name, None, None)
    return jaxprs.Jaxpr((), invars, outvars, [equation], equation.effects, debug_info), arguments

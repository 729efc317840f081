"""Merge two programs, of which a flag chooses one at run time, into one.

Equations of both programs occur in it once, in the same order; those of only one program go into a branch of a `cond`
on the flag. So a model with dropout only branches at its dropouts, and a normalization chooses the statistics that it
then applies. Blocks of both programs are merged inside.

Cases:

1. An equation of both: an operand is that of both if they are the same, else the flag chooses it.
2. Equations of one program between two of both, with those of the other at the same place: a `cond`.
3. A value of one program that is used in a later such place: it is computed regardless of the flag, so that it need not
   leave its branch without a counterpart.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxport.blocks.block import Block, FrozenMapping, block_p
from jaxport.export.emit.registry import BLOCK_RULES
from jaxport.jaxprs import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Parameters, Var, nameless, reference_of
from jaxport.jaxprs.alike import same_avals, same_computation, same_literal
from jaxport.jaxprs.identity import IdentityMap
from jaxport.jaxprs.rewrite import copied, fresh, replaced
from jaxport.jaxprs.walk import variables

#: If more equations than this lie between the common prefix and the common suffix, they are not compared.
LONGEST = 4000

TRUE, FALSE = 0, 1
_Sides = tuple[Any, Any]


@dataclass
class Side:
    """One of the two programs: its equations, its outputs, and the merged program's replacements for its variables.

    `own` are further outputs, which the other program does not have.
    """

    equations: Sequence[JaxprEqn]
    outvars: Sequence[Atom]
    env: dict[Var, Var]
    own: Sequence[Atom] = ()

    def atom(self, atom: Atom) -> Any:
        """Return the merged variable for a variable, the literal, or the side's own variable."""
        return atom if isinstance(atom, Literal) else self.env.get(atom, atom)


@dataclass
class _Segment:
    """Equations of both programs that are the same (one of each), or that each has for itself."""

    own: tuple[list[JaxprEqn], list[JaxprEqn]]
    common: bool
    joins: list[_Join] = field(default_factory=list)


@dataclass
class _Join:
    """A value that the flag chooses from one of each side."""

    result: Var
    sides: _Sides


def merged(flag: Var, like: Jaxpr, sides: tuple[Side, Side]) -> tuple[list[JaxprEqn], list[Any], set[Any]]:
    """Return the equations of the merged program, its outputs (those of both, then each side's own), and its effects.

    Args:
      flag: the variable that chooses.
      like: a jaxpr from which the bodies of branches are derived.
      sides: the program for a true flag, and that for a false one.
    """
    true, false = sides
    made = {variable for equation in true.equations for variable in equation.outvars}
    if any(variable in made for equation in false.equations for variable in equation.outvars):
        false = _renamed(false)  # programs from JAX's cache may share variables
    return _Merge(flag, like, (true, false)).program()


def _renamed(side: Side) -> Side:
    """Return the same program with fresh variables."""
    names: dict[Var, Atom] = {}
    equations = copied(side.equations, names)
    return Side(equations, replaced(side.outvars, names), side.env, replaced(side.own, names))


class _Merge:
    def __init__(self, flag: Var, like: Jaxpr, sides: tuple[Side, Side]):
        self.flag, self.like, self.sides = flag, like, sides
        self.index: Var | None = None
        self.equations: list[JaxprEqn] = []
        self.hoisted: set[JaxprEqn] = set()
        self._joins: IdentityMap[Atom, IdentityMap[Atom, _Join]] = IdentityMap()
        self._made_in: dict[Var, tuple[int, JaxprEqn]] = {}  # a side's own variables: segment, equation

    def program(self) -> tuple[list[JaxprEqn], list[Any], set[Any]]:
        self.segments = list(self._segments())
        for number, segment in enumerate(self.segments):
            if not segment.common:
                for equations in segment.own:
                    for equation in equations:
                        self._made_in.update((v, (number, equation)) for v in equation.outvars)
        plans: list[Callable[[], None]] = [self._plan(number, s) for number, s in enumerate(self.segments)]
        last = _Segment(([], []), common=True)
        self.segments.append(last)
        outvars = [self._chosen(pair, len(plans)) for pair in zip(*(side.outvars for side in self.sides), strict=True)]
        for side in self.sides:
            for atom in side.own:
                self._cross(atom, len(plans))
        for number, segment in enumerate(self.segments):
            for join in segment.joins:
                for atom in join.sides:
                    self._cross(atom, number)
            if not segment.common:
                for equation in (equation for own in segment.own for equation in own):
                    for atom in equation.invars:
                        self._cross(atom, number)
        for plan in plans:
            plan()
        self._choose(last)
        outvars += [side.atom(atom) for side in self.sides for atom in side.own]
        effects = {effect for equation in self.equations for effect in equation.effects}
        return self.equations, outvars, {effect for effect in effects if reference_of(effect) is None}

    # Matching the equations

    def _segments(self) -> Iterable[_Segment]:
        """Yield the equations of both sides in order, with equal ones paired."""
        own: tuple[list[JaxprEqn], list[JaxprEqn]] = ([], [])
        for pair in _aligned(*(side.equations for side in self.sides)):
            if None not in pair and _alike(*pair):
                if any(own):
                    yield _Segment(own, common=False)
                    own = ([], [])
                yield _Segment(([pair[TRUE]], [pair[FALSE]]), common=True)
                continue
            for side in (TRUE, FALSE):
                if pair[side] is not None:
                    own[side].append(pair[side])
        if any(own):
            yield _Segment(own, common=False)

    def _plan(self, number: int, segment: _Segment) -> Callable[[], None]:
        """Return a function that emits a segment, to call once it is known which values leave their segments."""
        if not segment.common:
            return lambda: self._emit_own(segment)
        true, false = segment.own[TRUE][0], segment.own[FALSE][0]
        if true.primitive is block_p and not _same_block(true, false):
            emit = self._merged_block(number, true, false)
        else:
            operands = [self._chosen(pair, number) for pair in zip(true.invars, false.invars, strict=True)]
            results = self._results(true.outvars, false.outvars)
            emit = lambda: self.equations.append(true.replace(invars=operands, outvars=results))

        def run() -> None:
            self._choose(segment)
            emit()

        return run

    def _results(self, *outvars: Sequence[Var]) -> list[Var]:
        results = [Var(variable.aval) for variable in outvars[0]]
        for side, own in zip(self.sides, outvars, strict=True):
            side.env.update((old, new) for old, new in zip(own, results, strict=True) if not isinstance(old, DropVar))
        return results

    def _chosen(self, pair: _Sides, number: int) -> Any:
        """Return the merged atom for one of each side: the same one, or the flag's choice, as early as possible."""
        sides = tuple(side.atom(atom) for side, atom in zip(self.sides, pair, strict=True))
        one, other = sides
        if one is other:
            return one
        if isinstance(one, Literal) and isinstance(other, Literal):
            if same_literal(one, other):
                return one
            value, other_value = np.asarray(one.val), np.asarray(other.val)
            if value.shape == () and value.dtype == np.bool_ and bool(value) and not bool(other_value):
                return self.flag
        joins = self._joins.setdefault(one, IdentityMap())
        if other not in joins:
            made = [self._made_in[atom][0] for atom in sides if isinstance(atom, Var) and atom in self._made_in]
            join = joins[other] = _Join(Var(one.aval), sides)
            self.segments[max(made) if made else number].joins.append(join)
        return joins[other].result

    def _cross(self, atom: Any, number: int) -> None:
        """Record that a segment needs a value; one that another segment makes is computed regardless of the flag."""
        if not isinstance(atom, Var) or atom not in self._made_in:
            return
        made, equation = self._made_in[atom]
        if made != number:
            self._hoist(equation)

    def _hoist(self, equation: JaxprEqn) -> None:
        if equation in self.hoisted:
            return
        self.hoisted.add(equation)
        for atom in equation.invars:
            if isinstance(atom, Var) and atom in self._made_in:
                self._hoist(self._made_in[atom][1])

    # Emission

    def _emit_own(self, segment: _Segment) -> None:
        for side, own in zip(self.sides, segment.own, strict=True):
            for equation in own:
                if equation in self.hoisted:
                    results = [Var(variable.aval) for variable in equation.outvars]
                    operands = [side.atom(atom) for atom in equation.invars]
                    self.equations.append(equation.replace(invars=operands, outvars=results))
                    side.env.update(zip(equation.outvars, results, strict=True))
        self._choose(segment)

    def _choose(self, segment: _Segment) -> None:
        """Emit the `cond` that makes the choices of a segment."""
        joins, remaining = segment.joins, ([], []) if segment.common else segment.own
        remaining = tuple([equation for equation in own if equation not in self.hoisted] for own in remaining)
        effects = {effect for own in remaining for equation in own for effect in equation.effects}
        if not joins and not effects:
            return
        used: dict[Var, None] = {}
        for number, side in enumerate(self.sides):
            inside = {variable for equation in remaining[number] for variable in equation.outvars}
            atoms = [atom for equation in remaining[number] for atom in equation.invars]
            for atom in (*atoms, *(join.sides[number] for join in joins)):
                if isinstance(atom, Var) and atom not in inside:
                    used[side.atom(atom)] = None
        operands = list(used)
        branches = [
            self._branch(side, remaining[number], [join.sides[number] for join in joins], operands)
            for number, side in enumerate(self.sides)
        ]
        convert, choice = _template()
        if self.index is None:
            self.index = Var(convert.outvars[0].aval)
            self.equations.append(convert.replace(invars=[self.flag], outvars=[self.index]))
        source = next((equation for own in remaining for equation in own), convert).source_info
        self.equations.append(
            choice.replace(
                invars=[self.index, *operands],
                outvars=[join.result for join in joins],
                params={**choice.params, "branches": (branches[FALSE], branches[TRUE])},
                effects={effect for effect in effects if reference_of(effect) is None},
                source_info=source,
            )
        )

    def _branch(
        self, side: Side, equations: Sequence[JaxprEqn], results: Sequence[Any], operands: Sequence[Var]
    ) -> ClosedJaxpr:
        invars = fresh(operands)
        inside = dict(zip(operands, invars, strict=True))
        read = variables([*(atom for equation in equations for atom in equation.invars), *results])
        names: dict[Var, Atom] = {v: inside[merged] for v in read if (merged := side.atom(v)) in inside}
        body = copied(equations, names)
        effects = {effect for equation in body for effect in equation.effects if reference_of(effect) is None}
        return _closed(self.like, invars, body, replaced(results, names), effects)

    # Blocks

    def _merged_block(self, number: int, true: JaxprEqn, false: JaxprEqn) -> Callable[[], None]:
        """Merge two blocks that differ inside into one, with the operands of both, and the flag."""
        blocks = true.params["block"], false.params["block"]
        count = len(blocks[TRUE].arguments)
        pairs = list(zip(true.invars[:count], false.invars[:count], strict=True))
        operands = [self._chosen(pair, number) for pair in pairs]
        places: list[list[int]] = [list(range(count)), list(range(count))]
        known: IdentityMap[Atom, int] = IdentityMap()
        weights: dict[int, str] = {}
        for side, equation in enumerate((true, false)):
            for position, atom in enumerate(equation.invars):
                if position >= count:
                    operand = self.sides[side].atom(atom)
                    if operand not in known:
                        known[operand] = len(operands)
                        operands.append(operand)
                    places[side].append(known[operand])
                if position in blocks[side].weights:
                    weights[places[side][position]] = blocks[side].weights[position]
        inner: list[Jaxpr] = [equation.params["jaxpr"].jaxpr for equation in (true, false)]
        invars = [Var(atom.aval) for atom in operands]
        flag = Var(self.flag.aval)
        shared = _shared_results(true, false)
        sides = tuple(
            Side(
                body.eqns,
                body.outvars[:shared],
                {variable: invars[place] for variable, place in zip(body.invars, where, strict=True)},
                body.outvars[shared:],
            )
            for body, where in zip(inner, places, strict=True)
        )
        equations, outvars, effects = merged(flag, self.like, (sides[TRUE], sides[FALSE]))
        body = _closed(self.like, [*invars, flag], equations, outvars, effects)
        block = replace(_common(*blocks), weights=FrozenMapping(weights))
        results = self._results(true.outvars[:shared], false.outvars[:shared])
        for side, equation in zip(self.sides, (true, false), strict=True):
            own = [Var(variable.aval) for variable in equation.outvars[shared:]]
            side.env.update(zip(equation.outvars[shared:], own, strict=True))
            results += own
        for atom in operands[count:]:  # values of one side only are needed here, regardless of the flag
            self._cross(atom, number)

        def emit() -> None:
            of_sides = {old: new for side in self.sides for old, new in side.env.items()}
            invars = [*replaced(operands, of_sides), self.flag]
            params = {**true.params, "jaxpr": body, "block": block}
            self.equations.append(true.replace(invars=invars, outvars=results, params=params, effects=effects))

        return emit


def _aligned(true: Sequence[JaxprEqn], false: Sequence[JaxprEqn]) -> Iterable[tuple[Any, Any]]:
    """Yield pairs of equations that may be the same, and each other equation by itself, in the order of both."""
    kinds = [_kind(equation) for equation in true], [_kind(equation) for equation in false]
    start, least = 0, min(len(true), len(false))
    while start < least and kinds[TRUE][start] == kinds[FALSE][start] and _alike(true[start], false[start]):
        start += 1
    end = 0
    while (
        end < least - start
        and kinds[TRUE][-1 - end] == kinds[FALSE][-1 - end]
        and _alike(true[-1 - end], false[-1 - end])
    ):
        end += 1
    yield from zip(true[:start], false[:start], strict=True)
    middle = true[start : len(true) - end], false[start : len(false) - end]
    between = [of_side[start : len(of_side) - end] for of_side in kinds]
    if max(map(len, middle)) > LONGEST:
        opcodes: Iterable[tuple] = [("replace", 0, len(middle[TRUE]), 0, len(middle[FALSE]))]
    else:
        opcodes = difflib.SequenceMatcher(None, *between, autojunk=False).get_opcodes()
    for tag, i, j, k, m in opcodes:
        if tag == "equal":
            yield from zip(middle[TRUE][i:j], middle[FALSE][k:m], strict=True)
        else:
            yield from ((equation, None) for equation in middle[TRUE][i:j])
            yield from ((None, equation) for equation in middle[FALSE][k:m])
    yield from zip(true[len(true) - end :], false[len(false) - end :], strict=True)


def _kind(equation: JaxprEqn) -> tuple:
    """Return a hashable key that two equations share if they may be the same.

    Two blocks with the same key may differ inside.
    """
    name: Callable[[Atom], str] = lambda atom: f"{getattr(atom.aval, 'dtype', '')}{getattr(atom.aval, 'shape', '')}"
    avals = (*map(name, equation.invars), ">", *map(name, equation.outvars))
    if equation.primitive is block_p:
        block = equation.params["block"]
        return equation.primitive.name, block.target, block.path, block.method
    return equation.primitive.name, avals, _small(equation.params)


def _small(params: Parameters) -> tuple:
    simple = (int, str, bool, type(None))
    return tuple((key, value) for key, value in sorted(params.items()) if isinstance(value, simple))


def _alike(true: JaxprEqn, false: JaxprEqn) -> bool:
    """Whether one equation can replace both."""
    if true.primitive is not block_p or false.primitive is not block_p:
        return same_computation(true, false)
    return _same_block(true, false) or _mergeable(true, false)


def _same_block(true: JaxprEqn, false: JaxprEqn) -> bool:
    return true.params["block"] == false.params["block"] and same_computation(true, false)


def _mergeable(true: JaxprEqn, false: JaxprEqn) -> bool:
    """Whether two blocks call the same thing, with the same arguments and results, and no rule reads their config."""
    one, other = true.params["block"], false.params["block"]
    count = len(one.arguments)
    return (
        one.target not in BLOCK_RULES
        and replace(one, config={}, weights={}) == replace(other, config={}, weights={})
        and same_avals(true.invars[:count], false.invars[:count])
        and same_avals(true.outvars[: one.results], false.outvars[: one.results])
    )


def _shared_results(true: JaxprEqn, false: JaxprEqn) -> int:
    """Return how many leading outputs of two blocks correspond: all, or those that the call returns."""
    if same_avals(true.outvars, false.outvars):
        return len(true.outvars)
    return true.params["block"].results


def _common(one: Block, other: Block) -> Block:
    config = {key: value for key, value in one.config.items() if key in other.config and other.config[key] == value}
    return replace(one, config=FrozenMapping(config))


def _closed(
    like: Jaxpr, invars: Sequence[Var], equations: Sequence[JaxprEqn], outvars: Sequence[Atom], effects: set[Any]
) -> ClosedJaxpr:
    debug_info = nameless(like)
    jaxpr = like.replace(
        constvars=[], invars=list(invars), outvars=list(outvars), eqns=list(equations), effects=effects,
        debug_info=debug_info,
    )  # fmt: skip
    return ClosedJaxpr(jaxpr, ())


def _template() -> tuple[JaxprEqn, JaxprEqn]:
    """Return a cast of a flag to the index of a branch, and a `cond` with two branches, for this version of JAX."""
    traced = jax.make_jaxpr(lambda flag: lax.cond(flag, lambda: 1.0, lambda: 0.0))(True)
    convert, choice = traced.jaxpr.eqns
    return convert, choice

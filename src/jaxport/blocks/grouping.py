"""Turn markers into blocks: the equations between a pair of markers become one.

Grouping is linear in the size of the program: each equation is moved once, and a body is processed once for each set of
weights that it is called with.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping, block_p
from jaxport.blocks.callables.places import Places, joined
from jaxport.blocks.labels import Flow, Label, Labels, labels_of
from jaxport.blocks.marking.markers import BlockCall, EnclosingModule, block_enter_p, block_exit_p
from jaxport.jaxprs.rewrite import with_operands
from jaxport.jaxprs.walk import bodies, equations_within, replace_bodies

Atom = jaxprs.Var | jaxprs.Literal


@dataclass
class Roots:
    """The inputs of the whole program: their paths in the user's pytrees, and which of them are parameters.

    An input that is an argument becomes a parameter when a module claims it (Linen). `places` has the paths of the
    modules that calls name. `collections` are the prefixes of paths in other collections than that of the parameters.
    """

    paths: Sequence[str]
    parameters: set[int]
    places: Places | None = None
    collections: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Context:
    """The context of a call of a body: the block around it, and the places of the anchored modules."""

    enclosing: str = ""
    places: tuple[tuple[EnclosingModule, str], ...] = ()
    # For modules that know their own path: the root of each group of parameters, and the place of the root module.
    bases: tuple[tuple[str, str, str], ...] = ()

    def of(self, anchor: EnclosingModule) -> str:
        for known, path in reversed(self.places):
            if known is anchor:
                return path
        return joined(self.enclosing, anchor.kind[0].__name__)


@dataclass
class _Frame:
    """A call without its exit so far: its equations, with its own arguments in place of the outer values.

    `inside` has the arguments that stayed where they are: the call uses the outer values.
    """

    entered: jaxprs.JaxprEqn
    context: _Context
    path: str
    inside: dict[jaxprs.Var, jaxprs.Var]
    equations: list[jaxprs.JaxprEqn] = field(default_factory=list)

    @property
    def call(self) -> BlockCall:
        return self.entered.params["call"]


@dataclass(frozen=True)
class Grouped:
    """A grouped jaxpr, and the labels of its results."""

    jaxpr: jaxprs.Jaxpr
    labels: Labels


def group(jaxpr: jaxprs.Jaxpr, roots: Roots) -> Grouped:
    """Replace the markers in `jaxpr`, and in all bodies within it, by `block` equations.

    The inputs of `jaxpr` correspond to `roots`. Markers without a partner (which dead-code elimination removed in
    `remat` under `grad`) are dropped.
    """
    labels: Labels = tuple(Label(index) for index in range(len(jaxpr.invars)))
    return _Grouping(roots).body(jaxpr, labels, _Context())


class _Grouping:
    def __init__(self, roots: Roots):
        self.roots = roots
        self.flow = Flow()
        self._grouped: dict[tuple[jaxprs.Jaxpr, Labels, _Context], Grouped] = {}
        self._marked: dict[jaxprs.Jaxpr, bool] = {}

    def is_marked(self, jaxpr: jaxprs.Jaxpr) -> bool:
        """Whether there is a marker in the jaxpr or in a body within it."""
        if jaxpr not in self._marked:
            self._marked[jaxpr] = any(
                equation.primitive in (block_enter_p, block_exit_p) for equation in equations_within(jaxpr)
            )
        return self._marked[jaxpr]

    def body(self, jaxpr: jaxprs.Jaxpr, labels: Labels, context: _Context) -> Grouped:
        """Group a jaxpr for one set of labels and one place."""
        if not self.is_marked(jaxpr):
            return Grouped(jaxpr, self.flow.through(jaxpr, labels))
        key = jaxpr, labels, context
        if key not in self._grouped:
            self._grouped[key] = _Body(self, jaxpr, labels, context).grouped()
        return self._grouped[key]


class _Body:
    """One pass over the equations of one jaxpr."""

    def __init__(self, grouping: _Grouping, jaxpr: jaxprs.Jaxpr, labels: Labels, context: _Context):
        self.grouping = grouping
        self.jaxpr = jaxpr
        self.labels: dict[jaxprs.Var, Label | None] = dict(zip(jaxpr.invars, labels, strict=True))
        self.context = context
        self.equations: list[jaxprs.JaxprEqn] = []
        self.frames: list[_Frame] = []
        # A value that has another name from here on.
        self.alias: dict[jaxprs.Var, Atom] = {}
        self.last_use: dict[jaxprs.Var, int] = {}
        for index, equation in enumerate(jaxpr.eqns):
            for atom in equation.invars:
                if isinstance(atom, jaxprs.Var):
                    self.last_use[atom] = index
        for atom in jaxpr.outvars:
            if isinstance(atom, jaxprs.Var):
                self.last_use[atom] = sys.maxsize

    def grouped(self) -> Grouped:
        for index, equation in enumerate(self.jaxpr.eqns):
            equation = _renamed(equation, self.alias)
            operand_labels = labels_of(equation.invars, self.labels)
            if any(operand_labels):
                made = self.grouping.flow.of_equation(equation, operand_labels)
                self.labels.update((v, label) for v, label in zip(equation.outvars, made, strict=True) if label)
            if equation.primitive is block_enter_p:
                self.enter(equation, operand_labels)
            elif equation.primitive is block_exit_p:
                self.exit(equation, index)
            else:
                params = self.params(equation, operand_labels)
                self.add(equation if params is equation.params else equation.replace(params=params))
        while self.frames:
            self.dissolve()
        outvars = [_resolved(atom, self.alias) for atom in self.jaxpr.outvars]
        jaxpr = self.jaxpr.replace(eqns=self.equations, outvars=outvars)
        return Grouped(jaxpr, labels_of(outvars, self.labels))

    def rename(self, old: Atom, new: Atom) -> None:
        """Rename `old` to `new` from here on."""
        if old is new or not isinstance(old, jaxprs.Var):
            return
        self.alias[old] = new
        if isinstance(new, jaxprs.Var):
            self.last_use[new] = max(self.last_use.get(new, -1), self.last_use.get(old, -1))

    def params(self, equation: jaxprs.JaxprEqn, labels: Labels) -> dict[str, Any]:
        """Return the params of an equation with the bodies in them grouped."""
        inner = bodies(equation.params)
        if not any(map(self.grouping.is_marked, inner)):
            return equation.params
        context = self.here()
        within = self.grouping.flow.within(equation, labels)
        new = [self.grouping.body(body, labels, context).jaxpr for body, labels in zip(inner, within, strict=True)]
        return replace_bodies(equation.params, iter(new))

    def add(self, equation: jaxprs.JaxprEqn) -> None:
        if self.frames:
            self.frames[-1].equations.append(_renamed(equation, self.frames[-1].inside))
        else:
            self.equations.append(equation)

    def here(self) -> _Context:
        """Return the context of the next equations."""
        return replace(self.frames[-1].context, enclosing=self.frames[-1].path) if self.frames else self.context

    # -- calls -----------------------------------------------------------------------------------------------------

    def enter(self, entered: jaxprs.JaxprEqn, labels: Labels) -> None:
        call: BlockCall = entered.params["call"]
        context = self.here()
        extra = labels[len(entered.outvars) :]
        if call.anchored is not None:
            anchors = len(call.anchored.paths)
            context = self.placed(call.anchored, extra[:anchors], context)
            extra = extra[anchors:]
        self.grouping.roots.parameters.update(label.root for label in extra if label and label.is_parameter)
        path = self.path_of(call, context)
        # The arguments become the first inputs of the block: inside, they have the names of the marker's results.
        outvars = [jaxprs.Var(v.aval) if isinstance(v, jaxprs.DropVar) else v for v in entered.outvars]
        inside: dict[jaxprs.Var, jaxprs.Var] = {}
        for position, (atom, inner) in enumerate(zip(entered.invars, outvars, strict=False)):
            if isinstance(atom, jaxprs.Var):
                if position in call.in_place:
                    inside.setdefault(atom, inner)
                self.last_use[atom] = max(self.last_use.get(atom, -1), self.last_use.get(inner, -1))
        self.frames.append(_Frame(entered.replace(outvars=outvars), context, path, inside))

    def path_of(self, call: BlockCall, context: _Context) -> str:
        if call.finished is not None:
            return call.finished.path
        if call.anchor is not None:
            return joined(context.of(call.anchor), call.path)
        places = self.grouping.roots.places
        if call.owner is not None and places is not None:
            if places.path_of(call.owner) is None:
                # A function in one of JAX's caches brings a module that this callable does not hold.
                places.register(call.owner, joined(context.enclosing, call.short_name))
            return places.path_of(call.owner) or ""
        # A call that failed has no exit: later equations are not in it.
        around = self.context.enclosing if call.around is None else context.enclosing
        around = next((frame.path for frame in reversed(self.frames) if frame.call.key is call.around), around)
        return joined(around, call.short_name)

    def placed(self, anchor: EnclosingModule, labels: Labels, context: _Context) -> _Context:
        """Return the context in which the place of `anchor` is known."""
        # Each array votes for the module's place: its own path without its path within the module.
        votes: Counter[tuple[str, str]] = Counter()
        for label, group_name, below in zip(labels, anchor.groups, anchor.paths, strict=True):
            if label is not None:
                path = self.grouping.roots.paths[label.root]
                if path == below or path.endswith(f".{below}"):
                    votes[group_name, path.removesuffix(below).removesuffix(".")] += 1
        heads = [head for head, _ in votes.most_common()]
        self.grouping.roots.collections.update(head for name, head in heads if name and not self.is_trained(name))
        if anchor.own_path == "":
            # A root: the prefix of its arrays' paths leads to the tree of its parameters.
            place = context.enclosing
            context = replace(context, bases=tuple((name, head, place) for name, head in heads))
        elif anchor.own_path is not None:
            place = self.below_base(heads, context)
            place = anchor.own_path if place is None else place
        else:
            place = self.chosen([head for _, head in heads], anchor, context)
        return replace(context, places=(*context.places, (anchor, place)))

    def is_trained(self, collection: str) -> bool:
        """Whether a collection of variables is that of the parameters."""
        places = self.grouping.roots.places
        return places is None or any(collection == f.parameter_collection for f in places.types.frameworks)

    def below_base(self, heads: Sequence[tuple[str, str]], context: _Context) -> str | None:
        """Return the place of a body below the root of its parameters."""
        for name, head in heads:
            for base_name, base, place in context.bases:
                if name == base_name and head.startswith(joined(base, "")):
                    return joined(place, head.removeprefix(base).removeprefix("."))
        return None

    def chosen(self, voted: Sequence[str], anchor: EnclosingModule, context: _Context) -> str:
        """Return the place that the arrays voted for, unless only another one holds such a module."""
        places = self.grouping.roots.places
        like = places.like(anchor.kind) if places is not None else ()
        if voted and (voted[0] in like or len(like) != 1):
            return voted[0]
        near = [path for path in like if not context.enclosing or path.startswith(f"{context.enclosing}.")]
        for candidates in (near, like):
            if len(candidates) == 1:
                return candidates[0]
        return joined(context.enclosing, anchor.kind[0].__name__)

    def forget_arguments(self, frame: _Frame) -> None:
        """Restore the outer names of a call's arguments at its end."""
        for atom, inner in zip(frame.entered.invars, frame.entered.outvars, strict=False):
            self.rename(inner, atom)

    def dissolve(self) -> None:
        """Move the equations of a call without an exit to the call around it."""
        frame = self.frames.pop()
        outer = dict(zip(frame.entered.outvars, frame.entered.invars, strict=False))
        self.forget_arguments(frame)
        for equation in frame.equations:
            self.add(_renamed(equation, outer))

    def exit(self, left: jaxprs.JaxprEqn, index: int) -> None:
        call = left.params["call"]
        if all(frame.call is not call for frame in self.frames):
            for outer, atom in zip(left.outvars, left.invars, strict=True):
                self.rename(outer, atom)
            return
        while self.frames[-1].call is not call:
            self.dissolve()
        frame = self.frames.pop()
        equation, renamed = self.block(frame, left, index)
        if equation.outvars or frame.equations:
            self.add(equation)
        self.forget_arguments(frame)
        for old, new in renamed:
            self.rename(old, new)

    def block(
        self, frame: _Frame, left: jaxprs.JaxprEqn, index: int
    ) -> tuple[jaxprs.JaxprEqn, list[tuple[jaxprs.Var, jaxprs.Var]]]:
        """Return the equation of a block, and the values that have the name of one of its results from here on."""
        entered, call = frame.entered, frame.call
        made = {variable for equation in frame.equations for variable in equation.outvars}
        results = [frame.inside.get(a, a) if isinstance(a, jaxprs.Var) else a for a in left.invars]
        outvars, renamed = list(left.outvars), []
        for position, atom in enumerate(results):
            if isinstance(atom, jaxprs.Var) and atom in made and self.last_use.get(atom, -1) > index:
                if isinstance(outvars[position], jaxprs.DropVar):
                    outvars[position] = jaxprs.Var(atom.aval)
                renamed.append((atom, outvars[position]))
        is_result = {old for old, _ in renamed}
        escaping = [
            variable
            for equation in frame.equations
            for variable in equation.outvars
            if variable not in is_result and self.last_use.get(variable, -1) > index
        ]
        arguments = entered.outvars
        closed_over: dict[jaxprs.Var, None] = {}
        inside = {*made, *arguments}
        for atom in (a for atoms in (*(e.invars for e in frame.equations), results) for a in atoms):
            if isinstance(atom, jaxprs.Var) and atom not in inside:
                closed_over[atom] = None
        invars = [*entered.invars[: len(arguments)], *closed_over]

        inner_invars, inner_outvars = [*arguments, *closed_over], [*results, *escaping]
        effects = {
            effect
            for equation in frame.equations
            for effect in equation.effects
            # An effect on a reference made inside does not leave the block.
            if jaxprs.reference_of(effect) is None or jaxprs.reference_of(effect) in closed_over
        }
        levels = entered.params["axes"], left.params["axes"]
        described = self.describe(call, frame.path, invars, len(results), levels)
        debug_info = jaxprs.DebugInfo("block", described.target, None, None)
        inner = jaxprs.Jaxpr((), inner_invars, inner_outvars, frame.equations, effects, debug_info)
        equation = entered.replace(
            primitive=block_p,
            invars=invars,
            outvars=[*outvars, *escaping],
            params={"jaxpr": jaxprs.closed(inner, ()), "block": described},
            effects=effects,
        )
        return equation, renamed

    def describe(
        self, call: BlockCall, path: str, invars: Sequence[Atom], results: int, levels: tuple[tuple, tuple]
    ) -> Block:
        """Return the block of a call; `levels` are the batched axes of its arguments and results."""
        # If unbatched arguments meet batched parameters, the results show the batching.
        batched = max(map(len, levels))
        axes = tuple(zip(*levels, strict=True)) if len(levels[0]) == len(levels[1]) else None
        if call.finished is not None:
            return _more_batched(call.finished, batched, axes)
        roots = self.grouping.roots
        weights = {
            index: roots.paths[label.root]
            for index, label in enumerate(labels_of(invars, self.labels))
            if label is not None and label.is_parameter and label.root in roots.parameters
        }
        return Block(
            target=call.target,
            name=path.rpartition(".")[2] or call.short_name,
            path=path,
            kind=call.kind,
            method=call.method,
            config=call.config,
            weights=FrozenMapping(weights),
            options=call.options,
            arguments=call.arguments,
            results=results,
            batched=batched,
            axes=axes,
            returns=call.returns,
        )


def _more_batched(block: Block, batched: int, axes: tuple | None) -> Block:
    """Return a block grouped before, after more levels of `vmap`; its marker passed more than the arguments."""
    if not batched:
        return block
    known = block.axes is not None and axes is not None
    ours = [(entering[: len(block.arguments)], made[: block.results]) for entering, made in axes or ()]
    return replace(block, batched=block.batched + batched, axes=(*(block.axes or ()), *ours) if known else None)


def _resolved(atom: Atom, names: Mapping[jaxprs.Var, Atom]) -> Atom:
    while isinstance(atom, jaxprs.Var) and atom in names:
        atom = names[atom]
    return atom


def _renamed(equation: jaxprs.JaxprEqn, names: Mapping[jaxprs.Var, Atom]) -> jaxprs.JaxprEqn:
    """Return the equation with other names for its operands."""
    return with_operands(equation, [_resolved(atom, names) for atom in equation.invars]) if names else equation

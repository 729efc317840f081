"""Edit a program, jaxpr to jaxpr, along the bodies that lead to the replaced equations; all others are shared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import jax
import jax.numpy as jnp
from jax import core as jax_core

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping, block_p
from jaxport.blocks.callables.naming import unused
from jaxport.blocks.callables.places import joined
from jaxport.blocks.callables.values import is_tracer
from jaxport.blocks.tracing import TracedWeight
from jaxport.errors import InvalidArgument, QueryError, Unsupported
from jaxport.jaxprs import Array, Atom, Aval, Effect, aval_of
from jaxport.jaxprs.alike import same_aval
from jaxport.jaxprs.body_inputs import DISSOLVED, PLAIN_CALLS, Widening, stacked, widened
from jaxport.jaxprs.identity import IdentityMap, owned
from jaxport.jaxprs.rewrite import alone, inlined, replaced, with_operands
from jaxport.jaxprs.vmap_axes import Levels, spread
from jaxport.jaxprs.walk import Location, bodies, used_variables
from jaxport.mox.programs.original import Site
from jaxport.mox.programs.parameters import is_parameter
from jaxport.mox.programs.program import Program
from jaxport.mox.programs.tree import Node
from jaxport.mox.querying.calls import REWRITTEN, Call, TracedCall, arguments_of, returns_of
from jaxport.mox.querying.node_sets import NodeSet, similar
from jaxport.mox.querying.origins import stacking_scans
from jaxport.mox.substitution import placing
from jaxport.mox.substitution.cleanup import pruned, renamed
from jaxport.mox.substitution.refusals import refusal
from jaxport.mox.substitution.replacement import Factory, Rewrite, Template, Templates, changes_layers, concrete

Var = jaxprs.Var
Jaxpr = jaxprs.Jaxpr
JaxprEqn = jaxprs.JaxprEqn


def substituted(selection: NodeSet[Program, Call], replacement: object) -> Program:
    """See `Selection.sub`."""
    mox = selection.mox
    if not selection.nodes:
        raise QueryError(
            f"{selection.query} matches nothing, so nothing would be replaced",
            where=f"`{mox.name}`",
            why=similar(mox, selection.query),
            instead="`print(mox)` shows what there is",
        )
    selection = selection.layers() if changes_layers(replacement) else selection
    refusals = [reason for node in selection.nodes if (reason := refusal(mox.tree, node)) is not None]
    if refusals:
        count = len(set(refusals))
        noun = "1 selected operation" if count == 1 else f"{count} selected operations"
        raise Unsupported(f"{noun} of `{mox.name}` cannot be replaced", refusals)
    # Those that a user took from the selection run what they are, also inside the replacement.
    matches = {match.node.location: match for match in replace(selection)}
    return _Editor(mox, matches, replacement).edited()


@dataclass
class _Leaf:
    """A new parameter, or a new input of the program (then `value` is None)."""

    name: str
    aval: Aval
    value: Any
    trainable: bool = True
    # The scans whose steps have a slice each, and their lengths, the outermost first.
    scans: tuple[Location, ...] = ()
    lengths: tuple[int, ...] = ()
    owned: bool = True


@dataclass(frozen=True)
class _NewInputs:
    """The inputs of a replacement besides those of the original: their variables, and the names of the parameters.

    The parameters come first; `names` has for each the name in the program by that in the replacement.
    """

    variables: Sequence[Var]
    names: Mapping[str, str]


@dataclass(frozen=True)
class _InputKey:
    """A new input of a body: the leaf `name`, with `slices` axes of steps taken off."""

    name: str
    slices: int = 0


@dataclass
class _EditedBody:
    """An edited body, while it is made: its equations, and the new inputs that they use."""

    names: dict[Var, Atom] = field(default_factory=dict)
    equations: list[JaxprEqn] = field(default_factory=list)
    inputs: dict[_InputKey, Var] = field(default_factory=dict)
    # The inputs that it has had all along, by the names of parameters.
    held: Mapping[str, Var] = field(default_factory=dict)

    def input(self, key: _InputKey, aval: Aval) -> Var:
        """Return the new input for a key, of this type."""
        if key.name in self.held:
            return self.held[key.name]
        if key not in self.inputs:
            self.inputs[key] = Var(aval)
        return self.inputs[key]

    def typed(self, variable: Var, aval: Aval) -> Var:
        """Return the variable of a result, a new one if its shape or dtype is another now."""
        if isinstance(variable, jaxprs.DropVar):
            return Var(aval)
        before = aval_of(variable)
        if same_aval(before, aval):
            return variable
        changed = Var(aval)
        self.names[variable] = changed
        return changed

    def renamed(self, equation: JaxprEqn) -> JaxprEqn:
        """Return the equation with the present names of its operands."""
        return with_operands(equation, replaced(equation.invars, self.names))

    def transposed(self, equation: JaxprEqn) -> JaxprEqn:
        """Return the equation, with another shape for its result if it transposes a value whose shape changed."""
        if equation.primitive.name != "transpose":
            return equation
        aval = aval_of(equation.invars[0])
        shape = tuple(aval.shape[axis] for axis in equation.params["permutation"])
        return equation.replace(outvars=[self.typed(equation.outvars[0], aval.update(shape=shape))])

    def inline(self, jaxpr: Jaxpr, operands: Sequence[Atom], outvars: Sequence[Var]) -> None:
        """Append the equations of a body, under new names; its results take the place of `outvars`."""
        self.names.update(zip(outvars, inlined(jaxpr, operands, self.equations), strict=True))


class _Editor(Generic[Program]):
    """One substitution."""

    def __init__(self, mox: Program, matches: Mapping[Location, TracedCall], replacement: object):
        self.mox, self.matches, self.replacement = mox, matches, replacement
        self.templates = Templates()
        self.modules = dict(mox.modules or {})
        self.leaves: dict[str, _Leaf] = {}
        self.bases: dict[Hashable, str] = {}
        self.taken = {*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs}
        self.names: dict[tuple[Hashable, str], str] = {}
        # A replacement that runs another part of the model has its parameters, not copies of them.
        self.tied = IdentityMap((w.value, w.path) for w in mox.weights if is_parameter(w))
        # The names that new parameters have for as long as others have those that they were to have.
        self.wishes: dict[str, str] = {}
        # The paths of blocks that run no more, though values that they made for others are still made.
        self.gone: set[str] = set()
        # The locations that lie on the way to a match.
        self.ways = {location[:end] for location in matches for end in range(1, len(location) + 1)}

    def edited(self) -> Program:
        mox, traced = self.mox, self.mox.traced
        body, outvars = self.body(mox.jaxpr.jaxpr, ())
        params = {key: v for key, v in body.inputs.items() if self.leaves[key.name].value is not None}
        inputs = {key: v for key, v in body.inputs.items() if self.leaves[key.name].value is None}
        invars, held = mox.jaxpr.jaxpr.invars, len(mox.weights)
        new = [self.leaves[key.name] for key in params]
        moved = jax.device_put([owned(leaf.value) for leaf in new if not isinstance(leaf.value, jax.Array)])  # at once
        others = iter(moved)
        values = [leaf.value if isinstance(leaf.value, jax.Array) else next(others) for leaf in new]
        added = [
            TracedWeight(leaf.name, value, leaf.trainable, owned=leaf.owned)
            for leaf, value in zip(new, values, strict=True)
        ]
        weights = [*mox.weights, *added]
        jaxpr = mox.jaxpr.jaxpr.replace(
            invars=[*invars[:held], *params.values(), *invars[held:], *inputs.values()],
            outvars=outvars,
            eqns=body.equations,
            effects=_effects(body.equations, mox.jaxpr.jaxpr.effects),
            debug_info=jaxprs.nameless(mox.jaxpr.jaxpr),
        )
        names = (*mox.inputs, *(key.name for key in inputs))
        traced = replace(traced, jaxpr=jaxprs.closed(jaxpr, ()), weights=tuple(weights))
        modules = self.modules if mox.modules is not None else None
        return renamed(pruned(mox.replaced(traced, inputs=names, modules=modules), self.gone), self.wishes)

    # -- bodies ----------------------------------------------------------------------------------------------------

    def body(self, jaxpr: Jaxpr, location: Location) -> tuple[_EditedBody, list[Atom]]:
        """Return the edited body at a location, and its results."""
        names = [weight.path for weight in self.mox.weights] if not location else []
        made = _EditedBody(held=dict(zip(names, jaxpr.invars, strict=False)))
        for index, equation in enumerate(jaxpr.eqns):
            here = (*location, index)
            equation = made.transposed(made.renamed(equation))
            if here not in self.ways:
                made.equations.append(equation)
                continue
            equation_or_none = self.around(made, equation, here)
            if here in self.matches and equation_or_none is not None:
                self.replace(made, equation_or_none, self.matches[here])
            elif equation_or_none is not None:
                made.equations.append(equation_or_none)
        return made, replaced(jaxpr.outvars, made.names)

    def around(self, made: _EditedBody, equation: JaxprEqn, here: Location) -> JaxprEqn | None:
        """Return the equation with its bodies edited; None if its equations took its place."""
        inner = bodies(equation.params)
        below = [number for number in range(len(inner)) if (*here, number) in self.ways]
        if not below:
            return equation
        edited: list[Jaxpr] = []
        keys: list[list[_InputKey]] = []
        for number, jaxpr in enumerate(inner):
            if number not in below:
                edited.append(jaxpr)
                keys.append([])
                continue
            body, outvars = self.body(jaxpr, (*here, number))
            edited.append(
                jaxpr.replace(
                    invars=[*jaxpr.invars, *body.inputs.values()],
                    outvars=outvars,
                    eqns=body.equations,
                    effects=_effects(body.equations, jaxpr.effects),
                    debug_info=jaxprs.nameless(jaxpr),
                )
            )
            keys.append(list(body.inputs))
        sliced = frozenset(
            key for body_keys in keys for key in body_keys if key.slices and here in self.leaves[key.name].scans
        )
        operands = {key: self.outside(made, key, key in sliced) for body_keys in keys for key in body_keys}
        if equation.primitive.name in DISSOLVED and here not in self.matches:
            operand_list = [*equation.invars, *(operands[key] for key in keys[0])]
            made.inline(edited[0], operand_list, equation.outvars)
            return None
        if equation.primitive.name in DISSOLVED:
            equation = placing.as_block(equation, self.matches[here])
        # `refusal` has seen to it that the equation takes more inputs.
        (*before, equation), _ = widened(equation, Widening(edited, keys, operands, sliced))
        made.equations += before
        if equation.primitive.name in PLAIN_CALLS:
            atoms = edited[0].outvars
            outvars = [made.typed(v, aval_of(atom)) for v, atom in zip(equation.outvars, atoms, strict=True)]
            equation = equation.replace(outvars=outvars)
        block = equation.params.get("block")
        if block is not None:
            start = len(equation.invars) - len(keys[0])
            new = {start + index: key.name for index, key in enumerate(keys[0]) if self.is_param(key)}
            block = replace(block, weights=FrozenMapping({**block.weights, **new}), edited=True)
            equation = equation.replace(params={**equation.params, "block": block})
        return equation

    def is_param(self, key: _InputKey) -> bool:
        return self.leaves[key.name].value is not None

    def outside(self, made: _EditedBody, key: _InputKey, sliced: bool) -> Var:
        """Return the value outside of an equation that enters a body as a new input."""
        leaf = self.leaves[key.name]
        outer = replace(key, slices=key.slices - 1) if sliced else key
        aval = leaf.aval
        for length in reversed(leaf.lengths[outer.slices :]):
            aval = stacked(aval, length)
        return made.input(outer, aval)

    # -- one match -------------------------------------------------------------------------------------------------

    def replace(self, made: _EditedBody, equation: JaxprEqn, match: TracedCall) -> None:
        """Append the replacement of an equation."""
        if isinstance(self.replacement, Rewrite):
            made.equations.append(_rewritten(equation, self.replacement, match))
            return
        axes = self.mox.tree.axes_of(match.node) or ()
        if axes and match.block is None:
            before, equation = spread(equation)
            made.equations += before
        site = _site(Node(match.node.location, equation, match.node.parent), match, axes)
        scans = stacking_scans(self.mox, match.node)
        steps = math.prod(match.lengths)
        templates = []
        several = scans and isinstance(self.replacement, Factory)
        for step in range(steps) if several else (None,):
            at = match if step is None else match.step(step)
            templates.append(self.templates.of(concrete(self.replacement, at), at, site))
        template = templates[0]
        if any(t.jaxpr is not template.jaxpr and str(t.jaxpr) != str(template.jaxpr) for t in templates):
            raise InvalidArgument(
                f"the replacement of `{match.shown}` differs between the steps of a scan",
                where="the `factory`",
                why="all steps of a scan run the same body; only its parameters may differ",
                instead="make what differs a parameter of the replacement",
            )
        params = self.params(match, templates, scans)
        for name, aval in template.inputs:
            known = self.leaves.setdefault(name, _Leaf(name, _aval(aval), None))
            if not same_aval(known.aval, aval) or name in self.taken:
                raise InvalidArgument(
                    f"the new input `{name}` clashes with an existing one",
                    where=f"the replacement of `{match.shown}`",
                    why=f"the program has `{name}`: {known.aval.str_short()}",
                    instead="give it another name",
                )
        keys = [*params, *(_InputKey(name) for name, _ in template.inputs)]
        inputs = [made.input(key, self.leaves[key.name].aval) for key in keys]
        names = {weight.path: key.name for weight, key in zip(template.params, params, strict=True)}
        emit = self.emit_call if template.is_call else self.emit
        emit(made, equation, match, template, _NewInputs(inputs, names))

    def params(self, match: TracedCall, templates: Sequence[Template], scans: Sequence[Node]) -> list[_InputKey]:
        """Return the new parameters of a match: shared with other calls of the same module, stacked over the steps."""
        owner, base = self.owner(match)
        locations = tuple(scan.location for scan in scans)
        keys = []
        for position, weight in enumerate(templates[0].params):
            tied = self.tied.get(weight.value) if templates[0].is_tied or not weight.owned else None
            if tied is not None and len(templates) == 1:
                self.leaves.setdefault(tied, _Leaf(tied, _aval(weight.value), weight.value))
                keys.append(_InputKey(tied))
                continue
            name = self.names.get((owner, weight.path))
            if name is not None and not weight.trainable and not _equal(self.leaves[name], templates, position):
                name = None  # a constant of this call alone
            if name is None:
                wish = joined(base, weight.path)
                name = unused(wish, self.taken)
                self.taken.add(name)
                self.wishes[name] = wish
                self.names[owner, weight.path] = name
                values = [template.params[position].value for template in templates]
                if len(values) < math.prod(match.lengths):
                    values = values * math.prod(match.lengths)
                value = values[0] if not scans else jnp.stack(values).reshape(*match.lengths, *values[0].shape)
                self.leaves[name] = _Leaf(
                    name, _aval(weight.value), value, weight.trainable, locations, match.lengths, weight.owned
                )
            leaf = self.leaves[name]
            if not same_aval(leaf.aval, weight.value):
                raise InvalidArgument(
                    f"the new parameter `{name}` has two shapes",
                    where=f"the replacement of `{match.shown}`, which is called several times",
                    why=f"{leaf.aval.str_short()} in one call, {_aval(weight.value).str_short()} in another",
                    instead="derive the new parameters from the weights of the block, which its calls share",
                )
            if leaf.lengths != match.lengths:
                raise InvalidArgument(
                    f"`{name}` would be stacked in one call and shared in another",
                    where=f"the replacement of `{match.shown}`",
                    why=f"its scans have {leaf.lengths} steps in one call, {match.lengths} in another",
                    instead="replace the calls one by one",
                )
            leaf.scans += tuple(location for location in locations if location not in leaf.scans)
            keys.append(_InputKey(name, len(locations)))
        return keys

    def owner(self, match: TracedCall) -> tuple[Hashable, str]:
        """Return what owns the new parameters of a match, and their path: calls of one module have the same."""
        block, location = match.block, match.node.location
        if block is not None:
            owner: Hashable = frozenset(block.weights.values()) or block.path
        else:
            around = next((node for node in match.node.around if node.block is not None), None)
            owner = (None, location)
            if around is not None and around.block is not None:
                owner = around.block.path, location[len(around.location) :]
        if owner not in self.bases:
            wish = match.path
            self.bases[owner] = wish if block is not None else unused(wish, set(self.bases.values()))
        return owner, self.bases[owner]

    def emit(
        self, made: _EditedBody, equation: JaxprEqn, match: TracedCall, template: Template, new: _NewInputs
    ) -> None:
        """Append a block with the body of a template."""
        results = template.site.results
        escaping = equation.outvars[results:]
        base = self.owner(match)[1]
        placed = placing.placed(template.jaxpr, base, new.names)
        jaxpr, escaped = placing.with_original(placed, equation, results)
        operands, used = [*equation.invars, *new.variables], used_variables(jaxpr)
        kept = [
            index for index in range(len(operands)) if index < template.site.arguments or jaxpr.invars[index] in used
        ]
        old = equation.params.get("block")
        weights = {} if old is None else dict(old.weights)
        weights |= {len(equation.invars) + index: name for index, name in enumerate(new.names.values())}
        config = {**template.config, "new_params": FrozenMapping(new.names)} if template.config else {}
        block = Block(
            target=template.name,
            name=match.block.name if match.block is not None else match.path.rpartition(".")[2],
            path=match.path,
            kind="function",
            method="",
            config=FrozenMapping(config),
            weights=FrozenMapping(weights),
            options=FrozenMapping(placing.options_around(placed, equation)),
            exchanged=FrozenMapping({} if old is None else old.exchanged),
            arguments=arguments_of(match.node),
            results=results,
            batched=old.batched if old is not None else len(template.site.axes),
            axes=template.site.axes,
            returns=returns_of(match.node),
            edited=True,
        )
        if template.keeps:
            own = match.block or replace(block, target=match.type)
            block = replace(block, target=own.target, kind=own.kind, method=own.method, config=own.config)
        block = block.with_inputs(kept)
        inner = jaxprs.Jaxpr(
            (),
            [jaxpr.invars[index] for index in kept],
            [*jaxpr.outvars, *(escaped or ())],
            jaxpr.eqns,
            _effects(jaxpr.eqns, set()),
            jaxprs.DebugInfo("block", block.target, None, None),
        )
        outvars = [made.typed(v, aval_of(a)) for v, a in zip(equation.outvars[:results], jaxpr.outvars, strict=True)]
        made.equations.append(
            equation.replace(
                primitive=block_p,
                invars=[operands[index] for index in kept],
                outvars=[*outvars, *(escaping if escaped is not None else ())],
                params={"jaxpr": jaxprs.closed(inner, ()), "block": block},
                effects=inner.effects,
            )
        )
        if escaped is None:
            self.keep_escaping(made, equation, match, results)

    def emit_call(
        self, made: _EditedBody, equation: JaxprEqn, match: TracedCall, template: Template, new: _NewInputs
    ) -> None:
        """Append the call of another module, which takes the place of the block as it is."""
        base, results = self.owner(match)[1], template.site.results
        self.modules.pop(base, None)  # the last comes last
        self.modules[base] = template.module
        jaxpr = placing.placed(placing.as_call(template.jaxpr), base, new.names)
        made.inline(jaxpr, [*equation.invars, *new.variables], equation.outvars[:results])
        self.keep_escaping(made, equation, match, results)

    def keep_escaping(self, made: _EditedBody, equation: JaxprEqn, match: TracedCall, results: int) -> None:
        """Append the equations of a removed block whose values are used outside of it."""
        escaping = equation.outvars[results:]
        if escaping:
            self.gone.add(match.path)
            body = equation.params["jaxpr"].jaxpr
            escaped = body.replace(outvars=body.outvars[results:], debug_info=jaxprs.nameless(body))
            made.inline(escaped, equation.invars, escaping)


def _rewritten(equation: JaxprEqn, replacement: Rewrite, match: TracedCall) -> JaxprEqn:
    """Return a block with another body."""
    block = equation.params.get("block")
    if block is None:
        raise InvalidArgument(
            f"`{match.shown}` is not a block",
            where="`Mox.sub`",
            why="this edit rewrites the body of a module or function call",
            instead="select blocks: `//module_call`",
        )
    body = replacement.rewrite(equation.params["jaxpr"], match.shown)
    options = FrozenMapping({**block.options, REWRITTEN: True})
    return equation.replace(params={"jaxpr": body, "block": replace(block, edited=True, options=options)})


def _site(node: Node, match: TracedCall, axes: Levels) -> Site:
    """Return the original that a replacement may call: the equation, with its inner replacements."""
    equation, block = node.equation, node.block
    arguments, results = len(arguments_of(node)), len(returns_of(node))
    body = equation.params["jaxpr"] if block is not None else alone(equation)
    return Site(body, arguments, results, axes, match.shown)


def _equal(leaf: _Leaf, templates: Sequence[Template], position: int) -> bool:
    """Whether a new array is the one that another call of the same module brought."""
    values = [template.params[position].value for template in templates]
    known = leaf.value if leaf.lengths else jnp.expand_dims(leaf.value, 0)
    known = known.reshape(-1, *leaf.aval.shape) if leaf.lengths else known
    if leaf.value is values[0] and len(values) == 1:
        return True
    if any(is_tracer(value) for value in (leaf.value, *values)) or len(known) % len(values):
        return False
    return known.shape[1:] == values[0].shape and bool((known == jnp.stack(values * (len(known) // len(values)))).all())


def _aval(value: Array) -> Aval:
    return jax_core.ShapedArray(value.shape, value.dtype)


def _effects(equations: Iterable[JaxprEqn], before: Iterable[Effect]) -> set[Effect]:
    """Return the effects of a body: those that it had, and those of new equations that concern no reference."""
    new = itertools.chain.from_iterable(equation.effects for equation in equations)
    return set(before) | {effect for effect in new if jaxprs.reference_of(effect) is None}

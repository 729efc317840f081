"""Put a traced replacement in its place: the paths of its blocks and parameters, and the original that it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping, block_p
from jaxport.blocks.callables.places import joined
from jaxport.jaxprs import Jaxpr, JaxprEqn, Var
from jaxport.jaxprs.rewrite import EquationRewriting, Rewriting
from jaxport.jaxprs.walk import bodies, with_equations
from jaxport.mox.programs.original import original_p
from jaxport.mox.programs.tree import AROUND, WRAPPED, equations_by_name, name_below
from jaxport.mox.querying.calls import IN_PLACE, REPLACED, TracedCall, arguments_of, returns_of
from jaxport.mox.substitution.cleanup import with_block, with_names


def relative(jaxpr: Jaxpr, base: str) -> Jaxpr:
    """Return a body with the paths of its blocks and parameters below a block, as if that were the model."""

    def moved(block: Block) -> Block:
        path = "" if block.path == base else name_below(block.path, base)
        return replace(with_names(block, lambda weight: name_below(weight, base)), path=path)

    return EquationRewriting(lambda equation: with_block(equation, moved)).body(jaxpr)


def placed(jaxpr: Jaxpr, base: str, names: Mapping[str, str]) -> Jaxpr:
    """Put the blocks of a replacement below the block that it replaces; `names` are of its parameters."""
    return _Placing(base, names).body(jaxpr)


class _Placing(Rewriting):
    def __init__(self, base: str, names: Mapping[str, str]):
        super().__init__()
        self.base, self.names = base, names

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        block: Block | None = equation.params.get("block")
        if block is not None and IN_PLACE in block.options:
            options = FrozenMapping({key: value for key, value in block.options.items() if key != IN_PLACE})
            return with_block(equation, lambda block: replace(block, options=options))
        return with_block(super().equation(equation), self.block)

    def block(self, block: Block) -> Block:
        path = joined(self.base, block.path)
        name = block.name if not block.path and not self.base else path.rpartition(".")[2]
        named = with_names(block, lambda weight: self.names.get(weight) or joined(self.base, weight))
        return replace(named, path=path, name=name)


def as_block(equation: JaxprEqn, match: TracedCall) -> JaxprEqn:
    """Turn a wrapper that is replaced into a block with the edited body, which a call of the original then runs."""
    (body,) = bodies(equation.params)
    block = Block(
        target=match.type,
        name=match.path.rpartition(".")[2],
        path=match.path,
        kind="function",
        method="",
        arguments=arguments_of(match.node),
        results=len(equation.outvars),
        returns=returns_of(match.node),
        edited=True,
    )
    params = {"jaxpr": jaxprs.closed(body, ()), "block": block}
    return equation.replace(primitive=block_p, params=params)


def as_call(jaxpr: Jaxpr) -> Jaxpr:
    """Return a replacement that is the call of one module, whose block is no longer the model's own."""

    def replaced(block: Block) -> Block:
        options = FrozenMapping({**block.options, REPLACED: True})
        return block if block.path else replace(block, options=options)

    return with_equations(jaxpr, [with_block(equation, replaced) for equation in jaxpr.eqns])


def with_original(jaxpr: Jaxpr, original: JaxprEqn, results: int) -> tuple[Jaxpr, list[Var] | None]:
    """Return a body that runs the original instead of its stand-ins, and the values that escape from its first call."""
    made = _WithOriginal(original, results).body(jaxpr)
    for stand_in, equation in zip(jaxpr.eqns, made.eqns, strict=True):
        if stand_in.primitive is original_p:
            return made, equation.outvars[len(stand_in.outvars) :]
    return made, None


def options_around(jaxpr: Jaxpr, original: JaxprEqn) -> dict[str, object]:
    """Return the options of a replacement: those that tell the original in it, which stand-ins represent in the
    body.
    """
    block, name = original.params.get("block"), original.primitive.name
    if block is not None:
        return {WRAPPED: True} if WRAPPED in block.options else {}
    found = [*equations_by_name(jaxpr, (name, original_p.name))]
    stand_ins = {*equations_by_name(jaxpr, (original_p.name,))}
    numbers = tuple(number for number, location in enumerate(found) if location in stand_ins)
    return {AROUND: (name, numbers)} if numbers else {}


class _WithOriginal(Rewriting):
    def __init__(self, original: JaxprEqn, results: int):
        super().__init__()
        self.original, self.results = original, results

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        if equation.primitive is not original_p:
            return super().equation(equation)
        more = [Var(atom.aval) for atom in self.original.outvars[self.results :]]
        made = self.original.replace(invars=equation.invars, outvars=[*equation.outvars, *more])
        exchanged = equation.params["exchanged"]

        def taken(block: Block) -> Block:
            weights = {index: path for index, path in block.weights.items() if index not in exchanged}
            others = {i: path for i, path in block.named.items() if i in exchanged or i in block.exchanged}
            options = FrozenMapping({**block.options, WRAPPED: True})
            return replace(block, weights=FrozenMapping(weights), exchanged=FrozenMapping(others), options=options)

        return with_block(made, taken)

"""A traced replacement put in its place: where its blocks are, what its parameters are called, and the original in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jaxport import jaxprs
from jaxport.blocks.block import FrozenMapping
from jaxport.blocks.places import joined
from jaxport.jaxprs.walk import bodies, equations_within, replace_bodies
from jaxport.mox.match import IN_PLACE, REPLACED
from jaxport.mox.original import original_p
from jaxport.mox.renaming import with_names
from jaxport.mox.tree import name_below

__all__ = ["placed", "placed_call", "relative", "with_original"]


def relative(equation: jaxprs.JaxprEqn, base: str) -> jaxprs.JaxprEqn:
    """Return an equation with the paths of its blocks and parameters below a block, as if that were the model."""
    inner = bodies(equation.params)
    new = [body.replace(eqns=[relative(e, base) for e in body.eqns]) for body in inner]
    params = replace_bodies(equation.params, iter(new))
    block = params.get("block")
    if block is not None:
        block = with_names(block, lambda weight: name_below(weight, base))
        params = {**params, "block": replace(block, path="" if block.path == base else name_below(block.path, base))}
    return equation.replace(params=params)


def placed(equation: jaxprs.JaxprEqn, base: str, names: Mapping[str, str]) -> jaxprs.JaxprEqn:
    """Put the blocks of a replacement below the block that it replaces; `names` are of its parameters."""
    block = equation.params.get("block")
    if block is not None and IN_PLACE in block.options:
        options = FrozenMapping({key: value for key, value in block.options.items() if key != IN_PLACE})
        return equation.replace(params={**equation.params, "block": replace(block, options=options)})
    inner = bodies(equation.params)
    params = equation.params
    if inner:
        new = [body.replace(eqns=[placed(e, base, names) for e in body.eqns]) for body in inner]
        params = replace_bodies(params, iter(new))
    if block is not None:
        path = joined(base, block.path)
        block = with_names(block, lambda weight: names.get(weight) or joined(base, weight))
        name = block.name if not block.path and not base else path.rpartition(".")[2]
        params = {**params, "block": replace(block, path=path, name=name)}
    return equation if params is equation.params else equation.replace(params=params)


def placed_call(equation: jaxprs.JaxprEqn, base: str, names: Mapping[str, str]) -> jaxprs.JaxprEqn:
    """Return the same of a replacement that is the call of one module, whose block is no longer the model's own."""
    is_root = "block" in equation.params and not equation.params["block"].path
    equation = placed(equation, base, names)
    if not is_root:
        return equation
    block = equation.params["block"]
    block = replace(block, options=FrozenMapping({**block.options, REPLACED: True}))
    return equation.replace(params={**equation.params, "block": block})


def with_original(
    jaxpr: jaxprs.Jaxpr, original: jaxprs.JaxprEqn, results: int
) -> tuple[list[jaxprs.JaxprEqn], list[jaxprs.Var] | None]:
    """Return the equations with the original in place of its stand-ins, and what escapes from its first call."""
    escaped: list[jaxprs.Var] | None = None
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive is original_p:
            more = [jaxprs.Var(atom.aval) for atom in original.outvars[results:]]
            equations.append(_original(equation, original, more))
            escaped = more if escaped is None else escaped
        else:
            equations.append(_nested_original(equation, original, results))
    return equations, escaped


def _original(equation: jaxprs.JaxprEqn, original: jaxprs.JaxprEqn, more: list[jaxprs.Var]) -> jaxprs.JaxprEqn:
    params = original.params
    block = params.get("block")
    if block is not None:
        exchanged = equation.params["exchanged"]
        weights = {index: path for index, path in block.weights.items() if index not in exchanged}
        others = {index: path for index, path in block.named.items() if index in exchanged or index in block.exchanged}
        block = replace(block, weights=FrozenMapping(weights), exchanged=FrozenMapping(others))
        params = {**params, "block": block}
    return original.replace(invars=equation.invars, outvars=[*equation.outvars, *more], params=params)


def _nested_original(equation: jaxprs.JaxprEqn, original: jaxprs.JaxprEqn, results: int) -> jaxprs.JaxprEqn:
    inner = bodies(equation.params)
    if not any(e.primitive is original_p for body in inner for e in equations_within(body)):
        return equation
    new = [body.replace(eqns=with_original(body, original, results)[0]) for body in inner]
    return equation.replace(params=replace_bodies(equation.params, iter(new)))

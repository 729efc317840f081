"""Other names for parameters: in the program that holds them, and in the blocks that take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping
from jaxport.jaxprs.walk import bodies, replace_bodies, with_equations
from jaxport.mox.mox import Mox

__all__ = ["renamed", "with_names"]


def with_names(block: Block, name_of: Callable[[str], str]) -> Block:
    """Return a block whose parameters have other paths, also in what it says of the adapters that it has."""
    config = dict(block.config)
    if "new_params" in config:
        config["new_params"] = FrozenMapping({own: name_of(path) for own, path in config["new_params"].items()})
    if "plans" in config:
        config["plans"] = tuple((name_of(path), *rest) for path, *rest in config["plans"])
    weights = FrozenMapping({index: name_of(path) for index, path in block.weights.items()})
    exchanged = FrozenMapping({index: name_of(path) for index, path in block.exchanged.items()})
    return replace(block, weights=weights, exchanged=exchanged, config=FrozenMapping(config))


def renamed(mox: Mox, wishes: Mapping[str, str]) -> Mox:
    """Return the Mox with new parameters renamed to what fell free since they were made, by their present names."""
    taken = {*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs}
    names: dict[str, str] = {}
    for name, wish in wishes.items():
        if name in taken and wish not in taken and wish not in names.values():
            names[name] = wish
    if not names:
        return mox
    weights = tuple(replace(weight, path=names.get(weight.path, weight.path)) for weight in mox.weights)
    jaxpr = _Renaming(names).body(mox.jaxpr.jaxpr)
    return mox.replaced(replace(mox.traced, jaxpr=jaxprs.closed(jaxpr, mox.jaxpr.consts), weights=weights))


class _Renaming:
    """One pass; bodies without any of the names stay what they are."""

    def __init__(self, names: Mapping[str, str]):
        self.names = names
        # The source is kept with the result, so that no id is used twice.
        self.done: dict[int, tuple[jaxprs.Jaxpr, jaxprs.Jaxpr]] = {}

    def body(self, jaxpr: jaxprs.Jaxpr) -> jaxprs.Jaxpr:
        if id(jaxpr) not in self.done:
            self.done[id(jaxpr)] = jaxpr, with_equations(jaxpr, [self.equation(e) for e in jaxpr.eqns])
        return self.done[id(jaxpr)][1]

    def equation(self, equation: jaxprs.JaxprEqn) -> jaxprs.JaxprEqn:
        inner = bodies(equation.params)
        new = [self.body(body) for body in inner]
        params = equation.params
        if any(a is not b for a, b in zip(new, inner, strict=True)):
            params = replace_bodies(params, iter(new))
        block: Block | None = params.get("block")
        if block is not None and not self.names.keys().isdisjoint(block.named.values()):
            params = {**params, "block": with_names(block, lambda path: self.names.get(path, path))}
        return equation if params is equation.params else equation.replace(params=params)

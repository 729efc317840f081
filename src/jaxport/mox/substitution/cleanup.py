"""Clean up after an edit: eliminate dead code, unused parameters and state, and reuse the names that became free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping
from jaxport.blocks.liveness import live
from jaxport.jaxprs import JaxprEqn
from jaxport.jaxprs.rewrite import EquationRewriting
from jaxport.mox.programs.program import Program


def pruned(mox: Program, gone_blocks: Iterable[str] = ()) -> Program:
    """Eliminate dead code, and the parameters that only it used: they are in `dropped`.

    The state of blocks that are gone changes no more.
    """
    below = tuple(f"{path}." if path else "" for path in gone_blocks)
    traced, jaxpr = mox.traced, mox.jaxpr.jaxpr
    # A new value of state that is the old one is none.
    held = dict(zip((weight.path for weight in mox.weights), jaxpr.invars, strict=False))
    first = len(traced.output_paths)
    gone = {
        first + index
        for index, path in enumerate(traced.state_outputs)
        if jaxpr.outvars[first + index] is held.get(path) or path.startswith(below)
    }
    if gone:
        jaxpr = jaxpr.replace(outvars=[atom for index, atom in enumerate(jaxpr.outvars) if index not in gone])
    count = len(mox.weights)
    jaxpr, left = live(jaxpr, [index >= count for index in range(len(jaxpr.invars))])
    state = tuple(path for index, path in enumerate(traced.state_outputs, first) if index not in gone)
    weights = tuple(weight for weight, is_left in zip(mox.weights, left, strict=False) if is_left)
    dropped = tuple(weight.path for weight, is_left in zip(mox.weights, left, strict=False) if not is_left)
    closed = jaxprs.closed(jaxpr, mox.jaxpr.consts)
    return mox.replaced(replace(traced, jaxpr=closed, weights=weights, state_outputs=state), dropped=dropped)


def with_block(equation: JaxprEqn, change: Callable[[Block], Block]) -> JaxprEqn:
    """Return an equation whose block, if it is one, is changed; the same object if nothing changes."""
    block: Block | None = equation.params.get("block")
    if block is None or (changed := change(block)) is block:
        return equation
    return equation.replace(params={**equation.params, "block": changed})


def with_names(block: Block, name_of: Callable[[str], str]) -> Block:
    """Return a block whose parameters have other paths, also in the configuration of its adapters."""
    config = dict(block.config)
    if "new_params" in config:
        config["new_params"] = FrozenMapping({own: name_of(path) for own, path in config["new_params"].items()})
    if "plans" in config:
        config["plans"] = tuple((name_of(path), *rest) for path, *rest in config["plans"])
    weights = FrozenMapping({index: name_of(path) for index, path in block.weights.items()})
    exchanged = FrozenMapping({index: name_of(path) for index, path in block.exchanged.items()})
    return replace(block, weights=weights, exchanged=exchanged, config=FrozenMapping(config))


def renamed(mox: Program, wishes: Mapping[str, str]) -> Program:
    """Return the Mox with new parameters renamed to what fell free since they were made, by their present names."""
    taken = {*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs}
    names: dict[str, str] = {}
    for name, wish in wishes.items():
        if name in taken and wish not in taken and wish not in names.values():
            names[name] = wish
    if not names:
        return mox
    weights = tuple(replace(weight, path=names.get(weight.path, weight.path)) for weight in mox.weights)

    def moved(block: Block) -> Block:
        is_named = not names.keys().isdisjoint(block.named.values())
        return with_names(block, lambda path: names.get(path, path)) if is_named else block

    program = EquationRewriting(lambda equation: with_block(equation, moved)).closed(mox.jaxpr)
    return mox.replaced(replace(mox.traced, jaxpr=program, weights=weights))

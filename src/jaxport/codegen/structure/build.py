"""A recorded program as a tree of modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxport.codegen.structure.closing import Closing
from jaxport.codegen.structure.idioms import rewritten
from jaxport.codegen.structure.layers import LayerWeights, recognised
from jaxport.codegen.structure.loops import with_loops
from jaxport.codegen.structure.mining import mine
from jaxport.codegen.structure.scopes import (
    Chain,
    chain_of,
    common,
    hoist,
    imply_elements,
    node_chains,
    plain_paths,
    without_containers,
)
from jaxport.codegen.structure.steps import operators, variables
from jaxport.codegen.structure.ties import element_of_all, shared
from jaxport.codegen.tree import Call, Item, Layer, Leaf, Module, Op, Tie, Weight
from jaxport.importer.recording import Variable
from jaxport.importer.tracing import RecordedProgram

__all__ = ["build"]


def build(recorded: RecordedProgram) -> tuple[Module, Any]:
    """The tree of a recorded program, and what it returns in terms of the tree's values."""
    program = recorded.program
    names = {variable: name for name, variable in recorded.params.items()}
    ops, result = operators(recorded.steps, recorded.outputs, names)
    steps, result = rewritten(ops, result, names, lambda variable: element_of_all(program, names[variable]))
    ops, result = operators(steps, result, names)
    results = list(dict.fromkeys(variables(result)))
    places = program.places
    nodes, node_chain = node_chains(places)
    plain = plain_paths(path for chain in node_chain.values() for path in chain)
    node_chain = {key: tuple(plain[path] for path in chain) for key, chain in node_chain.items()}
    ties = shared(ops, names, program)
    weights = LayerWeights(program, names, ties, nodes)
    leaves = recognised(ops, results, weights)
    made_by = {variable: op for op in ops for variable in op.outputs}
    chains: dict[int, Chain] = {}
    for leaf in leaves:
        chain = node_chain.get(made_by[leaf.outputs[0]].step.node, ())
        chains[id(leaf)] = chain_of(leaf, chain)
    imply_elements(chains)
    without_containers(chains)
    hoist(leaves, chains, names)
    mined = mine(leaves, chains, results, [*names])
    order = {id(leaf): index for index, leaf in enumerate(leaves)}
    types = {plain.get(module.path, module.path): module.type for module in program.modules.walk()} | mined
    closing = Closing(chains, order, names.keys(), ties.keys(), types, results)
    root = closing.module("", leaves, 0, set(results))
    return with_loops(
        _with_weights(root, weights, _tied(leaves, {names[variable]: variable for variable in ties}))
    ), result


def _tied(leaves: Sequence[Leaf], names: Mapping[str, Variable]) -> dict[Variable, Tie]:
    """The parameters that a layer keeps and others read."""
    return {
        names[leaf.weights["embedding"].name]: Tie(leaf, "embedding")
        for leaf in leaves
        if isinstance(leaf, Layer) and leaf.kind == "Embed" and leaf.weights["embedding"].name in names
    }


def _with_weights(root: Module, weights: LayerWeights, ties: Mapping[Variable, Tie]) -> Module:
    """The tree with each parameter in the innermost module around all that reads it, handed down from there."""
    found: dict[Variable, list[tuple[Module, ...]]] = {}
    layers = {layer.outputs: layer for layer in _layers(root)}
    owners = {layers[tie.layer.outputs].outputs: variable for variable, tie in ties.items()}

    def visit(module: Module, around: tuple[Module, ...]) -> None:
        inside = (*around, module)
        for item in module.items:
            if isinstance(item, Call):
                visit(item.module, inside)
            elif isinstance(item, Layer) and item.outputs in owners:
                found.setdefault(owners[item.outputs], []).append(inside)
            elif isinstance(item, Op):
                for variable in item.inputs:
                    if variable in weights.names:
                        found.setdefault(variable, []).append(inside)

    visit(root, ())
    kept: dict[int, dict[Variable, Weight | Tie]] = {}
    for variable, chains in found.items():
        if variable in weights.shared or variable in ties:
            chains = [chains[0][: len(_common(chains))]]
        for chain in chains:
            tie = ties.get(variable)
            holder = Tie(layers[tie.layer.outputs], tie.role) if tie is not None else weights.weight(variable)
            kept.setdefault(id(chain[-1]), {})[variable] = holder
    return _rebuilt(root, kept)[0]


def _common(chains: Sequence[tuple[Module, ...]]) -> Chain:
    return common([tuple(str(id(module)) for module in chain) for chain in chains])


def _layers(module: Module) -> list[Layer]:
    return [item for inner in module.walk() for item in inner.items if isinstance(item, Layer)]


def _rebuilt(module: Module, kept: Mapping[int, Mapping[Variable, Weight | Tie]]) -> tuple[Module, list[Variable]]:
    """The module with its weights, and without them among its inputs."""
    own = kept.get(id(module), {})
    items: list[Item] = []
    for item in module.items:
        if isinstance(item, Call):
            inner, inputs = _rebuilt(item.module, kept)
            items.append(Call(inner, tuple(inputs), item.outputs))
        else:
            items.append(item)
    made = {variable for item in items for variable in item.outputs}
    inputs = list(dict.fromkeys(v for item in items for v in item.inputs if v not in made and v not in own))
    return replace(module, items=tuple(items), inputs=tuple(inputs), weights=dict(own)), inputs

"""A recorded program as a tree of modules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxport.codegen.rewriting.steps import renamed, variables
from jaxport.codegen.structure.modules.cells import cells_of, put_into_cells
from jaxport.codegen.structure.modules.loops import with_loops
from jaxport.codegen.structure.modules.nesting import Nesting
from jaxport.codegen.structure.modules.repeated_runs import mine
from jaxport.codegen.structure.modules.repeats import further_calls, separated, united
from jaxport.codegen.structure.modules.scanned_layers import with_rounds
from jaxport.codegen.structure.modules.scheduling import scheduled
from jaxport.codegen.structure.modules.scopes import (
    below_a_list,
    containers,
    end_with_sums,
    hoist,
    imply_elements,
    keep_channels_last,
    leaf_chains,
    move_unplaced,
    node_chains,
    placed_by_names,
    places_of,
    share_tables,
    unplaced_nodes,
)
from jaxport.codegen.structure.modules.ties import copies, owned_by_elements, place_shared, shared
from jaxport.codegen.structure.modules.wrappers import without_wrappers
from jaxport.codegen.structure.operators import operators
from jaxport.codegen.structure.recognition.heads import with_attention_layers
from jaxport.codegen.structure.recognition.quantization import with_rounding
from jaxport.codegen.structure.recognition.quantizers import with_quantizers
from jaxport.codegen.structure.recognition.recognisers import LayerWeights, recognised
from jaxport.codegen.structure.spelling.rewritten import rewritten
from jaxport.codegen.tree import Call, Item, Layer, Leaf, Module, Op, Tie, Weight
from jaxport.errors import InvalidArgument
from jaxport.importer.calls import Chain, called, common
from jaxport.importer.traced.recorded_program import RecordedProgram
from jaxport.importer.values.recording import Function, Step, Variable, map_leaves
from jaxport.importer.values.stored import is_uniform
from jaxport.jaxprs.identity import IdentitySet


def build(
    recorded: RecordedProgram,
    kinds: Collection[str] = (),
    channels_last: bool = True,
    accepts: Callable[[Layer], bool] = lambda _: True,
) -> tuple[Module, Any]:
    """Return the tree of a recorded program, and the program's results in terms of the tree's values.

    Args:
      recorded: the program.
      kinds: the layers that are made of others, as far as they are wanted: `MultiHeadAttention`.
      channels_last: whether convolutions have their channels last, or first, as files have them.
      accepts: whether the target has a layer; what it does not accept stays operators.
    """
    program = recorded.program
    names = {variable: name for name, variable in recorded.params.items()}
    nodes, node_chain = node_chains(program.places)
    same = copies(recorded.steps, names, program, node_chain)
    steps, outputs = _with_read_weights([renamed(step, same) for step in recorded.steps], recorded.outputs, names)
    ops, result = operators(with_rounding(steps, variables(outputs)), outputs, names)
    steps, result = rewritten(ops, result, names, channels_last)
    ops, result = operators(with_rounding(steps, variables(result)), result, names)
    results = list(dict.fromkeys(variables(result)))
    types = {module.path: module.type for module in program.modules.walk()}
    # What an optimizer merged, and gave no module: vectors of one number that are read several times are no ties.
    own = {v for v, name in names.items() if not is_uniform(program.weights.tensor(name))}
    placed: dict[Leaf, Chain] = {op: node_chain.get(op.step.node, ()) for op in ops}
    files = names
    placed, names, types = below_a_list(placed, names, types)
    if not any(placed.values()):
        placed |= placed_by_names(ops, names)
    place_shared(ops, placed, names)
    move_unplaced(ops, placed, unplaced_nodes(program.places), *separated(ops, dict(placed), own, ()))
    placed, names, types = with_rounds(ops, placed, names, types)
    kept: set[str] = set()
    while True:
        chains, repeated = separated(ops, dict(placed), own, kept)
        weights = LayerWeights(
            program, names, files, shared(ops, names, chains, own), nodes, chains, channels_last, accepts
        )
        root = united(_module(ops, results, weights, chains, types), names)
        failed = further_calls(root)
        if not failed and not _are_doubled(root, weights, own - owned_by_elements(ops, names, chains)):
            break
        more = (failed & repeated or repeated) - kept
        if not more:
            raise InvalidArgument(
                "the modules of the file cannot be told apart",
                where="`to_source`",
                why="a parameter would belong to several of them",
                instead='print it with `framework="jax"`',
            )
        kept |= more
    root = without_wrappers(_with_weights(root, weights))
    root = with_attention_layers(root, accepts) if "MultiHeadAttention" in kinds else root
    return with_loops(with_quantizers(scheduled(root), accepts)), result


def _with_read_weights(steps: list[Step], outputs: object, names: Collection[Variable]) -> tuple[list[Step], object]:
    """Return steps and results with a step for each weight that is a result: modules own what their steps read."""
    read = {
        weight: Variable(weight.shape, weight.dtype, weight.hint) for weight in variables(outputs) if weight in names
    }
    added = [Step("call", "jnp.asarray", (weight,), {}, result, None) for weight, result in read.items()]
    return [*steps, *added], map_leaves(
        lambda leaf: read.get(leaf, leaf) if isinstance(leaf, Variable) else leaf, outputs
    )


def _module(
    ops: Sequence[Op],
    results: Sequence[Variable],
    weights: LayerWeights,
    op_chains: Mapping[Leaf, Chain],
    types: Mapping[str, str],
) -> Module:
    """Return the tree of operators, without its weights."""
    leaves = recognised(ops, results, weights)
    made_by = {variable: op for op in ops for variable in op.outputs}

    def around_node(leaf: Leaf) -> Chain:
        return op_chains[made_by[leaf.outputs[0]]]

    chains = leaf_chains(leaves, around_node, types)
    imply_elements(chains)
    if weights.channels_last:
        keep_channels_last(leaves, chains, weights.names)
    hoist(leaves, chains, weights.names)
    end_with_sums(leaves, chains)
    share_tables(leaves, chains, weights.names, weights.shared)
    cells = cells_of(leaves, chains, types, results)
    types = {**types, **mine(leaves, chains, [*weights.names], around_node)}
    put_into_cells(cells, leaves, chains, types)
    order = {leaf: index for index, leaf in enumerate(leaves)}
    nesting = Nesting(
        chains, order, weights.names.keys(), weights.shared.keys(), types, results, containers(chains),
        places_of(leaves, chains),
    )  # fmt: skip
    return nesting.module("", leaves, 0, set(results))


def _are_doubled(root: Module, weights: LayerWeights, own: Collection[Variable]) -> bool:
    """Whether a parameter that is no tie is in several modules."""
    holders: dict[tuple[str, tuple[int, int] | None], IdentitySet[object]] = {}
    single = {weights.names[variable] for variable in own if variable not in weights.shared}
    for module in root.walk():
        for item in module.items:
            if isinstance(item, Layer):
                for weight in item.weights.values():
                    for one in weight.pieces or (weight,):
                        holders.setdefault((one.name, one.part), IdentitySet()).add(item.weights)
            elif isinstance(item, Op):
                for variable in item.inputs:
                    if variable in weights.names:
                        holders.setdefault((weights.names[variable], None), IdentitySet()).add(module)
    return any(name in single and len(modules) > 1 for (name, _), modules in holders.items())


def _ties(root: Module, weights: LayerWeights) -> dict[Variable, Tie]:
    """Return the parameters that a layer keeps and others read."""
    names = {weights.names[variable]: variable for variable in weights.shared}
    layers = (
        item for module in root.walk() for item in module.items if isinstance(item, Layer) and item.kind == "Embed"
    )
    tables = ((layer.weights["embedding"].name, layer) for layer in layers)
    return {names[name]: Tie(layer, "embedding") for name, layer in tables if name in names}


def _with_weights(root: Module, weights: LayerWeights) -> Module:
    """Return the tree with each parameter in the innermost module around all that reads it, handed down from there."""
    chains_of_readers: dict[Variable, list[tuple[Module, ...]]] = {}
    in_branches: set[Variable] = set()  # what computes there is not recognised, so it may be any layer's
    ties = _ties(root, weights)
    owners = {tie.layer.outputs: variable for variable, tie in ties.items()}

    def visit(module: Module, around: tuple[Module, ...]) -> None:
        inside = (*around, module)
        for item in module.items:
            if isinstance(item, Call):
                visit(item.module, inside)
                continue
            if isinstance(item, Layer) and item.outputs in owners:
                chains_of_readers.setdefault(owners[item.outputs], []).append(inside)
            if isinstance(item, Op):
                in_branches.update(_read_in_bodies(item.step))
            for variable in item.inputs:  # a layer may be called on a parameter
                if variable in weights.names:
                    chains_of_readers.setdefault(variable, []).append(inside)

    visit(root, ())
    kept: dict[Module, dict[Variable, Weight | Tie]] = {}
    paths = {module.path for module in root.walk()}
    for variable, chains in chains_of_readers.items():
        if variable in weights.shared or variable in ties:
            chains = [chains[0][: len(_common(chains))]]
        for chain in chains:
            weight = ties.get(variable) or weights.weight(variable)
            table = None
            if isinstance(weight, Weight) and variable not in in_branches:
                table = _uncalled(weight, chain[-1], paths)
            kept.setdefault(chain[-1], {})[variable] = table or weight
    return _rebuilt(root, kept, {})


def _read_in_bodies(step: Step) -> Iterator[Variable]:
    """Yield the values that the functions of a step read, as `lax.cond` has two, other than as tables of rows."""
    for function in (arg for arg in step.args if isinstance(arg, Function)):
        for inner in function.steps:
            yield from _read_in_bodies(inner)
            if inner.name != "jnp.take":
                yield from variables(inner.args)


def _uncalled(weight: Weight, module: Module, paths: Collection[str]) -> Tie | None:
    """Return the table of a layer that a module has, and that is read but never called: `embed.weight[:length]`."""
    path, _, role = weight.name.rpartition(".")
    label = path.removeprefix(f"{called(module.path)}.") if module.path else path
    if role not in ("weight", "embedding") or len(weight.shape) != 2 or path in paths or not label.isidentifier():
        return None
    config = {"num_embeddings": weight.shape[0], "features": weight.shape[1]}
    return Tie(Layer("Embed", config, {"embedding": weight}, (), (), label), "embedding")


def _common(chains: Sequence[tuple[Module, ...]]) -> Chain:
    return common([tuple(str(id(module)) for module in chain) for chain in chains])


def _rebuilt(
    module: Module, kept: Mapping[Module, Mapping[Variable, Weight | Tie]], done: dict[Module, Module]
) -> Module:
    """Return the module with its weights, and without them among its inputs."""
    if module in done:
        return done[module]
    own = kept.get(module, {})
    items: list[Item] = []
    for item in module.items:
        if isinstance(item, Call):
            values = dict(zip(item.module.inputs, item.inputs, strict=True))
            inner = _rebuilt(item.module, kept, done)
            items.append(Call(inner, tuple(values.get(variable, variable) for variable in inner.inputs), item.outputs))
        else:
            items.append(item)
    made = {variable for item in items for variable in item.outputs}
    read = dict.fromkeys(variable for item in items for variable in item.inputs)
    inputs = tuple(variable for variable in read if variable not in made and variable not in own)
    # In the order in which they are read, so that modules that are alike are one class.
    weights = {variable: own[variable] for variable in [*read, *own] if variable in own}
    uncalled = tuple(tie.layer for tie in weights.values() if isinstance(tie, Tie) and not tie.layer.outputs)
    done[module] = replace(module, items=tuple(items), inputs=inputs, weights=weights, uncalled=uncalled)
    return done[module]

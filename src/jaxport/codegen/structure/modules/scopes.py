"""The chain of modules around each leaf, from the metadata and names of the nodes and weights of the file.

Outermost first. A number belongs to the list before it, and the name of a weight tells what the names of the nodes
leave out:

    /layers.0/attention/MatMul, which reads `layers.0.attention.query.weight`
        →   layers.0, layers.0.attention, layers.0.attention.query
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from jaxport.codegen.tree import Layer, Leaf, Op, makers_of, readers_of
from jaxport.importer.calls import Chain, called, common
from jaxport.importer.modules import NodePlace
from jaxport.importer.names import given_name
from jaxport.importer.resolving.graph import BoundNode
from jaxport.importer.values.recording import Variable

_ELEMENT = re.compile(r"(.+)[._](\d+)")


def element_of(path: str) -> tuple[str, int] | None:
    """Return the list that a module is an element of, and its position, if its path says so.

    >>> element_of("encoder.layers.11"), element_of("blocks_0"), element_of("head")
    (('encoder.layers', 11), ('blocks', 0), None)
    """
    element = _ELEMENT.fullmatch(path)
    return (element[1], int(element[2])) if element is not None else None


def nodes_of(places: Mapping[BoundNode, NodePlace]) -> Iterator[tuple[BoundNode, Chain]]:
    """Yield all nodes, those of branches and functions included, with the modules around each."""
    for node, place in places.items():
        yield node, tuple(module.path for module in place.modules)
        for inner in place.bodies.values():
            yield from nodes_of(inner)


def node_chains(places: Mapping[BoundNode, NodePlace]) -> tuple[dict[Hashable, BoundNode], dict[Hashable, Chain]]:
    """Return the bound nodes, and the modules around each.

    Of a function that is called twice, the modules around both calls.
    """
    nodes: dict[Hashable, BoundNode] = {}
    chains: dict[Hashable, Chain] = {}
    for node, chain in nodes_of(places):
        key = node.node
        chains[key] = common([chains[key], chain]) if key in chains else chain
        nodes[key] = node
    return nodes, chains


def unplaced_nodes(places: Mapping[BoundNode, NodePlace]) -> set[Hashable]:
    """Return the nodes whose modules the file does not tell."""
    inner = [unplaced_nodes(body) for place in places.values() for body in place.bodies.values()]
    return {node.node for node, place in places.items() if not place.is_known}.union(*inner)


def leaf_chains(leaves: Iterable[Leaf], around: Callable[[Leaf], Chain], known: Collection[str]) -> dict[Leaf, Chain]:
    """Return the modules around each leaf, those that only the name of its weight tells included.

    A layer whose weight is `h.0.attn.query.weight` is `query` in `h.0.attn`, if nothing contradicts.

    Args:
      leaves: the leaves.
      around: returns the modules around the node that computes a leaf.
      known: the modules that the file has.
    """
    leaves = list(leaves)
    readers = Counter(name for leaf in leaves for name in _names_of(leaf))
    movable = {name for name, count in readers.items() if count == 1 and name.rpartition(".")[0] not in known}
    names = {leaf: _name_of(leaf, readers) for leaf in leaves}
    if any(name and not given_name(name) for name in names.values()):  # half of the names would tear blocks apart
        names = {leaf: (_names_of(leaf) or [""])[0] for leaf in leaves}
    return {leaf: _chain_of(names[leaf], around(leaf), names[leaf] in movable) for leaf in leaves}


def _names_of(leaf: Leaf) -> list[str]:
    """Return the names of the weights of a layer, without that of the integers that they are stored as."""
    weights = leaf.weights.values() if isinstance(leaf, Layer) else ()
    return [re.sub(r"\.u?int\d+$", "", weight.name) for weight in weights]


def _name_of(leaf: Leaf, readers: Mapping[str, int]) -> str:
    """Return the name that says where a layer is: that of its first weight.

    If an exporter made that up, as for a kernel that it transposed, the path of another weight of this layer alone says
    it.
    """
    first, *others = _names_of(leaf) or [""]
    if given_name(first):
        return first
    return next((name for name in others if given_name(name) and "." in name and readers[name] == 1), first)


def _chain_of(name: str, chain: Chain, is_movable: bool) -> Chain:
    if not name:
        return chain
    path, parent = name.rpartition(".")[0], name.rpartition(".")[0].rpartition(".")[0]
    if is_movable and chain and called(chain[-1]) != path and called(chain[-1]).rpartition(".")[0] == parent:
        # A batch normalization that an exporter folded into the convolution before it has given it its place.
        chain = chain[:-1]
    around = chain[-1] if chain else ""
    begin = f"{called(around)}." if around else ""
    if path == called(around) or not path.startswith(begin):
        return chain
    if not all(part.isidentifier() or part.isdigit() for part in path.split(".")):
        return chain
    return (*chain, *chain_of_path(path.removeprefix(begin), around))


def chain_of_path(path: str, around: str = "") -> Chain:
    """Return the modules that a path below another goes through; a number belongs to the list before it.

    >>> chain_of_path("layers.0.attn", around="encoder")
    ('encoder.layers.0', 'encoder.layers.0.attn')
    """
    steps: list[str] = []
    parts = path.split(".")
    for index, part in enumerate(parts):
        whole = ".".join([*([around] if around else []), *parts[: index + 1]])
        if part.isdigit() and steps:
            steps[-1] = whole
        else:
            steps.append(whole)
    return tuple(steps)


def move_unplaced(
    ops: Sequence[Op],
    chains: dict[Leaf, Chain],
    unplaced: Collection[Hashable],
    calls: dict[Leaf, Chain],
    repeated: Collection[str],
) -> None:
    """Move operators that the file has no place for into the modules around their operands, or into those of their
    readers.

    Fewer values cross the border of a module so: parts of one value into the module that reads them. Where as many go
    in as come out, it is the module around both. What combines the
    results of two calls of a module, or is computed of the last one only, stays outside of it: `calls` has the chains
    that tell calls apart, and `repeated` the modules that are called several times.
    """
    around = lambda made: common(calls[op] for op in made)
    makers, readers = makers_of(ops), readers_of(ops)
    for op in ops:
        if op.step.node not in unplaced:
            continue
        operands = [variable for variable in op.inputs if variable in makers]
        read = [variable for variable in op.outputs if variable in readers]
        if op.step.name == "helper.fake_quantized":  # belongs to what it rounds
            moved = around(makers[variable] for variable in operands)
        elif len(operands) < len(read):
            moved = around(reader for variable in read for reader in readers[variable])
        elif len(read) < len(operands):
            moved = around(makers[variable] for variable in operands)
            if not read and any(called(path) in repeated for path in moved):
                continue
        else:
            moved = around([*map(makers.__getitem__, operands), *(reader for v in read for reader in readers[v])])
            if len(moved) <= len(calls[op]):
                continue
        calls[op], chains[op] = moved, tuple(map(called, moved))


def places_of(leaves: Iterable[Leaf], chains: Mapping[Leaf, Chain]) -> dict[Leaf, str]:
    """Return the modules that are of one layer each, by the layer's identity."""
    inner = {leaf: chains[leaf][-1] for leaf in leaves if isinstance(leaf, Layer) and chains[leaf]}
    count = Counter(inner.values())
    return {key: path for key, path in inner.items() if count[path] == 1}


def imply_elements(chains: dict[Leaf, Chain]) -> None:
    """Add the modules that are only containers, and so are not called: `layers.0` around `layers.0.query` and
    others.
    """
    with_elements: dict[Leaf, Chain] = {}
    children: dict[str, set[str]] = {}
    for key, chain in chains.items():
        whole: list[str] = []
        for path in chain:
            around = f"{whole[-1]}." if whole else ""
            element = re.match(r"[^.]*[^.\d][^.]*(?:\.\d+)+(?=\.[^.]*[^.\d])", path.removeprefix(around))
            if element is not None and path.startswith(around):
                implied = f"{around}{element[0]}"
                children.setdefault(implied, set()).add(path)
                whole.append(implied)
            whole.append(path)
        with_elements[key] = tuple(whole)
    for key, whole_chain in with_elements.items():
        chains[key] = tuple(path for path in whole_chain if len(children.get(path, (1, 2))) > 1)


def containers(chains: Mapping[Leaf, Chain]) -> set[str]:
    """Return the modules that only number others: `blocks` around `blocks.0` and `blocks.1`."""
    return {
        outer
        for chain in chains.values()
        for outer, inner in pairwise(chain)
        if inner.startswith(f"{outer}.") and inner[len(outer) + 1 :].isdigit()
    }


def keep_channels_last(leaves: Iterable[Leaf], chains: dict[Leaf, Chain], weights: Container[Variable]) -> None:
    """Move the transposes that bring channels to the end to the modules that the images come from.

    So a module that begins with a convolution takes images as all others do. Weights stay in their modules.
    """
    maker = makers_of(leaves)
    for leaf in leaves:
        if not isinstance(leaf, Op) or leaf.step.name != "jnp.transpose" or leaf.step.args[1] != (0, 2, 3, 1):
            continue
        (images,) = leaf.inputs
        if images not in weights:
            around = chains[maker[images]] if images in maker else ()
            chains[leaf] = common([chains[leaf], around])


def end_with_sums(leaves: Sequence[Leaf], chains: dict[Leaf, Chain]) -> None:
    """Move sums of two results of one element of a list from the next element to that one.

    A file whose operator adds and normalizes, as `SkipLayerNormalization`, has the last sum of a layer in the next one:

        layers.1.input_layernorm: x + mlp   →   layers.0: x + mlp
    """
    maker = makers_of(leaves)
    for leaf in leaves:
        if not isinstance(leaf, Op) or leaf.step.name != "+":
            continue
        own, terms = chains[leaf], [chains[maker[variable]] for variable in leaf.inputs if variable in maker]
        made = common(terms)
        depth = len(common([own, made]))
        before, after = (element_of(path) for path in ((*made, "")[depth], (*own, "")[depth]))
        if len(terms) == 2 and before and after and (before[0], before[1] + 1) == after:
            chains[leaf] = made[: depth + 1]


def hoist(leaves: Sequence[Leaf], chains: dict[Leaf, Chain], weights: Mapping[Variable, str]) -> None:
    """Move operators that several modules use, and that none of them has to compute, to the module around them all.

    A mask that the first layer of a stack makes for all of them is made before the first layer; so is what is made of a
    weight that has the name of the module around.

    Args:
      leaves: the layers and operators.
      chains: the modules around each, by identity; changed.
      weights: the names of the tensors, by the variable that stands for each.
    """
    users, maker = readers_of(leaves), makers_of(leaves)
    for leaf in leaves:
        chain = chains[leaf]
        others = [chains[user] for variable in leaf.outputs for user in users.get(variable, [])]
        around = common([chain, *others])
        if len(around) == len(chain):
            continue
        begin, own = f"{called(around[-1])}." if around else "", f"{called(chain[len(around)])}."

        def is_bound(variable: Variable, begin: str = begin, own: str = own) -> bool:
            name = weights.get(variable)
            return name is not None and (not begin or not name.startswith(begin) or name.startswith(own))

        _move_out(leaf, around, chains, maker, is_bound)


def _move_out(
    leaf: Leaf,
    around: Chain,
    chains: dict[Leaf, Chain],
    maker: Mapping[Variable, Leaf],
    is_bound: Callable[[Variable], bool],
) -> None:
    """Move a leaf, and what of its module it is computed from, to the modules around; nothing if a weight is among
    that.
    """
    depth, inside = len(around), chains[leaf][len(around)]
    moving, pending = {leaf}, [leaf]
    while pending:
        current = pending.pop()
        if not isinstance(current, Op) or any(map(is_bound, current.inputs)):
            return
        before = {maker[variable] for variable in current.inputs if variable in maker} - moving
        before = {made for made in before if inside in chains[made][depth : depth + 1]}
        moving |= before
        pending += before
    chains |= dict.fromkeys(moving, around)


def share_tables(
    leaves: Sequence[Leaf],
    chains: dict[Leaf, Chain],
    weights: Container[Variable],
    owners: Mapping[Variable, Op | None],
) -> None:
    """Move lookups in the table of another module's embedding to the module around both, which calls that embedding.

    The decoder of a translator is called on the embeddings of its words; the table is not handed to it.

    Args:
      leaves: the layers and operators.
      chains: the modules around each, by identity; changed.
      weights: the variables that stand for tensors.
      owners: the lookups that are the layers of tables, by table.
    """
    maker = makers_of(leaves)
    for leaf in leaves:
        if not isinstance(leaf, Op) or leaf.step.name != "jnp.take":
            continue
        table: Variable = leaf.step.args[0]
        owner = owners.get(table) if isinstance(table, Variable) else None
        layer = maker.get(owner.outputs[0]) if owner is not None else None
        if not isinstance(table, Variable) or not isinstance(layer, Layer):
            continue
        around = common([chains[leaf], chains[layer]])
        if around == chains[leaf]:
            continue

        def is_bound(variable: Variable, table: Variable = table) -> bool:
            return variable in weights and variable is not table

        _move_out(leaf, around, chains, maker, is_bound)


LIST = "layers"
"""The list that numbered modules at the top of a model are elements of."""
ACTIVATIONS = ("nn.", "jnp.tanh", "jnp.clip", "jnp.minimum")
"""How the names of functions of one value begin that follow a layer."""


def placed_by_names(ops: Sequence[Op], names: Mapping[Variable, str]) -> dict[Leaf, Chain]:
    """Return the modules around each operator; nothing if no weight is that of a numbered layer.

    Names of weights say which modules they are in. What has no weight is placed by what it reads and what reads it:
    between two layers of one module, it belongs to that module; an activation behind the last layer of a module belongs
    to it, and so does the sum of its result with what it was given.

    Args:
      ops: the operators, in the order of the file.
      names: the names of the tensors.
    """
    own = {op: path for op in ops if (path := _path(op, names))}
    if not any(path.rpartition(".")[2].isdigit() for path in own.values()):
        return {}
    makers, readers = makers_of(ops), readers_of(ops)
    chains: dict[Leaf, Chain] = {op: tuple(accumulate(path.split("."), "{}.{}".format)) for op, path in own.items()}
    around = {key: chain[:-1] for key, chain in chains.items()}  # the modules around the layer of a weight
    before = {**around}
    for op in ops:
        if op not in own:
            operands = [before[makers[v]] if v in makers else () for v in op.inputs if v not in names]
            before[op] = common(operands)
    behind = {**around}
    for op in reversed(ops):
        if op not in own:
            behind[op] = common(behind[reader] for variable in op.outputs for reader in readers.get(variable, ()))
    inside = {variable: [around[op] for op in found if op in own] for variable, found in readers.items()}
    for op in ops:
        if op in own:
            continue
        chain = common([before[op], behind[op]])
        if len(op.inputs) == 1 and op.step.name.startswith(ACTIVATIONS) and op.inputs[0] in makers:
            chain = max(chain, around[makers[op.inputs[0]]], key=len)
        elif len(op.inputs) == 2 and op.step.name == "+":
            for one, other in (op.inputs, op.inputs[::-1]):
                chain = max(chain, _given(around[makers[one]], inside.get(other, [])) if one in makers else (), key=len)
        chains[op] = around[op] = chain
    return chains


def below_a_list(
    chains: Mapping[Leaf, Chain], names: Mapping[Variable, str], types: Mapping[str, str]
) -> tuple[dict[Leaf, Chain], dict[Variable, str], dict[str, str]]:
    """Return modules, names of weights and types in which modules that are numbered at the top are elements of a
    list.
    """
    tops = {path.partition(".")[0] for chain in chains.values() for path in chain}
    paths = tops or {name.partition(".")[0] for name in names.values() if "." in name}
    if LIST in paths or not any(map(str.isdigit, paths)):
        return {**chains}, {**names}, {**types}

    def moved(path: str) -> str:
        return f"{LIST}.{path}" if path.partition(".")[0].isdigit() else path

    below = {key: tuple(map(moved, chain)) for key, chain in chains.items()}
    return (
        {key: (LIST, *chain) if chain[:1] != chains[key][:1] else chain for key, chain in below.items()},
        {variable: moved(name) if "." in name else name for variable, name in names.items()},
        {moved(path): kind for path, kind in types.items()},
    )


def _path(op: Op, names: Mapping[Variable, str]) -> str:
    """Return the path of the layer whose weight an operator reads; empty if its name has none."""
    for variable in op.inputs:
        path = names.get(variable, "").rpartition(".")[0]
        if path and all(part.isidentifier() or part.isdigit() for part in path.split(".")):
            return path
    return ""


def _given(chain: Chain, readers: Sequence[Chain]) -> Chain:
    """Return the outermost module of a chain that a value goes into: that of a residual connection."""
    depths = [len(common([chain, reader])) for reader in readers]
    outer = [depth for depth in depths if depth]
    return chain[: max(outer)] if outer else ()

"""Parameters that operators share, copies of one, and others that only happen to be equal.

Before and after:

    table lookup `embed.weight`, and `h @ embed.weight.T` in the head   →   the head calls the embedding's table: a tie
    `layers.0.norm.weight` is `layers.1.norm.weight`, all ones          →   a weight each: they are equal by chance
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

import numpy as np

from jaxport.codegen.rewriting.steps import reads
from jaxport.codegen.structure.modules.scopes import chain_of_path
from jaxport.codegen.tree import Leaf, Op, readers_of
from jaxport.importer.calls import Chain, called
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.names import given_name, unique, without_positions
from jaxport.importer.values.recording import Step, Variable


def copies(
    steps: Iterable[Step], names: Mapping[Variable, str], program: ImportedProgram, chains: Mapping[Hashable, Chain]
) -> dict[Variable, Variable]:
    """Return the parameters that are copies of another, each with that one.

    Exporters store a weight that they transpose again for each call of its module, under a name that they make up.
    Equal tensors are copies if they have no other names, and the same function reads them in the same module: a linear
    layer has one kernel. Those whose elements are all the same may be weights of their own, unless the file says that
    it is such a layer. Rows of a stack, `up.bias.0`, have the name of the stack.
    """
    kinds = {module.path: module.type for module in program.modules.walk()}
    firsts: dict[Hashable, list[Variable]] = {}
    originals: dict[Variable, Variable] = {}
    readers: dict[Variable, set[tuple[str, Chain]]] = {}
    for step in steps:
        for variable in reads(step):
            if variable in names:
                readers.setdefault(variable, set()).add((step.name, chains.get(step.node, ())))
    for variable, places in readers.items():
        if given_name(re.sub(r"\.\d+$", "", names[variable])) or len(places) > 1 or not next(iter(places))[1]:
            continue
        known = firsts.setdefault((*places, variable.shape, np.dtype(variable.dtype)), [])
        array = program.weights.host_array(names[variable])
        same = next((one for one in known if np.array_equal(program.weights.host_array(names[one]), array)), None)
        (_, chain), *_ = places
        if (
            same is None
            or not array.size
            or ((array == array.flat[0]).all() and not kinds.get(chain[-1], "").endswith(".Linear"))
        ):
            known.append(variable)
        else:
            originals[variable] = same
    return originals


#: Operators that a layer with a kernel is, and the position of the kernel.
_PRODUCTS = {"@": 1, "jnp.matmul": 1, "lax.conv_general_dilated": 1}


def place_shared(ops: Sequence[Op], chains: dict[Leaf, Chain], names: Mapping[Variable, str]) -> None:
    """Give the products with one kernel, and the additions of one bias to them, a module of their own, in place.

    Where the file has no modules, a kernel that several products read is a layer that is called several times:

        p @ fc1.weight + fc1.bias,  q @ fc1.weight + fc1.bias      both in the module `fc1`

    Args:
      ops: the operators.
      chains: the modules around each, by identity.
      names: the names of the tensors.
    """
    readers = readers_of(ops)
    made = {path for chain in chains.values() for path in chain}
    for kernel in names:
        path = names[kernel].rpartition(".")[0]
        if len(kernel.shape) < 2:
            continue
        if not path or not all(p.isidentifier() or p.isdigit() for p in path.split(".")):
            path = unique("conv" if len(kernel.shape) > 2 else "linear", made)
        calls = [_layer_of(kernel, op, readers, names) for op in readers.get(kernel, [])]
        whole = [call for call in calls if call is not None]
        if len(whole) < 2 or len(whole) < len(calls) or len({bias for _, bias in whole}) > 1:
            continue
        if len({_options(op) for call, _ in whole for op in call if op.step.name in _PRODUCTS}) > 1:
            continue  # layers that differ in their strides, for example
        placed = [op for call, _ in whole for op in call]
        if not any(chains[op] for op in placed):
            made.add(path)
            chains |= {op: chain_of_path(path) for op in placed}


def _options(product: Op) -> tuple[str, ...]:
    """Return how an operator multiplies, as a text."""
    return (product.step.name, *map(str, product.step.args[2:]), *map(str, sorted(product.step.kwargs.items())))


def _layer_of(
    kernel: Variable, op: Op, readers: Mapping[Variable, list[Op]], names: Mapping[Variable, str]
) -> tuple[list[Op], Variable | None] | None:
    """Return the operators of a call of the layer with a kernel, and its bias; None if the kernel is read otherwise."""
    call, value = [op], kernel
    if op.step.name in ("T", "jnp.transpose"):
        value = op.outputs[0]
        if len(readers.get(value, ())) != 1:
            return None
        (op,) = readers[value]
        call.append(op)
    place = _PRODUCTS.get(op.step.name)
    if place is None or op.step.form == "vmap" or op.step.args[place] is not value or op.inputs.count(value) != 1:
        return None
    after = readers.get(op.outputs[0], [])
    if len(after) == 1 and after[0].step.name == "+":
        added = [term for term in after[0].inputs if term is not op.outputs[0]]
        if len(added) == 1 and added[0] in names and len(added[0].shape) == 1:
            return [*call, after[0]], added[0]
    x = op.step.args[0]  # a layer is not applied to a weight, or to what is known
    return (call, None) if isinstance(x, Variable) and x not in names else None


def shared(
    ops: Sequence[Op], names: Mapping[Variable, str], chains: Mapping[Leaf, Chain], own: Set[Variable]
) -> dict[Variable, Op | None]:
    """Return the parameters that several operators read, each with the lookup whose table it is, if there is one.

    What `owned_by_elements` returns is no tie, nor what is not in `own`. A tensor that several calls of one module
    read is one weight of that module.
    """
    uses = Counter(variable for op in ops for variable in op.inputs)
    counts: dict[Variable, Counter[Chain]] = {}
    owners: dict[Variable, Op | None] = {}
    for op in ops:
        for variable in op.inputs:
            if variable not in names:
                continue
            turned = op.step.name in ("T", "jnp.transpose")
            counts.setdefault(variable, Counter())[chains[op]] += uses[op.outputs[0]] if turned else 1
            if op.step.name == "jnp.take" and op.step.args[0] is variable:
                owners.setdefault(variable, op)
    owned = owned_by_elements(ops, names, chains)
    return {
        variable: owners.get(variable)
        for variable, chain_counts in counts.items()
        if variable in own
        if max(chain_counts.values()) > 1
        or (variable not in owned and len({tuple(map(called, chain)) for chain in chain_counts}) > 1)
    }


COMPUTED = "onnx::"
"""How the names begin of what PyTorch's older exporter computed from weights: equal results are one tensor."""


def owned_by_elements(ops: Sequence[Op], names: Mapping[Variable, str], chains: Mapping[Leaf, Chain]) -> set[Variable]:
    """Return the parameters that each element of a list has of its own, though the file has one tensor for all.

    Layers that are copies of one have equal tensors before they are trained, which exporters merge. Such a tensor has
    the name of one of the elements, or none; one with the name of a module around the list is the same for all of them.
    """
    places: dict[Variable, set[Chain]] = {}
    multiplied: set[Variable] = set()
    for op in ops:
        multiplied |= {*op.inputs[:1]} if op.step.name == "@" else set()
        for variable in names.keys() & {*op.inputs}:
            places.setdefault(variable, set()).add(tuple(map(called, chains[op])))
    return {
        variable
        for variable, paths in places.items()
        if len({tuple(map(without_positions, path)) for path in paths}) == 1 < len(paths)
        if (
            variable not in multiplied
            if names[variable].startswith(COMPUTED) or not given_name(names[variable])
            else any(part.isdigit() for part in names[variable].split("."))
        )
    }

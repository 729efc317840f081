"""Ties: which uses of one tensor of a file are one parameter.

Exporters write equal tensors once. An author ties a table of embeddings to the product at the end, or calls a module
twice; nobody ties the zeros with which the biases of all layers begin. So, in a file whose exporter did not say it,

    MatMul(x, up)    Add(·, zeros)      becomes      MatMul(x, up)    Add(·, up.zeros)
    MatMul(y, down)  Add(·, zeros)                   MatMul(y, down)  Add(·, down.zeros)

while a kernel that two products read stays one. The other way round, exporters that compute what depends on constants
alone write a tied head as a matrix of its own; it is the parameter that its module has the name of, transposed:

    Gather(lm_head.weight, ids)  …  MatMul(x, val_243) in lm_head      becomes      MatMul(x, Transpose(lm_head.weight))
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.importer.loading.claims import claims, with_claims
from jaxport.importer.modules import COPIES, Scope, scopes_by_node
from jaxport.importer.names import given_name, unique, without_positions
from jaxport.importer.tensors.roles import TRAINABLE
from jaxport.importer.values.stored import is_uniform, originals, tensor_value
from jaxport.onnx_facts import KERNEL_PRODUCTS, MATRIX_PRODUCTS, NORMALIZATIONS, STATISTICS

Ties = Literal["auto", "keep", "none"] | Collection[str]
"""What is tied: what an author may have tied, what the file stores once, nothing, or only the tensors of these names.
"""

_KINDS = ("auto", "keep", "none")
#: The names that PyTorch gives the statistics of BatchNormalization, by the input.
_STATISTICS = dict(zip(sorted(STATISTICS["BatchNormalization"]), ("running_mean", "running_var"), strict=True))
_PRODUCTS = MATRIX_PRODUCTS | KERNEL_PRODUCTS
Use = tuple[ir.Node, int]


def untie(model: ir.Model, ties: Ties) -> tuple[ir.Model, dict[str, str]]:
    """Give the uses of a tensor that are not tied tensors of their own, named after the modules of the nodes that read
    them.

    Args:
      model: the model; it is not changed.
      ties: see `from_onnx`.

    Returns:
      The model, a copy of it if a tensor is untied; and the names of the new tensors, each with the name of the tensor
      that it was. The data of a tensor is shared, not copied.

    Raises:
      InvalidArgument: `ties` is no such word, or no initializer has a given name.
    """
    _check(ties, model.graph.initializers)
    split = {} if ties == "keep" else _uses_apart(model, ties)
    if not split:
        return model, {}
    copy = model.clone()
    positions = {node: at for at, node in enumerate(model.graph)}
    nodes = list(copy.graph)
    taken = {*copy.graph.initializers, *(value.name or "" for value in copy.graph.inputs)}
    taken |= {value.name or "" for node in copy.graph.all_nodes() for value in node.outputs}
    copies: dict[str, str] = {}
    for name, groups in split.items():
        value = copy.graph.initializers[name]
        for own_name, uses in groups:
            renamings = [
                node
                for node, _ in uses
                if own_name and _renamed(node) == own_name and not node.outputs[0].is_graph_output()
            ]
            own_name = own_name if renamings else unique(own_name or name, taken)
            taken.add(own_name)
            copies[own_name] = name
            own = ir.Value(
                name=own_name, shape=value.shape, type=value.type, const_value=value.const_value,
                metadata_props=dict(value.metadata_props),
            )  # fmt: skip
            copy.graph.register_initializer(own)
            for node, index in uses:
                here = nodes[positions[node]]
                here.replace_input_with(index, own)
                if node in renamings:  # of the two values of that name the tensor stays
                    here.outputs[0].replace_all_uses_with(own)
                    copy.graph.remove(here, safe=True)
    with_claims(copy, copies)
    return copy, copies


_MOVED = re.compile(r"(permute|transpose|t)(_\d+)?")
"""The names that PyTorch's newer exporter gives transposed tensors that it computed."""


def tie_transposed(model: ir.Model) -> ir.Model:
    """Return the model with the matrices that an exporter has transposed as what they are: parameters, transposed.

    Values alone don't tell: those of fresh parameters are equal by chance. So the module that multiplies by the matrix
    has the name of the parameter, and does not read it; or the name of the matrix says that it was transposed, and one
    parameter has its elements.
    """
    found = _transposed(model.graph)
    if not found:
        return model
    copy = model.clone()
    for name, original in found.items():
        value = copy.graph.initializers.pop(name)
        reader = next(iter(value.uses())).node
        parameter = copy.graph.initializers[original]
        node = ir.node(
            "Transpose", [parameter], {"perm": [1, 0]}, outputs=[ir.val(name, type=value.type, shape=value.shape)]
        )
        node.metadata_props.update(reader.metadata_props)
        copy.graph.insert_before(reader, node)
        value.replace_all_uses_with(node.outputs[0])
    return copy


def _transposed(graph: ir.Graph) -> dict[str, str]:
    """Return the names of transposed matrices, each with the name of the parameter."""
    matrices = {
        name: value
        for name, value in graph.initializers.items()
        if (tensor := value.const_value) is not None and tensor.dtype in TRAINABLE and len(tensor.shape) == 2
    }
    made = {
        name: [use.node for use in value.uses()]
        for name, value in matrices.items()
        if value.uses() and (_MOVED.fullmatch(name) or not given_name(name))
    }
    made = {
        name: nodes
        for name, nodes in made.items()
        if all(node.graph is graph and node.op_type in MATRIX_PRODUCTS for node in nodes)
    }
    if not made or len(made) == len(matrices):
        return {}
    scopes, found = scopes_by_node(graph), {}
    for name, nodes in made.items():
        owner = _scope(nodes[0], scopes)
        named = [matrices.get(f"{owner}.{last}") for last in ("weight", "kernel")]
        others = [
            other
            for other in named
            if other is not None and owner not in {_scope(use.node, scopes) for use in other.uses()}
        ]
        if not others and _MOVED.fullmatch(name):
            others = [other for key, other in matrices.items() if key not in made]
        same = [other for other in others if _is_transposed(matrices[name], other)]
        if len(same) == 1:
            found[name] = same[0].name or ""
    return found


def _is_transposed(value: ir.Value, other: ir.Value) -> bool:
    one, two = value.const_value, other.const_value
    if one is None or two is None or one.dtype != two.dtype or one.shape.numpy() != two.shape.numpy()[::-1]:
        return False
    return np.array_equal(tensor_value(one).data.T, tensor_value(two).data)


def _check(ties: Ties, names: Collection[str]) -> None:
    if isinstance(ties, str):
        if ties not in _KINDS:
            kinds = ", ".join(f'"{kind}"' for kind in _KINDS)
            raise InvalidArgument(
                f'there is no kind of ties "{ties}"',
                where="`ties=…`",
                instead=f"give {kinds}, or the names of tensors that stay tied",
            )
        return
    for name in ties:
        if name not in names:
            raise InvalidArgument(
                f"`{name}` is not an initializer of the model",
                where="`ties=…`",
                instead='name initializers that stay tied, or say `ties="keep"`',
            )


def _uses_apart(model: ir.Model, ties: Ties) -> dict[str, list[tuple[str, list[Use]]]]:
    """Return the groups of uses that get a tensor of their own, each with its name, by the name of the shared
    tensor.
    """
    claimed = claims(model) if ties == "auto" else {}
    split = {}
    scopes: dict[ir.Node, list[Scope]] = {}
    firsts: dict[ir.Value, ir.Value] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        uses = [(use.node, use.idx) for use in value.uses() if use.node.graph is model.graph]
        if len(uses) < 2 or tensor is None or tensor.dtype not in TRAINABLE or name in claimed:
            continue
        if ties not in ("auto", "none") and name in ties:
            continue
        if not scopes:
            scopes = scopes_by_node(model.graph)
            firsts = originals(_read(model.graph)) if ties == "auto" else {}
        if ties == "auto" and not is_uniform(tensor) and not _are_elements(name, [node for node, _ in uses], scopes):
            continue
        groups: dict[Hashable, list[Use]] = {}
        for node, index in uses:
            key: Hashable = (node, index)
            if ties == "auto":
                # A scale and a variance begin at one: a normalization that reads a tensor twice has two.
                place = index if node.op_type in NORMALIZATIONS and node.inputs.count(value) > 1 else None
                key = (_owner(value, node, scopes, firsts), place)
            groups.setdefault(key, []).append((node, index))
        readers = [node for node, _ in uses]
        named = {key: _own_name(value, group[0], readers, scopes) for key, group in groups.items()}
        unnamed = (key for key, group in groups.items() if not _renamed(group[0][0]))
        original = next((key for key in named if named[key] == name), next(unnamed, next(iter(groups))))
        if len(groups) > 1:
            split[name] = [(named[key], group) for key, group in groups.items() if key != original]
    return split


def _are_elements(name: str, nodes: Sequence[ir.Node], scopes: Mapping[ir.Node, Sequence[Scope]]) -> bool:
    """Whether the elements of a list read a tensor that is named after one of them: copies of a layer, not trained
    yet.
    """
    renamed = {other for node in nodes if (other := _renamed(node))}
    paths = {name, *renamed} if renamed else {_scope(node, scopes) for node in nodes}
    is_named = bool(given_name(name)) and any(part.isdigit() for part in name.split("."))
    return is_named and len(paths) > 1 and len({*map(without_positions, paths)}) == 1


def _scope(node: ir.Node, scopes: Mapping[ir.Node, Sequence[Scope]]) -> str:
    return (scopes[node] or [("", "")])[-1][0]


def _own_name(value: ir.Value, use: Use, readers: Sequence[ir.Node], scopes: Mapping[ir.Node, Sequence[Scope]]) -> str:
    """Return the name of a tensor that a node reads, by the module of the node; nothing if it has none.

    In `layers.1.attention`, what is `layers.0.attention.out.weight` to `layers.0.attention` is `out.weight`, too.
    """
    node, index = use
    if renamed := _renamed(node):
        return renamed
    name, scope = value.name or "", _scope(node, scopes)
    if index in STATISTICS.get(node.op_type, ()) and node.inputs.count(value) > 1:
        return f"{scope}.{_STATISTICS[index]}" if scope else ""
    owners = (other for reader in readers if name.startswith(f"{(other := _scope(reader, scopes))}."))
    owner = next((other for other in owners if without_positions(other) == without_positions(scope)), None)
    last = name.rpartition(".")[2] if owner is None else name.removeprefix(f"{owner}.")
    return f"{scope}.{last}" if scope else ""


def _renamed(node: ir.Node) -> str:
    """Return the name that PyTorch's older exporter keeps in an Identity, of a tensor that it merged with equal ones;
    or nothing.
    """
    name = node.outputs[0].name or ""
    return name if node.op_type == "Identity" and given_name(name) else ""


def _read(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the kernels of a graph, once for each time that they are read."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype in TRAINABLE and len(tensor.shape) > 1:
            yield from [value] * len(value.uses())


def _owner(
    value: ir.Value,
    node: ir.Node,
    scopes: Mapping[ir.Node, Sequence[Scope]],
    firsts: Mapping[ir.Value, ir.Value],
) -> Hashable:
    """Return what a use of a vector belongs to: a name of its own, the kernel of its layer, the module, or the node.

    A module that is called twice reads its kernel twice, or a copy of it, so that its bias stays one. `firsts` has the
    kernel that each is a copy of.
    """
    if renamed := _renamed(node):
        return renamed
    while node.op_type in COPIES and len(following := list(node.outputs[0].uses())) == 1:
        node = following[0].node
    kernels = _kernels(node, value)
    if not kernels and node.op_type in ("Add", "Sum"):
        for operand in node.inputs:
            maker = _origin(operand).producer() if operand is not None else None
            if maker is not None and maker.op_type in _PRODUCTS:
                kernels = _kernels(maker, value)
    return tuple(firsts.get(kernel, kernel) for kernel in kernels) or _scope(node, scopes) or node


def _origin(value: ir.Value) -> ir.Value:
    """Return the value that another is a movement or a cast of."""
    while (maker := value.producer()) is not None and maker.op_type in COPIES and maker.inputs[0] is not None:
        value = maker.inputs[0]
    return value


def _kernels(node: ir.Node, value: ir.Value) -> tuple[ir.Value, ...]:
    """Return the matrices and kernels that a node reads beside a vector."""
    origins = [_origin(operand) for operand in node.inputs if operand is not None]
    return tuple(
        o for o in origins if o is not value and o.is_initializer() and o.shape is not None and len(o.shape) > 1
    )

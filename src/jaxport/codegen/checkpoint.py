"""Loading a checkpoint of PyTorch into printed modules: which entry of the state dict each of their weights is.

PyTorch's exporters name initializers as the state dict does, but for those that they compute: the transposed
weight of a `Linear`, for example. A name is believed only if the nodes that read the tensor are where the name says.

    onnx::MatMul_42, read by `/encoder/dense/MatMul` of type Linear   →   encoder.dense.weight, transposed
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.codegen.structure.modules.scopes import nodes_of
from jaxport.codegen.tree import Weight
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.loading.claims import claims, state_dict_names
from jaxport.importer.names import is_made_up
from jaxport.importer.resolving.graph import BoundNode
from jaxport.importer.values.stored import tensor_value

__all__ = ["pytorch_loading", "state_dict_entries"]

PRODUCER = "pytorch"
WEIGHTS = {
    "torch.nn.modules.linear.Linear": ("MatMul", 1, (1, 0)),
    "torch.nn.modules.sparse.Embedding": ("Gather", 0, (0, 1)),
}
"""Of modules of PyTorch: the operator that takes their `weight`, at which place, and the order of its axes there."""
COUNTER = "num_batches_tracked"
"""The counter of a batch normalization of PyTorch; nothing is computed from it."""


@dataclass(frozen=True)
class Entry:
    """An entry of a state dict.

    Attributes:
      name: its name.
      axes: the order of its axes in a tensor that is made of it.
    """

    name: str
    axes: tuple[int, ...]


def pytorch_loading(
    model: str, weights: Mapping[str, Weight], known: Mapping[str, Entry], program: ImportedProgram
) -> str:
    """Return the source of `load_pytorch`; nothing unless it is known for each weight which entry it is.

    Args:
      model: the name of the model's class.
      weights: the model's weights by path.
      known: the entries that tensors of the file are (see `state_dict_entries`).
      program: the program, whose file may name all entries of the state dict.
    """
    entries: dict[str, Entry] = {}
    for path, weight in weights.items():
        if not weight.name and not weight.trained:  # a table of the program
            continue
        entry = known.get(weight.file)
        if entry is None or weight.axes is None:
            return ""
        entries[path] = Entry(entry.name, tuple(entry.axes[axis] for axis in weight.axes))
    if not entries or len({entry.name for entry in entries.values()}) < len(entries):
        return ""  # equal tensors may have been merged
    counted = any(path.endswith(".mean") for path in entries)
    has_tables = len(entries) < len(weights)
    lines = "\n".join(f'    "{path}": ("{entry.name}", {entry.axes}),' for path, entry in _templates(entries).items())
    unread, fixed = _others(program, {entry.name for entry in entries.values()})
    checked = "" if not fixed and not unread else _CHECKED
    return _LOADING.format(
        model=model,
        entries=lines,
        others=_OTHERS.format(unread=unread, fixed=fixed) if checked else "",
        checked=checked,
        tables=_TABLES if has_tables else "{}",
        skipped=_SKIPPED if has_tables else "",
        counters=f' and not name.endswith(".{COUNTER}")' if counted else "",
    )


def _others(program: ImportedProgram, read: Set[str]) -> tuple[list[str], dict[str, str]]:
    """Return the entries of the state dict that the model does not read, and the digests of those that are in its code."""
    tensors = {value.name: tensor for value, tensor in program.body.initializers.items()}
    names = [name for name in state_dict_names(program.model) if name not in read]
    digest = lambda name: hashlib.sha256(np.ascontiguousarray(tensor_value(tensors[name]).data).tobytes()).hexdigest()
    return [name for name in names if name not in tensors], {name: digest(name) for name in names if name in tensors}


def state_dict_entries(program: ImportedProgram) -> dict[str, Entry]:
    """Return the entries that tensors of the file are, by the names of the tensors."""
    if program.model.producer_name != PRODUCER:
        return {}
    places = [*nodes_of(program.places)]
    claimed = claims(program.model)
    readers: dict[ir.Value, list[tuple[BoundNode, str]]] = {}
    for node, chain in places:
        for value in node.inputs:
            if value is not None and value in program.body.initializers:
                readers.setdefault(value, []).append((node, chain[-1] if chain else ""))
    types = {module.path: module.type for module in program.modules.walk()}
    entries: dict[str, Entry] = {}
    for value, readers_of_value in readers.items():
        name, rank = value.name or "", len(program.body.initializers[value].shape)
        owners = {path for _, path in readers_of_value}
        if name in claimed or _is_of(name, owners):
            entries[name] = Entry(name, tuple(range(rank)))
        elif len(owners) == 1 and rank == 2:
            (path,) = owners
            operator, place, axes = WEIGHTS.get(types.get(path, ""), ("", 0, ()))
            if all(_takes(node, operator, place, value) for node, _ in readers_of_value):
                entries[name] = Entry(f"{path}.weight", axes)
    return entries


def _is_of(name: str, owners: set[str]) -> bool:
    """Whether a tensor has the name of an entry of a state dict, in each of the modules that read it."""
    if re.fullmatch(r"(\w+\.)*[A-Za-z_]\w*", name, re.ASCII) is None or is_made_up(name):
        return False
    around = name.rpartition(".")[0]
    return all(not path or path == around or around.startswith(f"{path}.") for path in owners)


def _takes(node: BoundNode, operator: str, place: int, value: ir.Value) -> bool:
    """Whether a node is an operator that takes a value at a place, and nowhere else."""
    is_operator = node.node.op_type == operator and node.node.domain in ("", "ai.onnx")
    return is_operator and [at for at, operand in enumerate(node.inputs) if operand is value] == [place]


def _templates(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries with one row for the elements of lists: `blocks.{}.up.kernel`, if all numbers agree."""
    rows: dict[str, dict[str, Entry]] = {}
    for path, entry in entries.items():
        rows.setdefault(NUMBER.sub("{}", path), {})[path] = entry
    templates: dict[str, Entry] = {}
    for template, row in rows.items():
        names = {Entry(NUMBER.sub("{}", entry.name), entry.axes) for entry in row.values()}
        same = all(NUMBER.findall(path) == NUMBER.findall(entry.name) for path, entry in row.items())
        templates |= {template: next(iter(names))} if same and len(names) == 1 else row
    return templates


NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_TABLES = 'load_file(Path(__file__).with_name("model.safetensors"))'
_SKIPPED = """        if path not in PYTORCH and template not in PYTORCH:
            continue  # a constant of the program
"""
_OTHERS = """#: Entries that the model does not read, and the SHA-256 of those whose values are in its code.
UNREAD, FIXED = {unread}, {fixed}
"""
_CHECKED = """    for name, digest in FIXED.items():
        value = np.ascontiguousarray(state_dict.get(name, ()))
        if name in state_dict and hashlib.sha256(value.tobytes()).hexdigest() != digest:
            problems.append(f"`{name}` has other values, and those of this model are in its code")
    used.update(UNREAD, FIXED)
"""
_LOADING = '''#: The entries of PyTorch's state dict by the paths of weights, with the order of their axes.
PYTORCH: dict[str, tuple[str, tuple[int, ...]]] = {{
{entries}
}}
{others}

def load_pytorch(state_dict: Mapping[str, Any]) -> {model}:
    """The model with the weights of a checkpoint of PyTorch: tensors or arrays by the names of its state dict.

    Raises:
      ValueError: entries are missing, have no place in the model, or have another shape.
    """
    tensors, problems, used = {tables}, [], set()
    for path, weight in named(abstract()).items():
        template = re.sub(r"(?<=\\.)\\d+(?=\\.)", "{{}}", path)
{skipped}        name, axes = PYTORCH.get(path) or PYTORCH[template]
        name = name.format(*re.findall(r"(?<=\\.)\\d+(?=\\.)", path))
        used.add(name)
        if name not in state_dict:
            problems.append(f"`{{name}}` is missing")
            continue
        array = np.asarray(state_dict[name])
        shape = tuple(weight.shape[axes.index(axis)] for axis in range(len(axes)))
        if array.shape != shape:
            problems.append(f"`{{name}}` has shape {{array.shape}}, not {{shape}}")
        else:
            tensors[path] = jnp.asarray(array.transpose(axes), weight.dtype)
{checked}    unexpected = [name for name in state_dict if name not in used{counters}]
    problems += [f"`{{name}}` has no place in the model" for name in unexpected]
    if problems:
        raise ValueError("the state dict is of another model: " + "; ".join(problems))
    return filled(tensors)
'''

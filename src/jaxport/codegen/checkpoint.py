"""Loading a checkpoint of PyTorch into printed modules: which entry of the state dict each of their weights is.

PyTorch's exporters name initializers as the state dict does, but for those that they compute: the transposed
weight of a `Linear`, for example. A name is believed only if the nodes that read the tensor are where the name says.

    onnx::MatMul_42, read by `/encoder/dense/MatMul` of type Linear   →   encoder.dense.weight, transposed
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxport.codegen.python.texts import Copied
from jaxport.codegen.structure.modules.scopes import nodes_of
from jaxport.codegen.tree import Weight
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.loading.claims import claims, state_dict_names
from jaxport.importer.names import is_made_up
from jaxport.importer.resolving.graph import BoundNode
from jaxport.importer.values.stored import tensor_value

PRODUCER = "pytorch"
WEIGHTS = {
    "torch.nn.modules.linear.Linear": ("MatMul", 1, (1, 0)),
    "torch.nn.modules.sparse.Embedding": ("Gather", 0, (0, 1)),
}
"""Of modules of PyTorch: the operator that takes their `weight`, at which place, and the order of its axes there."""
TIED = {
    "torch.nn.modules.linear.Linear": ("Transpose", 0),
    "torch.nn.modules.sparse.Embedding": ("Gather", 0),
}
"""Of modules of PyTorch: the operator that takes a `weight` that is tied as the state dict has it, at which place."""
COUNTER = "num_batches_tracked"
"""The counter of a batch normalization of PyTorch; nothing is computed from it."""


@dataclass(frozen=True)
class Entry:
    """An entry of a state dict.

    Attributes:
      name: its name.
      axes: the order of its axes in a tensor that is made of it.
      reshaped_from: as a `Weight` has it.
      other: the name of the other module's entry that is the same tensor, if it is tied.
      blocks: the order of its equal parts along its first axis there: of the gates of a cell, for example.
    """

    name: str
    axes: tuple[int, ...]
    other: str = ""
    blocks: tuple[int, ...] = ()
    reshaped_from: tuple[tuple[int, ...], tuple[int, ...]] | None = None


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
        made = None if entry is None else _made(weight, entry)
        if made is None:
            return ""
        entries[path] = made
    if not entries or len({entry.name for entry in entries.values()}) < len(entries):
        return ""  # equal tensors may have been merged
    counted = any(path.endswith(".mean") for path in entries)
    has_tables = len(entries) < len(weights)
    templates = _templates(entries)
    lines = "\n".join(f'    "{path}": ("{entry.name}", {entry.axes}),' for path, entry in templates.items())
    blocks = {path: entry.blocks for path, entry in templates.items() if entry.blocks}
    reshaped = {path: entry.reshaped_from for path, entry in templates.items() if entry.reshaped_from}
    unread, tied, fixed = _others(program, {entry.name for entry in entries.values()})
    tied |= {entry.name: [entry.name, entry.other] for entry in entries.values() if entry.other}
    constants = {"UNREAD": unread, "TIED": tied, "FIXED": fixed, "BLOCKS": blocks, "RESHAPED": reshaped}
    return _LOADING.format(
        model=model,
        entries=lines,
        others="".join(f"#: {_OTHERS[name]}\n{name} = {value}\n" for name, value in constants.items() if value),
        of="TIED.get(name, [name])" if tied else "[name]",
        differing=_DIFFERING if tied else "",
        ordered=_ORDERED if blocks else "",
        before=_BEFORE if reshaped else "",
        of_shape="before" if reshaped else "weight.shape",
        reshaped=".reshape(behind).transpose(after)" if reshaped else "",
        checked=_CHECKED if fixed else "",
        digest=_DIGEST if fixed else "",
        used=f"{{{', '.join(f'*{name}' for name in ('UNREAD', 'FIXED') if constants[name])}}}"
        if unread or fixed
        else "set()",
        tables=_TABLES if has_tables else "{}",
        skipped=_SKIPPED if has_tables else "",
        counters=f' and not name.endswith(".{COUNTER}")' if counted else "",
    )


def _made(weight: Weight, entry: Entry) -> Entry | None:
    """Return an entry as a tensor is made of it; None if it is not known how."""
    parts = [piece.part for piece in weight.pieces if piece.part is not None]
    blocks = tuple(begin // (end - begin) for begin, end in parts)
    is_whole = len({end - begin for begin, end in parts}) < 2 and sorted(blocks) == [*range(len(blocks))]
    if weight.axes is None or weight.part is not None or not is_whole or len(weight.pieces) > max(len(parts), 1):
        return None
    axes = tuple(entry.axes[axis] for axis in weight.axes)
    return Entry(entry.name, axes, entry.other, blocks, weight.reshaped_from)


def _others(program: ImportedProgram, read: Set[str]) -> tuple[list[str], dict[str, list[str]], dict[str, list[str]]]:
    """Return the entries of the state dict that the model does not read, all names of those that have several, and the
    digests of those that are in its code.
    """
    tensors = {value.name: tensor for value, tensor in program.body.initializers.items()}
    names = state_dict_names(program.model)
    groups: dict[str, list[str]] = {}
    for name, first in names.items():
        groups.setdefault(first, []).append(name)
    tied = {name: [name, *(one for one in group if one != name)]
            for group in groups.values() if len(group) > 1 for name in group if name in read}  # fmt: skip
    others = [name for name in names if name not in read and not any(name in group for group in tied.values())]
    fixed = {name: _digests(tensor_value(tensors[name]).data) for name in others if name in tensors}
    return [name for name in others if name not in tensors], tied, fixed


def _digests(values: np.ndarray) -> list[str]:
    """Return digests of numbers, whatever their type, and as a checkpoint of 16 bits has them: the function of
    `_DIGEST`.
    """
    rounded = [
        values,
        *(values.astype(dtype) for dtype in (np.float16, ml_dtypes.bfloat16) if values.dtype.kind == "f"),
    ]
    return [*dict.fromkeys(hashlib.sha256((one.astype(complex) + 0).tobytes()).hexdigest()[:32] for one in rounded)]


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
        elif len(owners) == 2 and all(
            _takes(node, *TIED.get(types.get(path, ""), ("", 0)), value) for node, path in readers_of_value
        ):
            names = {f"{path}.weight" for path in owners}
            if name in names:
                (other,) = names - {name}
                entries[name] = Entry(name, (0, 1), other)
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
        names = {replace(entry, name=NUMBER.sub("{}", entry.name), other="") for entry in row.values()}
        same = all(NUMBER.findall(path) == NUMBER.findall(entry.name) for path, entry in row.items())
        templates |= {template: next(iter(names))} if same and len(names) == 1 else row
    return templates


NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_TABLES = 'load_file(Path(__file__).with_name("model.safetensors"))'
_SKIPPED = """        if path not in PYTORCH and template not in PYTORCH:
            continue  # a constant of the program
"""
_OTHERS = {
    "UNREAD": "Entries that the model does not read.",
    "TIED": "All names of the entries that have several.",
    "BLOCKS": "The order of the gates that entries have side by side.",
    "RESHAPED": "The shapes of entries whose axes are in order before they are reshaped, and the order of the axes then.",
    "FIXED": (
        "Entries whose values are in the code, with digests of their numbers: as they are, and rounded to 16 bits."
    ),
}
_ORDERED = """        if order := BLOCKS.get(template) or BLOCKS.get(path):
            parts = np.split(array, len(order))
            array = np.concatenate([parts[place] for place in order])
"""
_BEFORE = """        before, after = RESHAPED.get(template) or RESHAPED.get(path) or (weight.shape, tuple(range(weight.ndim)))
        behind = tuple(weight.shape[after.index(axis)] for axis in range(len(after)))
"""
_DIFFERING = """        if any(not np.array_equal(array, array_of(entries[other]), equal_nan=True) for other in held[1:]):
            others.append(f"{' and '.join(f'`{other}`' for other in held)} are one tensor in this model, and differ")
"""
_CHECKED = """    for name in FIXED.keys() & entries.keys():
        if digest(array_of(entries[name])) not in FIXED[name]:
            others.append(f"`{name}` has other values, and those of this model are in its code")
"""
_DIGEST = '''

def digest(array: np.ndarray) -> str:
    """What tells numbers from others, whatever their type."""
    return hashlib.sha256((array.astype(complex) + 0).tobytes()).hexdigest()[:32]
'''
_LOADING = Copied("jaxport.codegen").text("load_pytorch.txt").removesuffix("\n")
NAMES = frozenset(re.findall(r"^(?:def )?(\w+)(?=[:(])", _LOADING + _DIGEST, re.MULTILINE)) | {*_OTHERS}
"""The names that the source of `load_pytorch` defines."""

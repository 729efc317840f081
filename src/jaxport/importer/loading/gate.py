"""The single gate for the tensors of a file: a tensor that has not passed it is never read.

Every tensor message of a model is checked here: its type, its shape, the length of its data, and the location of
external data. After the gate no message names a file: external data is an index into the gate's own list of places, and
sparse tensors are dense.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from jaxport.errors import AGAIN, ModelError
from jaxport.importer.limits import Budget
from jaxport.importer.loading.frame import OWN_FILE
from jaxport.importer.loading.mapping import Buffer, MappedTensor
from jaxport.importer.values.dtypes import dtype_of

LARGEST = 2**60
"""The largest size in bytes of a tensor's shape: NumPy counts in 64 bits."""

MOST_AXES = 64
"""The largest rank of a NumPy array."""

_PASSED = f"{OWN_FILE}place "
"""The location of a tensor that has passed: no real file has this name, so nothing else can read it."""


class FoundTensor(NamedTuple):
    """A tensor message: the message that holds it, the field, the tensor, and the name of the place in messages."""

    holder: Any
    field: str
    tensor: Any
    where: str


@cache
def _leading(kind: Any) -> frozenset[str]:
    """Return the fields of a message type that lead to tensors, according to ONNX's schema of its own files."""
    leading: dict[str, set[str]] = {}
    pending, seen = [kind], {kind.full_name: kind}
    while pending:
        for field in pending.pop().fields:
            if field.message_type is not None and field.message_type.full_name not in seen:
                seen[field.message_type.full_name] = field.message_type
                pending.append(field.message_type)
    reached = set(_TENSORS)
    while True:
        for name, message in seen.items():
            nested = {
                f.name for f in message.fields if f.message_type is not None and f.message_type.full_name in reached
            }
            if nested and name not in _TENSORS:
                leading.setdefault(name, set()).update(nested)
        if reached == reached | leading.keys():
            return frozenset(leading.get(kind.full_name, ()))
        reached |= leading.keys()


_TENSORS = {kind.DESCRIPTOR.full_name for kind in (onnx.TensorProto, onnx.SparseTensorProto)}


def tensors(model: onnx.ModelProto) -> Iterator[FoundTensor]:
    """Yield all tensor messages of a model, including sparse ones, wherever the schema of ONNX files allows one."""
    pending: list[tuple[Any, str]] = [(model, "")]
    while pending:
        message, where = pending.pop()
        leading = _leading(message.DESCRIPTOR)
        for field, value in message.ListFields():
            if field.name not in leading:
                continue
            items = [value] if hasattr(value, "DESCRIPTOR") else value
            if field.message_type.full_name in _TENSORS:
                for item in items:
                    yield FoundTensor(message, field.name, item, where)
            else:
                pending += [(item, _place(item) or where) for item in items]


def _place(message: Any) -> str:
    if isinstance(message, onnx.NodeProto):
        return f"node `{message.name}` ({message.op_type})"
    return f"function `{message.name}`" if isinstance(message, onnx.FunctionProto) else ""


class Gate:
    """Checks the tensors of one model.

    Args:
      own: the model's own bytes, or None.
      folders: the folders of data files: that of the model, and that of the file that it links to.
      origin: the name of the model in messages.
      budget: the budget for created data.
    """

    def __init__(self, own: Buffer | None, folders: Sequence[Path], origin: str, budget: Budget):
        self.own, self.folders, self.origin, self.budget = own, folders, origin, budget
        self.places: list[tuple[Buffer, int]] = []
        self.buffer_of = cache(Buffer)

    def pass_through(self, model: onnx.ModelProto) -> None:
        """Check all tensors of a model, and make its sparse ones dense.

        Raises:
          ModelError: a tensor is damaged or hostile; the message names it.
        """
        for message in list(tensors(model)):
            where = message.where or f"tensor `{_name(message.tensor)}`"
            if isinstance(message.tensor, onnx.SparseTensorProto):
                self._replace(message, self._dense(message.tensor, where))
            else:
                self._check(message.tensor, where)

    def take(self, model: ir.Model) -> None:
        """Replace the tensors whose data is in a file by those that passed.

        Raises:
          ModelError: a tensor did not pass: its data is outside the model's folder, or missing.
        """
        for value in _initializers(model):
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = self._taken(value.const_value)
        for attributes in _attributes(model):
            for name, attribute in list(attributes.items()):
                held = _tensors_of(attribute)
                if any(isinstance(tensor, ir.ExternalTensor) for tensor in held):
                    taken = [self._taken(t) if isinstance(t, ir.ExternalTensor) else t for t in held]
                    several = attribute.type == ir.AttributeType.TENSORS
                    attributes[name] = ir.AttrTensors(name, taken) if several else ir.AttrTensor(name, taken[0])

    def has_external(self, model: ir.Model) -> bool:
        """Whether some tensor of the model lies in a file."""
        held = [value.const_value for value in _initializers(model)]
        held += [
            t for attributes in _attributes(model) for attribute in attributes.values() for t in _tensors_of(attribute)
        ]
        return any(isinstance(tensor, ir.ExternalTensor) for tensor in held)

    def _taken(self, tensor: ir.ExternalTensor) -> MappedTensor:
        location = os.fspath(tensor.location)
        if location.startswith(_PASSED):
            return MappedTensor(*self.places[int(location.removeprefix(_PASSED))], tensor)
        folders = (Path(tensor.base_dir).resolve(),) if os.fspath(tensor.base_dir) else ()
        entries = {
            "location": location,
            "offset": str(tensor.offset or 0),
            "length": str(tensor.length or tensor.nbytes),
        }
        where, dims = f"tensor `{tensor.name}`", tensor.shape.numpy()
        size = _check_shape(dims, tensor.dtype, where)
        return MappedTensor(*self._placed(entries, size, folders, where, _asked(dims, tensor.dtype)), tensor)

    # -- messages --------------------------------------------------------------------------------------------------

    def _check(self, tensor: onnx.TensorProto, where: str) -> None:
        """Refuse a tensor without type or shape, or with more or less data than its shape needs."""
        dtype_of(tensor.data_type, where)
        element, dims = ir.DataType(tensor.data_type), tuple(tensor.dims)
        size = _check_shape(dims, element, where)
        if tensor.HasField("segment"):
            raise ModelError("a tensor in segments cannot be read", where=where, instead=AGAIN)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if element == ir.DataType.STRING:
                raise ModelError("strings cannot be stored outside a tensor", where=where, instead=AGAIN)
            place = self._placed(_entries(tensor, where), size, self.folders, where, _asked(dims, element))
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value=f"{_PASSED}{len(self.places)}")
            self.places.append(place)
            return
        own = _data_field(element)
        count = math.prod(dims)
        # Numbers of 2 and 4 bits share a byte; strings have no width.
        packed = 1 if element == ir.DataType.STRING else max(8 // element.bitwidth, 1)
        lengths = {name: len(getattr(tensor, name)) for name in _TYPED_FIELDS}
        if tensor.HasField("raw_data") and element != ir.DataType.STRING:
            wanted, unit, stored = size, "bytes", len(tensor.raw_data)
        else:
            wanted, unit = count * 2 if element in _COMPLEX else math.ceil(count / packed), "elements"
            stored = lengths.pop(own)
        if stored != wanted or any(lengths.values()):
            raise ModelError(
                f"{_asked(dims, element)} needs {wanted} {unit}, the tensor has {stored}"
                if stored != wanted
                else f"the tensor has data of another type than {element.name}",
                where=where,
                why="the file is truncated or damaged",
                instead=AGAIN,
            )

    def _placed(
        self, entries: dict[str, str], size: int, folders: Sequence[Path], where: str, asked: str
    ) -> tuple[Buffer, int]:
        """Return the bytes of external data, and their offset."""
        for key in ("offset", "length"):
            if key in entries and not (entries[key].isdecimal() and len(entries[key]) < 20):
                raise ModelError(
                    f"the {key} `{entries[key][:40]}` of external data is not a size",
                    where=where,
                    instead=AGAIN,
                )
        location, offset = entries.get("location", ""), int(entries.get("offset", 0))
        length = int(entries.get("length", size)) or size
        if location == OWN_FILE and self.own is not None:
            if length != size or offset + length > len(self.own):
                raise ModelError(
                    f"{asked} needs {size} bytes, the tensor has {length}",
                    where=where,
                    why="the file is truncated or damaged",
                    instead=AGAIN,
                )
            return self.own, offset
        if not folders:
            raise ModelError(
                f"the data of a tensor is in the file `{_shown(location)}`",
                where=where,
                why=f"no folder is known for {self.origin}",
                instead="give `from_onnx` the path of the model",
            )
        buffer = self.buffer_of(_located(location, folders, where))
        if offset + size > len(buffer) or length != size:
            raise ModelError(
                f"`{location}` is too short",
                where=where,
                why=f"its {size} bytes at {offset} do not match the file's {len(buffer)} bytes "
                f"or the stated length {length}",
                instead="copy the data file again",
            )
        return buffer, offset

    # -- sparse tensors --------------------------------------------------------------------------------------------

    def _dense(self, sparse: onnx.SparseTensorProto, where: str) -> onnx.TensorProto:
        """Return a sparse tensor in dense form."""
        dims = tuple(sparse.dims)
        self._check(sparse.values, where)
        self._check(sparse.indices, where)
        element = ir.DataType(sparse.values.data_type)
        size = _check_shape(dims, element, where)
        _refuse_sparse(sparse, _sparse_problem(sparse, dims), where)
        self.budget.spend(size, where, f"the sparse tensor `{_name(sparse)}` written dense")
        values, indices = self._array(sparse.values), self._array(sparse.indices)
        _refuse_sparse(sparse, _indices_problem(indices, dims), where)
        dense = np.zeros(dims, values.dtype)
        dense.reshape(-1)[np.ravel_multi_index(tuple(indices.T), dims) if indices.ndim == 2 else indices] = values
        return ir.to_proto(ir.Tensor(dense, element, name=_name(sparse)))

    def _array(self, tensor: onnx.TensorProto) -> np.ndarray:
        made = ir.from_proto(tensor)
        return (self._taken(made) if isinstance(made, ir.ExternalTensor) else made).numpy()

    def _replace(self, sparse: FoundTensor, dense: onnx.TensorProto) -> None:
        holder = sparse.holder
        if isinstance(holder, onnx.GraphProto):
            holder.initializer.append(dense)
            holder.sparse_initializer.remove(sparse.tensor)
            return
        if sparse.field == "sparse_tensor":
            holder.ClearField("sparse_tensor")
            holder.type = onnx.AttributeProto.TENSOR
            holder.name = "value" if holder.name == "sparse_value" else holder.name
            holder.t.CopyFrom(dense)
        else:
            holder.type = onnx.AttributeProto.TENSORS
            holder.tensors.append(dense)
            holder.sparse_tensors.remove(sparse.tensor)


_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
_FIELD_OF = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}


def _data_field(element: ir.DataType) -> str:
    """Return the field of a tensor message that stores elements of a type one by one."""
    return _FIELD_OF.get(element, "int32_data")


def _name(tensor: Any) -> str:
    return tensor.values.name if isinstance(tensor, onnx.SparseTensorProto) else tensor.name


def _asked(dims: Sequence[int], element: ir.DataType) -> str:
    return f"the shape {list(dims)} of {element.name}"


def _shown(location: str) -> str:
    return location.replace("\0", "\\0")


def _check_shape(dims: Sequence[int], element: ir.DataType, where: str) -> int:
    """Return the number of bytes of a shape; refuse an invalid one."""
    if any(size < 0 for size in dims):
        raise ModelError(f"the shape {list(dims)} has a negative size", where=where, instead=AGAIN)
    bits = 8 if element == ir.DataType.STRING else element.bitwidth
    if math.prod(max(size, 1) for size in dims) * bits > 8 * LARGEST or len(dims) > MOST_AXES:
        raise ModelError(f"the shape {list(dims)} is larger than any array can be", where=where, instead=AGAIN)
    return math.ceil(math.prod(dims) * bits / 8)


def _entries(tensor: onnx.TensorProto, where: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entries.setdefault(entry.key, entry.value) != entry.value:
            raise ModelError(f"external data gives its `{entry.key}` twice", where=where, instead=AGAIN)
    return entries


def _refuse_sparse(sparse: onnx.SparseTensorProto, why: str, where: str) -> None:
    if why:
        raise ModelError(
            f"the sparse tensor `{_name(sparse)}` of shape {list(sparse.dims)} is malformed",
            where=where,
            why=why,
            instead="store it dense",
        )


def _sparse_problem(sparse: onnx.SparseTensorProto, dims: tuple[int, ...]) -> str:
    """Return what is wrong with the shapes and types of a sparse tensor's parts, or an empty text."""
    count, indices = list(sparse.values.dims), list(sparse.indices.dims)
    if len(count) != 1:
        return f"its values have the shape {count}, not that of a list"
    if sparse.values.data_type == onnx.TensorProto.STRING:
        return "its values are strings"
    if sparse.indices.data_type != onnx.TensorProto.INT64:
        return "its indices are not INT64"
    if indices not in (count, [*count, len(dims)]):
        return f"its indices have the shape {indices}, its {count[0]} values need {count} or {[*count, len(dims)]}"
    return ""


def _indices_problem(indices: np.ndarray, dims: tuple[int, ...]) -> str:
    """Return what is wrong with the indices, which have to be inside the shape, ascending and distinct."""
    sizes = np.array(dims if indices.ndim == 2 else [math.prod(dims)], np.int64)
    rows = indices if indices.ndim == 2 else indices[:, None]
    if ((rows < 0) | (rows >= sizes)).any():
        return "its indices lie outside its shape"
    flat = np.ravel_multi_index(tuple(indices.T), dims) if indices.ndim == 2 and len(indices) else indices.reshape(-1)
    if (np.diff(flat) <= 0).any():
        return "its indices are not in ascending order, or one is there twice"
    return ""


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield from (function.graph, *function.subgraphs())


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    return (value for graph in _graphs(model) for value in graph.initializers.values())


def _attributes(model: ir.Model) -> Iterator[Any]:
    """Yield the attributes of all nodes, and the default attributes of functions."""
    yield from (function.attributes for function in model.functions.values())
    yield from (node.attributes for graph in _graphs(model) for node in graph)


def _tensors_of(attribute: ir.Attr) -> list[ir.TensorProtocol]:
    if attribute.is_ref() or attribute.value is None:
        return []
    if attribute.type == ir.AttributeType.TENSOR:
        return [attribute.as_tensor()]
    return list(attribute.as_tensors()) if attribute.type == ir.AttributeType.TENSORS else []


def _located(location: str, folders: Sequence[Path], where: str) -> Path:
    """Return the data file at a relative path, which may be a link, but only to a file in one of the folders."""
    named = location and not os.path.isabs(location) and "\0" not in location
    paths = [path for path in (folder / location for folder in folders) if named and _lies_in(path, folders)]
    if not paths:
        raise ModelError(
            f"external data at `{_shown(location)}` is refused",
            where=where,
            why="it is outside the model's folder",
            instead="keep the data file beside the model, with a relative path",
        )
    located = next((path for path in paths if path.is_file()), None)
    if located is None:
        raise ModelError(
            f"the data file `{location}` is missing",
            where=where,
            instead=f"put it in `{folders[0]}`, beside the model",
        )
    return located


def _lies_in(path: Path, folders: Sequence[Path]) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(folder) for folder in folders)

"""Reading an ONNX model from a path, bytes, a `ModelProto` or an `onnx_ir.Model`.

What comes from a file is not trusted: a tensor has to have the data that it claims, and external data has to lie inside
the model's folder. Large tensors are views of the file, memory-mapped and read when they are used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from jaxport.errors import InvalidArgument, ModelError
from jaxport.importer.dtypes import dtype_of
from jaxport.importer.frame import without_data
from jaxport.importer.mapping import Buffer, map_tensors
from jaxport.importer.ordering import in_order

__all__ = ["ModelSource", "load"]

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model

LARGEST_DENSE = 2**28
"""Elements that a sparse tensor may have when it is written out: its file says nothing of its size."""


def load(source: ModelSource) -> ir.Model:
    """The model in memory, its tensors checked.

    Raises:
      InvalidArgument: `source` is nothing that a model can be read from, or there is no such file.
      ModelError: the model is damaged or hostile; the message names the tensor or node.
    """
    if isinstance(source, ir.Model):
        return in_order(source, own=False)
    buffer, folders = None, ()
    if isinstance(source, onnx.ModelProto):
        proto, origin = source, "the `ModelProto`"
    elif isinstance(source, bytes):
        buffer, origin = Buffer(source), "the bytes"
        proto = _parse(buffer, origin)
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise InvalidArgument(f"there is no file `{path}`", where="`from_onnx`", instead="check the path")
        buffer, origin, folders = Buffer(path), f"`{path}`", (path.parent.resolve(), path.resolve().parent)
        proto = _parse(buffer, origin)
    else:
        raise InvalidArgument(
            f"a model cannot be read from a `{type(source).__name__}`",
            where="`from_onnx`",
            instead="give a path, bytes, a `ModelProto` or an `onnx_ir.Model`",
        )
    if not proto.HasField("graph"):
        raise ModelError(
            "the model has no graph",
            where=origin,
            why="the file may be truncated or no ONNX model",
            instead="export it again",
        )
    _check_versions(proto, origin)
    if proto is source and (_imports_twice(proto) or any(_is_foreign(holder) for holder in _holders(proto))):
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
    _import_once(proto)
    for holder in _holders(proto):
        _check_names(holder)
        _check_and_densify(holder)
    try:
        model = ir.from_proto(proto)
    except (
        ir.serde.SerdeError,
        ValueError,
        TypeError,
        KeyError,
        AssertionError,
        NotImplementedError,
        RecursionError,
    ) as error:
        raise ModelError(
            "the model is malformed", where=origin, why=_root_cause(error), instead="export it again"
        ) from error
    map_tensors(model, buffer, folders, origin)
    return in_order(model)


def _check_versions(proto: onnx.ModelProto, origin: str) -> None:
    """Refuses a file format that is newer than the installed onnx."""
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"IR version {proto.ir_version} is newer than {onnx.IR_VERSION}, the newest known",
            where=origin,
            instead="update the onnx package, or export the model for an older version",
        )


def _imports_twice(holder: onnx.ModelProto | onnx.FunctionProto) -> bool:
    domains = [entry.domain or "ai.onnx" for entry in holder.opset_import]
    return len(set(domains)) < len(domains)


def _import_once(proto: onnx.ModelProto) -> None:
    """Leaves one version of each domain: of several the last, as ONNX Runtime reads them (`""` and `ai.onnx` are one)."""
    for holder in (proto, *proto.functions):
        if _imports_twice(holder):
            versions = {entry.domain or "ai.onnx": entry.version for entry in holder.opset_import}
            del holder.opset_import[:]
            for domain, version in versions.items():
                holder.opset_import.add(domain="" if domain == "ai.onnx" else domain, version=version)


def _parse(data: Buffer, origin: str) -> onnx.ModelProto:
    try:
        return onnx.ModelProto.FromString(without_data(data.view))
    except DecodeError as error:
        raise ModelError(
            "this is not an ONNX model",
            where=origin,
            why=f"it is truncated or damaged ({error})",
            instead="export it again",
        ) from error


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"[:500]


def _holders(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.NodeProto]:
    """All graphs and nodes of the model and its functions, outer ones first."""
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while pending:
        body = pending.pop()
        if isinstance(body, onnx.GraphProto):
            yield body
        for node in body.node:
            yield node
            for attribute in node.attribute:
                pending += [attribute.g] * attribute.HasField("g") + list(attribute.graphs)


def _is_foreign(holder: onnx.GraphProto | onnx.NodeProto) -> bool:
    """Whether it has sparse tensors, maps or negative sizes, which `onnx_ir` has not."""
    if isinstance(holder, onnx.GraphProto):
        return bool(holder.sparse_initializer) or any(
            _is_map(value.type) or any(True for _ in _negative(value.type)) for value in _values(holder)
        )
    return any(attribute.HasField("sparse_tensor") for attribute in holder.attribute)


def _check_names(holder: onnx.GraphProto | onnx.NodeProto) -> None:
    """Refuses names that are not UTF-8: protobuf hands them out as bytes."""
    if isinstance(holder, onnx.NodeProto):
        names = [holder.op_type, holder.domain, holder.name, *holder.input, *holder.output]
        names += [attribute.name for attribute in holder.attribute]
    else:
        lists = (holder.initializer, holder.input, holder.output, holder.value_info)
        names = [holder.name, *(entry.name for entries in lists for entry in entries)]
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"the name {name!r} is not text", why="it is not UTF-8", instead="export the model again")


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)


def _negative(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """The sizes below zero that a type declares: exporters write -1 where a size is unknown."""
    return (dim for dim in kind.tensor_type.shape.dim if dim.dim_value < 0)


def _is_map(kind: onnx.TypeProto) -> bool:
    """Whether a type is a map, or a sequence of maps."""
    inner = kind.WhichOneof("value")
    return inner == "map_type" or (inner == "sequence_type" and _is_map(kind.sequence_type.elem_type))


def _check_and_densify(holder: onnx.GraphProto | onnx.NodeProto) -> None:
    """Checks the tensors of a graph or node, writes its sparse ones dense, and leaves undeclared what says nothing: the
    types of maps, and negative sizes.
    """
    if isinstance(holder, onnx.GraphProto):
        for value in _values(holder):
            if _is_map(value.type):
                value.ClearField("type")
            for dim in _negative(value.type):
                dim.ClearField("dim_value")
        holder.initializer.extend(map(_dense, holder.sparse_initializer))
        del holder.sparse_initializer[:]
        for tensor in holder.initializer:
            _check_data(tensor)
        return
    for attribute in holder.attribute:
        if attribute.HasField("sparse_tensor"):
            dense = _dense(attribute.sparse_tensor)
            attribute.ClearField("sparse_tensor")
            attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(dense)
        if attribute.HasField("t"):
            _check_data(attribute.t, where=f"node `{holder.name}` ({holder.op_type})")


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    name, shape = sparse.values.name, tuple(sparse.dims)
    _check_data(sparse.values)
    _check_data(sparse.indices)
    size = math.prod(shape)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    flat = np.ravel_multi_index(tuple(indices.T), shape, mode="clip") if indices.ndim == 2 else indices
    inside = not flat.size or (flat.min() >= 0 and flat.max() < size)
    if min(shape, default=1) < 0 or size > LARGEST_DENSE or not inside:
        raise ModelError(
            f"the sparse tensor `{name}` of shape {list(shape)} cannot be read",
            why=f"its indices lie outside its shape, or it has more than {LARGEST_DENSE} elements",
            instead="store it dense",
        )
    values = onnx.numpy_helper.to_array(sparse.values)
    dense = np.zeros(size, values.dtype)
    dense[flat] = values
    return onnx.numpy_helper.from_array(dense.reshape(shape), name)


_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_COMPLEX = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)


def _check_data(tensor: onnx.TensorProto, where: str = "") -> None:
    """Refuses a tensor that has more or less data than its shape asks for."""
    where = where or f"tensor `{tensor.name}`"
    dtype_of(tensor.data_type)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ModelError("strings cannot lie outside of a tensor", where=where, instead="export the model again")
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not entry.value.isdecimal():
                raise ModelError(
                    f"the {entry.key} `{entry.value}` of external data is no size",
                    where=where,
                    instead="export the model again",
                )
        return
    if any(size < 0 for size in tensor.dims):
        raise ModelError(
            f"the shape {list(tensor.dims)} has a negative size", where=where, instead="export the model again"
        )
    element = ir.DataType(tensor.data_type)
    count = math.prod(tensor.dims)
    if element == ir.DataType.STRING:
        given, wanted, unit = len(tensor.string_data), count, "elements"
    elif tensor.HasField("raw_data"):
        given, wanted, unit = len(tensor.raw_data), math.ceil(count * element.bitwidth / 8), "bytes"
    else:
        given, unit = sum(len(getattr(tensor, name)) for name in _TYPED_FIELDS), "elements"
        packed = 8 // element.bitwidth if element.bitwidth in (2, 4) else 1
        wanted = count * 2 if tensor.data_type in _COMPLEX else math.ceil(count / packed)
    if given != wanted:
        raise ModelError(
            f"the shape {list(tensor.dims)} of {element.name} needs {wanted} {unit}, the tensor has {given}",
            where=where,
            why="the file is truncated or damaged",
            instead="export the model again",
        )

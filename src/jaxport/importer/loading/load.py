"""Reading an ONNX model from a path, bytes, a `ModelProto` or an `onnx_ir.Model`.

A file is not trusted: its tensors pass through `jaxport.importer.loading.gate`. Large tensors are views of the file,
memory-mapped and read when they are used.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import onnx
import onnx.serialization
import onnx_ir as ir
from google.protobuf.message import DecodeError, Message

from jaxport.errors import AGAIN, InvalidArgument, ModelError
from jaxport.files import existing_file
from jaxport.importer.limits import Budget, Limits
from jaxport.importer.loading.frame import without_data
from jaxport.importer.loading.gate import Gate, tensors
from jaxport.importer.loading.lifting import has_hidden, lift
from jaxport.importer.loading.mapping import Buffer
from jaxport.importer.loading.ordering import in_order
from jaxport.jaxprs.identity import is_lent, owned


class HasModel(Protocol):
    """What holds a model, as the results of `to_onnx` do."""

    @property
    def model(self) -> ir.Model:
        """The model."""
        ...


ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | HasModel


def is_source(value: object) -> bool:
    """Whether `load` takes a value.

    >>> is_source("model.onnx"), is_source(len)
    (True, False)
    """
    is_file = isinstance(value, str | os.PathLike | bytes | onnx.ModelProto | ir.Model)
    return is_file or isinstance(getattr(value, "model", None), ir.Model)


def load(source: ModelSource, limits: Limits | None = None) -> ir.Model:
    """Load a model into memory, with its tensors checked.

    Args:
      source: the path of the model, its bytes, a `ModelProto`, an `onnx_ir.Model`, or what `to_onnx` returned.
      limits: its resource limits.

    Raises:
      InvalidArgument: a model cannot be read from `source`, or there is no such file.
      ModelError: the model is damaged or hostile; the message names the tensor or node.
    """
    limits = limits or Limits()
    if isinstance(model := getattr(source, "model", source), ir.Model):
        return _own_tensors(model, limits)
    if isinstance(source, str | os.PathLike):
        return _replaceable(Path(existing_file(source, "`from_onnx`")), limits)
    if isinstance(source, onnx.ModelProto):
        return _loaded(source, Gate(None, (), "the `ModelProto`", Budget(limits)), shared=True)
    if isinstance(source, bytes):
        buffer = Buffer(source)
        return _loaded(_parse(buffer, "the bytes"), Gate(buffer, (), "the bytes", Budget(limits)))
    raise InvalidArgument(
        f"a model cannot be read from an object of type `{type(source).__name__}`",
        where="`from_onnx`",
        instead="give a path, bytes, a `ModelProto`, an `onnx_ir.Model`, or what `to_onnx` returned",
    )


def unreadable(path: str | os.PathLike[str]) -> str:
    """Return why the file at a path is no ONNX model at all; an empty text if it is one, sound or not.

    >>> unreadable("missing.onnx")
    'there is no such file'
    """
    path = Path(path)
    if not path.exists():
        return "there is no such file"
    if not path.is_file():
        return "it is a folder" if path.is_dir() else "it is not a regular file"
    try:
        proto = _as_text(path) or _parse(Buffer(path), f"`{path}`")
    except (ModelError, OSError) as error:
        return error.why if isinstance(error, ModelError) else error.strerror or str(error)
    return "" if proto.HasField("graph") else "it has no graph: it is truncated, or something else"


def _own_tensors(model: ir.Model, limits: Limits) -> ir.Model:
    """Return the model, or a copy of it whose external tensors passed the gate, and whose weights are initializers."""
    gate = Gate(None, (), "the `onnx_ir.Model`", Budget(limits))
    external = gate.has_external(model)
    if not external and not has_hidden(model) and not any(_lent(model)):
        return in_order(model, own=False)
    copy = model.clone()
    for value, tensor in _lent(copy):
        value.const_value = ir.Tensor(owned(tensor.raw), tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)
    if external:
        gate.take(copy)
    lift(copy)
    return in_order(copy)


def _lent(model: ir.Model) -> Iterator[tuple[ir.Value, ir.Tensor]]:
    """Yield the initializers whose elements the user may still change."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.Tensor) and is_lent(tensor.raw):
                yield value, tensor


def _replaceable(path: Path, limits: Limits) -> ir.Model:
    """Load the model of a file, even if a save replaces it, and its data file, in the meantime."""
    while True:
        folders = path.parent.resolve(), path.resolve().parent
        if (proto := _as_text(path)) is not None:
            return _loaded(proto, Gate(None, folders, f"`{path}`", Budget(limits)))
        buffer = Buffer(path)
        try:
            return _loaded(_parse(buffer, f"`{path}`"), Gate(buffer, folders, f"`{path}`", Budget(limits)))
        except (ModelError, OSError):  # the data may vanish after it was located, and before it is opened
            if buffer.status is None or os.path.samestat(buffer.status, os.stat(path)):
                raise


def _loaded(proto: onnx.ModelProto, gate: Gate, shared: bool = False) -> ir.Model:
    """Load the model of a message, which is modified unless the user holds it too."""
    if not proto.HasField("graph"):
        raise ModelError(
            "the model has no graph",
            where=gate.origin,
            why="the file may be truncated, or may not be an ONNX model",
            instead="export it again",
        )
    _check_versions(proto, gate.origin)
    if shared and (
        _imports_twice(proto)
        or any(map(_is_foreign, _holders(proto)))
        or next(_remarks(proto), None) is not None
        or any(isinstance(f.tensor, onnx.SparseTensorProto) for f in tensors(proto))
    ):
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
    _import_once(proto)
    for holder in _holders(proto):
        _check_names(holder)
        _forget_empty_types(holder)
    _decode_remarks(proto)
    gate.pass_through(proto)
    model = ir.from_proto(proto)
    gate.take(model)
    lift(model)
    return in_order(model)


def _check_versions(proto: onnx.ModelProto, origin: str) -> None:
    """Refuse a file format that is newer than the installed onnx."""
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
    """Keep one version of each domain, the last one, as ONNX Runtime does (`""` and `ai.onnx` are one domain)."""
    for holder in (proto, *proto.functions):
        if _imports_twice(holder):
            versions = {entry.domain or "ai.onnx": entry.version for entry in holder.opset_import}
            del holder.opset_import[:]
            for domain, version in versions.items():
                holder.opset_import.add(domain="" if domain == "ai.onnx" else domain, version=version)


def _parse(data: Buffer, origin: str) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(without_data(data.view))
    except DecodeError as error:
        _refuse_others(bytes(data.view[:512]), origin)
        raise ModelError(
            "this is not an ONNX model",
            where=origin,
            why=f"it is truncated or damaged ({error})",
            instead="export it again",
        ) from error
    if not proto.HasField("graph"):
        _refuse_others(bytes(data.view[:512]), origin)
    return proto


OTHERS = (
    (rb"version https://git-lfs", "a pointer of Git LFS, which stands for the file", "run `git lfs pull`"),
    (rb"....ORTM", "a file of ONNX Runtime's own format (.ort)", "give the ONNX file that it was made of"),
    (rb"....TFL3", "a file of TensorFlow Lite", "convert it by tf2onnx: `python -m tf2onnx.convert --tflite`"),
    (rb"PK\x03\x04", "a zip archive, as those of `torch.save` and Keras are", "unpack it, or export the model to ONNX"),
    (
        rb"\s*<(!doctype|html|\?xml)",
        "a page of HTML or XML, as servers send in place of a file",
        "download the file itself",
    ),
    (rb"\x89HDF", "a file of HDF5, as those of Keras are", "export the model to ONNX"),
    (rb"\x1f\x8b", "compressed by gzip", "unpack it"),
    (rb"\x80[\x02-\x05]", "a pickle, as older files of `torch.save` are", "export the model to ONNX"),
    (rb".{7}\x00\{\"", "a file of safetensors: weights without a graph", "export the model to ONNX"),
)
"""Files that are taken for ONNX models: how they begin, what they are, and what to do."""


def _refuse_others(head: bytes, origin: str) -> None:
    """Refuse a file that is something else, by its name."""
    for pattern, what, instead in OTHERS:
        if re.match(pattern, head, re.IGNORECASE | re.DOTALL):
            raise ModelError("this is not an ONNX model", where=origin, why=f"it is {what}", instead=instead)


def _as_text(path: Path) -> onnx.ModelProto | None:
    """Return the model of a file that is text, as `onnx.load` reads it; None for others."""
    form = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    if form in (None, "protobuf"):
        return None
    data = path.read_bytes()
    _refuse_others(data[:512], f"`{path}`")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one of the formats says that it is experimental
            return onnx.serialization.registry.get(form).deserialize_proto(data, onnx.ModelProto())
    except Exception as error:  # each format has errors of its own
        why = f"it cannot be read as {form}: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"
        raise ModelError("this is not an ONNX model", where=f"`{path}`", why=why, instead="export it again") from error


def _holders(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.NodeProto]:
    """Yield all graphs and nodes of the model and its functions, outer ones first."""
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
    """Whether a graph has maps or negative sizes, which `onnx_ir` does not support."""
    return isinstance(holder, onnx.GraphProto) and any(
        _is_map(value.type) or any(True for _ in _negative(value.type)) for value in _values(holder)
    )


def _forget_empty_types(holder: onnx.GraphProto | onnx.NodeProto) -> None:
    """Remove declarations without content: the types of maps, and negative sizes."""
    for value in _values(holder) if isinstance(holder, onnx.GraphProto) else ():
        if _is_map(value.type):
            value.ClearField("type")
        for dim in _negative(value.type):
            dim.ClearField("dim_value")


def _check_names(holder: onnx.GraphProto | onnx.NodeProto) -> None:
    """Refuse names that are not UTF-8, which protobuf returns as bytes."""
    if isinstance(holder, onnx.NodeProto):
        names = [holder.op_type, holder.domain, holder.name, *holder.input, *holder.output]
        names += [attribute.name for attribute in holder.attribute]
    else:
        lists = (holder.initializer, holder.input, holder.output, holder.value_info)
        names = [holder.name, *(entry.name for entries in lists for entry in entries)]
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"the name {name!r} is not text", why="it is not UTF-8", instead=AGAIN)


def as_written(path: Path) -> ir.Model:
    """Return the model of a file, none of it checked or moved, for those who only show it."""
    proto = onnx.load(path, load_external_data=False)
    _decode_remarks(proto)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _decode_remarks(proto: onnx.ModelProto) -> None:
    """Make descriptions that are not UTF-8 text, with U+FFFD for what is none; names are refused instead."""
    for message, name in _remarks(proto):
        setattr(message, name, getattr(message, name).decode(errors="replace"))


def _remarks(proto: onnx.ModelProto) -> Iterator[tuple[Message, str]]:
    """Yield the texts that only describe the model and are not UTF-8, which protobuf returns as bytes, with what has
    them.
    """
    described: list[Message] = [proto, *proto.functions, *proto.training_info, *_holders(proto)]
    described += [
        value for holder in _holders(proto) if isinstance(holder, onnx.GraphProto) for value in _values(holder)
    ]
    described += list(proto.graph.initializer)
    for message in described:
        texts = [(message, name) for name in ("doc_string", "producer_name", "producer_version", "domain")]
        texts += [(entry, name) for entry in getattr(message, "metadata_props", ()) for name in ("key", "value")]
        yield from ((holder, name) for holder, name in texts if isinstance(getattr(holder, name, ""), bytes))


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)


def _negative(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the sizes below zero that a type declares: exporters write -1 for an unknown size."""
    return (dim for dim in kind.tensor_type.shape.dim if dim.dim_value < 0)


def _is_map(kind: onnx.TypeProto) -> bool:
    """Whether a type is a map, or a sequence of maps."""
    inner = kind.WhichOneof("value")
    return inner == "map_type" or (inner == "sequence_type" and _is_map(kind.sequence_type.elem_type))

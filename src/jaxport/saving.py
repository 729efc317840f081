"""Write a model, streamed from its arrays, and atomically.

A model is split into a *frame*, the protobuf message without the data of its large tensors, and those tensors. These
become a message in memory, one file, two files, or (in `jaxport.export.delivery.runtime`) a session; the bytes of a
weight are never held twice, whatever its memory layout.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import onnx
import onnx_ir as ir

from jaxport import files
from jaxport.errors import SaveError
from jaxport.phases import phase

#: The maximum size of a protobuf message in bytes.
PROTOBUF_LIMIT = 2**31 - 1
#: Tensors from this size on are kept out of the frame. Smaller ones may be shapes, which runtimes need at once.
LARGE = 1024
#: The number of bytes copied at a time from an array that is not in row-major order.
CHUNK = 2**24
#: Tensors from this size on start at a page of the external file, so that a runtime can map them.
PAGED, PAGE, ALIGNED = 2**16, 4096, 64

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER

#: The contents of files: bytes, and tensors whose data is streamed.
Piece: TypeAlias = "bytes | ir.TensorProtocol"


@dataclass(frozen=True)
class Frame:
    """A model, split into a message and its large tensors.

    Attributes:
      proto: the message without the large initializers of the main graph.
      headers: one message per large initializer, with its name, dtype and shape.
      tensors: their data, in the same order.
    """

    proto: onnx.ModelProto
    headers: list[onnx.TensorProto]
    tensors: list[ir.TensorProtocol]


class _Without:
    """A view of an object of `onnx_ir` with some attributes replaced, for the serializer."""

    def __init__(self, viewed: Any, **replaced: Any):
        self._viewed = viewed
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._viewed, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._viewed)


def frame(model: ir.Model) -> Frame:
    """Split a model without changing it."""
    initializers = model.graph.initializers
    large = {name: value.const_value for name, value in initializers.items() if _is_large(value.const_value)}
    small = {name: value for name, value in initializers.items() if name not in large}
    view: Any = _Without(model, graph=_Without(model.graph, initializers=small))
    headers = [
        onnx.TensorProto(name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
        for name, tensor in large.items()
    ]
    return Frame(ir.serde.serialize_model(view), headers, list(large.values()))


def _is_large(tensor: ir.TensorProtocol | None) -> TypeGuard[ir.TensorProtocol]:
    return tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes >= LARGE


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as a protobuf message.

    Raises:
      SaveError: it is larger than protobuf allows.
    """
    parts = frame(model)
    if sum(tensor.nbytes for tensor in parts.tensors) > PROTOBUF_LIMIT:
        raise SaveError(
            "the model is larger than the 2 GB of a protobuf message",
            where="`exported.proto`",
            instead="write it with `exported.save(path)`, or take `exported.model`",
        )
    for header, tensor in zip(parts.headers, parts.tensors, strict=True):
        initializer = parts.proto.graph.initializer.add()
        initializer.CopyFrom(header)
        initializer.raw_data = tensor.tobytes()
    return parts.proto


def save(model: ir.Model, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
    """Write a model to `path`, and its weights to a separate file if `external_data` is set or they exceed 2 GB.

    The data file is called `<path>.<digest of its content>.data`. Afterwards either the new pair exists, or the old one
    unchanged.

    Raises:
      SaveError: the path cannot be written, the disk is full, or the model is too large for one file.
    """
    parts = frame(model)
    pieces = _message(parts)
    if not external_data and sum(map(_size, pieces)) > PROTOBUF_LIMIT:
        if external_data is False:
            raise SaveError(
                "a model above 2 GB cannot be one file", where=f"`{path}`", instead="leave `external_data` out"
            )
        external_data = True
    beside = external_data and parts.tensors
    with phase("Saving", sum(map(_size, pieces))) as advance:
        files.publish(
            path,
            lambda file, data: _write(file, _message(_external(parts, data)) if data else pieces, advance),
            (lambda file: _write(file, _aligned(parts.tensors), advance)) if beside else None,
        )


def save_folder(
    models: Mapping[str, ir.Model],
    folder: str | os.PathLike[str],
    texts: Mapping[str, str],
    external_data: bool | None = None,
) -> None:
    """Write models into a folder, and then some texts that describe them, all by the names of the files.

    Args:
      folder: it is made, if there is none, in a folder that exists; other files in it stay.

    Raises:
      SaveError: the folder or a file in it cannot be written.
    """
    place = Path(files.checked_path(folder, "the folder"))
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise SaveError(
            f"the folder `{place}` cannot be created",
            why=error.strerror or str(error),
            instead="give a path in a folder that exists and is writable",
        ) from error
    for name, model in models.items():
        save(model, place / name, external_data)
    for name, text in texts.items():
        files.publish(place / name, functools.partial(_write_text, text))


def _write_text(text: str, path: Path, _data: str) -> None:
    path.write_bytes(text.encode())


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.nbytes


def _message(parts: Frame) -> list[Piece]:
    """Return the bytes of the whole model in the encoding of protobuf: the data of each tensor follows its header."""
    rest, graph = onnx.ModelProto(), parts.proto.graph.SerializeToString(deterministic=True)
    rest.CopyFrom(parts.proto)
    rest.ClearField("graph")
    inside: list[Piece] = [graph]
    for header, tensor in zip(parts.headers, parts.tensors, strict=True):
        start = header.SerializeToString(deterministic=True) + _field(_RAW_DATA, tensor.nbytes)
        inside += [_field(_INITIALIZER, len(start) + tensor.nbytes) + start, tensor]
    return [rest.SerializeToString(deterministic=True), _field(_GRAPH, sum(map(_size, inside))), *inside]


def _field(number: int, size: int) -> bytes:
    """Return the key and length that precede the `size` bytes of a field."""
    return _varint(number << 3 | 2) + _varint(size)


def _varint(number: int) -> bytes:
    """Encode a number in groups of seven bits, the lowest first, each but the last marked by its top bit."""
    groups = bytearray()
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def _external(parts: Frame, location: str) -> Frame:
    """Return the model with its large tensors in the file `location`, where `_aligned` puts them."""
    proto, position = onnx.ModelProto(), 0
    proto.CopyFrom(parts.proto)
    for header, tensor in zip(parts.headers, parts.tensors, strict=True):
        position += _gap(position, tensor)
        initializer = proto.graph.initializer.add()
        initializer.CopyFrom(header)
        refer(initializer, location, position, tensor.nbytes)
        position += tensor.nbytes
    return Frame(proto, [], [])


def refer(header: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Write into the header of a tensor where its data is."""
    header.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        header.external_data.add(key=key, value=str(value))


def _aligned(tensors: Iterable[ir.TensorProtocol]) -> Iterator[Piece]:
    """Yield the data of tensors, each at its place in the external file."""
    position = 0
    for tensor in tensors:
        gap = _gap(position, tensor)
        yield bytes(gap)
        yield tensor
        position += gap + tensor.nbytes


def _gap(position: int, tensor: ir.TensorProtocol) -> int:
    return -position % (PAGE if tensor.nbytes >= PAGED else ALIGNED)


def _write(path: Path, pieces: Iterable[Piece], advance: Callable[[int], None]) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            for chunk in [piece] if isinstance(piece, bytes) else chunks(piece):
                advance(file.write(chunk))


def chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a tensor as ONNX stores them; a chunk is only valid until the next one is requested.

    They are views of the tensor's memory, or copies of parts of it if it is not in row-major order.
    """
    if tensor.dtype.bitwidth < 8:  # several elements in a byte
        yield tensor.tobytes()
        return
    array = tensor.numpy()
    size = array.dtype.itemsize
    iterator: Any = np.nditer  # its stub lacks the flag `contig`
    bits = array.view(f"u{size}")  # and NumPy's `nditer` lacks bfloat16
    flags = ["external_loop", "buffered"]
    for chunk in iterator(bits, flags, ["readonly", "contig"], order="C", buffersize=CHUNK // size):
        yield memoryview(chunk).cast("B")

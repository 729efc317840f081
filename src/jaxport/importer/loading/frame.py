"""The protobuf frame of a model: the message without the data of its large tensors, which stays in the file.

Parsing a whole file holds each weight twice, in the file's bytes and in the message. Here the few fields that lead to
the weights (`graph`, `initializer`, `raw_data`) are walked by hand; the rest is small, and is parsed as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx

OWN_FILE = "\0"
"""The location of data in the model's own file; no file has this name."""

LARGE = 1024
"""The size in bytes from which on data stays in the file. Smaller tensors may be shapes, which are needed at once."""

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_EXTERNAL = (onnx.TensorProto.EXTERNAL_DATA_FIELD_NUMBER, onnx.TensorProto.DATA_LOCATION_FIELD_NUMBER)
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


class _Irregular(Exception):
    """The message is not laid out as serializers write it: the real parser decides whether it is an error."""


class _Field(NamedTuple):
    """A field of a message: its number, and the offsets of its key, of its content, and of its end."""

    number: int
    wire: int
    begin: int
    start: int
    stop: int


def without_data(data: memoryview) -> bytes:
    """Return the message in `data` with the data of each large initializer replaced by its offset.

    Such a tensor becomes an external one, whose `location` is `OWN_FILE`. A message that is not laid out as serializers
    write it is returned unchanged.

    >>> from onnx import numpy_helper
    >>> import numpy as np
    >>> model = onnx.ModelProto()
    >>> model.graph.initializer.extend([numpy_helper.from_array(np.ones(1000, np.float32), "w")])
    >>> len(model.SerializeToString()), len(without_data(memoryview(model.SerializeToString())))
    (4017, 59)
    """
    try:
        return b"".join(_model(data))
    except _Irregular:
        return bytes(data)


def _model(data: memoryview) -> Iterator[bytes]:
    graphs = 0
    for field in _fields(data, 0, len(data)):
        if field.number != _GRAPH:
            yield bytes(data[field.begin : field.stop])
            continue
        graphs += 1
        if graphs > 1 or field.wire != _BYTES:
            raise _Irregular
        content = b"".join(_graph(data, field))
        yield _key(_GRAPH) + _varint(len(content)) + content


def _graph(data: memoryview, graph: _Field) -> Iterator[bytes]:
    begin = graph.start  # start of what is copied unchanged
    for field in _fields(data, graph.start, graph.stop):
        if field.number != _INITIALIZER or field.stop - field.start < LARGE:
            continue
        if field.wire != _BYTES:
            raise _Irregular
        yield bytes(data[begin : field.begin])
        begin = field.stop
        content = _tensor(data, field)
        yield _key(_INITIALIZER) + _varint(len(content)) + content
    yield bytes(data[begin : graph.stop])


def _tensor(data: memoryview, tensor: _Field) -> bytes:
    fields = list(_fields(data, tensor.start, tensor.stop))
    raw = [field for field in fields if field.number == _RAW_DATA]
    if len(raw) != 1 or raw[0].wire != _BYTES or any(field.number in _EXTERNAL for field in fields):
        return bytes(data[tensor.start : tensor.stop])
    (place,) = raw
    rest = b"".join(bytes(data[field.begin : field.stop]) for field in fields if field is not place)
    header = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    entries = {"location": OWN_FILE, "offset": place.start, "length": place.stop - place.start}
    for key, value in entries.items():
        header.external_data.add(key=key, value=str(value))
    return rest + header.SerializeToString()


def _fields(data: memoryview, start: int, stop: int) -> Iterator[_Field]:
    position = start
    while position < stop:
        begin = position
        key, position = _read_varint(data, position, stop)
        wire, length = key & 7, 0
        if wire == _VARINT:
            _, position = _read_varint(data, position, stop)
        elif wire == _BYTES:
            length, position = _read_varint(data, position, stop)
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise _Irregular
        if position + length > stop or key >> 3 == 0:
            raise _Irregular
        yield _Field(key >> 3, wire, begin, position, position + length)
        position += length


def _read_varint(data: memoryview, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while position < stop and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _Irregular


def _key(number: int) -> bytes:
    return _varint(number << 3 | _BYTES)


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])

"""Tensors whose data stays in a file, or in the bytes that a model was given as, until it is used."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir

from jaxport.errors import ModelError
from jaxport.importer.frame import OWN_FILE

__all__ = ["Buffer", "MappedTensor", "map_tensors"]


class Buffer:
    """Bytes that tensors are views of: those of a file, mapped into memory, or those that the user gave.

    Args:
      data: the bytes, or the path of the file.
    """

    def __init__(self, data: bytes | Path):
        self._file: mmap.mmap | None = None
        if isinstance(data, Path):
            with data.open("rb") as file:
                if os.fstat(file.fileno()).st_size:
                    self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.view = memoryview(self._file or b"")
        else:
            self.view = memoryview(data)

    def __len__(self) -> int:
        return len(self.view)

    def array(self, offset: int, length: int) -> np.ndarray:
        """Some of the bytes, read-only."""
        return np.frombuffer(self.view, np.uint8, length, offset)

    def release(self, offset: int, length: int) -> None:
        """Gives back the memory that reading some of the bytes of a file took; they can be read again."""
        if self._file is not None and hasattr(mmap, "MADV_DONTNEED"):
            begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (offset + length - begin) // mmap.PAGESIZE * mmap.PAGESIZE
            if length > 0:
                self._file.madvise(mmap.MADV_DONTNEED, begin, length)


class MappedTensor(ir.Tensor):
    """A tensor that is a read-only view of a buffer."""

    def __init__(self, buffer: Buffer, offset: int, like: ir.TensorProtocol):
        self.buffer, self.offset = buffer, offset
        data = buffer.array(offset, like.nbytes)
        dtype = np.dtype(like.dtype.numpy())
        shape = like.shape.numpy()
        if like.dtype.bitwidth < 8:
            array = ir.PackedTensor(data, like.dtype, shape=ir.Shape(shape)).numpy()
        else:
            array = data.view(dtype).reshape(shape)
        super().__init__(array, like.dtype, name=like.name)

    def release(self) -> None:
        """Gives back the memory that reading the tensor took."""
        self.buffer.release(self.offset, self.nbytes)


def map_tensors(model: ir.Model, own: Buffer | None, folders: Sequence[Path], origin: str) -> None:
    """Puts mapped tensors in the place of the external ones, after checking that their data is there.

    Args:
      model: the model.
      own: the model's own bytes.
      folders: where data files may be: beside the model, and beside the file that it is a link to.
      origin: what messages call the model.

    Raises:
      ModelError: a file is missing, too short, or outside of the folder, or the model has none.
    """
    buffer_of = cache(Buffer)
    for graph in _graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _mapped(value.const_value, own, folders, origin, buffer_of)
        for node in graph:
            for attribute in list(node.attributes.values()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    tensor = _mapped(attribute.value, own, folders, origin, buffer_of)
                    node.attributes[attribute.name] = ir.AttrTensor(attribute.name, tensor)


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield from (function.graph, *function.subgraphs())


def _mapped(
    tensor: ir.ExternalTensor,
    own: Buffer | None,
    folders: Sequence[Path],
    origin: str,
    buffer_of: Callable[[Path], Buffer],
) -> MappedTensor:
    where = f"tensor `{tensor.name}`"
    if any(size < 0 for size in tensor.shape.numpy()):
        raise ModelError(f"the shape {tensor.shape} has a negative size", where=where, instead="export the model again")
    offset, length = tensor.offset or 0, tensor.length or tensor.nbytes
    if tensor.location == OWN_FILE:
        if own is None or length != tensor.nbytes or offset + length > len(own):
            raise ModelError(
                f"the shape {tensor.shape} of {tensor.dtype.name} needs {tensor.nbytes} bytes, the tensor has {length}",
                where=where,
                why="the file is truncated or damaged",
                instead="export the model again",
            )
        return MappedTensor(own, offset, tensor)
    if not folders:
        raise ModelError(
            f"the data of a tensor lies in the file `{tensor.location}`",
            where=where,
            why=f"of {origin} no folder is known that the file could be in",
            instead="give `from_onnx` the path of the model",
        )
    buffer = buffer_of(_located(os.fspath(tensor.location), folders, where))
    if offset < 0 or offset + tensor.nbytes > len(buffer) or length != tensor.nbytes:
        raise ModelError(
            f"`{tensor.location}` is too short",
            where=where,
            why=f"its {tensor.nbytes} bytes at {offset} do not match the file's {len(buffer)} bytes "
            f"or the stated length {tensor.length}",
            instead="copy the data file again",
        )
    return MappedTensor(buffer, offset, tensor)


def _located(location: str, folders: Sequence[Path], where: str) -> Path:
    """The data file at a relative path, which may be a link, but only to a file in one of the folders."""
    named = not os.path.isabs(location) and "\0" not in location
    paths = [path for path in (folder / location for folder in folders) if named and _lies_in(path, folders)]
    if not paths:
        raise ModelError(
            f"external data at `{location}` is refused".replace("\0", "\\0"),
            where=where,
            why="it lies outside the model's folder",
            instead="keep the data file beside the model, with a relative path",
        )
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ModelError(
            f"the data file `{location}` is missing",
            where=where,
            instead=f"put it into `{folders[0]}`, beside the model",
        )
    return found


def _lies_in(path: Path, folders: Sequence[Path]) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(folder) for folder in folders)

"""Tensors whose data stays in a file, or in the bytes of the model, until it is used."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import unpacked


class Buffer:
    """Bytes that tensors are views of: those of a memory-mapped file, or the user's.

    Args:
      data: the bytes, or the path of the file.

    Attributes:
      status: that of the file when it was opened. While it is mapped, no other file gets its inode number.
    """

    def __init__(self, data: bytes | Path):
        self._file: mmap.mmap | None = None
        self.status: os.stat_result | None = None
        if isinstance(data, Path):
            with data.open("rb") as file:
                self.status = os.fstat(file.fileno())
                if not stat.S_ISREG(self.status.st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file", str(data))
                if self.status.st_size:
                    self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.view = memoryview(self._file or b"")
        else:
            self.view = memoryview(data)

    def __len__(self) -> int:
        return len(self.view)

    def array(self, offset: int, length: int) -> np.ndarray:
        """Return some of the bytes, read-only."""
        return np.frombuffer(self.view, np.uint8, length, offset)

    def release(self, offset: int, length: int) -> None:
        """Free the memory that reading some bytes of a file took; they can be read again."""
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
            array = unpacked(data, like.dtype, shape)
        else:
            array = data.view(dtype).reshape(shape)
        super().__init__(array, like.dtype, name=like.name)

    def release(self) -> None:
        """Free the memory that reading the tensor took."""
        self.buffer.release(self.offset, self.nbytes)

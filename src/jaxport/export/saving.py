"""Writing a model: streamed from the arrays that JAX holds, and all or nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from jaxport.errors import SaveError

if TYPE_CHECKING:
    import onnx

#: A protobuf message cannot be larger; some room is left for the graph itself.
PROTOBUF_LIMIT = 2**31 - 2**24


def weight_bytes(model: ir.Model) -> int:
    """The bytes of all initializers."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a protobuf message.

    Raises:
      SaveError: it is larger than protobuf allows.
    """
    if weight_bytes(model) > PROTOBUF_LIMIT:
        raise SaveError(
            "the model is larger than the 2 GB of a protobuf message", instead="write it with `exported.save(path)`"
        )
    return ir.to_proto(model)


def save(model: ir.Model, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
    """Write a model to `path`, and its weights beside it where `external_data`, or where they exceed 2 GB."""
    path = Path(path)
    large = weight_bytes(model) > PROTOBUF_LIMIT
    if external_data is False and large:
        raise SaveError("a model above 2 GB cannot be one file", where=str(path), instead="leave `external_data` out")
    beside = f"{path.name}.data" if (external_data or large) else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".jaxport-") as folder:
            ir.save(model, Path(folder) / path.name, external_data=beside)
            if beside is not None and (Path(folder) / beside).exists():
                os.replace(Path(folder) / beside, path.parent / beside)
            os.replace(Path(folder) / path.name, path)
    except OSError as error:
        raise SaveError(
            f"`{path}` cannot be written",
            where=str(path.parent),
            why=error.strerror or str(error),
            instead="give a path in a folder that exists, may be written, and has room",
        ) from error

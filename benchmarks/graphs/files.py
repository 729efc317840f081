"""The two files of a pair: `jaxport`'s, and PyTorch's, which is kept without its weights."""

from __future__ import annotations

import json
import logging
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import jaxport
from benchmarks.graphs.pairs import Pair
from examples.models.example import Example, Size

DRAWN_FROM = 10_000
"""Of so many elements on, the weights of a file are drawn again."""
_MARK = "mean and deviation: "


def write_ours(pair: Pair, example: Example, path: Path) -> None:
    """Export the JAX side."""
    jaxport.to_onnx(example.fn, list(example.inputs), **example.options, **pair.options).save(path)


def write_theirs(pair: Pair, size: Size, opset: int | None, path: Path) -> None:
    """Export the PyTorch side, by default in the operator set that PyTorch chooses; keep it without its weights."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    example, network = pair.make(size), pair.network(size)
    # PyTorch takes a dim of 1 for a fixed one, and traces a recurrent layer step by step.
    open_sizes = {name: 4 + 3 * place for place, name in enumerate(pair.sizes)}
    fixed = {name: number for name, number in pair.dims(example, size).items() if name in pair.fixed}
    arrays = pair.arrays(pair.arguments(example, open_sizes | fixed))
    tensors = [torch.from_numpy(np.array(x)) for x in arrays]
    # Indices are int64 in PyTorch.
    tensors = tuple(x.long() if x.dtype == torch.int32 else x for x in tensors)
    axes = tuple(pair.axes(example))
    program = torch.onnx.export(network, tensors, dynamo=True, dynamic_shapes=axes, opset_version=opset, verbose=False)
    assert program is not None, "PyTorch returns a program where it is asked for `dynamo`"
    save_without_weights(program.model_proto, sum(x.numel() for x in network.parameters()), path)


def save_without_weights(model: onnx.ModelProto, parameters: int, path: Path) -> None:
    """Save a model, of which the weights are forgotten; beside the file, what it had."""
    about = {"parameters": parameters, "bytes": model.ByteSize()}
    for tensor in model.graph.initializer:
        _forget(tensor)
    onnx.save(model, path)
    path.with_suffix(".json").write_text(json.dumps(about))


def restore(path: Path, restored: Path) -> dict[str, Any]:
    """Write a file of `save_without_weights` with others of the same means and deviations; return what it had."""
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        _draw(tensor)
    onnx.save(proto, restored)
    return json.loads(path.with_suffix(".json").read_text())


def _forget(tensor: onnx.TensorProto) -> None:
    values = onnx.numpy_helper.to_array(tensor)
    if values.dtype == np.float32 and values.size >= DRAWN_FROM and np.isfinite(values).all():
        tensor.doc_string = f"{_MARK}{float(values.mean())} {float(values.std())}"
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")


def _draw(tensor: onnx.TensorProto) -> None:
    if tensor.doc_string.startswith(_MARK):
        mean, deviation = map(np.float32, tensor.doc_string.removeprefix(_MARK).split())
        random = np.random.default_rng(zlib.crc32(tensor.name.encode()))
        tensor.raw_data = (mean + deviation * random.standard_normal(tuple(tensor.dims), np.float32)).tobytes()
        tensor.doc_string = ""

"""One pair measured: run in a process of its own by `benchmarks.bench_graphs`."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
from flax import nnx

from benchmarks.graphs.files import restore, write_ours
from benchmarks.graphs.pairs import PAIRS
from benchmarks.measure import in_turns
from examples.models.example import Size
from jaxport.export.delivery.runtime import Session


def compared(name: str, kept: Path, repeats: int, size: Size = "real") -> dict[str, Any]:
    """Both sides in ONNX Runtime: CPU milliseconds, nodes by operator as written and as optimized, sizes.

    Raises:
      AssertionError: the sides differ in their parameters, or in the shapes of their outputs.
    """
    pair = PAIRS[name]
    example = pair.make(size)
    arrays = pair.arrays(pair.arguments(example, pair.dims(example, size)))
    with tempfile.TemporaryDirectory() as temporary:
        ours, theirs = Path(temporary) / "ours.onnx", Path(temporary) / "theirs.onnx"
        about = restore(kept, theirs)
        write_ours(pair, example, ours)
        expected = example.parameters + pair.biases(pair.configs[size])
        assert expected == about["parameters"], f"{name}: {expected:,} and {about['parameters']:,} parameters"
        calls = [called(path, arrays) for path in (ours, theirs)]
        shapes = [[x.shape for x in call()] for call in calls]
        assert shapes[0] == shapes[1], f"{name}: outputs of the shapes {shapes[0]} and {shapes[1]}"
        milliseconds = in_turns(calls, repeats)
        return {
            "parameters": example.parameters,
            "ours": milliseconds[0],
            "theirs": milliseconds[1],
            "bytes": {"ours": ours.stat().st_size, "theirs": about["bytes"]},
            "nodes": {path.stem: operators(onnx.load(path)) for path in (ours, theirs)},
            "optimized": {path.stem: optimized(path) for path in (ours, theirs)},
        }


def in_jax(name: str, repeats: int, size: Size = "real") -> float:
    """CPU milliseconds of a jitted call."""
    pair = PAIRS[name]
    example = pair.make(size)
    arguments = jax.device_put(pair.arguments(example, pair.dims(example, size)))
    compiled = jax.jit(_traceable(example.fn)).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    (milliseconds,) = in_turns([lambda: jax.block_until_ready(compiled(*arguments))], repeats)
    return milliseconds


def _traceable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or one that makes an NNX module inside of the trace, where its counters may change."""
    if not isinstance(fn, nnx.Module):
        return fn
    graphdef, state = nnx.split(fn)
    return lambda *arguments: nnx.merge(graphdef, state, copy=True)(*arguments)


def called(path: Path, arrays: list[np.ndarray]) -> Callable[[], list[np.ndarray]]:
    """A call of a file in ONNX Runtime on one thread, with arrays in the order of its inputs, in its integer types."""
    session = Session(path, threads=1)
    inputs = {value.name: value.type.tensor_type for value in onnx.load(path).graph.input}
    dtypes = [onnx.helper.tensor_dtype_to_np_dtype(inputs[name].elem_type) for name in session.input_names]
    fed = {name: x.astype(dtype) for name, dtype, x in zip(session.input_names, dtypes, arrays, strict=True)}
    return lambda: session.run(fed)


def operators(model: onnx.ModelProto) -> dict[str, int]:
    """How many nodes there are of each operator, those in the bodies of others too; constants are none."""
    return dict(Counter(node.op_type for node in _nodes(model.graph) if node.op_type != "Constant"))


def optimized(path: Path) -> dict[str, int]:
    """The same of the graph that ONNX Runtime makes of a file when it loads it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    weights = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{weights}file_name", f"{path.stem}.optimized.data")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return operators(onnx.load(options.optimized_model_filepath, load_external_data=False))


def _nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)

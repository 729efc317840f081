"""One pair measured: run in a process of its own by `benchmarks.bench_graphs`."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime

from benchmarks.graphs.files import restore, write_ours
from benchmarks.graphs.pairs import PAIRS, Pair
from benchmarks.measure import in_turns
from examples.models.example import Example, Size
from jaxport.verify.runtime import Session


def compared(name: str, theirs: Path, repeats: int, size: Size = "real") -> dict[str, Any]:
    """Both sides in ONNX Runtime: CPU milliseconds, nodes by operator as written and as optimized, sizes.

    Raises:
      AssertionError: the sides differ in their parameters, or in the shapes of their outputs.
    """
    pair = PAIRS[name]
    example = pair.make(size)
    with tempfile.TemporaryDirectory() as temporary:
        paths = {side: Path(temporary) / f"{side}.onnx" for side in ("ours", "theirs")}
        about = restore(theirs, paths["theirs"])
        write_ours(pair, example, paths["ours"])
        assert example.parameters + pair.biases(pair.configs[size]) == about["parameters"], (example.parameters, about)
        arrays = pair.arrays(pair.arguments(example, pair.sizes))
        sessions = {side: Session(path, threads=1) for side, path in paths.items()}
        fed = {side: _fed(session, path, arrays) for (side, path), session in zip(paths.items(), sessions.values())}
        shapes = [[x.shape for x in sessions[side].run(fed[side])] for side in paths]
        assert shapes[0] == shapes[1], f"{name}: outputs of different shapes: {shapes}"
        calls = [lambda side=side: sessions[side].run(fed[side]) for side in paths]
        ours, theirs_ms = in_turns(calls, repeats)
        return {
            "ours": ours, "theirs": theirs_ms, "parameters": example.parameters,
            "bytes": {"ours": paths["ours"].stat().st_size, "theirs": about["bytes"]},
            "nodes": {side: operators(onnx.load(path)) for side, path in paths.items()},
            "optimized": {side: optimized(path) for side, path in paths.items()},
        }  # fmt: skip


def in_jax(name: str, repeats: int, size: Size = "real") -> float:
    """CPU milliseconds of a jitted call."""
    pair = PAIRS[name]
    example = pair.make(size)
    arguments = jax.device_put(pair.arguments(example, pair.sizes))
    called = jax.jit(example.fn).lower(*arguments).compile()
    call = lambda: jax.block_until_ready(called(*arguments))
    call()
    (milliseconds,) = in_turns([call], repeats)
    return milliseconds


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


def _fed(session: Session, path: Path, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by the names of a file's inputs, in its integer types."""
    inputs = onnx.load(path, load_external_data=False).graph.input
    assert [value.name for value in inputs] == session.input_names
    types = [onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in inputs]
    return {name: x.astype(dtype) for name, dtype, x in zip(session.input_names, types, arrays, strict=True)}

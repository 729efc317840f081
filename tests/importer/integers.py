"""Integer arithmetic at the edges, by every path: run in a process of its own, since a wrong one ends it with SIGFPE.

`python -m tests.importer.integers int64 uint8` prints a line for each case that it begins, and for each difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from jaxport import from_onnx, to_onnx
from tests.importer.printed import load

DTYPES = ("int8", "int32", "int64", "uint8", "uint32", "uint64")
SHIFTED = ("uint8", "uint32", "uint64")
POWERS = ("int32", "int64")


class Operation(NamedTuple):
    """An operator of two integers, what it is defined to be here, and the dtypes it has."""

    op: str
    expected: Callable[[int, int], int]
    dtypes: tuple[str, ...]
    attributes: Mapping[str, Any] = MappingProxyType({})


def quotient(x: int, y: int) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def power(x: int, y: int) -> int:
    return x**y if y >= 0 else x ** (y % 2) if abs(x) == 1 else 0


OPERATIONS = [
    Operation("Div", quotient, DTYPES),
    Operation("Mod", lambda x, y: x % y if y else 0, DTYPES),
    Operation("Mod", lambda x, y: x - quotient(x, y) * y if y else 0, DTYPES, {"fmod": 1}),
    Operation("BitShift", lambda x, y: x << y if y < 64 else 0, SHIFTED, {"direction": "LEFT"}),
    Operation("BitShift", lambda x, y: x >> y, SHIFTED, {"direction": "RIGHT"}),
    Operation("Pow", power, POWERS),
]


def edges(operation: Operation, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of the numbers where integer arithmetic is special."""
    limits = np.iinfo(dtype)
    numbers = sorted(
        {n for n in (limits.min, limits.min + 1, -3, -2, -1, 0, 1, 2, 3, 7, limits.max) if n >= limits.min}
    )
    seconds = (-3, -2, -1, 0, 1, 2, 6, 62, 63, 64) if operation.op == "Pow" else numbers
    if operation.op == "BitShift":
        seconds = (0, 1, limits.bits - 1, limits.bits, limits.bits + 1)
    # The lowest bits of large odd powers are nobody's definition.
    pairs = [
        (x, y) for x in numbers for y in seconds if operation.op != "Pow" or y < 64 or x in (0, 1, -1) or x % 2 == 0
    ]
    return tuple(np.array(side, dtype) for side in zip(*pairs, strict=True))  # type: ignore[return-value]


def models(operation: Operation, x: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The operator on constants, on a constant by nothing that is visibly one, on large constants and on inputs."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    info = helper.make_tensor_value_info
    node = helper.make_node(operation.op, ["x", "y"], ["z"], **operation.attributes)
    nothing = helper.make_node("Sub", ["y", "y"], ["zero"])
    by_nothing = helper.make_node(operation.op, ["x", "zero"], ["z"], **operation.attributes)
    for name, nodes, arrays, inputs in (
        ("constants", [node], {"x": x, "y": y}, []),
        ("an input by a constant", [node], {"y": y}, ["x"]),
        ("inputs", [node], {}, ["x", "y"]),
        ("large constants", [node], {"x": np.tile(x, 99), "y": np.tile(y, 99)}, []),
        ("a constant by a zero that only XLA sees", [nothing, by_nothing], {"x": x}, ["y"]),
    ):
        weights = [numpy_helper.from_array(value, key) for key, value in arrays.items()]
        graph = helper.make_graph(
            nodes, "g", [info(key, kind, x.shape) for key in inputs], [info("z", kind, None)], weights
        )
        yield name, helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def results(model: onnx.ModelProto, arguments: dict[str, np.ndarray]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways to run a model."""
    program = from_onnx(model)
    yield "called", lambda: program(**arguments)
    yield "closed over", lambda: jax.jit(lambda: program(**arguments))()
    specs = {key: jax.ShapeDtypeStruct(value.shape, value.dtype) for key, value in arguments.items()}
    yield "printed", lambda: _printed(program, specs, arguments)
    yield "exported", lambda: _exported(program, specs, arguments)


def _printed(program: Any, specs: dict[str, Any], arguments: dict[str, np.ndarray]) -> Any:
    module = load(program.to_source(inputs=specs, framework="jax"))
    return jax.jit(lambda: module.model(module.params, *arguments.values()))()


def _exported(program: Any, specs: dict[str, Any], arguments: dict[str, np.ndarray]) -> Any:
    proto = to_onnx(program, list(specs.values())).proto
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return session.run(None, dict(zip(names, arguments.values(), strict=True)))[0]


def wrapped(numbers: list[int], dtype: np.dtype) -> np.ndarray:
    """The numbers that are left of these if a dtype holds the lowest bits only."""
    mask = (1 << dtype.itemsize * 8) - 1
    return np.array([number & mask for number in numbers], np.uint64).astype(dtype)


def main(*chosen: str) -> None:
    for operation in OPERATIONS:
        for dtype in (np.dtype(name) for name in operation.dtypes if name in (chosen or DTYPES)):
            x, y = edges(operation, dtype)
            for how, model in models(operation, x, y):
                divisors = np.zeros_like(y) if "zero" in how else y
                pairs = [(int(a), int(b)) for a, b in zip(x, divisors, strict=True)]
                expected = wrapped([operation.expected(*pair) for pair in pairs], dtype)
                arguments = {given.name: {"x": x, "y": y}[given.name] for given in model.graph.input}
                for way, run in results(model, arguments):
                    print("begins", operation.op, operation.attributes, dtype, how, way, flush=True)
                    result = np.asarray(run())
                    for pair, got, wanted in zip(pairs, result, expected, strict=False):
                        if got != wanted:
                            print(f"differs: {pair} gives {got}, not {wanted}", flush=True)
                            break


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(*sys.argv[1:])

"""Types of few bits, which Burn lacks, and sequences: crates compute what JAX does, in wider types that have the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jaxport.codegen.burn.values import HELD
from tests.burn.crates import Built, RunError, build, case_of, crate_and_results, narrowed

pytestmark = pytest.mark.burn

FLOATS = [name for name, holder in HELD.items() if holder == "float32"]
INTEGERS = [name for name, holder in HELD.items() if holder != "float32"]
OPSET = 25


class File(NamedTuple):
    """A model, and inputs by name."""

    model: onnx.ModelProto
    inputs: Mapping[str, Any]


def element_type(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(jnp.dtype(dtype))


def model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, str],
    weights: Mapping[str, np.ndarray] | None = None,
) -> File:
    """Return a model whose inputs have the types of arrays, a single one open sizes; outputs have the types that are named."""
    given = [
        helper.make_tensor_value_info(
            key,
            element_type(value.dtype.name),
            [f"n{axis}" for axis in range(value.ndim)] if len(inputs) == 1 else value.shape,
        )
        for key, value in inputs.items()
    ]
    results = [helper.make_tensor_value_info(key, element_type(dtype), None) for key, dtype in outputs.items()]
    stored = [numpy_helper.from_array(value, key) for key, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "few_bits", given, results, stored)
    return File(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12), inputs)


def special(dtype: str) -> np.ndarray:
    """Return numbers around those of every type of few bits: halves between neighbours, the ends, and what is beyond them."""
    numbers = [
        0.0,
        -0.0,
        np.nan,
        np.inf,
        -np.inf,
        1e30,
        -1e30,
        1e-30,
        -1e-30,
        0.99,
        1.5,
        -1.5,
        464,
        465,
        61440,
        61441,
        248,
        247,
    ]
    for name in FLOATS:
        grid = np.arange(256, dtype=np.uint8).astype("uint8")
        grid = (grid if name.startswith("float8") else grid[:16]).view(jnp.dtype(name)).astype(np.float64)
        grid = np.unique(grid[np.isfinite(grid)])[::3]
        numbers += [*grid, *((grid[1:] + grid[:-1]) / 2), *np.nextafter((grid[1:] + grid[:-1]) / 2, np.inf)]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(numbers, np.float64).astype(jnp.dtype(dtype))


def casts(before: str, after: str, given: np.ndarray, **attributes: Any) -> File:
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=element_type(after), **attributes),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT),
    ]
    return model(nodes, {"x": given}, {"y": after, "z": "float32"})


WHOLE = {
    "int32": np.array([*range(-20, 21), 2**31 - 1, -(2**31), 255, 256, -257], np.int32),
    "int64": np.array([*range(-9, 10), 2**40 + 5, -(2**40) - 5], np.int64),
    "uint8": np.arange(0, 256, 5, dtype=np.uint8),
    "int8": np.arange(-128, 128, 5, dtype=np.int8),
    "bool": np.array([True, False]),
}
ALL = {name: np.arange(-20, 21).astype(np.int8).astype(jnp.dtype(name)) for name in INTEGERS}
ALL |= {name: np.linspace(-7, 7, 41).astype(jnp.dtype(name)) for name in FLOATS}


def moved(dtype: str) -> File:
    """A model that moves elements of an input and of weights, and chooses among them."""
    x, i = ALL[dtype][:12].reshape(3, 4), np.array([2, 0, -1])
    table = np.resize(ALL[dtype], (40, 4))
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Concat", ["x", "x"], ["joined"], axis=1),
        helper.make_node("Slice", ["joined", "one", "six", "axis"], ["cut"]),
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Reshape", ["rows", "sizes"], ["line"]),
        helper.make_node("Pad", ["x", "pads"], ["padded"]),
        helper.make_node("Where", ["mask", "x", "rows"], ["chosen"]),
    ]
    weights = {
        "table": table, "one": np.array([1]), "six": np.array([6]), "axis": np.array([1]), "sizes": np.array([-1]),
        "pads": np.array([0, 1, 2, 0]), "mask": np.array([[True], [False], [True]]),
    }  # fmt: skip
    return model(nodes, {"x": x, "i": i}, dict.fromkeys(("t", "cut", "line", "padded", "chosen"), dtype), weights)


def computed(dtype: str) -> File:
    """What is computed of all pairs of some numbers, and compared."""
    numbers = ALL[dtype][::2]
    x, y = (array.ravel() for array in np.meshgrid(numbers, numbers))
    y = np.where(y.astype(np.float32) == 0, np.ones_like(y), y)
    made = dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), dtype) | {"Less": "bool", "Equal": "bool"}
    alone = ("Abs", "Neg", "Sign", "Sqrt") if dtype in FLOATS else ("Neg", "Sign")
    nodes = [helper.make_node(name, ["x", "y"], [name.lower()]) for name in made]
    nodes += [helper.make_node(name, ["x"], [name.lower()]) for name in alone]
    results = made | dict.fromkeys(alone, dtype)
    return model(nodes, {"x": x, "y": y}, {name.lower(): result for name, result in results.items()})


def quantized(dtype: str) -> File:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], axis=0),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], axis=0),
        helper.make_node("DequantizeLinear", ["w", "scale"], ["v"], axis=0),
    ]
    x = np.random.default_rng(0).normal(0, 4, (3, 40)).astype(np.float32)
    x[0, :4] = [1e6, -1e6, 0, -0.0]
    w = np.resize(ALL[dtype], (3, 40))
    zero = np.zeros(3, jnp.dtype(dtype))
    inputs = {"x": x, "scale": np.array([0.1, 0.5, 2.0], np.float32)}
    return model(nodes, inputs, {"q": dtype, "y": "float32", "v": "float32"}, {"zero": zero, "w": w})


def in_a_loop(dtype: str) -> File:
    """A loop that carries elements of few bits, and halves them."""
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["c"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["wide", "wide"], ["half"]),
            helper.make_node("Cast", ["half"], ["next"], to=element_type(dtype)),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("at", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("c", element_type(dtype), ["n0"]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", element_type(dtype), ["n0"]),
            helper.make_tensor_value_info("half", TensorProto.FLOAT, ["n0"]),
        ],
    )
    loop = helper.make_node("Loop", ["count", "", "x"], ["y", "all"], body=body)
    return model([loop], {"x": ALL[dtype]}, {"y": dtype, "all": "float32"}, {"count": np.array(3)})


FILES: dict[str, File] = {
    **{
        f"{before} to {after}{'' if saturate else ', not saturated'}": casts(before, after, special(before), saturate=saturate)
        for before in ("float32", "float16", "bfloat16")
        for after in FLOATS
        for saturate in (1, 0)
    },
    **{
        f"float32 to float8_e8m0fnu, {way}": casts("float32", "float8_e8m0fnu", special("float32"), round_mode=way)
        for way in ("up", "down", "nearest")
    },
    **{
        f"float64 to {after}": casts("float64", after, special("float64")) for after in FLOATS if after != "float8_e8m0fnu"
    },
    **{f"{before} to {after}": casts(before, after, given) for before, given in WHOLE.items() for after in INTEGERS},
    **{f"{before} to {after}": casts(before, after, given) for before, given in ALL.items() for after in INTEGERS + FLOATS},
    **{f"moved {dtype}": moved(dtype) for dtype in HELD},
    **{f"computed {dtype}": computed(dtype) for dtype in HELD if dtype != "float8_e8m0fnu"},
    **{f"quantized {dtype}": quantized(dtype) for dtype in HELD if dtype != "float8_e8m0fnu"},
    **{f"a loop of {dtype}": in_a_loop(dtype) for dtype in ("float8_e4m3fn", "float4_e2m1fn", "int4", "uint2")},
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> tuple[Built, dict[str, dict[str, np.ndarray]]]:
    crates, expected = {}, {}
    for name, file in FILES.items():
        is_wide = any(value.dtype in (np.float64, np.int64) for value in file.inputs.values())
        crate, expected[name] = crate_and_results(file.model, file.inputs, is_wide=is_wide)
        crates[name] = case_of(crate, name)
    return build(crates, "few_bits"), expected


@pytest.mark.parametrize("name", FILES)
def test_numbers_are_those_of_the_type(name: str, compiled: tuple[Built, dict[str, dict[str, np.ndarray]]]) -> None:
    built, expected = compiled
    assert not built.errors.get(name), "\n".join(built.errors[name])
    assert not built.warnings.get(name), "\n".join(built.warnings[name])
    outputs = built.run(name, FILES[name].inputs)
    assert not isinstance(outputs, RunError), outputs.message
    for key, wanted in expected[name].items():
        found = narrowed(outputs[key], wanted.dtype)
        assert found.dtype == wanted.dtype
        wide = np.float64 if found.dtype.kind != "i" else found.dtype
        np.testing.assert_array_equal(found.astype(wide), wanted.astype(wide), key)
        if found.dtype.itemsize == 1 and wide is np.float64:
            signs = [np.signbit(array.astype(wide)) & ~np.isnan(array.astype(wide)) for array in (found, wanted)]
            np.testing.assert_array_equal(*signs, f"the signs of zeros in {key}")

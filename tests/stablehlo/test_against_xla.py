"""Operations at rare attributes: what XLA computes for the same module is what a program computes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo

import jaxport
from jaxport.jaxprs.releases import mlir_module
from jaxport.stablehlo.reading import dtype_of
from jaxport.stablehlo.tree import TensorType

SPECIAL = (0.0, -0.0, 1.5, -2.5, 0.5, np.nan, np.inf, -np.inf, 3e9, -3e9, 300.7, -1.0)


def module(signature: str, body: str) -> str:
    """The text of a module: the types of the arguments `%a`, `%b`, … and results, and the operations, which return `%r`."""
    arguments, results = (part.strip() for part in signature.split("->"))
    kinds, given = [kind for kind in arguments.split("; ") if kind], "abcdefg"
    listed = ", ".join(f"%{given[at]}: tensor<{kind}>" for at, kind in enumerate(kinds))
    types = [f"tensor<{kind}>" for kind in results.split("; ")]
    names = ["%r", "%s", "%t", "%u"][: len(types)]
    returned = f"return {', '.join(names)} : {', '.join(types)}"
    return f"func.func public @main({listed}) -> ({', '.join(types)}) {{\n{body}\n  {returned}\n}}"


def kind_of(text: str) -> TensorType:
    *sizes, dtype = text.split("x") if not text.endswith("complex<f32>") else [*text.split("x")[:-2], "complex<f32>"]
    sizes = [size for size in sizes if size]
    return TensorType(tuple(map(int, sizes)), dtype_of(dtype if dtype != "f32>" else "complex<f32>"))


def drawn(kind: TensorType, generator: np.random.Generator, is_special: bool) -> np.ndarray:
    count = int(np.prod(kind.shape))
    if kind.dtype.kind in "iu":
        limits = np.iinfo(kind.dtype)
        low, high = (limits.min, limits.max) if is_special else (max(-3, limits.min), 5)
        return generator.integers(low, high, kind.shape, dtype=kind.dtype, endpoint=True)
    if kind.dtype.kind == "b":
        return generator.integers(0, 2, kind.shape).astype(bool)
    if kind.dtype.kind == "c":
        return (generator.normal(size=(*kind.shape, 2)) @ [1, 1j]).astype(kind.dtype)
    values = np.resize(SPECIAL, count) if is_special else generator.integers(-4, 5, count)
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(kind.dtype).reshape(kind.shape)


def by_xla(text: str, arguments: list[np.ndarray], kinds: list[TensorType]) -> list[np.ndarray]:
    """What XLA computes: the module is put into an artifact of the same arguments and results."""
    made = lambda *_: tuple(jax.numpy.zeros(kind.shape, kind.dtype) for kind in kinds)
    artifact = jax.export.export(jax.jit(made, keep_unused=True))(*arguments)
    data = stablehlo.serialize_portable_artifact(mlir_module(text), stablehlo.get_current_version())
    data = data.encode() if isinstance(data, str) else data
    return [np.asarray(x) for x in dataclasses.replace(artifact, mlir_module_serialized=data).call(*arguments)]


def check(signature: str, body: str, *given: Any, is_special: bool = False) -> None:
    text, (arguments, results) = module(signature, body), signature.split("->")
    generator = np.random.default_rng(0)
    kinds = [kind_of(kind.strip()) for kind in arguments.split(";") if kind.strip()]
    rest = iter(given)
    values = [next(rest, None) for _ in kinds]
    values = [
        drawn(k, generator, is_special) if v is None else np.asarray(v, k.dtype)
        for k, v in zip(kinds, values, strict=True)
    ]
    with jax.enable_x64(True):
        wanted = by_xla(text, values, [kind_of(kind.strip()) for kind in results.split(";")])
        program = jaxport.from_stablehlo(text)
        found = jax.tree.leaves(program(*values))
        jitted = jax.tree.leaves(jax.jit(program)(*values))
    for want, *made in zip(wanted, found, jitted, strict=True):
        for got in map(np.asarray, made):
            assert got.dtype == want.dtype
            wide = np.complex128 if want.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=1e-5, atol=1e-5)


def reducer(operation: str, kind: str = "f32") -> str:
    return (
        f"({{\n ^bb0(%x: tensor<{kind}>, %y: tensor<{kind}>):\n  %o = stablehlo.{operation} %x, %y : tensor<{kind}>\n"
        f"  stablehlo.return %o : tensor<{kind}>\n}})"
    )


CASES: dict[str, tuple] = {}


def case(name: str, signature: str, body: str, *given: Any) -> None:
    assert name not in CASES
    CASES[name] = (signature, body, *given)


# -- moving ------------------------------------------------------------------------------------------------------------
for at, (low, high, interior) in enumerate([(-1, 2, 0), (-2, -1, 2), (0, -5, 3), (3, -1, 1), (-5, 0, 1)]):
    n = max(low + high + 3 + 2 * interior, 0)
    case(
        f"pad {at}",
        f"3xf32; f32 -> {n}xf32",
        f"%r = stablehlo.pad %a, %b, low = [{low}], high = [{high}], interior = [{interior}] : (tensor<3xf32>, tensor<f32>) -> tensor<{n}xf32>",
    )
for start in (-1, -7, 0, 2, 9):
    case(
        f"dynamic_slice {start}",
        "5x4xf32; i32; i32 -> 2x3xf32",
        "%r = stablehlo.dynamic_slice %a, %b, %c, sizes = [2, 3] : (tensor<5x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>",
        None,
        start,
        -start,
    )
    case(
        f"dynamic_update_slice {start}",
        "5x4xf32; 2x3xf32; i64; i64 -> 5x4xf32",
        "%r = stablehlo.dynamic_update_slice %a, %b, %c, %d : (tensor<5x4xf32>, tensor<2x3xf32>, tensor<i64>, tensor<i64>) -> tensor<5x4xf32>",
        None,
        None,
        start,
        2 - start,
    )
case(
    "dynamic_slice by unsigned",
    "5xf32; ui32 -> 2xf32",
    "%r = stablehlo.dynamic_slice %a, %b, sizes = [2] : (tensor<5xf32>, tensor<ui32>) -> tensor<2xf32>",
    None,
    2**32 - 1,
)
case(
    "slice with strides",
    "7x5xf32 -> 3x2xf32",
    "%r = stablehlo.slice %a [1:7:2, 0:5:3] : (tensor<7x5xf32>) -> tensor<3x2xf32>",
)
case("slice of nothing", "7xf32 -> 0xf32", "%r = stablehlo.slice %a [3:3] : (tensor<7xf32>) -> tensor<0xf32>")
case("reverse", "2x3x2xi32 -> 2x3x2xi32", "%r = stablehlo.reverse %a, dims = [0, 2] : tensor<2x3x2xi32>")
case(
    "broadcast_in_dim of a turned array",
    "3x1xf32 -> 2x4x3xf32",
    "%0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<3x1xf32>) -> tensor<1x3xf32>\n%r = stablehlo.broadcast_in_dim %0, dims = [1, 2] : (tensor<1x3xf32>) -> tensor<2x4x3xf32>",
)
case(
    "broadcast_in_dim of scrambled axes",
    "3x4xf32 -> 4x2x3xf32",
    "%r = stablehlo.broadcast_in_dim %a, dims = [2, 0] : (tensor<3x4xf32>) -> tensor<4x2x3xf32>",
)
case(
    "concatenate with nothing",
    "0x2xf32; 3x2xf32; 1x2xf32 -> 4x2xf32",
    "%r = stablehlo.concatenate %a, %b, %c, dim = 0 : (tensor<0x2xf32>, tensor<3x2xf32>, tensor<1x2xf32>) -> tensor<4x2xf32>",
)
case("iota of bytes", "-> 3x300xui8", "%r = stablehlo.iota dim = 1 : tensor<3x300xui8>")
case(
    "real_dynamic_slice",
    "6xf32; 1xi32; 1xi32; 1xi32 -> 2xf32",
    "%c0 = stablehlo.constant dense<1> : tensor<1xi32>\n%c1 = stablehlo.constant dense<5> : tensor<1xi32>\n%c2 = stablehlo.constant dense<2> : tensor<1xi32>\n%r = stablehlo.real_dynamic_slice %a, %c0, %c1, %c2 : (tensor<6xf32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<2xf32>",
)
for width, shape in (("i8", "2x4"), ("i16", "2x2"), ("i32", "2"), ("ui32", "2"), ("f16", "2x2"), ("bf16", "2x2")):
    case(
        f"bitcast_convert f32 to {width}",
        f"2xf32 -> {shape}x{width}",
        f"%r = stablehlo.bitcast_convert %a : (tensor<2xf32>) -> tensor<{shape}x{width}>",
    )
case(
    "bitcast_convert to wider",
    "3x8xui8 -> 3xf64",
    "%r = stablehlo.bitcast_convert %a : (tensor<3x8xui8>) -> tensor<3xf64>",
)

# -- conversions -------------------------------------------------------------------------------------------------------
KINDS = ("i1", "i8", "ui8", "i16", "i32", "ui32", "i64", "ui64", "f16", "bf16", "f32", "f64")
CONVERTED = [(x, y) for x in ("f32", "f64", "f16", "i32", "ui8", "i64", "i1") for y in KINDS if x != y]

# -- gathers and scatters ----------------------------------------------------------------------------------------------
case(
    "gather with batches, slices, permuted starts",
    "3x2x4x5xf32; 2x3x2xi32 -> 2x3x2x3xf32",
    '%r = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [1], start_index_map = [3, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 2, 3>}> : (tensor<3x2x4x5xf32>, tensor<2x3x2xi32>) -> tensor<2x3x2x3xf32>',
    None,
    [[[9, -1], [1, 1], [0, 0]], [[2, 5], [-4, 1], [1, 0]]],
)
case(
    "gather with vectors in the middle",
    "4x5xf32; 3x2x2xi32 -> 1x3x2x2xf32",
    '%r = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 3], start_index_map = [1, 0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}> : (tensor<4x5xf32>, tensor<3x2x2xi32>) -> tensor<1x3x2x2xf32>',
)
case(
    "gather of scalars by a scalar",
    "5xf32; i32 -> f32",
    '%r = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 0>, slice_sizes = array<i64: 1>}> : (tensor<5xf32>, tensor<i32>) -> tensor<f32>',
    None,
    3,
)
case(
    "gather by unsigned",
    "5xf32; 2x1xui8 -> 2xf32",
    '%r = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>}> : (tensor<5xf32>, tensor<2x1xui8>) -> tensor<2xf32>',
    None,
    [[255], [2]],
)
SCATTER = '%r = "stablehlo.scatter"(%a, %b, %c) <{{scatter_dimension_numbers = #stablehlo.scatter<{0}>{2}}}> {1} : (tensor<{3}>, tensor<{4}>, tensor<{5}>) -> tensor<{3}>'
for operation in ("add", "multiply", "maximum", "minimum", "subtract", "divide"):
    case(
        f"scatter {operation}",
        "4x5xf32; 3x2xi32; 3x2x2xf32 -> 4x5xf32",
        SCATTER.format(
            "update_window_dims = [1, 2], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 1",
            reducer(operation),
            "",
            "4x5xf32",
            "3x2xi32",
            "3x2x2xf32",
        ),
        None,
        [[0, 1], [0, 1], [4, 0]],
    )
case(
    "scatter with batches",
    "3x4x2xf32; 2x3x1xi32; 2x3x2xf32 -> 3x4x2xf32",
    SCATTER.format(
        "update_window_dims = [2], inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [1], scatter_dims_to_operand_dims = [1], index_vector_dim = 2",
        reducer("add"),
        "",
        "3x4x2xf32",
        "2x3x1xi32",
        "2x3x2xf32",
    ),
    None,
    [[[0], [3], [-1]], [[0], [4], [2]]],
)
case(
    "scatter with vectors first",
    "4xf32; 1x3xi32; 3xf32 -> 4xf32",
    SCATTER.format(
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 0",
        reducer("add"),
        "",
        "4xf32",
        "1x3xi32",
        "3xf32",
    ),
    None,
    [[1, 1, 7]],
)
case(
    "scatter that keeps",
    "4xf32; 2x1xi32; 2xf32 -> 4xf32",
    SCATTER.format(
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
        "({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n stablehlo.return %x : tensor<f32>\n})",
        "",
        "4xf32",
        "2x1xi32",
        "2xf32",
    ),
    None,
    [[1], [2]],
)
case(
    "scatter of two operands",
    "4xf32; 4xi32; 3x1xi32; 3xf32; 3xi32 -> 4xf32; 4xi32",
    '%r, %s = "stablehlo.scatter"(%a, %b, %c, %d, %e) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({\n^bb0(%x: tensor<f32>, %i: tensor<i32>, %y: tensor<f32>, %j: tensor<i32>):\n %o = stablehlo.add %x, %y : tensor<f32>\n %p = stablehlo.maximum %i, %j : tensor<i32>\n stablehlo.return %o, %p : tensor<f32>, tensor<i32>\n}) : (tensor<4xf32>, tensor<4xi32>, tensor<3x1xi32>, tensor<3xf32>, tensor<3xi32>) -> (tensor<4xf32>, tensor<4xi32>)',
    None,
    None,
    [[1], [1], [-1]],
)

# -- reductions and windows --------------------------------------------------------------------------------------------
for operation, kind in (
    ("add", "f32"),
    ("multiply", "i8"),
    ("maximum", "f32"),
    ("minimum", "ui8"),
    ("and", "i1"),
    ("or", "i32"),
    ("xor", "ui8"),
):
    case(
        f"reduce {operation} {kind}",
        f"3x2x4x{kind}; {kind} -> 2x{kind}",
        f'%r = "stablehlo.reduce"(%a, %b) <{{dimensions = array<i64: 2, 0>}}> {reducer(operation, kind)} : (tensor<3x2x4x{kind}>, tensor<{kind}>) -> tensor<2x{kind}>',
    )
    case(
        f"reduce_window {operation} {kind}",
        f"5x4x{kind}; {kind} -> 3x4x{kind}",
        f'%r = "stablehlo.reduce_window"(%a, %b) <{{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 3, 2>, base_dilations = array<i64: 2, 2>, window_dilations = array<i64: 2, 1>, padding = dense<[[0, 1], [2, 0]]> : tensor<2x2xi64>}}> {reducer(operation, kind)} : (tensor<5x4x{kind}>, tensor<{kind}>) -> tensor<3x4x{kind}>',
    )
case(
    "reduce_window with negative padding",
    "6xf32; f32 -> 2xf32",
    f'%r = "stablehlo.reduce_window"(%a, %b) <{{window_dimensions = array<i64: 3>, padding = dense<[[-1, -1]]> : tensor<1x2xi64>}}> {reducer("add")} : (tensor<6xf32>, tensor<f32>) -> tensor<2xf32>',
)
case(
    "reduce_window with an init that counts",
    "4xf32 -> 4xf32",
    f'%z = stablehlo.constant dense<2.0> : tensor<f32>\n%r = "stablehlo.reduce_window"(%a, %z) <{{window_dimensions = array<i64: 4>, padding = dense<[[3, 0]]> : tensor<1x2xi64>}}> {reducer("add")} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>',
)
case(
    "reduce of two",
    "3x4xf32; 3x4xi32 -> 3xf32; 3xi32",
    '%z = stablehlo.constant dense<1.0> : tensor<f32>\n%y = stablehlo.constant dense<0> : tensor<i32>\n%r, %s = "stablehlo.reduce"(%a, %b, %z, %y) <{dimensions = array<i64: 1>}> ({\n^bb0(%x: tensor<f32>, %i: tensor<i32>, %w: tensor<f32>, %j: tensor<i32>):\n %o = stablehlo.add %x, %w : tensor<f32>\n %p = stablehlo.maximum %i, %j : tensor<i32>\n stablehlo.return %o, %p : tensor<f32>, tensor<i32>\n}) : (tensor<3x4xf32>, tensor<3x4xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)',
)
for direction in ("GE", "GT", "LE", "LT"):
    for kind, compare in (("f32", "FLOAT"), ("i32", "SIGNED")):
        case(
            f"select_and_scatter {direction} {kind}",
            f"4x5x{kind}; 3x2x{kind}; {kind} -> 4x5x{kind}",
            f'%r = "stablehlo.select_and_scatter"(%a, %b, %c) <{{window_dimensions = array<i64: 3, 2>, window_strides = array<i64: 2, 3>, padding = dense<[[2, 1], [0, 0]]> : tensor<2x2xi64>}}> ({{\n^bb0(%x: tensor<{kind}>, %y: tensor<{kind}>):\n %p = stablehlo.compare {direction}, %x, %y, {compare} : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>\n stablehlo.return %p : tensor<i1>\n}}, {reducer("add", kind)[1:-1]}) : (tensor<4x5x{kind}>, tensor<3x2x{kind}>, tensor<{kind}>) -> tensor<4x5x{kind}>',
        )
SORT = (
    '%r, %s = "stablehlo.sort"(%a, %b) <{{dimension = 1 : i64, is_stable = true}}> ({{\n'
    "^bb0(%x: tensor<{0}>, %y: tensor<{0}>, %i: tensor<i32>, %j: tensor<i32>):\n"
    " %p = stablehlo.compare {1}, %x, %y, {2} : (tensor<{0}>, tensor<{0}>) -> tensor<i1>\n stablehlo.return %p : tensor<i1>\n}}) : "
    "(tensor<2x6x{0}>, tensor<2x6xi32>) -> (tensor<2x6x{0}>, tensor<2x6xi32>)"
)
for kind, direction, order in (
    ("f32", "LT", "FLOAT"), ("f32", "GT", "FLOAT"), ("f32", "LT", "TOTALORDER"), ("f32", "GT", "TOTALORDER"),
    ("i32", "LT", "SIGNED"), ("i32", "GT", "SIGNED"), ("ui8", "GT", "UNSIGNED"),
):  # fmt: skip
    signature = f"2x6x{kind}; 2x6xi32 -> 2x6x{kind}; 2x6xi32"
    case(f"sort {direction} {kind} {order}", signature, SORT.format(kind, direction, order))

# -- products ----------------------------------------------------------------------------------------------------------
case(
    "dot_general in turned axes",
    "4x2x3xf32; 5x3x2xf32 -> 2x4x5xf32",
    '%r = "stablehlo.dot_general"(%a, %b) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [1], rhs_batching_dimensions = [2], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision DEFAULT>]}> : (tensor<4x2x3xf32>, tensor<5x3x2xf32>) -> tensor<2x4x5xf32>',
)
case(
    "dot_general with an algorithm",
    "2x3xf32; 3x2xf32 -> 2x2xf32",
    "%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = f32, rhs_precision_type = f32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>",
)
case(
    "dot_general of whole numbers, wider",
    "2x3xui8; 3x2xui8 -> 2x2xui32",
    "%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x3xui8>, tensor<3x2xui8>) -> tensor<2x2xui32>",
)
case(
    "dot of vectors",
    "3xf32; 3xf32 -> f32",
    "%r = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>",
)
case(
    "outer product",
    "3xf32; 2xf32 -> 3x2xf32",
    "%r = stablehlo.dot_general %a, %b, contracting_dims = [] x [] : (tensor<3xf32>, tensor<2xf32>) -> tensor<3x2xf32>",
)
CONVOLUTION = "%r = stablehlo.convolution(%a, %b) dim_numbers = [{0}]x[{1}]->[{2}], window = {{{3}}} {{batch_group_count = {4} : i64, feature_group_count = {5} : i64}} : (tensor<{6}>, tensor<{7}>) -> tensor<{8}>"
case(
    "convolution with all permuted",
    "2x5x6x3xf32; 2x3x4x2xf32 -> 4x5x2x2xf32".replace("2x3x4x2", "2x3x3x4"),
    CONVOLUTION.format(
        "b, 1, 0, f",
        "1, i, 0, o",
        "o, 0, b, 1".replace("o", "f"),
        "stride = [1, 2], pad = [[0, 1], [-1, 0]], reverse = [true, false]",
        1,
        1,
        "2x5x6x3xf32",
        "2x3x3x4xf32",
        "4x5x2x2xf32",
    ),
)
case(
    "convolution of feature groups, lhs dilation",
    "1x4x3xf32; 2x2x4xf32 -> 1x8x4xf32".replace("1x8x4", "1x7x4").replace("2x2x4", "2x2x4"),
    CONVOLUTION.format(
        "b, f, 0",
        "0, i, o",
        "b, 0, f",
        "stride = [1], pad = [[2, 1]], lhs_dilate = [3], rhs_dilate = [3]",
        1,
        2,
        "1x4x3xf32",
        "2x2x4xf32",
        "1x7x4xf32",
    ),
)
case(
    "convolution of batch groups, reversed",
    "4x3x5xf32; 2x3x2xf32 -> 2x4x2xf32",
    CONVOLUTION.format(
        "b, f, 0", "o, i, 0", "b, 0, f", "reverse = [true]", 2, 1, "4x3x5xf32", "2x3x2xf32", "2x4x2xf32"
    ),
)
for kind, given, result in (
    ("FFT", "2x8xcomplex<f32>", "2x8xcomplex<f32>"),
    ("IFFT", "2x8xcomplex<f32>", "2x8xcomplex<f32>"),
    ("RFFT", "2x8xf32", "2x5xcomplex<f32>"),
    ("IRFFT", "2x5xcomplex<f32>", "2x8xf32"),
):
    case(
        f"fft {kind}",
        f"{given} -> {result}",
        f"%r = stablehlo.fft %a, type = {kind}, length = [8] : (tensor<{given}>) -> tensor<{result}>",
    )
case(
    "fft IRFFT of odd length",
    "4xcomplex<f32> -> 7xf32",
    "%r = stablehlo.fft %a, type = IRFFT, length = [7] : (tensor<4xcomplex<f32>>) -> tensor<7xf32>",
)
case(
    "fft RFFT of two axes",
    "2x4x6xf32 -> 2x4x4xcomplex<f32>",
    "%r = stablehlo.fft %a, type = RFFT, length = [4, 6] : (tensor<2x4x6xf32>) -> tensor<2x4x4xcomplex<f32>>",
)

# -- numbers -----------------------------------------------------------------------------------------------------------
UNARY = "abs cbrt ceil cosine exponential exponential_minus_one floor is_finite log log_plus_one logistic negate round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh".split()
for name in UNARY:
    result = "i1" if name == "is_finite" else "f32"
    case(
        name,
        f"12xf32 -> 12x{result}",
        f"%r = stablehlo.{name} %a : " + ("tensor<12xf32>" if result == "f32" else "(tensor<12xf32>) -> tensor<12xi1>"),
    )
for kind in ("i8", "ui8", "i32", "ui64"):
    for name in (
        "add",
        "and",
        "divide",
        "maximum",
        "minimum",
        "multiply",
        "or",
        "power",
        "remainder",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "subtract",
        "xor",
    ):
        case(
            f"{name} {kind}", f"12x{kind}; 12x{kind} -> 12x{kind}", f"%r = stablehlo.{name} %a, %b : tensor<12x{kind}>"
        )
    for name in ("count_leading_zeros", "not", "popcnt", "sign") + (("abs", "negate") if kind.startswith("i") else ()):
        if not (name == "sign" and kind.startswith("u")):
            case(f"{name} {kind}", f"12x{kind} -> 12x{kind}", f"%r = stablehlo.{name} %a : tensor<12x{kind}>")
for name in ("add", "atan2", "divide", "maximum", "minimum", "power", "remainder", "subtract"):
    case(
        f"{name} f32",
        "12xf32; 12xf32 -> 12xf32",
        f"%0 = stablehlo.reverse %b, dims = [0] : tensor<12xf32>\n%r = stablehlo.{name} %a, %0 : tensor<12xf32>",
    )
for direction in ("EQ", "NE", "LT", "GE"):
    for order in ("FLOAT", "TOTALORDER"):
        case(
            f"compare {direction} {order}",
            "12xf32; 12xf32 -> 12xi1",
            f"%0 = stablehlo.reverse %b, dims = [0] : tensor<12xf32>\n%r = stablehlo.compare {direction}, %a, %0, {order} : (tensor<12xf32>, tensor<12xf32>) -> tensor<12xi1>",
        )
case(
    "clamp by numbers",
    "f32; 12xf32; f32 -> 12xf32",
    "%r = stablehlo.clamp %a, %b, %c : (tensor<f32>, tensor<12xf32>, tensor<f32>) -> tensor<12xf32>",
    -1,
    None,
    2,
)
case(
    "clamp with crossed bounds",
    "12xf32; 12xf32; 12xf32 -> 12xf32",
    "%r = stablehlo.clamp %a, %b, %c : tensor<12xf32>",
    np.full(12, 2),
    None,
    np.full(12, -1),
)
case(
    "select by a number",
    "i1; 3xf32; 3xf32 -> 3xf32",
    "%r = stablehlo.select %a, %b, %c : tensor<i1>, tensor<3xf32>",
    True,
)
for exponent, mantissa in ((5, 10), (8, 7), (2, 1), (4, 3)):
    case(
        f"reduce_precision {exponent} {mantissa}",
        "12xf32 -> 12xf32",
        f"%r = stablehlo.reduce_precision %a, format = e{exponent}m{mantissa} : tensor<12xf32>",
    )
for name in ("abs", "imag", "real"):
    case(
        f"{name} of complex",
        "4xcomplex<f32> -> 4xf32",
        f"%r = stablehlo.{name} %a : (tensor<4xcomplex<f32>>) -> tensor<4xf32>",
    )
for name in ("exponential", "log", "sqrt", "rsqrt", "tanh", "sine", "sign", "negate", "cosine"):
    case(f"{name} of complex", "4xcomplex<f32> -> 4xcomplex<f32>", f"%r = stablehlo.{name} %a : tensor<4xcomplex<f32>>")
case(
    "rng of equal bounds",
    "-> 3xf32",
    "%c = stablehlo.constant dense<2.0> : tensor<f32>\n%n = stablehlo.constant dense<3> : tensor<1xi64>\n%d = stablehlo.constant dense<2.0> : tensor<f32>\n%r = stablehlo.rng %c, %d, %n, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<3xf32>",
)
for algorithm, words in (("THREE_FRY", 2), ("PHILOX", 2), ("DEFAULT", 2)):
    for kind in ("ui32", "ui64", "ui16"):
        case(
            f"rng_bit_generator {algorithm} {words} {kind}",
            f"{words}xui64 -> {words}xui64; 3x5x{kind}",
            f"%r, %s = stablehlo.rng_bit_generator %a, algorithm = {algorithm} : (tensor<{words}xui64>) -> (tensor<{words}xui64>, tensor<3x5x{kind}>)",
        )

# -- control -----------------------------------------------------------------------------------------------------------
case(
    "while over captured values",
    "i32; 3xf32 -> i32; 3xf32",
    "%c = stablehlo.constant dense<1> : tensor<i32>\n%n = stablehlo.constant dense<4> : tensor<i32>\n%r:2 = stablehlo.while(%i = %c, %x = %b) : tensor<i32>, tensor<3xf32>\n cond {\n %p = stablehlo.compare LE, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n stablehlo.return %p : tensor<i1>\n } do {\n %j = stablehlo.add %i, %c : tensor<i32>\n %y = stablehlo.add %x, %b : tensor<3xf32>\n stablehlo.return %j, %y : tensor<i32>, tensor<3xf32>\n }\n%s = stablehlo.add %r#1, %b : tensor<3xf32>\n%q = stablehlo.add %r#0, %a : tensor<i32>".replace(
        "%r:2", "%w:2"
    )
    .replace("%r#", "%w#")
    .replace("%q =", "%r ="),
)
case(
    "if with captured values",
    "i1; 3xf32 -> 3xf32; f32",
    '%z = stablehlo.constant dense<3.0> : tensor<f32>\n%r, %s = "stablehlo.if"(%a) ({\n %x = stablehlo.add %b, %b : tensor<3xf32>\n stablehlo.return %x, %z : tensor<3xf32>, tensor<f32>\n}, {\n %y = stablehlo.negate %z : tensor<f32>\n stablehlo.return %b, %y : tensor<3xf32>, tensor<f32>\n}) : (tensor<i1>) -> (tensor<3xf32>, tensor<f32>)',
    False,
)
for index in (-3, 0, 1, 2, 7):
    case(
        f"case {index}",
        "i32; f32 -> f32",
        '%r = "stablehlo.case"(%a) ({\n stablehlo.return %b : tensor<f32>\n}, {\n %x = stablehlo.negate %b : tensor<f32>\n stablehlo.return %x : tensor<f32>\n}, {\n %y = stablehlo.exponential %b : tensor<f32>\n stablehlo.return %y : tensor<f32>\n}) : (tensor<i32>) -> tensor<f32>',
        index,
    )
case(
    "optimization_barrier",
    "3xf32; i32 -> 3xf32; i32",
    "%r, %s = stablehlo.optimization_barrier %a, %b : tensor<3xf32>, tensor<i32>",
)
case(
    "tuples",
    "3xf32; i32 -> 3xf32",
    "%t0 = stablehlo.tuple %a, %b : tuple<tensor<3xf32>, tensor<i32>>\n%r = stablehlo.get_tuple_element %t0[0] : (tuple<tensor<3xf32>, tensor<i32>>) -> tensor<3xf32>",
)
case(
    "map of one axis",
    "4xf32; 4xf32 -> 4xi1",
    '%r = "stablehlo.map"(%a, %b) <{dimensions = array<i64: 0>}> ({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n %p = stablehlo.compare LT, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>\n stablehlo.return %p : tensor<i1>\n}) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>',
)
case(
    "cholesky",
    "3x3xf32 -> 3x3xf32",
    "%r = stablehlo.cholesky %a, lower = true : tensor<3x3xf32>",
    [[4, 0, 0], [2, 5, 0], [1, 1, 6]],
)
for form in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
    for side in ("true", "false"):
        case(
            f"triangular_solve {form} {side}",
            "2x2xf32; 2x2xf32 -> 2x2xf32",
            f'%r = "stablehlo.triangular_solve"(%a, %b) <{{left_side = {side}, lower = false, unit_diagonal = false, transpose_a = #stablehlo<transpose {form}>}}> : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>',
            [[2, 3], [0, 4]],
        )
case(
    "batch_norm_grad",
    "4x3xf32; 3xf32; 3xf32; 3xf32; 4x3xf32 -> 4x3xf32; 3xf32; 3xf32",
    '%r, %s, %t = "stablehlo.batch_norm_grad"(%a, %b, %c, %d, %e) <{epsilon = 0.1 : f32, feature_index = 1 : i64}> : (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)',
    None,
    None,
    None,
    [1, 2, 3],
)

SPECIAL_CASES = {
    *UNARY,
    *(f"{name} f32" for name in ("add", "atan2", "divide", "maximum", "minimum", "power", "remainder", "subtract")),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_operation(name):
    is_special = name in SPECIAL_CASES or name.startswith(("compare", "clamp", "reduce_precision"))
    is_special |= "12x" in CASES[name][0] and "xf32" not in CASES[name][0] and not name.startswith("power")
    check(*CASES[name], is_special=is_special)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("source", "target"), CONVERTED)
def test_conversion(source, target):
    check(
        f"12x{source} -> 12x{target}",
        f"%r = stablehlo.convert %a : (tensor<12x{source}>) -> tensor<12x{target}>",
        is_special=True,
    )

"""What the specification says of operations at rare attributes, where XLA alone cannot tell: values by NumPy."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import jaxport

f32, A = np.float32, np.arange
GROUPED, KERNEL = (np.random.default_rng(2).normal(size=size).astype(f32) for size in ((4, 3, 5), (2, 3, 4)))
CASES: dict[str, tuple[str, list[Any], tuple[Any, ...], float]] = {}


def case(
    name: str, signature: str, body: str, arguments: list[Any], expected: Any, tolerance: float = 1e-5, extra: str = ""
) -> None:
    """Add the text of a module: the types of its arguments `%a`, `%b`, … and results, and what computes `%r`, `%s`, …"""
    given, results = ([kind.strip() for kind in part.split(";") if kind.strip()] for part in signature.split("->"))
    listed = ", ".join(f"%{'abcdefgh'[at]}: {kind}" for at, kind in enumerate(given))
    names, kinds = ", ".join(f"%{letter}" for letter in "rstuv"[: len(results)]), ", ".join(results)
    text = f"{extra}\nfunc.func public @main({listed}) -> ({kinds}) {{\n{body}\n  return {names} : {kinds}\n}}"
    assert name not in CASES
    CASES[name] = (text, arguments, expected if isinstance(expected, tuple) else (expected,), tolerance)


# dynamic ops
SCATTER = '%r = "stablehlo.scatter"(%a, %b, %c) ({{\n^bb0(%x: tensor<i64>, %y: tensor<i64>):\n %0 = stablehlo.add %x, %y : tensor<i64>\n stablehlo.return %0 : tensor<i64>\n}}) {{scatter_dimension_numbers = #stablehlo.scatter<{0}>, indices_are_sorted = false, unique_indices = false}} : ({1}) -> {2}'
case(
    "dynamic_iota",
    "-> tensor<?x?xi64>",
    "%s = stablehlo.constant dense<[3,4]> : tensor<2xi64>\n%r = stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi64>) -> tensor<?x?xi64>",
    [],
    np.broadcast_to(A(4), (3, 4)),
)
case(
    "dynamic_pad",
    "tensor<2x3xf32>; tensor<f32> -> tensor<?x?xf32>",
    "%l = stablehlo.constant dense<[0,1]> : tensor<2xi64>\n%h = stablehlo.constant dense<[2,-1]> : tensor<2xi64>\n%i = stablehlo.constant dense<[1,0]> : tensor<2xi64>\n%r = stablehlo.dynamic_pad %a, %b, %l, %h, %i : (tensor<2x3xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x?xf32>",
    [A(1, 7, dtype=f32).reshape(2, 3), f32(9)],
    np.array([[9, 1, 2], [9, 9, 9], [9, 4, 5], [9, 9, 9], [9, 9, 9]]),
)
case(
    "dynamic_gather",
    "tensor<3x4x2xi32>; tensor<2x3x2xi64> -> tensor<2x3x2x2xi32>",
    '%s = stablehlo.constant dense<[1,2,2]> : tensor<3xi64>\n%r = "stablehlo.dynamic_gather"(%a, %b, %s) {dimension_numbers = #stablehlo.gather<offset_dims = [2,3], collapsed_slice_dims = [0], start_index_map = [1,0], index_vector_dim = 2>, indices_are_sorted = false} : (tensor<3x4x2xi32>, tensor<2x3x2xi64>, tensor<3xi64>) -> tensor<2x3x2x2xi32>',
    [A(1, 25, dtype=np.int32).reshape(3, 4, 2), np.array([[[0, 0], [1, 0], [2, 1]], [[0, 1], [1, 1], [0, 9]]])],
    np.array(
        [
            [[[1, 2], [3, 4]], [[3, 4], [5, 6]], [[13, 14], [15, 16]]],
            [[[9, 10], [11, 12]], [[11, 12], [13, 14]], [[17, 18], [19, 20]]],
        ]
    ),
)
case(
    "dynamic_broadcast known",
    "tensor<1x3xf32> -> tensor<2x3x?xf32>",
    '%s = stablehlo.constant dense<[2,3,4]> : tensor<3xi64>\n%r = "stablehlo.dynamic_broadcast_in_dim"(%a, %s) {broadcast_dimensions = array<i64: 0, 1>, known_expanding_dimensions = array<i64: 0>, known_nonexpanding_dimensions = array<i64: 1>} : (tensor<1x3xf32>, tensor<3xi64>) -> tensor<2x3x?xf32>',
    [A(3, dtype=f32).reshape(1, 3)],
    np.broadcast_to(A(3).reshape(1, 3, 1), (2, 3, 4)),
)
case(
    "scatter spec",
    "tensor<3x4x2xi64>; tensor<2x3x2xi64>; tensor<2x3x2x2xi64> -> tensor<3x4x2xi64>",
    SCATTER.format(
        "update_window_dims = [2,3], inserted_window_dims = [0], scatter_dims_to_operand_dims = [1,0], index_vector_dim = 2",
        "tensor<3x4x2xi64>, tensor<2x3x2xi64>, tensor<2x3x2x2xi64>",
        "tensor<3x4x2xi64>",
    ),
    [
        A(1, 25).reshape(3, 4, 2),
        np.array([[[0, 2], [1, 0], [2, 1]], [[0, 1], [1, 0], [0, 9]]]),
        np.ones((2, 3, 2, 2), np.int64),
    ],
    np.array(
        [
            [[1, 2], [5, 6], [7, 8], [7, 8]],
            [[10, 11], [12, 13], [14, 15], [16, 17]],
            [[18, 19], [20, 21], [21, 22], [23, 24]],
        ]
    ),
)
case(
    "scatter batch spec",
    "tensor<2x3x4x2xi64>; tensor<2x2x3x2xi64>; tensor<2x2x3x2x2xi64> -> tensor<2x3x4x2xi64>",
    SCATTER.format(
        "update_window_dims = [3,4], inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [1], scatter_dims_to_operand_dims = [2,1], index_vector_dim = 3",
        "tensor<2x3x4x2xi64>, tensor<2x2x3x2xi64>, tensor<2x2x3x2x2xi64>",
        "tensor<2x3x4x2xi64>",
    ),
    [
        A(1, 49).reshape(2, 3, 4, 2),
        np.array(
            [[[[0, 0], [1, 0], [2, 1]], [[0, 1], [1, 1], [0, 9]]], [[[0, 0], [2, 1], [2, 2]], [[1, 2], [0, 1], [1, 0]]]]
        ),
        np.ones((2, 2, 3, 2, 2), np.int64),
    ],
    np.array(
        [
            [
                [[3, 4], [6, 7], [6, 7], [7, 8]],
                [[9, 10], [11, 12], [15, 16], [17, 18]],
                [[17, 18], [19, 20], [22, 23], [24, 25]],
            ],
            [
                [[25, 26], [28, 29], [30, 31], [31, 32]],
                [[35, 36], [38, 39], [38, 39], [39, 40]],
                [[41, 42], [44, 45], [46, 47], [47, 48]],
            ],
        ]
    ),
)
case(
    "composite",
    "tensor<i64> -> tensor<i64>",
    '%r = stablehlo.composite "stablehlo.add_n" %a {composite_attributes = { n = 2 : i64 }, decomposition = @add_n.impl} : (tensor<i64>) -> tensor<i64>',
    [np.int64(1)],
    3,
    extra="func.func private @add_n.impl(%x: tensor<i64>) -> tensor<i64> {\n %0 = stablehlo.constant dense<2> : tensor<i64>\n %1 = stablehlo.add %x, %0 : tensor<i64>\n return %1 : tensor<i64>\n}",
)
case(
    "square",
    "tensor<4xcomplex<f64>> -> tensor<4xcomplex<f64>>",
    "%r = chlo.square %a : tensor<4xcomplex<f64>> -> tensor<4xcomplex<f64>>",
    [np.array([1 + 2j, -1j, 3, 0.5])],
    np.array([1 + 2j, -1j, 3, 0.5]) ** 2,
)
case(
    "mulhi",
    "tensor<3xi32>; tensor<3xi32> -> tensor<3xi32>",
    "%r = chlo.mulhi %a, %b : tensor<3xi32>, tensor<3xi32> -> tensor<3xi32>",
    [np.array([2**30, -(2**31), 5], np.int32), np.array([8, -(2**31), 7], np.int32)],
    np.array([2, 2**30, 0]),
)
case(
    "mulhi u8",
    "tensor<2xui8>; tensor<2xui8> -> tensor<2xui8>",
    "%r = chlo.mulhi %a, %b : tensor<2xui8>, tensor<2xui8> -> tensor<2xui8>",
    [np.array([255, 16], np.uint8), np.array([255, 16], np.uint8)],
    np.array([254, 1]),
)
case(
    "chlo scan",
    "tensor<4xi32> -> tensor<4xi32>; tensor<i32>",
    "%i = stablehlo.constant dense<0> : tensor<i32>\n%r, %s = chlo.scan(%a) inits(%i) dimension=0 {\n^bb0(%x: tensor<i32>, %y: tensor<i32>):\n %1 = stablehlo.add %x, %y : tensor<i32>\n stablehlo.return %1, %1 : tensor<i32>, tensor<i32>\n} : (tensor<4xi32>, tensor<i32>) -> (tensor<4xi32>, tensor<i32>)",
    [np.array([1, 2, 3, 4], np.int32)],
    (np.array([1, 3, 6, 10]), 10),
)
case(
    "chlo scan dim1",
    "tensor<2x3xi32> -> tensor<2x3xi32>; tensor<2xi32>",
    "%i = stablehlo.constant dense<0> : tensor<2xi32>\n%r, %s = chlo.scan(%a) inits(%i) dimension=1 attributes {is_reverse = true} {\n^bb0(%x: tensor<2xi32>, %y: tensor<2xi32>):\n %1 = stablehlo.add %x, %y : tensor<2xi32>\n stablehlo.return %1, %1 : tensor<2xi32>, tensor<2xi32>\n} : (tensor<2x3xi32>, tensor<2xi32>) -> (tensor<2x3xi32>, tensor<2xi32>)",
    [np.array([[1, 2, 3], [4, 5, 6]], np.int32)],
    (np.array([[6, 5, 3], [15, 11, 6]]), np.array([6, 15])),
)
case(
    "sort 2 keys one desc",
    "tensor<6xi32>; tensor<6xf32>; tensor<6xi32> -> tensor<6xi32>; tensor<6xf32>; tensor<6xi32>",
    '%r, %s, %t = "stablehlo.sort"(%a, %b, %c) ({\n^bb0(%x: tensor<i32>, %y: tensor<i32>, %i: tensor<f32>, %j: tensor<f32>, %k: tensor<i32>, %l: tensor<i32>):\n %0 = stablehlo.compare LT, %x, %y : (tensor<i32>, tensor<i32>) -> tensor<i1>\n %1 = stablehlo.compare EQ, %x, %y : (tensor<i32>, tensor<i32>) -> tensor<i1>\n %2 = stablehlo.compare GT, %i, %j : (tensor<f32>, tensor<f32>) -> tensor<i1>\n %3 = stablehlo.and %1, %2 : tensor<i1>\n %4 = stablehlo.or %0, %3 : tensor<i1>\n stablehlo.return %4 : tensor<i1>\n}) {dimension = 0 : i64, is_stable = true} : (tensor<6xi32>, tensor<6xf32>, tensor<6xi32>) -> (tensor<6xi32>, tensor<6xf32>, tensor<6xi32>)',
    [np.array([2, 1, 2, 1, 2, 1], np.int32), np.array([1, 5, 3, 7, 3, 0], f32), A(6, dtype=np.int32)],
    (np.array([1, 1, 1, 2, 2, 2]), np.array([7, 5, 0, 3, 3, 1]), np.array([3, 1, 5, 2, 4, 0])),
)
case(
    "sort dim neg",
    "tensor<2x3xi64>; tensor<2x3xi64> -> tensor<2x3xi64>; tensor<2x3xi64>",
    '%r, %s = "stablehlo.sort"(%a, %b) ({\n^bb0(%x: tensor<i64>, %y: tensor<i64>, %i: tensor<i64>, %j: tensor<i64>):\n %0 = stablehlo.compare GT, %x, %y : (tensor<i64>, tensor<i64>) -> tensor<i1>\n stablehlo.return %0 : tensor<i1>\n}) {dimension = -2 : i64, is_stable = true} : (tensor<2x3xi64>, tensor<2x3xi64>) -> (tensor<2x3xi64>, tensor<2x3xi64>)',
    [np.array([[1, 2, 3], [3, 2, 1]]), np.array([[3, 2, 1], [1, 2, 3]])],
    (np.array([[3, 2, 3], [1, 2, 1]]), np.array([[1, 2, 1], [3, 2, 3]])),
)
case(
    "sort bool desc",
    "tensor<5xi1>; tensor<5xi32> -> tensor<5xi1>; tensor<5xi32>",
    '%r, %s = "stablehlo.sort"(%a, %b) ({\n^bb0(%x: tensor<i1>, %y: tensor<i1>, %i: tensor<i32>, %j: tensor<i32>):\n %0 = stablehlo.compare GT, %x, %y, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>\n stablehlo.return %0 : tensor<i1>\n}) {dimension = 0 : i64, is_stable = true} : (tensor<5xi1>, tensor<5xi32>) -> (tensor<5xi1>, tensor<5xi32>)',
    [np.array([0, 1, 0, 1, 1], bool), A(5, dtype=np.int32)],
    (np.array([1, 1, 1, 0, 0], bool), np.array([1, 3, 4, 0, 2])),
)
case(
    "rw variadic",
    "tensor<5xi32>; tensor<5xf32> -> tensor<2xi32>; tensor<2xf32>",
    '%i = stablehlo.constant dense<0> : tensor<i32>\n%j = stablehlo.constant dense<1.0> : tensor<f32>\n%r, %s = "stablehlo.reduce_window"(%a, %b, %i, %j) ({\n^bb0(%x: tensor<i32>, %y: tensor<f32>, %z: tensor<i32>, %w: tensor<f32>):\n %0 = stablehlo.add %x, %z : tensor<i32>\n %1 = stablehlo.multiply %y, %w : tensor<f32>\n stablehlo.return %0, %1 : tensor<i32>, tensor<f32>\n}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>, window_dilations = array<i64: 2>} : (tensor<5xi32>, tensor<5xf32>, tensor<i32>, tensor<f32>) -> (tensor<2xi32>, tensor<2xf32>)',
    [A(1, 6, dtype=np.int32), A(1, 6, dtype=f32)],
    (np.array([4, 8]), np.array([3, 15])),
)
case(
    "rw variadic dilated pads",
    "tensor<3xi32>; tensor<3xf32> -> tensor<4xi32>; tensor<4xf32>",
    '%i = stablehlo.constant dense<0> : tensor<i32>\n%j = stablehlo.constant dense<1.0> : tensor<f32>\n%r, %s = "stablehlo.reduce_window"(%a, %b, %i, %j) ({\n^bb0(%x: tensor<i32>, %y: tensor<f32>, %z: tensor<i32>, %w: tensor<f32>):\n %0 = stablehlo.add %x, %z : tensor<i32>\n %1 = stablehlo.multiply %y, %w : tensor<f32>\n stablehlo.return %0, %1 : tensor<i32>, tensor<f32>\n}) {window_dimensions = array<i64: 3>, window_strides = array<i64: 1>, base_dilations = array<i64: 2>, padding = dense<[[1, 0]]> : tensor<1x2xi64>} : (tensor<3xi32>, tensor<3xf32>, tensor<i32>, tensor<f32>) -> (tensor<4xi32>, tensor<4xf32>)',
    [A(1, 4, dtype=np.int32), A(1, 4, dtype=f32)],
    (np.array([1, 3, 2, 5]), np.array([1, 2, 2, 6])),
)
case(
    "reduce noncommutative mixed",
    "tensor<2x3xi32>; tensor<i32> -> tensor<3xi32>",
    "%r = stablehlo.reduce(%a init: %b) applies stablehlo.maximum across dimensions = [0] : (tensor<2x3xi32>, tensor<i32>) -> tensor<3xi32>",
    [np.array([[1, 5, 2], [4, 0, 2]], np.int32), np.int32(3)],
    np.array([4, 5, 3]),
)
case(
    "reduce no dims",
    "tensor<3xf32>; tensor<f32> -> tensor<3xf32>",
    "%r = stablehlo.reduce(%a init: %b) applies stablehlo.add across dimensions = [] : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>",
    [A(3, dtype=f32), f32(2)],
    A(3) + 2,
)
case(
    "reduce promote",
    "tensor<4xi8>; tensor<i8> -> tensor<i32>",
    '%r = "stablehlo.reduce"(%a, %b) ({\n^bb0(%x: tensor<i32>, %y: tensor<i32>):\n %0 = stablehlo.add %x, %y : tensor<i32>\n stablehlo.return %0 : tensor<i32>\n}) {dimensions = array<i64: 0>} : (tensor<4xi8>, tensor<i8>) -> tensor<i32>',
    [np.array([100, 100, 100, 100], np.int8), np.int8(0)],
    400,
)
case(
    "rw promote",
    "tensor<4xbf16>; tensor<bf16> -> tensor<3xf32>",
    '%r = "stablehlo.reduce_window"(%a, %b) ({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n %0 = stablehlo.add %x, %y : tensor<f32>\n stablehlo.return %0 : tensor<f32>\n}) {window_dimensions = array<i64: 2>} : (tensor<4xbf16>, tensor<bf16>) -> tensor<3xf32>',
    [np.array([1, 2.5, 256, 1], ml_dtypes.bfloat16), np.array(0, ml_dtypes.bfloat16)],
    np.array([3.5, 258.5, 257]),
)
case(
    "scatter promote",
    "tensor<3xi8>; tensor<2x1xi32>; tensor<2xi8> -> tensor<3xi32>",
    '%r = "stablehlo.scatter"(%a, %b, %c) ({\n^bb0(%x: tensor<i32>, %y: tensor<i32>):\n %0 = stablehlo.add %x, %y : tensor<i32>\n stablehlo.return %0 : tensor<i32>\n}) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false} : (tensor<3xi8>, tensor<2x1xi32>, tensor<2xi8>) -> tensor<3xi32>',
    [np.array([100, 1, 2], np.int8), np.array([[0], [0]], np.int32), np.array([100, 100], np.int8)],
    np.array([300, 1, 2]),
)
case(
    "select_and_scatter promote",
    "tensor<4xi8>; tensor<2xi8>; tensor<i8> -> tensor<4xi32>",
    '%r = "stablehlo.select_and_scatter"(%a, %b, %c) ({\n^bb0(%x: tensor<i8>, %y: tensor<i8>):\n %0 = stablehlo.compare GE, %x, %y : (tensor<i8>, tensor<i8>) -> tensor<i1>\n stablehlo.return %0 : tensor<i1>\n},{\n^bb0(%x: tensor<i32>, %y: tensor<i32>):\n %0 = stablehlo.add %x, %y : tensor<i32>\n stablehlo.return %0 : tensor<i32>\n}) {window_dimensions = array<i64: 3>, window_strides = array<i64: 1>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<4xi32>',
    [np.array([1, 9, 3, 4], np.int8), np.array([100, 100], np.int8), np.int8(0)],
    np.array([0, 200, 0, 0]),
)
case(
    "case multi",
    "tensor<i32>; tensor<2xf32> -> tensor<2xf32>; tensor<i32>",
    '%r, %s = "stablehlo.case"(%a) ({\n %c = stablehlo.constant dense<7> : tensor<i32>\n stablehlo.return %b, %c : tensor<2xf32>, tensor<i32>\n},{\n %c = stablehlo.constant dense<8> : tensor<i32>\n %n = stablehlo.negate %b : tensor<2xf32>\n stablehlo.return %n, %c : tensor<2xf32>, tensor<i32>\n}) : (tensor<i32>) -> (tensor<2xf32>, tensor<i32>)',
    [np.int32(1), np.array([1, 2], f32)],
    (np.array([-1, -2]), 8),
)
case(
    "fft 3d",
    "tensor<2x2x3x4xcomplex<f32>> -> tensor<2x2x3x4xcomplex<f32>>",
    "%r = stablehlo.fft %a, type = FFT, length = [2, 3, 4] : (tensor<2x2x3x4xcomplex<f32>>) -> tensor<2x2x3x4xcomplex<f32>>",
    [
        (np.random.RandomState(0).randn(2, 2, 3, 4) + 1j * np.random.RandomState(1).randn(2, 2, 3, 4)).astype(
            np.complex64
        )
    ],
    np.fft.fftn(
        (np.random.RandomState(0).randn(2, 2, 3, 4) + 1j * np.random.RandomState(1).randn(2, 2, 3, 4)), axes=(1, 2, 3)
    ),
    1e-4,
)
case(
    "irfft 2d",
    "tensor<2x3xcomplex<f32>> -> tensor<2x4xf32>",
    "%r = stablehlo.fft %a, type = IRFFT, length = [2, 4] : (tensor<2x3xcomplex<f32>>) -> tensor<2x4xf32>",
    [np.fft.rfft2(A(8).reshape(2, 4)).astype(np.complex64)],
    A(8).reshape(2, 4),
)
case(
    "triangular complex",
    "tensor<2x2xcomplex<f32>>; tensor<2x1xcomplex<f32>> -> tensor<2x1xcomplex<f32>>",
    '%r = "stablehlo.triangular_solve"(%a, %b) {left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose ADJOINT>} : (tensor<2x2xcomplex<f32>>, tensor<2x1xcomplex<f32>>) -> tensor<2x1xcomplex<f32>>',
    [np.array([[2j, 0], [1 + 1j, 3]], np.complex64), np.array([[1], [3j]], np.complex64)],
    np.linalg.solve(np.array([[2j, 0], [1 + 1j, 3]]).conj().T, np.array([[1], [3j]])),
)
case(
    "triangular batch",
    "tensor<2x2x2xf32>; tensor<2x2x2xf32> -> tensor<2x2x2xf32>",
    '%r = "stablehlo.triangular_solve"(%a, %b) {left_side = false, lower = false, unit_diagonal = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<2x2x2xf32>, tensor<2x2x2xf32>) -> tensor<2x2x2xf32>',
    [np.array([[[5, 2], [7, 5]], [[5, 3], [7, 5]]], f32), A(8, dtype=f32).reshape(2, 2, 2)],
    np.stack([A(8).reshape(2, 2, 2)[i] @ np.linalg.inv(np.array([[1, k], [0, 1.0]])) for i, k in enumerate((2, 3))]),
)
L = np.array([[2, 0], [1 - 1j, 3]])
case(
    "cholesky complex",
    "tensor<2x2xcomplex<f32>> -> tensor<2x2xcomplex<f32>>",
    "%r = stablehlo.cholesky %a, lower = true : tensor<2x2xcomplex<f32>>",
    [(L @ L.conj().T).astype(np.complex64)],
    L,
)
case(
    "cholesky upper complex",
    "tensor<2x2xcomplex<f64>> -> tensor<2x2xcomplex<f64>>",
    "%r = stablehlo.cholesky %a : tensor<2x2xcomplex<f64>>",
    [(L @ L.conj().T)],
    L.conj().T,
)
case(
    "popcnt i4",
    "tensor<3xi8> -> tensor<3xi8>",
    "%0 = stablehlo.convert %a : (tensor<3xi8>) -> tensor<3xi4>\n%1 = stablehlo.popcnt %0 : tensor<3xi4>\n%r = stablehlo.convert %1 : (tensor<3xi4>) -> tensor<3xi8>",
    [np.array([7, -8, -1], np.int8)],
    np.array([3, 1, 4]),
)
case(
    "clz i16",
    "tensor<3xi16> -> tensor<3xi16>",
    "%r = stablehlo.count_leading_zeros %a : tensor<3xi16>",
    [np.array([0, 1, -1], np.int16)],
    np.array([16, 15, 0]),
)
for op, ex in (
    ("shift_left", [0, -8, -128, 0, 0]),
    ("shift_right_logical", [0, 31, 63, 0, 0]),
    ("shift_right_arithmetic", [0, -1, -1, 0, -1]),
):
    case(
        op + " i8",
        "tensor<5xi8>; tensor<5xi8> -> tensor<5xi8>",
        f"%r = stablehlo.{op} %a, %b : tensor<5xi8>",
        [np.array([0, -1, -1, 5, -5], np.int8), np.array([7, 3, 2 if op != "shift_left" else 7, 8, 9], np.int8)],
        np.array(ex),
    )
case(
    "add bool",
    "tensor<4xi1>; tensor<4xi1> -> tensor<4xi1>",
    "%r = stablehlo.add %a, %b : tensor<4xi1>",
    [np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)],
    np.array([0, 1, 1, 1], bool),
)
case(
    "mul bool",
    "tensor<4xi1>; tensor<4xi1> -> tensor<4xi1>",
    "%r = stablehlo.multiply %a, %b : tensor<4xi1>",
    [np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)],
    np.array([0, 0, 0, 1], bool),
)
case(
    "max complex",
    "tensor<2xcomplex<f32>>; tensor<2xcomplex<f32>> -> tensor<2xcomplex<f32>>",
    "%r = stablehlo.maximum %a, %b : tensor<2xcomplex<f32>>",
    [np.array([1 + 2j, 3], np.complex64), np.array([1 + 1j, 3 + 1j], np.complex64)],
    np.array([1 + 2j, 3 + 1j]),
)
case(
    "compare complex",
    "tensor<2xcomplex<f32>>; tensor<2xcomplex<f32>> -> tensor<2xi1>",
    "%r = stablehlo.compare EQ, %a, %b, FLOAT : (tensor<2xcomplex<f32>>, tensor<2xcomplex<f32>>) -> tensor<2xi1>",
    [np.array([1 + 2j, 3], np.complex64), np.array([1 + 2j, 3 + 1j], np.complex64)],
    np.array([1, 0], bool),
)
case(
    "real of real",
    "tensor<3xf32> -> tensor<3xf32>; tensor<3xf32>",
    "%r = stablehlo.real %a : tensor<3xf32>\n%s = stablehlo.imag %a : tensor<3xf32>",
    [A(3, dtype=f32)],
    (A(3), np.zeros(3)),
)
case(
    "divide zero",
    "tensor<3xi32>; tensor<3xi32> -> tensor<3xi32>; tensor<3xi32>",
    "%r = stablehlo.divide %a, %b : tensor<3xi32>\n%s = stablehlo.remainder %a, %b : tensor<3xi32>",
    [np.array([5, -(2**31), -7], np.int32), np.array([0, -1, 2], np.int32)],
    (np.array([-1, -(2**31), -3]), np.array([5, 0, -1])),
)
case(
    "convert f32 to i8 sat",
    "tensor<4xf32> -> tensor<4xi8>",
    "%r = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xi8>",
    [np.array([2.9, -2.9, 127, -128], f32)],
    np.array([2, -2, 127, -128]),
)
case(
    "convert to bool",
    "tensor<4xf32> -> tensor<4xi1>",
    "%r = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xi1>",
    [np.array([0.1, -0.0, np.nan, 0], f32)],
    np.array([1, 0, 1, 0], bool),
)
case(
    "convert f8",
    "tensor<3xf32> -> tensor<3xf32>",
    "%0 = stablehlo.convert %a : (tensor<3xf32>) -> tensor<3xf8E5M2>\n%r = stablehlo.convert %0 : (tensor<3xf8E5M2>) -> tensor<3xf32>",
    [np.array([1.1, 3, 1e6], f32)],
    np.array([1.1, 3, 1e6], f32).astype(ml_dtypes.float8_e5m2).astype(f32),
)
case(
    "bitcast i4",
    "tensor<2xi8> -> tensor<2x2xi8>",
    "%0 = stablehlo.bitcast_convert %a : (tensor<2xi8>) -> tensor<2x2xi4>\n%r = stablehlo.convert %0 : (tensor<2x2xi4>) -> tensor<2x2xi8>",
    [np.array([0x21, 0x43], np.int8)],
    np.array([[1, 2], [3, 4]]),
)
case(
    "bn inference",
    "tensor<2x3x2xf32>; tensor<3xf32>; tensor<3xf32>; tensor<3xf32>; tensor<3xf32> -> tensor<2x3x2xf32>",
    '%r = "stablehlo.batch_norm_inference"(%a, %b, %c, %d, %e) {epsilon = 0.0 : f32, feature_index = 1 : i64} : (tensor<2x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x3x2xf32>',
    [
        A(12, dtype=f32).reshape(2, 3, 2),
        np.array([1, 2, 3], f32),
        np.array([1, 1, 0], f32),
        np.array([0, 1, 2], f32),
        np.array([1, 4, 9], f32),
    ],
    (A(12).reshape(2, 3, 2) - np.array([0, 1, 2])[:, None])
    / np.array([1, 2, 3])[:, None]
    * np.array([1, 2, 3])[:, None]
    + np.array([1, 1, 0])[:, None],
)
case(
    "bn training",
    "tensor<2x2x2xf64>; tensor<2xf64>; tensor<2xf64> -> tensor<2x2x2xf64>; tensor<2xf64>; tensor<2xf64>",
    '%r, %s, %t = "stablehlo.batch_norm_training"(%a, %b, %c) {epsilon = 0.0 : f32, feature_index = 2 : i64} : (tensor<2x2x2xf64>, tensor<2xf64>, tensor<2xf64>) -> (tensor<2x2x2xf64>, tensor<2xf64>, tensor<2xf64>)',
    [np.array([[[1.0, 2], [3, 4]], [[3, 4], [1, 2]]]), np.array([1.0, 1]), np.array([1.0, 1])],
    (np.array([[[0.0, 0], [2, 2]], [[2, 2], [0, 0]]]), np.array([2.0, 3]), np.array([1.0, 1])),
)
case(
    "bn grad",
    "tensor<2x2x2xf64>; tensor<2xf64>; tensor<2xf64>; tensor<2xf64>; tensor<2x2x2xf64> -> tensor<2x2x2xf64>; tensor<2xf64>; tensor<2xf64>",
    '%r, %s, %t = "stablehlo.batch_norm_grad"(%a, %b, %c, %d, %e) {epsilon = 0.0 : f32, feature_index = 2 : i64} : (tensor<2x2x2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<2x2x2xf64>) -> (tensor<2x2x2xf64>, tensor<2xf64>, tensor<2xf64>)',
    [
        np.array([[[1.0, 2], [3, 4]], [[3, 4], [1, 2]]]),
        np.array([1.0, 1]),
        np.array([2.0, 3]),
        np.array([1.0, 1]),
        np.full((2, 2, 2), 0.1),
    ],
    (np.zeros((2, 2, 2)), np.zeros(2), np.array([0.4, 0.4])),
)
case(
    "conv batch group",
    "tensor<4x3x5xf32>; tensor<2x3x4xf32> -> tensor<2x4x4xf32>",
    "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, f, 0]x[0, i, o]->[b, f, 0], window = {reverse = [1]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64} : (tensor<4x3x5xf32>, tensor<2x3x4xf32>) -> tensor<2x4x4xf32>",
    [GROUPED, KERNEL],
    np.array(
        [
            [
                [np.sum(GROUPED[b + 2 * (o // 2), :, p : p + 2][:, ::-1] * KERNEL[:, :, o].T) for p in range(4)]
                for o in range(4)
            ]
            for b in range(2)
        ]
    ),
    1e-4,
)
case(
    "conv 0d",
    "tensor<2x3xf32>; tensor<3x4xf32> -> tensor<2x4xf32>",
    "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, f]x[i, o]->[b, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>",
    [A(6, dtype=f32).reshape(2, 3), A(12, dtype=f32).reshape(3, 4)],
    A(6).reshape(2, 3) @ A(12).reshape(3, 4),
)
case(
    "conv mixed types",
    "tensor<1x3x1xi8>; tensor<2x1x1xi8> -> tensor<1x2x1xi32>",
    "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x3x1xi8>, tensor<2x1x1xi8>) -> tensor<1x2x1xi32>",
    [np.array([100, 100, 100], np.int8).reshape(1, 3, 1), np.array([100, 100], np.int8).reshape(2, 1, 1)],
    np.array([20000, 20000]).reshape(1, 2, 1),
)
case(
    "dot_general bf16 out f32",
    "tensor<2x2xbf16>; tensor<2x2xbf16> -> tensor<2x2xf32>",
    "%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], precision = [HIGH, HIGHEST] : (tensor<2x2xbf16>, tensor<2x2xbf16>) -> tensor<2x2xf32>",
    [np.array([[1, 256], [2, 1]], ml_dtypes.bfloat16)] * 2,
    np.array([[513, 512], [4, 513]]),
)
case(
    "dot_general mixed in",
    "tensor<2x2xi8>; tensor<2x2xi16> -> tensor<2x2xi32>",
    "%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x2xi8>, tensor<2x2xi16>) -> tensor<2x2xi32>",
    [np.array([[100, 100], [2, 1]], np.int8), np.array([[1000, 2], [2000, 1]], np.int16)],
    np.array([[300000, 300], [4000, 5]]),
)
case(
    "dot_general bool",
    "tensor<2xi1>; tensor<2xi1> -> tensor<i1>",
    "%r = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<2xi1>, tensor<2xi1>) -> tensor<i1>",
    [np.array([1, 1], bool), np.array([1, 1], bool)],
    True,
)
case(
    "gather sorted batching",
    "tensor<2x3xi32>; tensor<2x2x1xui32> -> tensor<2x2xi32>",
    '%r = "stablehlo.gather"(%a, %b) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [1], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>, indices_are_sorted = true} : (tensor<2x3xi32>, tensor<2x2x1xui32>) -> tensor<2x2xi32>',
    [A(6, dtype=np.int32).reshape(2, 3), np.array([[[0], [2]], [[1], [2]]], np.uint32)],
    np.array([[0, 5], [1, 5]]),
)
case(
    "map 2d iota-less",
    "tensor<2x2xi32> -> tensor<2x2xf32>",
    '%r = "stablehlo.map"(%a) ({\n^bb0(%x: tensor<i32>):\n %0 = stablehlo.convert %x : (tensor<i32>) -> tensor<f32>\n %1 = stablehlo.exponential %0 : tensor<f32>\n stablehlo.return %1 : tensor<f32>\n}) {dimensions = array<i64: 0, 1>} : (tensor<2x2xi32>) -> tensor<2x2xf32>',
    [A(4, dtype=np.int32).reshape(2, 2)],
    np.exp(A(4).reshape(2, 2)),
)
case(
    "tuple nested",
    "tensor<2xf32>; tensor<i32> -> tensor<i32>; tensor<2xf32>",
    "%0 = stablehlo.tuple %a, %b : tuple<tensor<2xf32>, tensor<i32>>\n%1 = stablehlo.tuple %0, %a : tuple<tuple<tensor<2xf32>, tensor<i32>>, tensor<2xf32>>\n%2 = stablehlo.get_tuple_element %1[0] : (tuple<tuple<tensor<2xf32>, tensor<i32>>, tensor<2xf32>>) -> tuple<tensor<2xf32>, tensor<i32>>\n%r = stablehlo.get_tuple_element %2[1] : (tuple<tensor<2xf32>, tensor<i32>>) -> tensor<i32>\n%s = stablehlo.get_tuple_element %1[1] : (tuple<tuple<tensor<2xf32>, tensor<i32>>, tensor<2xf32>>) -> tensor<2xf32>",
    [np.array([1, 2], f32), np.int32(4)],
    (4, np.array([1, 2])),
)
case(
    "tuple result",
    "tensor<2xf32>; tensor<i32> -> tuple<tensor<2xf32>, tensor<i32>>",
    "%r = stablehlo.tuple %a, %b : tuple<tensor<2xf32>, tensor<i32>>",
    [np.array([1, 2], f32), np.int32(4)],
    (np.array([1, 2]), 4),
)
case(
    "tuple arg",
    "tuple<tensor<2xf32>, tensor<i32>> -> tensor<2xf32>",
    "%r = stablehlo.get_tuple_element %a[0] : (tuple<tensor<2xf32>, tensor<i32>>) -> tensor<2xf32>",
    [(np.array([1, 2], f32), np.int32(4))],
    np.array([1, 2]),
)
case(
    "token in while",
    "tensor<i32> -> tensor<i32>",
    "%0 = stablehlo.create_token : !stablehlo.token\n%c = stablehlo.constant dense<1> : tensor<i32>\n%n = stablehlo.constant dense<3> : tensor<i32>\n%r, %w = stablehlo.while(%i = %a, %k = %0) : tensor<i32>, !stablehlo.token\n cond {\n %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>\n stablehlo.return %p : tensor<i1>\n } do {\n %j = stablehlo.add %i, %c : tensor<i32>\n stablehlo.return %j, %k : tensor<i32>, !stablehlo.token\n }",
    [np.int32(0)],
    3,
)
case(
    "rng uniform int",
    "-> tensor<3xi32>",
    "%l = stablehlo.constant dense<2> : tensor<i32>\n%h = stablehlo.constant dense<3> : tensor<i32>\n%n = stablehlo.constant dense<3> : tensor<1xi64>\n%r = stablehlo.rng %l, %h, %n, distribution = UNIFORM : (tensor<i32>, tensor<i32>, tensor<1xi64>) -> tensor<3xi32>",
    [],
    np.full(3, 2),
)
case(
    "rng normal",
    "-> tensor<3xf32>",
    "%l = stablehlo.constant dense<2.0> : tensor<f32>\n%h = stablehlo.constant dense<0.0> : tensor<f32>\n%n = stablehlo.constant dense<3> : tensor<1xi64>\n%r = stablehlo.rng %l, %h, %n, distribution = NORMAL : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<3xf32>",
    [],
    np.full(3, 2),
)
case(
    "const splat complex",
    "-> tensor<2xcomplex<f32>>",
    "%r = stablehlo.constant dense<(1.0, -2.0)> : tensor<2xcomplex<f32>>",
    [],
    np.full(2, 1 - 2j),
)
case(
    "const nan hex",
    "-> tensor<3xf32>",
    "%r = stablehlo.constant dense<[0x7FC00000, 0xFF800000, -0.0]> : tensor<3xf32>",
    [],
    np.array([np.nan, -np.inf, -0.0]),
)
case(
    "const f16/bf16",
    "-> tensor<2xf16>; tensor<2xbf16>",
    "%r = stablehlo.constant dense<[1.5, 0x7C00]> : tensor<2xf16>\n%s = stablehlo.constant dense<[1.5, 0xFF80]> : tensor<2xbf16>",
    [],
    (np.array([1.5, np.inf]), np.array([1.5, -np.inf])),
)
case(
    "const i4",
    "-> tensor<3xi32>",
    "%0 = stablehlo.constant dense<[-8, 7, 1]> : tensor<3xi4>\n%r = stablehlo.convert %0 : (tensor<3xi4>) -> tensor<3xi32>",
    [],
    np.array([-8, 7, 1]),
)
case(
    "collective_permute none",
    "tensor<2xf32> -> tensor<2xf32>",
    '%r = "stablehlo.collective_permute"(%a) {source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>',
    [np.array([1, 2], f32)],
    np.array([1, 2]),
)
case(
    "reduce_precision bf16",
    "tensor<2xbf16> -> tensor<2xbf16>",
    "%r = stablehlo.reduce_precision %a, format = e5m3 : tensor<2xbf16>",
    [np.array([1.0625, 3], ml_dtypes.bfloat16)],
    np.array([1, 3]),
)
case(
    "reduce_precision f64",
    "tensor<3xf64> -> tensor<3xf64>",
    "%r = stablehlo.reduce_precision %a, format = e8m23 : tensor<3xf64>",
    [np.array([1 + 2**-30, 1e300, -0.0])],
    np.array([1, np.inf, -0.0]),
)
case(
    "exponential_minus_one complex",
    "tensor<2xcomplex<f64>> -> tensor<2xcomplex<f64>>; tensor<2xcomplex<f64>>",
    "%r = stablehlo.exponential_minus_one %a : tensor<2xcomplex<f64>>\n%s = stablehlo.log_plus_one %a : tensor<2xcomplex<f64>>",
    [np.array([1e-9 + 1e-9j, 1j])],
    (np.expm1(np.array([1e-9 + 1e-9j, 1j])), np.log1p(np.array([1e-9 + 1e-9j, 1j]))),
)
case(
    "logistic complex",
    "tensor<2xcomplex<f64>> -> tensor<2xcomplex<f64>>",
    "%r = stablehlo.logistic %a : tensor<2xcomplex<f64>>",
    [np.array([1 + 1j, -2j])],
    1 / (1 + np.exp(-np.array([1 + 1j, -2j]))),
)
case(
    "atan2 complex",
    "tensor<1xcomplex<f64>>; tensor<1xcomplex<f64>> -> tensor<1xcomplex<f64>>",
    "%r = stablehlo.atan2 %a, %b : tensor<1xcomplex<f64>>",
    [np.array([1 + 0j]), np.array([2 + 0j])],
    np.arctan2(1, 2) + 0j,
)
case(
    "cbrt sign",
    "tensor<3xf32> -> tensor<3xf32>; tensor<3xf32>",
    "%r = stablehlo.cbrt %a : tensor<3xf32>\n%s = stablehlo.sign %a : tensor<3xf32>",
    [np.array([-8, 0, 27], f32)],
    (np.array([-2, 0, 3]), np.array([-1, 0, 1])),
)
case(
    "sign complex",
    "tensor<2xcomplex<f32>> -> tensor<2xcomplex<f32>>",
    "%r = stablehlo.sign %a : tensor<2xcomplex<f32>>",
    [np.array([3 + 4j, 0], np.complex64)],
    np.array([0.6 + 0.8j, 0]),
)
case(
    "ds scalar",
    "tensor<f32> -> tensor<f32>",
    '%r = "stablehlo.dynamic_slice"(%a) {slice_sizes = array<i64>} : (tensor<f32>) -> tensor<f32>',
    [f32(1)],
    1,
)
case(
    "ds i8 index",
    "tensor<300xi32>; tensor<i8> -> tensor<1xi32>",
    "%r = stablehlo.dynamic_slice %a, %b, sizes = [1] : (tensor<300xi32>, tensor<i8>) -> tensor<1xi32>",
    [A(300, dtype=np.int32), np.int8(100)],
    np.array([100]),
)
case(
    "gather i8 index neg",
    "tensor<300xi32>; tensor<2x1xi8> -> tensor<2xi32>",
    '%r = "stablehlo.gather"(%a, %b) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>} : (tensor<300xi32>, tensor<2x1xi8>) -> tensor<2xi32>',
    [A(300, dtype=np.int32), np.array([[-5], [127]], np.int8)],
    np.array([0, 127]),
)
case(
    "topk",
    "tensor<2x4xf32> -> tensor<2x2xf32>; tensor<2x2xi32>",
    "%r, %s = chlo.top_k(%a, k = 2) : tensor<2x4xf32> -> (tensor<2x2xf32>, tensor<2x2xi32>)",
    [np.array([[1, 4, 2, 4], [3, 3, 1, 0]], f32)],
    (np.array([[4, 4], [3, 3]]), np.array([[1, 3], [0, 1]])),
)
case(
    "ragged dot",
    "tensor<4x2xf32>; tensor<2x2x3xf32>; tensor<2xi64> -> tensor<4x3xf32>",
    '%r = "chlo.ragged_dot"(%a, %b, %c) {ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>} : (tensor<4x2xf32>, tensor<2x2x3xf32>, tensor<2xi64>) -> tensor<4x3xf32>',
    [A(8, dtype=f32).reshape(4, 2), A(12, dtype=f32).reshape(2, 2, 3), np.array([1, 3])],
    np.concatenate(
        [A(8).reshape(4, 2)[:1] @ A(12).reshape(2, 2, 3)[0], A(8).reshape(4, 2)[1:] @ A(12).reshape(2, 2, 3)[1]]
    ),
)
case(
    "chlo constant_like dyn",
    "tensor<?x2xf32> -> tensor<?x2xf32>",
    '%0 = "chlo.constant_like"(%a) {value = 3.0 : f32} : (tensor<?x2xf32>) -> tensor<?x2xf32>\n%r = chlo.broadcast_add %a, %0 : (tensor<?x2xf32>, tensor<?x2xf32>) -> tensor<?x2xf32>',
    [np.ones((3, 2), f32)],
    np.full((3, 2), 4),
)
case(
    "chlo bcast compare",
    "tensor<2x1xf32>; tensor<3xf32> -> tensor<2x3xi1>",
    "%r = chlo.broadcast_compare %a, %b {comparison_direction = #chlo<comparison_direction LT>} : (tensor<2x1xf32>, tensor<3xf32>) -> tensor<2x3xi1>",
    [np.array([[1], [2]], f32), A(3, dtype=f32)],
    np.array([[1], [2]]) < A(3),
)
case(
    "chlo bcast select",
    "tensor<3xi1>; tensor<2x1xf32>; tensor<f32> -> tensor<2x3xf32>",
    "%r = chlo.broadcast_select %a, %b, %c : (tensor<3xi1>, tensor<2x1xf32>, tensor<f32>) -> tensor<2x3xf32>",
    [np.array([1, 0, 1], bool), np.array([[1], [2]], f32), f32(9)],
    np.where([1, 0, 1], np.array([[1], [2]]), 9),
)
case(
    "composite attr unknown",
    "tensor<2xf32> -> tensor<2xf32>",
    '%r = stablehlo.composite "my.op" %a {composite_attributes = { n = 2 : i64, t = dense<[1, 2]> : tensor<2xi64> }, decomposition = @imp, version = 1 : i32} : (tensor<2xf32>) -> tensor<2xf32>',
    [np.array([1, 2], f32)],
    np.array([2, 4]),
    extra="func.func private @imp(%x: tensor<2xf32>) -> tensor<2xf32> {\n %1 = stablehlo.add %x, %x : tensor<2xf32>\n return %1 : tensor<2xf32>\n}",
)
case(
    "no result",
    "tensor<2xf32> -> tensor<2xf32>",
    "stablehlo.custom_call @check.expect_close(%a, %a) {has_side_effect = true} : (tensor<2xf32>, tensor<2xf32>) -> ()\n%r = stablehlo.add %a, %a : tensor<2xf32>",
    [np.array([1, 2], f32)],
    np.array([2, 4]),
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_operation(name):
    text, arguments, expected, tolerance = CASES[name]
    with jax.enable_x64(True):
        found = jax.tree.leaves(jaxport.from_stablehlo(text)(*arguments))
    for got, wanted in zip(map(np.asarray, found), expected, strict=True):
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), np.asarray(wanted).astype(wide), tolerance, tolerance)


def test_windows_of_any_function_have_a_derivative():
    text = CASES["rw variadic dilated pads"][0]
    program = jaxport.from_stablehlo(text)
    x = np.arange(1, 4, dtype=np.float32)
    gradient = jax.grad(lambda y: program(np.arange(3, dtype=np.int32), y)[1].sum())(x)
    np.testing.assert_allclose(gradient, [1 + 2, 1 + 1 + 3, 2])  # of 1·x₀, x₀·x₁, x₁, x₁·x₂

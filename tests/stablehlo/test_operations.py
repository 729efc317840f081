"""Operations as the specification of StableHLO has them, at rare attributes: texts of modules, and what they give."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.stablehlo.registry import definitions


def module(signature: str, body: str) -> str:
    """The text of a module: the types of the arguments and results, and the operations, which return `%r`."""
    arguments, results = map(str.strip, signature.split("->"))
    given = ", ".join(f"%{'abcdefg'[at]}: {kind}" for at, kind in enumerate(arguments.split("; ")) if kind)
    return f"func.func @main({given}) -> {results} {{\n{body}\n  return %r : {results}\n}}"


def run(signature: str, body: str, *arguments: object) -> np.ndarray:
    return np.asarray(jaxport.from_stablehlo(module(signature, body))(*arguments))


ONE = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)

CASES = {
    "remainder keeps the sign of the dividend": (
        "tensor<4xi32>; tensor<4xi32> -> tensor<4xi32>",
        "%r = stablehlo.remainder %a, %b : tensor<4xi32>",
        [np.array([17, -17, 17, -17], np.int32), np.array([3, 3, -3, -3], np.int32)],
        [2, -2, 2, -2],
    ),
    "total order": (
        "tensor<4xf32>; tensor<4xf32> -> tensor<4xi1>",
        "%r = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>",
        [np.array([-0.0, 0.0, 1, np.nan], np.float32), np.array([0.0, -0.0, np.nan, np.inf], np.float32)],
        [True, False, True, False],
    ),
    "dots with a batch, and a wider result": (
        "tensor<2x3x2xi8>; tensor<2x2x3xi8> -> tensor<2x3x3xi32>",
        (
            "%r = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : "
            "(tensor<2x3x2xi8>, tensor<2x2x3xi8>) -> tensor<2x3x3xi32>"
        ),
        [np.full((2, 3, 2), 100, np.int8), np.full((2, 2, 3), 100, np.int8)],
        np.full((2, 3, 3), 20000),
    ),
    "a window that is turned": (
        "tensor<1x4x1xf32>; tensor<2x1x1xf32> -> tensor<1x3x1xf32>",
        (
            "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {reverse = [true]} "
            "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x4x1xf32>, tensor<2x1x1xf32>) -> tensor<1x3x1xf32>"
        ),
        [np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1), np.array([1, 10], np.float32).reshape(2, 1, 1)],
        np.array([12, 23, 34]).reshape(1, 3, 1),
    ),
    "a convolution of groups of images, dilated": (
        "tensor<2x4x1xf32>; tensor<2x1x2xf32> -> tensor<1x6x2xf32>",
        (
            "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {pad = [[1, 0]], "
            "lhs_dilate = [2], rhs_dilate = [2]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64} : "
            "(tensor<2x4x1xf32>, tensor<2x1x2xf32>) -> tensor<1x6x2xf32>"
        ),
        [np.arange(8, dtype=np.float32).reshape(2, 4, 1), np.array([1, 2, 10, 20], np.float32).reshape(2, 1, 2)],
        None,
    ),
    "a gather with batches of operand and indices": (
        "tensor<2x3x4xf32>; tensor<2x2x1xi32> -> tensor<2x2x4xf32>",
        (
            '%r = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], '
            "collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], "
            "start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 4>}> : "
            "(tensor<2x3x4xf32>, tensor<2x2x1xi32>) -> tensor<2x2x4xf32>"
        ),
        [np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.array([[[0], [9]], [[1], [-1]]], np.int32)],
        np.arange(24).reshape(2, 3, 4)[np.array([[0], [1]]), np.array([[0, 2], [1, 0]])],
    ),
    "a gather whose vectors of indices are the first axis": (
        "tensor<3x4xf32>; tensor<2x3xi32> -> tensor<3xf32>",
        (
            '%r = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], '
            "start_index_map = [1, 0], index_vector_dim = 0>, slice_sizes = array<i64: 1, 1>}> : "
            "(tensor<3x4xf32>, tensor<2x3xi32>) -> tensor<3xf32>"
        ),
        [ROWS, np.array([[0, 1, 3], [2, 0, 1]], np.int32)],
        [8, 1, 7],
    ),
    "a scatter by a function of one's own, past the edge": (
        "tensor<5xf32>; tensor<3x1xi32>; tensor<3xf32> -> tensor<5xf32>",
        (
            '%r = "stablehlo.scatter"(%a, %b, %c) <{scatter_dimension_numbers = #stablehlo.scatter<'
            "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({\n"
            "  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n    %n = stablehlo.negate %y : tensor<f32>\n"
            "    %s = stablehlo.add %x, %n : tensor<f32>\n    stablehlo.return %s : tensor<f32>\n  }) : "
            "(tensor<5xf32>, tensor<3x1xi32>, tensor<3xf32>) -> tensor<5xf32>"
        ),
        [np.ones(5, np.float32), np.array([[1], [1], [5]], np.int32), np.array([2, 3, 4], np.float32)],
        [1, -4, 1, 1, 1],
    ),
    "a reduction by a function of one's own": (
        "tensor<2x3xf32> -> tensor<2xf32>",
        (
            "%z = stablehlo.constant dense<1.0> : tensor<f32>\n"
            "%r = stablehlo.reduce(%a init: %z) across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>\n"
            "  reducer(%x: tensor<f32>, %y: tensor<f32>) {\n    %p = stablehlo.multiply %x, %y : tensor<f32>\n"
            "    %q = stablehlo.abs %p : tensor<f32>\n    stablehlo.return %q : tensor<f32>\n  }"
        ),
        [-ONE],
        [6, 120],
    ),
    "a window with dilations of data and window": (
        "tensor<3x4xf32> -> tensor<2x2xf32>",
        (
            '%z = stablehlo.constant dense<0.0> : tensor<f32>\n%r = "stablehlo.reduce_window"(%a, %z) <{window_dimensions = '
            "array<i64: 2, 1>, window_strides = array<i64: 4, 1>, base_dilations = array<i64: 2, 1>, window_dilations = "
            "array<i64: 3, 1>, padding = dense<[[2, 1], [0, -2]]> : tensor<2x2xi64>}> ({\n  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
            "    %s = stablehlo.add %x, %y : tensor<f32>\n    stablehlo.return %s : tensor<f32>\n  }) : "
            "(tensor<3x4xf32>, tensor<f32>) -> tensor<2x2xf32>"
        ),
        [ROWS],
        [[0, 0], [4, 5]],
    ),
    "a sort by the second operand, downward": (
        "tensor<4xf32>; tensor<4xi32> -> tensor<4xf32>",
        (
            '%r, %s = "stablehlo.sort"(%a, %b) <{dimension = 0 : i64, is_stable = true}> ({\n'
            "  ^bb0(%x: tensor<f32>, %y: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):\n"
            "    %p = stablehlo.compare GT, %i, %j, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
            "    stablehlo.return %p : tensor<i1>\n  }) : (tensor<4xf32>, tensor<4xi32>) -> (tensor<4xf32>, tensor<4xi32>)"
        ),
        [np.array([1, 2, 3, 4], np.float32), np.array([2, 7, 2, 9], np.int32)],
        [4, 2, 1, 3],
    ),
    "a sort by a comparator of one's own": (
        "tensor<5xi32> -> tensor<5xi32>",
        (
            '%r = "stablehlo.sort"(%a) <{dimension = 0 : i64, is_stable = true}> ({\n  ^bb0(%x: tensor<i32>, %y: tensor<i32>):\n'
            "    %v = stablehlo.abs %x : tensor<i32>\n    %w = stablehlo.abs %y : tensor<i32>\n"
            "    %p = stablehlo.compare LT, %v, %w, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
            "    stablehlo.return %p : tensor<i1>\n  }) : (tensor<5xi32>) -> tensor<5xi32>"
        ),
        [np.array([-3, 2, 3, -1, -2], np.int32)],
        [-1, 2, -2, -3, 3],
    ),
    "a case that is out of bounds takes the last branch": (
        "tensor<i32> -> tensor<i32>",
        (
            '%r = "stablehlo.case"(%a) ({\n  %x = stablehlo.constant dense<10> : tensor<i32>\n  stablehlo.return %x : tensor<i32>\n}, '
            "{\n  %x = stablehlo.constant dense<20> : tensor<i32>\n  stablehlo.return %x : tensor<i32>\n}) : (tensor<i32>) -> tensor<i32>"
        ),
        [np.int32(-1)],
        20,
    ),
    "a map": (
        "tensor<2x3xf32>; tensor<2x3xf32> -> tensor<2x3xf32>",
        (
            '%r = "stablehlo.map"(%a, %b) <{dimensions = array<i64: 0, 1>}> ({\n  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n'
            "    %p = stablehlo.multiply %x, %y : tensor<f32>\n    stablehlo.return %p : tensor<f32>\n  }) : "
            "(tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>"
        ),
        [ONE, ONE],
        ONE * ONE,
    ),
    "the smallest in windows, and a product into it": (
        "tensor<4xf32>; tensor<2xf32> -> tensor<4xf32>",
        (
            '%z = stablehlo.constant dense<1.0> : tensor<f32>\n%r = "stablehlo.select_and_scatter"(%a, %b, %z) <{window_dimensions = '
            "array<i64: 2>, window_strides = array<i64: 2>}> ({\n  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
            "    %p = stablehlo.compare LE, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>\n    stablehlo.return %p : tensor<i1>\n"
            "  }, {\n  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n    %p = stablehlo.multiply %x, %y : tensor<f32>\n"
            "    stablehlo.return %p : tensor<f32>\n  }) : (tensor<4xf32>, tensor<2xf32>, tensor<f32>) -> tensor<4xf32>"
        ),
        [np.array([3, 1, 2, 2], np.float32), np.array([5, 7], np.float32)],
        [1, 5, 7, 1],
    ),
    "rounding of halves, away from zero": (
        "tensor<4xf32> -> tensor<4xf32>",
        "%r = stablehlo.round_nearest_afz %a : tensor<4xf32>",
        [np.array([0.5, 1.5, -2.5, 2.4], np.float32)],
        [1, 2, -3, 2],
    ),
    "fewer bits": (
        "tensor<3xf32> -> tensor<3xf32>",
        "%r = stablehlo.reduce_precision %a, format = e5m2 : tensor<3xf32>",
        [np.array([1.1, 1.2, 1e6], np.float32)],
        [1, 1.25, np.inf],
    ),
    "an upper factor": (
        "tensor<2x2xf32> -> tensor<2x2xf32>",
        "%r = stablehlo.cholesky %a, lower = false : tensor<2x2xf32>",
        [np.array([[4, 2], [99, 5]], np.float32)],
        [[2, 1], [0, 2]],
    ),
    "a system with the adjoint on the right": (
        "tensor<2x2xf32>; tensor<2x2xf32> -> tensor<2x2xf32>",
        (
            '%r = "stablehlo.triangular_solve"(%a, %b) <{left_side = false, lower = true, unit_diagonal = true, transpose_a = '
            "#stablehlo<transpose ADJOINT>}> : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>"
        ),
        [np.array([[9, 0], [3, 9]], np.float32), np.array([[1, 5], [2, 7]], np.float32)],
        [[1, 2], [2, 1]],
    ),
    "padding inside and less than none": (
        "tensor<3xf32> -> tensor<4xf32>",
        (
            "%z = stablehlo.constant dense<9.0> : tensor<f32>\n"
            "%r = stablehlo.pad %a, %z, low = [-1], high = [0], interior = [1] : (tensor<3xf32>, tensor<f32>) -> tensor<4xf32>"
        ),
        [np.array([1, 2, 3], np.float32)],
        [9, 2, 9, 3],
    ),
    "bits of another type": (
        "tensor<2xf32> -> tensor<2x4xui8>",
        "%r = stablehlo.bitcast_convert %a : (tensor<2xf32>) -> tensor<2x4xui8>",
        [np.array([1, -2], np.float32)],
        np.array([1, -2], np.float32).view(np.uint8).reshape(2, 4),
    ),
    "an iota of complex numbers": (
        "-> tensor<3xcomplex<f32>>",
        "%r = stablehlo.iota dim = 0 : tensor<3xcomplex<f32>>",
        [],
        [0, 1, 2],
    ),
    "normalization of a batch": (
        "tensor<2x2xf32> -> tensor<2x2xf32>",
        (
            "%s = stablehlo.constant dense<1.0> : tensor<2xf32>\n%o = stablehlo.constant dense<0.5> : tensor<2xf32>\n"
            '%r, %m, %v = "stablehlo.batch_norm_training"(%a, %s, %o) <{epsilon = 0.0 : f32, feature_index = 1 : i64}> : '
            "(tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>)"
        ),
        [np.array([[1, 3], [3, 7]], np.float32)],
        [[-0.5, -0.5], [1.5, 1.5]],
    ),
    "sizes that are computed": (
        "tensor<?x3xf32> -> tensor<?xf32>",
        (
            "%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>\n"
            "%c = stablehlo.constant dense<3> : tensor<i32>\n%m = stablehlo.multiply %n, %c : tensor<i32>\n"
            "%s = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>\n"
            "%r = stablehlo.dynamic_reshape %a, %s : (tensor<?x3xf32>, tensor<1xi32>) -> tensor<?xf32>"
        ),
        [ONE],
        ONE.ravel(),
    ),
    "a smaller array whose axes are told": (
        "tensor<2x3xf32>; tensor<2xf32> -> tensor<2x3xf32>",
        "%r = chlo.broadcast_subtract %a, %b {broadcast_dimensions = array<i64: 0>} : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x3xf32>",
        [ONE, np.array([1, 4], np.float32)],
        [[0, 1, 2], [0, 1, 2]],
    ),
    "a selection of rows by batches": (
        "tensor<2x3xf32>; tensor<2x2xi32> -> tensor<2x2xf32>",
        (
            '%r = "stablehlo.torch_index_select"(%a, %b) <{dim = 1 : i64, batch_dims = 1 : i64}> : '
            "(tensor<2x3xf32>, tensor<2x2xi32>) -> tensor<2x2xf32>"
        ),
        [ONE, np.array([[2, 0], [1, 1]], np.int32)],
        [[3, 1], [5, 5]],
    ),
    "numbers of four bits, and of two": (
        "tensor<3xi8> -> tensor<3xi8>",
        (
            "%c = stablehlo.constant dense<[1, -8, 7]> : tensor<3xi4>\n"
            "%d = stablehlo.convert %c : (tensor<3xi4>) -> tensor<3xi8>\n%r = stablehlo.add %a, %d : tensor<3xi8>"
        ),
        [np.array([1, 1, 1], np.int8)],
        [2, -7, 8],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_operation(case):
    signature, body, arguments, expected = case
    found = run(signature, body, *arguments)
    if expected is None:  # by what XLA itself computes
        expected = compiled(module(signature, body), *arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def compiled(text: str, *arguments: np.ndarray) -> np.ndarray:
    """What XLA computes: a convolution of groups of images is one of groups of features, as JAX has it."""
    x, kernel = arguments
    made = jax.lax.conv_general_dilated(
        x, kernel, (1,), [(1, 0)], (2,), (2,), ("NWC", "WIO", "NWC"), batch_group_count=2, feature_group_count=1
    )
    assert "batch_group_count = 2" in text
    return np.asarray(made)


REFUSED = {
    "partition_id": ("-> tensor<ui32>", "%r = stablehlo.partition_id : tensor<ui32>", "asks which device"),
    "custom_call": (
        "tensor<2xf32> -> tensor<2xf32>",
        "%r = stablehlo.custom_call @mine(%a) : (tensor<2xf32>) -> tensor<2xf32>",
        "stablehlo_op",
    ),
    "set_dimension_size": (
        "tensor<4xf32>; tensor<i32> -> tensor<?xf32, #stablehlo.bounds<4>>",
        "%r = stablehlo.set_dimension_size %a, %b, dim = 0 : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>>",
        "up to a bound",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    signature, body, why = REFUSED[name]
    with pytest.raises(jaxport.Unsupported, match=why):
        jaxport.from_stablehlo(module(signature, body))


def test_quantized_types_are_refused_by_name():
    text = module(
        "tensor<2x!quant.uniform<i8:f32, 0.1:5>> -> tensor<2x!quant.uniform<i8:f32, 0.1:5>>",
        "%r = stablehlo.abs %a : tensor<2x!quant.uniform<i8:f32, 0.1:5>>",
    )
    with pytest.raises(jaxport.Unsupported, match="quantized"):
        jaxport.from_stablehlo(text)


def test_an_operation_of_ones_own():
    @jaxport.stablehlo_op("@scaled")
    def scaled(x, *, factor=1.0, **_):
        return x * factor

    body = "%r = stablehlo.custom_call @scaled(%a) {mhlo.backend_config = {factor = 3.0 : f32}} : (tensor<2xf32>) -> tensor<2xf32>"
    np.testing.assert_array_equal(run("tensor<2xf32> -> tensor<2xf32>", body, np.ones(2, np.float32)), [3, 3])
    with pytest.raises(jaxport.InvalidArgument, match="defined already"):
        jaxport.stablehlo_op("add")(scaled)
    del definitions()["@scaled"]


def test_values_that_decide_sizes_are_asked_for():
    text = module(
        "tensor<f32>; tensor<1xi32> -> tensor<?xf32>",
        "%r = stablehlo.dynamic_broadcast_in_dim %a, %b, dims = [] : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>",
    )
    program = jaxport.from_stablehlo(text)
    assert program(np.float32(2), np.array([3], np.int32)).shape == (3,)
    with pytest.raises(jaxport.JaxportError, match="close over the values"):
        jax.jit(program)(np.float32(2), np.array([3], np.int32))


def test_every_operation_of_the_bindings_is_defined_or_refused():
    from jaxlib.mlir.dialects import _chlo_ops_gen, _stablehlo_ops_gen

    known = {*definitions(), "stablehlo.return", "stablehlo.constant", "stablehlo.composite", "stablehlo.custom_call"}
    for generated in (_stablehlo_ops_gen, _chlo_ops_gen):
        text = Path(generated.__file__ or "").read_text(encoding="utf-8")
        names = set(re.findall(r'OPERATION_NAME = "([\w.]+)"', text))
        assert sorted(names - known - {"chlo._asin_acos_kernel"}) == []


def test_results_have_a_derivative():
    signature, body, (x,), _ = CASES["a reduction by a function of one's own"]
    text = module(signature, body.replace("%q = stablehlo.abs %p", "%q = stablehlo.add %p, %x"))
    program = jaxport.from_stablehlo(text)
    assert program(jnp.asarray(x)).shape == (2,)

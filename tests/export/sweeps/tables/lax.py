"""The cases of `jax.lax`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from tests.export.sweeps.cases import (
    FLOATS,
    Array,
    array,
    below,
    between,
    case,
    distinct,
    each,
    indices,
    positive,
    unit,
)

X, Y, Z = array("B", "T"), array("B", "T"), array("B", "T")
UNIT, OVER_ONE = array("B", "T", values=between(-0.9, 0.9)), array("B", "T", values=between(1.1, 3))
PLUS, MORE, HALF = (array("B", "T", values=v) for v in (positive, positive, between(0.1, 0.9)))
SHIFT = array("B", "T", values=below(7))
IMAGE, KERNEL = array("B", 3, "H", "W", values=unit), array(4, 3, 2, 3, values=unit)
PAIR = {"window_strides": (1, 1), "padding": "SAME"}
MATRIX = array("T", "T")
ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
WRITTEN = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
AXES = (((2,), (1,)), ((0,), (0,)))

ELEMENTWISE = {
    **each(
        "abs bitwise_not cbrt ceil clz conj cos exp exp2 expm1 erf erfc floor imag is_finite logistic neg "
        "population_count real reciprocal sign sin sinh cosh square tan tanh stop_gradient optimization_barrier "
        "asinh atan bessel_i0e bessel_i1e broadcast_like",
        X,
    )
    | {"broadcast_like": case(array("T"), X)},
    **each("acos asin atanh erf_inv", UNIT),
    **each("acosh", OVER_ONE),
    "log2": case(PLUS, dtypes=FLOATS),
    "one_minus_square": case(UNIT, dtypes=FLOATS),
    "polynomial": case(UNIT, (0.5, -1.0, 2.0), dtypes=FLOATS),
    **each("digamma lgamma log log1p rsqrt sqrt", PLUS),
    **each(
        "add atan2 bitwise_and bitwise_or bitwise_xor div eq ge gt le lt max min mul mulhi ne nextafter rem sub "
        "complex",
        X,
        Y,
    ),
    **each("igamma igammac igamma_grad_a polygamma random_gamma_grad", PLUS, MORE),
    "polygamma": case(1.0, PLUS, call=lambda f, m, x: f(jnp.full_like(x, m), x)),
    "zeta": case(OVER_ONE, PLUS),
    "betainc": case(PLUS, MORE, HALF, dtypes=FLOATS),
    "pow": case(PLUS, Y),
    "integer_pow": case(X, 3),
    **each("shift_left shift_right_arithmetic shift_right_logical", X, SHIFT),
    "clamp": case(X, Y, Z),
    "round": case(X, lax.RoundingMethod.TO_NEAREST_EVEN),
    "reduce_precision": case(X, 5, 7),
    "select": case(array("B", "T", dtype=np.dtype(bool)), X, Y),
    "select_n": case(indices("B", "T", bound=3), X, Y, Z),
    "convert_element_type": case(X, np.int16),
    "bitcast_convert_type": case(X, call=lambda f, x: f(x, f"uint{8 * x.dtype.itemsize}")),
}
SHAPES = {
    "batch_matmul": case(array("B", "T", 4), array("B", 4, 5)),
    "broadcast": case(X, (2,)),
    "broadcast_in_dim": case(array("T"), call=lambda f, x: f(x, (2, *x.shape), (1,))),
    "broadcast_to_rank": case(X, 4),
    "broadcasted_iota": case(X, call=lambda f, x: f(x.dtype, x.shape, 1)),
    "collapse": case(array("B", "T", "N"), 0, 2),
    "concatenate": case([X, Y], 1),
    "dynamic_index_in_dim": case(X, indices(bound=2), 1),
    "dynamic_slice": case(X, [indices(bound=3), indices(bound=3)], (1, 2)),
    "dynamic_slice_in_dim": case(X, indices(bound=3), 2, 1),
    "dynamic_update_index_in_dim": case(X, array("B"), indices(bound=3), 1),
    "dynamic_update_slice": case(X, array(1, 2), [indices(bound=3), indices(bound=3)]),
    "dynamic_update_slice_in_dim": case(X, array("B", 2), indices(bound=3), 1),
    "empty": case(X, call=lambda f, x: x + f(x.shape, x.dtype) * 0),
    "expand_dims": case(X, (0, 2)),
    "full": case(X, call=lambda f, x: f(x.shape, 3, x.dtype)),
    "full_like": case(X, 3),
    "index_in_dim": case(X, 1, 1),
    "index_take": case(X, [indices(4, bound=2)], (0,)),
    "iota": case(array("T"), call=lambda f, x: f(x.dtype, x.shape[0])),
    "pad": case(X, array(), [(1, -1, 0), (2, 0, 1)]),
    "reshape": case(array("B", "T", 4), call=lambda f, x: f(x, (x.shape[0], x.shape[1] * 4))),
    "rev": case(X, (1,)),
    "shape_as_value": case(X, call=lambda f, x: f(x.shape)),
    "slice": case(array(5, 6), (1, 0), (4, 6), (2, 1)),
    "slice_in_dim": case(X, 1, 3, axis=1),
    "split": case(array("B", 6), (2, 4), 1),
    "squeeze": case(array("B", 1, "T"), (1,)),
    "stack": case([X, Y], 1),
    "tile": case(X, (2, 3)),
    "transpose": case(array("B", "T", "N"), (2, 0, 1)),
    "unstack": case(array("B", 3), 1),
}
REDUCTIONS = {
    **each("argmax argmin", X, 1, np.int32),
    **each("cummax cummin cumprod cumsum cumlogsumexp", X, axis=1),
    **each("reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor", X, axes=(1,)),
    "reduce": case(X, call=lambda f, x: f(x, jnp.zeros((), x.dtype), lax.add, (1,))),
    "reduce_window": case(
        array("B", "W"), call=lambda f, x: f(x, jnp.zeros((), x.dtype), lax.add, (1, 3), (1, 2), "SAME")
    ),
    "sort": case(array("B", "L", values=distinct)),
    "sort_key_val": case(array("L", values=distinct), array("L")),
    "top_k": case(array("B", "L", values=distinct), 3),
    **each("approx_max_k approx_min_k", array("B", "L", values=distinct), 3),
    "associative_scan": case(array("B", 5), call=lambda f, x: f(lax.add, x, axis=1)),
}
PRODUCTS = {
    "dot": case(array("B", 4), array(4, "T")),
    "dot_general": case(array("B", "T", 4), array("B", 4, 5), AXES),
    "ragged_dot": case(
        array(6, 4), array(2, 4, 5), array(2, dtype=np.dtype(np.int32), values=lambda *_: np.int32([2, 4]))
    ),
    "ragged_dot_general": case(
        array(6, 4),
        array(2, 4, 5),
        array(2, dtype=np.dtype(np.int32), values=lambda *_: np.int32([2, 4])),
        call=lambda f, x, y, n: f(x, y, n, lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])),
    ),
    "scaled_dot": case(
        array(1, 4, 32),
        array(1, 32, 4),
        dtypes=("float32", "bfloat16"),
        options={"opset": 24},
    ),
    **each("conv conv_with_general_padding", IMAGE, KERNEL, (1, 2), "SAME"),
    "conv_with_general_padding": case(IMAGE, KERNEL, (1, 2), [(1, 1), (2, 0)], (1, 1), (2, 1)),
    "conv_general_dilated": case(IMAGE, KERNEL, **PAIR, rhs_dilation=(1, 2)),
    "conv_general_dilated_local": case(
        array("B", 3, 4, 5),
        array(4, 27, 2, 3),
        (1, 1),
        "VALID",
        (3, 3),
        rtol=1e-4,
        atol=1e-4,
    ),
    "conv_general_dilated_patches": case(IMAGE, (2, 3), (1, 1), "VALID"),
    "conv_transpose": case(
        array("B", 5, 6, 3),
        array(2, 3, 3, 4),
        (2, 2),
        "SAME",
    ),
}
GATHERS = {
    "gather": case(array("T", "N"), indices(4, 1, bound=3), call=lambda f, x, i: f(x, i, ROWS, (1, x.shape[1]))),
    **each(
        "scatter scatter_add scatter_max scatter_min scatter_mul scatter_sub",
        array("T", "N"),
        Array((2, 1), np.dtype(np.int32), lambda *_: np.int32([[2], [0]])),
        array(2, "N"),
        WRITTEN,
    ),
    "scatter_apply": case(
        array("T", "N"),
        indices(2, 1, bound=3),
        call=lambda f, x, i: f(x, i, lambda v: v * v, WRITTEN, update_shape=(2, x.shape[1])),
    ),
}
CONTROL = {
    "cond": case(X, array(dtype=np.dtype(bool)), call=lambda f, x, p: f(p, lambda v: v + v, lambda v: v * v, x)),
    "switch": case(X, indices(bound=3), call=lambda f, x, i: f(i, [lambda v: v, lambda v: v + v, lambda v: v * v], x)),
    "fori_loop": case(X, call=lambda f, x: f(0, 3, lambda i, v: v + x, x)),
    "while_loop": case(
        X, indices(bound=5), call=lambda f, x, n: f(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + x), (0, x))[1]
    ),
    "scan": case(X, call=lambda f, x: f(lambda c, v: (c + v, c * v), jnp.zeros_like(x[0]), x)),
    "map": case(X, call=lambda f, x: f(lambda v: v * v, x)),
    "composite": case(X, call=lambda f, x: f(lambda v: v * v, "my.square")(x)),
    "custom_linear_solve": case(
        array(4, dtype=None),
        dtypes=FLOATS,
        call=lambda f, b: f(lambda v: v * 2, b, lambda _, c: c / 2, transpose_solve=lambda _, c: c / 2),
    ),
    "custom_root": case(
        array("B", values=positive),
        dtypes=FLOATS,
        call=lambda f, x: f(
            lambda y: y * y * y - x,
            jnp.ones_like(x),
            lambda g, y: lax.fori_loop(0, 30, lambda _, y: y - (y * y * y - x) / (3 * y * y), y),
            lambda g, y: y / g(jnp.ones_like(y)),
        ),
    ),
    "platform_dependent": case(X, call=lambda f, x: f(x, cpu=lambda v: v + v, default=lambda v: v * v)),
    "with_sharding_constraint": case(X, call=lambda f, x: f(x, jax.sharding.SingleDeviceSharding(jax.devices()[0]))),
    "stage": case(X),
    "dce_sink": case(X, call=lambda f, x: (f(x * 2), x)[1]),
}
# Over an axis of `vmap`; across devices there is no ONNX.
DEVICES = {
    **each("psum pmax pmin pmean all_gather", X, call=lambda f, x: mapped(lambda v: f(v, "i"), x)),
    "axis_index": case(X, call=lambda f, x: mapped(lambda v: v + f("i").astype(v.dtype), x)),
    "axis_size": case(X, call=lambda f, x: mapped(lambda v: v + jnp.asarray(f("i")).astype(v.dtype), x)),
    "all_to_all": case(array(3, 3, "T"), call=lambda f, x: mapped(lambda v: f(v, "i", 0, 0), x)),
    "ppermute": case(array(3, "T"), call=lambda f, x: mapped(lambda v: f(v, "i", [(0, 1), (1, 2), (2, 0)]), x)),
    "psend": case(array(3, "T"), call=lambda f, x: mapped(lambda v: f(v, "i", [(0, 1), (1, 2), (2, 0)]), x)),
    "pshuffle": case(array(3, "T"), call=lambda f, x: mapped(lambda v: f(v, "i", [1, 2, 0]), x)),
    "pswapaxes": case(array(3, 3, "T"), call=lambda f, x: mapped(lambda v: f(v, "i", 0), x)),
    "psum_scatter": case(array(3, 3, "T"), call=lambda f, x: mapped(lambda v: f(v, "i"), x)),
    "pcast": case(X, call=lambda f, x: on_one_device(lambda v: f(v, "i", to="varying"), x)),
}


def mapped(function, x):
    return jax.vmap(function, axis_name="i")(x)


def on_one_device(function, x):
    mesh = jax.make_mesh((1,), ("i",))
    return jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("i"))(x)


FACTS = {
    "broadcast_shapes": case(X, call=lambda f, x: x.reshape(f(x.shape, (1, 1)))),
    "conv_dimension_numbers": case(
        IMAGE,
        KERNEL,
        call=lambda f, x, k: lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=f(x.shape, k.shape, ("NCHW", "OIHW", "NCHW"))
        ),
    ),
    "conv_general_permutations": case(IMAGE, call=lambda f, x: x.transpose(f(("NHWC", "HWIO", "NCHW"))[0])),
    "conv_general_shape_tuple": case(
        IMAGE,
        KERNEL,
        call=lambda f, x, k: jnp.zeros(
            f(x.shape, k.shape, (1, 1), ((0, 0), (1, 1)), ("NCHW", "OIHW", "NCHW")), x.dtype
        ),
    ),
    "conv_shape_tuple": case(
        IMAGE, KERNEL, call=lambda f, x, k: jnp.zeros(f(x.shape, k.shape, (1, 1), ((0, 0), (1, 1))), x.dtype)
    ),
    "conv_transpose_shape_tuple": case(
        IMAGE,
        KERNEL,
        call=lambda f, x, k: jnp.zeros(
            f(x.shape, (3, 4, *k.shape[2:]), (2, 2), ((0, 0), (1, 1)), ("NCHW", "IOHW", "NCHW")), x.dtype
        ),
    ),
    "dtype": case(X, call=lambda f, x: jnp.zeros(x.shape, f(x))),
    "padtype_to_pads": case(
        X, call=lambda f, x: lax.pad(x, x.dtype.type(0), [(*p, 0) for p in f((2, 3), (2, 2), (1, 1), "SAME")])
    ),
    "reduce_window_shape_tuple": case(
        array("B", "W"), call=lambda f, x: jnp.zeros(f(x.shape, (1, 3), (1, 2), ((0, 0), (1, 1))), x.dtype)
    ),
    "after_all": case(X, call=lambda f, x: (f(lax.create_token()), x)[1]),
    "create_token": case(X, call=lambda f, x: (f(), x)[1]),
}
GENERATORS = {
    "rng_bit_generator": case(
        array(4, dtype=np.dtype(np.uint32), values=below(2**32)),
        (3, 4),
        algorithm=lax.RandomAlgorithm.RNG_THREE_FRY,
        without={
            "symbolic, vmap": "draws for all examples at once, in an order that depends on whether their number is even"
        },
    ),
}
FOURIER = {"fft": case(array("B", 6), "FFT", (6,), dtypes=("complex64", "complex128"))}
CASES = {
    **ELEMENTWISE,
    **SHAPES,
    **REDUCTIONS,
    **PRODUCTS,
    **GATHERS,
    **CONTROL,
    **DEVICES,
    **FACTS,
    **GENERATORS,
    **FOURIER,
}
REASONS = dict.fromkeys(
    "AccuracyMode ConvDimensionNumbers ConvGeneralDilatedDimensionNumbers DotAlgorithm DotAlgorithmPreset "
    "DotDimensionNumbers FftType GatherDimensionNumbers GatherScatterMode Precision PrecisionLike "
    "RaggedDotDimensionNumbers RandomAlgorithm RoundingMethod ScatterDimensionNumbers Tolerance".split(),
    "a type",
) | dict.fromkeys(
    ("all_gather_start", "all_gather_done", "psum_scatter_start"),
    "half of a transfer between devices, which `vmap` refuses",
)
REFUSED = {
    "rng_uniform": case(array(), array(), (4,), dtypes=FLOATS),
}  # fmt: skip
ELSEWHERE = {
    "pbroadcast": case(X, call=lambda f, x: on_one_device(lambda v: f(lax.pcast(v, "i", to="varying"), "i", 0), x)),
    "precv": case(X, call=lambda f, x: on_one_device(lambda v: f(v.sum(), jax.typeof(v), "i", [(0, 0)]), x)),
    "ragged_all_to_all": case(
        array("L"), array("L"), *[indices(1, bound=1)] * 4,
        call=lambda f, x, y, *sizes: on_one_device(lambda x: f(x, y, *sizes, axis_name="i"), x),
    ),
}  # fmt: skip

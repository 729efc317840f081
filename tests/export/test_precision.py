"""Fewer bits: what is stored and computed in them, how far that is from float32, and what is refused."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
import pytest
from flax import linen, nnx
from jax import lax

import jaxport
from jaxport import Int4, Int8
from jaxport.export.delivery.runtime import Session
from jaxport.export.precision.calibrated import calibrated_int8
from jaxport.export.precision.dense import columns_int8
from jaxport.export.precision.int4_levels import GROUPS, quantized, rounding_error
from jaxport.export.precision.names import PRECISIONS
from jaxport.testing import f32, i32
from tests.exports import export, operators, weight_bytes
from tests.processors import needs_exact_int8

GENERATOR = np.random.default_rng(0)
DEEP, WIDE = (GENERATOR.normal(size=shape).astype(np.float32) / 8 for shape in ((64, 96), (96, 64)))
KERNEL = GENERATOR.normal(size=(3, 3, 3, 8)).astype(np.float32) / 4
BATCHES = [GENERATOR.normal(size=(4, 64)).astype(np.float32) for _ in range(2)]
IMAGES = [GENERATOR.normal(size=(2, 8, 8, 3)).astype(np.float32) for _ in range(2)]


def dense(x):
    return jax.nn.relu(x @ DEEP) @ WIDE


def convolve(x):
    x = jax.nn.relu(lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return x.mean((1, 2)) @ DEEP[:8]


def error(exported, **options):
    report = exported.verify(**options)
    return max(output.difference.relative for output in report.outputs)


@pytest.mark.parametrize(
    ("options", "greatest_size", "greatest_error", "operator"),
    [
        ({"precision": "float16"}, 0.51, 5e-3, "Cast"),
        ({"precision": "bfloat16"}, 0.51, 5e-2, "Cast"),
        ({"precision": "int8-dynamic"}, 0.3, 5e-2, "MatMulInteger"),
        ({"precision": "int8", "calibration": BATCHES}, 0.3, 0.1, "QuantizeLinear"),
        ({"precision": "int4"}, 0.2, 0.3, "DequantizeLinear"),
        ({"precision": "int4", "target": "onnxruntime"}, 0.2, 0.3, "MatMulNBits"),
        ({"precision": "int8-dynamic", "target": "portable"}, 0.3, 5e-2, "MatMulInteger"),
    ],
)
def test_weights_shrink_and_the_results_stay_near(options, greatest_size, greatest_error, operator):
    exported = export(dense, ("B", 64), **options)
    assert weight_bytes(exported) <= greatest_size * (DEEP.nbytes + WIDE.nbytes)
    assert operator in operators(exported, nested=True)
    assert 0 < error(exported, sizes=[{"B": 3}]) < greatest_error
    assert exported.model.metadata_props["jaxport.precision"] == options["precision"]
    assert {port.dtype.name for port in (*exported.inputs, *exported.outputs)} == {"float32"}


@pytest.mark.parametrize("target", ["onnx", "web"])
@pytest.mark.parametrize("precision", ["float16", "int8-dynamic", "int8", "int4"])
def test_outputs_keep_their_names(precision, target):
    """Also those of products that are replaced, one of which is named like an input."""

    def products(x):
        return {"logits": x @ DEEP, "present": [x + 1], "x": x @ DEEP[:, :64]}

    calibration = BATCHES if precision == "int8" else None
    exported = export(products, ("B", 64), precision=precision, calibration=calibration, target=target)
    assert exported.output_names == ["logits", "present.0", "x_out"]
    assert [value.name for value in exported.model.graph.outputs] == exported.output_names
    assert exported.verify([BATCHES[0]]).ok


def test_the_report_of_a_verification_names_the_precision():
    exported = export(dense, ("B", 64), precision="int8-dynamic")
    assert "where it is in int8-dynamic" in str(exported.verify(sizes=[{"B": 2}]))
    with pytest.raises(jaxport.VerificationFailed):
        exported.verify(sizes=[{"B": 2}], rtol=0, atol=1e-7)


def test_the_explanation_counts_what_is_left():
    exported = export(lambda x, y: x @ y @ DEEP, ("B", 64), (64, 64), precision="int8-dynamic")
    text = exported.pass_reports[-1].text
    assert "1 MatMulInteger; 1 declined: no operand on its right is a stored matrix" in text
    assert text in str(exported.explain())


# Halves


def test_the_border_is_in_half_where_that_is_asked_for():
    exported = export(dense, ("B", 64), precision="float16", io="float16")
    assert "Cast" not in operators(exported, nested=True)
    assert exported.run({"x": BATCHES[0].astype(np.float16)})[0].dtype == np.float16
    assert exported(BATCHES[0]).dtype == np.float32
    assert error(exported, sizes=[{"B": 3}]) < 5e-3


def test_16_bit_floats_are_float32_at_the_border():
    weights = jnp.ones((4, 2), jnp.bfloat16)
    spec = jax.ShapeDtypeStruct(("B", 4), jnp.bfloat16)
    exported = export(lambda x: (x @ weights, jnp.int32(x.shape[0])), spec, io="float32")
    assert [port.model_dtype for port in (*exported.inputs, *exported.outputs)] == ["float32", "float32", "int32"]
    exported.verify()
    product, _ = exported(np.ones((3, 4), np.float32))
    assert product.dtype == jnp.bfloat16


def test_a_border_that_is_float32_already_is_refused():
    with pytest.raises(jaxport.InvalidArgument, match="no input or output has floats of 16 bits"):
        export(jnp.tanh, ("B", 4), io="float32")


def test_sums_and_exponentials_stay_in_float32():
    exported = export(lambda x: jax.nn.softmax(x @ DEEP), ("B", 64), precision="float16")
    assert operators(exported, nested=True) == ["Cast", "MatMul", "Cast", "Softmax"]
    assert "1 left in float32 (1 Softmax)" in exported.pass_reports[-1].text


def test_normalizations_and_attention_keep_their_statistics_in_float32():
    def attend(x):
        x = x @ DEEP[:, :64]
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        heads = x.reshape(*x.shape[:2], 4, 16)
        return jax.nn.dot_product_attention(heads, heads, heads)

    exported = export(attend, ("B", 5, 64), precision="float16")
    found = {node.op_type: node for node in exported.model.graph.all_nodes()}
    assert found["Attention"].attributes["softmax_precision"].as_int() == 1
    assert found["LayerNormalization"].outputs[0].dtype.name == "FLOAT16"
    assert error(exported, sizes=[{"B": 2}]) < 1e-2


@pytest.mark.parametrize("target", ["onnx", "portable"])
def test_attention_that_older_opsets_write_out(target):
    """Passes leave values with a type in common: one of them becomes half before the others."""
    generator = np.random.default_rng(0)
    model = linen.MultiHeadDotProductAttention(4)
    x = generator.normal(size=(2, 6, 48)).astype(np.float32)
    attend = functools.partial(model.apply, model.init(jax.random.key(0), x))
    exported = export(attend, ("B", "T", 48), precision="float16", target=target)
    assert exported.verify([x]).ok


def test_the_dims_of_a_value_in_half_are_read_without_a_cast():
    def ones(x):
        return x @ DEEP, jnp.ones((x.shape[0], 2))

    exported = export(ones, ("B", 64), precision="float16", io="float16")
    assert "Shape" in operators(exported, nested=True)
    assert not any(node.op_type == "Cast" for node, _ in exported.model.graph.inputs[0].uses())


def test_what_half_cannot_hold_stays_in_float32():
    exported = export(lambda x: (x @ (DEEP * 1e6)) * 1e-6 + 1e-9, ("B", 64), precision="float16", io="float16")
    assert "MatMul" in exported.pass_reports[-1].text
    assert error(exported, sizes=[{"B": 3}]) < 5e-3


def test_a_loop_computes_in_float32_with_weights_in_half():
    def loop(x):
        return lax.fori_loop(0, x.shape[0], lambda _, y: jnp.tanh(y @ DEEP[:, :64]), x @ DEEP[:, :64])

    exported = export(loop, ("B", 64), precision="float16")
    assert weight_bytes(exported) < 0.6 * DEEP[:, :64].nbytes
    assert error(exported, sizes=[{"B": 3}]) < 1e-2


@pytest.mark.parametrize(
    "angles_of", [lambda p, f: p[..., None] * f, lambda p, f: p.astype(np.float32)[:, None] @ f[None]]
)
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_angles_of_late_positions_are_exact(precision, angles_of):
    """The frequencies of a rotary embedding are multiplied by positions before anything is rounded."""
    frequencies = 1e4 ** (-jnp.arange(32, dtype=jnp.float32) / 32)
    weights = jax.random.normal(jax.random.key(0), (64, 64)) / 8

    def turned(x, positions):
        angles = angles_of(positions, frequencies)
        first, second = jnp.split(x @ weights, 2, axis=-1)
        return jnp.concatenate([first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles)], axis=-1)

    inputs = [jax.ShapeDtypeStruct((2, 64), np.float32), jax.ShapeDtypeStruct((2,), np.int32)]
    exported = jaxport.to_onnx(turned, inputs, precision=precision)
    at = [np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32), np.array([3, 4001], np.int32)]
    np.testing.assert_allclose(exported(*at), turned(*at), atol=0.003 if precision == "float16" else 0.03)
    stored = {value.dtype.name for value in exported.model.graph.initializers.values() if value.shape == (64, 64)}
    assert stored == {precision.upper()}


def test_a_table_is_looked_up_in_half():
    exported = export(lambda ids: jnp.asarray(DEEP)[ids] @ WIDE, i32("T"), precision="float16")
    assert operators(exported, nested=True)[-1] == "Cast"
    assert error(exported, sizes=[{"T": 3}]) < 5e-3


# Eight bits


def test_convolutions_are_quantized_by_their_ranges():
    exported = export(convolve, ("B", 8, 8, 3), precision="int8", calibration=IMAGES)
    assert operators(exported, nested=True).count("QuantizeLinear") == 3
    assert "1 Conv of 8 bits, 1 MatMul of 8 bits" in exported.pass_reports[-1].text
    assert error(exported, inputs=[IMAGES[0]]) < 0.1


def test_convolutions_in_a_row_share_what_is_between_them():
    def twice(x):
        for kernel in (KERNEL, np.ones((1, 1, 8, 4), np.float32) / 8):
            dims = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims))
        return x.mean((1, 2))

    exported = export(twice, ("B", 8, 8, 3), precision="int8", calibration=IMAGES)
    assert operators(exported, nested=True).count("QuantizeLinear") == 3
    assert error(exported, inputs=[IMAGES[1]]) < 0.1


def test_the_bias_of_a_channel_without_weights_is_kept():
    """What folding a normalization into a convolution makes of a dead channel."""
    kernel = KERNEL.copy()
    kernel[..., 3] = 1e-25

    def biased(x):
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.tanh(y + np.full(8, 3.0, np.float32))

    exported = export(biased, ("B", 8, 8, 3), precision="int8", calibration=IMAGES)
    np.testing.assert_allclose(exported(IMAGES[0])[..., 3], np.tanh(3.0), atol=0.02)


@pytest.mark.parametrize(("dynamic", "fn", "shape"), [(True, dense, ("B", 64)), (False, convolve, ("B", 8, 8, 3))])
def test_weights_of_the_full_range_are_nearer(dynamic, fn, shape):
    needs_exact_int8()
    batches = BATCHES if dynamic else IMAGES
    calibration = None if dynamic else batches
    errors = []
    for full_range in (False, True):
        precision = Int8(dynamic=dynamic, full_range=full_range)
        exported = export(fn, shape, precision=precision, calibration=calibration)
        stored = [value.const_value.numpy() for value in exported.model.graph.initializers.values()]
        assert max(np.abs(array).max() for array in stored if array.dtype == np.int8) == precision.levels
        assert exported.verify([batches[0]]).ok
        errors.append(np.abs(exported(batches[1]) - fn(batches[1])).mean())
        assert exported.model.metadata_props["jaxport.precision"] == str(precision)
    assert errors[1] < 0.8 * errors[0]


def test_modules_may_have_different_ranges():
    precision = {"//Linear": Int8(dynamic=True), "head": Int8(dynamic=True, full_range=True), "first": Int8()}
    exported = export(Mixture(), ("B", 64), precision=precision, target="onnxruntime", calibration=BATCHES)
    largest = {
        name.partition(".")[0]: np.abs(value.const_value.numpy()).max()
        for name, value in exported.model.graph.initializers.items()
        if name.endswith(".int8")
    }
    assert largest == {"first": 64, "second": 64, "head": 127}


def test_batches_may_have_several_arguments():
    calibration = [(batch, batch) for batch in BATCHES]
    exported = export(lambda x, y: (x + y) @ DEEP, ("B", 64), ("B", 64), precision="int8", calibration=calibration)
    assert error(exported, sizes=[{"B": 3}]) < 0.1


def test_a_transposed_matrix_is_a_stored_one():
    table = nnx.Embed(96, 64, rngs=nnx.Rngs(0))
    exported = export(lambda ids: table.attend(table(ids)), i32("T"), precision="int8-dynamic")
    assert "MatMulInteger" in operators(exported, nested=True)
    assert error(exported, sizes=[{"T": 3}]) < 0.05


@pytest.mark.parametrize("weights", [np.zeros((3, 2), np.float32), np.float32([[1, -2], [0.5, 2], [3, 1e-3]])])
def test_levels_and_scales_give_the_weights_back(weights):
    for form in (Int8(), Int8(full_range=True)):
        levels, scale = columns_int8(weights, form)
        step = np.abs(weights).max(0) / form.levels
        assert (np.abs(levels.astype(np.float32) * scale - weights) <= step / 2 + 1e-7).all()
    found = quantized(weights, Int4()).weights(3)
    assert (np.abs(found - weights) <= np.abs(weights).max(0) / 8 + 1e-7).all()


@pytest.mark.parametrize(
    ("draw", "greatest"),
    [("normal", (0.0797, 0.0855)), ("laplace", (0.0941, 0.1075)), ("exponential", (0.0564, 0.1075))],
)
def test_groups_of_4_bits_are_near(draw, greatest):
    """Relative errors of symmetric groups whose largest weight has the level 7, or -7: 0.096, 0.120, 0.120."""
    weights = getattr(np.random.default_rng(0), draw)(size=(320, 64)).astype(np.float32)
    for symmetric, limit in zip((False, True), greatest, strict=True):
        assert rounding_error(weights, quantized(weights, Int4(symmetric=symmetric))) < limit


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("factor", [1e-37, 1e37])
def test_groups_of_extreme_weights_are_as_near(symmetric, factor):
    """Neither their range nor the squares that the scale is fitted to overflow or vanish."""
    weights = GENERATOR.normal(size=(64, 32)).astype(np.float32)
    weights[:, 0], form = 0, Int4(symmetric=symmetric)
    found = rounding_error(weights * np.float32(factor), quantized(weights * np.float32(factor), form))
    assert found == pytest.approx(rounding_error(weights, quantized(weights, form)), rel=1e-3)


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
def test_a_product_in_a_loop_has_weights_of_4_bits(target):
    def loop(x):
        return lax.fori_loop(0, x.shape[0], lambda _, y: jnp.tanh(y @ DEEP[:, :64]), x)

    exported = export(loop, ("B", 64), precision="int4", target=target)
    assert weight_bytes(exported) < 0.2 * DEEP[:, :64].nbytes
    assert error(exported, sizes=[{"B": 3}]) < 0.3


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", GROUPS)
def test_runtimes_read_the_groups_as_they_are_written(target, symmetric, group):
    """Groups the last of which is not full, columns that are shorter than one, and zero points that differ."""
    form, exact = Int4(group, symmetric), np.eye(400, dtype=np.float32)
    for depth in (4, 80, 400):
        weights = (GENERATOR.normal(size=(depth, 7)) + np.arange(7) - 3).astype(np.float32)
        exported = export(lambda x, weights=weights: x @ weights, ("B", depth), precision=form, target=target)
        stored = quantized(weights, form).weights(depth)
        np.testing.assert_allclose(exported(exact[:depth, :depth]), stored, rtol=0, atol=1e-5)
        assert symmetric == (not any("zero_point" in name for name in exported.model.graph.initializers))


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
def test_columns_of_few_weights_stay_as_they_are(target):
    exported = export(lambda x: x @ DEEP[:3] @ WIDE, ("B", 3), precision="int4", target=target)
    assert "its weights are too few to be smaller in 4 bits" in exported.pass_reports[-1].text
    assert weight_bytes(exported) < DEEP[:3].nbytes + 0.2 * WIDE.nbytes


@pytest.mark.parametrize(("group", "bits"), [(32, 5.125), (64, 4.5625), (128, 4.28125)])
def test_larger_groups_are_smaller_files(group, bits):
    """4 bits a weight; per group 32 for the scale and 4 for the zero point, which symmetric ones lack."""
    weights = GENERATOR.normal(size=(512, 256)).astype(np.float32)
    for target in ("onnxruntime", "onnx"):
        for symmetric in (False, True):
            exported = export(
                lambda x: x @ weights, ("B", 512), precision=Int4(group, symmetric), target=target
            )  # fmt: skip
            assert weight_bytes(exported) * 8 == weights.size * (bits - symmetric * 4 / group)


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_tolerance_of_4_bits_is_that_of_the_weights(target, depth):
    """Five times their rounding, times the square root of how many products follow one another."""
    weights = [GENERATOR.normal(size=(64, 64)).astype(np.float32) / 8 for _ in range(depth)]

    def deep(x):
        beside = jnp.tanh(x @ weights[0])  # a second path, which is shorter, does not count
        for matrix in weights:
            x = jnp.tanh(x @ matrix)
        return x + beside

    exported = export(deep, ("B", 64), precision="int4", target=target)
    assert exported.precision.tolerance == pytest.approx(5 * 0.08 * depth**0.5, rel=0.05)
    assert exported.verify(sizes=[{"B": 5}]).ok


@pytest.mark.parametrize("seed", range(8))
def test_saturated_outputs_are_within_the_tolerance(seed):
    """Their largest element is no larger than many others, which are as far off."""
    weights = np.random.default_rng(seed).normal(size=(64, 80)).astype(np.float32) / 8
    exported = export(lambda x: jnp.tanh(x @ weights), ("B", 64), precision="int4", target="onnxruntime")
    assert exported.verify(sizes=[{"B": 9}], seed=seed).ok


def test_the_tolerance_of_weights_that_4_bits_hold_exactly_and_of_those_in_a_loop():
    levels = np.tile(np.arange(-8, 8, dtype=np.float32), (64, 4))
    assert export(lambda x: x @ levels.T, ("B", 64), precision="int4").precision.tolerance == pytest.approx(0.05)

    def loop(x):
        return lax.fori_loop(0, x.shape[0], lambda _, y: jnp.tanh(y @ DEEP[:, :64]), x)

    assert export(loop, ("B", 64), precision="int4").precision.tolerance == PRECISIONS["int4"].tolerance


@pytest.mark.parametrize(
    ("form", "share"), [(Int4(128), 0.75), (Int4(symmetric=True), 0.64), (Int4(128, symmetric=True), 0.77)]
)
def test_coarser_groups_have_a_larger_tolerance(form, share):
    """As much larger as they round normally distributed weights more."""

    def loop(x):
        return lax.fori_loop(0, x.shape[0], lambda _, y: jnp.tanh(y @ WIDE[:64]), x)

    assert export(loop, ("B", 64), precision="int4").precision.tolerance == 0.6
    assert export(loop, ("B", 64), precision=form).precision.tolerance == pytest.approx(share, abs=0.01)


def test_other_precisions_have_one_tolerance_for_all_models():
    mixed = export(lambda x: jnp.tanh(x @ DEEP), ("B", 64), precision="int8-dynamic")
    assert mixed.precision.tolerance == PRECISIONS["int8-dynamic"].tolerance


# What is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "int3"}, "unknown precision 'int3'"),
        ({"precision": ["int4"]}, "unknown precision"),
        ({"precision": Int4(64), "calibration": BATCHES}, "`calibration` is given"),
        ({"precision": Int4(64), "io": "float16"}, "inputs and outputs cannot be 'float16'"),
        ({"precision": Int4(64), "target": "openvino"}, 'the target "openvino" at opset 18 has no integers of 4 bits'),
        ({"calibration": BATCHES}, "`calibration` is given without a precision"),
        ({"io": "float16"}, "`io` is given without a precision"),
        ({"precision": "int8"}, "`calibration` is missing"),
        ({"precision": "int8", "calibration": []}, "`calibration` has no batches"),
        ({"precision": "int4", "calibration": BATCHES}, "`calibration` is given"),
        ({"precision": Int8(dynamic=True, full_range=True), "calibration": BATCHES}, "`calibration` is given"),
        ({"precision": Int8(full_range=True)}, "`calibration` is missing"),
        ({"precision": "int4", "io": "int4"}, "inputs and outputs cannot be 'int4'"),
        ({"precision": "float16", "io": "bfloat16"}, "inputs and outputs cannot be 'bfloat16'"),
        ({"precision": "float16", "double_precision": True}, "the model is in double precision"),
        ({"precision": "bfloat16", "target": "web"}, 'the target "web" has no bfloat16'),
        ({"precision": "int4", "target": "portable"}, 'the target "portable" at opset 18 has no integers of 4 bits'),
        ({"precision": "int8", "calibration": [BATCHES[0][:, :3]]}, "the input `x` has shape"),
        ({"precision": "int8", "calibration": [BATCHES[0] * np.inf]}, "infinite or NaN"),
        ({"precision": "int8", "calibration": [BATCHES[0][:0]]}, "has no elements in any calibration batch"),
    ],
)
def test_contradictions_are_refused(options, text):
    with pytest.raises(jaxport.InvalidArgument, match=text):
        export(dense, ("B", 64), **options)


@pytest.mark.parametrize("options", [{"group": 48}, {"group": "64"}, {"group": 64.0}, {"group": 0}, {"symmetric": 1}])
def test_groups_without_kernels_are_refused(options):
    with pytest.raises(jaxport.InvalidArgument, match=r"groups of|`symmetric` is 1"):
        Int4(**options)


@pytest.mark.parametrize("options", [{"dynamic": "yes"}, {"full_range": 1}])
def test_options_of_8_bits_are_bools(options):
    with pytest.raises(jaxport.InvalidArgument, match=r"`dynamic` is 'yes'|`full_range` is 1"):
        Int8(**options)


@pytest.mark.parametrize("precision", ["int8-dynamic", "int4", "float16"])
def test_a_model_without_weights_has_no_precision(precision):
    with pytest.raises(jaxport.ExportError, match="no part of `tanh` can be converted to the precision"):
        export(jnp.tanh, f32("B", 3), precision=precision)


# Choices by query


class Mixture(nnx.Module):
    def __init__(self):
        self.first, self.second = nnx.Linear(64, 96, rngs=nnx.Rngs(0)), nnx.Linear(96, 64, rngs=nnx.Rngs(1))
        self.head = nnx.Linear(64, 48, rngs=nnx.Rngs(2))

    def __call__(self, x):
        return self.head(jax.nn.relu(self.second(jax.nn.relu(self.first(x)))))


PRODUCTS = ("MatMulNBits", "MatMulInteger", "QuantizeLinear", "MatMul")
CHOICES = {
    "all but one": ({"//Linear": "int4", "head": "float32"}, [2, 0, 0, 1]),
    "the later one holds": ({"head": "float32", "//Linear": "int4"}, [3, 0, 0, 0]),
    "two": ({"first": "int4", "second": "int8-dynamic"}, [1, 1, 0, 1]),
    "two forms": ({"first": Int4(64), "second": Int4(32, symmetric=True), "head": "int4"}, [3, 0, 0, 0]),
    "a form of each kind": ({"//Linear": "int8-dynamic", "head": Int4(64)}, [1, 2, 0, 0]),
    "three": ({"first": "int4", "second": "int8-dynamic", "//*[@path='head']": "int8"}, [1, 1, 1, 1]),
    "the model": ({"/Mixture": "int8-dynamic", "first": "float32"}, [0, 2, 0, 1]),
}


@pytest.mark.parametrize(("precision", "counts"), CHOICES.values(), ids=CHOICES)
def test_modules_have_the_precision_that_is_chosen_for_them(precision, counts):
    calibration = {"calibration": BATCHES} if "int8" in precision.values() else {}
    exported = export(Mixture(), ("B", 64), precision=precision, target="onnxruntime", **calibration)
    assert [operators(exported, nested=True).count(op_type) for op_type in PRODUCTS] == counts
    assert 0 < error(exported, sizes=[{"B": 3}]) < 0.3
    chosen = exported.model.metadata_props["jaxport.precision"]
    assert set(chosen.split(" and ")) == set(map(str, precision.values())) - {"float32"}


def test_each_module_has_the_groups_that_are_chosen_for_it():
    precision = {"first": Int4(64), "second": Int4(32, symmetric=True)}
    exported = export(Mixture(), ("B", 64), precision=precision, target="onnxruntime")
    found = {
        node.metadata_props["namespace"].rpartition("/")[2].partition(":")[0]: (
            node.attributes["block_size"].as_int(),
            len(node.inputs),
        )
        for node in exported.model.graph
        if node.op_type == "MatMulNBits"
    }
    assert found == {"first": (64, 4), "second": (32, 3)}
    assert exported.model.metadata_props["jaxport.precision"] == "int4(group=64) and int4(symmetric=True)"


@pytest.mark.parametrize(
    ("precision", "options", "text"),
    [
        ({"//Linear": "float16"}, {}, "cannot have the precision 'float16' on its own"),
        ({"//Linear": ["int4"]}, {}, "unknown precision"),
        ({"//Linear": "float32"}, {}, "no query asks for fewer bits than float32"),
        ({"//Linear": "int4"}, {"calibration": BATCHES}, "`calibration` is given"),
        ({"//Linear": "int8"}, {}, "`calibration` is missing"),
        ({"//dot_general": "int4"}, {}, "matches no module"),
        ({"//Conv": "int4"}, {}, "Conv"),
    ],
)
def test_choices_that_mean_nothing_are_refused(precision, options, text):
    with pytest.raises((jaxport.InvalidArgument, jaxport.QueryError), match=text):
        export(Mixture(), ("B", 64), precision=precision, target="onnxruntime", **options)


@pytest.mark.parametrize(("turned", "bias"), [(0, True), (1, True), (1, False)])
def test_a_gemm_is_quantized_with_its_bias(turned, bias):
    x, result = (ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape)) for name, shape in (("x", [4, 64]), ("y", [4, 96])))  # fmt: skip
    arrays = {"w": DEEP.T.copy() if turned else DEEP, "b": WIDE[:, 0].copy()}
    held = [
        ir.Value(name=n, const_value=ir.Tensor(a), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(a.shape))
        for n, a in arrays.items()
    ][: 1 + bias]
    node = ir.Node("", "Gemm", [x, *held], [ir.AttrInt64("transB", turned)], outputs=[result])
    graph = ir.Graph([x], [result], nodes=[node], initializers=held, opset_imports={"": 21}, name="gemm")
    model = ir.Model(graph, ir_version=10)
    assert (
        calibrated_int8(model, {"x": (float(BATCHES[0].min()), float(BATCHES[0].max()))}, form=Int8())
        == "1 Gemm of 8 bits"
    )
    common.RemoveUnusedNodesPass()(model)
    (found,) = Session(model).run({"x": BATCHES[0]})
    expected = BATCHES[0] @ DEEP + (arrays["b"] if bias else 0)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


# Tables

TABLE = GENERATOR.normal(size=(400, 64)).astype(np.float32)


def tied(ids):
    table = jnp.asarray(TABLE)
    return jax.nn.relu(table[ids] @ DEEP[:, :64]) @ table.T


@pytest.mark.parametrize(
    ("fn", "precision", "greatest_size", "lookups"),
    [
        (tied, "int8-dynamic", 0.28, 2),
        (lambda ids: jnp.asarray(TABLE)[ids] @ DEEP, "int8-dynamic", 0.28, 2),
        (tied, "int4", 0.28, 2),
        (lambda ids: jnp.asarray(TABLE[:100])[ids] @ DEEP, "int8-dynamic", 0.7, 1),
    ],
)
def test_a_large_table_is_stored_once_in_8_bits(fn, precision, greatest_size, lookups):
    plain, exported = (export(fn, i32("T"), precision=p) for p in (None, precision))
    assert weight_bytes(exported) < greatest_size * weight_bytes(plain)
    assert operators(exported, nested=True).count("Gather") == lookups
    assert error(exported, sizes=[{"T": 5}], avoid={}) < 0.3
    np.testing.assert_allclose(
        exported(np.int32([-1, 3])), plain(np.int32([399, 3])), atol=0.3 * np.abs(plain(np.int32([3]))).max()
    )

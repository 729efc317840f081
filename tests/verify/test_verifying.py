"""`verify` runs both sides on sampled or given inputs, at several sizes, and says what it found."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.testing import f32, f64, i32, spec
from jaxport.verify import verify_file
from tests.exports import export


def wrong(op, x):
    return op.Tanh(op.Mul(x, 1.5))


TABLE = jnp.arange(40.0).reshape(10, 4)


def test_every_output_is_compared_at_two_sizes_of_each_symbol():
    report = export(lambda x, y: {"sum": x.sum(0), "both": x @ y}, ("B", "T"), ("T", 3)).verify()
    assert report.ok
    assert [output.name for output in report.outputs] == ["both", "sum"] * 2
    first, second = report.outputs[0], report.outputs[2]
    assert all(first.sizes[name] != second.sizes[name] for name in ("B", "T"))
    assert first.shape == (first.sizes["B"], 3)
    assert first.dtype == "float32"


def test_static_dims_are_run_once():
    assert len(export(jnp.tanh, f32(2, 3)).verify().outputs) == 1


def test_the_report_is_a_table():
    text = str(export(jnp.sin, ("B", 3)).verify(sizes={"B": 2}))
    assert text.splitlines()[0] == "`sin` agrees in JAX and in ONNX Runtime"
    assert "sizes  output  dtype    shape  max error  relative  ulps" in text
    assert "B=2    output  float32  2×3" in text


def test_a_mismatch_is_raised_or_reported():
    exported = export(lambda x: jnp.tanh(x), f32("B", 3), rules={"tanh": wrong})
    with pytest.raises(jaxport.VerificationFailed, match="the output `output` of `lambda` differs at B="):
        exported.verify()
    report = exported.verify(check=False)
    assert not report.ok
    assert [output.ok for output in report.outputs] == [False, False]
    assert "differs in JAX and in ONNX Runtime" in str(report)
    assert "first divergence:" in str(report)
    assert exported.verify(rtol=1, atol=1).ok


def test_wrong_shapes_and_dtypes_are_told():
    """Passes may spoil what rules cannot: the walker checks those."""

    def flattened(model):
        node = model.graph[0]
        node.op_type, node.outputs[0].shape = "Flatten", None

    report = export(lambda x: jnp.sin(x), f32(2, 3, 4), passes=[flattened]).verify(check=False)
    assert report.outputs[0].difference.problem == "the shape is (2, 12), (2, 3, 4) is expected"


@pytest.mark.parametrize(
    "inputs",
    [
        [np.ones((3, 4), np.float32), np.arange(3, dtype=np.int32)],
        {"x": np.ones((3, 4), np.float32), "i": np.arange(3, dtype=np.int32)},
        {"i": np.arange(3, dtype=np.int32)},
        lambda port, sizes, generator: np.full(sizes["B"], 7, np.int32) if port.name == "i" else None,
    ],
)
def test_inputs_may_be_given(inputs):
    seen = []

    def fn(x, i):
        jax.debug.callback(lambda value: seen.append(np.asarray(value)), i, ordered=False)
        return x + TABLE[i]

    def seeing(op, *operands, **_):
        return ()

    report = export(fn, ("B", 4), i32("B"), rules={"debug_callback": seeing}).verify(inputs)
    jax.effects_barrier()
    assert report.ok
    assert all(set(values.tolist()) in ({0, 1, 2}, {7}) for values in seen)
    if not callable(inputs):
        assert [output.sizes for output in report.outputs] == [{"B": 3}]


def test_ids_are_valid_without_being_told():
    """An id out of range would select nothing: JAX fills with NaN."""
    report = export(lambda ids: jnp.take(TABLE, ids, axis=0), i32("B", "T")).verify()
    assert all(output.difference.finite == 1 for output in report.outputs)


def test_more_inputs_than_a_program_has_are_refused():
    program = jaxport.from_onnx(jaxport.to_onnx(jnp.tanh, [("B", 3)]))
    x = np.ones((2, 3), np.float32)
    program.verify(inputs=[x])
    with pytest.raises(jaxport.InvalidArgument, match=r"(?s)2 inputs are given, and the model has 1.*`x`"):
        program.verify(inputs=[x, x])


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([np.ones((3, 5), np.float32)], "the input `x` has shape (3, 5)"),
        ([np.ones((3, 4))] * 2, "the arguments are not those that the function was exported with"),
        ({"y": np.ones(3)}, "`y` is not an input of the model"),
        ([np.ones((3, 4), np.int32)], "the input `x` has dtype int32"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, text):
    with pytest.raises(jaxport.InvalidArgument) as caught:
        export(lambda x: x * 2, ("B", 4)).verify(inputs)
    assert text in str(caught.value)


def test_constraints_are_kept():
    report = export(lambda x: x[:, 3:], ("B", "T"), constraints=["T >= 6"]).verify()
    assert all(output.sizes["T"] >= 6 for output in report.outputs)


@pytest.mark.parametrize("weights", ["constants", "inputs"])
def test_weights_are_carried_along(weights):
    layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    assert export(layer, ("B", 4), weights=weights).verify().ok


@pytest.mark.parametrize("shape", [("B", 4), (2, 4)])
def test_a_module_may_be_trained_after_the_export(shape):
    layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    exported = export(layer, shape)
    layer.kernel[...] = layer.kernel[...] + 1
    assert exported.verify().ok


def test_state_outputs_are_compared():
    norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    report = export(norm, ("B", 4), state="outputs").verify()
    assert [output.name for output in report.outputs][:3] == ["output", "mean_out", "var_out"]


def test_random_streams_of_a_module_are_run_as_traced():
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    assert export(dropout, ("B", 4), state="discard").verify().ok


def test_double_precision_is_compared_as_such():
    report = export(lambda x: jnp.tanh(x) / 3, ("B", 4), double_precision=True).verify()
    assert report.outputs[0].dtype == "float64"
    assert report.outputs[0].difference.absolute < 1e-14
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint8", "bool", "int32"])
def test_every_dtype_passes_the_border(dtype):
    assert export(lambda x: jnp.concatenate([x, x]), spec("B", 3, dtype=dtype)).verify().ok


def test_keys_pass_the_border():
    key = jax.eval_shape(lambda: jax.random.key(0))
    assert export(lambda key, x: x + jax.random.uniform(key, x.shape), key, ("B", 3)).verify().ok


def test_layouts_at_the_border_are_undone():
    exported = export(lambda x: x * 2, ("B", 5, 6, 3), inputs_as_nchw=[0], outputs_as_nchw=[0])
    report = exported.verify()
    assert report.outputs[0].shape[1:] == (5, 6, 3)


def test_keyword_inputs_and_static_parameters():
    def fn(x, *, scale, offset, power):
        return (x * scale["a"] + offset) ** power

    exported = export(fn, ("B", 3), input_params={"scale": {"a": ("B", 1)}, "offset": 1.0}, static_params={"power": 2})
    assert exported.verify().ok
    assert exported.verify([np.ones((2, 3), np.float32)]).ok


def test_nothing_finite_is_noted():
    text = str(export(lambda x: jnp.log(-jnp.abs(x) - 1), f32("B")).verify())
    assert "nothing finite: give inputs of your own" in text
    half = str(export(lambda x: jnp.where(x > 0, jnp.inf, x), f32("B", 50)).verify())
    assert "% finite" in half


def test_the_same_seed_gives_the_same_report():
    exported = export(lambda x: jnp.tanh(x @ x.T), f32("B", "T"))
    assert exported.verify() == exported.verify()
    assert exported.verify() != exported.verify(seed=1)


def test_a_mapped_scan_of_symbolic_length():
    assert export(lambda xs: lax.scan(lambda c, x: (jnp.sin(c + x), c), 0.0, xs), f32("T")).verify().ok


# Saved models


def scaled(x, *, factor=1.0):
    return jnp.tanh(x) * factor


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "scaled.onnx"
    export(scaled, ("B", 3), static_params={"factor": 2.0}).save(path)
    return path


def test_a_saved_model_is_compared(saved):
    report = verify_file(saved, scaled, [("B", 3)], static_params={"factor": 2.0})
    assert report.ok
    assert report.name == "scaled.onnx"
    assert len({output.sizes["B"] for output in report.outputs}) == 2
    with pytest.raises(jaxport.VerificationFailed, match=r"the output `output` of `scaled\.onnx` differs"):
        verify_file(saved, scaled, [("B", 3)], static_params={"factor": 2.5})
    assert not verify_file(saved, scaled, [("B", 3)], check=False).ok
    assert verify_file(saved, scaled, [("B", 3)], atol=10.0).ok


def test_a_saved_model_with_weights_as_inputs_state_and_layout(tmp_path):
    norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    options = {"state": "outputs", "inputs_as_nchw": [0], "outputs_as_nchw": [0]}
    export(norm, ("B", 2, 3, 4), weights="inputs", input_names=["image"], **options).save(tmp_path / "m.onnx")
    assert verify_file(tmp_path / "m.onnx", norm, [("B", 2, 3, 4)], **options).ok
    with pytest.raises(jaxport.RunError):
        verify_file(tmp_path / "m.onnx", norm, [("B", 2, 3, 4)], state="outputs")


def test_a_saved_model_in_double_precision(tmp_path):
    export(scaled, ("B", 3), double_precision=True).save(tmp_path / "m.onnx")
    report = verify_file(tmp_path / "m.onnx", scaled, [("B", 3)], double_precision=True)
    assert report.outputs[0].dtype == "float64"
    assert verify_file(tmp_path / "m.onnx", scaled, [f64("B", 3)], double_precision=True).ok


def test_a_saved_model_of_something_else_is_refused(saved, tmp_path):
    with pytest.raises(jaxport.InvalidArgument, match="the file has the inputs `x`, and the function `x`, `y`"):
        verify_file(saved, lambda x, y: x + y, [("B", 3), ("B", 3)])
    with pytest.raises(jaxport.InvalidArgument, match="the file has the outputs `output`"):
        verify_file(saved, lambda x: (x, x), [("B", 3)])
    with pytest.raises(jaxport.RunError, match="ONNX Runtime cannot load the model"):
        verify_file(tmp_path / "missing.onnx", scaled, [("B", 3)])


def test_a_linen_like_partial_is_verified():
    weights = {"params": {"kernel": jnp.ones((3, 2))}}

    def apply(variables, x):
        return x @ variables["params"]["kernel"]

    assert export(functools.partial(apply, weights), ("B", 3)).verify().ok

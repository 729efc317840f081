"""What `to_onnx` returns: runs like the function, raw by name, and checks what it is given."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.export.ports import Port, stored
from jaxport.testing import f32, i32, spec
from tests.exports import export

ONES, KEY = np.ones((2, 3), np.float32), jax.random.key(0)


def test_the_representation_is_short():
    exported = export(lambda x, ids: x[ids] + 1, ("B", 3), i32("T"), name="pick", output_names=["y"])
    assert repr(exported).startswith("<Exported pick: (x: float32[B, 3], ids: int32[T]) -> (y: float32[T, 3]), ")
    assert repr(exported).endswith("nodes, opset 18>")
    assert len(repr(exported)) < 120


def test_the_pytrees_of_the_function_go_in_and_come_out():
    def fn(batch, *, scale):
        return {"sum": batch["a"] + batch["b"][0], "scaled": [batch["a"] * scale]}

    specs = {"a": ("B", 3), "b": [("B", 3)]}
    exported = export(fn, specs, input_params={"scale": ()})
    assert exported.input_names == ["batch.a", "batch.b.0", "scale"]
    result = exported({"a": ONES, "b": [ONES]}, scale=np.float32(3))
    np.testing.assert_array_equal(result["sum"], 2 * ONES)
    np.testing.assert_array_equal(result["scaled"][0], 3 * ONES)


def test_what_is_no_array_is_given_back():
    exported = export(lambda x: {"y": x * 2, "kind": "doubled", "none": None}, ("B", 3))
    result = exported(ONES)
    assert (result["kind"], result["none"]) == ("doubled", None)
    np.testing.assert_array_equal(result["y"], 2 * ONES)


def test_run_is_raw():
    exported = export(lambda x: (x.sum(), x * 2), f32("B", "H", "W", 3), inputs_as_nchw=[0], outputs_as_nchw=[1])
    total, doubled = exported.run({"x": np.ones((1, 3, 4, 5), np.float32)})
    assert total == 60
    assert doubled.shape == (1, 3, 4, 5)
    assert exported(np.ones((1, 4, 5, 3), np.float32))[1].shape == (1, 4, 5, 3)


def test_defaults_of_weights_may_be_replaced():
    layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    exported = export(layer, ("B", 3), weights="inputs", input_names=["x"])
    assert exported.input_names == ["x"]
    kernel = np.ones((3, 2), np.float32)
    np.testing.assert_allclose(exported.run({"x": ONES, "kernel": kernel})[0], 3 * np.ones((2, 2)), rtol=1e-6)
    np.testing.assert_allclose(exported.run({"x": ONES})[0], layer(ONES), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda e: e.run({}), "the input `x` is missing"),
        (lambda e: e.run({"x": ONES, "z": ONES}), "`z` is not an input of the model"),
        (lambda e: e.run({"x": np.ones((2, 4), np.float32), "i": 1}), "the input `x` has shape (2, 4)"),
        (lambda e: e.run({"x": ONES[0], "i": 1}), "pass an array of rank 2"),
        (lambda e: e.run({"x": ONES.astype(np.float16), "i": 1}), "the input `x` has dtype float16"),
        (lambda e: e(ONES), "the arguments are not those that the function was exported with"),
        (lambda e: e(np.ones((2, 4), np.float32), 1), "it was exported as (B, 3)"),
        (lambda e: e(ONES.astype(np.int32), 1), "it was exported as float32"),
        (lambda e: e(ONES, 1.5), "the input `i` has dtype float64"),
        (lambda e: e(ONES, 2**40), "the input `i` has dtype int64"),
        (lambda e: e(ONES, np.ones(2, np.int32)), "the input `i` has shape (2,)"),
    ],
)
def test_what_does_not_fit_is_refused(call, text):
    exported = export(lambda x, i: x + i, ("B", 3), i32())
    with pytest.raises(jaxport.InvalidArgument) as caught:
        call(exported)
    assert text in str(caught.value)
    assert caught.value.instead


def test_dims_of_one_name_must_agree():
    exported = export(lambda x, y: x + y.sum(), ("B", 3), ("2*B",))
    with pytest.raises(jaxport.InvalidArgument, match="the dimension `B` is 2 in axis 0 of `x` and 3 in axis 0 of `y`"):
        exported(ONES, np.ones(6, np.float32))
    assert exported(ONES, np.ones(4, np.float32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", 2, np.float32(2)),
        ("float32", 2.5, np.float32(2.5)),
        ("float32", True, np.float32(1)),
        ("float32", np.float64(2.5), np.float32(2.5)),
        ("int32", np.int64(7), np.int32(7)),
        ("int32", True, np.int32(1)),
        ("bfloat16", 1.5, np.array(1.5, ml_dtypes.bfloat16)),
        ("complex64", 1.5, np.complex64(1.5)),
        ("uint8", 255, np.uint8(255)),
    ],
)
def test_python_numbers_and_wide_arrays_are_taken_as_jax_does(dtype, value, expected):
    port = Port("x", (), np.dtype(dtype))
    np.testing.assert_array_equal(port.to_model(value, x64=False), stored(expected))
    assert port.to_model(value, x64=False).dtype == port.model_dtype


@pytest.mark.parametrize(
    ("dtype", "value", "x64"),
    [
        ("float16", np.float32(1), False),
        ("float32", np.float64(1), True),
        ("int32", 1.5, False),
        ("int32", np.uint32(1), False),
        ("bool", 1, False),
        ("uint8", 256, False),
        ("uint8", -1, False),
        ("float32", 1j, False),
        (KEY.dtype, np.uint32(1), False),
    ],
)
def test_nothing_is_converted_silently(dtype, value, x64):
    port = Port("x", (), np.dtype(dtype) if isinstance(dtype, str) else dtype)
    with pytest.raises(jaxport.InvalidArgument, match="the input `x` has dtype"):
        port.to_model(value, x64)


@pytest.mark.parametrize(("shape", "nchw"), [((), False), ((2,), False), ((1, 4, 5, 3), False), ((1, 4, 5, 3), True)])
def test_complex_arrays_are_pairs_at_the_border(shape, nchw):
    port = Port("x", shape, np.dtype(np.complex64), nchw)
    value = (np.arange(np.prod(shape)) + 1j).reshape(shape).astype(np.complex64)
    array = port.to_model(value, x64=False)
    assert (array.shape, array.dtype) == (port.model_shape, np.float32)
    np.testing.assert_array_equal(port.to_jax(array), value)


def test_keys_are_their_data_at_the_border():
    keys = jax.random.split(jax.random.key(0), 3)
    port = Port("keys", (3,), keys.dtype)
    data = port.to_model(keys, x64=False)
    assert (data.shape, data.dtype) == (port.model_shape, np.uint32)
    assert jnp.array_equal(jax.random.key_data(port.to_jax(data)), jax.random.key_data(keys))


def test_keys_go_in_and_come_out():
    key = jax.random.key(3)
    exported = export(lambda key: jax.random.split(key), key)
    expected = jax.random.key_data(jax.random.split(key))
    np.testing.assert_array_equal(jax.random.key_data(exported(key)), expected)
    np.testing.assert_array_equal(exported.run({exported.input_names[0]: jax.random.key_data(key)})[0], expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool", "float64"])
def test_every_dtype_goes_in_and_comes_out(dtype):
    x = np.arange(3).astype(jnp.dtype(dtype))
    with jax.enable_x64(dtype == "float64"):
        exported = export(lambda x: jnp.concatenate([x, x]), spec("B", dtype=dtype))
        result = exported(x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, np.concatenate([x, x]))


def test_new_state_comes_beside_the_result():
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0), momentum=0.5)
    result, state = export(norm, ("B", 3), state="outputs", output_names=["y", "m", "v"])(ONES)
    assert result.shape == (2, 3)
    assert sorted(state) == ["mean", "var"]
    np.testing.assert_allclose(state["mean"], 0.5 * np.ones(3), rtol=1e-6)


def test_the_same_options_export_another_trace():
    exported = export(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), ("B", 3), opset=18, weights="inputs")
    again = exported.again(exported.traced)
    assert again.proto == exported.proto


@pytest.mark.parametrize("call", [lambda e, x: e(x), lambda e, x: e.run({"x": x})])
def test_a_call_breaks_no_constraint(call):
    table = jnp.ones((8, 2))
    exported = jaxport.to_onnx(lambda x: x + table[: x.shape[0]], [("T", 2)], constraints=["T <= 8", "T >= 2"])
    call(exported, np.ones((8, 2), np.float32))
    for size in (1, 9):
        with pytest.raises(jaxport.InvalidArgument, match=f"the sizes T={size} break the constraint `T [<>]= [28]`"):
            call(exported, np.ones((size, 2), np.float32))

"""Sessions take and give every dtype that ONNX Runtime computes, and fail as errors of the project."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import jaxport
from jaxport import saving
from jaxport.export.delivery.runtime import Session


def model_of(op_type: str, *inputs: tuple[str, object], result: object, domain: str = "", **attributes) -> ir.Model:
    """A model of one node."""
    values = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype))), shape=ir.Shape(["B"]))
        for name, dtype in inputs
    ]
    node = ir.node(op_type, values, attributes or None, domain=domain)
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(np.dtype(result)))
    node.outputs[0].shape = ir.Shape(["B"])
    graph = ir.Graph(values, node.outputs, nodes=[node], opset_imports={"": 23}, name="one")
    return ir.Model(graph, ir_version=11)


DTYPES = [
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, np.float32, np.float64,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_every_dtype_goes_in_and_comes_out(dtype, size):
    x = np.arange(size).astype(dtype)
    (y,) = Session(model_of("Identity", ("x", dtype), result=dtype), threads=1).run({"x": x})
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y.astype(np.float64), x.astype(np.float64))


def test_packed_types_go_in_and_come_out():
    x = np.array([1, -2, 3, -8, 7], ml_dtypes.int4)
    scale = {"x": x, "s": np.ones(1, np.float32)}
    unpack = model_of("DequantizeLinear", ("x", ml_dtypes.int4), ("s", np.float32), result=np.float32)
    unpack.graph.inputs[1].shape = ir.Shape([])
    scale["s"] = np.float32(1)
    np.testing.assert_array_equal(Session(unpack).run(scale)[0], [1, -2, 3, -8, 7])
    pack = model_of(
        "QuantizeLinear", ("x", np.float32), ("s", np.float32), result=ml_dtypes.int4, output_dtype=ir.DataType.INT4
    )
    pack.graph.inputs[1].shape = ir.Shape([])
    (y,) = Session(pack).run({"x": x.astype(np.float32), "s": np.float32(1)})
    assert y.dtype == np.dtype(ml_dtypes.int4)
    np.testing.assert_array_equal(y.astype(np.int32), x.astype(np.int32))


def test_arrays_of_any_layout_and_origin_are_taken():
    session = Session(model_of("Neg", ("x", np.float32), result=np.float32))
    matrix = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(session.run({"x": matrix[:, 1]})[0], -matrix[:, 1])
    np.testing.assert_array_equal(session.run({"x": jnp.asarray(matrix[:, 1])})[0], -matrix[:, 1])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_weights_are_read_where_they_are(dtype, monkeypatch):
    """Nothing but the frame is serialized, so that the size of a model has no limit."""
    weight = np.arange(1200).reshape(30, 40).astype(dtype).T
    exported = jaxport.to_onnx(lambda x: x + weight, [(30,)])
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 100)
    session = Session(exported.model)
    expected = (np.float32(1) + weight.astype(np.float32)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": np.ones(30, np.float32)})[0], expected)


def test_weights_that_nothing_reads_are_left_out(monkeypatch):
    model = model_of("Neg", ("x", np.float32), result=np.float32)
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones(600, np.float32), name="w"))
    model.graph.register_initializer(weight)
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 100)
    assert Session(model).run({"x": np.ones(2, np.float32)})[0].tolist() == [-1, -1]


def test_the_names_are_in_order():
    session = Session(model_of("Add", ("b", np.float32), ("a", np.float32), result=np.float32))
    assert (session.input_names, session.output_names) == (["b", "a"], ["y"])


def test_the_runtime_may_be_told_not_to_optimize():
    model = model_of("Identity", ("x", np.float32), result=np.float32)
    assert Session(model, optimize=False, threads=2).run({"x": np.ones(2, np.float32)})[0].tolist() == [1, 1]


def test_a_model_that_the_runtime_does_not_know_is_refused():
    with pytest.raises(jaxport.RunError, match="ONNX Runtime cannot load the model") as caught:
        Session(model_of("Nothing", ("x", np.float32), result=np.float32, domain="nowhere"))
    assert "nowhere" in caught.value.why
    assert "this is ONNX Runtime" in caught.value.instead
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "Required inputs"),
        ({"x": np.ones(3, np.int32)}, "tensor(int32)"),
        ({"x": np.ones((3, 3), np.float32)}, "rank"),
        ({"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)}, "z"),
    ],
)
def test_inputs_that_the_runtime_does_not_take_are_refused(inputs, text):
    with pytest.raises(jaxport.RunError, match="ONNX Runtime cannot run the model") as caught:
        Session(model_of("Neg", ("x", np.float32), result=np.float32)).run(inputs)
    assert text in str(caught.value)
    assert caught.value.where == ", ".join(f"{name}{list(array.shape)}" for name, array in inputs.items())


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(jaxport.RunError) as caught:
        Session(tmp_path / "bad.onnx")
    assert f"`{tmp_path / 'bad.onnx'}`" in caught.value.where


def test_a_missing_runtime_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    exported = jaxport.to_onnx(jnp.tanh, [(3,)])
    with pytest.raises(jaxport.NotInstalled, match="ONNX Runtime is not installed") as caught:
        exported.verify()
    assert '`pip install "jaxport[runtime]"`' in caught.value.instead
    assert isinstance(caught.value, ImportError)

"""The lowest opset: what is written where none is asked for, and what keeps a newer one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from jax import lax

import jaxport
from jaxport.export.delivery import minimal_opset, opsets
from jaxport.export.delivery.requirements import Requirements
from jaxport.onnx_facts import versions
from jaxport.testing import check, f32, spec
from tests.exports import operators


def attend(x):
    return jax.nn.dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("fn", "shape", "opset", "ir_version", "needing"),
    [
        (jnp.tanh, ("B", 3), 18, 8, ()),
        (jax.nn.gelu, ("B", 3), 20, 9, ("Gelu",)),
        (lambda x: jnp.abs(jnp.fft.fft(x)), ("B", 8), 20, 9, ("DFT",)),
        (attend, ("B", 4, 2, 8), 23, 11, ("Attention",)),
    ],
)
def test_the_lowest_opset_is_written(fn, shape, opset, ir_version, needing):
    exported = jaxport.to_onnx(fn, [shape])
    needs = exported.requirements
    assert (needs.opset, needs.ir_version, needs.opset_for) == (opset, ir_version, needing)
    assert exported.verify().ok


def test_the_model_is_the_same_but_for_the_opset():
    def fn(x):
        return lax.reduce_window(jnp.pad(x, 1), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME").mean(1)

    low, high = (jaxport.to_onnx(fn, [("B", 4, 4, 3)], opset=opset) for opset in (None, 23))
    assert operators(low) == operators(high)
    assert (low.requirements.opset, high.requirements.opset) == (18, 23)
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(low(x), high(x))


def test_a_file_says_which_operators_require_its_opset(tmp_path):
    exported = jaxport.to_onnx(attend, [("B", 4, 2, 8)])
    exported.save(tmp_path / "model.onnx")
    loaded = ir.load(tmp_path / "model.onnx")
    assert loaded.metadata_props[minimal_opset.RECORD] == "23: Attention"
    for node in loaded.graph:  # as tools leave it that strip the types of values
        for value in node.outputs:
            value.type = None
    assert Requirements.of(loaded).opset_for == ("Attention",)
    assert minimal_opset.RECORD not in jaxport.to_onnx(jnp.tanh, [(3,)], opset=23).model.metadata_props


def test_a_record_of_another_graph_is_not_believed():
    model = jaxport.to_onnx(jax.nn.gelu, [("B",)]).model
    assert minimal_opset.recorded(model) == ("Gelu",)
    model.graph.opset_imports[""] = 21
    assert minimal_opset.recorded(model) == ()
    model.graph.opset_imports[""] = 20
    next(iter(model.graph)).op_type = "Relu"
    assert minimal_opset.recorded(model) == ()
    assert Requirements.of(model).opset_for == ()


def test_an_opset_that_is_asked_for_is_written():
    assert jaxport.to_onnx(jnp.tanh, [(3,)], opset=22).requirements.opset == 22


def test_functions_of_the_model_are_written_in_the_same_opset():
    exported = jaxport.to_onnx(jaxport.onnx_function(lambda x: jnp.tanh(x) * 2), [("B", 3)])
    (function,) = exported.model.functions.values()
    assert function.opset_imports[""] == exported.requirements.opset == 18
    assert exported.verify().ok


def test_bodies_of_loops_count():
    exported = jaxport.to_onnx(lambda x: lax.fori_loop(0, 3, lambda _, y: jax.nn.gelu(y), x), [("B", 3)])
    assert exported.requirements.opset_for == ("Gelu",)


def model_of(op_type, attributes=None, dtype=np.float32, inputs=1, opset=23):
    """A model of one node."""
    kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    values = [ir.Value(name=f"x{i}", type=kind, shape=ir.Shape([1, 4, 4, 4])) for i in range(inputs)]
    node = ir.node(op_type, values, attributes or {})
    node.outputs[0].type = kind
    return ir.Model(ir.Graph(values, node.outputs, nodes=[node], opset_imports={"": opset}), ir_version=11)


@pytest.mark.parametrize(
    ("model", "opset"),
    [
        (model_of("MaxPool", {"kernel_shape": [2, 2]}), 18),
        (model_of("MaxPool", {"kernel_shape": [2, 2], "ceil_mode": 1}), 22),
        (model_of("GroupNormalization", {"num_groups": 2}, inputs=3), 21),
        (model_of("Tanh", dtype=ml_dtypes.bfloat16), 18),
        (model_of("Sin", dtype=ml_dtypes.bfloat16), 22),  # the dtype is new there
        (model_of("AveragePool", {"kernel_shape": [2, 2], "dilations": [1, 1]}), 19),  # and this attribute there
        (model_of("GridSample", inputs=2), 20),  # the default of `mode` has another name before 20
        (model_of("Pad", {"mode": "wrap"}), 23),
        (model_of("NoSuchOperator"), 23),
    ],
)
def test_what_keeps_an_opset(model, opset):
    assert minimal_opset.lowest(model) == opset


def test_operands_that_get_a_type_of_their_own_keep_the_opset():
    model = model_of("QuantizeLinear", inputs=2)
    model.graph.inputs[1].dtype = ir.DataType.FLOAT16
    model.graph.outputs[0].dtype = ir.DataType.UINT8
    assert minimal_opset.lowest(model) == 23


def test_all_operators_of_the_default_opset_were_compared():
    assert opsets.DEFAULT <= versions.COMPARED


def test_a_value_without_a_dtype_keeps_the_opset():
    model = model_of("Sin")
    model.graph.inputs[0].type = None
    assert minimal_opset.lowest(model) == 22


def test_the_operators_that_need_the_opset_are_told():
    assert "opset for    Gelu" in str(jaxport.to_onnx(jax.nn.gelu, [spec("B", dtype=np.float32)]).requirements)
    assert "opset for" not in str(jaxport.to_onnx(jnp.tanh, [f32(3)]).requirements)


@pytest.mark.parametrize(("opset", "written"), [(None, 20), (18, 18)])
def test_the_runtime_has_kernels_of_what_is_written(opset, written):
    """ONNX Runtime has IsNaN of bfloat16 from opset 20 on, ONNX from 13 on."""
    exported = check(lambda x: jnp.max(x, axis=-1), spec("B", 5, dtype=jnp.bfloat16), opset=opset)
    assert exported.model.opset_imports[""] == written

"""Half a spectrum is a part of a whole one for OpenVINO, and the values stay."""

from __future__ import annotations

import jax.numpy as jnp
import onnx_ir as ir
import pytest

import jaxport
from jaxport.export.passes.openvino import spectra
from jaxport.testing import expect_graph


@pytest.mark.parametrize(
    ("fn", "shape", "slices"),
    [
        (lambda x: jnp.abs(jnp.fft.rfft(x)), ("B", 8), 1),
        (lambda x: jnp.abs(jnp.fft.rfft(x, axis=0)), (16, "B"), 1),
        (lambda x: jnp.abs(jnp.fft.rfft2(x)), ("B", 4, 8), 1),
        (lambda x: jnp.abs(jnp.fft.fft(x)), ("B", 8), 0),
        (lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), ("B", 8), 1),
    ],
)
def test_half_spectra(fn, shape, slices):
    exported = jaxport.to_onnx(fn, [shape], target="openvino")
    assert exported.verify().ok
    whole = [node for node in exported.model.graph if node.op_type == "DFT"]
    assert whole
    assert not any("onesided" in node.attributes for node in whole)
    text = next(report.text for report in exported.pass_reports if report.name == "spectra")
    assert text == ("1 whole DFT" if slices else "nothing to do")


def test_half_a_spectrum_stays_for_other_targets():
    exported = jaxport.to_onnx(lambda x: jnp.abs(jnp.fft.rfft(x)), [("B", 8)], target="portable")
    expect_graph(exported, counts={"DFT": 1, "Slice": 0})


def test_an_unknown_shape_is_declined():
    signal = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 8, 1]))
    node = ir.node("DFT", [signal], {"axis": 1, "onesided": 1})
    model = ir.Model(ir.Graph([signal], node.outputs, nodes=[node], opset_imports={"": 18}), ir_version=8)
    assert "the shape or the axis of half a spectrum is unknown" in spectra(model)
    node.outputs[0].shape, node.outputs[0].type = ir.Shape([2, ir.SymbolicDim(None), 2]), signal.type
    assert "the length of half a spectrum is unknown" in spectra(model)
    assert [node.op_type for node in model.graph] == ["DFT"]

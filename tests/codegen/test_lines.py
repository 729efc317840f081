"""Convolutions over one axis that TensorFlow writes as those of images of one row: layers of one axis, with their biases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import jaxport
from tests.codegen import structured
from tests.codegen.test_structured import FRAMEWORKS
from tests.importer.models import model

RANDOM = np.random.default_rng(0)

CASES = {
    "channels first": (
        """g (float[b, t, 4] x) => (float[b, t, 6] y) <float[6, 4, 1, 3] k = {0}, float[6, 1] bias = {0}, int64[1] a = {2}> {
        m = Transpose<perm = [0, 2, 1]>(x) u = Unsqueeze(m, a) c = Conv<pads = [0, 1, 0, 1]>(u, k) s = Squeeze(c, a)
        d = Add(s, bias) r = Relu(d) y = Transpose<perm = [0, 2, 1]>(r) }""",
        "padding=1",
    ),
    "channels last": (
        """g (float[b, t, 4] x) => (float[b, t, 6] y) <float[6, 4, 1, 3] k = {0}, float[6] bias = {0}, int64[1] a = {1}> {
        u = Unsqueeze(x, a) m = Transpose<perm = [0, 3, 1, 2]>(u) c = Conv<auto_pad = "SAME_UPPER">(m, k)
        d = Transpose<perm = [0, 2, 3, 1]>(c) s = Squeeze(d, a) e = Add(s, bias) y = Relu(e) }""",
        "SAME",
    ),
    "columns": (
        """g (float[b, 4, t] x) => (float[b, 6, n] y) <float[6, 2, 3, 1] k = {0}, float[6] bias = {0}, int64[1] a = {3}> {
        u = Unsqueeze(x, a) c = Conv<group = 2, strides = [2, 1], dilations = [2, 1]>(u, k, bias) y = Squeeze(c, a) }""",
        "",
    ),
}


def made(text: str) -> onnx.ModelProto:
    parsed = model(text)
    for tensor in parsed.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = RANDOM.normal(size=tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return parsed


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", CASES)
def test_an_image_of_one_row_is_a_line(case: str, framework: str, tmp_path: Path):
    text, option = CASES[case]
    parsed = made(text)
    x = RANDOM.normal(size=(2, 9, 4) if case != "columns" else (2, 4, 9)).astype(np.float32)
    code = structured.check(parsed, {"x": x}, tmp_path, framework)
    assert option in code
    assert "Conv(4, 6, (3,)," in " ".join(code.split()).replace("( ", "(")
    assert "squeeze" not in code
    assert "self.bias[...]" not in code
    assert "+ self.bias)" not in code


def test_an_image_stays_one_if_its_row_is_padded():
    text = """g (float[b, 4, 1, t] x) => (float[b, 6, 3, n] y) <float[6, 4, 1, 3] k = {0}> { y = Conv<pads = [1, 0, 1, 0]>(x, k) }"""
    assert "(1, 3)" in jaxport.from_onnx(made(text)).to_source(framework="nnx").code

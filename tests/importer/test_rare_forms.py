"""Rare forms of operators with open sizes, called and printed, against ONNX Runtime."""

from __future__ import annotations

import jax
import numpy as np
import onnxruntime
import pytest

from jaxport.importer import from_onnx
from tests.importer import printed
from tests.importer.models import model

GENERATOR = np.random.default_rng(0)
LEAST, GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def floats(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


CAUSAL = "(float[N, S, 8] q, float[N, T, 8] k, float[N, T, 8] v) => (float[a, b, c] y) { y = com.microsoft.MultiHeadAttention<num_heads = 2, unidirectional = 1>(q, k, v) }"
SLICE = "(float[N, M] x) => (float[a, b] y) <int64[2] s = {%d, %d}, int64[2] e = {%d, %d}, int64[2] axes = {0, 1}, int64[2] steps = {%d, %d}> { y = Slice(x, s, e, axes, steps) }"
GRID = '(float[N, C, H, W] x, float[N, 3, 4, 2] g) => (float[a, b, c, d] y) { y = GridSample<mode = "%s", padding_mode = "reflection", align_corners = %d>(x, g) }'
FUSED = '(float[N, 3] x, float[3, 4] w, float[4] b) => (float[N, 4] y) { y = com.microsoft.FusedGemm<activation = "%s", activation_alpha = 0.1, activation_beta = 0.2, activation_gamma = 0.3>(x, w, b) }'
PRODUCT = [floats(2, 3), floats(3, 4), floats(4)]

CASES = {
    **{f"{s} queries of {t} keys": (CAUSAL, [floats(2, s, 8), floats(2, t, 8), floats(2, t, 8)])
       for s, t in ((2, 5), (1, 4), (3, 4), (4, 4), (5, 2))},
    "a slice to the last but one": (SLICE % (0, 0, GREATEST, -2, 1, 1), [floats(4, 5)]),
    "a slice from the last": (SLICE % (-1, 1, LEAST, GREATEST, -1, 2), [floats(4, 5)]),
    "a hot element of no rows": ("(float[N, 3, 2] x) => (float[N, 3, 2] y) { y = Hardmax<axis = 1>(x) }", [floats(0, 3, 2)]),
    **{f"a {mode} sample of {h} rows, {corners}": (GRID % (mode, corners), [floats(2, 3, h, 4), 3 * floats(2, 3, 4, 2)])
       for mode in ("linear", "nearest", "cubic") for corners in (0, 1) for h in (1, 5)},
    **{f"a product and {name}": (FUSED % name, PRODUCT) for name in ("Relu", "LeakyRelu", "HardSigmoid", "Tanh")},
    "a convolution and a bend": ('(float[N, 1, 4, 4] x, float[2, 1, 3, 3] w) => (float[a, b, c, d] y) { y = com.microsoft.FusedConv<activation = "Relu", activation_params = [0.1, 0.2]>(x, w) }', [floats(2, 1, 4, 4), floats(2, 1, 3, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rare_form_is_that_of_onnx_runtime(name: str) -> None:
    graph, arrays = CASES[name]
    proto = model(f"g {graph}", 11 if "hot" in name else 20, domains=', "com.microsoft": 1')
    inputs = dict(zip((value.name for value in proto.graph.input), arrays, strict=True))
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)
    program = from_onnx(proto)
    np.testing.assert_allclose(program(**inputs), wanted, rtol=1e-4, atol=1e-5)
    source = program.to_source(framework="jax")
    (found,) = printed.run(printed.load(source), inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inputs", ["b, s", "b, s, , t"])
def test_without_a_number_no_boxes_are_selected(inputs: str) -> None:
    graph = (
        f"g (float[1, N, 4] b, float[1, 2, N] s, float[1] t) => (int64[K, 3] y) {{ y = NonMaxSuppression({inputs}) }}"
    )
    program = from_onnx(model(graph))
    arrays = {"b": floats(1, 5, 4), "s": floats(1, 2, 5), "t": np.ones(1, np.float32)}
    with jax.enable_x64(True):
        assert program(**arrays).shape == (0, 3)
        (found,) = printed.run(printed.load(program.to_source(framework="jax")), arrays)
    assert np.shape(found) == (0, 3)

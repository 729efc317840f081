"""Losses, regions, grids, old recurrent layers, fused layers without a kernel on CPU, and linear attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

from jaxport.errors import ModelError
from jaxport.importer import from_onnx
from tests.importer.models import model, program

GENERATOR = np.random.default_rng(0)
MICROSOFT = ', "com.microsoft": 1'


def f(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def runtime(body: str, opset: int, *inputs: np.ndarray) -> tuple[Any, Any]:
    """What the program and ONNX Runtime make of the inputs, which are called a, b, c."""
    proto = model("graph " + body, opset)
    wanted: Any = onnxruntime.InferenceSession(proto.SerializeToString()).run(
        None, dict(zip("abc", inputs, strict=False))
    )
    with jax.enable_x64(True):
        return jax.jit(from_onnx(proto))(*inputs), wanted[0]


def test_regions_of_whole_pixels() -> None:
    """Regions that end outside of the map, and one without pixels in it."""
    regions = np.array([[0, 0, 0, 3, 3], [1, 2, 1, 7, 9], [0, 4, 4, 4, 4], [1, 12, 12, 14, 14]], np.float32)
    body = (
        "(float[2,3,6,7] a, float[4,5] b) => (float y) { y = MaxRoiPool<pooled_shape=[2,3], spatial_scale=0.7> (a, b) }"
    )
    result, wanted = runtime(body, 12, f(2, 3, 6, 7), regions)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (2, 3, 2, 4, 5)], ids=str)
def test_grids(corners: int, sizes: tuple[int, ...]) -> None:
    axes = len(sizes) - 2
    shape = f"2,{axes},{axes + 1}"
    body = f"(float[{shape}] a) => (float y) {{ n = Constant<value_ints={list(sizes)}> () y = AffineGrid<align_corners={corners}> (a, n) }}"
    result, wanted = runtime(body, 20, f(2, axes, axes + 1))
    np.testing.assert_allclose(result, wanted, atol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_with_ignored_targets(reduction: str, weighted: bool) -> None:
    body = '(float[4,3,2] a, int64[4,2] b, float[3] c) => (float y) { y = SoftmaxCrossEntropyLoss<ignore_index=-1, reduction="%s"> (a, b%s) }'
    targets = np.array([[0, 1], [-1, 2], [2, 0], [1, -1]])
    result, wanted = runtime(body % (reduction, ", c" if weighted else ""), 13, f(4, 3, 2), targets, np.abs(f(3)))
    np.testing.assert_allclose(result, wanted, rtol=1e-5)


def test_an_ignored_target_has_no_gradient_even_where_its_logarithm_is_infinite() -> None:
    loss = program(
        "graph (float[2,2] a, int32[2] b) => (float y) { y = NegativeLogLikelihoodLoss<ignore_index=9> (a, b) }", 13
    )
    scores = np.array([[-np.inf, 0.0], [-1.0, -2.0]], np.float32)
    gradient = jax.grad(lambda a: loss(a, np.array([9, 1], np.int32)))(scores)
    assert gradient.tolist() == [[0, 0], [0, -1]]


@pytest.mark.parametrize("layer", ["RNN", "GRU", "LSTM"])
def test_the_first_versions_of_recurrent_layers(layer: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[layer]
    weights = (f(5, 2, 3), f(1, gates * 4, 3), f(1, gates * 4, 4))
    results = []
    for opset in (1, 3, 7):
        extra = ", output_sequence=1" if opset == 3 or (opset == 1 and layer != "GRU") else ""
        body = f"(float[5,2,3] a, float[1,{gates * 4},3] b, float[1,{gates * 4},4] c) => (float y) {{ y = {layer}<hidden_size=4{extra}> (a, b, c) }}"
        results.append(np.asarray(program("graph " + body, opset)(*weights)))
    assert np.ptp(results[0]) > 0.1
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_linear_attention_is_differentiable_and_resumable() -> None:
    """Two halves with the state handed on are the whole."""
    graph = "graph (float[2,t,8] q, float[2,t,4] k, float[2,t,6] v, float[2,2,2,3] s, float[2,t,2] g, float[2,t,2] b) => (float y, float z) { y, z = LinearAttention<q_num_heads=4, kv_num_heads=2> (q, k, v, s, g, b) }"
    attending = program(graph, 27)
    rows = [f(2, 6, width) for width in (8, 4, 6, 2, 2)]
    state = np.zeros((2, 2, 2, 3), np.float32)

    def run(part: slice, state: Any) -> Any:
        q, k, v, g, b = (x[:, part] for x in rows)
        return attending(q, k, v, state, -np.abs(g), b)

    whole, final = run(slice(0, 6), state)
    first, between = run(slice(0, 2), state)
    second, last = run(slice(2, 6), between)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last, final, rtol=1e-4, atol=1e-5)
    assert np.isfinite(jax.grad(lambda s: run(slice(0, 6), s)[0].sum())(state)).all()


def test_gradients_of_tensors_that_nothing_computes_are_refused() -> None:
    graph = 'graph (float[2] x) => (float y) { y = ai.onnx.preview.training.Gradient<xs=["x"], y="nothing"> (x) }'
    with pytest.raises(ModelError, match=r"(?s)nothing computes `nothing`.*Gradient that makes `y`"):
        program(graph, domains=', "ai.onnx.preview.training": 1')


def test_letters_outside_of_ascii_change_their_case() -> None:
    graph = (
        'graph (string[3] x) => (string y) { y = StringNormalizer<case_change_action="UPPER", stopwords=["Aß"]> (x) }'
    )
    assert program(graph)(np.array(["aß", "é", "b"], object)).tolist() == ["É", "B"]

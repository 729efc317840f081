from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from flax import linen as nn, nnx

from jaxport.testing import boolean, check, f32, f64, spec
from tests.export.passes.fusions import operators, report

pytestmark = pytest.mark.sampled(2)

Q, K = f32("B", "T", 2, 4), f32("B", "S", 2, 4)
SIZES = ({"B": 2, "T": 5, "S": 3}, {"B": 1, "T": 2, "S": 4})
LOW = float(np.finfo(np.float32).min)


def scores(q, k):
    return jnp.einsum("bthd,bshd->bhts", q, k) / 2


def attend(q, k, v, change=lambda s: s):
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(change(scores(q, k))), v)


def causal(s, low=LOW):
    return jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, low)


def heads_first(q, k, v):
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.5) @ v


def grouped(q, k, v):
    """Four heads of queries on two of keys."""
    q = q.reshape(*q.shape[:2], 2, 2, 4)
    weights = jax.nn.softmax(jnp.einsum("btkgd,bskd->bkgts", q, k) * 0.5)
    return jnp.einsum("bkgts,bskd->btkgd", weights, v).reshape(*q.shape[:2], 4, 4)


def repeated(q, k, v):
    return attend(q, jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2))


def in_windows(q, k, v):
    return jnp.einsum("bwhts,bwshd->bwthd", jax.nn.softmax(jnp.einsum("bwthd,bwshd->bwhts", q, k) / 2), v)


def nnx_attention(**options):
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0), **options)
    return lambda x, mask=None: layer(x, mask=mask)


def linen_attention():
    layer = nn.MultiHeadDotProductAttention(2)
    variables = layer.init(jax.random.key(0), jnp.ones((1, 3, 8)))
    return lambda x, mask: layer.apply(variables, x, mask=nn.make_attention_mask(mask, mask))


NNX = nnx_attention()
EQUINOX = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("fn", "specs", "attributes"),
    [
        (attend, [Q, K, K], {"q_num_heads": 2, "kv_num_heads": 2}),
        (lambda q, k, v: attend(q, k, v, causal), [Q, Q, Q], {"is_causal": 1}),
        (lambda q, k, v: attend(q, k, v, lambda s: causal(s, -jnp.inf)), [Q, Q, Q], {"is_causal": 1}),
        (lambda q, k, v: attend(q, k, v, lambda s: causal(s, -1e9)), [Q, K, K], {"is_causal": 1}),
        (heads_first, [f32("B", 2, "T", 4), f32("B", 2, "S", 4), f32("B", 2, "S", 4)], {"scale": 0.5}),
        (heads_first, [f32("B", "T", 4), f32("B", "S", 4), f32("B", "S", 6)], {"q_num_heads": 1}),
        (jax.nn.dot_product_attention, [Q, K, K], {"scale": 0.5}),
        (lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), [Q, Q, Q], {"is_causal": 1}),
        (in_windows, [f32("B", 3, 5, 2, 4), f32("B", 3, 4, 2, 4), f32("B", 3, 4, 2, 4)], {"q_num_heads": 2}),
        (grouped, [f32("B", "T", 4, 4), K, K], {"q_num_heads": 4, "kv_num_heads": 2}),
        (repeated, [f32("B", "T", 4, 4), K, K], {"q_num_heads": 4, "kv_num_heads": 2}),
        (jax.nn.dot_product_attention, [f32("B", "T", 4, 4), K, K], {"q_num_heads": 4, "kv_num_heads": 2}),
        (jax.nn.dot_product_attention, [f32("B", 1, 4, 4), K, K], {"q_num_heads": 4, "kv_num_heads": 2}),
        (grouped, [f32(1, 1, 4, 4), f32(1, "S", 2, 4), f32(1, "S", 2, 4)], {"q_num_heads": 4, "kv_num_heads": 2}),
        (nnx_attention(), [f32("B", "T", 8)], {"q_num_heads": 2}),
        (nnx_attention(normalize_qk=True), [f32("B", "T", 8)], {"q_num_heads": 2}),
        (lambda x: NNX(x, nnx.make_causal_mask(x[..., 0])), [f32("B", "T", 8)], {"is_causal": 1}),
        (jax.vmap(lambda x: EQUINOX(x, x, x)), [f32("B", "T", 8)], {"q_num_heads": 2}),
        (lambda x: EQUINOX(x, x, x), [f32("T", 8)], {"q_num_heads": 2}),
        (lambda x: EQUINOX(x, x, x, jnp.tril(jnp.ones((x.shape[0],) * 2, bool))), [f32("T", 8)], {"is_causal": 1}),
        (jax.vmap(jax.vmap(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v)), [f32("B", 2, "T", 4)] * 3, {"scale": 1.0}),
        (lambda q, k, v: jax.lax.map(lambda x: attend(x, k, v), q), [f32(3, "B", "T", 2, 4), K, K], {"scale": 0.5}),
    ],
)  # fmt: skip
def test_recognised(fn, specs, attributes):
    exported = check(fn, *specs, sizes=SIZES, rtol=5e-5, atol=5e-6)
    (node,) = [node for node in exported.model.graph.all_nodes() if node.op_type == "Attention"]
    assert "Softmax" not in operators(exported)
    for name, value in attributes.items():
        assert node.attributes[name].value == pytest.approx(value)


def by_mask(q, k, v, mask):
    return attend(q, k, v, lambda s: jnp.where(mask, s, LOW))


def bias_of_mask(q, k, v, mask):
    return attend(q, k, v, lambda s: s + jnp.where(mask, 0.0, LOW))


def of_windows(q, k, v, mask):
    """Windows are in the axis of the batch, where a mask of each window is the same for all images."""
    q, k, v = (jnp.tanh(x.reshape(-1, *x.shape[2:])) for x in (q, k, v))
    apart = lambda s: s.reshape(-1, 3, *s.shape[1:])
    return attend(q, k, v, lambda s: jnp.where(mask, apart(s), LOW).reshape(s.shape))


def of_axes(q, k, v, mask):
    """Windows have an axis of their own."""
    weights = jax.nn.softmax(jnp.where(mask, jnp.einsum("bwthd,bwshd->bwhts", q, k) / 2, LOW))
    return jnp.einsum("bwhts,bwshd->bwthd", weights, v)


WINDOWS = [f32("B", 3, 5, 2, 4), f32("B", 3, 4, 2, 4), f32("B", 3, 4, 2, 4), boolean(3, 1, 5, 4)]


@pytest.mark.parametrize("fn", [of_windows, of_axes])
def test_masks_of_windows_are_repeated_for_each_image(fn):
    exported = check(fn, *WINDOWS, sizes=SIZES, rtol=5e-5, atol=5e-6)
    assert operators(exported)["Attention"] == 1
    assert operators(exported)["Expand"] == 1


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (by_mask, [Q, K, K, boolean("B", 1, "T", "S")]),
        (by_mask, [Q, K, K, boolean("B", 1, 1, "S")]),
        (by_mask, [Q, K, K, boolean("B", 2, "T", 1)]),
        (by_mask, [Q, K, K, boolean("T", "S")]),
        (by_mask, [Q, K, K, boolean(2, 1, "S")]),
        (lambda q, k, v, mask: attend(q, k, v, lambda s: jnp.where(mask, -1e9, s)), [Q, K, K, boolean("B", 1, 1, "S")]),
        (bias_of_mask, [Q, K, K, boolean("B", 1, 1, "S")]),
        (lambda q, k, v: attend(q, k, v, lambda s: s + np.linspace(-3, 3, 70).reshape(2, 5, 7)), [f32("B", 5, 2, 4), *[f32("B", 7, 2, 4)] * 2]),
        (lambda q, k, v, mask: jax.nn.dot_product_attention(q, k, v, mask=mask), [Q, K, K, boolean("B", 1, "T", "S")]),
        (lambda x, mask: NNX(x, mask[:, None, None, :]), [f32("B", "T", 8), boolean("B", "T")]),
        (linen_attention(), [f32("B", "T", 8), boolean("B", "T")]),
        (jax.vmap(lambda x, m: EQUINOX(x, x, x, jnp.broadcast_to(m, (x.shape[0],) * 2))), [f32("B", "T", 8), boolean("B", "T")]),
        (lambda q, k, v, mask: attend(q, k, v, lambda s: causal(jnp.where(mask, s, LOW))), [Q, K, K, boolean("B", 1, 1, "S")]),
    ],
)  # fmt: skip
def test_masks(fn, specs):
    exported = check(fn, *specs, sizes=SIZES, rtol=5e-5, atol=5e-6)
    assert operators(exported).get("Attention", 0) + operators(exported).get("Softmax", 0) == 1


@pytest.mark.parametrize("fn", [by_mask, bias_of_mask])
def test_a_row_that_is_masked_as_a_whole_averages_over_all_keys(fn):
    generator = np.random.default_rng(0)
    q, k, v = (generator.normal(size=(2, n, 2, 4)).astype(np.float32) for n in (3, 5, 5))
    mask = np.ones((2, 1, 3, 5), bool)
    mask[0, 0, 1], mask[1] = False, False
    exported = check(fn, *(f32(*x.shape) for x in (q, k, v)), boolean(*mask.shape), values=[q, k, v, mask], atol=5e-6)
    assert operators(exported)["Attention"] == 1


def transposed_causal(s):
    return jnp.where(jnp.triu(jnp.ones(s.shape[-2:], bool)), s, LOW)


@pytest.mark.parametrize(
    ("fn", "specs", "reason"),
    [
        (lambda q, k, v, m: attend(q, k, v, lambda s: jnp.where(m, s, -jnp.inf)), [Q, K, K, boolean("B", 1, 1, "S")],
         "a row that is masked with -inf as a whole would not be NaN"),
        (lambda q, k, v, b: attend(q, k, v, lambda s: s + b), [Q, K, K, f32("B", 1, "T", "S")],
         "the bias that is added may hide all keys"),
        (lambda q, k, v, m: attend(q, k, v, lambda s: jnp.where(m, s, -100.0)), [Q, K, K, boolean("B", 1, 1, "S")],
         "what is masked is not a low number"),
        (lambda q, k, v, b, m: attend(q, k, v, lambda s: (s + b) * 2 + jnp.where(m, 0, jnp.where(b > 1, LOW, 0.0))),
         [Q, K, K, f32("B", 1, 1, "S"), boolean("B", 1, 1, "S")], "what is added to its scores is scaled with them"),
        (lambda q, k, v: attend(q, k, v, lambda s: s * -2.0), [Q, K, K], "its scale is not positive"),
        (lambda q, k, v: attend(q, k, v, lambda s: 3 * jnp.tanh(s / 3)), [Q, K, K], "it has a sink, or a soft cap"),
        (lambda q, k, v: jnp.einsum("bhts,bthd->bshd", jax.nn.softmax(scores(q, k)), v), [Q, K, Q], "nothing to do"),
        (lambda q, k, v: jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores(q, k), axis=1), v), [Q, K, K], "nothing to do"),
        (lambda q, k, v: (attend(q, k, v), jax.nn.softmax(scores(q, k))), [Q, K, K], "in it is used elsewhere too"),
    ],
)  # fmt: skip
def test_declined(fn, specs, reason):
    exported = check(fn, *specs, sizes=SIZES, rtol=5e-5, atol=5e-6)
    assert "Attention" not in operators(exported)
    assert reason in report(exported, "attention")


def test_a_mask_of_other_positions_is_an_ordinary_one():
    exported = check(lambda q, k, v: attend(q, k, v, transposed_causal), Q, Q, Q, sizes=SIZES, rtol=5e-5, atol=5e-6)
    (node,) = [node for node in exported.model.graph if node.op_type == "Attention"]
    assert "is_causal" not in node.attributes
    assert len(node.inputs) == 4


@pytest.mark.parametrize(
    ("specs", "options", "reason"),
    [
        ([f64("B", "T", 2, 4)] * 3, {"double_precision": True}, "the runtime's Attention of DOUBLE computes in single precision"),
        ([Q, K, K], {"opset": 22}, "Attention needs opset 23"),
    ],
)  # fmt: skip
def test_where_the_operator_would_not_do(specs, options, reason):
    exported = check(attend, *specs, sizes=SIZES, rtol=5e-5, atol=5e-6, **options)
    assert operators(exported)["Softmax"] == 1
    assert reason in report(exported, "attention")


def test_half_precision_takes_the_causal_mask_alone():
    half = [spec("B", "T", 2, 4, dtype=np.float16)] * 3
    exported = check(lambda q, k, v: attend(q, k, v, lambda s: causal(s, -6e4)), *half, atol=0.02)
    assert operators(exported)["Softmax"] == 1
    exported = check(attend, *half, atol=0.02)
    assert operators(exported)["Attention"] == 1


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision_with_a_softmax_in_float32(dtype):
    def fn(q, k, v, mask):
        wide = (one.astype(np.float32) for one in (q, k))
        masked = jnp.where(mask, scores(*wide), -1e30)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(masked).astype(dtype), v)

    halves = [spec("B", n, 2, 4, dtype=dtype) for n in "TSS"]
    exported = check(
        fn, *halves, boolean("B", 1, "T", "S"), sizes=SIZES, without={"float64": "of half precision"}, atol=0.02
    )
    (node,) = [node for node in exported.model.graph if node.op_type == "Attention"]
    assert node.outputs[0].dtype == ir.DataType.FLOAT
    assert not {"Softmax", "Transpose"} & operators(exported).keys()


def test_values_in_float32_are_not_rounded():
    """Nor where the softmax is in half precision."""
    fn = lambda q, k, v: jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores(q, k)).astype(np.float32), v)
    halves = [spec("B", "T", 2, 4, dtype=np.float16)] * 2
    exported = check(fn, *halves, Q, sizes=SIZES, without={"float64": "of half precision"}, atol=2e-3)
    (node,) = [node for node in exported.model.graph if node.op_type == "Attention"]
    assert node.outputs[0].dtype == ir.DataType.FLOAT


def test_projections_stay_next_to_their_biases():
    """Neither Reshapes nor Transposes are left in a layer of attention."""
    exported = check(nnx_attention(), f32("B", "T", 8), rtol=5e-5, atol=5e-6)
    assert [node.op_type for node in exported.model.graph] == [*["MatMul", "Add"] * 3, "Attention", "MatMul", "Add"]


def banded(s):
    """Keys at most two positions away."""
    away = jnp.abs(jnp.arange(s.shape[-2])[:, None] - jnp.arange(s.shape[-1]))
    return jnp.where(away < 3, s, -jnp.inf)


@pytest.mark.parametrize(
    ("change", "attributes"),
    [
        (causal, {"is_causal": 1}),
        (lambda s: causal(s, -jnp.inf), {"is_causal": 1}),
        (lambda s: s + jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), 0, -jnp.inf), {"is_causal": 1}),
        (lambda s: jnp.where(jnp.triu(jnp.ones(s.shape[-2:], bool), 1), -jnp.inf, s), {"is_causal": 1}),
        (lambda s: s + jnp.triu(jnp.full(s.shape[-2:], LOW), 1), {"is_causal": 1}),
        (banded, {"is_causal": 0}),
        (lambda s: s + jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), 0.5, -jnp.inf), {"is_causal": 0}),
        (lambda s: jnp.where(jnp.triu(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf), {"is_causal": 0}),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_masks_of_fixed_sizes_are_known(change, attributes, batch):
    q = f32(batch, 5, 2, 4)
    exported = check(
        lambda q, k, v: attend(q, k, v, change),
        q,
        q,
        q,
        rtol=1e-5,
        atol=1e-5,
        without={"float64": "it computes in single precision"},
    )
    (node,) = [node for node in exported.model.graph if node.op_type == "Attention"]
    assert {"is_causal": node.attributes["is_causal"].value if "is_causal" in node.attributes else 0} == attributes
    assert not {"Where", "Softmax", "MatMul"} & operators(exported).keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda s: jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool), -1), s, -jnp.inf),
        lambda s: s + jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool), -1), 0, -jnp.inf),
    ],
)
def test_a_fixed_mask_that_hides_a_whole_row_is_declined(change):
    q = f32(2, 5, 2, 4)
    exported = check(lambda q, k, v: attend(q, k, v, change), q, q, q, rtol=1e-5, atol=1e-5)
    assert "a row that is masked with -inf as a whole would not be NaN" in report(exported, "attention")
    assert jnp.isnan(exported(*[np.ones((2, 5, 2, 4), np.float32)] * 3)).any()

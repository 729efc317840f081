"""Mixtures of experts as ONNX Runtime's MoE: the spellings that are recognised, what is declined, and that values agree."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport

EXPERTS, HIDDEN, INNER, CHOSEN = 4, 8, 12, 2


def drawn(*shape, scale=0.4):
    return jnp.asarray(np.random.default_rng(len(shape) + sum(shape)).normal(size=shape) * scale, jnp.float32)


ROUTER = drawn(HIDDEN, EXPERTS, scale=1)
GATE, UP, DOWN = drawn(EXPERTS, HIDDEN, INNER), drawn(EXPERTS, HIDDEN, INNER) * 0.9, drawn(EXPERTS, INNER, HIDDEN)
BIASES = drawn(EXPERTS, INNER), drawn(EXPERTS, HIDDEN)
BOTH, ADDED = jnp.concatenate([GATE, UP], -1), drawn(EXPERTS, 2 * INNER)


def softmax_first(scores):
    return lax.top_k(jax.nn.softmax(scores), CHOSEN)


def divided(scores, tiny=0.0):
    shares, chosen = softmax_first(scores)
    return shares / (shares.sum(-1, keepdims=True) + tiny), chosen


def softmax_last(scores):
    best, chosen = lax.top_k(scores, CHOSEN)
    return jax.nn.softmax(best), chosen


def taken(scores):
    _, chosen = lax.top_k(scores, CHOSEN)
    return jnp.take_along_axis(jax.nn.softmax(scores), chosen, -1), chosen


def switch(scores):
    return lax.top_k(jax.nn.softmax(scores), 1)


def sigmoids(scores):
    shares, chosen = lax.top_k(jax.nn.sigmoid(scores), CHOSEN)
    return shares / shares.sum(-1, keepdims=True), chosen


def one_hot(shares, chosen):
    return (jax.nn.one_hot(chosen, EXPERTS) * shares[..., None]).sum(-2)


def gated(gate, up):
    return jax.nn.silu(gate) * up


def bounded(gate, up):
    gate, up = jnp.minimum(gate, 1.5), jnp.clip(up, -1.5, 1.5)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)


def dense(x, route=divided, act=gated, joined="bte,bteh->bth"):
    """All experts answer, and a one-hot code weighs the answers."""
    inner = act(jnp.einsum("bth,ehi->btei", x, GATE), jnp.einsum("bth,ehi->btei", x, UP))
    return jnp.einsum(joined, one_hot(*route(x @ ROUTER)), jnp.einsum("btei,eih->bteh", inner, DOWN))


def weighed_before(x, route=divided):
    """The shares multiply before the last matrix, in one einsum with it."""
    shares, chosen = route(x @ ROUTER)
    weights = jnp.einsum("btk,btke->bte", shares, jax.nn.one_hot(chosen, EXPERTS))
    inner = gated(jnp.einsum("btd,edm->btem", x, GATE), jnp.einsum("btd,edm->btem", x, UP))
    return jnp.einsum("btem,emd,bte->btd", inner, DOWN, weights)


def gathered(x, route=divided):
    """The matrices of the chosen experts are gathered."""
    shares, chosen = route(x @ ROUTER)
    inner = gated(jnp.einsum("bth,btkhi->btki", x, GATE[chosen]), jnp.einsum("bth,btkhi->btki", x, UP[chosen]))
    return jnp.einsum("btk,btkh->bth", shares, jnp.einsum("btki,btkih->btkh", inner, DOWN[chosen]))


def answers_gathered(x, route=divided):
    """All experts answer, and the answers of the chosen ones are gathered."""
    shares, chosen = route(x @ ROUTER)
    inner = gated(jnp.einsum("bth,ehi->btei", x, GATE), jnp.einsum("bth,ehi->btei", x, UP))
    answers = jnp.einsum("btei,eih->bteh", inner, DOWN)
    return (jnp.take_along_axis(answers, chosen[..., None], 2) * shares[..., None]).sum(2)


def looped(x, route=divided, added=False):
    """One expert after the other, as modules are called, with a mask of the tokens that are its own."""
    tokens = x.reshape(-1, HIDDEN)
    shares, chosen = route(tokens @ ROUTER)
    total = jnp.zeros_like(tokens)
    for expert in range(EXPERTS):
        share = jnp.where(chosen == expert, shares, 0).sum(-1, keepdims=True)
        inner = gated(tokens @ GATE[expert], tokens @ UP[expert])
        total = total + share * (inner @ DOWN[expert] + (BIASES[1][expert] if added else 0))
    return total.reshape(x.shape)


def scattered(x, route=divided):
    """The shares are scattered over zeros, and `vmap` runs all experts."""
    tokens = x.reshape(-1, HIDDEN)
    shares, chosen = route(tokens @ ROUTER)
    count = tokens.shape[0]
    rows = jnp.arange(count)[:, None]
    weights = jnp.zeros((count, EXPERTS)).at[rows, chosen].set(shares)
    answers = jax.vmap(lambda gate, up, down: gated(tokens @ gate, tokens @ up) @ down)(GATE, UP, DOWN)
    return jnp.einsum("eth,te->th", answers, weights).reshape(x.shape)


def scanned(x, route=divided):
    """A scan over the experts."""
    tokens = x.reshape(-1, HIDDEN)
    weights = one_hot(*route(tokens @ ROUTER))

    def body(total, expert):
        gate, up, down, share = expert
        return total + share[:, None] * (gated(tokens @ gate, tokens @ up) @ down), None

    return lax.scan(body, jnp.zeros_like(tokens), (GATE, UP, DOWN, weights.T))[0].reshape(x.shape)


def token_by_token(x, route=divided):
    """A function of one token and one expert, under `vmap`."""

    def token(row):
        shares, chosen = route(row @ ROUTER)
        answer = lambda expert, share: share * (gated(row @ GATE[expert], row @ UP[expert]) @ DOWN[expert])
        return jax.vmap(answer)(chosen, shares).sum(0)

    return jax.vmap(jax.vmap(token))(x)


def with_biases(x, act=bounded, alternating=True):
    """One matrix for both projections, whose columns alternate or are halves, and biases."""
    inner = jnp.einsum("bth,ehi->btei", x, BOTH) + ADDED
    sides = (inner[..., ::2], inner[..., 1::2]) if alternating else jnp.split(inner, 2, -1)
    answers = jnp.einsum("btei,eih->bteh", act(*sides), DOWN) + BIASES[1]
    return jnp.einsum("bteh,bte->bth", answers, one_hot(*softmax_last(x @ ROUTER)))


def plain(act):
    return functools.partial(dense, act=lambda gate, up: act(gate))


SPELLINGS = {
    "dense": dense,
    "softmax first": functools.partial(dense, route=softmax_first),
    "softmax last": functools.partial(dense, route=softmax_last),
    "shares of all": functools.partial(dense, route=taken),
    "one expert": functools.partial(dense, route=switch),
    "a tiny number added": functools.partial(dense, route=functools.partial(divided, tiny=1e-20)),
    "weighed before": weighed_before,
    "gathered": gathered,
    "gathered, softmax last": functools.partial(gathered, route=softmax_last),
    "answers gathered": answers_gathered,
    "looped": looped,
    "looped, with biases": functools.partial(looped, added=True),
    "scattered": scattered,
    "scanned": scanned,
    "token by token": token_by_token,
    "alternating columns": with_biases,
    "halves": functools.partial(with_biases, act=gated, alternating=False),
    "scaled": lambda x: dense(x) * 2.5,
    "beside a residual": lambda x: x + dense(x),
    "relu": plain(jax.nn.relu),
    "gelu": plain(jax.nn.gelu),
    "silu": plain(jax.nn.silu),
    "linear": plain(lambda gate: gate),
}


def sums_over_tokens(scores):
    shares, chosen = softmax_first(scores)
    return shares / shares.sum(1, keepdims=True), chosen


def turned(scores):
    shares, chosen = divided(scores)
    return shares[..., ::-1], chosen


def biased(scores):
    _, chosen = lax.top_k(jax.nn.softmax(scores) + BIASES[0][:, 0], CHOSEN)
    return jnp.take_along_axis(jax.nn.softmax(scores), chosen, -1), chosen


DECLINED = {
    **{
        name: (functools.partial(dense, route=route), "no softmax of the scores")
        for name, route in (
            ("softmax over tokens", lambda scores: lax.top_k(jax.nn.softmax(scores, axis=1), CHOSEN)),
            ("sums over tokens", sums_over_tokens),
            ("chosen by other scores", biased),
            ("shares of others", turned),
        )
    },
    "exact gelu": (plain(functools.partial(jax.nn.gelu, approximate=False)), "approximate one, and this one is exact"),
    "tanh": (plain(jnp.tanh), "has no activation Tanh"),
    "gated gelu": (functools.partial(dense, act=lambda gate, up: jax.nn.gelu(gate) * up), "a gate whose activation is not"),
    "sigmoids": (functools.partial(dense, route=sigmoids), "no softmax of the scores"),
    "much added": (functools.partial(dense, route=functools.partial(divided, tiny=0.1)), "no softmax of the scores"),
}  # fmt: skip


def exported(function, **options):
    options = {"target": "onnxruntime", **options}
    return jaxport.to_onnx(lambda x: function(x), [("B", "T", HIDDEN)], **options)


def layers(model):
    return [node for node in model.model.graph if node.op_type == "MoE"]


def assert_agrees(model, function):
    for shape in ((2, 3, HIDDEN), (1, 1, HIDDEN)):
        x = np.asarray(drawn(*shape, scale=1))
        np.testing.assert_allclose(model(x), jax.jit(function)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_mixture_of_experts_becomes_one_operator(name):
    model = exported(SPELLINGS[name])
    assert len(layers(model)) == 1, str(model.explain())
    assert not any(node.op_type == "TopK" for node in model.model.graph)
    assert_agrees(model, SPELLINGS[name])


@pytest.mark.parametrize("name", DECLINED)
def test_what_the_operator_lacks_stays_as_it_is(name):
    function, reason = DECLINED[name]
    model = exported(function)
    assert not layers(model)
    assert reason in str(model.explain())
    assert_agrees(model, function)


def by_groups(x, scatter):
    """The tokens are sorted by expert, and `ragged_dot` multiplies those of each by its matrices."""
    tokens = x.reshape(-1, HIDDEN)
    shares, chosen = divided(tokens @ ROUTER)
    order = jnp.argsort(chosen.ravel())
    sizes = jnp.bincount(chosen.ravel(), length=EXPERTS)
    product = functools.partial(lax.ragged_dot, group_sizes=sizes)
    own = jnp.take(tokens, order // CHOSEN, axis=0)
    answers = product(gated(product(own, GATE), product(own, UP)), DOWN)
    if scatter:
        return jnp.zeros_like(tokens).at[order // CHOSEN].add(answers * shares.ravel()[order][:, None]).reshape(x.shape)
    unsorted = jnp.take(answers, jnp.argsort(order), axis=0).reshape(-1, CHOSEN, HIDDEN)
    return jnp.einsum("tkh,tk->th", unsorted, shares).reshape(x.shape)


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("target", ["onnxruntime", "portable"])
def test_tokens_that_are_sorted_by_expert_are_multiplied_by_its_matrices_alone(scatter, target):
    function = functools.partial(by_groups, scatter=scatter)
    model = exported(function, target=target)
    operators = [node.op_type for node in model.model.graph]
    assert not layers(model)  # the operator takes as long for one token, and longer for many
    assert ("Split" in operators) == (target == "onnxruntime")
    assert_agrees(model, function)


@pytest.mark.parametrize("spelling", [with_biases, looped])
def test_of_equal_scores_the_first_experts_are_chosen(spelling):
    model = exported(functools.partial(spelling, **({"added": True} if spelling is looped else {})))
    x = np.zeros((1, 2, HIDDEN), np.float32)
    expected = spelling(x, **({"added": True} if spelling is looped else {}))
    assert layers(model)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)


def test_a_threshold_keeps_all_equal_scores_and_is_no_choice():
    def function(x):
        shares = jax.nn.softmax(x @ ROUTER)
        weights = jnp.where(shares >= lax.top_k(shares, CHOSEN)[0][..., -1:], shares, 0)
        inner = gated(jnp.einsum("btd,edm->btem", x, GATE), jnp.einsum("btd,edm->btem", x, UP))
        return jnp.einsum("btem,emd,bte->btd", inner, DOWN, weights)

    assert not layers(exported(function))


def test_half_of_the_experts_are_no_mixture_of_all():
    def function(x):
        shares, chosen = divided(x @ ROUTER)
        return sum(
            jnp.where(chosen == e, shares, 0).sum(-1, keepdims=True) * (gated(x @ GATE[e], x @ UP[e]) @ DOWN[e])
            for e in range(EXPERTS // 2)
        )

    model = exported(function)
    assert not layers(model)
    assert_agrees(model, function)


def test_more_experts_than_scores_are_declined():
    def function(x):
        shares, chosen = divided(x @ ROUTER[:, : EXPERTS // 2])
        inner = gated(jnp.einsum("bth,btkhi->btki", x, GATE[chosen]), jnp.einsum("bth,btkhi->btki", x, UP[chosen]))
        return jnp.einsum("btk,btkh->bth", shares, jnp.einsum("btki,btkih->btkh", inner, DOWN[chosen]))

    model = exported(function)
    assert not layers(model)
    assert "not as many as the scores" in str(model.explain())
    assert_agrees(model, function)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_declined(dtype):
    def function(x):
        shares, chosen = softmax_last(x @ ROUTER.astype(dtype))
        inner = gated(*(jnp.einsum("bth,ehi->btei", x, weights.astype(dtype)) for weights in (GATE, UP)))
        answers = jnp.einsum("btei,eih->bteh", inner, DOWN.astype(dtype))
        return jnp.einsum("bteh,bte->bth", answers, one_hot(shares, chosen).astype(dtype))

    model = jaxport.to_onnx(function, [jax.ShapeDtypeStruct((2, 3, HIDDEN), dtype)], target="onnxruntime")
    assert not layers(model)


@pytest.mark.parametrize("target", ["onnx", "portable", "web", "openvino"])
def test_other_targets_have_no_such_operator(target):
    assert not layers(exported(dense, target=target))


def test_parameters_keep_their_names():
    class Experts(nnx.Module):
        def __init__(self):
            self.gate, self.up, self.down = nnx.Param(GATE), nnx.Param(UP), nnx.Param(DOWN)
            self.router = nnx.Linear(HIDDEN, EXPERTS, use_bias=False, rngs=nnx.Rngs(0))

        def __call__(self, x):
            shares, chosen = divided(self.router(x))
            inner = gated(*(jnp.einsum("bth,ehi->btei", x, side[...]) for side in (self.gate, self.up)))
            answers = jnp.einsum("btei,eih->bteh", inner, self.down[...])
            return jnp.einsum("bteh,bte->bth", answers, one_hot(shares, chosen))

    model = jaxport.to_onnx(Experts(), [("B", "T", HIDDEN)], target="onnxruntime")
    assert layers(model)
    assert {"gate", "up", "down", "router.kernel"} <= {*model.model.graph.initializers}
    model.verify()

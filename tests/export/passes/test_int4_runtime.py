"""Weights in 4 bits for ONNX Runtime's own operators: experts, and tables that a product shares."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport

GENERATOR = np.random.default_rng(0)
EXPERTS, HIDDEN, INNER, GROUP = 4, 64, 96, 32


def exact(*shape):
    """Draw matrices that 4 bits hold exactly: each group along the axis before the last has the least and the greatest level."""
    levels = GENERATOR.integers(-8, 8, size=shape).astype(np.float32)
    levels[..., ::16, :], levels[..., 1::16, :] = -8, 7
    return jnp.asarray(levels / 64)


ROUTER = jnp.asarray(GENERATOR.normal(size=(HIDDEN, EXPERTS)), jnp.float32)
GATE, UP, DOWN = exact(EXPERTS, HIDDEN, INNER), exact(EXPERTS, HIDDEN, INNER), exact(EXPERTS, INNER, HIDDEN)
BIAS = jnp.asarray(GENERATOR.normal(size=(EXPERTS, HIDDEN)), jnp.float32)


def mixture(x, normalized=True, gated=True, added=False):
    shares, chosen = lax.top_k(jax.nn.softmax(x @ ROUTER), 2)
    if normalized:
        shares = shares / shares.sum(-1, keepdims=True)
    weights = (jax.nn.one_hot(chosen, EXPERTS) * shares[..., None]).sum(-2)
    inner = jax.nn.silu(jnp.einsum("th,ehi->tei", x, GATE))
    inner = inner * jnp.einsum("th,ehi->tei", x, UP) if gated else inner
    answers = jnp.einsum("tei,eih->teh", inner, DOWN) + (BIAS if added else 0)
    return jnp.einsum("teh,te->th", answers, weights)


def exported(function, inputs, **options):
    return jaxport.to_onnx(function, inputs, **{"target": "onnxruntime", "precision": "int4", **options})


def operators(model):
    return [node.op_type for node in model.model.graph]


def weight_bytes(model):
    return sum(value.const_value.nbytes for value in model.model.graph.initializers.values())


@pytest.mark.parametrize(
    "options", [{}, {"normalized": False}, {"gated": False}, {"added": True}, {"normalized": False, "added": True}], ids=str
)  # fmt: skip
def test_experts_are_stored_in_4_bits(options):
    function = functools.partial(mixture, **options)
    model = exported(function, [("T", HIDDEN)])
    assert "QMoE" in operators(model)
    assert "MatMulNBits" not in operators(model)  # the scores keep choosing the same experts
    x = GENERATOR.normal(size=(5, HIDDEN)).astype(np.float32)
    expected = jax.jit(function)(x)
    np.testing.assert_allclose(model(x), expected, atol=2e-5 * np.abs(expected).max())
    assert weight_bytes(model) < 0.2 * weight_bytes(exported(function, [("T", HIDDEN)], precision=None))


def test_symmetric_groups_have_no_zero_points():
    model = exported(mixture, [("T", HIDDEN)], precision=jaxport.Int4(group=GROUP, symmetric=True))
    (node,) = [node for node in model.model.graph if node.op_type == "QMoE"]
    assert len(node.inputs) == 7
    assert node.attributes["block_size"].as_int() == GROUP
    model.verify()


@pytest.mark.parametrize("precision", ["int4", jaxport.Int4(group=64)], ids=str)
def test_groups_divide_both_sizes_of_an_expert(precision):
    (node,) = [n for n in exported(mixture, [("T", HIDDEN)], precision=precision).model.graph if n.op_type == "QMoE"]
    assert node.attributes["block_size"].as_int() == GROUP


def test_of_equal_scores_the_first_experts_are_chosen():
    model = exported(functools.partial(mixture, added=True), [("T", HIDDEN)])
    x = np.zeros((2, HIDDEN), np.float32)
    np.testing.assert_allclose(model(x), mixture(x, added=True), atol=1e-6)


def test_experts_of_other_sizes_stay_as_they_are():
    def function(x):
        shares, chosen = lax.top_k(jax.nn.softmax(x @ ROUTER), 2)
        weights = (jax.nn.one_hot(chosen, EXPERTS) * shares[..., None]).sum(-2)
        answers = jnp.einsum("tei,eih->teh", jax.nn.relu(jnp.einsum("th,ehi->tei", x, GATE[..., :20])), DOWN[:, :20])
        return jnp.einsum("teh,te->th", answers, weights) @ GATE[0]

    model = exported(function, [("T", HIDDEN)])
    assert {"MoE", "MatMulNBits"} <= {*operators(model)}
    assert "no multiples of a group" in str(model.explain())
    x = GENERATOR.normal(size=(5, HIDDEN)).astype(np.float32)
    np.testing.assert_allclose(model(x), function(x), rtol=0.03, atol=0.03)


TABLE = np.array(exact(64, 400).T)


def tied(ids):
    table = jnp.asarray(TABLE)
    return jax.nn.relu(table[ids] @ GATE[0, :, :64]) @ table.T


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_tied_table_is_stored_once_in_4_bits(symmetric):
    precision = jaxport.Int4(symmetric=symmetric)
    plain, model = (exported(tied, [jax.ShapeDtypeStruct((3,), np.int32)], precision=one) for one in (None, precision))
    assert operators(model).count("GatherBlockQuantized") == 1
    assert operators(model).count("MatMulNBits") == 2
    assert weight_bytes(model) < 0.2 * weight_bytes(plain)
    for ids in ([0, 7, 399], [-1, -400, 5]):
        ids = np.int32(ids)
        np.testing.assert_allclose(model(ids), tied(ids), atol=0.03 * np.abs(tied(ids)).max())


@pytest.mark.parametrize("target", ["onnx", "web"])
def test_older_runtimes_get_tables_in_8_bits(target):
    model = exported(tied, [jax.ShapeDtypeStruct((3,), np.int32)], target=target)
    assert "GatherBlockQuantized" not in operators(model)


def test_a_table_that_no_product_shares_is_stored_in_8_bits():
    model = exported(lambda ids: jnp.asarray(TABLE)[ids] @ GATE[0], [jax.ShapeDtypeStruct((3,), np.int32)])
    assert "GatherBlockQuantized" not in operators(model)

"""What depends on positions alone is not part of the graph, or a single node."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.testing import check, f32, i32


def block_mask(x):
    positions = jnp.arange(8)
    return jnp.where(positions[:, None] // 2 == positions[None, :] // 2, x, 0.0)


@pytest.mark.parametrize(
    ("fn", "specs", "nodes"),
    [
        pytest.param(lambda x: x[:, jnp.arange(6) // 3], [f32("B", 4)], 1, id="a quotient as an index"),
        pytest.param(lambda x: x[:, jnp.arange(8) >> 1], [f32("B", 4)], 1, id="a shift as an index"),
        pytest.param(lambda x: x[:, *jnp.tril_indices(4)], [f32("B", 4, 4)], 3, id="a triangle as an index"),
        pytest.param(block_mask, [f32("B", 8, 8)], 1, id="a mask of blocks"),
        pytest.param(lambda x: x[::-1], [f32("B", 3)], 1, id="backwards along an open axis"),
        pytest.param(lambda x: x[::2], [f32("B", 3)], 1, id="every second along an open axis"),
        pytest.param(lambda x: x[1::2], [f32("B", 3)], 1, id="every other second along an open axis"),
        pytest.param(lambda x: x[:, ::2, 1::2], [f32("B", "2*T", "2*H")], 2, id="every second of even axes"),
        pytest.param(lambda x: x[:, ::-1], [f32("B", 3)], 1, id="backwards along a known axis"),
        pytest.param(lambda x: x[jnp.arange(x.shape[0])], [f32("B", 3)], 0, id="an index that is the position"),
    ],
)
def test_positions(fn, specs, nodes):
    exported = check(fn, *specs)
    assert len([node for node in exported.model.graph if node.op_type != "Identity"]) <= nodes


@pytest.mark.parametrize("target", ["portable", "openvino", "web"])
def test_constants_are_not_refused(target):
    jaxport.to_onnx(lambda x: x[:, jnp.arange(8) >> 1], [("B", 4)], target=target)


def test_causal_attention_of_open_length_is_one_operator():
    attention = partial(jax.nn.dot_product_attention, is_causal=True)
    exported = jaxport.to_onnx(lambda x: attention(x, x, x), [("B", "T", 2, 4)])
    exported.verify()
    (node,) = [node for node in exported.model.graph if node.op_type == "Attention"]
    assert node.attributes["is_causal"].as_int() == 1


@pytest.mark.parametrize(("fn", "nodes"), [(lambda x: jnp.argmax(x.astype(jnp.float32), -1), 3)])
def test_what_is_never_nan_is_not_asked_for_nan(fn, nodes):
    exported = check(fn, i32("B", 5))
    assert len(list(exported.model.graph)) <= nodes


def test_what_is_not_finite_is_not_assumed_away():
    def guarded(x):
        share = jax.nn.softmax(x)
        return jnp.where(jnp.isnan(share), 0.0, share)

    check(guarded, f32(3, 4), values=[np.array([[-np.inf] * 4, [np.nan] * 4, [1, 2, 3, 4]], np.float32)])

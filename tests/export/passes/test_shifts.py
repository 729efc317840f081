"""Shifts of uint32 in halves for OpenVINO, and the refusal of what depends on more than the bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import spec
from tests.exports import operators

X = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
X[:6] = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
NUMBERS = spec(64, dtype=np.uint32)


def export(fn):
    return jaxport.to_onnx(fn, [NUMBERS], target="openvino")


@pytest.mark.parametrize("count", [1, 7, 15, 16, 17, 31])
def test_a_shift_is_made_of_halves(count):
    exported = export(lambda x: x >> count)
    np.testing.assert_array_equal(exported(X), X >> count)
    right = [node for node in exported.model.graph if node.op_type == "BitShift"]
    assert {node.attributes["direction"].as_string() for node in right} <= {"LEFT", "RIGHT"}
    masks = [value.const_value.numpy().max() for value in exported.model.graph.initializers.values()]
    assert max(masks) < 2**31  # larger ones are clamped
    text = next(report.text for report in exported.pass_reports if report.name == "shifts")
    assert text == "1 BitShift of halves"


def test_shifts_of_other_targets_stay():
    exported = jaxport.to_onnx(lambda x: x >> 3, [NUMBERS], target="portable")
    assert operators(exported) == ["BitShift"]


BITS_ALONE = {
    "sum": lambda x: x * x - x + np.uint32(12345),
    "bits": lambda x: ~(x ^ (x << 5)) | (x >> 27),
    "movement": lambda x: jnp.concatenate([x.reshape(8, 8).T, x.reshape(8, 8)[::-1]])[jnp.array([3, 1])],
    "mask": lambda x: (x & 255) > np.uint32(3),
    "float": lambda x: (x >> 9).astype(jnp.float32),
    "where": lambda x: jnp.where((x & 1) > 0, x & 1023, np.uint32(5)),
    "normal": lambda x: jax.random.normal(jax.random.wrap_key_data(x[:2]), (8,)),
    "population_count": lax.population_count,
}


@pytest.mark.parametrize("fn", BITS_ALONE.values(), ids=BITS_ALONE)
def test_what_needs_the_bits_alone_is_exported(fn):
    exported = export(fn)
    np.testing.assert_allclose(exported(X), fn(X), rtol=1e-5)


SIZE = {
    "comparison": lambda x: x > np.uint32(3),
    "equality": lambda x: x == np.uint32(4_000_000_000),
    "float": lambda x: x.astype(jnp.float32),
    "int32": lambda x: x.astype(jnp.int32),
    "maximum": jnp.max,
    "sort": jnp.sort,
    "division": lambda x: x // np.uint32(3),
    "selection": lambda x: jnp.where((x & 1) > 0, x, x + np.uint32(5)),
    "large constant": lambda x: x + np.uint32(4_000_000_000),
    "constant result": lambda x: (x, jnp.full(3, 4_000_000_000, jnp.uint32)),
    "position": lambda x: jnp.arange(64.0)[x],
    "variable shift": lambda x: x >> (x & 3),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, y: y * y, x),
}


@pytest.mark.parametrize("fn", SIZE.values(), ids=SIZE)
def test_what_needs_the_size_is_refused(fn):
    with pytest.raises(jaxport.Unsupported, match="the target treats the highest bit of a uint32 as a sign"):
        export(fn)

"""Masks that are made condition by condition."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.testing import check, f32, spec
from tests.export.passes.fusions import operators, report

LOW = float(np.finfo(np.float32).min)
SPECS = [f32("B", "T", 5), spec("B", 5, dtype=np.bool_), spec("T", 5, dtype=np.bool_)]


def both(first, second):
    """`x` where neither condition hides it; each is given as it is, or negated."""

    def fn(x, padded, later):
        inner = jnp.where(later, LOW, x) if first else jnp.where(later, x, LOW)
        padded = padded[:, None]
        return jnp.where(padded, LOW, inner) if second else jnp.where(padded, inner, LOW)

    return fn


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_nested_choices_are_one(first, second):
    exported = check(both(first, second), *SPECS)
    assert report(exported, "choices") == "1 Where"
    assert operators(exported)["Where"] == 1


def test_choices_of_numbers_in_three_steps():
    def mask(padded, later, far):
        chosen = jnp.where(far, -jnp.inf, 0.0)
        return jnp.where(padded[:, None, None], -jnp.inf, jnp.where(later, -jnp.inf, chosen)[None])

    exported = check(mask, *SPECS[1:], SPECS[2])
    assert operators(exported)["Where"] == 1


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_casts_between(dtype):
    """The lowest number of a type is itself in that type."""
    low = float(jnp.finfo(dtype).min)

    def mask(x, padded, later):
        inner = jnp.where(later, low, 0).astype(dtype)
        return x + jnp.where(padded[:, None], jnp.asarray(low, dtype), inner)

    exported = check(mask, spec("B", "T", 5, dtype=dtype), *SPECS[1:])
    assert operators(exported)["Where"] == 1


OTHERS = {
    "another low number": lambda x, padded, later: jnp.where(padded[:, None], LOW, jnp.where(later, -1e10, x)),
    "no low number": lambda x, padded, later: jnp.where(padded[:, None], -1.0, jnp.where(later, -1.0, x)),
    "a choice that is read": lambda x, padded, later: (
        jnp.where(padded[:, None], LOW, jnp.where(later, LOW, x)),
        jnp.where(later, LOW, x),
    ),
    "turned": lambda x, padded, later: jnp.where(padded[:, None], LOW, jnp.where(later, LOW, x).swapaxes(1, 2)),
    "rounded": lambda x, padded, later: jnp.where(
        padded[:, None], LOW, jnp.where(later, LOW, x).astype(jnp.float16).astype(jnp.float32)
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_choices_stay(kind):
    specs = [f32(2, 5, 5), spec(2, 5, dtype=np.bool_), spec(5, 5, dtype=np.bool_)] if kind == "turned" else SPECS
    exported = check(OTHERS[kind], *specs)
    assert operators(exported)["Where"] == 2

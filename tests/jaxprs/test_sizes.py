from __future__ import annotations

import gc

import jax
import jax.numpy as jnp

from jaxport.blocks.marking.window import activation
from jaxport.jaxprs import CHECKS_OF_SIZES, release
from jaxport.jaxprs.releases.versions import TESTED


def errors_left(window):
    """Trace with a symbolic size, and return the errors about it that are still alive."""
    (batch,) = jax.export.symbolic_shape("B")
    gc.collect()
    gc.disable()  # the errors are in cycles
    try:
        with window():
            closed = jax.make_jaxpr(lambda x: jnp.sin(x).reshape(-1) + 1)(jax.ShapeDtypeStruct((batch, 3), jnp.float32))
        assert str(closed.out_avals[0].shape) == "(3*B,)"
        return [error for error in gc.get_objects() if type(error) is TypeError and "_DimExpr" in str(error)]
    finally:
        gc.enable()


def test_a_trace_leaves_no_errors_behind():
    assert not errors_left(activation)


def test_the_functions_are_restored():
    before = [getattr(owner, name) for owner, name, _ in CHECKS_OF_SIZES]
    with activation():
        assert all(
            getattr(owner, name) is not old for (owner, name, _), old in zip(CHECKS_OF_SIZES, before, strict=True)
        )
    assert [getattr(owner, name) for owner, name, _ in CHECKS_OF_SIZES] == before


def test_the_tested_releases_have_a_function_to_wrap():
    assert CHECKS_OF_SIZES or (release.major, release.minor) > TESTED[-1][:2]

"""A Mox that was traced with symbolic dims runs at any sizes that fit, as the function itself does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from tests.mox.test_bodies import custom_vjp

RNG = np.random.default_rng(0)
attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))

PROGRAMS = {
    "reshape": lambda x: x.reshape(x.shape[0] * x.shape[1], 4) * x.shape[1],
    "mean": lambda x: x.mean(1) + x.shape[0],
    "arange": lambda x: x + jnp.arange(x.shape[1])[:, None],
    "concatenate": lambda x: jnp.concatenate([x, x[:, ::-1]], 1),
    "relu": jax.nn.relu,
    "softmax": jax.nn.softmax,
    "custom_vjp": custom_vjp(jnp.sin),
    "scan": lambda x: lax.scan(lambda c, row: (c + row.sum(0), c), jnp.zeros(4), x)[1],
    "while": lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * c[1].shape[0]), (0, x))[1],
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: x, x),
    "vmap": lambda x: jax.vmap(lambda row: jnp.tanh(row) @ row.T)(x),
    "remat": jax.checkpoint(lambda x: jnp.sin(x) * x.shape[1]),
    "attention": attention,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_at_any_size(name):
    program = PROGRAMS[name]
    batch, time = jax.export.symbolic_shape("B, T")
    mox = jaxport.make_mox(program)(jax.ShapeDtypeStruct((batch, time, 4), jnp.float32))
    for sizes in ((1, 2), (3, 5)):
        x = jnp.asarray(RNG.normal(size=(*sizes, 4)), jnp.float32)
        np.testing.assert_array_equal(jax.jit(mox)(x), jax.jit(program)(x))
        if name != "while":
            found, wanted = (jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(x) for f in (mox, program))
            np.testing.assert_array_equal(found, wanted)


def test_an_edited_program_runs_at_any_size():
    (batch,) = jax.export.symbolic_shape("B")
    mox = jaxport.make_mox(attention)(jax.ShapeDtypeStruct((batch, 3, 4), jnp.float32))
    adapted = mox.sub("//LinearGeneral", jaxport.mox.lora(2))
    x = jnp.asarray(RNG.normal(size=(5, 3, 4)), jnp.float32)
    np.testing.assert_allclose(adapted(x), attention(x), rtol=1e-5, atol=1e-6)
    assert {v.shape for v in mox.capture("//LinearGeneral")(x).values()} == {(5, 3, 2, 2), (5, 3, 4)}


def test_expressions_are_solved_and_checked():
    (n,) = jax.export.symbolic_shape("n")
    mox = jaxport.make_mox(lambda x, y: x[1::2] + y)(
        jax.ShapeDtypeStruct((2 * n,), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    )
    np.testing.assert_array_equal(mox(jnp.arange(6.0), jnp.ones(3)), [2.0, 4.0, 6.0])
    with pytest.raises(jaxport.InvalidArgument, match=r"`y` has the shape \(4,\)(.|\n)*\(n\), where n=3"):
        mox(jnp.arange(6.0), jnp.ones(4))
    with pytest.raises(jaxport.InvalidArgument, match=r"`x` has the shape \(5,\)"):
        mox(jnp.arange(5.0), jnp.ones(2))
    with pytest.raises(jaxport.InvalidArgument, match=r"`y` is int32\[3\](.|\n)*traced with float32\[n\]"):
        mox(jnp.arange(6.0), jnp.ones(3, jnp.int32))

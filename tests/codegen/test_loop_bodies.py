"""The bodies of loops are written as methods are: operators, one expression for what is read once, values for what is alone."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.jaxprs import PythonFunction
from tests.codegen.structured import check, load

ROWS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def decayed(x: jax.Array) -> jax.Array:
    """One carried value, one row, one result a round."""

    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state * 0.9 + row @ jnp.eye(4) * 0.1)
        return state, state.sum(axis=0)

    return lax.scan(step, jnp.zeros(4), x)[1]


def counted(x: jax.Array) -> jax.Array:
    """Nothing is stacked."""
    return lax.fori_loop(0, 5, lambda i, state: state + jnp.sin(x[i]), jnp.ones(4))


def nested(x: jax.Array) -> jax.Array:
    def outer(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.scan(lambda left, cell: (left + cell, left * cell), state, row)

    return jnp.stack([*lax.scan(outer, jnp.float32(0.5), x)[1], x[0]])


def joined(x: jax.Array) -> jax.Array:
    """The body joins what the method joins after it: each has its own."""
    start, rest = x[:1], x[1:]

    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        return jnp.concatenate([start, rest, state])[: len(state)] * row.sum(), None

    final = lax.scan(step, x[:3], x)[0]
    return jnp.concatenate([start, rest, final])


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("function", [decayed, counted, nested, joined])
def test_bodies_compute_the_same(function: PythonFunction, framework: str, tmp_path: Path) -> None:
    exported = jaxport.to_onnx(function, [ROWS])
    check(exported.proto, {exported.input_names[0]: ROWS}, tmp_path, framework)


class Frames(nnx.Module):
    """Convolutions of frames and of what is kept of them."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.frame, self.kept = (nnx.Conv(features, 4, (3, 3), rngs=rngs) for features in (3, 4))
        self.norm = nnx.GroupNorm(4, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        def step(kept: jax.Array, frame: jax.Array) -> tuple[jax.Array, jax.Array]:
            kept = jnp.tanh(self.norm(self.frame(frame) + self.kept(kept)))
            return kept, kept.mean(axis=(1, 2))

        return lax.scan(step, jnp.zeros((2, 5, 6, 4)), x)[1]


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_layers_in_a_body_keep_their_layout(framework: str, tmp_path: Path) -> None:
    frames = np.random.default_rng(0).standard_normal((3, 2, 5, 6, 3)).astype(np.float32)
    exported = jaxport.to_onnx(Frames(rngs=nnx.Rngs(0)), [frames])
    check(exported.proto, {exported.input_names[0]: frames}, tmp_path, framework)


def written(function: PythonFunction, *inputs: np.ndarray) -> str:
    return jaxport.from_onnx(jaxport.to_onnx(function, [*inputs]).proto).to_source(framework="nnx").code


def test_what_is_alone_is_no_tuple() -> None:
    code = written(decayed, ROWS)
    assert "def step(carry, row):" in code
    assert "_, x = lax.scan(step, " in code
    assert ",) = " not in code
    assert ", None)" in written(counted, ROWS)


def test_operators_stand_in_expressions() -> None:
    body = written(decayed, ROWS).partition("def step")[2].partition("lax.scan")[0]
    assert "jnp.matmul" not in body
    assert len(body.splitlines()) <= 5, body


def halved(x: np.ndarray) -> jax.Array:
    return lax.while_loop(lambda one: jnp.abs(one).max() > 1, lambda one: one / 2 + jnp.sin(one) * 0.1, x)


def test_what_a_condition_does_not_read_has_no_name(tmp_path: Path) -> None:
    program = jaxport.from_onnx(jaxport.to_onnx(halved, [ROWS * 8]).proto)
    code = program.to_source(tmp_path, framework="nnx").code
    assert "_, x_2, _ = carry\n            return x_2" in code
    np.testing.assert_allclose(load(tmp_path).load()(ROWS * 8), halved(ROWS * 8), rtol=1e-6)


def beams(logits: jax.Array) -> jax.Array:
    def step(scores: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        best, at = lax.top_k((scores[:, None] + row).reshape(-1), 2)
        return best, at

    return lax.scan(step, jnp.zeros(2), logits)[1]


def test_several_results_in_a_loop_print_in_rust() -> None:
    """JAX returns a list where the recorded step has a tuple."""
    code = jaxport.from_onnx(jaxport.to_onnx(beams, [ROWS]).proto).to_source(framework="burn").code
    assert "= top_k(" in code.partition("for t in 0..5 {")[2], code

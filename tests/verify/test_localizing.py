"""On a mismatch the report names the block, the equation, the step, the rule and the user's line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.testing import f32, i32
from jaxport.verify import Divergence

pytestmark = pytest.mark.sampled(2)


def wrong_tanh(op, x):
    return op.Tanh(op.Mul(x, 1.01))


def divergence_of(fn, *specs, rules=None, **options) -> Divergence:
    exported = jaxport.to_onnx(fn, list(specs), rules=rules or {"tanh": wrong_tanh}, **options)
    report = exported.verify(check=False)
    assert not report.ok
    assert report.divergence is not None
    return report.divergence


class Layer(nnx.Module):
    def __init__(self, rngs, wrong=False):
        self.linear, self.wrong = nnx.Linear(4, 4, rngs=rngs), wrong

    def __call__(self, x):
        x = self.linear(x)
        return jnp.tanh(x) if self.wrong else jnp.sin(x)


class Stack(nnx.Module):
    def __init__(self, wrong, count=4):
        self.layers = nnx.List([Layer(nnx.Rngs(i), wrong=i == wrong) for i in range(count)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("wrong", [0, 2])
@pytest.mark.parametrize("shape", [("B", 4), (3, 4)], ids=["symbolic", "static"])
def test_the_first_block_that_diverges_is_named(wrong, shape):
    found = divergence_of(Stack(wrong), shape)
    assert f"`tanh` in the block `layers.{wrong}`" in found.place
    assert found.place.endswith("Layer)")
    assert found.source.startswith("test_localizing.py:")
    assert "in __call__" in found.source
    assert "wrong_tanh" in found.source


def test_a_block_inside_an_onnx_function_is_named():
    found = divergence_of(Stack(2), ("B", 4), functions=Layer)
    assert "in the block `layers.2`" in found.place


def test_an_equation_outside_of_all_blocks_is_named():
    layer = Layer(nnx.Rngs(0))
    assert divergence_of(lambda x: layer(jnp.tanh(x)), ("B", 4)).place == "`tanh` outside of all blocks"
    assert divergence_of(lambda x: jnp.tanh(layer(x)), ("B", 4)).place == "`tanh` outside of all blocks"


def in_a_scan(x, reverse=False):
    def body(carry, k):
        carry = jnp.cos(jnp.where(k == 2, jnp.tanh(carry), jnp.sin(carry)))
        return carry, carry

    return lax.scan(body, x, jnp.arange(5), reverse=reverse)


@pytest.mark.parametrize(("reverse", "last"), [(False, 0), (True, 4)])
def test_inside_a_scan_the_first_step_is_named(reverse, last):
    """The tanh diverges in every step; what follows from it only from step 2 on."""
    found = divergence_of(lambda x: in_a_scan(x, reverse), f32("B"))
    assert found.place == f"`tanh` outside of all blocks, step {last} of 5"


def test_inside_a_scan_of_symbolic_length_that_takes_two_steps_at_once():
    found = divergence_of(lambda x: lax.scan(lambda c, a: (jnp.tanh(c), a), 0.5, x, unroll=2), f32("T"))
    assert found.place == "`tanh` outside of all blocks, step 0 of 4"


def test_what_an_earlier_step_spoils_is_not_blamed():
    """The `sin` comes first in the body, and diverges from the second step on, through the carry."""

    def body(carry, _):
        return jnp.tanh(jnp.sin(carry)), ()

    found = divergence_of(lambda x: lax.scan(body, x, None, length=4)[0], f32("B"))
    assert found.place == "`tanh` outside of all blocks, step 0 of 4"


def test_blocks_inside_a_scan_are_seen():
    first, second = Layer(nnx.Rngs(0)), Layer(nnx.Rngs(1), wrong=True)

    def fn(xs):
        return lax.scan(lambda carry, x: (second(first(carry + x)), carry.sum()), jnp.zeros(4), xs)

    found = divergence_of(fn, f32("T", 4))
    assert "`tanh` in the block `second`" in found.place
    assert "step 0 of" in found.place


def test_scans_inside_scans_are_seen():
    def inner(carry, x):
        return jnp.tanh(carry + x), carry

    def fn(xs):
        return lax.scan(lambda carry, row: lax.scan(inner, carry, row), 0.5, xs)

    assert divergence_of(fn, f32(2, 3)).place == "`tanh` outside of all blocks, step 0 of 2, step 0 of 3"


@jax.custom_jvp
def activation(x):
    return jnp.cos(jnp.tanh(x))


activation.defjvps(lambda tangent, answer, x: tangent * answer)


@pytest.mark.parametrize(
    "fn",
    [
        jax.jit(lambda x: jnp.cos(jnp.tanh(x))),
        jax.checkpoint(lambda x: jnp.cos(jnp.tanh(x))),
        lambda x: lax.cond(x.sum() > 100, jnp.sin, jnp.tanh, x),
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1])), (0, x))[1],
        activation,
        jax.value_and_grad(lambda x: jnp.tanh(x).sum()),
    ],
    ids=["jit", "checkpoint", "cond", "while", "custom_jvp", "grad"],
)
@pytest.mark.parametrize("shape", [("B",), (3,)], ids=["symbolic", "static"])
def test_calls_branches_and_loops_are_seen_into(fn, shape):
    assert "`tanh`" in divergence_of(fn, f32(*shape)).place


def test_integers_and_nan_diverge_too():
    found = divergence_of(
        lambda i: jax.lax.div(i, jnp.full_like(i, 2)), i32("B"), rules={"div": lambda op, x, y: op.Mul(x, y)}
    )
    assert "`div`" in found.place
    nan = {"tanh": lambda op, x: op.Div(x, op.Sub(x, x))}
    assert "nan where" in divergence_of(jnp.tanh, f32("B"), rules=nan).problem.replace("inf", "nan")


def test_state_and_weights_as_inputs_are_carried_along():
    found = divergence_of(Stack(1), ("B", 4), weights="inputs")
    assert "`layers.1`" in found.place


class Counting(nnx.Module):
    def __init__(self):
        self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return jnp.tanh(self.norm(x))


def test_a_model_with_state_outputs_is_localized():
    assert "`tanh`" in divergence_of(Counting(), ("B", 4), state="outputs").place


def spoiled(model):
    """A graph pass that changes what a model means, if it has one output."""
    for node in list(model.graph) if len(model.graph.outputs) == 1 else ():
        node.op_type = {"Sin": "Cos"}.get(node.op_type, node.op_type)


def harmless(model):
    """A graph pass that does nothing."""


def test_a_pass_is_named_where_no_equation_differs_by_itself():
    exported = jaxport.to_onnx(lambda x: jnp.sin(x) * 3, [("B",)], passes=[harmless, spoiled, harmless])
    found = exported.verify(check=False).divergence
    assert found is not None
    assert found.place == "the graph pass `spoiled`"
    assert found.problem == "the graph agrees before it, and each equation by itself"


def test_the_error_tells_all_of_it():
    exported = jaxport.to_onnx(Stack(1), [("B", 4)], rules={"tanh": wrong_tanh})
    with pytest.raises(jaxport.VerificationFailed) as caught:
        exported.verify(sizes=[{"B": 2}])
    text = str(caught.value)
    for part in ("the output `output` of `Stack` differs at B=2", "`tanh` in the block `layers.1`", "in __call__"):
        assert part in text
    assert "elements differ, by up to" in caught.value.why
    assert "wrong_tanh" in caught.value.where

"""ONNX functions: what becomes one, what is shared, and that the numbers stay the same."""

from __future__ import annotations

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.testing import check, f32


class Block(nnx.Module):
    def __init__(self, rngs, features=4):
        self.first = nnx.Linear(features, features, rngs=rngs)
        self.second = nnx.Linear(features, features, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x))) + x


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([Block(rngs) for _ in range(3)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def model():
    return Model(nnx.Rngs(0))


def names(exported):
    return sorted(f"{f.domain}.{f.name}" for f in exported.model.functions.values())


def calls(graph):
    return [n.op_type for n in graph if n.domain]


def test_a_class_becomes_one_function_with_the_weights_as_inputs(model):
    exported = check(model, ("B", 4), functions=nnx.Linear)
    assert names(exported) == ["flax.nnx.Linear"]
    assert calls(exported.model.graph) == ["Linear"] * 6
    (function,) = exported.model.functions.values()
    assert [v.name for v in function.inputs] == ["inputs", "kernel", "bias"]


@pytest.mark.parametrize("selector", ["flax.nnx.Linear", "Linear", lambda block: block.target.endswith(".Linear")])
def test_selectors(model, selector):
    assert names(check(model, ("B", 4), functions=selector)) == ["flax.nnx.Linear"]


def test_nested_functions(model):
    exported = check(model, ("B", 4), functions=[Block, nnx.Linear])
    assert len(exported.model.functions) == 2
    assert calls(exported.model.graph) == ["Block"] * 3
    block = next(f for f in exported.model.functions.values() if f.name == "Block")
    assert calls(block.graph) == ["Linear", "Linear"]


def test_bodies_that_differ_are_not_shared_and_explain_says_why():
    first, second = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(1))
    exported = check(lambda x: second(first(x)), ("B", 4), functions=nnx.Linear)
    assert names(exported) == ["flax.nnx.Linear", "flax.nnx.Linear_1"]
    assert "not shared" in str(exported.explain())


def test_a_selector_that_matches_nothing_is_an_error(model):
    with pytest.raises(jaxport.ExportError, match=r"`functions='flax\.nnx\.Conv'` matches no call"):
        jaxport.to_onnx(model, [("B", 4)], functions="flax.nnx.Conv")


def test_what_selects_nothing_is_refused(model):
    with pytest.raises(jaxport.InvalidArgument, match="3 selects no blocks"):
        jaxport.to_onnx(model, [("B", 4)], functions=3)


@jaxport.onnx_function
def halve(x):
    """Half of it."""
    return x / 2


def test_a_decorated_function_is_unchanged_outside_an_export():
    assert halve(4.0) == 2.0
    assert (halve.__name__, halve.__doc__) == ("halve", "Half of it.")
    assert pickle.loads(pickle.dumps(halve)) is halve
    np.testing.assert_array_equal(jax.vmap(jax.jit(halve))(np.ones(3)), np.full(3, 0.5))


def test_a_decorated_function_is_shared():
    exported = check(lambda x: halve(halve(x)), ("B",))
    assert calls(exported.model.graph) == ["halve", "halve"]
    assert len(exported.model.functions) == 1


alias = halve
partial = functools.partial(halve)


@pytest.mark.parametrize("called", [alias, partial, jax.jit(halve), jax.vmap(halve)])
def test_aliases_partials_and_transformed_functions(called):
    assert calls(check(lambda x: called(x) + 1, ("B",)).model.graph) == ["halve"]


class Scaler:
    def __init__(self, by):
        self.by = by

    @jaxport.onnx_function(namespace="my.ops", name="Scale")
    def scale(self, x):
        return x * self.by


def test_a_decorated_method_with_names_of_its_own():
    exported = check(lambda x: Scaler(2.0).scale(x) + Scaler(3.0).scale(x), ("B",))
    assert names(exported) == ["my.ops.Scale", "my.ops.Scale_1"]


def test_unique_keeps_the_weights_inside_and_shares_equal_state_only():
    @jaxport.onnx_function(unique=True)
    class Dense(nnx.Module):
        def __init__(self, rngs):
            self.kernel = nnx.Param(jax.random.normal(rngs(), (4, 4)))

        def __call__(self, x):
            return x @ self.kernel

    one, two = Dense(nnx.Rngs(0)), Dense(nnx.Rngs(1))
    exported = check(lambda x: two(one(one(x))), ("B", 4))
    assert len(exported.model.functions) == 2
    assert all(len(f.inputs) == 1 for f in exported.model.functions.values())


def test_claims_on_one_name_are_refused():
    @jaxport.onnx_function(namespace="n", name="F")
    def first(x):
        return x + 1

    @jaxport.onnx_function(namespace="n", name="F")
    def second(x):
        return x * 2

    with pytest.raises(jaxport.InvalidArgument, match=r"the ONNX function `n.F` is claimed by"):
        jaxport.to_onnx(lambda x: first(second(x)), [(3,)])


def test_contradicting_options_are_refused():
    with pytest.raises(jaxport.InvalidArgument, match="`a` is in `static` and in `runtime`"):
        jaxport.onnx_function(static=("a",), runtime=("a",))
    with pytest.raises(jaxport.InvalidArgument, match="`type='A'` and `name='B'` differ"):
        jaxport.onnx_function(type="A", name="B")


def test_dims_that_no_input_carries_become_inputs():
    @jaxport.onnx_function
    def spread(x, like):
        return jnp.broadcast_to(x, like.shape)

    @jaxport.onnx_function
    def ramp(x, *, n):
        return x + jnp.arange(n, dtype=x.dtype)[:, None]

    check(lambda x, y: spread(x, y) + y, (), ("B", "T"))
    exported = check(lambda x: ramp(x[:1, :1], n=x.shape[0]), ("B", 3))
    (function,) = exported.model.functions.values()
    assert [v.name for v in function.inputs][-1] == "dim_B"


def test_bodies_carry_the_callers_symbols(model):
    exported = check(model, ("B", 4), functions=nnx.Linear)
    (function,) = exported.model.functions.values()
    assert {str(v.shape) for n in function.graph for v in n.outputs} == {"[B,4]"}


def test_a_function_called_with_two_shapes_has_two_bodies():
    exported = check(lambda x, y: (halve(x), halve(y)), ("B", 3), ("T", 4))
    assert len(exported.model.functions) == 2


def test_static_and_runtime_arguments():
    @jaxport.onnx_function(static=("mode",), runtime=("scale",))
    def scaled(x, *, mode, scale):
        return x * scale if mode == "times" else x / scale

    exported = check(lambda x: scaled(x, mode="times", scale=2.0) + scaled(x, mode="times", scale=3.0), f32("B"))
    (function,) = exported.model.functions.values()
    assert len(function.inputs) == 2
    assert (
        len(
            check(
                lambda x: scaled(x, mode="a", scale=2.0) + scaled(x, mode="times", scale=2.0), f32("B")
            ).model.functions
        )
        == 2
    )
    with pytest.raises(jaxport.InvalidArgument, match="`mode` is static"):
        jaxport.to_onnx(lambda x: scaled(x, mode=x, scale=2.0), [(3,)])


def test_functions_can_be_inlined_back(model):
    exported = check(model, ("B", 4), functions=nnx.Linear)
    inlined = exported.inlined()
    assert not inlined.model.functions
    assert not calls(inlined.model.graph)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(inlined(x), exported(x), rtol=1e-6)
    assert exported.model.functions

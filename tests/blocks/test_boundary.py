"""Decorated functions, methods and classes, and functions selected by name."""

from __future__ import annotations

import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx
from jax.nn import gelu as imported_gelu

from jaxport.blocks.marking.boundary import boundary
from jaxport.blocks.marking.window import activation
from jaxport.blocks.tracing import trace
from jaxport.errors import InvalidArgument
from tests.blocks.checks import blocks, check

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


@boundary
def scale(x, by=2.0):
    """Scales."""
    return x * by


def original(x, by=2.0):
    """Scales."""
    return x * by


@functools.partial(boundary, target="my.pkg.encode", options={"unique": True})
def encode(x):
    return x + 1


class Tools:
    @boundary
    def method(self, x):
        return x * 2

    @boundary
    @staticmethod
    def static(x):
        return x * 3

    @staticmethod
    @boundary
    def inner_static(x):
        return x * 4

    @boundary
    @classmethod
    def of_class(cls, x):
        return x * 5

    def plain(self, x):
        return x * 6


@boundary
class Activation:
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, x):
        return jnp.where(x > 0, x, x * self.slope)

    def inverse(self, x):
        return jnp.where(x > 0, x, x / self.slope)


@functools.partial(boundary, target="my.pkg.Layer", options={"namespace": "mine"})
class Layer(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return self.double(self.linear(x))

    @boundary
    def double(self, x):
        return x * 2


class Outer(nnx.Module):
    def __init__(self, rngs):
        self.layer = Layer(rngs)

    def __call__(self, x):
        return self.layer(x)


class LinenOuter(linen.Module):
    @linen.compact
    def __call__(self, x):
        return self.double(linen.Dense(3)(x))

    @boundary
    def double(self, x):
        return x * 2


alias = scale
partial = functools.partial(scale, by=3.0)
bound = Tools().method
HERE = __name__


@pytest.mark.parametrize(
    ("fn", "targets"),
    [
        (scale, [f"{HERE}.scale"]),
        (alias, [f"{HERE}.scale"]),
        (partial, [f"{HERE}.scale"]),
        (encode, ["my.pkg.encode"]),
        (bound, [f"{HERE}.Tools.method"]),
        (lambda x: Tools().method(x), [f"{HERE}.Tools.method"]),
        (lambda x: Tools.method(Tools(), x), [f"{HERE}.Tools.method"]),
        (Tools.static, [f"{HERE}.Tools.static"]),
        (lambda x: Tools().inner_static(x), [f"{HERE}.Tools.inner_static"]),
        (Tools.of_class, [f"{HERE}.Tools.of_class"]),
        (Activation(0.5), [f"{HERE}.Activation"]),
        (Activation(0.5).inverse, [f"{HERE}.Activation"]),
        (jax.jit(scale), [f"{HERE}.scale"]),
        (boundary(jax.jit(original)), [f"{HERE}.original"]),
        (boundary(jax.jit(original), target="a.b"), ["a.b"]),
        (boundary(functools.partial(original, by=3.0), target="a.b"), ["a.b"]),
        (jax.vmap(scale), [f"{HERE}.scale"]),
        (lambda x: [scale(v) for v in x[None]].pop(), [f"{HERE}.scale"]),
    ],
)
def test_a_decorated_thing_is_found_wherever_it_is_called_from(fn, targets):
    traced = check(fn, X)
    assert [block.target for block in blocks(traced.jaxpr.jaxpr)] == targets


def test_a_decorated_module_class_keeps_its_paths_and_has_its_options():
    traced = check(Outer(nnx.Rngs(0)), X)
    found = [(b.target.removeprefix(HERE), b.path, b.method, dict(b.options)) for b in blocks(traced.jaxpr.jaxpr)]
    assert found == [
        (".Outer", "", "__call__", {}),
        ("my.pkg.Layer", "layer", "__call__", {"namespace": "mine"}),
        ("flax.nnx.Linear", "layer.linear", "__call__", {}),
        (".Layer.double", "layer", "double", {}),
    ]


def test_a_decorated_linen_method_is_one_block():
    model = LinenOuter()
    variables = model.init(jax.random.key(0), X)
    traced = check(functools.partial(model.apply, variables), X)
    found = [(b.target.removeprefix(HERE), b.path, b.method) for b in blocks(traced.jaxpr.jaxpr)]
    assert found == [
        (".LinenOuter", "", "__call__"),
        ("flax.linen.Dense", "Dense_0", "__call__"),
        (".LinenOuter.double", "", "double"),
    ]


def test_outside_a_trace_nothing_changes():
    assert inspect.signature(scale) == inspect.signature(original)
    assert (scale.__name__, scale.__doc__) == ("scale", "Scales.")
    assert inspect.isfunction(scale)
    assert pickle.loads(pickle.dumps(scale)) is scale
    assert isinstance(pickle.loads(pickle.dumps(Activation(0.5))), Activation)
    assert scale(3, by=2) == 6
    assert Activation.__call__.__name__ == "__call__"
    assert not hasattr(Activation.__call__, "__wrapped__")
    jaxpr = jax.make_jaxpr(lambda x: Outer(nnx.Rngs(0))(scale(x)))(X)
    assert "block" not in str(jaxpr)


def test_a_decorated_jitted_function_keeps_what_it_offers():
    assert "jit" in boundary(jax.jit(original)).lower(X).as_text()


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InvalidArgument) as caught:
        boundary(3)
    assert str(caught.value).splitlines() == [
        "`3` cannot be given a boundary",
        "  where:   the argument of `boundary`",
        "  why:     a `int` cannot be called",
        "  instead: decorate a function, a method or a class",
    ]


@pytest.mark.parametrize(
    ("target", "fn"),
    [
        ("jax.nn.gelu", lambda x: jax.nn.gelu(x)),
        ("jax.nn.gelu", lambda x: imported_gelu(x, approximate=False)),
        ("jax.nn.softmax", lambda x: jax.nn.softmax(x, axis=-1)),
        ("jax.nn.dot_product_attention", lambda x: jax.nn.dot_product_attention(x[None, :, None], x[None, :, None], x[None, :, None])),
        (f"{HERE}.original", lambda x: original(x)),
        (f"{HERE}.Tools.plain", lambda x: Tools().plain(x)),
        ("flax.nnx.gelu", lambda x: nnx.gelu(x)),
    ],
)  # fmt: skip
def test_a_function_selected_by_name_is_found_where_it_was_imported_to(target, fn):
    traced = check(fn, X, functions=(target,))
    assert [block.target for block in blocks(traced.jaxpr.jaxpr)] == [target]
    assert blocks(traced.jaxpr.jaxpr)[0].kind == "function"
    assert blocks(trace(fn, (X,)).jaxpr.jaxpr) == []


def test_the_config_of_a_selected_function_is_its_static_arguments():
    traced = trace(lambda x: jax.nn.gelu(x, approximate=False), (X,), functions=("jax.nn.gelu",))
    assert blocks(traced.jaxpr.jaxpr)[0].config == {"approximate": False}


def test_a_function_sits_below_the_module_that_calls_it():
    class Model(nnx.Module):
        def __init__(self):
            self.layer = nnx.Sequential(lambda x: jax.nn.gelu(x))

        def __call__(self, x):
            return self.layer(x)

    traced = check(Model(), X, functions=("jax.nn.gelu",))
    assert [block.path for block in blocks(traced.jaxpr.jaxpr)] == ["", "layer", "layer.gelu"]


def test_a_class_selected_by_name_has_a_boundary_without_being_decorated():
    class Undecorated:
        def __call__(self, x):
            return x * 2

    globals()["Undecorated"] = Undecorated
    try:
        traced = check(lambda x: Undecorated()(x), X, functions=(f"{HERE}.Undecorated",))
        assert [block.target for block in blocks(traced.jaxpr.jaxpr)] == [f"{HERE}.Undecorated"]
    finally:
        del globals()["Undecorated"]


def test_a_super_call_is_part_of_the_call():
    class Base(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.linear(x)

    class Derived(Base):
        def __call__(self, x):
            return super().__call__(x) + 1

    traced = check(Derived(), X)
    assert [block.target.rpartition(".")[2] for block in blocks(traced.jaxpr.jaxpr)] == ["Derived", "Linear"]


def test_an_activation_can_be_opened_by_hand():
    with activation(["jax.nn.gelu"]):
        jaxpr = jax.make_jaxpr(lambda x: jax.nn.gelu(x))(X)
    assert jaxpr.eqns[0].primitive.name == "block_enter"

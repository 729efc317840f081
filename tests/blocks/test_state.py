"""Changes to module state: refused with their paths, appended as outputs, or discarded; the user's model never changes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxport.blocks.tracing import trace
from jaxport.errors import StateChanged
from tests.blocks.checks import assert_same, evaluate, shapes_of

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


class Cache(nnx.Variable):
    pass


class Counter(nnx.Module):
    """All the ways to have state."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.cache = Cache({"key": jnp.zeros((2, 3)), "index": jnp.zeros((), jnp.int32)})
        self.steps = 0

    def normalise(self, x):
        return self.norm(x)

    def drop(self, x):
        return self.dropout(x)

    def remember(self, x):
        cache = self.cache.get_value()
        self.cache.set_value({"key": x, "index": cache["index"] + 1})
        return x + cache["key"]

    def count(self, x):
        self.steps += 1
        return x

    def grow(self, x):
        self.new = Cache(x)
        return x

    def shrink(self, x):
        del self.cache
        return x

    def write_back(self, x):
        self.cache.set_value(dict(self.cache.get_value()))
        return nnx.jit(lambda m, x: x)(self, x)

    def write_back_in_scan(self, x):
        def step(carry, _):
            return (carry[0], carry[1] * 2), None

        key = self.cache.get_value()["key"]
        (key, y), _ = jax.lax.scan(step, (key, x), None, length=2)
        self.cache.set_value({**self.cache.get_value(), "key": key})
        return y

    def eval_inside(self, x):
        self.eval()
        return self.norm(x)


@pytest.fixture
def model():
    return Counter(nnx.Rngs(0))


STATISTICS = ("norm.mean", "norm.var")


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("normalise", STATISTICS),
        ("drop", ()),
        ("remember", ("cache.index", "cache.key")),
        ("grow", ("new",)),
        ("write_back", ()),
        ("write_back_in_scan", ()),
    ],
)
def test_changed_arrays(model, method, changed):
    before = nnx.to_pure_dict(nnx.state(model))
    fn = getattr(model, method)
    if changed:
        with pytest.raises(StateChanged) as caught:
            trace(fn, shapes_of((X,)))
        for path in changed:
            assert f"`{path}`" in str(caught.value)
    else:
        assert trace(fn, (X,)).state_outputs == ()
    discarded = trace(fn, (X,), state="discard")
    assert discarded.state_outputs == ()
    traced = trace(fn, (X,), state="outputs")
    assert traced.state_outputs == changed
    assert_same(nnx.to_pure_dict(nnx.state(model)), before)
    assert model.steps == 0

    result, state = evaluate(traced, X, jit=lambda f: f)
    assert_same(evaluate(discarded, X, jit=lambda f: f)[0], result)
    assert_same(result, fn(X))
    values = {".".join(map(str, path)): v for path, v in flat_state(model)}
    assert_same(state, {path: values[path] for path in changed})


def flat_state(model):
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        value = leaf.get_value()
        yield from (((*path, key), v) for key, v in value.items()) if isinstance(value, dict) else [(path, value)]


@pytest.mark.parametrize(
    ("method", "changed"),
    [("count", ["steps"]), ("shrink", ["cache.index", "cache.key"]), ("eval_inside", ["dropout.deterministic", "norm.use_running_average"])],
)  # fmt: skip
def test_changed_attributes_cannot_be_outputs(model, method, changed):
    fn = getattr(model, method)
    for state in ("refuse", "outputs"):
        with pytest.raises(StateChanged) as caught:
            trace(fn, (X,), state=state)
        for path in changed:
            assert f"`{path}`" in str(caught.value)
    assert trace(fn, (X,), state="discard").state_outputs == ()
    assert model.steps == 0
    assert not model.dropout.deterministic


def test_the_text_of_the_refusals(model):
    with pytest.raises(StateChanged) as caught:
        trace(model.normalise, (X,))
    assert str(caught.value).splitlines() == [
        "tracing `Counter.normalise` changes the state of its modules",
        "  where:   `norm.mean`",
        "           `norm.var`",
        "  why:     a trace is a pure function, and dropping the new values and returning them give different models",
        '  instead: switch the model to evaluation (`model.eval()`), or pass `state="outputs"` or `state="discard"`',
    ]
    with pytest.raises(StateChanged) as caught:
        trace(model.count, (X,), state="outputs")
    assert str(caught.value).splitlines() == [
        "tracing `Counter.count` changes attributes that cannot become outputs",
        "  where:   `steps`",
        "  why:     only new values of arrays can be outputs; these are other attributes, or were removed",
        '  instead: pass `state="discard"`, or keep the attributes as they are during the call',
    ]


class Pair(NamedTuple):
    first: jax.Array
    second: nnx.Module


def test_a_model_that_holds_other_pytrees():
    class Model(nnx.Module):
        def __init__(self):
            self.pair = nnx.data(Pair(jnp.ones(3), nnx.BatchNorm(3, rngs=nnx.Rngs(0))))
            self.sizes, self.nothing = (3, 4), None

        def __call__(self, x):
            return self.pair.second(x) * self.pair.first

        def swap(self, x):
            self.pair = nnx.data(Pair(x[0], self.pair.second))
            return x

    model = Model()
    assert trace(model, (X,), state="outputs").state_outputs == ("pair.second.mean", "pair.second.var")
    assert trace(model.swap, (X,), state="outputs").state_outputs == ("pair.first",)
    model.eval()
    assert [w.path for w in trace(model, (X,)).weights][:2] == ["pair.first", "pair.second.bias"]


def test_a_model_in_the_arguments_changes_too(model):
    def fn(m, x):
        return m.norm(x)

    with pytest.raises(StateChanged, match=r"`m\.norm\.mean`"):
        trace(fn, (model, X))
    assert trace(fn, (model, X), state="outputs").state_outputs == ("m.norm.mean", "m.norm.var")


def test_a_random_number_stream_in_a_closure_is_left_alone():
    rngs, dropout = nnx.Rngs(0), nnx.Dropout(0.5)
    traced = trace(lambda x: dropout(x, rngs=rngs), (X,))
    assert rngs.default.count.get_value() == 0
    assert [w.path for w in traced.weights] == ["rngs.default.count", "rngs.default.key"]
    assert_same(evaluate(traced, X)[0], nnx.Dropout(0.5)(X, rngs=nnx.Rngs(0)))


def test_a_bound_linen_module_is_left_alone():
    model = linen.BatchNorm(use_running_average=False)
    variables = model.init(jax.random.key(0), X)
    bound = model.bind(variables, mutable=["batch_stats"])
    with pytest.raises(StateChanged, match=r"`batch_stats\.mean`"):
        trace(bound, (X,))
    traced = trace(bound, (X,), state="outputs")
    assert traced.state_outputs == ("batch_stats.mean", "batch_stats.var")
    assert isinstance(bound.variables["batch_stats"]["mean"], jax.Array)
    result, state = evaluate(traced, X, jit=lambda f: f)
    expected, new = model.apply(variables, X, mutable=["batch_stats"])
    assert_same(result, expected)
    assert_same(state["batch_stats.mean"], new["batch_stats"]["mean"])


def test_linen_mutable_collections_are_ordinary_outputs():
    model = linen.BatchNorm(use_running_average=False)
    variables = model.init(jax.random.key(0), X)
    traced = trace(lambda x: model.apply(variables, x, mutable=["batch_stats"]), (X,))
    assert traced.output_paths == ("output_0", "output_1.batch_stats.mean", "output_1.batch_stats.var")
    assert traced.state_outputs == ()


def test_state_that_is_stacked_by_a_scan_is_handed_on():
    class Stack(nnx.Module):
        def __init__(self):
            make = nnx.vmap(lambda rngs: nnx.BatchNorm(3, rngs=rngs), in_axes=0, out_axes=0)
            self.layers = nnx.split_rngs(splits=2)(make)(nnx.Rngs(0))

        def __call__(self, x):
            return nnx.scan(lambda m, c: m(c), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.layers, x)

    model = Stack()
    assert trace(model, (X,), state="outputs").state_outputs == ("layers.mean", "layers.var")
    model.eval()
    assert trace(model, (X,)).state_outputs == ()
    assert np.isfinite(evaluate(trace(model, (X,)), X)[0]).all()

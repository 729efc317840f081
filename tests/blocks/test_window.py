"""The activation window: what it patches, that it restores exactly, threads, and JAX's caches."""

from __future__ import annotations

import subprocess
import sys
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from jaxport.blocks.marking.boundary import boundary
from jaxport.blocks.marking.window import activation, current_recorder, patched
from jaxport.blocks.tracing import trace
from jaxport.errors import InvalidArgument
from tests.blocks.checks import blocks, check, paths

X = jnp.ones((2, 3))


class Model(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.linear(x)


class Plain:
    """No module of any framework."""

    def __call__(self, x):
        return self.help(x) + 1

    def help(self, x):
        return x * 2


CLASSES = [
    Model,
    nnx.Linear,
    nnx.BatchNorm,
    nnx.LSTMCell,
    eqx.nn.Linear,
    eqx.nn.MLP,
    eqx.nn.BatchNorm,
    linen.Dense,
    Plain,
]


def snapshot():
    attributes = {(cls, name): value for cls in CLASSES for name, value in vars(cls).items()}
    return {**attributes, **{(jax.nn, name): value for name, value in vars(jax.nn).items()}}


@pytest.fixture(autouse=True)
def _unpatched():
    before = snapshot()
    yield
    after = snapshot()
    assert before.keys() == after.keys()
    assert all(before[key] is after[key] for key in before)
    assert not patched
    assert current_recorder() is None


def test_a_trace_restores_every_class():
    trace(Model(), (X,), functions=("jax.nn.gelu", "jax.nn.softmax"))


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_a_trace_that_fails_restores_every_class(error):
    def fn(x):
        Model()(x)
        raise error

    with pytest.raises(error):
        trace(fn, (X,), functions=("jax.nn.gelu",))


def test_a_window_that_fails_to_open_restores_every_class():
    with pytest.raises(InvalidArgument), activation(["jax.nn.gelu", "jax.nn.nothing"]):
        pass


@pytest.mark.parametrize("target", ["jax.nn.nothing", "no.such.module", "jax", "jax.nn.relu.missing", "math.pi"])
def test_a_target_that_is_none_is_refused_by_name(target):
    with pytest.raises(InvalidArgument) as caught, activation([target]):
        pass
    assert str(caught.value).startswith(f"`{target}` is not the name of a function, method or class\n")
    assert "instead: give the qualified name, as in `jax.nn.gelu` or `my.pkg.Class.method`" in str(caught.value)


def test_windows_nest():
    model = Model()

    def fn(x):
        inner = trace(model, (X,))
        assert paths(inner.jaxpr.jaxpr) == ["", "linear"]
        return model(x)

    assert paths(trace(fn, (X,)).jaxpr.jaxpr) == ["", "linear"]


def test_a_window_inside_of_another_has_its_own_selection():
    outer_only, both, alias = ("jax.nn.gelu",), ("jax.nn.gelu", "jax.nn.silu"), ("flax.nnx.swish",)
    fn = lambda x: jax.nn.gelu(jax.nn.silu(x))

    def traced(functions):
        return [block.target for block in blocks(trace(lambda x: fn(x), (X,), functions=functions).jaxpr.jaxpr)]

    found = []

    def body(x):
        found.extend(traced(functions) for functions in ((), outer_only, both, alias))
        return fn(x)

    assert [b.target for b in blocks(trace(body, (X,), functions=both).jaxpr.jaxpr)] == ["jax.nn.silu", "jax.nn.gelu"]
    assert found == [[], ["jax.nn.gelu"], ["jax.nn.silu", "jax.nn.gelu"], ["flax.nnx.swish"]]


def test_a_selection_outlives_the_window_that_patched_first():
    first_is_open, second_is_open, first_is_closed = (threading.Event() for _ in range(3))

    def first():
        with activation(["jax.nn.gelu"]):
            first_is_open.set()
            second_is_open.wait(30)
        first_is_closed.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_open.wait(30)
    with activation(["jax.nn.gelu"]):
        second_is_open.set()
        assert first_is_closed.wait(30)
        jaxpr = jax.make_jaxpr(lambda x: jax.nn.gelu(x))(X)
    thread.join()
    assert jaxpr.eqns[0].primitive.name == "block_enter"


def test_overlapping_windows_in_threads_each_see_their_own_calls():
    first_is_open, second_is_open, first_is_closed = (threading.Event() for _ in range(3))
    found, failures = {}, []

    def guarded(body):
        def run():
            try:
                body()
            except BaseException as failure:  # noqa: BLE001 - handed to the test's own thread
                failures.append(failure)
                for event in (first_is_open, second_is_open, first_is_closed):
                    event.set()

        return threading.Thread(target=run)

    def first():
        def fn(x):
            first_is_open.set()
            assert second_is_open.wait(30)
            return Model()(x)

        found["first"] = trace(fn, (X,))
        first_is_closed.set()

    def second():
        assert first_is_open.wait(30)

        def fn(x):
            second_is_open.set()
            assert first_is_closed.wait(30)
            return eqx.nn.Linear(3, 3, key=jax.random.key(0))(x[0])

        found["second"] = trace(fn, (X,))

    threads = [guarded(first), guarded(second)]
    for thread in threads:
        thread.start()
    assert second_is_open.wait(30)
    # This thread has no window: calls are as ever, patched or not.
    jaxpr = jax.make_jaxpr(lambda x: nnx.Linear(3, 3, rngs=nnx.Rngs(0))(x))(X)
    assert "block" not in str(jaxpr)
    for thread in threads:
        thread.join()
    assert not failures
    assert [b.target for b in blocks(found["first"].jaxpr.jaxpr)] == [f"{__name__}.Model", "flax.nnx.Linear"]
    assert [b.target for b in blocks(found["second"].jaxpr.jaxpr)] == ["equinox.nn.Linear"]


def test_many_traces_in_threads_agree():
    model = Model()
    expected = str(trace(model, (X,)).jaxpr)
    results = []
    threads = [threading.Thread(target=lambda: results.append(str(trace(model, (X,)).jaxpr))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_functions_in_a_cache_are_traced_again():
    model = Model()
    jitted = jax.jit(lambda x: model(x))
    jitted(X)
    jax.make_jaxpr(jitted)(X)
    for _ in range(2):
        assert paths(trace(lambda x: jitted(jitted(x)), (X,)).jaxpr.jaxpr) == ["", "linear", "", "linear"]
    assert "block" not in str(jax.make_jaxpr(jitted)(X))


def test_a_cached_function_serves_other_roots_and_other_targets():
    layer = eqx.nn.Linear(3, 3, key=jax.random.key(0))
    jitted = jax.jit(lambda x: jax.nn.gelu(layer(x)))
    assert check(jitted, X[0], expect=[""]).weights[0].path == "weight"
    other = eqx.nn.Linear(3, 3, key=jax.random.key(1))
    for functions in ((), ("jax.nn.gelu",), ()):
        expect = ["layer", "gelu", "other"] if functions else ["layer", "other"]
        traced = check(lambda x: other(jitted(x)), X[0], expect=expect, functions=functions)
        assert [w.path for w in traced.weights] == ["layer.weight", "layer.bias", "other.weight", "other.bias"]


def test_a_cached_function_sees_a_class_that_was_decorated_since():
    class Late:
        def __call__(self, x):
            return x * 2

    late = Late()
    jitted = jax.jit(lambda x: late(x))
    check(jitted, X, expect=[])
    boundary(Late)
    check(jitted, X, expect=["Late"])


def test_a_cached_body_that_hides_its_model_is_named_by_type():
    layer = eqx.nn.MLP(3, 3, 3, 1, key=jax.random.key(0))
    jitted = jax.jit(lambda x: layer(x))
    check(jitted, X[0], expect=["", "layers.0", "layers.1"])
    hidden = type("Hidden", (), {"__slots__": ("call",)})()
    hidden.call = jitted
    traced = check(lambda x: hidden.call(x), X[0], expect=["MLP", "MLP.layers.0", "MLP.layers.1"])
    assert traced.weights[0].path == "constant_0"


def test_one_jitted_function_serves_two_models():
    def apply(layer, x):
        return layer(x)

    jitted = eqx.filter_jit(apply)
    first, second = (eqx.nn.Linear(3, 3, key=jax.random.key(seed)) for seed in range(2))

    def fn(x):
        return jitted(second, jitted(first, x))

    traced = check(fn, X[0], expect=["first", "second"])
    assert [w.path for w in traced.weights] == ["first.weight", "first.bias", "second.weight", "second.bias"]


def test_patches_that_fail_halfway_are_undone():
    def fail(_):
        raise KeyError("no")

    with pytest.raises(KeyError):
        patched.enter(Plain(), [(Plain, "help", lambda raw: raw), (Plain, "__call__", fail)])


def test_somebody_elses_patch_is_theirs():
    original = Plain.help

    def theirs(self, x):
        return original(self, x) * 100

    boundary(Plain)
    try:
        with activation():
            Plain.help = theirs
        assert Plain.help is theirs
    finally:
        Plain.help = original


def test_the_blocks_load_no_framework():
    code = "import sys, jax.numpy as jnp, jaxport.blocks.tracing as b; b.trace(jnp.sin, (jnp.ones(3),), functions=('flax.nnx.gelu',));"
    code += "assert not {'flax', 'equinox', 'onnx', 'onnxruntime'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

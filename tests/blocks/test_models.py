"""What a callable brings with it: names of weights, copies of modules with state, and what stays as it is."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxport.blocks.tracing import trace
from jaxport.errors import InvalidArgument
from tests.blocks.checks import blocks, check, evaluate, paths, shapes_of

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
W, B = jnp.arange(9.0).reshape(3, 3), jnp.arange(3.0)
GLOBAL_MODEL = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
CALLS = 0


def with_global_model(x):
    return GLOBAL_MODEL(x) + helper(x)


def helper(x):
    return nested(x)


def nested(x):
    inner = lambda v: GLOBAL_MODEL(v)
    return inner(x)


def counts_calls(x):
    global CALLS  # noqa: PLW0603 - what is tested
    CALLS += 1
    return x @ W


def default_argument(x, w=W):
    return x @ w


def keyword_default(x, *, table={"w": W}):  # noqa: B006 - what is tested
    return x @ table["w"]


def closure():
    w, b = W, B
    return lambda x: x @ w + b


def tree_closure():
    params = {"dense": {"kernel": W, "bias": B}}
    return lambda x: x @ params["dense"]["kernel"] + params["dense"]["bias"]


def two_trees():
    encoder, decoder = {"w": W + 1}, {"w": W + 2}
    return lambda x: x @ encoder["w"] @ decoder["w"]


def same_names():
    def make(offset):
        model = nnx.Linear(3, 3, rngs=nnx.Rngs(offset))
        return lambda x: model(x)

    first, second = make(0), make(1)
    return lambda x: first(x) + second(x)


def recursive():
    model = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def step(x, n):
        return model(x) if n == 0 else step(model(x), n - 1)

    return lambda x: step(x, 2)


def list_of_models():
    models = [nnx.Linear(3, 3, rngs=nnx.Rngs(i)) for i in range(2)]

    def fn(x):
        for model in models:
            x = model(x)
        return x

    return fn


class Policy:
    def __init__(self):
        self.net, self.scale = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), B
        self.calls = 0

    def act(self, x):
        self.calls += 1
        return self.net(x) * self.scale

    __call__ = act


def model_and_array():
    model, shift = eqx.nn.Linear(3, 3, key=jax.random.key(0)), B
    return lambda x: jax.vmap(model)(x) + shift


def numpy_weights():
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    return lambda x: x @ w


def jitted_closure():
    params = {"w": W}
    inner = jax.jit(lambda x: x @ params["w"])
    return jax.jit(lambda x: inner(x) + inner(x * 2))


def in_control_flow():
    params = {"w": W, "v": B}
    inner = jax.jit(lambda x: x @ params["w"])
    cond = lambda x: jax.lax.cond(x.sum() > 0, inner, lambda v: v + jax.jit(lambda u: u * params["v"])(v), x)
    scan = lambda x: jax.lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]
    loop = lambda x: jax.lax.while_loop(lambda c: inner(c).sum() < 9, lambda c: inner(c) + params["v"] + 1, x)
    return lambda x: cond(x) + scan(x) + loop(x) + jax.checkpoint(inner)(x)


KERNEL, BIAS = "kernel", "bias"


@pytest.mark.parametrize(
    ("fn", "names", "constants"),
    [
        (closure(), ["b", "w"], ["b", "w"]),
        (tree_closure(), ["dense.bias", "dense.kernel"], []),
        (two_trees(), ["decoder.w", "encoder.w"], []),
        (same_names(), ["model.bias", "model.kernel", "model_1.bias", "model_1.kernel"], []),
        (recursive(), [BIAS, KERNEL], []),
        (list_of_models(), ["models.0.bias", "models.0.kernel", "models.1.bias", "models.1.kernel"], []),
        (Policy(), [BIAS, KERNEL, "scale"], ["scale"]),
        (Policy().act, [BIAS, KERNEL, "scale"], ["scale"]),
        (lambda x, policy=Policy(): policy(x), [BIAS, KERNEL, "policy.scale"], ["policy.scale"]),  # noqa: B008
        (model_and_array(), ["weight", BIAS, "shift"], ["shift"]),
        (numpy_weights(), ["w"], ["w"]),
        (jitted_closure(), ["w"], []),
        (in_control_flow(), ["v", "w"], []),
        (with_global_model, [BIAS, KERNEL], []),
        (default_argument, ["w"], ["w"]),
        (keyword_default, ["w"], []),
        (counts_calls, ["W"], ["W"]),
        (functools.partial(lambda w, x: x @ w, W), ["w"], ["w"]),
        (functools.partial(lambda x, *, params: x @ params["w"], params={"w": W}), ["w"], []),
        (lambda x: x * jnp.arange(3.0) + jnp.asarray(np.ones(3, np.float32)), ["constant_0"], ["constant_0"]),
        (GLOBAL_MODEL, [BIAS, KERNEL], []),
        (jax.vmap(GLOBAL_MODEL), [BIAS, KERNEL], []),
    ],
)
def test_names_of_weights(fn, names, constants):
    traced = check(fn, X, jit=None)
    assert [weight.path for weight in traced.weights] == names
    assert [weight.path for weight in traced.weights if not weight.trainable] == constants


def test_weights_are_the_users_arrays():
    assert trace(closure(), (X,)).weights[1].value is W
    assert trace(GLOBAL_MODEL, (X,)).weights[1].value is GLOBAL_MODEL.kernel.get_value()


def test_what_is_not_trained_says_so():
    model = nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0))
    traced = trace(model, (X,))
    assert {w.path: w.trainable for w in traced.weights} == {"bias": True, "scale": True, "mean": False, "var": False}


def test_unused_weights_are_no_inputs():
    model = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 3, rngs=nnx.Rngs(1)))
    traced = check(lambda x: model.layers[1](x), X)
    assert [weight.path for weight in traced.weights] == ["layers.1.bias", "layers.1.kernel"]


def test_a_variable_at_two_places_is_one_weight():
    class Tied(nnx.Module):
        def __init__(self):
            self.embed = nnx.Embed(5, 3, rngs=nnx.Rngs(0))
            self.head = nnx.Linear(3, 5, use_bias=False, rngs=nnx.Rngs(0))
            self.again = self.embed
            self.table = self.embed.embedding

        def __call__(self, ids):
            return self.again.attend(self.embed(ids)) + self.table.sum()

    traced = check(Tied(), jnp.arange(3), jit=None)
    assert len(traced.weights) == 1
    assert len({block.path for block in blocks(traced.jaxpr.jaxpr)} - {""}) == 1


def test_the_users_objects_are_not_touched():
    policy = Policy()
    net = policy.net
    trace(policy, (X,))
    assert policy.net is net
    assert policy.calls == 0


def test_a_model_that_a_transformation_of_nnx_fills_anew_works_afterwards():
    make = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: nnx.Dropout(0.5, rngs=rngs), in_axes=0, out_axes=0))
    models = make(nnx.Rngs(0))
    models.eval()
    call = lambda x: nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, x)
    before = {path: dict(vars(node)) for path, node in nnx.iter_graph(models) if isinstance(node, nnx.Module)}
    trace(call, (jnp.ones(3),))
    after = {path: dict(vars(node)) for path, node in nnx.iter_graph(models) if isinstance(node, nnx.Module)}
    assert after == before
    assert call(jnp.ones(3)).shape == (2, 3)


def test_a_model_in_the_arguments_is_an_input():
    traced = check(lambda m, x: m(x), GLOBAL_MODEL, X, jit=nnx.jit)
    assert traced.weights == ()
    assert traced.input_paths == ("m.bias", "m.kernel", "x")
    (block,) = blocks(traced.jaxpr.jaxpr)
    assert block.path == "m"
    assert block.weights == {1: "m.kernel", 2: "m.bias"}


def test_models_in_a_tree_of_arguments():
    models = {"a": eqx.nn.Linear(3, 3, key=jax.random.key(0)), "b": [GLOBAL_MODEL]}
    traced = check(lambda ms, x: jax.vmap(ms["a"])(ms["b"][0](x)), models, X, jit=eqx.filter_jit)
    assert paths(traced.jaxpr.jaxpr) == ["ms.b.0", "ms.a"]


def test_static_arguments_are_baked_in():
    traced = trace(lambda x, axis, mode: x.sum(axis) if mode == "sum" else x, (X, 1, "sum"))
    assert traced.input_paths == ("x",)
    assert traced.static_inputs == {1: 1, 2: "sum"}
    assert jax.tree.unflatten(traced.in_tree, ["x", 1, "sum"]) == (("x", 1, "sum"), {})
    np.testing.assert_array_equal(evaluate(traced, X)[0], X.sum(1))


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "names"),
    [
        (lambda x, y: x, (X, X), {}, ("x", "y")),
        (lambda *xs: xs[0], (X, X), {}, ("xs_0", "xs_1")),
        (lambda x, **options: x, (X,), {"b": X, "a": X}, ("x", "a", "b")),
        (lambda batch: batch["b"][1], ({"b": (X, X), "a": X},), {}, ("batch.a", "batch.b.0", "batch.b.1")),
        (functools.partial(lambda w, x: x, 1.0), (X,), {}, ("x",)),
        (functools.partial(lambda x, w: x, w=1.0), (X,), {}, ("x",)),
        (jnp.sin, (X,), {}, ("x",)),
        (jax.jit(lambda image: image), (X,), {}, ("image",)),
        (linen.Dense(3).apply, ({"params": {"kernel": W, "bias": B}}, X), {}, ("variables.params.bias", "variables.params.kernel", "inputs")),
        (functools.partial(linen.Embed(3, 3).apply, {"params": {"embedding": W}}, method="attend"), (X,), {}, ("query",)),
        (GLOBAL_MODEL, (X,), {}, ("inputs",)),
    ],
)  # fmt: skip
def test_names_of_inputs(fn, args, kwargs, names):
    assert trace(fn, shapes_of(args), shapes_of(kwargs)).input_paths == names


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (lambda x: x, ("output",)),
        (lambda x: (x, [x, x]), ("output_0", "output_1.0", "output_1.1")),
        (lambda x: {"loss": x, "logits": (x, x)}, ("logits.0", "logits.1", "loss")),
        (lambda x: None, ()),
        (lambda x: (x, 1.0, None, "text"), ("output_0", "output_1")),
        (lambda x: nnx.grad(lambda m: m(x).sum())(GLOBAL_MODEL), ("bias", "kernel")),
    ],
)
def test_names_of_outputs(fn, names):
    traced = trace(fn, (X,))
    assert traced.output_paths == names
    assert len(traced.jaxpr.jaxpr.outvars) == len(names)


def test_symbolic_dimensions_pass_through():
    batch, length = jax.export.symbolic_shape("B, T")

    class Model(nnx.Module):
        def __init__(self):
            self.norm = nnx.LayerNorm(3, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(x).reshape(-1, 3)

    traced = trace(Model(), (jax.ShapeDtypeStruct((batch, length, 3), "float32"),))
    assert str(traced.jaxpr.out_avals[0].shape) == "(B*T, 3)"
    assert paths(traced.jaxpr.jaxpr) == ["", "norm"]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            {"fn": 3},
            ["a `int` cannot be traced", "  where:   the argument `fn`", "  why:     it cannot be called",
             "  instead: give a module, a function or a method"],
        ),
        (
            {"fn": jnp.sin, "state": "keep"},
            ["`keep` is not a valid `state`", "  where:   the argument `state`",
             "  why:     it says how to treat changes of module state",
             "  instead: use 'refuse', 'outputs' or 'discard'"],
        ),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments, lines):
    with pytest.raises(InvalidArgument) as caught:
        trace(args=(X,), **arguments)
    assert str(caught.value).splitlines() == lines

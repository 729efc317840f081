"""One model in three frameworks, in every context that a user may call it from.

Two residual layers (linear, normalisation, ReLU, dropout) in a list, and a linear head. `state` is "none" (plain
layers in evaluation mode), "norm" (batch statistics in training mode) or "dropout" (random numbers in training mode).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen, nnx
from jax import lax

WIDTH = 3
X = jnp.linspace(-1.0, 1.0, 4 * WIDTH).reshape(4, WIDTH)
STATES = ("none", "norm", "dropout")


@dataclass(frozen=True)
class Subject:
    """A callable to trace: the same thing to compare with, and what its blocks must be.

    `expected` are pairs (short target, path); `weights` the parameters of the first linear layer.
    """

    fn: object
    args: tuple
    expected: list[tuple[str, str]]
    linear: tuple[str, list[str]]


def layer_blocks(path, state, names):
    block, linear, norm, dropout = names
    inner = [(linear, f"{path}.linear")]
    inner += [(norm, f"{path}.norm")] if state == "norm" else []
    return [(block, path), *inner, (dropout, f"{path}.dropout")]


# -- NNX ---------------------------------------------------------------------------------------------------------------


class NnxLayer(nnx.Module):
    def __init__(self, state, rngs):
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs) if state == "norm" else None
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.dropout.deterministic = state != "dropout"

    def __call__(self, x):
        y = self.linear(x)
        y = y if self.norm is None else self.norm(y)
        return x + self.dropout(nnx.relu(y))


def plain(function):
    return function


TRANSFORMS = {"jit": nnx.jit, "remat": nnx.remat}


class NnxModel(nnx.Module):
    def __init__(self, state, rngs, style="plain"):
        self.style = style
        if style == "scan":
            stack = nnx.vmap(lambda rngs: NnxLayer(state, rngs), in_axes=0, out_axes=0)
            self.layers = nnx.split_rngs(splits=2)(stack)(rngs)
        else:
            self.layers = nnx.List([NnxLayer(state, rngs) for _ in range(2)])
        self.head = nnx.Linear(WIDTH, 2, rngs=rngs)

    def __call__(self, x):
        if self.style == "scan":
            x = nnx.scan(lambda layer, c: layer(c), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.layers, x)
        call = TRANSFORMS.get(self.style, plain)(lambda layer, x: layer(x))
        for layer in self.layers if self.style != "scan" else ():
            x = call(layer, x)
        return self.head(x)

    def encode(self, x):
        return self(x) * 2


def nnx_subject(context, state):
    names = ("NnxLayer", "Linear", "BatchNorm", "Dropout")
    style = context if context in ("jit", "remat", "scan") else "plain"
    model = NnxModel(state, nnx.Rngs(0), style)
    expected = model_blocks("NnxModel", "layers", state, names, style, "Linear")
    if context == "method":
        expected.insert(0, expected[0])
    path = "layers.linear" if style == "scan" else "layers.0.linear"
    linear = (path, [f"{path}.{name}" for name in ("bias", "kernel")])
    fns = {
        "partial": lambda: functools.partial(lambda m, x: m(x), model),
        "closure": lambda: lambda x: model(x) + 1,
        "method": lambda: model.encode,
        "jit root": lambda: nnx.jit(model),
        "in a dict": lambda: functools.partial(lambda models, x: models["only"](x), {"only": model}),
        "argument of jit": lambda: lambda x: nnx.jit(lambda m, x: m(x))(model, x),
        "attribute": lambda: Holder(model),
    }
    if state == "none":
        fns |= {
            "vmap": lambda: jax.vmap(lambda x: model(x)),
            "grad": lambda: jax.grad(lambda x: model(x).sum()),
            "scan over steps": lambda: (
                lambda x: lax.scan(lambda c, _: (c + model(c).sum(), None), x, None, length=2)[0]
            ),
            "cond": lambda: lambda x: lax.cond(x.sum() > 5, model, lambda x: x[:, :2], x),
            "jax.jit": lambda: jax.jit(lambda x: model(x)),
            "checkpoint": lambda: jax.checkpoint(lambda x: model(x)),
            "vmap of grad": lambda: jax.vmap(jax.grad(lambda x: model(x).sum())),
        }
    fn = fns.get(context, lambda: model)()
    return Subject(fn, (X,), expected, linear), model


class Holder:
    """A plain class of the user's that holds a model."""

    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return self.model(x)


def model_blocks(root, layers, state, names, style, head, numbered="{}.{}"):
    paths = [layers] if style == "scan" else [numbered.format(layers, index) for index in range(2)]
    return [(root, ""), *(b for path in paths for b in layer_blocks(path, state, names)), (head, "head")]


# -- Linen -------------------------------------------------------------------------------------------------------------


class LinenLayer(linen.Module):
    state: str

    @linen.compact
    def __call__(self, x):
        y = linen.Dense(WIDTH, name="linear")(x)
        if self.state == "norm":
            y = linen.BatchNorm(use_running_average=False, name="norm")(y)
        return x + linen.Dropout(0.5, deterministic=self.state != "dropout", name="dropout")(linen.relu(y))


class LinenStep(linen.Module):
    state: str

    @linen.compact
    def __call__(self, x, _):
        return LinenLayer(self.state, name="layer")(x), None


class LinenModel(linen.Module):
    state: str
    style: str = "plain"

    @linen.compact
    def __call__(self, x):
        if self.style == "scan":
            axes = {"params": 0, "batch_stats": 0}
            stacked = linen.scan(LinenStep, variable_axes=axes, split_rngs={"params": True, "dropout": True}, length=2)
            x, _ = stacked(self.state, name="layers")(x, None)
        else:
            layer = {"jit": linen.jit, "remat": linen.remat}.get(self.style, lambda c: c)(LinenLayer)
            for index in range(2):
                x = layer(self.state, name=f"layers_{index}")(x)
        return linen.Dense(2, name="head")(x)

    def encode(self, x):
        return self(x) * 2


def linen_subject(context, state):
    names = ("LinenLayer", "Dense", "BatchNorm", "Dropout")
    style = context if context in ("jit", "remat", "scan") else "plain"
    model = LinenModel(state, style)
    variables = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)
    options = {"mutable": ["batch_stats"]} if state == "norm" else {}
    options |= {"rngs": {"dropout": jax.random.key(2)}} if state == "dropout" else {}
    if style == "scan":
        expected = [("LinenModel", ""), ("LinenStep", "layers"), *layer_blocks("layers.layer", state, names)]
        expected.append(("Dense", "head"))
        path = "layers.layer.linear"
    else:
        expected = model_blocks("LinenModel", "layers", state, names, style, "Dense", "{}_{}")
        path = "layers_0.linear"
    if context == "method":
        expected.insert(0, expected[0])
    prefix = {"argument": "variables.", "params argument": "p."}.get(context, "")
    collection = "" if context == "params argument" else "params."
    linear = (path, [f"{prefix}{collection}{path}.{name}" for name in ("bias", "kernel")])
    rest = {name: value for name, value in variables.items() if name != "params"}

    def loss(x):
        out = model.apply(variables, x, **options)
        return (out[0] if options.get("mutable") else out).sum()

    fns = {
        "partial": lambda: functools.partial(model.apply, variables, **options),
        "closure": lambda: lambda x: model.apply(variables, x, **options),
        "method": lambda: lambda x: model.apply(variables, x, method="encode", **options),
        "jax.jit": lambda: jax.jit(functools.partial(model.apply, variables, **options)),
        "bound": lambda: model.bind(variables, **options),
        "argument": lambda: functools.partial(model.apply, **options),
        "params argument": lambda: lambda p, x: model.apply({"params": p, **rest}, x, **options),
        "vmap": lambda: jax.vmap(lambda x: model.apply(variables, x, **options)),
        "grad": lambda: jax.grad(loss),
        "scan over steps": lambda: lambda x: lax.scan(lambda c, _: (c + loss(c), None), x, None, length=2)[0],
        "cond": lambda: lambda x: lax.cond(x.sum() > 5, loss, lambda x: x.sum(), x),
        "checkpoint": lambda: jax.checkpoint(lambda x: model.apply(variables, x, **options)),
    }
    fn = fns.get(context, fns["closure"])()
    args = {"argument": (variables, X), "params argument": (variables["params"], X)}.get(context, (X,))
    return Subject(fn, args, expected, linear), variables


# -- Equinox -----------------------------------------------------------------------------------------------------------


class EqxLayer(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm | None
    dropout: eqx.nn.Dropout

    def __init__(self, state, key):
        self.linear = eqx.nn.Linear(WIDTH, WIDTH, key=key)
        self.norm = eqx.nn.BatchNorm(WIDTH, "batch", mode="batch") if state == "norm" else None
        self.dropout = eqx.nn.Dropout(0.5, inference=state != "dropout")

    def __call__(self, x, state, key):
        y = self.linear(x)
        if self.norm is not None:
            y, state = self.norm(y, state)
        return x + self.dropout(jax.nn.relu(y), key=key), state


class EqxModel(eqx.Module):
    layers: list | EqxLayer
    head: eqx.nn.Linear
    style: str = eqx.field(static=True)

    def __init__(self, state, key, style="plain"):
        self.style = style
        if style == "scan":
            self.layers = eqx.filter_vmap(lambda k: EqxLayer(state, k))(jax.random.split(key, 2))
        else:
            self.layers = [EqxLayer(state, k) for k in jax.random.split(key, 2)]
        self.head = eqx.nn.Linear(WIDTH, 2, key=key)

    def __call__(self, x, state, key):
        if self.style == "scan":
            dynamic, static = eqx.partition(self.layers, eqx.is_array)
            step = lambda c, layer: (eqx.combine(layer, static)(c, None, key)[0], None)
            x = lax.scan(step, x, dynamic)[0]
        call = {"jit": eqx.filter_jit, "remat": eqx.filter_checkpoint}.get(self.style, lambda f: f)
        call = call(lambda layer, *args: layer(*args))
        for layer in self.layers if self.style != "scan" else ():
            x, state = call(layer, x, state, key)
        return self.head(x), state

    @eqx.filter_jit
    def encode(self, x, state, key):
        return self(x, state, key)


def eqx_subject(context, state):
    names = ("EqxLayer", "Linear", "BatchNorm", "Dropout")
    style = context if context in ("jit", "remat", "scan") else "plain"
    model, memory = eqx.nn.make_with_state(EqxModel)(state, jax.random.key(0), style)
    key = jax.random.key(1)
    expected = model_blocks("EqxModel", "layers", state, names, style, "Linear")
    path = "layers.linear" if style == "scan" else "layers.0.linear"
    prefix = "m." if context == "argument" else ""
    linear = (prefix + path, [f"{prefix}{path}.{name}" for name in ("bias", "weight")])

    def over_batch(call):
        batched = jax.vmap(call, axis_name="batch", in_axes=(0, None, None), out_axes=(0, None))
        return (lambda x, memory: batched(x, memory, key)) if state == "norm" else (lambda x: batched(x, None, key)[0])

    loss = lambda m: over_batch(m)(X)[0].sum() if state == "norm" else over_batch(m)(X).sum()
    fns = {
        "jit root": lambda: over_batch(eqx.filter_jit(model)),
        "jax.jit": lambda: jax.jit(over_batch(model)),
        "method": lambda: over_batch(model.encode),
        "lambda": lambda: over_batch(lambda *args: model(*args)),
    }
    args = (X, memory) if state == "norm" else (X,)
    if state != "norm":
        fns |= {
            "direct": lambda: lambda x: model(x, None, key)[0],
            "filter_vmap": lambda: lambda x: eqx.filter_vmap(lambda x: model(x, None, key)[0])(x),
            "grad": lambda: lambda x: eqx.filter_grad(lambda m: over_batch(m)(x).sum())(model),
            "argument": lambda: lambda m, x: m(x, None, key)[0],
            "scan over steps": lambda: lambda x: lax.scan(lambda c, _: (c + loss(model), None), x, None, length=2)[0],
            "cond": lambda: lambda x: lax.cond(x.sum() > 5, lambda x: loss(model), lambda x: x.sum(), x),
            "checkpoint": lambda: jax.checkpoint(over_batch(model)),
        }
        args = {"argument": (model, X[0]), "direct": (X[0],)}.get(context, args)
        if context == "argument":
            expected = [(name, f"m.{path}" if path else "m") for name, path in expected]
    fn = fns.get(context, lambda: over_batch(model))()
    return Subject(fn, args, expected, linear), model


CONTEXTS = {
    nnx_subject: (
        "direct", "partial", "closure", "method", "jit", "jit root", "remat", "scan", "in a dict", "argument of jit",
        "attribute", "vmap", "grad", "scan over steps", "cond", "jax.jit", "checkpoint", "vmap of grad",
    ),
    linen_subject: (
        "closure", "partial", "method", "jit", "remat", "scan", "jax.jit", "bound", "argument", "params argument", "vmap",
        "grad", "scan over steps", "cond", "checkpoint",
    ),
    eqx_subject: (
        "closure", "jit", "remat", "scan", "jit root", "jax.jit", "method", "lambda", "direct", "filter_vmap", "grad",
        "argument", "scan over steps", "cond", "checkpoint",
    ),
}  # fmt: skip

# What a framework, or JAX, does not allow without us either.
IMPOSSIBLE = {
    **{
        (nnx_subject, context, state): "NNX changes state only at the level of its trace"
        for context in (
            "vmap", "grad", "scan over steps", "cond", "jax.jit", "checkpoint", "vmap of grad", "jit root"
        )
        for state in ("norm", "dropout")
    },
    **{
        (eqx_subject, context, "norm"): "batch statistics need the batch axis and a state"
        for context in ("direct", "filter_vmap", "grad", "argument", "scan over steps", "cond", "checkpoint", "scan")
    },
}  # fmt: skip

CELLS = [
    (subject, context, state)
    for subject, contexts in CONTEXTS.items()
    for context in contexts
    for state in STATES
    if (subject, context, state) not in IMPOSSIBLE
]

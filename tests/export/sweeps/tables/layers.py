"""The cases of the layers of `flax.nnx`, `flax.linen` and `equinox.nn`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen, nnx

from jaxport.testing import seeded
from jaxport.testing.modules import perturbed
from tests.export.sweeps.cases import FLOATS, Array, Case, array, case, indices, unit

X, IMAGE, VECTOR = array("B", "T", 4, values=unit), array("B", "H", "W", 3, values=unit), array(4)


def of(*args: Any, on: Any = X, dtypes: Any = FLOATS, call: Any = None, narrow: bool = False, **kwargs: Any) -> Case:
    """A layer of NNX, built from its arguments, in evaluation mode."""

    def make(cls: Any, dtype: Any) -> Any:
        module = inner(cls, *args, **kwargs)(dtype)
        module.eval()
        definition, state = nnx.split(module)  # a call may change the module, which belongs to another trace
        again = lambda: nnx.merge(definition, state, copy=True)
        return lambda *xs: call(again(), *xs) if call else again()(*xs)

    return case(*(on if isinstance(on, tuple) else (on,)), make=make, dtypes=dtypes, **_rounded(narrow))


def _rounded(narrow: bool) -> dict[str, Any]:
    return {"narrow": True, "rtol": 1e-5, "atol": 1e-5} if narrow else {}


class _Inner:
    """A layer inside of a layer, built with the dtype of the outer one."""

    def __init__(self, build: Callable[[Any], Any]):
        self.build = build

    def __call__(self, dtype: Any) -> Any:
        return self.build(dtype)


def inner(cls: Any, *args: Any, **kwargs: Any) -> Any:
    return _Inner(lambda dtype: seeded(cls, *resolved(args, dtype), dtype=dtype, **kwargs))


def resolved(args: Any, dtype: Any) -> list[Any]:
    """Arguments, of which the layers are built."""
    return jax.tree.map(
        lambda a: a(dtype) if isinstance(a, _Inner) else a, list(args), is_leaf=lambda a: isinstance(a, _Inner)
    )


# Attention takes its softmax in float32, whatever the dtype, and Linen normalizes a batch with statistics in float32.
NNX = {
    "BatchNorm": of(4),
    "Bidirectional": of(inner(nnx.RNN, inner(nnx.SimpleCell, 4, 3)), inner(nnx.RNN, inner(nnx.SimpleCell, 4, 3))),
    "Conv": of(3, 4, (3, 3), on=IMAGE),
    "ConvTranspose": of(3, 4, (3, 3), strides=2, on=IMAGE),
    "Dropout": of(0.5),
    "Einsum": of("btd,dh->bth", (4, 2), (2,)),
    "Embed": of(5, 4, on=indices("B", "T", bound=5)),
    "GRUCell": of(4, 3, on=(array("B", 3), array("B", 4))),
    "GroupNorm": of(4, num_groups=2),
    "InstanceNorm": of(3, on=IMAGE),
    "LSTMCell": of(4, 3, on=((array("B", 3), array("B", 3)), array("B", 4))),
    "LayerNorm": of(4),
    "Linear": of(4, 2),
    "LinearGeneral": of(4, (2, 3)),
    "LoRA": of(4, 2, 3),
    "LoRALinear": of(4, 3, lora_rank=2),
    "MultiHeadAttention": of(2, 4, decode=False, narrow=True),
    "OptimizedLSTMCell": of(4, 3, on=((array("B", 3), array("B", 3)), array("B", 4))),
    "PReLU": of(),
    "RMSNorm": of(4),
    "RoPE": case(X, make=lambda cls, dtype: cls(embedding_size=4, max_seq_len=8), dtypes=FLOATS),
    "RNN": of(inner(nnx.GRUCell, 4, 3)),
    "Sequential": of(inner(nnx.Linear, 4, 4), jnp.tanh),
    "SimpleCell": of(4, 3, on=(array("B", 3), array("B", 4))),
    "SpectralNorm": of(inner(nnx.Linear, 4, 3), call=lambda m, x: m(x, update_stats=False)),
    "WeightNorm": of(inner(nnx.Linear, 4, 3)),
    "List": of([jnp.tanh, jnp.sin], call=lambda m, x: m[1](m[0](x))),
    "Dict": of({"a": jnp.tanh}, call=lambda m, x: m["a"](x)),
}
NNX_REASONS = {
    "Module": "a base class, which computes nothing", "RNNCellBase": "a base class, which computes nothing"
}  # fmt: skip


def applied(
    *args: Any,
    on: Any = X,
    dtypes: Any = FLOATS,
    call: Any = None,
    method_args: Any = None,
    narrow: bool = False,
    **kwargs: Any,
) -> Case:
    """A layer of Linen, with its variables bound."""
    inputs = on if isinstance(on, tuple) else (on,)
    called = method_args or {}

    def make(cls: Any, dtype: Any) -> Any:
        built = resolved(args, dtype)
        values = jax.tree.map(
            lambda a: jnp.ones(a.sized(), a.dtype or dtype) if isinstance(a, Array) else a,
            inputs,
            is_leaf=lambda a: isinstance(a, Array),
        )
        typed = {"dtype": dtype, "param_dtype": dtype} if "dtype" in cls.__dataclass_fields__ else {}
        typed = {k: v for k, v in typed.items() if k in cls.__dataclass_fields__}
        module = cls(*built, **{**typed, **kwargs})
        variables = jax.tree.map(_moved, module.init(jax.random.key(0), *values, **called))
        return lambda *xs: module.apply(variables, *xs, **called)

    return case(*inputs, make=make, call=call, dtypes=dtypes, **_rounded(narrow))


def _moved(leaf: Any) -> Any:
    return perturbed(leaf)


def linen_inner(cls: Any, *args: Any, **kwargs: Any) -> Any:
    return _Inner(lambda dtype: cls(*args, dtype=dtype, param_dtype=dtype, **kwargs))


def recurrent(cell: Any) -> Any:
    return _Inner(lambda dtype: linen.RNN(cell(3, dtype=dtype, param_dtype=dtype)))


CELL = array("B", 3)
LINEN = {
    "BatchNorm": applied(use_running_average=True, narrow=True),
    "Bidirectional": applied(recurrent(linen.SimpleCell), recurrent(linen.SimpleCell)),
    "Conv": applied(4, (3, 3), on=IMAGE),
    "ConvLSTMCell": applied(2, (3, 3), on=((array("B", 6, 7, 2), array("B", 6, 7, 2)), array("B", 6, 7, 3))),
    "ConvLocal": applied(4, (3, 3), on=array("B", 5, 6, 3)),
    "ConvTranspose": applied(4, (3, 3), strides=(2, 2), on=IMAGE),
    "Dense": applied(2),
    "DenseGeneral": applied((2, 3)),
    "Dropout": applied(0.5, deterministic=True),
    "Einsum": applied((4, 2), "btd,dh->bth"),
    "Embed": applied(5, 4, on=indices("B", "T", bound=5)),
    "GRUCell": applied(3, on=(CELL, array("B", 4))),
    "GroupNorm": applied(2),
    "InstanceNorm": applied(on=IMAGE),
    "LSTMCell": applied(3, on=((CELL, CELL), array("B", 4))),
    "LayerNorm": applied(),
    "MGUCell": applied(3, on=(CELL, array("B", 4))),
    "MultiHeadAttention": applied(2, narrow=True),
    "MultiHeadDotProductAttention": applied(2, narrow=True),
    "OptimizedLSTMCell": applied(3, on=((CELL, CELL), array("B", 4))),
    "PReLU": applied(),
    "RMSNorm": applied(),
    "RNN": applied(linen_inner(linen.GRUCell, 3)),
    "SelfAttention": applied(2, narrow=True),
    "Sequential": applied([linen_inner(linen.Dense, 3), jnp.tanh, linen_inner(linen.Dense, 2)]),
    "SimpleCell": applied(3, on=(CELL, array("B", 4))),
    "SpectralNorm": applied(linen_inner(linen.Dense, 3), method_args={"update_stats": False}),
    "WeightNorm": applied(linen_inner(linen.Dense, 3)),
    **{
        name: applied(
            on=(array("B", 4), array(4, 3), (((1,), (0,)), ((), ()))), dtypes=("float32", "bfloat16"),
        )
        for name in ("Fp8DirectDotGeneralOp", "Fp8DotGeneral", "Fp8DotGeneralOp", "NANOOFp8DotGeneralOp")
    },
    "Fp8Einsum": applied(
        on=("bt,tn->bn", array("B", 4), array(4, 3)), dtypes=("float32", "bfloat16"),
    ),
}  # fmt: skip
LINEN_REASONS = NNX_REASONS


def built(
    *args: Any, on: Any = VECTOR, call: Any = None, dtypes: Any = FLOATS, state: bool = False, **kwargs: Any
) -> Case:
    """A layer of Equinox in inference mode."""

    def make(cls: Any, dtype: Any) -> Any:
        given = resolved(args, dtype)
        if not state:
            return eqx.nn.inference_mode(seeded(cls, *given, dtype=dtype, **kwargs))
        typed = {"dtype": dtype} if "dtype" in inspect.signature(cls).parameters else {}
        layer, memory = eqx.nn.make_with_state(cls)(*given, **typed, **kwargs)
        layer, memory = eqx.nn.inference_mode(perturbed(layer)), perturbed(memory)
        return lambda *xs: layer(*xs, memory)[0]

    return case(*(on if isinstance(on, tuple) else (on,)), make=make, call=call, dtypes=dtypes)


CHANNELS = {1: array(3, "L"), 2: array(3, "H", "W"), 3: array(3, 4, "M", "H")}
SIZED = {1: array(3, 12), 2: array(3, 6, 7), 3: array(3, 4, 5, 6)}
KEY = jax.random.key(0)


def equinox_inner(cls: Any, *args: Any) -> Any:
    return _Inner(lambda dtype: cls(*args, dtype=dtype, key=KEY))


LINEAR, SQUARE = equinox_inner(eqx.nn.Linear, 4, 3), equinox_inner(eqx.nn.Linear, 4, 4)
EQUINOX = {
    **{f"Adaptive{kind}Pool{n}d": built(2, on=SIZED[n]) for kind in ("Avg", "Max") for n in (1, 2, 3)},
    "AdaptivePool": built((2, 3), 2, jnp.mean, on=SIZED[2]),
    **{f"{kind}Pool{n}d": built(2, 2, on=CHANNELS[n]) for kind in ("Avg", "Max") for n in (1, 2, 3)},
    "Pool": built(0, jax.lax.add, 2, 3, on=CHANNELS[2]),
    **{f"Conv{n}d": built(3, 4, 3, on=CHANNELS[n]) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": built(3, 4, 3, stride=2, on=CHANNELS[n]) for n in (1, 2, 3)},
    "Conv": built(2, 3, 4, 3, on=CHANNELS[2]),
    "ConvTranspose": built(2, 3, 4, 3, on=CHANNELS[2]),
    "BatchNorm": built(
        3, "batch", mode="batch", on=array("B", 3, 6), state=True,
        call=lambda layer, x: jax.vmap(layer, axis_name="batch")(x),
    ),
    "Dropout": built(0.5),
    "Embedding": built(5, 4, on=indices(bound=5)),
    "GRUCell": built(4, 3, on=(array(4), array(3))),
    "GroupNorm": built(2, 4, on=array(4, 6)),
    "Identity": built(),
    "LSTMCell": built(4, 3, on=(array(4), (array(3), array(3)))),
    "Lambda": built(jnp.tanh),
    "LayerNorm": built(4),
    "Linear": built(4, 3),
    "MLP": built(4, 2, 5, 2),
    "MultiheadAttention": built(2, 4, on=(array("T", 4), array("N", 4), array("N", 4))),
    "PReLU": built(),
    "RMSNorm": built(4),
    "RotaryPositionalEmbedding": built(4, on=array(5, 4)),
    "Sequential": built([LINEAR, eqx.nn.Lambda(jnp.tanh)]),
    "Shared": built(
        (SQUARE, SQUARE), lambda p: p[1].weight, lambda p: p[0].weight, call=lambda m, x: m()[1](m()[0](x))
    ),
    "SpectralNorm": built(LINEAR, "weight", key=KEY, state=True),
    "WeightNorm": built(LINEAR),
}  # fmt: skip
EQUINOX_REASONS = {
    "StateIndex": "a key of the state, which computes nothing",
    "StatefulLayer": "a base class, which computes nothing",
}

"""Activation functions."""

from __future__ import annotations

import math

import numpy as np

from jaxport.importer.ops.arithmetic import divide
from jaxport.importer.ops.casting import at_least_single
from jaxport.importer.resolving.registry import Host, RandomKey, op, renamed
from jaxport.importer.values.host import Key, Tensor
from jaxport.importer.values.namespaces import jnp, lax, nn, random

renamed(since=1, Softplus=nn.softplus, Softsign=nn.soft_sign)
renamed(since=14, HardSwish=nn.hard_swish)
renamed(since=18, Mish=nn.mish)


@op("Softmax", since=13)
def softmax(input, *, axis=-1):
    return nn.softmax(input, axis=axis)


@op("LogSoftmax", since=13)
def log_softmax(input, *, axis=-1):
    return nn.log_softmax(input, axis=axis)


@op("Hardmax", since=13)
def hardmax(input, *, axis=-1):
    axis %= input.ndim
    if 0 in input.shape:
        return input
    return nn.one_hot(jnp.argmax(input, axis=axis), input.shape[axis], axis=axis, dtype=input.dtype)


def _from(axis: int, x: Tensor) -> tuple[int, ...]:
    """Return the axes that version 12 and older normalize over: `axis` and all that follow."""
    return tuple(range(axis % x.ndim if axis < 0 else axis, x.ndim))


@op("Softmax", since=1, until=12)
def softmax_of_rows(input, *, axis=1):
    return nn.softmax(input, axis=_from(axis, input))


@op("LogSoftmax", since=1, until=12)
def log_softmax_of_rows(input, *, axis=1):
    return nn.log_softmax(input, axis=_from(axis, input))


@op("Hardmax", since=1, until=12)
def hardmax_of_rows(input, *, axis=1):
    if 0 in input.shape:
        return input
    kept = input.shape[: input.ndim - len(_from(axis, input))]
    rows = jnp.reshape(input, (*kept, math.prod(input.shape[len(kept) :])))  # JAX infers no size beside one of 0
    return jnp.reshape(hardmax(rows), input.shape)


@op("LeakyRelu", since=6)
def leaky_relu(X, *, alpha=0.01):
    return nn.leaky_relu(X, alpha)


@op("PRelu", since=7)
def prelu(X, slope):
    return jnp.where(X < 0, slope * X, X)


@op("PRelu", since=6, until=6)
def prelu_of_channels(X, slope):
    return prelu(X, jnp.reshape(slope, (-1, *[1] * (X.ndim - 2))))


@op("Elu", since=6)
def elu(X, *, alpha=1.0):
    return nn.elu(X, alpha)


@op("Selu", since=6)
def selu(X, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    return gamma * nn.elu(X, alpha)


@op("Celu", since=12)
def celu(X, *, alpha=1.0):
    return nn.celu(at_least_single(X), alpha)  # it divides by `alpha`; the evaluator casts back


@op("HardSigmoid", since=6)
def hard_sigmoid(X, *, alpha=0.2, beta=0.5):
    return jnp.clip(alpha * X + beta, 0.0, 1.0)


@op("Gelu", since=20)
def gelu(X, *, approximate="none"):
    return nn.gelu(X, approximate=approximate == "tanh")


@op("Swish", since=24)
def swish(X, *, alpha=1.0):
    return nn.silu(X) if alpha == 1 else X * nn.sigmoid(alpha * X)


@op("ThresholdedRelu", since=10)
def thresholded_relu(X, *, alpha=1.0):
    return jnp.where(X > alpha, X, 0)  # noqa: SIM300  `X` is the variable


@op("Shrink", since=9)
def shrink(input, *, bias=0.0, lambd=0.5):
    if input.dtype.kind in "iu":
        return _shrunk_integers(input, bias, lambd)
    return jnp.where(input < -lambd, input + bias, jnp.where(input > lambd, input - bias, 0))


def _shrunk_integers(x: Tensor, bias: float, lambd: float) -> Tensor:
    """Return `x` shrunk by a bias that may have a fraction: the difference is cut off towards zero."""
    above = jnp.where(x > lambd, _moved(x, -bias), 0)
    return jnp.where(x < -lambd, _moved(x, bias), above) if x.dtype.kind == "i" or lambd < 0 else above


def _moved(x: Tensor, by: float) -> Tensor:
    """Return the integers `x` plus a number, cut off towards zero: computed in integers, which float32 does not
    hold.
    """
    least, most = (jnp.asarray(np.array(np.array(int(part)), x.dtype)) for part in (np.floor(by), np.ceil(by)))
    return x + least if by == int(by) else jnp.where(x > -by, x + least, x + most)


@op("Clip", since=11)
def clip(input, min=None, max=None):
    return jnp.clip(input, min, max)


@op("Clip", since=6, until=10)
def clip_between(input, *, min=-3.4028234663852886e38, max=3.4028234663852886e38):
    return jnp.clip(input, min, max)


def _dropped(data: Tensor, ratio: Tensor | float, key: Key) -> tuple[Tensor, Tensor]:
    """Return `data` with a share of its elements zero and the others scaled up, and the mask of kept elements."""
    kept = random.bernoulli(key, 1 - ratio, data.shape)
    return jnp.where(kept, divide(data, 1 - ratio), 0), kept


def _all_kept(data: Tensor) -> tuple[Tensor, Tensor]:
    return data, jnp.ones(data.shape, np.dtype(bool))


@op("Dropout", since=6, until=6)
def dropout_unless_test(data, *, is_test=0, ratio=0.5, key: RandomKey):
    return _all_kept(data) if is_test else _dropped(data, ratio, key)


@op("Dropout", since=7, until=11)
def dropout_of_inference(data, *, ratio=0.5):
    return _all_kept(data)


@op("Dropout", since=12)
def dropout(data, ratio=None, training_mode: Host | None = None, *, seed=None, key: RandomKey):
    if training_mode is None or not training_mode:
        return _all_kept(data)
    key = key if seed is None else random.fold_in(key, seed % 2**32)
    return _dropped(data, 0.5 if ratio is None else lax.convert_element_type(ratio, data.dtype), key)


@op("SwiGLU", since=28)
def swiglu(A, B, *, alpha=1.0):
    return swish(A, alpha=alpha) * B

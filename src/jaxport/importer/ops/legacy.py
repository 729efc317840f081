"""Version 1 of operators: what a later version computes, and the attribute `consumed_inputs` (or a type's name)."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from jaxport.importer.dtypes import from_type_string
from jaxport.importer.namespaces import jnp
from jaxport.importer.ops import elementwise, linear_algebra, recurrent  # noqa: F401  what is looked up below
from jaxport.importer.ops.activations import dropout_unless_test, selu
from jaxport.importer.ops.casting import converted
from jaxport.importer.ops.shapes import concat, reshape
from jaxport.importer.registry import Host, RandomKey, lookup, op

CONSUMED = inspect.Parameter("consumed_inputs", inspect.Parameter.KEYWORD_ONLY, default=None)
"""A hint to reuse the memory of inputs; XLA decides that itself."""
OUTPUT_SEQUENCE = inspect.Parameter("output_sequence", inspect.Parameter.KEYWORD_ONLY, default=0)
"""Whether the first output of a recurrent layer is wanted; the node says so by naming it."""


def _earlier(name: str, since: int, until: int, *added: inspect.Parameter, inputs: str = "", **changed: Any) -> None:
    """Registers versions `since` to `until` as what the version after them computes.

    Their attributes are those of the later version, with the `added` ones, which change nothing, and with other defaults
    where `changed` has them; one that is `changed` to None did not exist yet. `inputs` names the input of a function of
    JAX; the functions of this package have theirs in their signature.
    """
    later = lookup("", name, until + 1)
    assert later is not None, name
    own = [inspect.Parameter(inputs, inspect.Parameter.POSITIONAL_OR_KEYWORD)] if inputs else later.parameters
    kept = [p.replace(default=changed.get(p.name, p.default)) for p in own if changed.get(p.name, "") is not None]
    ignored = {parameter.name for parameter in added}

    def first(*inputs: Any, **attributes: Any) -> Any:
        return later.function(*inputs, **{key: value for key, value in attributes.items() if key not in ignored})

    first.__signature__ = inspect.Signature([*kept, *added])
    op(name, since=since, until=until)(first)


for _name in ("Abs", "Ceil", "Floor", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt"):
    _earlier(_name, 1, 5, CONSUMED, inputs="X")
for _name in ("Exp", "Log", "Tanh"):
    _earlier(_name, 1, 5, CONSUMED, inputs="input")
for _name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "LeakyRelu", "PRelu", "Elu", "HardSigmoid"):
    _earlier(_name, 1, 5, CONSUMED)
for _name in ("RNN", "LSTM"):
    _earlier(_name, 1, 6, OUTPUT_SEQUENCE)
_earlier("GRU", 3, 6, OUTPUT_SEQUENCE)
_earlier("GRU", 1, 2, linear_before_reset=None, direction="foward")
_earlier("Gemm", 1, 5)


@op("Selu", since=1, until=5)
def selu_rounded(X, *, alpha=1.6732, consumed_inputs=None, gamma=1.0507):
    return selu(X, alpha=alpha, gamma=gamma)


@op("Dropout", since=1, until=5)
def dropout_consuming(data, *, consumed_inputs=None, is_test=0, ratio=0.5, key: RandomKey):
    return dropout_unless_test(data, is_test=is_test, ratio=ratio, key=key)


@op("Clip", since=1, until=5)
def clip_where_given(input, *, consumed_inputs=None, max=None, min=None):
    return jnp.clip(input, min, max)


@op("Reshape", since=1, until=4)
def reshape_attribute(data, *, consumed_inputs=None, shape=None):
    return reshape(data, np.array(shape if shape is not None else (), np.int64))


@op("Concat", since=1, until=3)
def concat_default(*inputs, axis=None):
    return concat(*inputs, axis=1 if axis is None else axis)


@op("Tile", since=1, until=5)
def tile_axis(input, tiles: Host, axis: Host):
    repeats = [1] * input.ndim
    repeats[int(axis)] = int(tiles)
    return jnp.tile(input, repeats)


@op("Cast", since=1, until=5)
def cast_by_name(input, *, to):
    dtype = from_type_string(f"tensor({to.lower()})")
    assert dtype is not None
    return converted(input, dtype)

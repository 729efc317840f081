"""Version 1 of operators: the function of a later version, and the attribute `consumed_inputs` (or a type's name)."""

from __future__ import annotations

import numpy as np

from jaxport.importer.ops import activations, elementwise, linear_algebra, recurrent  # noqa: F401  what is looked up below
from jaxport.importer.ops.casting import converted
from jaxport.importer.ops.shapes import concat, reshape
from jaxport.importer.resolving.registry import Host, earlier, op
from jaxport.importer.values.dtypes import from_type_string
from jaxport.importer.values.namespaces import jnp

CONSUMED = {"consumed_inputs": None}
"""A hint to reuse the memory of inputs; XLA decides that itself."""

for _name in ("Abs", "Ceil", "Floor", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt"):
    earlier(_name, since=1, until=5, ignored=CONSUMED, inputs="X")
for _name in ("Exp", "Log", "Tanh"):
    earlier(_name, since=1, until=5, ignored=CONSUMED, inputs="input")
for _name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "LeakyRelu", "PRelu", "Elu", "HardSigmoid"):
    earlier(_name, since=1, until=5, ignored=CONSUMED)
for _name in ("RNN", "LSTM"):
    # Whether the first output is wanted; the node shows that by naming it.
    earlier(_name, since=1, until=6, ignored={"output_sequence": 0})
earlier("GRU", since=3, until=6, ignored={"output_sequence": 0})
earlier("GRU", since=1, until=2, without="linear_before_reset", direction="foward")
earlier("Gemm", since=1, until=5)


earlier("Selu", since=1, until=5, ignored=CONSUMED, alpha=1.6732, gamma=1.0507)
earlier("Dropout", since=1, until=5, ignored=CONSUMED)


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

"""Stored tensors that are alike: copies of one, and those of one repeated value, which tell nothing apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

import numpy as np
import onnx_ir as ir

from jaxport.importer.values.stored import tensor_value

__all__ = ["is_uniform", "originals"]

COMPARED = 64
"""Elements that are compared before all are: copies are rare."""


def is_uniform(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is a vector of one repeated value, such as the zeros and ones that parameters begin with."""
    shape = tensor.shape.numpy()
    if not tensor.size or max(shape, default=1) != tensor.size:
        return False
    values = tensor_value(tensor).data.reshape(-1)
    return bool((values == values[0]).all())


def originals(read: Iterable[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Return the weights that tell calls of modules apart, each with the first one that has its elements.

    Exporters store a weight again for each call of its module. A vector of one repeated value that is read once, such as a
    constant that is written for each call, tells nothing.

    Args:
      read: the weights, once for each time that they are read.
    """
    found: dict[ir.Value, ir.Value] = {}
    firsts: dict[Hashable, list[ir.Value]] = {}
    for value, times in Counter(read).items():
        tensor = value.const_value
        if tensor is None:  # an input of a function
            found[value] = value
            continue
        if times == 1 and is_uniform(tensor):
            continue
        elements = tensor_value(tensor).data
        key = elements.shape, elements.dtype, elements.reshape(-1)[:COMPARED].tobytes()
        known = firsts.setdefault(key, [])
        same = next((one for one in known if np.array_equal(_elements(one), elements)), None)
        if same is None or is_uniform(tensor):
            known.append(value)
            same = value
        found[value] = same
    return found


def _elements(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return tensor_value(value.const_value).data

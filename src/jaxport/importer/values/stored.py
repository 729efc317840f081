"""What a file stores, as values: its tensors, which of them are alike, and the attributes of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.errors import ModelError
from jaxport.importer.names import given_name
from jaxport.importer.values.host import HostValue


def tensor_value(tensor: ir.TensorProtocol) -> HostValue:
    """Return the elements of a tensor without copying them: memory-mapped, or in the model.

    Raises:
      ModelError: the tensor names a file: it did not pass `jaxport.importer.loading.gate`.
    """
    if isinstance(tensor, ir.ExternalTensor):
        raise ModelError("the data of a tensor is in a file that was not checked", where=f"tensor `{tensor.name}`")
    if tensor.dtype == ir.DataType.STRING:
        strings = np.array([text.decode("utf-8", "surrogateescape") for text in tensor.string_data()], dtype=object)  # type: ignore[attr-defined]
        return HostValue(strings.reshape(tensor.shape.numpy()), name=tensor.name or "")
    return HostValue(tensor.numpy(), name=tensor.name or "")


def attribute_value(attribute: ir.Attr) -> Any:
    """Return an attribute as operator functions take it: a Python value, a tuple, or a host value for a tensor."""
    kind, value = attribute.type, attribute.value
    if kind == ir.AttributeType.TENSOR:
        return tensor_value(attribute.as_tensor())
    if kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return tuple(value)
    if kind == ir.AttributeType.TENSORS:
        return tuple(map(tensor_value, value))
    return value


FOLDED = "pkg.onnxscript.optimizer.folded_from"
"""The metadata of an initializer that PyTorch's newer exporter computed: the names of what it was computed from."""
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
    """Return the weights that tell calls of modules apart, each with the first one that it is a copy of.

    Exporters store a weight again for each call of its module, under a name that they make up. Those that say what they
    made it of tell copies; of others, copies have the same elements, which are not all the same number. A vector of one
    repeated value that is read once, such as a constant that is written for each call, tells nothing.

    Args:
      read: the weights, once for each time that they are read.
    """
    found: dict[ir.Value, ir.Value] = {}
    firsts: dict[Hashable, list[ir.Value]] = {}
    for value, times in Counter(read).items():
        tensor = value.const_value
        if tensor is None or given_name(value.name or ""):  # an input of a function, or a tensor that has a name
            found[value] = value
            continue
        if times == 1 and is_uniform(tensor):
            continue
        elements, made_of = tensor_value(tensor).data, value.metadata_props.get(FOLDED)
        begin = elements.reshape(-1)[:COMPARED].tobytes()
        known = firsts.setdefault((elements.shape, elements.dtype, made_of or begin), [])
        if made_of:
            same = known[0] if known else None
        elif not elements.size or (elements == elements.flat[0]).all():
            same = None
        else:
            same = next((one for one in known if np.array_equal(_elements(one), elements)), None)
        known += [value] if same is None else []
        found[value] = same or value
    return found


def _elements(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return tensor_value(value.const_value).data

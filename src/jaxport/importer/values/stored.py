"""What a file stores, as values: its tensors, and the attributes of its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.errors import ModelError
from jaxport.importer.values.host import HostValue

__all__ = ["attribute_value", "tensor_value"]


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

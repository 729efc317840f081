"""Products of values in half precision that a file computes in float32, for want of a kernel: computed as JAX does
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax

from jaxport.graph.editing import is_op
from jaxport.importer.ops.convolution import convolution_in_single
from jaxport.importer.ops.linear_algebra import in_single
from jaxport.importer.resolving.graph import Attribute, BoundNode
from jaxport.importer.resolving.layouts import as_image
from jaxport.importer.running.scope import EvaluationScope
from jaxport.importer.values.host import RuntimeValue, Tensor
from jaxport.importer.values.image_layout import ImageLayout


def of_halves(
    node: BoundNode,
    inputs: Sequence[RuntimeValue],
    attributes: Mapping[str, Attribute],
    layout: ImageLayout,
    scope: EvaluationScope,
) -> Tensor | None:
    """Return a product of arrays in half precision that a file casts to float32 first; None for any other node.

    Blocks and printed source have the operators of the file.

    Args:
      node: the node.
      inputs: its inputs, in float32 and in the layout.
      attributes: its attributes.
      layout: the layout of the images of a convolution.
      scope: the values of the graph.
    """
    operands = [scope[value] for value in node.halves]
    if not operands or not all(isinstance(x, jax.Array) for x in operands):
        return None
    rest = inputs[len(operands) :]
    if not is_op(node.node, "Conv"):
        return in_single(node.node.op_type, *operands, *rest, **attributes)
    x = as_image(node.halves[0], scope) if layout.channels_last else operands[0]
    return None if x is None else convolution_in_single(layout, x, operands[1], *rest, **attributes)

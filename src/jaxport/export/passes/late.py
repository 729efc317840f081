"""Write out the functions that ONNX lacks, once fusions have had them as one node.

Written out, the complementary error function is a hundred nodes. An exact GELU is one operator behind it, and needs
none of them.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
import onnx_ir as ir
from jax import lax

from jaxport.graph.editing import LATE, begins_at, constant_of, dims_of, numpy_dtype, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.graph.fusions.activations import activations
from jaxport.graph.patterns import pattern_of


@begins_at({LATE})
def late(model: ir.Model) -> str:
    """Write out `erfc`, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]

    def find(node: ir.Node) -> Fusion:
        x, result = source(node), node.outputs[0]

        def build(builder: Builder) -> ir.Value:
            written = _written(numpy_dtype(x), opset)
            values = {written.inputs[0]: x}
            for step in written:
                operands = [
                    values.get(value) or _constant(builder, value) for value in step.inputs if value is not None
                ]
                attributes = {name: attribute.value for name, attribute in step.attributes.items()}
                made = step.outputs[0]
                values[made] = builder.emit(step.op_type, operands, dims_of(result), made.dtype, **attributes)
            return values[written.outputs[0]]

        return Fusion(LATE, result, [x], build)

    return fuse(model, find, Anchor(at=(LATE,)))


@functools.lru_cache(maxsize=16)
def _written(dtype: np.dtype, opset: int | None) -> ir.Graph:
    """Return the graph of `erfc`, with the operators that the passes before this one find."""
    last = pattern_of(_erfc, dtype, opset or 0).result.producer()
    assert last is not None
    assert isinstance(last.graph, ir.Graph)
    activations(ir.Model(last.graph, ir_version=10))
    return last.graph


def _erfc(x: jax.Array) -> jax.Array:
    return lax.erfc(x)  # which has a keyword in newer releases of JAX: the pattern is of the array alone


def _constant(builder: Builder, value: ir.Value) -> ir.Value:
    array = constant_of(value)
    assert array is not None
    return builder.constant(array, "scalar")

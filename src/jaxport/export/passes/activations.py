"""Activation functions that ONNX has operators for, whatever library or hand wrote them.

The table says what each operator computes, as JAX functions; the patterns are what the exporter emits for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from jaxport.export import schema
from jaxport.export.passes.editing import dims_of, graphs
from jaxport.export.passes.fusing import Builder, Fusion, fuse, lacks_kernel, same_dims
from jaxport.export.passes.patterns import Match, pattern_of

_TANH_GELU = (2 / np.pi) ** 0.5


@dataclass(frozen=True)
class Activation:
    """An operator, and a JAX function that it computes.

    Attributes:
      op_type: the operator.
      function: the JAX function of an array, whose keyword-only parameters are attributes of the operator.
      needs: an operator that no pattern of it goes without: where a graph has none, nothing is looked for.
      attributes: further attributes.
    """

    op_type: str
    function: Callable[..., Any]
    needs: str
    attributes: tuple[tuple[str, Any], ...] = ()


ACTIVATIONS = (
    Activation("Gelu", lambda x: jax.nn.gelu(x, approximate=False), "Exp"),
    Activation("Gelu", lambda x: 0.5 * x * (1 + lax.erf(x / 2**0.5)), "Erf"),
    Activation("Gelu", lambda x: jax.nn.gelu(x, approximate=True), "Tanh", (("approximate", "tanh"),)),
    Activation(
        "Gelu",
        lambda x: 0.5 * x * (1 + jnp.tanh(_TANH_GELU * x * (1 + 0.044715 * x * x))),
        "Tanh",
        (("approximate", "tanh"),),
    ),
    Activation("Mish", jax.nn.mish, "Tanh"),
    Activation("Softplus", jax.nn.softplus, "Exp"),
    Activation("Selu", jax.nn.selu, "Exp"),
    Activation("Elu", lambda x, *, alpha: jax.nn.elu(x, alpha), "Exp"),
    Activation("Celu", lambda x, *, alpha: jax.nn.celu(x, alpha), "Exp"),
    Activation("Sigmoid", lambda x: 1 / (1 + jnp.exp(-x)), "Exp"),
    Activation("HardSwish", jax.nn.hard_swish, "Min"),
    Activation("HardSigmoid", jax.nn.hard_sigmoid, "Min", (("alpha", 1 / 6), ("beta", 0.5))),
    Activation("LeakyRelu", lambda x, *, alpha: jax.nn.leaky_relu(x, alpha), "Where"),
    Activation("Softsign", jax.nn.soft_sign, "Abs"),
    Activation("Relu", jax.nn.relu, "Max"),
)


def activations(model: ir.Model) -> str:
    """Recognise activation functions, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    present = {node.op_type for graph in graphs(model) for node in graph if not node.domain}
    wanted = [activation for activation in ACTIVATIONS if activation.needs in present]

    def find(node: ir.Node) -> Fusion | str | None:
        result = node.outputs[0]
        if node.domain or not wanted or result.dtype not in _DTYPES:
            return None
        for activation, match in _matches(wanted, result, opset):
            return _fusion(activation, match, result, opset)
        return None

    return fuse(model, find)


_DTYPES = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def _matches(wanted: Iterable[Activation], result: ir.Value, opset: int) -> Iterator[tuple[Activation, Match]]:
    for activation in wanted:
        pattern = pattern_of(activation.function, result.dtype.numpy(), opset)  # pyright: ignore
        match = pattern.match(result)
        if match is not None and same_dims(match.x, result):
            yield activation, match


def _fusion(activation: Activation, match: Match, result: ir.Value, opset: int) -> Fusion | str:
    op_type, dtype = activation.op_type, match.x.dtype
    attributes = dict(activation.attributes) | match.parameters
    exists = schema.find("", op_type, opset) is not None
    by_erf = op_type == "Gelu" and not attributes and not exists
    if not exists and not by_erf:
        return f"{op_type} needs opset {schema.first_opset('', op_type)}"
    narrow = dtype == ir.DataType.BFLOAT16
    if not narrow and lacks_kernel("Erf" if by_erf else op_type, dtype):
        return f"the runtime has no {op_type} of {dtype.name}"  # pyright: ignore[reportOptionalMemberAccess]

    def build(builder: Builder) -> ir.Value:
        dims, x = dims_of(result), match.x
        wide = ir.DataType.FLOAT if narrow else x.dtype
        if narrow:
            x = builder.emit("Cast", [x], dims, wide, to=wide)
        value = _gelu_by_erf(builder, x) if by_erf else builder.emit(op_type, [x], dims, wide, **attributes)
        return builder.emit("Cast", [value], dims, to=result.dtype) if narrow else value

    return Fusion("Gelu by Erf" if by_erf else op_type, result, [match.x], build)


def _gelu_by_erf(builder: Builder, x: ir.Value) -> ir.Value:
    """`x / 2 (1 + erf(x / sqrt 2))`, as runtimes know it from before there was an operator."""
    dims, dtype = dims_of(x), x.dtype.numpy()  # pyright: ignore[reportOptionalMemberAccess]

    def number(value: float) -> ir.Value:
        return builder.constant(np.asarray(value, dtype), "scalar")

    def emit(op_type: str, *operands: ir.Value) -> ir.Value:
        return builder.emit(op_type, operands, dims, x.dtype)

    error = emit("Erf", emit("Div", x, number(2**0.5)))
    return emit("Mul", emit("Mul", x, emit("Add", error, number(1))), number(0.5))

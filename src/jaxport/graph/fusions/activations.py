"""Recognise the activation functions that ONNX has operators for, however they were written.

The table defines each operator by a JAX function; the patterns are the nodes that the exporter emits for it.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from jaxport.graph.editing import LATE, dims_of, is_op, nodes_of, numpy_dtype, source, sources
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle, same_but_for_ones
from jaxport.graph.matching import close
from jaxport.graph.patterns import PRODUCTS, SUMS, Pattern, PatternMatch, kind, operators_below, pattern_of
from jaxport.jaxprs import PythonFunction
from jaxport.onnx_facts import RESHAPING

_TANH_GELU = (2 / np.pi) ** 0.5

Emit = Callable[..., ir.Value]
"""Emits an elementwise operator of values and numbers, with attributes."""


@dataclass(frozen=True)
class Activation:
    """An operator, and the JAX function that it computes.

    Attributes:
      op_type: the operator; it has to exist at the opset, in the dtype.
      function: the JAX function of an array and keyword-only numeric parameters.
      needs: operators that its pattern cannot do without: a model that lacks one of them is not searched.
      attributes: fixed attributes of the operator; the parameters are added to them.
      emit: emits the replacement for the array and the parameters, if one operator with attributes is not enough.
    """

    op_type: str
    function: PythonFunction
    needs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    emit: Callable[..., ir.Value] | None = None

    def values(self, parameters: Mapping[str, float]) -> Iterable[Any]:
        """Return the values that the operator's attributes are set to."""
        return () if self.emit is not None else (*dict(self.attributes).values(), *parameters.values())

    def emits(self, op: Emit, x: ir.Value, parameters: Mapping[str, float]) -> ir.Value:
        """Emit the nodes that compute the function of `x`."""
        if self.emit is not None:
            return self.emit(op, x, **parameters)
        return op(self.op_type, x, **dict(self.attributes), **parameters)


def _gelu_by_erf(op: Emit, x: ir.Value) -> ir.Value:
    """Emit GELU with Erf, the form that runtimes recognised before the operator existed."""
    return op("Mul", op("Mul", x, op("Add", op("Erf", op("Div", x, 2**0.5)), 1)), 0.5)


_BY_TANH = (("approximate", "tanh"),)

#: If several patterns match, the first operator that exists is taken.
ACTIVATIONS = (
    Activation("Gelu", lambda x: jax.nn.gelu(x, approximate=False), (LATE,)),
    Activation("Erf", lambda x: jax.nn.gelu(x, approximate=False), (LATE,), emit=_gelu_by_erf),
    Activation("Gelu", lambda x: jax.nn.gelu(x, approximate=False), ("Exp",)),
    Activation("Erf", lambda x: jax.nn.gelu(x, approximate=False), ("Exp",), emit=_gelu_by_erf),
    Activation("Gelu", lambda x: 0.5 * x * (1 + lax.erf(x / 2**0.5)), ("Erf",)),
    Activation("Gelu", lambda x: jax.nn.gelu(x, approximate=True), ("Tanh", "Mul"), _BY_TANH),
    Activation(
        "Gelu", lambda x: 0.5 * x * (1 + jnp.tanh(_TANH_GELU * x * (1 + 0.044715 * x * x))), ("Tanh", "Mul"), _BY_TANH
    ),
    Activation("Mish", jax.nn.mish, ("Tanh", "Mul")),
    Activation("Softplus", jax.nn.softplus, ("Exp",)),
    Activation("Selu", jax.nn.selu, ("Exp",)),
    Activation("Elu", lambda x, *, alpha: jax.nn.elu(x, alpha), ("Exp",)),
    Activation("Celu", lambda x, *, alpha: jax.nn.celu(x, alpha), ("Exp",)),
    Activation("Sigmoid", lambda x: 1 / (1 + jnp.exp(-x)), ("Exp",)),
    Activation("Sigmoid", lambda x: x / (1 + jnp.exp(-x)), ("Exp",), emit=lambda op, x: op("Mul", x, op("Sigmoid", x))),
    Activation("HardSwish", jax.nn.hard_swish, ("Min",)),
    Activation("HardSwish", lambda x: x * lax.clamp(x.dtype.type(0), x + 3, x.dtype.type(6)) / 6, ("Clip",)),
    Activation("HardSwish", lambda x: x * (lax.clamp(x.dtype.type(0), x + 3, x.dtype.type(6)) / 6), ("Clip",)),
    Activation("HardSigmoid", jax.nn.hard_sigmoid, ("Min",), (("alpha", 1 / 6), ("beta", 0.5))),
    Activation("LeakyRelu", lambda x, *, alpha: jax.nn.leaky_relu(x, alpha), ("Where",)),
    Activation("Softsign", jax.nn.soft_sign, ("Abs",)),
    Activation(
        "Clip",
        lambda x, *, low, high: jnp.minimum(jnp.maximum(x, low), high),
        ("Min",),
        emit=lambda op, x, low, high: op("Clip", x, low, high),
    ),
    Activation("Relu", jax.nn.relu, ("Max",)),
)

#: Functions that runtimes compute as fast from their parts, as the operators are newer than most of them.
GATED = (Activation("Swish", jax.nn.silu, ("Sigmoid", "Mul")),)

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def activations(model: ir.Model, table: Sequence[Activation] = ACTIVATIONS) -> str:
    """Recognise activation functions, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    nodes = [node for node in nodes_of(model) if not node.domain and node.outputs]
    present = {node.op_type for node in nodes}
    wanted = [activation for activation in table if present.issuperset(activation.needs)]

    @functools.cache
    def patterns(dtype: np.dtype) -> Mapping[str, Sequence[tuple[Activation, Pattern]]]:
        """Return the patterns by their last operator, in the order in which they are tried."""
        by_root = collections.defaultdict(list)
        for activation in wanted:
            pattern = pattern_of(activation.function, dtype, opset, LATE in activation.needs)
            by_root[pattern.root].append((activation, pattern))
        return by_root

    def find(node: ir.Node) -> Fusion | str | None:
        result, hindrance = node.outputs[0], None
        if node.domain or result.dtype not in _FLOATS:
            return None
        if (gated := _gated_hard_sigmoid(node, opset)) is not None:
            return gated
        candidates = patterns(numpy_dtype(result)).get(kind(result))
        below = operators_below(result) if candidates else None
        for activation, pattern in candidates or ():
            match = pattern.match(result, below)
            if match is not None and same_but_for_ones(match.x, result):
                dtype = ir.DataType.FLOAT if result.dtype is ir.DataType.BFLOAT16 else result.dtype
                numbers = [x for x in activation.values(match.parameters) if isinstance(x, float)]
                if any(map(np.isnan, match.parameters.values())):  # runtimes pass over a limit that is NaN
                    return f"{activation.op_type} with a number that is NaN"
                hindrance = obstacle(activation.op_type, dtype, opset, numbers)
                if hindrance is None:
                    return _fusion(activation, match, result)
        return hindrance

    # A match ends at an operator that its pattern needs, or below one.
    needed = {activation.needs[0] for activation in wanted}
    through = {*PRODUCTS, *SUMS}
    for dtype in {numpy_dtype(node.outputs[0]) for node in nodes if node.outputs[0].dtype in _FLOATS}:
        for _, pattern in itertools.chain.from_iterable(patterns(dtype).values()):
            through |= pattern.op_types
    anchors = [Anchor(at=needed), Anchor(at=through, below=needed, through=through | RESHAPING)]
    return fuse(model, find, *anchors, Anchor(at=("Mul",), below=("HardSigmoid",)))


def _gated_hard_sigmoid(node: ir.Node, opset: int) -> Fusion | str | None:
    """Return HardSwish for `x * HardSigmoid(x)`, if the operator has the numbers of HardSwish."""
    if not is_op(node, "Mul"):
        return None
    result = node.outputs[0]
    for gate, x in (sources(node), sources(node)[::-1]):
        inner = gate.producer()
        if inner is None or not is_op(inner, "HardSigmoid") or source(inner) is not x:
            continue
        attributes = {"alpha": 0.2, "beta": 0.5} | {name: one.as_float() for name, one in inner.attributes.items()}
        if not (close(attributes["alpha"], 1 / 6, ir.DataType.FLOAT) and attributes["beta"] == 0.5):
            return None
        build = lambda builder, x=x: builder.emit("HardSwish", [x], dims_of(result))
        return obstacle("HardSwish", result.dtype, opset) or Fusion("HardSwish", result, [x], build)
    return None


def limits_as_operands(model: ir.Model) -> str:
    """Write each Clip whose limits are attributes, as up to opset 10, with constants for them: as the patterns have
    it.
    """

    def find(node: ir.Node) -> Fusion | None:
        result = node.outputs[0]
        given = [node.attributes.get(name) for name in ("min", "max")]
        if not any(given) or result.dtype not in _FLOATS:
            return None

        def build(builder: Builder) -> ir.Value:
            numbers = [None if one is None else np.asarray(one.as_float(), numpy_dtype(result)) for one in given]
            limits = [None if one is None else builder.constant(one, "limit") for one in numbers]
            return builder.emit("Clip", [source(node), *limits], dims_of(result))

        return Fusion("Clip", result, [source(node)], build)

    return fuse(model, find, Anchor(at=("Clip",)))


def _fusion(activation: Activation, match: PatternMatch, result: ir.Value) -> Fusion:
    narrow = match.x.dtype is ir.DataType.BFLOAT16
    wide = ir.DataType.FLOAT if narrow else match.x.dtype
    dims = dims_of(result)

    def build(builder: Builder) -> ir.Value:
        def op(op_type: str, *operands: ir.Value | float, **attributes: Any) -> ir.Value:
            inputs = [x if isinstance(x, ir.Value) else number(x) for x in operands]
            return builder.emit(op_type, inputs, dims, wide, **attributes)

        def number(value: float) -> ir.Value:
            return builder.constant(np.asarray(value, np.float32 if narrow else numpy_dtype(match.x)), "scalar")

        x = builder.viewed(match.x, dims or [])
        x = op("Cast", x, to=wide) if narrow else x
        value = activation.emits(op, x, match.parameters)
        return builder.emit("Cast", [value], dims, to=result.dtype) if narrow else value

    return Fusion(activation.op_type, result, [match.x], build)

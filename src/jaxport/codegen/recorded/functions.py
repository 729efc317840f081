"""Recognise the functions of JAX that exports spell out, because ONNX has no operator for them.

Abs, Abs, Max, Min, Div, Mul, … Sqrt, Mul, Where    →    jnp.hypot(x, y)

A pattern is what the exporter writes for the function, in the dtype and the opset at hand: it follows the export's rules.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jaxport.codegen.recorded.fusions import DOMAIN
from jaxport.errors import JaxportError
from jaxport.graph.editing import Dim, dims_of, is_op, nodes_of, number_of, numpy_dtype
from jaxport.graph.fusing import Builder, Fusion, fuse
from jaxport.graph.patterns import Pattern
from jaxport.importer.resolving.registry import op
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import Namespace, jnp, lax, nn
from jaxport.jaxprs.walk import bodies, equations_within


@dataclass(frozen=True, eq=False)
class JaxFunction:
    """A function of JAX.

    Attributes:
      call: the function.
      needs: operators that its pattern cannot do without: a model that lacks one of them is not searched.
      arity: the number of its operands.
      spelling: another function of the same values, which exports spell out otherwise.
    """

    call: Callable[..., Tensor]
    needs: tuple[str, ...]
    arity: int = 1
    spelling: Callable[..., Tensor] | None = None

    @property
    def exported(self) -> Callable[..., Tensor]:
        """The function whose export is the pattern."""
        return self.spelling or getattr(self.call, "function", self.call)

    @property
    def is_loop(self) -> bool:
        """Whether its pattern is a loop, which depends on the shape."""
        return "Loop" in self.needs

    @property
    def name(self) -> str:
        """The name of the operator that a call becomes."""
        return str(getattr(self.call, "name", getattr(self.call, "__name__", "")))

    @functools.cached_property
    def primitives(self) -> frozenset[str]:
        """The primitives that a call consists of."""
        dtype = np.dtype(np.int32 if self.is_loop and "Log" not in self.needs else np.float32)
        program = jax.make_jaxpr(self.call)(*[jax.ShapeDtypeStruct((2,), dtype)] * self.arity)
        return frozenset(each.primitive.name for each in equations_within(program.jaxpr) if not bodies(each.params))

    @functools.lru_cache(maxsize=512)  # noqa: B019 functions live as long as the process
    def pattern(self, dtype: np.dtype, opset: int, number: float | None, shape: tuple[Dim, ...]) -> Pattern | None:
        """Return what the exporter writes, of a number as the last operand if there is one; None if it writes one node.

        None, too, of dtypes and shapes that the function does not take.
        """
        from jaxport.export.api import to_onnx

        call = self.exported
        known = () if number is None else (np.asarray(number, dtype),)
        try:
            sizes = jax.export.symbolic_shape(", ".join(map(str, shape)))
            specs = [jax.ShapeDtypeStruct(sizes, dtype)] * (self.arity - len(known))
            with jax.enable_x64(dtype.itemsize == 8):
                graph = to_onnx(lambda *xs: call(*xs, *known), specs, opset=opset).model.graph
        except (JaxportError, ValueError):  # files have names of sizes that are none elsewhere
            return None
        return Pattern(tuple(graph.inputs), (), graph.outputs[0]) if len([*graph]) > 1 else None


special: Any = Namespace("jax.scipy.special", jax.scipy.special)

FUNCTIONS = (
    JaxFunction(jnp.log1p, ("Log", "Sub", "Or")),
    JaxFunction(jnp.expm1, ("Exp", "Log", "Or")),
    JaxFunction(jnp.cbrt, ("Exp", "Log", "And")),
    JaxFunction(jnp.sinc, ("Sin", "Equal")),
    JaxFunction(jnp.trunc, ("Ceil", "Floor", "Less")),
    JaxFunction(jnp.nan_to_num, ("Equal", "Not", "Where")),
    JaxFunction(nn.log_sigmoid, ("Softplus", "Neg")),
    JaxFunction(nn.squareplus, ("Sqrt", "Div")),
    JaxFunction(nn.sparse_plus, ("LessOrEqual", "GreaterOrEqual", "Where")),
    JaxFunction(lax.erfc, ("Abs", "Exp", "Less")),
    JaxFunction(lax.erf_inv, ("Log", "Sqrt", "Less")),
    JaxFunction(lax.digamma, ("Log", "Sin", "Cos")),
    JaxFunction(lax.lgamma, ("Log", "Sin", "Floor")),
    JaxFunction(lax.bessel_i0e, ("Abs", "Sqrt", "LessOrEqual")),
    JaxFunction(lax.bessel_i1e, ("Abs", "Sqrt", "LessOrEqual")),
    JaxFunction(special.i0, ("Exp", "Sqrt", "LessOrEqual")),
    JaxFunction(special.i1, ("Exp", "Sqrt", "LessOrEqual")),
    JaxFunction(special.logit, ("Log", "Sub", "Div")),
    JaxFunction(special.entr, ("Log", "Less", "Or")),
    JaxFunction(special.ndtr, ("Abs", "Exp", "Erf")),
    JaxFunction(special.log_ndtr, ("Exp", "Erf", "Log")),
    JaxFunction(special.ndtri, ("Log", "Sqrt", "Greater")),
    JaxFunction(jnp.hypot, ("Max", "Min", "Sqrt"), 2),
    JaxFunction(jnp.arctan2, ("Atan", "Less"), 2),
    JaxFunction(jnp.logaddexp, ("Max", "Exp", "Log"), 2),
    JaxFunction(jnp.logaddexp2, ("Max", "Pow", "Log"), 2),
    JaxFunction(jnp.heaviside, ("Less", "Greater", "Equal"), 2),
    JaxFunction(operator.mod, ("Mod", "Where"), 2),
    JaxFunction(operator.mod, ("Mod", "Where"), 2, lambda x, y: jax.numpy.divmod(x, y)[1]),
    JaxFunction(jnp.floor_divide, ("Sub", "Where"), 2),
    JaxFunction(lax.div, ("Div", "Equal", "Where"), 2),
    JaxFunction(jnp.gcd, ("Loop", "Less"), 2),
    JaxFunction(jnp.lcm, ("Loop", "Less", "Div"), 2),
    JaxFunction(special.xlogy, ("Log", "Or"), 2),
    JaxFunction(special.xlog1py, ("Log", "Or", "Sub"), 2),
    JaxFunction(lax.nextafter, ("Greater", "Less", "And"), 2),
    JaxFunction(lax.zeta, ("Pow", "Floor", "And"), 2),
    JaxFunction(lax.polygamma, ("Pow", "Floor", "IsInf"), 2),
    JaxFunction(lax.igamma, ("Loop", "Log", "Exp"), 2),
    JaxFunction(lax.igammac, ("Loop", "Log", "Exp"), 2),
    JaxFunction(special.betainc, ("Loop", "Log", "Exp"), 3),
    JaxFunction(lax.round, ("Round", "Clip", "Equal")),  # the end of a division, too
)
"""Of two that match one value, the first is taken."""
ANY_SHAPE = (2, 3)
"""The shape of patterns that are the same for all shapes."""
NEAR = 32
"""The number of nodes before a result among which a divisor is looked for."""


def _registered(function: JaxFunction) -> None:
    op(DOMAIN, function.name)(lambda *xs: function.call(*xs))  # noqa: PLW0108 whose signature is not read


for _function in {function.name: function for function in FUNCTIONS}.values():
    _registered(_function)


@dataclass(eq=False)
class CallOfFunction(Fusion):
    """A call, which reads better than what it replaces whether or not something else reads a part of that, too."""

    def used_elsewhere(self, inside: set[ir.Node]) -> ir.Value | None:
        """Return None."""
        del inside


def possible(model: ir.Model) -> list[JaxFunction]:
    """Return the functions of whose patterns a model has some operators."""
    present = {node.op_type for node in nodes_of(model)}
    return [function for function in FUNCTIONS if present.issuperset(function.needs)]


def functions(model: ir.Model, opset: int, primitives: Collection[str] | None = None) -> str:
    """Replace what an export spells out by an operator of jaxport's own domain.

    Args:
      model: changed in place.
      opset: that of the file.
      primitives: those that functions may consist of; any if None.
    """
    wanted = possible(model)
    if primitives is not None:
        wanted = [function for function in wanted if function.primitives.issubset(primitives)]

    def find(node: ir.Node) -> Fusion | None:
        result = node.outputs[0]
        if node.domain or result.dtype is None or result.dtype.is_string():
            return None
        dtype, dims = numpy_dtype(result), dims_of(result)
        divisors = _divisors(node)
        for function in wanted:
            for number in (None, *(divisors if function.arity == 2 else ())):
                shape = tuple(dims) if dims and function.is_loop else ANY_SHAPE
                pattern = function.pattern(dtype, opset, number, shape)
                operands = None if pattern is None else pattern.operands_of(result)
                if operands is not None and None not in operands:
                    return _call(function, result, operands, number)
        return None

    return fuse(model, find)


def _divisors(node: ir.Node) -> list[float]:
    """Return the numbers that a node near another one divides by."""
    found: dict[float, None] = {}
    seen, waiting = {node}, collections.deque([node])
    while waiting and len(seen) < NEAR:
        near = waiting.popleft()
        if is_op(near, "Mod", "Div") and (number := number_of(near.inputs[1])) is not None:
            found[number] = None
        producers = [value.producer() for value in near.inputs if value is not None]
        new = [producer for producer in producers if producer is not None and producer not in seen]
        seen.update(new)
        waiting.extend(new)
    return [*found]


def _call(function: JaxFunction, result: ir.Value, operands: Sequence[ir.Value | None], number: float | None) -> Fusion:
    leaves = [operand for operand in operands if operand is not None]

    def build(builder: Builder) -> ir.Value:
        known = [] if number is None else [builder.constant(np.asarray(number, numpy_dtype(result)), "divisor")]
        return builder.emit(function.name, [*leaves, *known], dims_of(result), domain=DOMAIN)

    return CallOfFunction(function.name, result, leaves, build)

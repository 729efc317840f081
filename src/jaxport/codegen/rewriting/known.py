"""What is known of the values of recorded steps, whatever the inputs are: the analysis of graphs, from the steps that make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from jaxport.codegen.rewriting.producers import Producers
from jaxport.codegen.rewriting.steps import reads
from jaxport.graph.editing import Dim
from jaxport.graph.facts.facts import Facts, Operand, SeenNode, of_constant
from jaxport.graph.facts.knowledge import LARGEST, follow, of_sizes
from jaxport.graph.facts.operators import RULES
from jaxport.importer.values.host import HostValue, RuntimeValue, Shape, is_dim
from jaxport.importer.values.recording import Step, Variable

__all__ = ["is_never_negative_zero", "truth_of"]

OPERATORS: Mapping[str, str] = {
    "+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "%": "Mod", "<": "Less", "<=": "LessOrEqual", ">": "Greater",
    ">=": "GreaterOrEqual", "==": "Equal", "&": "And", "jnp.logical_and": "And", "~": "Not", "jnp.logical_not": "Not",
    "jnp.minimum": "Min", "jnp.maximum": "Max", "jnp.abs": "Abs", "jnp.exp": "Exp", "jnp.where": "Where", "astype": "Cast",
    "nn.sigmoid": "Sigmoid", "nn.softmax": "Softmax", "jnp.arange": "Range", "jnp.transpose": "Transpose",
    "jnp.broadcast_to": "Expand", **dict.fromkeys(("jnp.reshape", "jnp.expand_dims", "jnp.squeeze"), "Reshape"),
}  # fmt: skip
"""The operators whose rules tell what is known of the results of steps."""

NEVER_NEGATIVE_ZERO = frozenset("jnp.square jnp.arange jnp.ones jnp.ones_like nn.softplus nn.one_hot jnp.cosh".split())
"""Other functions whose result is never -0.0."""


def is_never_negative_zero(value: RuntimeValue, producers: Producers) -> bool:
    """Whether no element of a value is -0.0."""
    return _facts(value, producers).never_negative_zero


def truth_of(value: RuntimeValue, producers: Producers) -> bool | None:
    """Return whether all elements of a condition are true, or false; None if that is not known."""
    band = _facts(value, producers).band
    return None if band is None or not (band.is_always or band.is_never) else band.is_always


def _facts(value: RuntimeValue, producers: Producers) -> Facts:
    if not isinstance(value, Variable):
        return _operand(value, producers.facts).facts
    made = producers.made

    def operands(variable: Variable) -> list[Variable]:
        return reads(made[variable]) if variable in made and _operator(made[variable]) else []

    return follow(value, producers.facts, operands, lambda variable: _of(variable, made.get(variable), producers.facts))


def _operator(step: Step) -> str | None:
    name = "Neg" if step.name == "-" and len(step.args) == 1 else OPERATORS.get(step.name)
    return None if step.form == "vmap" else name


def _of(variable: Variable, step: Step | None, known: Mapping[Variable, Facts]) -> Facts:
    dims, dtype = _dims(variable.shape), ir.DataType.from_numpy(np.dtype(variable.dtype))
    name = None if step is None else _operator(step)
    facts = Facts(never_negative_zero=step is not None and step.form != "vmap" and step.name in NEVER_NEGATIVE_ZERO)
    if step is not None and name is not None:
        args, attributes = [*step.args], dict(step.kwargs)
        if name == "Transpose":
            attributes["perm"] = args.pop() if len(args) == 2 else [*range(len(dims))][::-1]
        elif name == "Range" and len(args) == 1:
            args = [0, *args, 1]
        elif name in ("Cast", "Expand", "Reshape"):
            del args[1:]
        operation = SeenNode(name, attributes, [_operand(arg, known) for arg in args], dims, dtype)
        made = RULES[name](operation)
        facts = made if not facts.never_negative_zero else replace(made, never_negative_zero=True)
    return facts.completed(dtype, dims)


def _operand(value: RuntimeValue, known: Mapping[Variable, Facts]) -> Operand:
    if isinstance(value, Variable):
        dtype = ir.DataType.from_numpy(np.dtype(value.dtype))
        return Operand(known.get(value, Facts()), _dims(value.shape), dtype, None, value)
    array = value.data if isinstance(value, HostValue) else np.asarray(value, object if is_dim(value) else None)
    if array.dtype == object:
        facts, dtype = of_sizes(array), ir.DataType.INT64
    elif array.dtype.kind in "fiub" and array.nbytes <= LARGEST:
        facts, dtype = of_constant(array), ir.DataType.from_numpy(array.dtype)
    else:
        return Operand(Facts(), array.shape, None, None, id(value))
    return Operand(facts.completed(dtype, array.shape), array.shape, dtype, None, id(value))


def _dims(shape: Shape) -> list[Dim]:
    return [size if isinstance(size, int) else str(size) for size in shape]

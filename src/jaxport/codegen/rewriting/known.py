"""What is known of the values of recorded steps, whatever the inputs are: the analysis of graphs, from the steps that
make them.
"""

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
from jaxport.importer.values.host import HostValue, Shape, is_dim
from jaxport.importer.values.recording import Step, Variable

OPERATORS: Mapping[str, str] = {
    "+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "%": "Mod", "<": "Less", "<=": "LessOrEqual", ">": "Greater",
    ">=": "GreaterOrEqual", "==": "Equal", "!=": "Equal", "&": "And", "jnp.logical_and": "And", "~": "Not",
    "jnp.logical_not": "Not",
    "jnp.minimum": "Min", "jnp.maximum": "Max", "jnp.abs": "Abs", "jnp.exp": "Exp", "jnp.where": "Where",
    "astype": "Cast",
    "nn.sigmoid": "Sigmoid", "nn.softmax": "Softmax", "jnp.arange": "Range", "jnp.transpose": "Transpose",
    "jnp.broadcast_to": "Expand", **dict.fromkeys(("jnp.reshape", "jnp.expand_dims", "jnp.squeeze"), "Reshape"),
}  # fmt: skip
"""The operators whose rules tell what is known of the results of steps."""

UNARY = frozenset({*"Abs Cast Exp Expand Neg Not Reshape Sigmoid Softmax Transpose".split()})
"""Those that are given one operand here."""

SMALLEST_TRIANGLE = 3
"""Rows and columns from which on a triangle of ones is a call."""

NEVER_NEGATIVE_ZERO = frozenset("jnp.square jnp.arange jnp.ones jnp.ones_like nn.softplus nn.one_hot jnp.cosh".split())
"""Other functions whose result is never -0.0."""


def is_never_negative_zero(value: object, producers: Producers) -> bool:
    """Whether no element of a value is -0.0."""
    return _facts(value, producers).never_negative_zero


def truth_of(value: object, producers: Producers) -> bool | None:
    """Return whether all elements of a condition are true, or false; None if that is not known."""
    band = _facts(value, producers).band
    return None if band is None or not (band.is_always or band.is_never) else band.is_always


def diagonal_of(value: object, producers: Producers) -> tuple[bool, int] | None:
    """Return the diagonal that bounds where a condition on rows and columns holds, and whether it holds from there on,
    or up to it.
    """
    if isinstance(value, HostValue):
        known = triangle_of(value) if value.dtype == bool else None
        return known if known is None or not known[0] else (True, known[1] + 1)
    band = _facts(value, producers).band
    if band is None or band.is_never or len(band.conditions) != 1:
        return None
    (form,) = band.conditions
    slopes, number = [slope.value for slope in form.slopes], form.constant.value
    if len(slopes) < 2 or number is None or any(slopes[:-2]) or slopes[-2:] not in ([1, -1], [-1, 1]):
        return None
    return (False, number) if slopes[-2] == 1 else (True, -number)


def triangle_of(value: HostValue) -> tuple[bool, int] | None:
    """Return whether the ones of a triangle are above its zeros, and the last diagonal of the lower ones of the two."""
    if value.ndim != 2 or value.symbolic or value.dtype.kind not in "biuf" or min(value.shape) < SMALLEST_TRIANGLE:
        return None
    if not {*value.data[0].tolist()} <= {0, 1}:
        return None
    ones = value.data == 1
    if not (ones | (value.data == 0)).all() or np.signbit(value.data.astype(np.float32)).any() or len({*ones.flat}) < 2:
        return None
    is_upper = bool(ones[0, -1])
    lower = ~ones if is_upper else ones
    rows, columns = np.nonzero(lower)
    last = int((columns - rows).max())
    return (is_upper, last) if np.array_equal(lower, np.tri(len(lower), lower.shape[1], last, dtype=bool)) else None


def _facts(value: object, producers: Producers) -> Facts:
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
    dims, dtype = _dims(variable.shape), _data_type(variable.dtype)
    if step is None or step.form == "vmap" or dtype is None:
        return Facts().completed(dtype, dims)
    name, args, attributes, facts = _operator(step), [*step.args], dict(step.kwargs), Facts()
    if name == "Transpose":
        attributes["perm"] = args.pop() if len(args) == 2 else [*range(len(dims))][::-1]
    elif name == "Range":
        args = [[0, *args, 1], [*args, 1], args][len(args) - 1]
    elif name in ("Cast", "Expand", "Reshape"):
        del args[1:]
    if name is not None and len(args) == (1 if name in UNARY else 3 if name in ("Range", "Where") else 2):
        facts = RULES[name](SeenNode(name, attributes, [_operand(arg, known) for arg in args], dims, dtype))
    if step.name == "!=" and facts.band is not None:
        facts = Facts(band=facts.band.inverse())
    never = facts.never_negative_zero or step.name in NEVER_NEGATIVE_ZERO
    return replace(facts, never_negative_zero=never).completed(dtype, dims)


def _data_type(dtype: np.dtype) -> ir.DataType | None:
    """Return ONNX's type of elements; None for those that it does not have, such as keys of random numbers."""
    try:
        return ir.DataType.from_numpy(np.dtype(dtype))
    except TypeError:
        return None


def _operand(value: object, known: Mapping[Variable, Facts]) -> Operand:
    if isinstance(value, Variable):
        return Operand(known.get(value, Facts()), _dims(value.shape), _data_type(value.dtype), None, value)
    if isinstance(value, HostValue) and value.symbolic:
        facts, array, dtype = of_sizes(value.data), value.data, ir.DataType.INT64
    elif isinstance(value, HostValue | int | float | np.generic):
        array = value.data if isinstance(value, HostValue) else np.asarray(value)
        facts, dtype = of_constant(array) if array.nbytes <= LARGEST else Facts(), _data_type(array.dtype)
    elif is_dim(value):
        array = np.asarray(value, object)
        facts, dtype = of_sizes(array), ir.DataType.INT64
    else:
        return Operand(Facts(), None, None, None, id(value))
    return Operand(facts.completed(dtype, array.shape), array.shape, dtype, None, id(value))


def _dims(shape: Shape) -> list[Dim]:
    return [size if isinstance(size, int) else str(size) for size in shape]

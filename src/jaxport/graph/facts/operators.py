"""The rules of the analysis: how what is known of a result follows from what is known of the operands.

A rule returns what it adds; the result's dtype, and what follows from a form or a band, are added by `Facts.completed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from jaxport.graph.facts.arithmetic import (
    absolute,
    added,
    clipped,
    extreme,
    multiplied,
    opposite,
    present,
    quotient,
    remainder,
)
from jaxport.graph.facts.counting import counted, filled, position, running_sum, shape, size, triangle
from jaxport.graph.facts.facts import Facts, Number, SeenNode
from jaxport.graph.facts.forms import ALWAYS
from jaxport.graph.facts.functions import (
    FINITE,
    NO_NEGATIVE_ZERO,
    UNIT,
    cast,
    exponential,
    if_finite,
    if_not_nan,
    logarithm,
    normalized,
    power,
    reciprocal,
    rectified,
    reduced,
    reduced_extreme,
    root,
    softmax,
    whole,
)
from jaxport.graph.facts.moves import MOVES
from jaxport.graph.facts.truth import band_over, both, chosen, comparison, either, is_infinite, is_nan, opposite_of

Rule = Callable[[SeenNode], Facts]

_NUMBERS: Mapping[str, Callable[..., Number]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative,
    "Max": lambda *x: np.max(x), "Min": lambda *x: np.min(x),
    "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not, "IsInf": np.isinf,
    "IsNaN": np.isnan, "Abs": np.abs,
}  # fmt: skip


def _with_choices(name: str, rule: Rule) -> Rule:
    """Return the rule that computes with operands that are one of two numbers, as well."""

    def both(operation: SeenNode) -> Facts:
        made, operands = rule(operation), present(operation)
        choices = [x.facts.choice for x in operands]
        if made.band is not None or any(choice is None for choice in choices) or operation.attributes:
            return made
        rank = len(operation.dims)
        known = [(band_over(choice[0], rank), *choice[1:]) for choice in choices if choice is not None]
        bands = {choice[0] for choice in known if not choice[0].is_always}
        if len(bands) > 1 or any(band.is_never for band in bands) or operands[0].dtype is None:
            return made
        dtype = operands[0].dtype.numpy()
        with np.errstate(all="ignore"):
            one, other = (
                np.asarray(_NUMBERS[name](*(np.asarray(choice[place], dtype) for choice in known))) for place in (1, 2)
            )
        band = next(iter(bands), ALWAYS)
        if operation.dtype is ir.DataType.BOOL:
            choice = (band, bool(one), bool(other))
        else:
            choice = (band, one.astype(operation.dtype.numpy()).item(), other.astype(operation.dtype.numpy()).item())
        return replace(made, choice=choice)

    return both


_COMPUTING: dict[str, Rule] = {
    "Add": lambda operation: added(operation, 1),
    "Sub": lambda operation: added(operation, -1),
    "Mul": multiplied,
    "Neg": opposite,
    "Abs": absolute,
    "Max": lambda operation: extreme(operation, present(operation), True),
    "Min": lambda operation: extreme(operation, present(operation), False),
    "And": both,
    "Or": either,
    "Not": opposite_of,
    "IsNaN": is_nan,
    "IsInf": is_infinite,
    **{name: comparison(name) for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
}

RULES: Mapping[str, Rule] = {
    **MOVES,
    **{name: _with_choices(name, rule) for name, rule in _COMPUTING.items()},
    "Div": quotient,
    "Mod": remainder,
    "Clip": clipped,
    "Where": chosen,
    "Cast": cast,
    "Softmax": softmax,
    "Exp": exponential,
    "Sqrt": root,
    "Reciprocal": reciprocal,
    "Log": logarithm,
    "Pow": power,
    "Relu": rectified,
    "Range": counted,
    "Shape": shape,
    "Size": size,
    "ConstantOfShape": filled,
    "CumSum": running_sum,
    "Trilu": triangle,
    "Sigmoid": if_not_nan(UNIT, NO_NEGATIVE_ZERO),
    "Tanh": if_not_nan(replace(FINITE, low=-1.0, high=1.0)),
    "Erf": if_not_nan(replace(FINITE, low=-1.0, high=1.0)),
    **dict.fromkeys(("Sin", "Cos"), if_finite(replace(FINITE, low=-1.0, high=1.0))),
    **dict.fromkeys(("Floor", "Ceil", "Round"), whole),
    **dict.fromkeys(("ArgMax", "ArgMin"), position),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), reduced_extreme),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceSumSquare"), reduced),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"), normalized
    ),
    **dict.fromkeys(
        (
            "Conv Elu Einsum Gelu Gemm HardSigmoid HardSwish LeakyRelu MatMul Mish PRelu Selu Softplus Softsign Swish"
        ).split(),
        if_finite(),
    ),
}
"""How what is known of a result follows from what is known of the operands."""

"""How the parameters that no layer has begin in a model that is made from scratch.

Of a file with `pos_embed` (1, 197, 768), a vector `gamma` that is multiplied with, and a vector `beta`:

    self.pos_embed = nnx.Param(random.normal(…)); self.gamma = nnx.Param(jnp.ones(768)); self.beta =
    nnx.Param(jnp.zeros(768))
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxport.codegen.rewriting.steps import REARRANGING
from jaxport.codegen.tree import Module, Op, Weight
from jaxport.codegen.writing.dialect import Dialect, constant
from jaxport.codegen.writing.literals import call, dtype_expression
from jaxport.importer.values.recording import Variable

Start = Literal["zeros", "ones", "random"]


def starts(root: Module) -> dict[str, Start]:
    """Return how parameters begin, by name: matrices are random, what is multiplied with is ones, and all else zeros.

    Parameters whose names differ in numbers, such as those of blocks that are alike, begin alike. The values that the
    file has do not matter: a model that is not trained yet prints as it does after training.
    """
    own = [
        (module, variable, weight) for module in root.walk() for variable, weight in module.weights.items()
        if isinstance(weight, Weight)
    ]  # fmt: skip
    factors = {_stem(weight) for module, variable, weight in own if _is_factor(module, variable)}
    return {
        weight.name: "random" if _is_matrix(weight) else "ones" if _stem(weight) in factors else "zeros"
        for _, _, weight in own
    }


def begun(weight: Weight, start: Start, dialect: Dialect) -> ast.expr:
    """Return the array that a parameter begins with."""
    if start != "random":
        return filled(start, weight.shape, weight.dtype)
    sizes = constant(tuple(int(size) for size in weight.shape), "size")
    return dialect.random(sizes, *([] if weight.dtype == np.float32 else [dtype_expression(weight.dtype)]))


def filled(kind: str, shape: Sequence[int], dtype: np.dtype) -> ast.expr:
    """Return an array of zeros or of ones."""
    sizes = constant(tuple(int(size) for size in shape), "size")
    return call(f"jnp.{kind}", sizes, *([] if dtype == np.float32 else [dtype_expression(dtype)]))


def _is_matrix(weight: Weight) -> bool:
    return sum(size > 1 for size in weight.shape) > 1


def _stem(weight: Weight) -> str:
    return re.sub(r"\d+", "", weight.name)


def _is_factor(module: Module, variable: Variable) -> bool:
    """Whether a module multiplies with a parameter, or divides by it."""
    values = {variable}
    for op in (part for part in module.parts if isinstance(part, Op)):
        if not values.isdisjoint(op.inputs):
            if op.step.name in ("*", "/"):
                return True
            values |= {*op.outputs} if op.step.name in REARRANGING else set()
    return False

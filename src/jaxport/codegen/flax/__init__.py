"""Structured source for Flax NNX."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxport.codegen.flax.functions import FUNCTIONS
from jaxport.codegen.flax.layers import DEFINITIONS, LAYERS, accepts
from jaxport.codegen.python.texts import Copied
from jaxport.codegen.writing.dialect import Dialect, SequenceForm, listed
from jaxport.codegen.writing.literals import call

__all__ = ["NNX"]


def _loading(model: str, is_random: bool, trained: Sequence[str] | None) -> str:
    """Return the source of `load`; the keys of random numbers are not weights, and begin with a seed."""
    weights = "nnx.state(model, nnx.Not(nnx.RngState))" if is_random else "nnx.state(model)"
    seeded = "\n    nnx.reseed(model, default=0)" if is_random else ""
    made = f"{model}(rngs=nnx.Rngs(0))"
    made = made if trained is None else f"frozen({made})"
    return Copied("jaxport.codegen.flax").loading(trained, model=model, weights=weights, seeded=seeded, made=made)


_RESERVED = "train eval sow perturb set_attributes iter_modules iter_children init rngs"


def _value(weight: ast.expr) -> ast.expr:
    return ast.Subscript(weight, ast.Constant(...), ast.Load())


NNX = Dialect(
    name="nnx",
    layers=LAYERS,
    accepts=accepts,
    functions=FUNCTIONS,
    base="nnx.Module",
    imports=("from flax import nnx",),
    signature=("rngs", "nnx.Rngs"),
    sequence=lambda modules: call("nnx.List", modules),
    sequential={
        "": SequenceForm(lambda elements: call("Sequential", listed(elements)), ()),
        "layers": SequenceForm(lambda elements: call("nnx.Sequential", *elements), ("layers",)),
    },
    parameter=lambda array: call("nnx.Param", array),
    table=lambda array: call("Table", array),
    random=lambda *sizes: ast.Call(call("nnx.initializers.lecun_normal"), [call("rngs.params"), *sizes], []),
    value=_value,
    frozen=_value,
    declared=False,
    definitions=DEFINITIONS,
    loading=_loading,
    reserved=frozenset(_RESERVED.split()),
    attends="attend",
)
"""Flax's NNX."""

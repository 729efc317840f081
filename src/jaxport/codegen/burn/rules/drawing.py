"""Random values, which Burn draws: of the same distribution, and others than JAX's.

Burn has no keys. `without_keys` takes them from the steps, so that what makes keys computes nothing that is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.registry import PRIMITIVES, call
from jaxport.codegen.burn.rules.shapes import added_axes
from jaxport.codegen.burn.values import NotPrintable, TypedValue, rank_of, tensor
from jaxport.codegen.rewriting.steps import with_nested
from jaxport.codegen.rust.tree import Binary, RustExpression, Unary, method, path_call
from jaxport.importer.traced.recorded_program import RecordedProgram
from jaxport.importer.values.dtypes import canonical
from jaxport.importer.values.host import Dim
from jaxport.importer.values.recording import Step

DRAWN = frozenset({"random.normal", "random.uniform", "random.bernoulli", "random.categorical"})
"""Functions whose first argument is a key."""


def draws(recorded: RecordedProgram) -> bool:
    """Whether a program draws random values."""
    return any(step.name in DRAWN for step in with_nested(recorded.steps))


def without_keys(recorded: RecordedProgram) -> RecordedProgram:
    """Return a program whose steps draw without a key, but for those of dropout, which is a layer."""

    def changed(step: Step) -> Step:
        is_dropout = getattr(step.node, "op_type", "") == "Dropout"
        return replace(step, args=step.args[1:]) if step.name in DRAWN and not is_dropout else step

    return replace(recorded, steps=[*map(changed, recorded.steps)])


def _drawn(body: RustBody, shape: Sequence[Dim], dtype: np.dtype, distribution: str, *options: float) -> RustExpression:
    numbers = [body.literal(option, np.dtype("float32")) for option in options]
    made = path_call(f"Distribution::{distribution}", *numbers)
    return path_call(f"Tensor::<{rank_of(shape)}>::random", body.shape(shape), made, body.options(dtype))


@call("random.normal")
def normal(body: RustBody, step: Step, shape: Sequence[Dim], dtype: DTypeLike = np.float32) -> TypedValue:
    own = canonical(np.dtype(dtype))
    return tensor(_drawn(body, shape, own, "Normal", 0.0, 1.0), shape, own)


@call("random.uniform")
def uniform(
    body: RustBody, step: Step, shape: Sequence[Dim], dtype: DTypeLike = np.float32, minval: float = 0.0,
    maxval: float = 1.0
) -> TypedValue:  # fmt: skip
    own = canonical(np.dtype(dtype))
    return tensor(_drawn(body, shape, own, "Uniform", minval, maxval), shape, own)


@call("random.bernoulli")
def bernoulli(body: RustBody, step: Step, p: TypedValue, shape: Sequence[Dim] | None = None) -> TypedValue:
    """A number from 0 to 1 is below `p`, with the probability `p`."""
    whole = step.outputs.shape
    if p.kind != "Float" or len(p.shape) not in (0, len(whole)):
        raise NotPrintable("a Bernoulli trial of other probabilities", "pass its result as an input")
    raised = p if p.shape else body.reshaped(p, (1,) * len(whole))
    node = method(_drawn(body, whole, p.dtype, "Uniform", 0.0, 1.0), "lower", body.compact(raised))
    return tensor(node, whole, np.dtype(bool))


@call("random.categorical")
def categorical(
    body: RustBody, step: Step, logits: TypedValue, axis: int = -1, shape: Sequence[Dim] | None = None
) -> TypedValue:
    """The greatest of logits with noise of Gumbel's distribution."""
    rank, whole = len(logits.shape), step.outputs.shape
    if logits.kind != "Float" or axis % rank != rank - 1:
        raise NotPrintable("random categories of another axis", "pass them as an input")
    sizes = (*whole, logits.shape[-1])
    drawn = _drawn(body, sizes, logits.dtype, "Uniform", 0.0, 1.0)
    opposite = method(Unary("-", method(drawn, "log")), "log")
    raised = added_axes(body.tensor(logits), [*range(len(sizes) - rank)], len(sizes))
    noisy = tensor(Binary(raised, "-", opposite), sizes, logits.dtype)
    return PRIMITIVES["argmax"](body, noisy, outs=[step.outputs], axes=(len(whole),), index_dtype=step.outputs.dtype)

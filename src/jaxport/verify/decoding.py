"""Inputs of a decoder's step that mean something: masks of padding before the text, and sizes that its runtime
takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from jaxport.export.generation import decoders
from jaxport.export.ports import Port
from jaxport.graph.fusions.caches import is_cached_attention
from jaxport.importer.traced.assumptions import Assumptions
from jaxport.jaxprs import Array, dims

MASK, POSITIONS = "attention_mask", "position_ids"


def is_counted(model: ir.Model) -> bool:
    """Whether a model is a step of a decoder whose attention counts the rows of its cache."""
    is_step = decoders.is_step(value.name for value in model.graph.inputs)
    return is_step and any(map(is_cached_attention, model.graph))


def sizes_of_step(model: ir.Model) -> Assumptions:
    """Return what the sizes of a decoder's step have in common, by the names that its callers use: files do not say
    it.
    """
    if not is_counted(model):
        return Assumptions()
    named = {dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)}
    ordered = itertools.pairwise(
        name for name in (decoders.LONGEST, decoders.TOTAL, decoders.SEQUENCE) if name in named
    )
    grows = {decoders.PAST, decoders.TOTAL, decoders.SEQUENCE} <= named
    return Assumptions(
        tuple(f"{longer} >= {shorter}" for longer, shorter in ordered),
        sizes={decoders.PAST: f"{decoders.TOTAL} - {decoders.SEQUENCE}"} if grows else {},
    )


def settled(sizes: Iterable[Mapping[str, int]]) -> list[dict[str, int]]:
    """Return sizes of runs as a runtime takes them: several new tokens after others need a batch of one sequence.

    >>> settled([{"batch_size": 2, "sequence_length": 3, "total_sequence_length": 7}] * 2)[1]["batch_size"]
    1
    """
    runs = []
    for number, chosen in enumerate(sizes):
        batch, new = chosen.get(decoders.BATCH, 1), chosen.get(decoders.SEQUENCE, 1)
        total = chosen.get(decoders.TOTAL, chosen.get(decoders.NEXT, 1) - 1 + new)
        several = batch > 1 and new > 1 and total > new
        single = {decoders.BATCH if number % 2 else decoders.SEQUENCE: 1} if several else {}
        runs.append({**chosen, **single})
    return runs


def sampled(port: Port, sizes: Mapping[str, int]) -> Array | None:
    """Return a mask of the tokens after some padding, or their positions; None for another input.

    The padding of a sequence ends before the new tokens: what a model computes at padding has no meaning.
    """
    if port.name not in (MASK, POSITIONS) or len(port.shape) != 2:
        return None
    batch, length = (dims.evaluate(dim, sizes) for dim in port.shape)
    new = sizes.get(decoders.SEQUENCE, length)
    total = sizes.get(decoders.TOTAL, length)
    padding = (np.arange(batch) * (total - new) // max(batch, 1))[:, None]
    if port.name == MASK:
        return (np.arange(length) >= padding).astype(port.dtype)
    return np.maximum(np.arange(total - length, total) - padding, 0).astype(port.dtype)

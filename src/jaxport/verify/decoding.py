"""Inputs of a decoder's step that mean something: masks of padding before the text, and sizes that its runtime takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from jaxport.export.generation import decoders
from jaxport.export.signature.ports import Port
from jaxport.graph.fusions.caches import is_cached_attention
from jaxport.jaxprs import Array, dims

MASK, POSITIONS = "attention_mask", "position_ids"


def is_counted(model: ir.Model) -> bool:
    """Whether a model is a step of a decoder whose attention counts the rows of its cache."""
    is_step = decoders.is_step(value.name for value in model.graph.inputs)
    return is_step and any(map(is_cached_attention, model.graph))


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

"""Attention to key-value caches, in the operator that onnxruntime-genai's own models have."""

from __future__ import annotations

import onnx_ir as ir

from jaxport.export.generation import decoders
from jaxport.graph.affine import Known
from jaxport.graph.fusions import caches
from jaxport.sizes.sums import size_sum


def cached_attention(model: ir.Model) -> str:
    """Replace attention to a key-value cache by GroupQueryAttention, which writes the new rows, too.

    In a step of a decoder, as `jaxport.decoder_inputs` declares its inputs, padding, static caches and any batch are
    recognised. In another graph the replacement computes the same for all inputs, or there is none.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    if not decoders.is_step(inputs):
        return caches.cached_attention(model, caches.Terms(Known.of(graph)))
    bounds = [size_sum(longer) - size_sum(shorter) for longer, shorter in decoders.BOUNDS]
    return caches.cached_attention(
        model,
        caches.Terms(
            Known.of(graph, bounds),
            is_step=True,
            positions=inputs.get("position_ids"),
            total=size_sum(decoders.TOTAL) if "attention_mask" in inputs else None,
        ),
    )

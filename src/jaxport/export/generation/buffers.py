"""Static caches: one buffer for what a step gets and what it returns.

The operator that attends to a cache leaves the rows behind the last one as they are only if both share their memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from jaxport.graph.editing import dims_of
from jaxport.graph.fusions.caches import PAST, is_cached_attention

SHARED = "jaxport.shared_buffers"
"""The key of the metadata of a model: a line for each output, with the input whose memory it has behind a tab."""


def record(model: ir.Model) -> None:
    """Write into the metadata of a finished model which outputs are static caches."""
    pairs = [
        f"{present.name}\t{past.name}"
        for node in model.graph
        if is_cached_attention(node)
        for past, present in zip(node.inputs[PAST : PAST + 2], node.outputs[1:3], strict=True)
        if past is not None and present.is_graph_output() and dims_of(past) == dims_of(present)
    ]
    if pairs:
        model.metadata_props[SHARED] = "\n".join(pairs)


def shared(metadata: Mapping[str, str], names: tuple[list[str], list[str]]) -> dict[str, str]:
    """Return the outputs that share the memory of inputs, and these, from the metadata of a model.

    Args:
      metadata: the metadata.
      names: the names of the model's inputs and outputs; pairs of others are left out.
    """
    pairs = [line.split("\t") for line in metadata.get(SHARED, "").splitlines()]
    inputs, outputs = names
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in outputs and pair[1] in inputs}

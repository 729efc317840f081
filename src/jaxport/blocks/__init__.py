"""Call boundaries in jaxprs: mark while tracing, then group."""

from __future__ import annotations

from jaxport.blocks.block import Block, FrozenMapping, block_p
from jaxport.blocks.marking.boundary import boundary
from jaxport.blocks.marking.recorder import Boundary, Recorder
from jaxport.blocks.marking.window import activation, comparing_sizes, current_recorder, loaded_frameworks, target_of
from jaxport.blocks.tracing import Traced, TracedWeight, trace
from jaxport.blocks.ungrouping import ungroup

__all__ = [
    "Block",
    "Boundary",
    "FrozenMapping",
    "Recorder",
    "Traced",
    "TracedWeight",
    "activation",
    "block_p",
    "boundary",
    "comparing_sizes",
    "current_recorder",
    "loaded_frameworks",
    "target_of",
    "trace",
    "ungroup",
]

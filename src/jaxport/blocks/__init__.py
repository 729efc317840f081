"""Call boundaries in jaxprs: mark while tracing, then group."""

from __future__ import annotations

from jaxport.blocks.block import Block, FrozenMapping, block_p
from jaxport.blocks.boundary import boundary
from jaxport.blocks.tracing import Traced, Weight, trace
from jaxport.blocks.ungrouping import ungroup
from jaxport.blocks.window import activation, target_of

__all__ = [
    "Block",
    "FrozenMapping",
    "Traced",
    "Weight",
    "activation",
    "block_p",
    "boundary",
    "target_of",
    "trace",
    "ungroup",
]

"""The operators, one file per family. Importing a family registers its functions."""

from jaxport.importer.ops import (
    casting,
    constants,
    control_flow,
    convolution,
    elementwise,
    gathering,
    linear_algebra,
    pooling,
    reductions,
    sequences,
    shapes,
)

__all__ = [
    "casting",
    "constants",
    "control_flow",
    "convolution",
    "elementwise",
    "gathering",
    "linear_algebra",
    "pooling",
    "reductions",
    "sequences",
    "shapes",
]

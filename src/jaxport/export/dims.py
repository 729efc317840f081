"""Re-export `jaxport.jaxprs.dims` for the exporter's files."""

from __future__ import annotations

from jaxport.jaxprs.dims import (
    Dim,
    all_static,
    evaluate,
    is_static,
    known,
    label,
    same,
    shapes_differ,
    solve_linear,
    surely_differ,
    symbols,
)

__all__ = [
    "Dim",
    "all_static",
    "evaluate",
    "is_static",
    "known",
    "label",
    "same",
    "shapes_differ",
    "solve_linear",
    "surely_differ",
    "symbols",
]

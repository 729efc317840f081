"""Symbolic dimensions, as the exporter's files know them: see `jaxport.blocks.dims`."""

from __future__ import annotations

from jaxport.blocks.dims import (
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

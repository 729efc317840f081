"""The definitions, one file per family. Importing this package registers them."""

from jaxport.stablehlo.ops import arithmetic, calls, chlo, contractions, control, indexing, refused, shapes, windows

__all__ = ["arithmetic", "calls", "chlo", "contractions", "control", "indexing", "refused", "shapes", "windows"]

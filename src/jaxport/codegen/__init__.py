"""Recorded programs as source code."""

from jaxport.codegen.source import Source, to_source

__all__ = ["Source", "to_source"]

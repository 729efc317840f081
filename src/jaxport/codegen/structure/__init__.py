"""Recorded programs as trees of modules: one pass per file."""

from jaxport.codegen.structure.build import build

__all__ = ["build"]

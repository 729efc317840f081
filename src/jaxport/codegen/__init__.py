"""Recorded programs as source code."""

from jaxport.codegen.modules import ModuleSource
from jaxport.codegen.printing import FRAMEWORKS, printed
from jaxport.codegen.source import Source, to_source

__all__ = ["FRAMEWORKS", "ModuleSource", "Source", "printed", "to_source"]

"""ONNX to JAX: `from_onnx`, the program it returns, and `op` to register custom operators."""

from jaxport.importer import ops as _ops  # registers the operators
from jaxport.importer.program import Program, from_onnx
from jaxport.importer.registry import Host, OutputCount, RandomKey, ShapeOnly, op

__all__ = ["Host", "OutputCount", "Program", "RandomKey", "ShapeOnly", "from_onnx", "op"]
del _ops

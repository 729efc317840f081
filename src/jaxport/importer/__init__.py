"""ONNX to JAX: `from_onnx`, the program it returns, and `op` to register custom operators."""

from jaxport.importer import ops as _ops  # registers the operators
from jaxport.importer.program import Program, from_onnx
from jaxport.importer.resolving.registry import Host, OutputCount, RandomKey, ShapeOnly, op
from jaxport.importer.values import namespaces

__all__ = ["Host", "OutputCount", "Program", "RandomKey", "ShapeOnly", "from_onnx", "namespaces", "op"]
del _ops

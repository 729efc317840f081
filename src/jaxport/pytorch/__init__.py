"""`from_torch`: modules of PyTorch as programs. Nothing else in the package imports PyTorch."""

from jaxport.pytorch.importing import from_torch, tensor_of

__all__ = ["from_torch", "tensor_of"]

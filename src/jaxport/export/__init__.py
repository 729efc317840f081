"""JAX to ONNX: trace, walk, run graph passes, save."""

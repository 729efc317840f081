"""JAX to ONNX: trace, walk, pass over the graph, save."""

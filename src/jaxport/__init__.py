"""jaxport: the bridge between JAX and ONNX."""

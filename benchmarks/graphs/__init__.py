"""The same architectures in JAX and in PyTorch, exported by `jaxport` and by `torch.onnx`: see `benchmarks.bench_graphs`."""

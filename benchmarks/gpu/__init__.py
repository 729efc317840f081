"""What `benchmarks.bench_gpu` measures: models of PyTorch, the same in Flax NNX written by hand, and the ways between them."""

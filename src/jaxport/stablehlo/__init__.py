"""StableHLO as JAX functions: compiled artifacts are read, and their operations evaluated on JAX values."""

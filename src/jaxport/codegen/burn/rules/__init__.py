"""How recorded calls and JAX's primitives print in Rust: one file per family."""

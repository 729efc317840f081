"""What the package knows of JAX's own programs and primitives, beyond JAX's public names."""

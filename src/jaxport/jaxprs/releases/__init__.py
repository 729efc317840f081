"""What differs between releases of JAX, and the names that it keeps private."""

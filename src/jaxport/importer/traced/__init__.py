"""Programs recorded on inputs whose sizes are names."""

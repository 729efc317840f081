"""The models that a callable holds: found, called on a copy, and named."""

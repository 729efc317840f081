"""What operators compute with: known and recorded values, and the namespaces that treat both as JAX's."""

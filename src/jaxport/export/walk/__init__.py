"""From the equations of a jaxpr to nodes, with repeated blocks walked once."""

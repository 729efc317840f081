"""From the equations of a jaxpr to nodes, functions and repeated blocks."""

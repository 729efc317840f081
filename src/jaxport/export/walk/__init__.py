"""From the equations of a jaxpr to nodes: the walker, the lines that they come from, and the rules of other
packages.
"""

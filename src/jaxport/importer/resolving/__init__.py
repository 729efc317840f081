"""From the nodes of a graph to the functions of their operators, and what is known before any of them runs."""

"""What a rule works with: values and their shapes, and `op`, which adds nodes to the graph."""

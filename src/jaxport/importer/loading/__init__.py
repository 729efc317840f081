"""From a file to a graph in memory whose tensors have passed one gate."""

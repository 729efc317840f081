"""Computations that ONNX has an operator for, one family per file: each is a pass that recognises them in a graph."""

"""Values element by element: which element of an operand each one is, or which sum of products of elements."""

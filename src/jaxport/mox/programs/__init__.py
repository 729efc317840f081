"""Traced programs: called, given other types and sizes, and as trees of their blocks."""

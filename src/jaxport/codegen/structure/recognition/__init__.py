"""Operators that are a layer."""

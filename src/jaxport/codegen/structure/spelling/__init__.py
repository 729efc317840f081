"""Operators as a person would have written them."""

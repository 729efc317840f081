"""Recorded programs as trees of modules: one pass per file."""

"""Flags chosen at run time: trace a function for both values of a Python bool, and merge the two programs."""

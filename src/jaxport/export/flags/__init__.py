"""Flags that are chosen at run time: a function traced for both values of a Python bool, as one program."""

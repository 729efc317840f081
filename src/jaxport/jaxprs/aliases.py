"""The types of values that the whole package handles, each under one name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

__all__ = ["Array", "Aval", "Dim", "Effect", "Module", "Parameters", "PyTree", "PythonFunction", "Shape", "TreeDef"]

PyTree = Any
"""What a user's function takes or returns, or holds: arrays in containers, modules, or objects of any other type."""

Module = Any
"""An object of a framework that is called and may hold weights; frameworks share no class for it."""

Array = jax.Array | np.ndarray
"""An array of JAX, a tracer, or an array of NumPy."""

Dim = Any
"""The size of an axis: an `int`, or a symbolic dimension expression of `jax.export`, whose class is not public."""

Shape = tuple[Dim, ...]
"""The sizes of all axes."""

PythonFunction = Callable[..., Any]
"""A function or another callable whose signature is its author's choice."""

Parameters = Mapping[str, Any]
"""The parameters of an equation by name, or the keyword arguments of a call: each has a type of its own."""

Aval = Any
"""The type of a value of a program: a `ShapedArray`, or that of a token, which has neither shape nor dtype."""

Effect = Any
"""An effect of an equation or a body; those on a mutable reference name its variable."""

TreeDef = Any
"""The structure of a pytree: a `jax.tree_util.PyTreeDef`, which type checkers do not take as a type."""

"""The implementation of a primitive as a JAX function: its `impl`, or the function that its lowering is made from."""

from __future__ import annotations

# JAX has no public way to ask how a primitive is lowered.
from jax._src.interpreters.mlir import _lowerings  # noqa: TID251

from jaxport.jaxprs import PythonFunction, PyTree
from jaxport.jaxprs.names import Primitive

__all__ = ["implementations"]


def implementations(primitive: Primitive) -> list[PythonFunction]:
    """Return the candidate implementations of a primitive, to call with its operands and its parameters.

    Whether JAX can trace one of them is only known by trying: many just pass the primitive to the compiler.

    >>> import jax
    >>> from jax.extend.core.primitives import conj_p
    >>> implementations(conj_p)[-1](jax.numpy.ones(()), input_dtype=None)
    Array(1.+0.j, dtype=complex64)
    """
    # From 0.12 on some primitives (`call_hi_primitive`) are replaced before lowering by what `to_lojax` traces.
    candidates = [getattr(primitive, "to_lojax", None), getattr(primitive, "impl", None), _lowered_function(primitive)]
    return [function for function in candidates if callable(function)]


def _lowered_function(primitive: Primitive) -> PythonFunction | None:
    """Return the function passed to `jax.interpreters.mlir.lower_fun`, if a primitive is lowered by one."""
    entry: PyTree = _lowerings.get(primitive)
    lowering = getattr(entry, "rule", entry)
    if not getattr(lowering, "__qualname__", "").startswith("lower_fun."):
        return None
    cells = dict(zip(lowering.__code__.co_freevars, lowering.__closure__, strict=True))
    return cells["fun"].cell_contents

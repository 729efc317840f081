"""What JAX itself knows of its primitives: their implementations, and the defaults of parameters.

JAX keeps the meaning of a call that does not mention a parameter. So if a release adds a parameter to a primitive, its
value for the former meaning is the default of the public function.
"""

from __future__ import annotations

import functools
import inspect

from jax import lax

# JAX has no public way to ask how a primitive is lowered.
from jax._src.interpreters.mlir import _lowerings  # noqa: TID251

from jaxport.jaxprs import Parameters, PythonFunction, PyTree
from jaxport.jaxprs.names import Primitive

__all__ = ["changes_nothing", "implementations"]


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


def changes_nothing(primitive: str, parameter: str, value: PyTree) -> bool:
    """Whether a parameter has the value that it has unless someone asks for another: None, or the default.

    >>> changes_nothing("sort", "is_stable", True), changes_nothing("cumsum", "reverse", True)
    (True, False)
    """
    if value is None:
        return True
    defaults = _defaults(primitive)
    if parameter not in defaults:
        return False
    default = defaults[parameter]
    return value is default or (type(value) is type(default) and bool(value == default))


@functools.cache
def _defaults(primitive: str) -> Parameters:
    """Return the defaults of the public function of a primitive."""
    name = primitive.replace("-", "_")
    function = getattr(lax, name, None) or getattr(lax.linalg, name, None)
    try:
        parameters = inspect.signature(function).parameters.values() if callable(function) else ()
    except ValueError:  # a function without a signature that Python can read
        return {}
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

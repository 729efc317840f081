"""Find parameters of primitives that have no effect, from JAX's own functions.

JAX keeps the meaning of a call that does not mention a parameter. So if a release adds a parameter to a primitive, its
value for the former meaning is the default of the public function.
"""

from __future__ import annotations

import functools
import inspect

from jax import lax

from jaxport.jaxprs import Parameters, PyTree

__all__ = ["changes_nothing"]


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

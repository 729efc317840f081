"""What JAX knows of its own primitives, and the rules that it is given for ours, in the form of the release."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

# JAX has no public way to ask how a primitive is lowered.
from jax._src.interpreters.mlir import _lowerings  # noqa: TID251

from jaxport.jaxprs.aliases import Parameters, PythonFunction
from jaxport.jaxprs.releases.names import JaxprEqn, Primitive, ad, batching, mlir, partial_eval
from jaxport.jaxprs.releases.versions import release

__all__ = [
    "LivenessRule",
    "ad",
    "batching",
    "changes_nothing",
    "dce_jaxpr",
    "implementations",
    "liveness_rule",
    "mlir",
    "partial_eval_rules",
]

LivenessRule = Callable[[Sequence[bool], JaxprEqn], tuple[list[bool], JaxprEqn | None]]
"""From the used results to the used operands and the remaining equation; None if none remains."""

dce_jaxpr = partial_eval.dce_jaxpr
#: Partial evaluation of a primitive of whose operands some are known, and others, as tangents, are not.
partial_eval_rules: dict[Primitive, PythonFunction] = partial_eval.custom_partial_eval_rules


def liveness_rule(primitive: Primitive) -> Callable[[LivenessRule], LivenessRule]:
    """Register dead-code elimination for the equations of a primitive whose operands are values."""

    def register(function: LivenessRule) -> LivenessRule:
        rules: dict[Primitive, Any] = partial_eval.dce_rules
        # From 0.12 on the second argument tells which operands are read later; it only matters for mutable ones.
        rules[primitive] = function if release < (0, 12) else lambda used, _, equation: function(used, equation)
        return function

    return register


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
    entry: Any = _lowerings.get(primitive)
    lowering = getattr(entry, "rule", entry)
    if not getattr(lowering, "__qualname__", "").startswith("lower_fun."):
        return None
    cells = dict(zip(lowering.__code__.co_freevars, lowering.__closure__, strict=True))
    return cells["fun"].cell_contents


def changes_nothing(primitive: str, parameter: str, value: object) -> bool:
    """Whether a parameter has the value that it has unless someone asks for another: None, or the default.

    JAX keeps the meaning of a call that does not mention a parameter. So if a release adds a parameter to a primitive,
    its value for the former meaning is the default of the public function.

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

"""Replace PRNG keys by their data: an array of keys becomes a uint32 array with one more axis at the end.

Only `jax.random`'s own primitives look into a key; they stay, with a new parameter `impl` that tells the
implementation, which their operand no longer does. Primitives that hold a jaxpr are rewritten inside. All others only
move keys, which is the same as moving their words one by one: `vmap` over the new axis does that for any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from jaxport.errors import ExportError
from jaxport.export.ports import is_key, key_implementation, stored
from jaxport.jaxprs import Array, ClosedJaxpr, JaxprEqn, PythonFunction
from jaxport.jaxprs.rewrite import Atoms, VariableRewriting, call_of, traced
from jaxport.jaxprs.walk import bodies

#: Primitives of `jax.random`: each has a rule that takes the words of the keys.
RANDOM = frozenset(
    f"random_{name}" for name in ("bits", "clone", "fold_in", "gamma", "seed", "split", "unwrap", "wrap")
)
#: Keys are equal if all of their words are.
COMPARISONS: Mapping[str, PythonFunction] = {"eq": jnp.all, "ne": jnp.any}


def without_keys(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program on the words of its keys; the same object if it has no keys.

    >>> from jax import random
    >>> print(without_keys(jax.make_jaxpr(lambda key: random.split(key)[0])(random.key(0))).in_avals)
    [ShapedArray(uint32[2])]
    """
    return _OfKeys().closed(closed)


class _OfKeys(VariableRewriting):
    def avals(self, aval: object) -> Sequence[ShapedArray] | None:
        return [_words_aval(aval)] if _is_keys(aval) else None

    def values(self, value: Array) -> Sequence[Array]:
        return [stored(value) if is_key(getattr(value, "dtype", np.float32)) else value]

    def changed(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:
        invars, outvars = atoms(equation.invars), atoms(equation.outvars)
        if equation.primitive.name in RANDOM:
            operand: Any = equation.invars[0]
            if _is_keys(operand.aval):
                implementation = key_implementation(operand.aval.dtype)
                equation = equation.replace(params={**equation.params, "impl": implementation})
        elif not bodies(equation.params):  # others pass keys on, or do not touch them
            return call_of(_word_by_word(equation), invars, outvars, equation)
        return equation.replace(invars=invars, outvars=outvars)


def _is_keys(aval: object) -> TypeGuard[ShapedArray]:
    return isinstance(aval, ShapedArray) and is_key(aval.dtype)


def _words_aval(aval: ShapedArray) -> ShapedArray:
    return ShapedArray((*aval.shape, *key_implementation(aval.dtype).key_shape), np.dtype(np.uint32))


def _word_by_word(equation: JaxprEqn) -> ClosedJaxpr:
    """Return the definition of a primitive, applied to each word of its keys."""
    primitive = equation.primitive
    gives_keys = any(_is_keys(atom.aval) for atom in equation.outvars)
    if not gives_keys and primitive.name not in COMPARISONS:
        raise ExportError(
            f"`{primitive.name}` is not supported on PRNG keys",
            instead="apply it to `jax.random.key_data` of the keys",
        )

    def on_words(*operands: Array) -> Any:
        results = jax.vmap(lambda *xs: primitive.bind(*xs, **equation.params), axes, -1)(*operands)
        return results if gives_keys else COMPARISONS[primitive.name](results, -1)

    axes = [-1 if _is_keys(atom.aval) else None for atom in equation.invars]
    operands = [_words_aval(atom.aval) if _is_keys(atom.aval) else atom.aval for atom in equation.invars]
    return traced(on_words, operands)

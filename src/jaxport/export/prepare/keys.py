"""PRNG keys become what they are made of: an array of keys, a uint32 array with one more axis at the end.

Only `jax.random`'s own primitives look into a key; they stay, and learn from a new parameter `impl` what their operand
no longer says. Those that hold a jaxpr are rewritten inside. All other primitives only move keys about, which is the
same as moving their words, one after the other: `vmap` over the new axis says how, for any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jaxport.errors import ExportError
from jaxport.export.ports import is_key, key_implementation, stored

#: Primitives of `jax.random`: each has a rule that takes the words of the keys.
RANDOM = frozenset(
    f"random_{name}" for name in ("bits", "clone", "fold_in", "gamma", "seed", "split", "unwrap", "wrap")
)
#: Keys are equal where all of their words are.
COMPARISONS: Mapping[str, Callable[..., Any]] = {"eq": jnp.all, "ne": jnp.any}


def without_keys(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program on the words of its keys; the same object where it has no keys.

    >>> from jax import random
    >>> print(without_keys(jax.make_jaxpr(lambda key: random.split(key)[0])(random.key(0))).in_avals)
    [ShapedArray(uint32[2])]
    """
    return _Rewriting().closed(closed)


class _Rewriting:
    """One rewriting. A jaxpr that several equations share is rewritten once, and shared again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Jaxpr, Jaxpr]] = {}

    def closed(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        jaxpr = self.jaxpr(closed.jaxpr)
        return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, [_words(c) for c in closed.consts])

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, self._rewritten(jaxpr)
        return self._known[id(jaxpr)][1]

    def _rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        renamed: dict[Var, Var] = {}

        def words(atoms: Iterable[Any]) -> list[Any]:
            return [_renamed(atom, renamed) if _is_keys(atom) else atom for atom in atoms]

        constvars, invars = words(jaxpr.constvars), words(jaxpr.invars)
        equations = [self.equation(equation, words) for equation in jaxpr.eqns]
        if not renamed and all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
            return jaxpr
        return jaxpr.replace(constvars=constvars, invars=invars, eqns=equations, outvars=words(jaxpr.outvars))

    def equation(self, equation: JaxprEqn, words: Callable[[Iterable[Any]], list[Any]]) -> JaxprEqn:
        params = {name: self._replaced(value) for name, value in equation.params.items()}
        if any(params[name] is not value for name, value in equation.params.items()):
            new = equation.replace(params=params)
        elif not any(map(_is_keys, (*equation.invars, *equation.outvars))):
            return equation
        elif equation.primitive.name in RANDOM:
            operand: Any = equation.invars[0]
            implementation = {"impl": key_implementation(operand.aval.dtype)} if _is_keys(operand) else {}
            new = equation.replace(params={**params, **implementation})
        elif any(_holds_jaxpr(value) for value in params.values()):
            new = equation  # it passes keys on, or leaves them alone
        else:
            new = _word_by_word(equation)
        return new.replace(invars=words(equation.invars), outvars=words(equation.outvars))

    def _replaced(self, value: Any) -> Any:
        """A parameter with the jaxprs in it rewritten; the same object where that changes nothing."""
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self.jaxpr(value)
        if not _holds_jaxpr(value):
            return value
        items = [self._replaced(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _is_keys(atom: Any) -> bool:
    return isinstance(atom.aval, ShapedArray) and is_key(atom.aval.dtype)


def _holds_jaxpr(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_jaxpr, value))
    return isinstance(value, ClosedJaxpr | Jaxpr)


def _words(value: Any) -> Any:
    return stored(value) if is_key(getattr(value, "dtype", np.float32)) else value


def _words_aval(aval: Any) -> ShapedArray:
    return ShapedArray((*aval.shape, *key_implementation(aval.dtype).key_shape), np.dtype(np.uint32))


def _renamed(atom: Any, renamed: dict[Var, Var]) -> Any:
    if isinstance(atom, Literal):
        return Literal(_words(atom.val), _words_aval(atom.aval))
    if atom not in renamed:
        renamed[atom] = Var(_words_aval(atom.aval))
    return renamed[atom]


def _word_by_word(equation: JaxprEqn) -> JaxprEqn:
    """A call of what the primitive does, for each word of its keys."""
    primitive = equation.primitive
    gives_keys = any(map(_is_keys, equation.outvars))
    if not gives_keys and primitive.name not in COMPARISONS:
        raise ExportError(
            f"`{primitive.name}` on PRNG keys has no meaning that is known here",
            instead="apply it to `jax.random.key_data` of the keys",
        )

    def on_words(*operands: Any) -> Any:
        results = jax.vmap(lambda *xs: primitive.bind(*xs, **equation.params), axes, -1)(*operands)
        return results if gives_keys else COMPARISONS[primitive.name](results, -1)

    on_words.__name__ = primitive.name
    axes = [-1 if _is_keys(atom) else None for atom in equation.invars]
    avals: list[Any] = [_words_aval(v.aval) if _is_keys(v) else v.aval for v in equation.invars]
    traced = jax.make_jaxpr(jax.jit(on_words))(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    (call,) = traced.jaxpr.eqns
    return call.replace(source_info=equation.source_info)

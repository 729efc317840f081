"""Whether two programs compute the same: equal up to the names of their variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.jaxprs import aval_of, dims
from jaxport.jaxprs.aliases import Aval, TreeDef
from jaxport.jaxprs.releases import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal

#: Calls with custom derivatives: only their bodies matter.
_WITH_DERIVATIVES = frozenset(("custom_jvp_call", "custom_vjp_call"))


def misfit(wanted: TreeDef, given: TreeDef) -> str:
    """Return how the arguments of a call differ from those that a function takes.

    Args:
      wanted, given: the structures of the positional arguments, or of these and the keyword arguments.

    >>> tree = jax.tree.structure
    >>> misfit(tree(((1,), {})), tree(((1, 2), {"scale": 3})))
    'it takes 1 argument by position, and 2 were given; `scale` is not one of its arguments'
    >>> misfit(tree((({"a": 1},), {})), tree((({"b": 1},), {})))
    "argument 0 has no `['a']`; argument 0 has `['b']`, which is not taken"
    """
    (taken, keywords), (passed, named) = map(_calls, (wanted, given))
    said = []
    if len(taken) != len(passed):
        noun = "argument" if len(taken) == 1 else "arguments"
        said.append(
            f"it takes {len(taken)} {noun} by position, and {len(passed)} {'was' if len(passed) == 1 else 'were'} given"
        )
    said += [f"`{name}` is missing" for name in keywords if name not in named]
    said += [f"`{name}` is not one of its arguments" for name in named if name not in keywords]
    if said:
        return "; ".join(said)
    pairs = [*enumerate(zip(taken, passed, strict=True)), *((name, (keywords[name], named[name])) for name in keywords)]
    for place, (one, other) in pairs:
        if one == other:
            continue
        have, got = ([jax.tree_util.keystr(path) for path, _ in _leaves(tree)] for tree in (one, other))
        said += [
            f"argument {place} has no `{path}`" if path else f"argument {place} is not an array"
            for path in have
            if path not in got
        ]
        said += [f"argument {place} has `{path}`, which is not taken" for path in got if path and path not in have]
        said += (
            [f"argument {place} is another kind of container: {one} is taken, {other} was given"] if have == got else []
        )
    return "; ".join(said)


def _calls(tree: TreeDef) -> tuple[list[TreeDef], dict[str, TreeDef]]:
    """Return the structures of the arguments of a call, by position and by name."""
    children = tree.children()
    kinds = [None if (own := child.node_data()) is None else own[0] for child in children]
    if kinds == [tuple, dict]:
        last = children[1].node_data()
        assert last is not None
        return children[0].children(), dict(zip(last[1], children[1].children(), strict=True))
    return children, {}


def _leaves(tree: TreeDef) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))[0]


def same_aval(a: Aval, b: Aval) -> bool:
    """Whether two abstract values have the same dtype and shape."""
    if not (hasattr(a, "shape") and hasattr(b, "shape")):
        return a == b
    return a.dtype == b.dtype and len(a.shape) == len(b.shape) and all(map(dims.same, a.shape, b.shape))


def takes_values(a: Aval, b: Aval) -> bool:
    """Whether a weight of one type may have the values of the other: of its shape, and of its dtype or both floats."""
    floating = all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in (a, b))
    return a.shape == b.shape and (a.dtype == b.dtype or floating)


def same_avals(atoms: Sequence[Atom], others: Sequence[Atom]) -> bool:
    """Whether variables and literals have the same dtypes and shapes, one by one."""
    return len(atoms) == len(others) and all(
        same_aval(aval_of(a), aval_of(b)) for a, b in zip(atoms, others, strict=True)
    )


def same_literal(a: Literal, b: Literal) -> bool:
    """Whether two literals are the same value."""
    return same_aval(aval_of(a), aval_of(b)) and _same_array(a.val, b.val)


def same_computation(one: JaxprEqn, other: JaxprEqn) -> bool:
    """Whether two equations apply the same operation to operands of the same kind."""
    same = same_avals(one.invars, other.invars) and same_avals(one.outvars, other.outvars)
    return same and same_operation(one, other, same_value)


def same_operation(one: JaxprEqn, other: JaxprEqn, same: Callable[[object, object], bool]) -> bool:
    """Whether two equations apply the same operation; `same` compares their parameters."""
    if one.primitive is not other.primitive or one.effects != other.effects:
        return False
    params, others = one.params, other.params
    if one.primitive.name in _WITH_DERIVATIVES:
        bodies = (name for name in {**params, **others} if isinstance(params.get(name), Jaxpr | ClosedJaxpr))
        return all(name in others and same(params[name], others[name]) for name in bodies)
    if params.keys() != others.keys():
        return False
    for name, value in params.items():
        theirs = others[name]
        # A program is compared even with itself: the paths of its blocks may have to differ.
        if (value is not theirs or isinstance(value, Jaxpr | ClosedJaxpr)) and not same(value, theirs):
            return False
    return True


def same_value(a: Any, b: Any) -> bool:
    """Whether two parameters of equations, or arguments that are not arrays, are the same, including the programs in
    them.

    Values of different types are not: 2 and 2.0, or 1 and True.

    >>> one, other = (jax.make_jaxpr(lambda x: x + 1)(2.0) for _ in range(2))
    >>> same_value({"body": one}, {"body": other}), same_value(one, jax.make_jaxpr(lambda x: x + 2)(2.0))
    (True, False)
    """
    if a is b:
        return True
    if isinstance(a, ClosedJaxpr) and isinstance(b, ClosedJaxpr):
        # Newer versions of JAX have one class for both, which is its own `jaxpr`.
        return same_value(tuple(a.consts), tuple(b.consts)) and _same_program(a.jaxpr, b.jaxpr)
    if isinstance(a, Jaxpr) and isinstance(b, Jaxpr):
        return _same_program(a, b)
    if isinstance(a, tuple | list) and type(a) is type(b):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray | np.generic | jax.Array) or isinstance(b, np.ndarray | np.generic | jax.Array):
        return _same_array(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, float | complex):
        return _same_array(a, b)  # -0.0 is not 0.0, and NaN is NaN
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return all(same_value(getattr(a, x.name), getattr(b, x.name)) for x in dataclasses.fields(a) if x.compare)
    # Values that are known while JAX traces compare element by element, as arrays do.
    data = getattr(a, "data", None)
    if isinstance(data, np.ndarray):
        return getattr(a, "dtype", None) == getattr(b, "dtype", None) and _same_array(data, b.data)
    equal = a == b
    return isinstance(equal, bool | np.bool_) and bool(equal)


def _same_array(a: object, b: object) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


def _same_program(a: Jaxpr, b: Jaxpr) -> bool:
    if not (same_avals(a.invars, b.invars) and same_avals(a.constvars, b.constvars)):
        return False
    return same_dataflow(a, b, same_computation)


def same_dataflow(a: Jaxpr, b: Jaxpr, same_equation: Callable[[JaxprEqn, JaxprEqn], bool]) -> bool:
    """Whether two programs have the same equations, as `same_equation` tells, which use one another's results alike."""
    counts = [(len(x.eqns), len(x.constvars), len(x.invars), len(x.outvars)) for x in (a, b)]
    if counts[0] != counts[1]:
        return False
    names: dict[Atom, Atom] = dict(zip((*a.constvars, *a.invars), (*b.constvars, *b.invars), strict=True))

    def same(x: Atom, y: Atom) -> bool:
        if isinstance(x, Literal) or isinstance(y, Literal):
            return isinstance(x, Literal) and isinstance(y, Literal) and same_literal(x, y)
        return names.get(x) is y

    for one, other in zip(a.eqns, b.eqns, strict=True):
        if len(one.invars) != len(other.invars) or len(one.outvars) != len(other.outvars):
            return False
        if not all(map(same, one.invars, other.invars)) or not same_equation(one, other):
            return False
        names.update(zip(one.outvars, other.outvars, strict=True))
    return all(map(same, a.outvars, b.outvars))

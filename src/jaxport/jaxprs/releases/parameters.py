"""The parameters of primitives in one form, whatever the release of JAX.

>>> import jax
>>> loop = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, x: (c + x, c), 0.0, x))(jax.numpy.ones(3)).eqns[0]
>>> read = parameters(loop)
>>> read["num_consts"], read["num_carry"], read["length"]
(0, 1, 3)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
from jax import lax

from jaxport.jaxprs.aliases import Parameters
from jaxport.jaxprs.releases.names import ClosedJaxpr, Inline, JaxprEqn, flattree
from jaxport.jaxprs.releases.versions import release

__all__ = ["native", "parameters", "with_parameters"]


def parameters(equation: JaxprEqn) -> Parameters:
    """Return the parameters of an equation in the form that the rest of the package knows."""
    name = equation.primitive.name
    read = _READERS.get(name)
    params = equation.params if read is None else read(equation.params)
    added = _ADDED.get(name)
    if added is None:
        return params
    return {key: value for key, value in params.items() if key not in added or value != added[key]}


def with_parameters(equation: JaxprEqn, changes: Parameters, **replaced: Any) -> JaxprEqn:
    """Return an equation with some parameters changed, in the form of `parameters`; `replaced` goes to `replace`."""
    params = {**parameters(equation), **changes}
    return equation.replace(params=native(equation.primitive.name, params), **replaced)


def native(primitive: str, params: Parameters) -> dict[str, Any]:
    """Return the parameters of a primitive in this release's form, from those in the form of `parameters`."""
    make = _MAKERS.get(primitive)
    made = dict(params) if make is None else make(params)
    for name, value in _ADDED.get(primitive, {}).items():
        if name in _known(primitive):
            made.setdefault(name, value)
        else:
            made.pop(name, None)
    for name in _OPEN.get(primitive, ()):
        body = made.get(name)
        if isinstance(body, ClosedJaxpr) and not body.consts:
            made[name] = body.jaxpr
    return made


# What older releases do without saying so: the value of a parameter that newer ones have. Any order of equal elements is
# what an unstable `top_k` may give.
_ADDED: dict[str, Parameters] = {
    "eig": {"enable_eigvec_derivs": False},
    "mul": {"out_dtype": None},
    "ragged_dot_general": {"out_sharding": None},
    "reduce_max": {"out_sharding": None},
    "reduce_min": {"out_sharding": None},
    "top_k": {"is_stable": True},
    "tridiagonal_solve": {"perturb_singular": False},
}
_PROBES: dict[str, Callable[[jax.Array], Any]] = {
    "eig": lambda x: lax.linalg.eig(x[:, None] * x, compute_left_eigenvectors=False, compute_right_eigenvectors=False),
    "mul": lambda x: lax.mul(x, x),
    "ragged_dot_general": lambda x: lax.ragged_dot(x[None], x[None, :, None], x[:1].astype("int32")),
    "reduce_max": lambda x: lax.reduce_max(x, (0,)),
    "reduce_min": lambda x: lax.reduce_min(x, (0,)),
    "top_k": lambda x: lax.top_k(x, 1),
    "tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(x, x, x, x[:, None]),
}
# The bodies that are open before 0.11, which has one class for both kinds.
_OPEN = {
    "reduce_window": ("jaxpr",),
    "remat2": ("jaxpr",),
    **{
        f"scatter{kind}": ("update_jaxpr",)
        for kind in ("", "-add", "-sub", "-mul", "-min", "-max", "_add", "_sub", "_mul", "_min", "_max")
    },
    "shard_map": ("jaxpr",),
}


@cache
def _known(primitive: str) -> frozenset[str]:
    """Return the names of the parameters that a primitive of `_PROBES` has in this release."""
    equations = jax.make_jaxpr(_PROBES[primitive])(jax.ShapeDtypeStruct((2,), "float32")).eqns
    return frozenset(name for equation in equations for name in equation.params)


_SCAN_ONLY = ("ft_in", "ft_out", "linear", "_split_transpose")


def _scan_read(params: Parameters) -> dict[str, object]:
    """Return the counts of the loop-invariant operands and of the carried ones; the rest are slices.

    `linear` and `_split_transpose` do not affect the values, and are dropped.
    """
    counts = {}
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        counts = {"num_consts": len(consts), "num_carry": len(carry)}
    return {**{name: params[name] for name in params if name not in _SCAN_ONLY}, **counts}


def _scan_made(params: Parameters) -> dict[str, object]:
    params = dict(params)
    body = params["jaxpr"]
    if release < (0, 10):
        params |= {"linear": (False,) * len(body.in_avals), "_split_transpose": False}
    if release < (0, 11):
        return params
    consts, carry = params.pop("num_consts"), params.pop("num_carry")
    slices, stacked = len(body.in_avals) - consts - carry, len(body.out_avals) - carry
    groups = lambda *counts: flattree.pack(tuple(map(flattree.nones, counts)))
    return params | {"ft_in": groups(consts, carry, slices), "ft_out": groups(carry, stacked)}


def _jit_read(params: Parameters) -> dict[str, object]:
    """Return whether JAX inlines the call; hints to the compiler are dropped."""
    return {**params, "inline": params["inline"] in (Inline.JAX_EARLY, Inline.JAX_LATE)}


def _jit_made(params: Parameters) -> dict[str, object]:
    return {**params, "inline": Inline.JAX_LATE if params["inline"] else Inline.AUTO}


def _renamed(old: str, new: str) -> Callable[[Parameters], dict[str, object]]:
    return lambda params: {new if name == old else name: value for name, value in params.items()}


_READERS: dict[str, Callable[[Parameters], Parameters]] = {"scan": _scan_read}
_MAKERS: dict[str, Callable[[Parameters], dict[str, Any]]] = {"scan": _scan_made}
if release >= (0, 11):
    _READERS["jit"], _MAKERS["jit"] = _jit_read, _jit_made
    _READERS["composite"], _MAKERS["composite"] = _renamed("call_jaxpr", "jaxpr"), _renamed("jaxpr", "call_jaxpr")
if release < (0, 10):
    _READERS["shard_map"] = _renamed("manual_axes", "newly_manual_axes")
    _MAKERS["shard_map"] = _renamed("newly_manual_axes", "manual_axes")

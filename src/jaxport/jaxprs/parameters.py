"""The parameters of primitives in one form, whatever form the release gives them.

>>> import jax
>>> loop = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, x: (c + x, c), 0.0, x))(jax.numpy.ones(3)).eqns[0]
>>> read = parameters(loop)
>>> read["num_consts"], read["num_carry"], read["length"]
(0, 1, 3)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxport.jaxprs.names import JaxprEqn, flattree
from jaxport.jaxprs.versions import release

__all__ = ["native", "parameters", "with_parameters"]


def parameters(equation: JaxprEqn) -> Mapping[str, Any]:
    """The parameters of an equation, in the form that the rest of the package knows."""
    return _scan_read(equation.params) if equation.primitive.name == "scan" else equation.params


def with_parameters(equation: JaxprEqn, changes: Mapping[str, Any], **replaced: Any) -> JaxprEqn:
    """An equation with some parameters changed, in the form of `parameters`; `replaced` is passed on to `replace`."""
    params = {**parameters(equation), **changes}
    return equation.replace(params=native(equation.primitive.name, params), **replaced)


def native(primitive: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a primitive of this release takes, from those in the form of `parameters`."""
    return _scan_made(params) if primitive == "scan" else dict(params)


def _scan_read(params: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of the operands that every step sees and of the carried ones; what is left are the slices.

    `linear` says nothing about the values, and is lost.
    """
    counts = {}
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        counts = {"num_consts": len(consts), "num_carry": len(carry)}
    return {**{name: params[name] for name in params if name not in ("ft_in", "ft_out", "linear")}, **counts}


def _scan_made(params: Mapping[str, Any]) -> dict[str, Any]:
    params = dict(params)
    body = params["jaxpr"]
    if release < (0, 10):
        params["linear"] = (False,) * len(body.in_avals)
    if release < (0, 11):
        return params
    consts, carry = params.pop("num_consts"), params.pop("num_carry")
    slices, stacked = len(body.in_avals) - consts - carry, len(body.out_avals) - carry
    groups = lambda *counts: flattree.pack(tuple(map(flattree.nones, counts)))
    return params | {"ft_in": groups(consts, carry, slices), "ft_out": groups(carry, stacked)}

"""Hoist the arrays that a traced function closed over to inputs of the whole program.

JAX keeps such an array where it was first used: as a const of the outermost jaxpr, or of the body of a `jit` within it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax

from jaxport import jaxprs
from jaxport.jaxprs import Array, PyTree
from jaxport.jaxprs.walk import bodies

__all__ = ["hoisted"]

_VariableOf = Callable[[Array], jaxprs.Var]


def hoisted(closed: jaxprs.ClosedJaxpr) -> tuple[jaxprs.Jaxpr, list[Array]]:
    """Return a jaxpr without consts, and the arrays that are its new inputs.

    The arrays are the leading inputs, before those of `closed`. Arrays in bodies of primitives that bind their arity
    elsewhere (`custom_jvp_call`) stay.

    >>> import jax.numpy as jnp
    >>> w = jnp.ones(3)
    >>> jaxpr, arrays = hoisted(jax.make_jaxpr(jax.jit(lambda x: x * w))(w))
    >>> len(jaxpr.invars), [array is w for array in arrays]
    (2, [True])
    """
    hoisting = _Hoisting()
    jaxpr, arrays = hoisting.lifted(closed.jaxpr, closed.consts)
    return jaxpr, arrays


class _Hoisting:
    """Lifts consts body by body: those of a body become new *leading* operands of the equation that calls it."""

    def __init__(self) -> None:
        self._lifted: dict[tuple, tuple[jaxprs.Jaxpr, list[Array]]] = {}
        self._kept: list[object] = []  # so that no id is reused
        self._needs: dict[int, bool] = {}

    def needs(self, jaxpr: jaxprs.Jaxpr) -> bool:
        """Whether there is a const in a body within `jaxpr`."""
        if id(jaxpr) not in self._needs:
            self._kept.append(jaxpr)
            self._needs[id(jaxpr)] = any(
                isinstance(value, jaxprs.ClosedJaxpr) and value.consts
                for equation in jaxpr.eqns
                for item in equation.params.values()
                for value in (item if isinstance(item, tuple | list) else (item,))
            ) or any(self.needs(body) for equation in jaxpr.eqns for body in bodies(equation.params))
        return self._needs[id(jaxpr)]

    def lifted(self, jaxpr: jaxprs.Jaxpr, consts: Sequence[Array]) -> tuple[jaxprs.Jaxpr, list[Array]]:
        """Return `jaxpr` with its consts, and those of its bodies, as leading inputs, and the arrays."""
        key = id(jaxpr), *map(id, consts)
        if key in self._lifted:
            return self._lifted[key]
        self._kept += [jaxpr, *consts]
        # One input per array, however often the program uses it.
        variables: dict[int, jaxprs.Var] = {}
        arrays: list[Array] = []
        alias: dict[jaxprs.Var, jaxprs.Var] = {}
        for variable, const in zip(jaxpr.constvars, consts, strict=True):
            if id(const) in variables:
                alias[variable] = variables[id(const)]
            else:
                variables[id(const)] = variable
                arrays.append(const)

        def variable_of(array: Array) -> jaxprs.Var:
            if id(array) not in variables:
                variables[id(array)] = jaxprs.Var(jax.typeof(array))
                arrays.append(array)
            return variables[id(array)]

        equations = jaxpr.eqns
        if alias or self.needs(jaxpr):
            equations = [self.equation(equation, variable_of, alias) for equation in jaxpr.eqns]
        outvars = [alias.get(a, a) if isinstance(a, jaxprs.Var) else a for a in jaxpr.outvars]
        lifted = jaxprs.Jaxpr(
            (),
            [*(variables[id(array)] for array in arrays), *jaxpr.invars],
            outvars,
            equations,
            jaxpr.effects,
            jaxpr.debug_info._replace(arg_names=None),
        )
        self._lifted[key] = lifted, arrays
        return lifted, arrays

    def equation(self, equation: jaxprs.JaxprEqn, variable_of: _VariableOf, alias: Mapping) -> jaxprs.JaxprEqn:
        """Return the equation with the lifted consts of its bodies as new operands."""
        invars = [alias.get(a, a) if isinstance(a, jaxprs.Var) else a for a in equation.invars]
        equation = equation.replace(invars=invars)
        rule = _RULES.get(equation.primitive.name)
        if rule is None:
            return equation
        return rule(self, equation, variable_of)


def _closed(hoisting: _Hoisting, body: jaxprs.ClosedJaxpr) -> tuple[jaxprs.ClosedJaxpr, list[Array]]:
    if not body.consts and not hoisting.needs(body.jaxpr):
        return body, []
    jaxpr, arrays = hoisting.lifted(body.jaxpr, body.consts)
    return jaxprs.closed(jaxpr, ()), arrays


def _jit(hoisting: _Hoisting, equation: jaxprs.JaxprEqn, variable_of: _VariableOf) -> jaxprs.JaxprEqn:
    body, arrays = _closed(hoisting, equation.params["jaxpr"])
    if not arrays:
        return equation
    unspecified = _unspecified()
    params = {**equation.params, "jaxpr": body}
    for name, value in unspecified.items():
        params[name] = (value,) * len(arrays) + tuple(equation.params[name])
    return equation.replace(params=params, invars=[*map(variable_of, arrays), *equation.invars])


@functools.cache
def _unspecified() -> dict[str, PyTree]:
    """Return the parameters of a `jit` equation for an operand without specifications."""
    params = jax.make_jaxpr(jax.jit(lambda x: x))(0.0).eqns[0].params
    return {name: params[name][0] for name in ("in_shardings", "in_layouts", "donated_invars")}


def _scan(hoisting: _Hoisting, equation: jaxprs.JaxprEqn, variable_of: _VariableOf) -> jaxprs.JaxprEqn:
    body, arrays = _closed(hoisting, equation.params["jaxpr"])
    if not arrays:
        return equation
    consts = jaxprs.parameters(equation)["num_consts"] + len(arrays)
    invars = [*map(variable_of, arrays), *equation.invars]
    return jaxprs.with_parameters(equation, {"jaxpr": body, "num_consts": consts}, invars=invars)


def _while(hoisting: _Hoisting, equation: jaxprs.JaxprEqn, variable_of: _VariableOf) -> jaxprs.JaxprEqn:
    params = equation.params
    cond, of_cond = _closed(hoisting, params["cond_jaxpr"])
    body, of_body = _closed(hoisting, params["body_jaxpr"])
    if not of_cond and not of_body:
        return equation
    split = params["cond_nconsts"]
    return equation.replace(
        params={
            **params,
            "cond_jaxpr": cond,
            "body_jaxpr": body,
            "cond_nconsts": split + len(of_cond),
            "body_nconsts": params["body_nconsts"] + len(of_body),
        },
        invars=[
            *map(variable_of, of_cond), *equation.invars[:split],
            *map(variable_of, of_body), *equation.invars[split:],
        ],
    )  # fmt: skip


def _cond(hoisting: _Hoisting, equation: jaxprs.JaxprEqn, variable_of: _VariableOf) -> jaxprs.JaxprEqn:
    branches = [_closed(hoisting, branch) for branch in equation.params["branches"]]
    total = [array for _, arrays in branches for array in arrays]
    if not total:
        return equation
    # All branches take all operands: each gets those of the others as unused inputs.
    widened = []
    for position, (body, own) in enumerate(branches):
        inputs = list(body.jaxpr.invars)
        added = [
            variable
            for other, (_, arrays) in enumerate(branches)
            for variable in (
                inputs[: len(own)] if other == position else [jaxprs.Var(jax.typeof(array)) for array in arrays]
            )
        ]
        jaxpr = body.jaxpr.replace(
            invars=[*added, *inputs[len(own) :]], debug_info=body.jaxpr.debug_info._replace(arg_names=None)
        )
        widened.append(jaxprs.closed(jaxpr, ()))
    which, *operands = equation.invars
    return equation.replace(
        params={**equation.params, "branches": tuple(widened)}, invars=[which, *map(variable_of, total), *operands]
    )


def _remat(hoisting: _Hoisting, equation: jaxprs.JaxprEqn, variable_of: _VariableOf) -> jaxprs.JaxprEqn:
    jaxpr = equation.params["jaxpr"]
    if not hoisting.needs(jaxpr):
        return equation
    jaxpr, arrays = hoisting.lifted(jaxpr, ())
    return equation.replace(
        params={**equation.params, "jaxpr": jaxpr}, invars=[*map(variable_of, arrays), *equation.invars]
    )


_RULES = {"jit": _jit, "scan": _scan, "while": _while, "cond": _cond, "remat2": _remat, "checkpoint": _remat}

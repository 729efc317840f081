"""Equations that run bodies: where the inputs of a body come from, and how a body gets more inputs and outputs.

This is the only place that knows what `jit`, `scan`, `cond` and the rest do with their operands. A primitive that is
not here runs no body that can be edited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from jaxport.jaxprs.aliases import Aval, Dim, Effect, Parameters, aval_of
from jaxport.jaxprs.releases import (
    Atom,
    ClosedJaxpr,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Var,
    closed,
    named,
    nameless,
    parameters,
    with_parameters,
)
from jaxport.jaxprs.rewrite import traced_equation, zeros
from jaxport.jaxprs.walk import bodies

#: Wrappers that give a body another meaning than its equations have (a rule of differentiation, a name): once the
#: body is another one, the wrapper would be wrong. Their equations take their place.
DISSOLVED = frozenset({"composite", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})

#: Primitives that run their body once, with their operands as its inputs and its outputs as their results.
PLAIN_CALLS = frozenset({"block", "checkpoint", "closed_call", "core_call", "jit", "pjit", "remat2"})
_LOOPS = frozenset({"cond", "scan", "while"})


def runs_bodies(equation: JaxprEqn) -> bool:
    """Whether the bodies in the params of an equation are run as they stand, so that they are part of the program.

    >>> import jax.numpy as jnp
    >>> runs_bodies(jax.make_jaxpr(jax.jit(jnp.sin))(1.0).eqns[0])
    True
    """
    name = equation.primitive.name
    return (name in PLAIN_CALLS or name in _LOOPS or name in DISSOLVED or name == "shard_map") and bool(
        bodies(equation.params)
    )


def body_names(equation: JaxprEqn) -> list[str]:
    """Return a name for each body, in the order of `bodies`: that of the param, with a number if it holds several."""
    names = []
    for name, value in equation.params.items():
        several = isinstance(value, tuple | list)
        for index, item in enumerate(value if several else (value,)):
            if isinstance(item, ClosedJaxpr | Jaxpr):
                names.append(f"{name}.{index}" if several else name.removesuffix("_jaxpr"))
    return names


@dataclass(frozen=True)
class OperandSource:
    """The operand that an input of a body is at first.

    Attributes:
      operand: the position of the operand.
      sliced: whether each step of a scan has a slice of it.
      carried: whether each step of a loop but the first has the result of the step before instead.
    """

    operand: int
    sliced: bool = False
    carried: bool = False


def source_of(equation: JaxprEqn, body: int, position: int) -> OperandSource | None:
    """Return which operand of the equation the input number `position` of its body number `body` is, if it is one."""
    params = parameters(equation)
    match equation.primitive.name:
        case "scan":
            first, stacks = params["num_consts"], params["num_consts"] + params["num_carry"]
            return OperandSource(position, position >= stacks, first <= position < stacks)
        case "while":
            of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
            before, own = (0, of_cond) if body_names(equation)[body] == "cond" else (of_cond, of_body)
            if position < own:
                return OperandSource(before + position)
            return OperandSource(of_cond + of_body + position - own, carried=True)
        case "cond":
            return OperandSource(position + 1)
        case name if name in PLAIN_CALLS or name in DISSOLVED or name == "shard_map":
            return OperandSource(position)
        case _:
            return None


def entered_by(equation: JaxprEqn, operand: int) -> Iterator[tuple[Jaxpr, int, OperandSource]]:
    """Yield the inputs of bodies that an operand of an equation is: the body, the position there, and how it enters."""
    for number, body in enumerate(bodies(equation.params)):
        for position in range(len(body.invars)):
            source = source_of(equation, number, position)
            if source is not None and source.operand == operand:
                yield body, position, source


def stacked(aval: Aval, length: Dim) -> Aval:
    """Return the aval of `length` values of `aval` along a new leading axis."""
    return aval.update(shape=(length, *aval.shape))


@dataclass(frozen=True)
class Widening:
    """The new inputs and outputs of the bodies of an equation.

    Attributes:
      bodies: each with its new inputs behind the old ones, and its new outputs behind the old ones.
      inputs: for each body, a key per new input; equal keys are the same value.
      operands: for each key, the value outside; for a key in `sliced`, the slices of all steps, stacked.
      sliced: the keys whose inputs are a slice per step of the scan.
      outputs: for each body, how many new outputs it has; none by default.
    """

    bodies: Sequence[Jaxpr]
    inputs: Sequence[Sequence[Hashable]]
    operands: Mapping[Any, Atom]
    sliced: Set[Hashable] = frozenset()
    outputs: Sequence[int] = ()

    def new_outputs(self, body: int) -> list[Aval]:
        """Return the avals of the new outputs of a body."""
        count = self.outputs[body] if self.outputs else 0
        outvars = self.bodies[body].outvars
        return [aval_of(atom) for atom in outvars[len(outvars) - count :]]


def takes_inputs(equation: JaxprEqn) -> bool:
    """Whether the bodies of an equation can be given more inputs."""
    return equation.primitive.name in _RULES


def takes_outputs(equation: JaxprEqn) -> bool:
    """Whether the bodies of an equation can be given more outputs: a `shard_map` does not say how these are split."""
    return equation.primitive.name in _RULES and equation.primitive.name != "shard_map"


def widened(equation: JaxprEqn, more: Widening) -> tuple[list[JaxprEqn], list[Var]]:
    """Return the equation with other bodies, after the equations that it needs, and the variables of its new outputs.

    The equation is one that takes more inputs, and outputs if there are new ones.
    """
    before, equation, outputs = _RULES[equation.primitive.name](equation, more)
    outvars = [Var(v.aval) if isinstance(v, DropVar) else v for v in equation.outvars]
    return [*before, equation.replace(outvars=[*outvars, *outputs], effects=_effects(equation, more))], outputs


def _effects(equation: JaxprEqn, more: Widening) -> Set[Effect]:
    """Return the effects that an equation had, and the new ones of its bodies that concern no reference."""
    return equation.effects | {
        effect for body in more.bodies for effect in body.effects if not hasattr(effect, "input")
    }


_Widened = tuple[list[JaxprEqn], JaxprEqn, list[Var]]


def _closed(jaxpr: Jaxpr, old: Jaxpr | ClosedJaxpr) -> Jaxpr | ClosedJaxpr:
    jaxpr = jaxpr.replace(debug_info=nameless(jaxpr))
    return closed(named(jaxpr), old.consts) if isinstance(old, ClosedJaxpr) else jaxpr


def _call(equation: JaxprEqn, more: Widening) -> _Widened:
    (inputs,), (body,) = more.inputs, more.bodies
    outputs = [Var(aval) for aval in more.new_outputs(0)]
    params = {**equation.params}
    name = next(n for n, v in params.items() if isinstance(v, ClosedJaxpr | Jaxpr))
    params[name] = _closed(body, params[name])
    if "in_shardings" in params:
        for key in ("in_shardings", "in_layouts", "donated_invars"):
            params[key] = (*params[key], *jit_parameters()[key] * len(inputs))
        for key in ("out_shardings", "out_layouts"):
            params[key] = (*params[key], *jit_parameters()[key] * len(outputs))
    invars = [*equation.invars, *(more.operands[key] for key in inputs)]
    return [], equation.replace(params=params, invars=invars), outputs


@cache
def jit_parameters() -> Parameters:
    """Return the parameters of a `jit` equation with one operand and one result about which nothing was said."""
    return parameters(traced_equation(jax.jit(lambda x: x), [jax.ShapeDtypeStruct((), "float32")]))


def _scan(equation: JaxprEqn, more: Widening) -> _Widened:
    (inputs,), (body,), params = more.inputs, more.bodies, parameters(equation)
    old, consts = len(equation.invars), params["num_consts"]
    shared = [i for i, key in enumerate(inputs) if key not in more.sliced]
    sliced = [i for i, key in enumerate(inputs) if key in more.sliced]

    def arranged(values: Sequence[Atom], new: Sequence[Atom]) -> list[Atom]:
        return [
            *values[:consts],
            *(new[i] for i in shared),
            *values[consts:],
            *(new[i] for i in sliced),
        ]

    body = body.replace(invars=arranged(body.invars[:old], body.invars[old:]), debug_info=nameless(body))
    outputs = [Var(stacked(aval, params["length"])) for aval in more.new_outputs(0)]
    changes = {"jaxpr": _closed(body, params["jaxpr"]), "num_consts": consts + len(shared)}
    invars = arranged(equation.invars, [more.operands[key] for key in inputs])
    return [], with_parameters(equation, changes, invars=invars), outputs


def _while(equation: JaxprEqn, more: Widening) -> _Widened:
    """Carry new outputs of the body: those of the last step are left, zeros if there was no step."""
    params, names = equation.params, body_names(equation)
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    cond_index, body_index = names.index("cond"), names.index("body")
    cond, body = more.bodies[cond_index], more.bodies[body_index]
    for_cond, for_body = more.inputs[cond_index], more.inputs[body_index]
    avals = more.new_outputs(body_index)
    carried = len(equation.outvars)

    def rearranged(jaxpr: Jaxpr, own: int, new: int) -> Jaxpr:
        old, added = jaxpr.invars[: own + carried], jaxpr.invars[own + carried :]
        invars = [*old[:own], *added[:new], *old[own:], *(Var(aval) for aval in avals)]
        return jaxpr.replace(invars=invars, debug_info=nameless(jaxpr))

    before: list[JaxprEqn] = []
    starts = [zeros(aval, before) for aval in avals]
    new_params = {
        **params,
        "cond_jaxpr": _closed(rearranged(cond, of_cond, len(for_cond)), params["cond_jaxpr"]),
        "body_jaxpr": _closed(rearranged(body, of_body, len(for_body)), params["body_jaxpr"]),
        "cond_nconsts": of_cond + len(for_cond),
        "body_nconsts": of_body + len(for_body),
    }
    invars = [
        *equation.invars[:of_cond],
        *(more.operands[key] for key in for_cond),
        *equation.invars[of_cond : of_cond + of_body],
        *(more.operands[key] for key in for_body),
        *equation.invars[of_cond + of_body :],
        *starts,
    ]
    return before, equation.replace(params=new_params, invars=invars), [Var(aval) for aval in avals]


def _cond(equation: JaxprEqn, more: Widening) -> _Widened:
    """Give all branches all operands; a new output of one is zeros in the others."""
    keys = list(dict.fromkeys(key for inputs in more.inputs for key in inputs))
    operands = len(equation.invars) - 1
    results = len(equation.outvars)
    avals = [more.new_outputs(index) for index in range(len(more.bodies))]
    branches = []
    for index, (body, inputs) in enumerate(zip(more.bodies, more.inputs, strict=True)):
        own = dict(zip(inputs, body.invars[operands:], strict=True))
        invars = [*body.invars[:operands], *(own.get(key) or Var(more.operands[key].aval) for key in keys)]
        outvars, equations = list(body.outvars[:results]), list(body.eqns)
        for other, new in enumerate(avals):
            outvars += body.outvars[results:] if other == index else [zeros(aval, equations) for aval in new]
        branches.append(body.replace(invars=invars, outvars=outvars, eqns=equations))
    params = {**equation.params}
    params["branches"] = tuple(
        _closed(body, old) for body, old in zip(branches, equation.params["branches"], strict=True)
    )
    invars = [*equation.invars, *(more.operands[key] for key in keys)]
    return [], equation.replace(params=params, invars=invars), [Var(aval) for new in avals for aval in new]


def _shard_map(equation: JaxprEqn, more: Widening) -> _Widened:
    """Give the body new operands that are whole on each device."""
    (inputs,), (body,), params = more.inputs, more.bodies, equation.params
    specs = (*params["in_specs"], *[jax.sharding.PartitionSpec()] * len(inputs))
    params = {**params, "jaxpr": _closed(body, params["jaxpr"]), "in_specs": specs}
    return [], equation.replace(params=params, invars=[*equation.invars, *(more.operands[k] for k in inputs)]), []


_RULES: dict[str, Callable[[JaxprEqn, Widening], _Widened]] = {
    **dict.fromkeys(PLAIN_CALLS, _call),
    "cond": _cond,
    "scan": _scan,
    "shard_map": _shard_map,
    "while": _while,
}

"""Equations that run bodies: where the inputs of a body come from, and how a body gets more inputs and outputs.

This is the only place that knows what `jit`, `scan`, `cond` and the rest do with their operands. A primitive that is
not here runs no body that can be edited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

from jaxport import jaxprs
from jaxport.jaxprs import Dim, PyTree
from jaxport.jaxprs.walk import bodies
from jaxport.mox.aliases import Aval, Effect
from jaxport.mox.edited_body import InputKey

__all__ = [
    "DISSOLVED",
    "PLAIN_CALLS",
    "OperandSource",
    "Widening",
    "body_names",
    "runs_bodies",
    "source_of",
    "stacked",
    "takes_inputs",
    "takes_outputs",
    "widened",
    "zeros",
]

Jaxpr = jaxprs.Jaxpr
Var = jaxprs.Var
Atom = jaxprs.Atom
JaxprEqn = jaxprs.JaxprEqn

#: Wrappers that give a body another meaning than its equations have (a rule of differentiation, a name): once the
#: body is another one, the wrapper would be wrong. Their equations take their place.
DISSOLVED = frozenset({"composite", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})

#: Primitives that run their body once, with their operands as its inputs and its outputs as their results.
PLAIN_CALLS = frozenset({"block", "checkpoint", "closed_call", "core_call", "jit", "pjit", "remat2"})
_LOOPS = frozenset({"cond", "scan", "while"})


def runs_bodies(equation: JaxprEqn) -> bool:
    """Whether the bodies in the params of an equation are run as they stand, so that they are part of the program.

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
            if isinstance(item, jaxprs.ClosedJaxpr | Jaxpr):
                names.append(f"{name}.{index}" if several else name.removesuffix("_jaxpr"))
    return names


@dataclass(frozen=True)
class OperandSource:
    """The operand that an input of a body is, and whether it is a slice of it."""

    operand: int
    sliced: bool = False


def source_of(equation: JaxprEqn, body: int, position: int) -> OperandSource | None:
    """Return which operand of the equation the input number `position` of its body number `body` is, if it is one."""
    params = jaxprs.parameters(equation)
    match equation.primitive.name:
        case "scan":
            return OperandSource(position, position >= params["num_consts"] + params["num_carry"])
        case "while":
            of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
            is_cond = list(params)[: list(params).index("body_jaxpr")].count("cond_jaxpr") == (body == 0)
            before, own = (0, of_cond) if is_cond else (of_cond, of_body)
            return OperandSource(before + position if position < own else of_cond + of_body + position - own)
        case "cond":
            return OperandSource(position + 1)
        case name if name in PLAIN_CALLS or name in DISSOLVED or name == "shard_map":
            return OperandSource(position)
        case _:
            return None


def stacked(aval: Aval, length: Dim) -> Aval:
    """Return the aval of `length` values of `aval` along a new leading axis."""
    return aval.update(shape=(length, *aval.shape))


@dataclass(frozen=True)
class Widening:
    """What the bodies of an equation got more.

    Attributes:
      bodies: each with its new inputs behind the old ones, and its new outputs behind the old ones.
      inputs: for each body, a key per new input; equal keys are the same value.
      operands: for each key, what it is outside: for a key in `sliced`, the stack of what each step sees.
      sliced: the keys whose inputs are a slice per step of the scan.
      outputs: for each body, how many new outputs it has.
    """

    bodies: Sequence[Jaxpr]
    inputs: Sequence[Sequence[InputKey]]
    operands: Mapping[InputKey, Atom]
    sliced: frozenset[InputKey]
    outputs: Sequence[int]


def takes_inputs(equation: JaxprEqn) -> bool:
    """Whether the bodies of an equation can be given more inputs."""
    return equation.primitive.name in _RULES


def takes_outputs(equation: JaxprEqn) -> bool:
    """Whether the bodies of an equation can be given more outputs: a `shard_map` does not say how these are split."""
    return equation.primitive.name in _RULES and equation.primitive.name != "shard_map"


def widened(equation: JaxprEqn, more: Widening) -> tuple[list[JaxprEqn], list[Var]] | None:
    """Return the equation with other bodies, after the equations that it needs, and the variables of its new outputs.

    None if the primitive takes no more inputs or outputs.
    """
    rule = _RULES.get(equation.primitive.name)
    if rule is None:
        return None
    before, equation, outputs = rule(equation, more)
    outvars = [jaxprs.Var(v.aval) if isinstance(v, jaxprs.DropVar) else v for v in equation.outvars]
    return [*before, equation.replace(outvars=[*outvars, *outputs], effects=_effects(equation, more))], outputs


def _effects(equation: JaxprEqn, more: Widening) -> AbstractSet[Effect]:
    """Return the effects that an equation had, and the new ones of its bodies that concern no reference."""
    return equation.effects | {
        effect for body in more.bodies for effect in body.effects if not hasattr(effect, "input")
    }


_Widened = tuple[list[JaxprEqn], JaxprEqn, list[Var]]


def _closed(jaxpr: Jaxpr, old: Jaxpr | jaxprs.ClosedJaxpr) -> Jaxpr | jaxprs.ClosedJaxpr:
    jaxpr = jaxpr.replace(debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None))
    return jaxprs.closed(jaxpr, old.consts) if isinstance(old, jaxprs.ClosedJaxpr) else jaxpr


def _new_outputs(more: Widening) -> list[Aval]:
    """Return the avals of the new outputs of the only body."""
    count = more.outputs[0]
    return [atom.aval for atom in more.bodies[0].outvars[len(more.bodies[0].outvars) - count :]]


def _call(equation: JaxprEqn, more: Widening) -> _Widened:
    (inputs,), (body,) = more.inputs, more.bodies
    outputs = [Var(aval) for aval in _new_outputs(more)]
    params = {**equation.params}
    name = next(n for n, v in params.items() if isinstance(v, jaxprs.ClosedJaxpr | Jaxpr))
    params[name] = _closed(body, params[name])
    if "in_shardings" in params:
        unspecified = _unspecified()
        for key in ("in_shardings", "in_layouts", "donated_invars"):
            params[key] = (*params[key], *[unspecified[key]] * len(inputs))
        for key in ("out_shardings", "out_layouts"):
            params[key] = (*params[key], *[unspecified[key]] * len(outputs))
    invars = [*equation.invars, *(more.operands[key] for key in inputs)]
    return [], equation.replace(params=params, invars=invars), outputs


@cache
def _unspecified() -> dict[str, PyTree]:
    """Return what a `jit` equation says of an operand or a result that nothing was said about."""
    params = jax.make_jaxpr(jax.jit(lambda x: x))(0.0).eqns[0].params
    names = ("in_shardings", "in_layouts", "donated_invars", "out_shardings", "out_layouts")
    return {name: params[name][0] for name in names}


def _scan(equation: JaxprEqn, more: Widening) -> _Widened:
    (inputs,), (body,), params = more.inputs, more.bodies, jaxprs.parameters(equation)
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

    body = body.replace(
        invars=arranged(body.invars[:old], body.invars[old:]),
        debug_info=body.debug_info._replace(arg_names=None, result_paths=None),
    )
    outputs = [Var(stacked(aval, params["length"])) for aval in _new_outputs(more)]
    changes = {"jaxpr": _closed(body, params["jaxpr"]), "num_consts": consts + len(shared)}
    invars = arranged(equation.invars, [more.operands[key] for key in inputs])
    return [], jaxprs.with_parameters(equation, changes, invars=invars), outputs


def _while(equation: JaxprEqn, more: Widening) -> _Widened:
    """Carry new outputs of the body: those of the last step are left, zeros if there was no step."""
    params = equation.params
    is_cond = [name == "cond_jaxpr" for name in params if name in ("cond_jaxpr", "body_jaxpr")]
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    before: list[JaxprEqn] = []
    cond_index, body_index = is_cond.index(True), is_cond.index(False)
    cond, body = more.bodies[cond_index], more.bodies[body_index]
    for_cond, for_body = more.inputs[cond_index], more.inputs[body_index]
    count = more.outputs[body_index]
    avals = [atom.aval for atom in body.outvars[len(body.outvars) - count :]]
    carried = len(equation.outvars)

    def rearranged(jaxpr: Jaxpr, own: int, new: int) -> Jaxpr:
        old, added = jaxpr.invars[: own + carried], jaxpr.invars[own + carried :]
        invars = [*old[:own], *added[:new], *old[own:], *(Var(aval) for aval in avals)]
        return jaxpr.replace(invars=invars, debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None))

    starts = []
    for aval in avals:
        equations, start = zeros(aval)
        before += equations
        starts.append(start)
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
    avals = [[atom.aval for atom in body.outvars[results:]] for body in more.bodies]
    branches = []
    for index, (body, inputs) in enumerate(zip(more.bodies, more.inputs, strict=True)):
        own = dict(zip(inputs, body.invars[operands:], strict=True))
        invars = [*body.invars[:operands], *(own.get(key) or Var(more.operands[key].aval) for key in keys)]
        outvars, equations = list(body.outvars[:results]), list(body.eqns)
        for other, new in enumerate(avals):
            if other == index:
                outvars += body.outvars[results:]
                continue
            for aval in new:
                made, variable = zeros(aval)
                equations += made
                outvars.append(variable)
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


def zeros(aval: Aval) -> tuple[list[JaxprEqn], Atom]:
    """Return equations that make zeros of an aval, and the value."""
    jaxpr = jax.make_jaxpr(lambda: jnp.zeros(aval.shape, aval.dtype))().jaxpr
    return list(jaxpr.eqns), jaxpr.outvars[0]


_RULES: dict[str, Callable[[JaxprEqn, Widening], _Widened]] = {
    **dict.fromkeys(PLAIN_CALLS, _call),
    "cond": _cond,
    "scan": _scan,
    "shard_map": _shard_map,
    "while": _while,
}

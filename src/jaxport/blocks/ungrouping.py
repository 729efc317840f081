"""Inline all blocks, back to a plain jaxpr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from jaxport import jaxprs
from jaxport.blocks.block import block_p
from jaxport.blocks.markers import BlockCall, block_enter_p, block_exit_p
from jaxport.blocks.values import is_value
from jaxport.jaxprs.walk import bodies, replace_bodies, with_equations

__all__ = ["ungroup"]

Atom = jaxprs.Var | jaxprs.Literal


def ungroup(jaxpr: jaxprs.ClosedJaxpr, mark: bool = False) -> jaxprs.ClosedJaxpr:
    """Return a jaxpr without blocks that computes the same.

    Args:
      jaxpr: a jaxpr with blocks, also in the bodies of `scan`, `cond` and the like.
      mark: put markers where the blocks were, so that a later trace of the result finds the blocks again.

    >>> import jax, jax.numpy as jnp
    >>> from jaxport.blocks import boundary, trace
    >>> jaxpr = trace(boundary(lambda x: jnp.sin(x)), (jnp.ones(3),)).jaxpr
    >>> [equation.primitive.name for equation in ungroup(jaxpr).eqns]
    ['sin']
    """
    return jaxprs.closed(_Ungrouping(mark).body(jaxpr.jaxpr), jaxpr.consts)


class _Ungrouping:
    def __init__(self, mark: bool):
        self.mark = mark
        # The source is kept with the result, so that no id is reused.
        self._done: dict[int, tuple[jaxprs.Jaxpr, jaxprs.Jaxpr]] = {}

    def body(self, jaxpr: jaxprs.Jaxpr) -> jaxprs.Jaxpr:
        """Return a jaxpr without blocks."""
        if id(jaxpr) not in self._done:
            equations: list[jaxprs.JaxprEqn] = []
            env: dict[jaxprs.Var, Atom] = {}
            for equation in jaxpr.eqns:
                self.inline(equation, env, equations, nested=False)
            outvars = [_read(env, atom) for atom in jaxpr.outvars]
            made = with_equations(jaxpr, equations)
            self._done[id(jaxpr)] = jaxpr, made if made is jaxpr else made.replace(outvars=outvars)
        return self._done[id(jaxpr)][1]

    def inline(
        self, equation: jaxprs.JaxprEqn, env: dict[jaxprs.Var, Atom], out: list[jaxprs.JaxprEqn], nested: bool
    ) -> None:
        """Append one equation to `out`; `env` maps the replaced variables to their replacements.

        The variables of a block's body (`nested`) are renamed: two blocks may share a body.
        """
        invars = [_read(env, atom) for atom in equation.invars]
        if equation.primitive is block_p:
            results = self.inlined(equation, invars, out)
            env.update(zip(equation.outvars, results, strict=True))
            return
        outvars = equation.outvars
        if nested:
            outvars = [v if isinstance(v, jaxprs.DropVar) else jaxprs.Var(v.aval) for v in outvars]
            env.update(zip(equation.outvars, outvars, strict=True))
        params = equation.params
        inner = bodies(params)
        new = [self.body(body) for body in inner]
        if any(a is not b for a, b in zip(new, inner, strict=True)):
            params = replace_bodies(params, iter(new))
        unchanged = params is equation.params and outvars is equation.outvars
        if unchanged and all(a is b for a, b in zip(invars, equation.invars, strict=True)):
            out.append(equation)
            return
        # The effect of reading or writing a reference names its variable.
        effects: set[Any] = {
            effect if reference is None else effect.replace(env.get(reference, reference))
            for effect, reference in (
                (effect, jaxprs.reference_of(effect)) for effect in cast("set[Any]", equation.effects)
            )
        }
        out.append(equation.replace(invars=invars, outvars=outvars, params=params, effects=effects))

    def inlined(self, equation: jaxprs.JaxprEqn, invars: list[Atom], out: list[jaxprs.JaxprEqn]) -> list[Atom]:
        """Append the equations of a block; return the atoms of its outputs."""
        block, inner = equation.params["block"], equation.params["jaxpr"].jaxpr
        call = BlockCall(block.target, block.kind, block.method)
        if self.mark:
            # A marker cannot pass on a mutable reference, which is no value; blocks grouped again have it after the
            # others.
            passed = [index for index, atom in enumerate(invars) if is_value(atom.aval)]
            call.finished = block.with_inputs(passed)
            marked = _marked(block_enter_p, call, [invars[index] for index in passed], equation, out)
            for index, atom in zip(passed, marked, strict=True):
                invars[index] = atom
        env: dict[jaxprs.Var, Atom] = dict(zip(inner.invars, invars, strict=True))
        for within in inner.eqns:
            self.inline(within, env, out, nested=True)
        results = [_read(env, atom) for atom in inner.outvars]
        if self.mark:
            results = _marked(block_exit_p, call, results, equation, out)
        return results


def _read(env: Mapping[jaxprs.Var, Atom], atom: Atom) -> Atom:
    return env.get(atom, atom) if isinstance(atom, jaxprs.Var) else atom


def _marked(
    marker: jaxprs.Primitive, call: BlockCall, atoms: list[Atom], source: jaxprs.JaxprEqn, out: list[jaxprs.JaxprEqn]
) -> list[Atom]:
    outvars = [jaxprs.Var(atom.aval) for atom in atoms]
    params = {"call": call, "extra": 0, "axes": ()}
    out.append(source.replace(primitive=marker, invars=atoms, outvars=outvars, params=params, effects=set()))
    return list(outvars)

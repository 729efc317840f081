"""Inline all blocks, back to a plain jaxpr."""

from __future__ import annotations

from collections.abc import Sequence

from jaxport import jaxprs
from jaxport.blocks.block import block_p
from jaxport.blocks.callables.values import is_value
from jaxport.blocks.marking.markers import BlockCall, block_enter_p, block_exit_p
from jaxport.jaxprs import Atom, Jaxpr, JaxprEqn
from jaxport.jaxprs.rewrite import Rewriting, fresh, itself, with_operands
from jaxport.jaxprs.walk import interpret, with_equations


def ungroup(jaxpr: jaxprs.ClosedJaxpr, mark: bool = False) -> jaxprs.ClosedJaxpr:
    """Return a jaxpr without blocks that computes the same.

    Args:
      jaxpr: a jaxpr with blocks, also in the bodies of `scan`, `cond` and the like.
      mark: put markers where the blocks were, so that a later trace of the result finds the blocks again.

    >>> import jax, jax.numpy as jnp
    >>> from jaxport.blocks.marking.boundary import boundary
    >>> from jaxport.blocks.tracing import trace
    >>> jaxpr = trace(boundary(lambda x: jnp.sin(x)), (jnp.ones(3),)).jaxpr
    >>> [equation.primitive.name for equation in ungroup(jaxpr).eqns]
    ['sin']
    """
    return _Ungrouping(mark).closed(jaxpr)


class _Ungrouping(Rewriting):
    def __init__(self, mark: bool):
        super().__init__()
        self.mark = mark

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        equations: list[JaxprEqn] = []
        outvars = self.run(jaxpr, (*jaxpr.constvars, *jaxpr.invars), equations, renamed=False)
        made = with_equations(jaxpr, equations)
        return made if made is jaxpr else made.replace(outvars=outvars)

    def run(self, jaxpr: Jaxpr, operands: Sequence[Atom], out: list[JaxprEqn], renamed: bool = True) -> list[Atom]:
        """Append the equations of a body for some operands; return its results.

        The variables of a block's body are `renamed`: two blocks may share a body.
        """

        def rule(equation: JaxprEqn, operands: list[Atom]) -> Sequence[Atom]:
            if equation.primitive is block_p:
                return self.inlined(equation, operands, out)
            outvars = fresh(equation.outvars) if renamed else equation.outvars
            out.append(self.equation(with_operands(equation, operands, outvars)))
            return outvars

        return interpret(jaxpr, operands, rule, itself)

    def inlined(self, equation: JaxprEqn, operands: list[Atom], out: list[JaxprEqn]) -> list[Atom]:
        """Append the equations of a block for some operands; return its results."""
        block, inner = equation.params["block"], equation.params["jaxpr"].jaxpr
        call = BlockCall(block.target, block.kind, block.method)
        if self.mark:
            # A marker cannot pass on a mutable reference, which is not a value; blocks grouped again have it after the
            # others.
            passed = [index for index, atom in enumerate(operands) if is_value(atom.aval)]
            call.finished = block.with_inputs(passed)
            marked = _marked(block_enter_p, call, [operands[index] for index in passed], equation, out)
            for index, atom in zip(passed, marked, strict=True):
                operands[index] = atom

        results = self.run(inner, operands, out)
        return _marked(block_exit_p, call, results, equation, out) if self.mark else results


def _marked(
    marker: jaxprs.Primitive, call: BlockCall, atoms: list[Atom], source: JaxprEqn, out: list[JaxprEqn]
) -> list[Atom]:
    outvars = [jaxprs.Var(atom.aval) for atom in atoms]
    params = {"call": call, "extra": 0, "axes": ()}
    out.append(source.replace(primitive=marker, invars=atoms, outvars=outvars, params=params, effects=set()))
    return list(outvars)

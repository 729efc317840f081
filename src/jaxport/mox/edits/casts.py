"""Other floating-point types for selected blocks: what is inside computes in them, what is around does not notice."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxport import jaxprs
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Atom, PyTree
from jaxport.mox.aliases import Aval
from jaxport.mox.replacement import Rewrite
from jaxport.mox.rewriting import TypeRewriting

__all__ = ["cast"]


def cast(dtype: DTypeLike) -> Rewrite:
    """Return a replacement in which a block computes in another floating-point type.

    Its arguments and parameters are converted on entry, its results on return; bfloat16, float16, float32 and float64
    inside become the type. To store parameters in a type, too, convert their values:
    ``mox.with_params({path: value.astype(dtype) ...})``.

    Args:
      dtype: a floating-point type.

    Raises:
      InvalidArgument: `dtype` is no floating-point type; a block does something that the type does not allow.

    >>> import jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> print(mox.sub("//Linear", jaxport.mox.cast(jnp.bfloat16)).select("//dot_general")[0].out_avals)
    [ShapedArray(bfloat16[1,4])]
    """
    wanted = np.dtype(dtype)
    if not jnp.issubdtype(wanted, jnp.floating):
        raise InvalidArgument(f"`{wanted}` is no floating-point type", where="`cast`", instead="bfloat16, float16, …")

    def rewrite(closed: jaxprs.ClosedJaxpr, where: str) -> jaxprs.ClosedJaxpr:
        inner = _Retyping(wanted).closed(closed)
        try:
            jaxprs.check_jaxpr(inner.jaxpr)
        except Exception as error:  # whatever an operation has to say of its operands
            raise InvalidArgument(
                f"`{where}` cannot be computed in {wanted}",
                where="`cast`",
                why=str(error).splitlines()[0],
                instead="select blocks inside of it",
            ) from error
        made = _bordered(inner, closed)
        return jaxprs.closed(made, closed.consts)

    return Rewrite(rewrite)


def _bordered(inner: jaxprs.ClosedJaxpr, outer: jaxprs.ClosedJaxpr) -> jaxprs.Jaxpr:
    """Return the program between conversions from the outer types and back to them."""
    convert = lambda atom, aval: _converted(atom, aval) if atom.aval.dtype != aval.dtype else (None, atom)
    invars = [jaxprs.Var(aval) for aval in outer.in_avals]
    before, after = [], []
    # The variables of the program are those that the conversions define.
    renamed = list(inner.jaxpr.invars)
    for index, (variable, wanted) in enumerate(zip(invars, inner.in_avals, strict=True)):
        equation, made = convert(variable, wanted)
        if equation is None:
            invars[index] = renamed[index]
        else:
            before.append(equation.replace(outvars=[renamed[index]]))
        del made
    outvars = []
    for atom, wanted in zip(inner.jaxpr.outvars, outer.out_avals, strict=True):
        equation, made = convert(atom, wanted)
        after += [] if equation is None else [equation]
        outvars.append(made)
    return inner.jaxpr.replace(
        invars=invars,
        outvars=outvars,
        eqns=[*before, *inner.jaxpr.eqns, *after],
        debug_info=jaxprs.nameless(inner.jaxpr),
    )


def _converted(atom: Atom, aval: Aval) -> tuple[jaxprs.JaxprEqn, jaxprs.Var]:
    before: Aval = atom.aval
    spec = jax.ShapeDtypeStruct(before.shape, before.dtype)
    (equation,) = jax.make_jaxpr(lambda x: x.astype(aval.dtype))(spec).eqns
    variable = jaxprs.Var(aval)
    return equation.replace(invars=[atom], outvars=[variable]), variable


class _Retyping(TypeRewriting):
    def __init__(self, dtype: np.dtype):
        super().__init__()
        self.dtype = dtype

    def aval(self, aval: Aval) -> Aval:
        return aval.update(dtype=self.dtype) if _is_computed_in(getattr(aval, "dtype", None)) else aval

    def leaf(self, value: PyTree) -> PyTree:
        return self.dtype if isinstance(value, np.dtype) and _is_computed_in(value) else value

    def literal(self, literal: jaxprs.Literal) -> jaxprs.Literal:
        aval: Aval = literal.aval
        if not _is_computed_in(aval.dtype):
            return literal
        return jaxprs.Literal(np.asarray(literal.val).astype(self.dtype)[()], self.aval(aval))


# The types that operations compute in; what is narrower is for storage.
_COMPUTED = frozenset(map(np.dtype, (jnp.bfloat16, "float16", "float32", "float64")))


def _is_computed_in(dtype: DTypeLike | None) -> bool:
    return isinstance(dtype, np.dtype) and dtype in _COMPUTED

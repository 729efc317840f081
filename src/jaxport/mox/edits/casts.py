"""Other floating-point types for selected blocks: only what is inside a block computes in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxport import jaxprs
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Atom, Aval, aval_of
from jaxport.jaxprs.rewrite import inlined, traced
from jaxport.mox.programs.rewriting import TypeRewriting
from jaxport.mox.substitution.replacement import Rewrite


def cast(dtype: DTypeLike) -> Rewrite:
    """Return a replacement in which a block computes in another floating-point type.

    Its arguments and parameters are converted on entry, its results on return; bfloat16, float16, float32 and float64
    values inside get the new type. To also store parameters in that type, convert their values:
    ``mox.with_params({path: value.astype(dtype) ...})``.

    Args:
      dtype: a floating-point type.

    Raises:
      InvalidArgument: `dtype` is not a floating-point type; a block does something that the type does not allow.

    >>> import jax.numpy as jnp
    >>> import jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> print(mox.sub("//Linear", jaxport.mox.cast(jnp.bfloat16)).select("//dot_general")[0].out_avals)
    [ShapedArray(bfloat16[1,4])]
    """
    try:
        wanted = jnp.dtype("none" if dtype is None else dtype)  # NumPy takes None for float64
    except TypeError as error:
        raise InvalidArgument(f"{dtype!r} is not a dtype", where="`cast`", instead="bfloat16, float16, …") from error
    if not jnp.issubdtype(wanted, jnp.floating):
        raise InvalidArgument(
            f"`{wanted}` is not a floating-point type", where="`cast`", instead="bfloat16, float16, …"
        )

    def rewrite(closed: jaxprs.ClosedJaxpr, where: str) -> jaxprs.ClosedJaxpr:
        inner = _Retyping(wanted).closed(closed)
        try:
            jaxprs.check_jaxpr(inner.jaxpr)
        except Exception as error:  # whatever an operation has to say of its operands
            raise InvalidArgument(
                f"`{where}` cannot be computed in {wanted}",
                where="`cast`",
                why=str(error).splitlines()[0],
                instead="select blocks inside it",
            ) from error
        made = _bordered(inner, closed)
        return jaxprs.closed(made, closed.consts)

    return Rewrite(rewrite)


def _bordered(inner: jaxprs.ClosedJaxpr, outer: jaxprs.ClosedJaxpr) -> jaxprs.Jaxpr:
    """Return the program between conversions from the outer types and back to them."""
    equations: list[jaxprs.JaxprEqn] = []
    invars = [jaxprs.Var(aval) for aval in outer.in_avals]
    operands = [_converted(variable, aval, equations) for variable, aval in zip(invars, inner.in_avals, strict=True)]
    results = inlined(inner.jaxpr, operands, equations)
    outvars = [_converted(atom, aval, equations) for atom, aval in zip(results, outer.out_avals, strict=True)]
    return inner.jaxpr.replace(invars=invars, outvars=outvars, eqns=equations, debug_info=jaxprs.nameless(inner.jaxpr))


def _converted(atom: Atom, aval: Aval, equations: list[jaxprs.JaxprEqn]) -> Atom:
    """Append the conversion of a value to the dtype of a type; return the result."""
    before = aval_of(atom)
    if before.dtype == aval.dtype:
        return atom
    (result,) = inlined(traced(lambda x: x.astype(aval.dtype), [before]).jaxpr, [atom], equations)
    return result


class _Retyping(TypeRewriting):
    def __init__(self, dtype: np.dtype):
        super().__init__()
        self.dtype = dtype

    def aval(self, aval: Aval) -> Aval:
        dtype = getattr(aval, "dtype", None)
        return aval.update(dtype=self.dtype) if _is_computed_in(dtype) and dtype != self.dtype else aval

    def leaf(self, value: object) -> Any:
        return self.dtype if isinstance(value, np.dtype) and _is_computed_in(value) else value

    def values(self, value: Array) -> Sequence[Array]:
        array = np.asarray(value)
        return [array.astype(self.dtype)[()] if _is_computed_in(array.dtype) else value]


# The types that operations compute in; narrower ones are for storage.
_COMPUTED = frozenset(map(np.dtype, (jnp.bfloat16, "float16", "float32", "float64")))


def _is_computed_in(dtype: DTypeLike | None) -> bool:
    return isinstance(dtype, np.dtype) and dtype in _COMPUTED

"""A program that was traced with symbolic dims, at concrete sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxport import jaxprs
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Aval, Dim, aval_of, dims
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.rewrite import with_values
from jaxport.jaxprs.walk import producers
from jaxport.mox.programs.rewriting import TypeRewriting
from jaxport.sizes.sums import only_name


def sizes_of(
    avals: Sequence[Aval], shapes: Sequence[Sequence[int]], names: Sequence[str], where: str
) -> dict[str, int]:
    """Return the values of the symbols with which the avals have these shapes.

    Raises:
      InvalidArgument: there are none.
    """
    values: dict[str, int] = {}
    for aval, shape in zip(avals, shapes, strict=True):
        for dim, size in zip(aval.shape, shape, strict=False):
            form = only_name(str(dim))
            if form is not None and (size - form[2]) % form[1] == 0:
                values.setdefault(form[0], (size - form[2]) // form[1])
    for name, aval, shape in zip(names, avals, shapes, strict=True):
        wanted = [_value(dim, values) for dim in aval.shape]
        if wanted != list(shape) or any(value < 1 for value in values.values()):
            sizes = ", ".join(f"{symbol}={value}" for symbol, value in values.items())
            raise InvalidArgument(
                f"`{name}` has the shape {tuple(shape)}",
                where=where,
                why="the program was traced with "
                f"({', '.join(map(str, aval.shape))}){f', where {sizes}' if sizes else ''}",
                instead="give it sizes that fit, or trace the model again with these arguments",
            )
    return values


def _value(dim: Dim, values: Mapping[str, int]) -> Dim | None:
    if not dims.is_static(dim) and not symbols(str(dim)) <= set(values):
        return None
    return dims.evaluate(dim, values)


def specialize(closed: jaxprs.ClosedJaxpr, values: Mapping[str, int]) -> jaxprs.ClosedJaxpr:
    """Replace symbolic dims by sizes in the types, params and bodies of a program.

    >>> import jax, jax.numpy as jnp
    >>> (n,) = jax.export.symbolic_shape("n")
    >>> closed = jax.make_jaxpr(lambda x: x.sum() / x.shape[0])(jax.ShapeDtypeStruct((n,), jnp.float32))
    >>> print(specialize(closed, {"n": 3}).jaxpr.invars[0].aval)
    float32[3]
    """
    return _Specializing(values).closed(closed)


class _Specializing(TypeRewriting):
    def __init__(self, sizes: Mapping[str, int]):
        super().__init__()
        self.sizes = sizes

    def aval(self, aval: Aval) -> Aval:
        shape = getattr(aval, "shape", ())
        if all(map(dims.is_static, shape)):
            return aval
        return aval.update(shape=tuple(dims.evaluate(dim, self.sizes) for dim in shape))

    def leaf(self, value: Any) -> Any:
        return dims.evaluate(value, self.sizes) if hasattr(value, "scope") and not dims.is_static(value) else value

    def rewritten(self, jaxpr: jaxprs.Jaxpr) -> jaxprs.Jaxpr:
        return super().rewritten(with_values(jaxpr, dict(self.numbers(jaxpr))))

    def numbers(self, jaxpr: jaxprs.Jaxpr) -> Iterator[tuple[jaxprs.Var, jaxprs.Literal]]:
        """Yield the variables of a body that are sizes, with their values."""
        for variable, equation in producers(jaxpr).items():
            if equation.primitive.name == "dim_as_value":
                aval = aval_of(variable)
                number = dims.evaluate(equation.params["dim"], self.sizes)
                yield variable, jaxprs.Literal(np.asarray(number, aval.dtype)[()], aval)

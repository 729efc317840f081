"""The original of a replacement: a primitive represents it while the replacement is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from jaxport import jaxprs
from jaxport.blocks.ungrouping import ungroup
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Aval, ad, batching
from jaxport.jaxprs.alike import same_aval

__all__ = ["Site", "original_p"]

Axes = tuple[tuple[tuple[int | None, ...], tuple[int | None, ...]], ...]


@dataclass(eq=False)
class Site:
    """A place where something is replaced.

    Attributes:
      jaxpr: the program of the original: its arguments come first, then its other operands.
      arguments, results: how many of its inputs and outputs are those of the call.
      axes: the batched axes of the arguments and results, for each `vmap` around it, the innermost first.
      where: its path, for messages.
      is_dissolved: whether a transformation took the original apart while the replacement was traced.
    """

    jaxpr: jaxprs.ClosedJaxpr
    arguments: int
    results: int
    axes: Axes
    where: str
    is_dissolved: bool = field(default=False)

    def in_avals(self, level: int) -> list[Aval]:
        """Return the arguments within the innermost `level` levels of `vmap`."""
        return _unbatched(self.jaxpr.in_avals[: self.arguments], [taken for taken, _ in self.axes], level)

    def out_avals(self, level: int) -> list[Aval]:
        """Return the results within the innermost `level` levels of `vmap`."""
        return _unbatched(self.jaxpr.out_avals[: self.results], [made for _, made in self.axes], level)

    def call(self, arrays: Sequence[Array], others: Sequence[Array], exchanged: frozenset[int]) -> list[Array]:
        """Return the results of the original for these arguments, inside the replacement."""
        level = len(self.axes)
        for index, (array, aval) in enumerate(zip(arrays, self.in_avals(level), strict=True)):
            array_aval = jax.typeof(array)
            if not same_aval(array_aval, aval):
                raise InvalidArgument(
                    f"the original is given {array_aval.str_short()} as argument {index}",
                    where=f"the replacement of `{self.where}`",
                    why=f"it takes {aval.str_short()}",
                )
        return original_p.bind(*arrays, *others, site=self, level=level, exchanged=exchanged)

    def function(self) -> Callable[..., list[Array]]:
        """Return the original as a function of JAX."""
        self.is_dissolved = True
        run = jaxprs.jaxpr_as_fun(ungroup(self.jaxpr))
        return lambda *operands: run(*operands)[: self.results]


def _unbatched(avals: Sequence[Aval], levels: Sequence[Sequence[int | None]], count: int) -> list[Aval]:
    """Return the avals as they are inside of the `count` innermost levels: outer axes go first."""
    outermost_first = list(levels)[::-1][:count]
    for axes in outermost_first:
        avals = [
            aval if axis is None else aval.update(shape=(*aval.shape[:axis], *aval.shape[axis + 1 :]))
            for aval, axis in zip(avals, axes, strict=True)
        ]
    return list(avals)


original_p = jaxprs.Primitive("original")
original_p.multiple_results = True
original_p.def_abstract_eval(lambda *_, site, level, **__: site.out_avals(level))


def _batch(operands: Sequence, dims: Sequence, *, site: Site, level: int, exchanged: frozenset) -> tuple[list, list]:
    if level == 0:
        made = jax.vmap(site.function(), in_axes=tuple(dims), out_axes=0)(*operands)
        return made, [0] * len(made)
    in_axes, made = site.axes[len(site.axes) - level]
    count = site.arguments
    size = next((o.shape[d] for o, d in zip(operands, dims, strict=True) if d is not None), 1)
    if any(dim is not None for dim in dims[count:]):
        raise InvalidArgument(
            "the original is given parameters that differ along a batch",
            where=f"the replacement of `{site.where}`",
            why="the original runs for the whole batch at once, with one set of parameters",
            instead="make the parameters without the arguments of the call",
        )
    arranged = []
    for index, (operand, dim, axis) in enumerate(zip(operands[:count], dims, in_axes, strict=False)):
        if axis is None and dim is not None:
            raise InvalidArgument(
                f"the original is given another argument {index} in each element of the batch",
                where=f"the replacement of `{site.where}`",
                why="in the program, all elements share this argument",
                instead="pass the argument on unchanged",
            )
        if axis is not None:
            operand = jnp.moveaxis(operand, dim, axis) if dim is not None else _repeated(operand, size, axis)
        arranged.append(operand)
    results = original_p.bind(*arranged, *operands[count:], site=site, level=level - 1, exchanged=exchanged)
    return results, list(made)


def _repeated(operand: Array, size: int, axis: int) -> Array:
    shape = [*operand.shape]
    shape.insert(axis, size)
    return jnp.broadcast_to(jnp.expand_dims(operand, axis), shape)


def _jvp(primals: Sequence, tangents: Sequence, *, site: Site, level: int, exchanged: frozenset) -> tuple[list, list]:
    del exchanged
    if level:
        raise InvalidArgument(
            "the original is differentiated inside its replacement",
            where=f"the replacement of `{site.where}`",
            why="it runs under `vmap`, for the whole batch at once",
            instead="differentiate the edited Mox",
        )
    zeros = [ad.instantiate_zeros(tangent) for tangent in tangents]
    return jax.jvp(site.function(), tuple(primals), tuple(zeros))


ad.primitive_jvps[original_p] = _jvp
batching.primitive_batchers[original_p] = _batch

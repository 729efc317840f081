"""The original of a replacement: a primitive represents it while the replacement is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.ungrouping import ungroup
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Aval, ad, batching
from jaxport.jaxprs.alike import same_aval

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
      derivative_of: the original of which it is a derivative, which is written out where it is called.
    """

    jaxpr: jaxprs.ClosedJaxpr
    arguments: int
    results: int
    axes: Axes
    where: str
    is_dissolved: bool = field(default=False)
    derivative_of: Site | None = field(default=None)

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

    def derivative(self) -> Site:
        """Return the derivative of the original: tangents of its results, of its arguments with theirs, for whole
        batches.
        """
        run, (first, others), results = self.function(), self._operands(), self.jaxpr.out_avals[: self.results]
        given = len(first) + len(with_tangents(first, first))

        def derived(*operands: Array) -> list[Array]:
            primals = [*operands[: len(first)], *operands[given : given + len(others)]]
            tangents = iter([*operands[len(first) : given], *operands[given + len(others) :]])
            varied = [next(tangents) if has_tangent(aval) else _no_tangent(aval) for aval in (*first, *others)]
            return with_tangents(jax.jvp(run, tuple(primals), tuple(varied))[1], results)

        operands = [*first, *with_tangents(first, first), *others, *with_tangents(others, others)]
        axes = [
            ((*taken, *with_tangents(taken, first)), tuple(with_tangents(made, results))) for taken, made in self.axes
        ]
        return self._derived(derived, operands, given, len(with_tangents(results, results)), axes)

    def transposed(self) -> Site:
        """Return the derivative in reverse: cotangents of the arguments, of the arguments and cotangents of the
        results.
        """
        run, (first, others), results = self.function(), self._operands(), self.jaxpr.out_avals[: self.results]
        cotangents = with_tangents(results, results)
        given = len(first) + len(cotangents)

        def derived(*operands: Array) -> list[Array]:
            known = iter(operands[len(first) : given])
            back = jax.vjp(lambda *taken: run(*taken, *operands[given:]), *operands[: len(first)])[1]
            made = back([next(known) if has_tangent(aval) else _no_tangent(aval) for aval in results])
            return with_tangents(made, first)

        axes = [
            ((*taken, *with_tangents(made, results)), tuple(with_tangents(taken, first))) for taken, made in self.axes
        ]
        return self._derived(derived, [*first, *cotangents, *others], given, len(with_tangents(first, first)), axes)

    def _operands(self) -> tuple[list[Aval], list[Aval]]:
        return [*self.jaxpr.in_avals[: self.arguments]], [*self.jaxpr.in_avals[self.arguments :]]

    def _derived(self, function: Callable, avals: list[Aval], arguments: int, results: int, axes: list) -> Site:
        made = jax.make_jaxpr(function)(*avals)
        return Site(made, arguments, results, tuple(axes), self.where, derivative_of=self)


def _no_tangent(aval: Aval) -> np.ndarray:
    return np.zeros(aval.shape, jax.dtypes.float0)


def has_tangent(aval: Aval) -> bool:
    """Whether a value can vary."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def with_tangents(values: Sequence, avals: Sequence[Aval]) -> list:
    """Return those of some values that belong to values that can vary."""
    return [value for value, aval in zip(values, avals, strict=False) if has_tangent(aval)]


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
    if level == 1 and site.derivative_of:
        return site.function()(*arranged, *operands[count:]), list(made)
    results = original_p.bind(*arranged, *operands[count:], site=site, level=level - 1, exchanged=exchanged)
    return results, list(made)


def _repeated(operand: Array, size: int, axis: int) -> Array:
    shape = [*operand.shape]
    shape.insert(axis, size)
    return jnp.broadcast_to(jnp.expand_dims(operand, axis), shape)


def _jvp(primals: Sequence, tangents: Sequence, *, site: Site, level: int, exchanged: frozenset) -> tuple[list, list]:
    zeros = [ad.instantiate_zeros(tangent) for tangent in tangents]
    if not level:
        return jax.jvp(site.function(), tuple(primals), tuple(zeros))
    count, avals = site.arguments, site.jaxpr.in_avals
    arguments = [*primals[:count], *with_tangents(zeros[:count], avals)]
    others = [*primals[count:], *with_tangents(zeros[count:], avals[count:])]
    results = original_p.bind(*primals, site=site, level=level, exchanged=exchanged)
    made = original_p.bind(*arguments, *others, site=site.derivative(), level=level, exchanged=exchanged)
    found = iter(made)
    return results, [
        next(found) if has_tangent(jax.typeof(result)) else ad.Zero(jax.typeof(result).to_tangent_aval())
        for result in results
    ]


def _transposed(cotangents: Sequence, *operands: Array, site: Site, level: int, exchanged: frozenset) -> list:
    """The cotangents of the tangents that a derivative is linear in."""
    original = site.derivative_of
    assert original is not None  # originals themselves are not linear
    count = original.arguments
    linear = [index for index, operand in enumerate(operands) if ad.is_undefined_primal(operand)]
    shared = with_tangents(
        [any(taken[i] is None for taken, _ in original.axes) for i in range(count)], original.jaxpr.in_avals
    )
    if any(index >= site.arguments or shared[index - count] for index in linear):
        raise InvalidArgument(
            "the original is differentiated by what all elements of the batch share",
            where=f"the replacement of `{site.where}`",
            why="it runs under `vmap`, for the whole batch at once",
            instead="differentiate the edited Mox",
        )
    cts = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    others = operands[site.arguments :][: len(original.jaxpr.in_avals) - count]
    made = original_p.bind(
        *operands[:count], *cts, *others, site=original.transposed(), level=level, exchanged=exchanged
    )
    return [made[index - count] if index in linear else None for index in range(len(operands))]


ad.primitive_transposes[original_p] = _transposed
ad.primitive_jvps[original_p] = _jvp
batching.primitive_batchers[original_p] = _batch

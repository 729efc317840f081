"""Choose meaningful sizes for the symbolic dimensions of a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxport import jaxprs
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Dim, dim_text, dims
from jaxport.jaxprs.walk import equations_within
from jaxport.sizes.conditions import SizeComparison

#: The ranges that are tried, the smallest first, to keep runs quick; beyond them the smallest sizes are computed.
LIMITS = (3, 6, 10, 20, 50, 100, 300)
TRIES = 100


class Conditions:
    """The conditions on sizes: the constraints of the symbols' scope, and that no array of the program is empty.

    Args:
      jaxpr: the program, with the bodies inside it.

    Attributes:
      symbols: the symbols of its inputs, sorted.
      constraints: the constraints of the symbols' scope, as text.
    """

    def __init__(self, jaxpr: jaxprs.ClosedJaxpr):
        inputs = {dim for aval in jaxpr.in_avals for dim in getattr(aval, "shape", ()) if not dims.is_static(dim)}
        self.symbols = sorted({name for dim in inputs for name in dim_text.symbols(str(dim))})
        self._dims = {str(dim) for dim in _symbolic_dims(jaxpr.jaxpr)} | {str(dim) for dim in inputs}
        self.constraints = [text for dim in list(inputs)[:1] for text in dims.constraints_of(dim)]

    def broken(self, sizes: Mapping[str, int]) -> str:
        """Return a constraint that some sizes violate, or an empty text."""
        sizes = self._with_replaced(sizes)
        for text in self.constraints:
            if dims.is_broken(text, sizes):
                return text
        return ""

    def _with_replaced(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes with those of the symbols for which an equality has others: JAX leaves none of them."""
        found = dict(sizes)
        for text in self.constraints:
            left, comparison, right = (part.strip() for part in re.split("(>=|<=|==)", text))
            if comparison == "==" and left.isidentifier() and dim_text.symbols(right) <= found.keys():
                found.setdefault(left, dims.evaluate(right, found))
        return found

    def fulfilled(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes satisfy the constraints and leave no array empty."""
        return not self.broken(sizes) and all(dims.evaluate(dim, sizes) >= 1 for dim in self._dims)

    def solved(self, known: Mapping[str, int], open_symbols: Sequence[str]) -> dict[str, int] | None:
        """Return the smallest sizes beside those that are known; None if none are found."""
        asked = [*map(SizeComparison.of, self.constraints), *(SizeComparison(dim, ">=", "1") for dim in self._dims)]
        for name, size in known.items():
            asked = [one.with_size(name, str(size)) for one in asked]
        found = SizeComparison.solution(asked, open_symbols)
        return None if found is None else {**known, **found}


def sets(
    conditions: Conditions,
    wanted: Mapping[str, int] | Sequence[Mapping[str, int]] | None,
    known: Mapping[str, int],
    seed: int,
) -> list[dict[str, int]]:
    """Return the sizes to run at: those that the user wants, or else chosen ones.

    Args:
      conditions: what the sizes must satisfy.
      wanted: the user's sizes, one mapping per run, or one mapping.
      known: the sizes that the user's arrays have.
      seed: the seed of the choice.

    Raises:
      InvalidArgument: the user's sizes do not fit, or no sizes were found that satisfy the conditions.
    """
    return checked(conditions, wanted) if wanted else chosen(conditions, known, seed=seed)


def chosen(
    conditions: Conditions, known: Mapping[str, int] | None = None, count: int = 2, seed: int = 0
) -> list[dict[str, int]]:
    """Choose sizes to run at: `count` sets if there are symbols left to choose.

    The symbols differ from one another, so that a mix-up shows, and each differs from one set to the next. In the
    second set one of them is 1, if possible. Small sizes come first.

    Args:
      conditions: what the sizes must satisfy.
      known: the given sizes.
      count: the number of sets.
      seed: the seed of the choice among equally good ones.

    Raises:
      InvalidArgument: no sizes were found that satisfy the conditions, or the given ones do not.
    """
    known = dict(known or {})
    open_symbols = [name for name in conditions.symbols if name not in known]
    if known and (broken := conditions.broken(known)):
        raise InvalidArgument(
            f"the sizes {', '.join(f'{name}={size}' for name, size in known.items())} break the constraint `{broken}`",
            where="`verify(inputs=...)`",
            instead="give inputs whose sizes satisfy it",
        )
    if not open_symbols:
        return [known]
    generator = np.random.default_rng(seed)
    sets: list[dict[str, int]] = []
    for index in range(count):
        sizes = next(
            (
                sizes
                for sizes in _candidates(generator, known, open_symbols, with_one=index == 1)
                if conditions.fulfilled(sizes) and not any(_alike(sizes, other, open_symbols) for other in sets)
            ),
            None,
        )
        if sizes is None:
            if sets:
                break  # the constraints leave a single choice
            sizes = conditions.solved(known, open_symbols)
        if sizes is None:
            raise InvalidArgument(
                f"no sizes of {', '.join(open_symbols)} were found for which no array is empty",
                why=", ".join(conditions.constraints),
                instead='give them: `verify(sizes=[{"B": 4}])`',
            )
        sets.append(sizes)
    return sets


def checked(conditions: Conditions, sizes: Mapping[str, int] | Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Check the sizes given by the user: one mapping per run, or one mapping.

    A program without symbols runs once, whatever sizes are given for the others of a series of models.

    Raises:
      InvalidArgument: a symbol is missing or unknown, or a constraint does not hold.
    """
    result = [dict(sizes_of_run) for sizes_of_run in (sizes if isinstance(sizes, Sequence) else [sizes])]
    if not conditions.symbols:
        return [{}]
    for sizes_of_run in result:
        shown = ", ".join(f"{name}={size}" for name, size in sizes_of_run.items())
        if sorted(sizes_of_run) != conditions.symbols:
            raise InvalidArgument(
                f"the sizes {shown or 'given'} are not those of the symbols",
                where="`verify(sizes=...)`",
                instead=f"give a size for each of {', '.join(conditions.symbols)}",
            )
        broken = conditions.broken(sizes_of_run)
        if broken:
            raise InvalidArgument(
                f"the sizes {shown} break the constraint `{broken}`",
                where="`verify(sizes=...)`",
                instead="give sizes that the function was exported for",
            )
    return result


def _candidates(
    generator: np.random.Generator, known: Mapping[str, int], symbols: Sequence[str], with_one: bool
) -> Iterator[dict[str, int]]:
    for limit in LIMITS:
        for attempt in range(TRIES):
            sizes = {name: int(generator.integers(2, 2 + limit)) for name in symbols}
            if with_one and attempt < TRIES // 2:
                sizes[symbols[int(generator.integers(len(symbols)))]] = 1
            if len(set(sizes.values())) == len(sizes) or attempt > TRIES // 2:
                yield {**known, **sizes}


def _alike(sizes: Mapping[str, int], other: Mapping[str, int], symbols: Sequence[str]) -> bool:
    return any(sizes[name] == other[name] for name in symbols)


def _symbolic_dims(jaxpr: jaxprs.Jaxpr) -> set[Dim]:
    """Return the symbolic dims of all values in a program."""
    outvars = (variable for equation in equations_within(jaxpr) for variable in equation.outvars)
    return {d for variable in outvars for d in getattr(variable.aval, "shape", ()) if not dims.is_static(d)}

"""What has to hold for sizes that only have names: conditions, solved as far as arithmetic decides them.

A file declares `[batch, 3, height, width]`, and its network halves an image, doubles it again, and joins it with the
image: `2*floordiv(height, 2) == height`. That holds for even heights, so `height` becomes `2*height`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import jax

from jaxport.errors import JaxportError, ValueNotKnown
from jaxport.importer.resolving.node_settings import BRANCH_NOT_KNOWN
from jaxport.importer.traced.conditions import Condition, Equality, Inequality, balanced, causes, names_in, needed
from jaxport.importer.values.host import Undecided
from jaxport.jaxprs import Dim
from jaxport.jaxprs.dim_text import split_sizes, symbols
from jaxport.jaxprs.dims import evaluate
from jaxport.sizes.conditions import SizeComparison
from jaxport.sizes.sums import only_name

MOST_ROUNDS = 40
LARGEST_FACTOR = 64
LARGE_SIZE = 10**6
"""A size at which no meaningful expression of sizes is negative."""

Result = TypeVar("Result")


Bounds = tuple[int, int | None]
"""The smallest value of a size, and the largest if it has one."""


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of sizes.

    Attributes:
      constraints: inequalities, as `jax.export.symbolic_shape` takes them: `length <= 512` if a model slices its
        positions from a table of 512.
      sizes: an expression in place of a name: `2*height`.
      because: the node that needs it, by the text of the assumption.
      read: the names of sizes that are elements of inputs. A check of such an input may ask for any equality.
      empty: the names of sizes that may be 0; others are 1 or more.
      places: the axes of inputs that names are the sizes of.
    """

    constraints: tuple[str, ...] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    places: Mapping[str, int] = field(default_factory=dict)

    def symbol(self, name: str, scope: jax.export.SymbolicScope) -> Dim:
        """Return what stands for a name in a scope."""
        return jax.export.symbolic_shape(self.sizes.get(name, name), scope=scope)[0]

    def with_constraint(self, text: str, where: str) -> Assumptions:
        return replace(self, constraints=(*self.constraints, text), because={**self.because, text: where})

    def bounds(self, name: str) -> Bounds:
        """Return the smallest and the largest value of a size, if it has one."""
        found = [re.fullmatch(rf"{name} ([<>])= (\d+)", text) for text in self.constraints]
        least = [int(match[2]) for match in found if match and match[1] == ">"]
        most = [int(match[2]) for match in found if match and match[1] == "<"]
        return max(least, default=1), min(most, default=None)

    def with_bounds(self, name: str, bounds: Bounds, where: str) -> Assumptions:
        """Return the assumptions with narrower bounds of a size, in place of those that these imply."""
        (least, most), before = bounds, self.bounds(name)
        texts = [f"{name} >= {least}"] * (least > before[0]) + [f"{name} <= {most}"] * (most not in (None, before[1]))
        implied = {
            text for text in self.constraints for new in texts if re.fullmatch(rf"{new[: len(name) + 3]} \d+", text)
        }
        kept = (*(text for text in self.constraints if text not in implied), *texts)
        return replace(self, constraints=kept, because={**self.because, **dict.fromkeys(texts, where)})

    def with_size(self, name: str, text: str, where: str) -> Assumptions:
        """Return the assumptions with an expression for a name; those about the name itself are asked for again."""
        scope = jax.export.SymbolicScope()
        names = {symbol for old in self.sizes.values() for symbol in symbols(old)} | symbols(text) | {name}
        values = {each: jax.export.symbolic_shape(text if each == name else each, scope=scope)[0] for each in names}
        sizes = {each: str(evaluate(old, values)) for each, old in self.sizes.items()}
        constraints = tuple(each for each in self.constraints if name not in names_in(each))
        sizes = {name: str(values[name]), **sizes}
        return replace(self, constraints=constraints, sizes=sizes, because={**self.because, name: where})

    def beyond(self, constraints: Sequence[str]) -> Assumptions:
        """Return the assumptions without constraints that a user gave."""
        return replace(self, constraints=tuple(text for text in self.constraints if text not in constraints))

    @property
    def told(self) -> list[str]:
        """The constraints that do not hold for all sizes, and do not follow from one another."""
        told = [text for text in self.constraints if not self._asked(text).always()]
        for text in told[::-1]:
            others = [self._asked(other) for other in told if other != text]
            if others and self._asked(text).always(others):
                told.remove(text)
        return told

    def _asked(self, text: str) -> SizeComparison:
        asked = SizeComparison.of(text)
        for name in sorted(asked.names & self.empty):
            asked = asked.with_size(name, f"{name} - 1")
        return asked

    @property
    def checks(self) -> list[SizeComparison]:
        """What a printed model checks as it runs: all that is told, as simply as it can be said."""
        found: dict[SizeComparison, None] = {}
        for text in self.told:
            asked = SizeComparison.of(text)
            simplest = None if asked.names & self.empty else asked.condition()
            found |= dict.fromkeys(simplest or (asked,))
        return [*found]

    def lines(self) -> list[str]:
        """Return what is assumed, as sentences.

        >>> Assumptions(("length <= 512",), sizes={"height": "8*height"}).lines()
        ['`height` has to be a multiple of 8', '`length <= 512` has to hold']
        """
        lines = [(_size_line(name, text), self.because.get(name, "")) for name, text in self.sizes.items()]
        lines += [(f"`{text}` has to hold", self.because.get(text, "")) for text in self.told]
        return [f"{line}, for {where}" if where else line for line, where in lines]


def _size_line(name: str, text: str) -> str:
    linear = only_name(text)
    if linear is None or linear[0] != name:
        return f"`{name}` has to be {text}" if text.isdecimal() else f"`{name}` has to be `{text}`"
    _, factor, offset = linear
    if not offset:
        return f"`{name}` has to be a multiple of {factor}"
    return f"`{name}` has to be {offset} more than a multiple of {factor}"


def with_assumptions(
    attempt: Callable[[Assumptions], Result],
    assumed: Assumptions = Assumptions(),
) -> Result:
    """Return `attempt(assumptions)` with those that its failures ask for, as far as arithmetic alone decides them.

    Args:
      attempt: what may fail.
      assumed: what is assumed from the beginning.

    Raises:
      JaxportError: it fails for another reason.
    """
    return _attempted(attempt, assumed, iter(range(MOST_ROUNDS)))


def _attempted(attempt: Callable[[Assumptions], Result], assumed: Assumptions, rounds: Iterator[int]) -> Result:
    for _ in rounds:
        try:
            return attempt(assumed)
        except JaxportError as error:
            chain = causes(error)
            undecided = next((link for link in chain if isinstance(link, Undecided)), None)
            if undecided is not None and not any(getattr(link, "headline", "") == BRANCH_NOT_KNOWN for link in chain):
                worlds = _worlds(assumed, undecided, place_of(error)[1])
                is_sign = (undecided.symbol, undecided.right) == (">=", "0")
                worlds = worlds[::-1] if is_sign else worlds
                return _with_one(attempt, worlds, rounds, error, is_sign or "1" in (undecided.left, undecided.right))
            conditions = needed(error)
            worlds = [world for each in conditions for world in _sides(assumed, each, place_of(error)[1])]
            if len(worlds) == 2:
                return _with_one(attempt, worlds, rounds, error)
            more = _strengthened(assumed, conditions, place_of(error)[1])
            if more is None:
                raise
            assumed = more
    return attempt(assumed)


def _with_one(
    attempt: Callable[[Assumptions], Result],
    worlds: Sequence[Assumptions],
    rounds: Iterator[int],
    error: JaxportError,
    prefers_first: bool = False,
) -> Result:
    """Return the result of the only world in which `attempt` succeeds; raise `error` if there is none, or several.

    A world is a set of assumptions: what a comparison of sizes leaves open is true in one, and false in the other. If
    `prefers_first`, the first world that succeeds is taken without trying the other.

    Exporters compare a size with 1 where they remove an axis: any other size is the usual one. Images so small that the
    size of a window's result would be negative are not: where both signs fit, the usual one is assumed, and checked.
    """
    results: list[Result] = []
    for world in worlds:
        try:
            results.append(_attempted(attempt, world, rounds))
        except ValueNotKnown:
            break  # it might fit
        except JaxportError:
            continue
        if prefers_first:
            break
    if len(results) != 1:
        raise error
    return results[0]


def _sides(assumed: Assumptions, condition: Condition, where: str) -> list[Assumptions]:
    """Return the assumptions for sizes beyond a number and for those up to it, if two sizes are equal with either."""
    if not isinstance(condition, Equality):
        return []
    beyond, cut = _beyond(condition), _cut(condition)
    if beyond is None or cut is None or cut in assumed.constraints or beyond[1] <= assumed.bounds(beyond[0])[0]:
        return []
    return [assumed.with_bounds(beyond[0], (beyond[1], None), where), assumed.with_constraint(cut, where)]


def _worlds(assumed: Assumptions, undecided: Undecided, where: str) -> list[Assumptions]:
    """Return the assumptions for either result of a comparison, that of unequal sizes first; none if they are no
    bounds.
    """
    asked = SizeComparison(undecided.left, undecided.symbol, undecided.right)
    if len(asked.names) != 1:
        return []
    (name,) = asked.names
    given = [one for one in map(SizeComparison.of, assumed.constraints) if one.names == asked.names]
    is_one = "1" in (undecided.left, undecided.right)
    if is_one:  # an axis has one element at least
        given.append(SizeComparison(undecided.left if undecided.right == "1" else undecided.right, ">=", "1"))
    unequal = asked if undecided.symbol == "!=" else asked.opposite
    first, other = (_bounds_in(one.condition(given), name) for one in (unequal, unequal.opposite))
    if first is None or other is None:
        return []
    if is_one and first[0] < other[0]:  # as in `1 < n`
        first, other = other, first
    return [assumed.with_bounds(name, bound, where) for bound in (first, other)]


def _bounds_in(found: Sequence[SizeComparison] | None, name: str) -> Bounds | None:
    """Return the bounds of a name that comparisons are; None if they are others, or none."""
    least, most = 1, None
    for one in found or ():
        if one.left != name or not one.right.isdecimal() or one.symbol not in ("==", ">=", "<="):
            return None
        least = max(least, int(one.right)) if one.symbol != "<=" else least
        most = int(one.right) if one.symbol != ">=" else most
    return (least, most) if found else None


def _strengthened(assumed: Assumptions, conditions: Sequence[Condition], where: str) -> Assumptions | None:
    """Return assumptions that imply the conditions, as far as these have one solution; None if no condition has one."""
    before = assumed
    done: set[str] = set()
    for condition in conditions:
        if done & names_in(str(condition)):
            continue  # it is read in the symbols before a substitution
        if isinstance(condition, Inequality):
            assumed = _with_inequality(assumed, condition, where)
            continue
        cut = _cut(condition)
        if cut is not None and cut not in assumed.constraints:
            assumed = assumed.with_constraint(cut, where)
            continue
        rule = _identity(condition)
        if rule is not None and rule not in assumed.constraints:
            assumed = assumed.with_constraint(rule, where)
            continue
        is_read = bool(symbols(f"{condition.left} + {condition.right}") & assumed.read)
        found = _solutions(condition._replace(broadcasts=False) if is_read else condition)
        found = found or (_of_sum(condition, assumed.read) if is_read else _of_axis(condition, assumed.places))
        if len(found) == 1:
            ((name, text),) = found.items()
            assumed, done = assumed.with_size(name, text, where), done | {name}
            continue
        product = _of_product(condition) if is_read and not found else None
        if product is not None and product not in assumed.constraints:
            assumed = assumed.with_constraint(product, where)
            continue
        beyond = _beyond(condition)
        if not found and beyond is not None and beyond[1] > assumed.bounds(beyond[0])[0]:
            assumed = assumed.with_bounds(beyond[0], (beyond[1], None), where)
    return None if assumed is before else assumed


def _of_sum(condition: Equality, names: Collection[str]) -> dict[str, str]:
    """Return one of some names as the rest of the sum that it is in; nothing if there is no such sum.

    >>> _of_sum(Equality("8", "first + second", False), {"first", "second"})
    {'first': '8 - second'}
    """
    for side, other in ((condition.left, condition.right), (condition.right, condition.left)):
        terms = side.split(" + ")
        if len(terms) > 1 and terms[0] in names and set(terms[1:]) <= {*names} - {terms[0]}:
            return {terms[0]: " - ".join([other, *terms[1:]])}
    return {}


def _of_axis(condition: Equality, places: Mapping[str, int]) -> dict[str, str]:
    """Return a size in place of another one of the same axis, which is equal to it, or a factor of what it divides.

    Exporters name the axes of each input apart, as a batch of tokens and that of their mask.

    >>> axes = {"batch": 0, "seq": 1, "masks": 0, "keys": 1}
    >>> _of_axis(Equality("mod(masks*keys, batch)", "0", False), axes), _of_axis(Equality("keys", "seq", True), axes)
    ({'masks': 'batch'}, {'keys': 'seq'})
    """
    divided = re.fullmatch(r"mod\((\w+(?:\*\w+)*), (\w+)\)", condition.left) if condition.right == "0" else None
    sides = (condition.left, condition.right) if divided is None else divided.groups()
    names = {one for side in sides for one in side.split("*") if one in places}
    stays = sides[1] if divided is not None else next((one for one in places if one in names), "")
    alike = [one for one in names - {stays} if places[one] == places.get(stays)]
    return {alike[0]: stays} if len(alike) == 1 and (divided is not None or names == {*sides}) else {}


def _of_product(condition: Equality) -> str | None:
    """Return an equality as a constraint that JAX takes: with a product on its left side; None if there is none.

    >>> _of_product(Equality("24", "rows*columns", False))
    'rows*columns == 24'
    """
    for side, other in ((condition.left, condition.right), (condition.right, condition.left)):
        if re.fullmatch(r"[A-Za-z_]\w*(\*[A-Za-z_]\w*)+", side):
            return f"{side} == {other}"
    return None


def _with_inequality(assumed: Assumptions, condition: Inequality, where: str) -> Assumptions:
    asked = SizeComparison.of(condition.text)
    given = [one for one in map(SizeComparison.of, assumed.constraints) if one.names & asked.names]
    found = asked.condition(given)
    (name, *others) = asked.names or ("",)
    bounds = None if others else _bounds_in(found, name)
    if bounds is not None:
        return assumed.with_bounds(name, bounds, where)
    if condition.text in assumed.constraints:
        return assumed
    return assumed.with_constraint(condition.text, where)


@functools.cache
def _identity(condition: Equality) -> str | None:
    """Return an equality that holds for all sizes, and that JAX does not see: of quotients of quotients, and of
    extremes; None of others.

    >>> _identity(Equality("floordiv(floordiv(n - 127, 64) - 6, 3) + 2", "floordiv(n - 127, 192)", False))
    'floordiv(floordiv(n - 127, 64) - 6, 3) == floordiv(n - 127, 192) - 2'
    >>> _identity(Equality("mod(6*floordiv(floordiv(n, 5) - 2, 2), 3*floordiv(n, 10) - 3)", "0", False))
    'floordiv(floordiv(n, 5) - 2, 2) == floordiv(n, 10) - 1'
    >>> _identity(Equality("n", "min(5*floordiv(mod(- n, 5) + n, 5), n)", False))
    'min(5*floordiv(mod(- n, 5) + n, 5), n) == n'
    """
    left, right, _ = condition
    names, scope = sorted(names_in(str(condition))), jax.export.SymbolicScope()
    if right == "0" and left.startswith("mod(") and balanced(left, 4) == left[4:-1]:
        left, divisor = split_sizes(left[4:-1])
        right = f"{_times(left, divisor, names)}*({divisor})"
    if not SizeComparison(left, "==", right).always():
        return None
    values = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in names}
    for side, other in ((left, right), (right, left)):
        for match in re.finditer(r"(?:^|(?<=[+] ))(?:(\d+)\*)?(floordiv|min|max)\(", side):
            inside, factor = balanced(side, match.end()), int(match[1] or 1)
            if match[2] != "floordiv" or "floordiv" in inside:
                term = f"{match[2]}({inside})"
                rest = evaluate(other, values) - (evaluate(side, values) - factor * evaluate(term, values))
                return f"{term} == {rest // factor}"
    return None


def _times(dividend: str, divisor: str, names: Collection[str]) -> int:
    """Return how many times one large size goes into another, which is as often for all sizes if for any number.

    >>> _times("6*n", "2*n + 1", ["n"]), _times("n", "max(0, 5 - n)", ["n"])
    (2, 0)
    """
    try:
        whole, part = (evaluate(side, dict.fromkeys(names, LARGE_SIZE)) for side in (dividend, divisor))
        return whole // part
    except ZeroDivisionError:
        return 0


def _cut(condition: Equality) -> str | None:
    """Return the constraint under which the rows that a slice has at most are not fewer than it asks for.

    >>> _cut(Equality("min(8, past + seq)", "past + seq", True))
    'past + seq <= 8'
    >>> _cut(Equality("seq", "- max(- seq + 64, 0) + 64", True))
    'seq <= 64'
    """
    if not re.search(r"\b(?:min|max)\(", str(condition)):
        return None
    found = SizeComparison(condition.left, "==", condition.right).condition()
    return (
        str(found[0]) if found and len(found) == 1 and found[0].symbol == "<=" and found[0].right.isdecimal() else None
    )


def _beyond(condition: Equality) -> tuple[str, int] | None:
    """Return the size from which on two sizes are equal, because one of two numbers is always the larger one.

    >>> _beyond(Equality("mod(max(n, 256) + max(256 - n, 0) - n, 256)", "0", False))
    ('n', 256)
    """
    chosen = re.findall(r"\b(?:min|max)\(", str(condition))
    if not chosen:
        return None
    asked = SizeComparison(condition.left, "==", condition.right)
    found = {name: least for name in sorted(asked.names) if (least := asked.end((), name, beyond=True)) is not None}
    return next(iter(found.items())) if len(found) == 1 else None


def _solutions(condition: Equality) -> dict[str, str]:
    """Return the expressions in place of names under which two sizes are equal, one for each name that has one."""
    left, right, broadcasts = condition
    names = sorted(symbols(left) | symbols(right))
    if not any(word in f"{left} {right}" for word in ("floordiv", "mod(")):
        return {} if broadcasts else _linear(left, right, names)
    found = {name: form for name in names if (form := _form(left, right, name, names)) is not None}
    return found or ({} if broadcasts else _linear(left, right, names))


def _form(left: str, right: str, name: str, names: Sequence[str]) -> str | None:
    """Return `k*name + r` that makes two sizes equal, whatever the names are: powers of two first, multiples first."""
    others, asked = {each: 7 + 4 * at for at, each in enumerate(names)}, SizeComparison(left, "==", right)

    def seems(factor: int, offset: int) -> bool:
        values = [{**others, name: factor * n + offset} for n in range(2, 7)]
        return all(_are_equal(left, right, each) for each in values)

    symbol = jax.export.symbolic_shape(name)[0]
    forms = ((factor, str(factor * symbol + offset)) for factor, offset in _forms(asked) if seems(factor, offset))
    return next((form for _, form in forms if asked.with_size(name, form).always()), None)


def _forms(asked: SizeComparison) -> Iterator[tuple[int, int]]:
    """Yield factors and offsets of sizes of which quotients and remainders are whole."""
    yield from _FORMS
    yield from ((factor, 0) for factor in asked.factors if factor >= LARGEST_FACTOR)


_POWERS = [2**n for n in range(1, 7)]
_FORMS = [
    *((factor, 0) for factor in _POWERS),
    *((factor, 0) for factor in range(3, LARGEST_FACTOR) if factor not in _POWERS),
    *((factor, offset) for factor in _POWERS[:4] for offset in range(1, factor)),
]


def _linear(left: str, right: str, names: Sequence[str]) -> dict[str, str]:
    """Return the only number that a single name can be, or the name that is another size."""
    if len(names) == 1:
        found = SizeComparison(left, "==", right).condition() or ()
        return {one.left: one.right for one in found if one.symbol == "==" and one.left == names[0]}
    alone = {one: other for one, other in ((left, right), (right, left)) if one in names and one not in symbols(other)}
    # Of two names that are equal the second stays.
    return dict([*alone.items()][:1])


def demand(error: Exception) -> str:
    """Return what has to hold of the sizes of a program that cannot be traced, if its error is about them.

    >>> demand(TypeError("add got incompatible shapes for broadcasting: (b, t, 8), (1, min(512, t), 8)."))
    '`t <= 512` has to hold'
    """
    conditions = needed(error)
    stronger = _strengthened(Assumptions(), conditions, "") if conditions else None
    if stronger is not None:
        return " and ".join(stronger.lines())
    return " and ".join(f"`{condition}` has to hold" for condition in conditions)


def example(condition: Condition) -> dict[str, str]:
    """Return sizes by name for which a condition holds, if some are found: expressions, or else one number for all
    names.
    """
    if isinstance(condition, Inequality):
        return {}
    left, right, _ = condition
    names = sorted(symbols(left) | symbols(right))
    solutions = _solutions(Equality(left, right, False))
    if solutions:
        return dict([*solutions.items()][-1:])  # the first axis is that of a batch
    alike = [SizeComparison(left, "==", right), *([] if right == "0" else [SizeComparison(right, ">=", "1")])]
    for name in names:
        alike = [one.with_size(name, "size") for one in alike]
    found = SizeComparison.solution(alike, ["size"])
    return {} if found is None else dict.fromkeys(names, str(found["size"]))


def _are_equal(left: str, right: str, values: Mapping[str, int]) -> bool:
    """Whether two sizes are equal at some values; not where one divides by zero.

    >>> _are_equal("mod(9, n - 1)", "1", {"n": 3}), _are_equal("mod(9, n - 1)", "1", {"n": 1})
    (True, False)
    """
    try:
        return bool(evaluate(left, values) == evaluate(right, values))
    except ArithmeticError:
        return False


def place_of(error: JaxportError) -> tuple[str, str]:
    """Return the operator that an error is about, and where it is."""
    refusals = getattr(error, "refusals", ())
    if refusals:
        return refusals[0].name, refusals[0].where
    named = re.match("`(\\w+)`", getattr(error, "refused", ""))
    return named[1] if named else "", getattr(error, "where", "")

"""What has to hold for sizes that only have names: conditions, solved as far as arithmetic decides them.

A file declares `[batch, 3, height, width]`, and its network halves an image, doubles it again, and joins it with the image:
`2*floordiv(height, 2) == height`. That holds for even heights, so `height` becomes `2*height`.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import jax

from jaxport.errors import JaxportError, ValueNotKnown
from jaxport.importer.resolving.node_settings import BRANCH_NOT_KNOWN
from jaxport.importer.traced.conditions import (
    Condition,
    Equality,
    Inequality,
    balanced,
    causes,
    names_in,
    needed,
)
from jaxport.importer.values.host import Undecided
from jaxport.jaxprs import Dim
from jaxport.jaxprs.dim_text import split_sizes, symbols
from jaxport.jaxprs.dims import evaluate, same, solve_linear

__all__ = ["Assumptions", "Bounds", "demand", "example", "place_of", "with_assumptions"]

MOST_ROUNDS = 40
LARGEST_FACTOR = 64
LARGEST_SIZE = 4096
"""The largest size that is tried."""
LARGEST_PERIOD = 2**16
"""The sizes after which quotients repeat, but for a multiple, up to which they are compared."""
_NO_SUM_OF_QUOTIENTS = re.compile(r"\b(mod|max|min)\(|\^|\)\s*\*|[A-Za-z_]\w*\s*\*")
"""Other functions, powers, and products but those of a number with what is behind it."""
LARGEST_BOUND = 2**40
"""A size up to which a bound is looked for."""

Result = TypeVar("Result")


Bounds = tuple[int, int | None]
"""The smallest value of a size, and the largest if it has one."""


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of sizes.

    Attributes:
      constraints: inequalities, as `jax.export.symbolic_shape` takes them: `length <= 512` if a model slices its positions
        from a table of 512.
      checked: the smallest and the largest value of sizes for which others would have other results, by name.
      sizes: an expression in place of a name: `2*height`.
      because: the node that needs it, by the text of the assumption.
      read: the names of sizes that are elements of inputs. A check of such an input may ask for any equality.
    """

    constraints: tuple[str, ...] = ()
    checked: Mapping[str, Bounds] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)
    read: frozenset[str] = frozenset()

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

    def with_bounds(self, name: str, bounds: Bounds, where: str, checked: bool) -> Assumptions:
        """Return the assumptions with narrower bounds of a size, in place of those that these imply."""
        (least, most), before = bounds, self.bounds(name)
        texts = [f"{name} >= {least}"] * (least > before[0]) + [f"{name} <= {most}"] * (most not in (None, before[1]))
        implied = {
            text for text in self.constraints for new in texts if re.fullmatch(rf"{new[: len(name) + 3]} \d+", text)
        }
        kept = (*(text for text in self.constraints if text not in implied), *texts)
        seen = {**self.checked, name: (max(least, before[0]), before[1] if most is None else most)}
        because = {**self.because, **dict.fromkeys(texts, where)}
        checked_too = seen if checked or name in self.checked else self.checked
        return replace(self, constraints=kept, checked=checked_too, because=because)

    def with_size(self, name: str, text: str, where: str) -> Assumptions:
        """Return the assumptions with an expression for a name; those about the name itself are asked for again."""
        scope = jax.export.SymbolicScope()
        names = {symbol for old in self.sizes.values() for symbol in symbols(old)} | symbols(text) | {name}
        values = {each: jax.export.symbolic_shape(text if each == name else each, scope=scope)[0] for each in names}
        sizes = {each: str(evaluate(old, values)) for each, old in self.sizes.items()}
        constraints = tuple(each for each in self.constraints if name not in names_in(each))
        checked = {each: bounds for each, bounds in self.checked.items() if each != name}
        sizes = {name: str(values[name]), **sizes}
        return replace(
            self, constraints=constraints, checked=checked, sizes=sizes, because={**self.because, name: where}
        )

    def beyond(self, constraints: Sequence[str]) -> Assumptions:
        """Return the assumptions without constraints that a user gave."""
        return replace(self, constraints=tuple(text for text in self.constraints if text not in constraints))

    @property
    def told(self) -> list[str]:
        """The constraints that do not hold for all sizes."""
        return [text for text in self.constraints if not _always(text)]

    def lines(self) -> list[str]:
        """Return what is assumed, as sentences.

        >>> Assumptions(("length <= 512",), sizes={"height": "8*height"}).lines()
        ['`height` has to be a multiple of 8', '`length <= 512` has to hold']
        """
        lines = [(_size_line(name, text), self.because.get(name, "")) for name, text in self.sizes.items()]
        lines += [(f"`{text}` has to hold", self.because.get(text, "")) for text in self.told]
        return [f"{line}, for {where}" if where else line for line, where in lines]


def _size_line(name: str, text: str) -> str:
    linear = solve_linear(jax.export.symbolic_shape(text)[0]) if not text.isdecimal() else None
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

    Exporters compare a size with 1 where they remove an axis: any other size is the usual one. Images so small that the size
    of a window's result would be negative are not: where both signs fit, the usual one is assumed, and checked.
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
    beyond = _beyond(condition) if isinstance(condition, Equality) else None
    cut = None if beyond is None or not isinstance(condition, Equality) else _cut(condition)
    if beyond is None or cut is None or cut in assumed.constraints or beyond[1] <= assumed.bounds(beyond[0])[0]:
        return []
    return [assumed.with_bounds(beyond[0], (beyond[1], None), where, True), assumed.with_constraint(cut, where)]


def _worlds(assumed: Assumptions, undecided: Undecided, where: str) -> list[Assumptions]:
    """Return the assumptions for either result of a comparison, that of unequal sizes first; none if they are no bounds."""
    names = symbols(undecided.left) | symbols(undecided.right)
    if len(names) != 1:
        return []
    (name,), compare = names, _COMPARISONS[undecided.symbol]
    least, most = assumed.bounds(name)
    last = LARGEST_SIZE if most is None else most
    parts: dict[bool, list[int]] = {undecided.symbol == "!=": [], undecided.symbol != "!=": []}
    for n in range(least, last + 1):
        try:
            left, right = (evaluate(side, {name: n}) for side in (undecided.left, undecided.right))
        except ArithmeticError:
            return []
        if "1" not in (undecided.left, undecided.right) or left >= right == 1 or right >= left == 1:
            parts[compare(left, right)].append(n)  # an axis has one element at least
    if not all(part and part[-1] - part[0] == len(part) - 1 for part in parts.values()):
        return []
    first, other = parts[undecided.symbol == "!="], parts[undecided.symbol != "!="]
    if "1" in (undecided.left, undecided.right) and first[0] < other[0]:  # as in `1 < n`
        first, other = other, first
    bounds = [(part[0], None if part[-1] == last and most is None else part[-1]) for part in (first, other)]
    return [assumed.with_bounds(name, bound, where, True) for bound in bounds]


_COMPARISONS: Mapping[str, Callable[[Dim, Dim], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


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
        found = found or (_of_sum(condition, assumed.read) if is_read else {})
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
            assumed = assumed.with_bounds(beyond[0], (beyond[1], None), where, True)
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
    solved = _solved(condition.text)
    if solved is not None:
        name, (least, most) = solved
        text = f"{name} >= {least}" if most is None else f"{name} <= {most}"
        if text not in assumed.constraints:
            return assumed.with_bounds(name, (least, most), where, condition.checked or name in assumed.read)
    if condition.checked or condition.text in assumed.constraints:
        return assumed
    return assumed.with_constraint(condition.text, where)


def _solved(text: str) -> tuple[str, Bounds] | None:
    """Return the name in an inequality, and the sizes for which it holds: those from one on, or those up to one.

    >>> _solved("floordiv(h - 2, 2) + 1 >= 1"), _solved("- n + 7 >= 0"), _solved("- floordiv(n, 2) + 5000 >= 0")
    (('h', (2, None)), ('n', (1, 7)), ('n', (1, 10001)))
    """
    names, (left, right) = names_in(text), text.split(">=") if ">=" in text else ("0", "1")
    if len(names) != 1 or ">=" not in text:
        return None
    (name,) = names
    sizes = range(1, LARGEST_SIZE)
    holds = lambda n: _holds(left, operator.ge, right, {name: n})
    failing = [n for n in sizes if not holds(n)]
    if (
        not failing and len(re.findall(rf"\b{name}\b", text)) == 1 and "mod(" not in text and not holds(LARGEST_BOUND)
    ):  # it only falls
        return name, (1, bisect.bisect_left(range(LARGEST_BOUND), True, key=lambda n: not holds(n)) - 1)
    if len(failing) < LARGEST_SIZE // 2:
        return name, (max(failing, default=0) + 1, None)
    up_to = failing[0] - 1
    return (name, (1, up_to)) if up_to and len(failing) == len(sizes) - up_to else None


def _always(text: str) -> bool:
    """Whether a constraint that JAX cannot decide holds for all sizes, small ones and the largest: a product of sizes does.

    >>> _always("floordiv(h - 3, 4)*floordiv(w - 3, 4) + floordiv(w - 3, 4) + floordiv(h - 3, 4) + 1 >= 0")
    True
    """
    left, comparison, right = re.split("([<>=]=)", text)
    if comparison == "==":
        return _identity(Equality(left.strip(), right.strip(), False)) is not None
    names = sorted(names_in(text))
    sizes = (*range(1, min(40, int(2000 ** (1 / max(len(names), 1))))), LARGEST_SIZE)
    compare = operator.ge if comparison == ">=" else operator.le
    at = [dict(zip(names, values, strict=True)) for values in itertools.product(sizes, repeat=len(names))]
    return all(_holds(left, compare, right, values) for values in at)


@functools.cache
def _identity(condition: Equality) -> str | None:
    """Return an equality that holds for all sizes, and that JAX does not see: of quotients of quotients; None of others.

    Both sides are sums of quotients by numbers: what one is larger after a period than before is always the same.

    >>> _identity(Equality("floordiv(floordiv(n - 127, 64) - 6, 3) + 2", "floordiv(n - 127, 192)", False))
    'floordiv(floordiv(n - 127, 64) - 6, 3) == floordiv(n - 127, 192) - 2'
    """
    left, right, _ = condition
    names = sorted(symbols(left) | symbols(right))
    divisors = [[int(number) for number in re.findall(r", (\d+)\)", side)] for side in (left, right)]
    period = math.lcm(*map(math.prod, divisors))
    count = f"{left} {right}".count("floordiv(")
    if len(names) != 1 or sum(map(len, divisors)) < count or not 1 < period <= LARGEST_PERIOD:
        return None
    if _NO_SUM_OF_QUOTIENTS.search(f"{left} {right}"):
        return None
    if not all(_are_equal(left, right, {names[0]: n}) for n in range(1, 2 * period + 1)):
        return None
    scope = jax.export.SymbolicScope()
    values = {names[0]: jax.export.symbolic_shape(names[0], scope=scope)[0]}
    for side, other in ((left, right), (right, left)):
        for match in re.finditer(r"(?:^|(?<=[+] ))floordiv\(", side):
            inside = balanced(side, match.end())
            if "floordiv" in inside:
                term = f"floordiv({inside})"
                rest = evaluate(other, values) - (evaluate(side, values) - evaluate(term, values))
                return f"{term} == {rest}"
    return None


def _cut(condition: Equality) -> str | None:
    """Return the constraint under which the rows that a slice has at most are not fewer than it asks for.

    >>> _cut(Equality("min(8, past + seq)", "past + seq", True))
    'past + seq <= 8'
    """
    scope = jax.export.SymbolicScope()
    values = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in sorted(names_in(str(condition)))}
    sides, constraints = [*condition[:2]], []
    for side in condition[:2]:
        for start in [match.end() for match in re.finditer(r"\bmin\(", side)]:
            inside = balanced(side, start)
            parts = sorted(split_sizes(inside), key=str.isdecimal)
            if [part.isdecimal() for part in parts] == [False, True]:
                sides = [text.replace(f"min({inside})", f"({parts[0]})") for text in sides]
                constraints.append(f"{parts[0]} <= {parts[1]}")
    whole = bool(constraints) and same(*(evaluate(text, values) for text in sides))
    return constraints[0] if whole else None


def _beyond(condition: Equality) -> tuple[str, int] | None:
    """Return the size from which on two sizes are equal, because one of two numbers is always the larger one.

    >>> _beyond(Equality("mod(max(n, 256) + max(256 - n, 0) - n, 256)", "0", False))
    ('n', 256)
    """
    text = f"{condition.left} {condition.right}"
    chosen = [
        part for match in re.finditer(r"\b(min|max)\(", text) for part in split_sizes(balanced(text, match.end()))
    ]
    compared = {name for part in chosen for name in symbols(part)}
    if len(compared) != 1:
        return None
    (name,) = compared
    for least in sorted({int(number) for number in re.findall(r"\b\d{1,6}\b", text)}):
        scope = jax.export.SymbolicScope((f"{name} >= {max(least, 1)}",))
        values = {each: jax.export.symbolic_shape(each, scope=scope)[0] for each in sorted(names_in(str(condition)))}
        if same(evaluate(condition.left, values), evaluate(condition.right, values)):
            return name, least
    return None


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
    others = {each: 7 + 4 * at for at, each in enumerate(names)}

    def holds(factor: int, offset: int) -> bool:
        values = [{**others, name: factor * n + offset} for n in range(2, 7)]
        return all(_are_equal(left, right, each) for each in values)

    scope = jax.export.SymbolicScope()
    plain = {each: jax.export.symbolic_shape(each, scope=scope)[0] for each in names}
    for factor, offset in _FORMS:
        if holds(factor, offset):
            values = {**plain, name: factor * plain[name] + offset}
            if same(evaluate(left, values), evaluate(right, values)):
                return str(values[name])
    return None


_POWERS = [2**n for n in range(1, 7)]
_FORMS = [
    *((factor, 0) for factor in _POWERS),
    *((factor, 0) for factor in range(3, LARGEST_FACTOR) if factor not in _POWERS),
    *((factor, offset) for factor in _POWERS[:4] for offset in range(1, factor)),
]


def _linear(left: str, right: str, names: Sequence[str]) -> dict[str, str]:
    """Return the only number that a single name can be, or the name that is another size."""
    if len(names) == 1:
        found = [n for n in range(1, LARGEST_SIZE) if _are_equal(left, right, {names[0]: n})]
        return {names[0]: str(found[0])} if len(found) == 1 else {}
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
    """Return sizes by name for which a condition holds, if some are found: expressions, or else one number for all names."""
    if isinstance(condition, Inequality):
        return {}
    left, right, _ = condition
    names = sorted(symbols(left) | symbols(right))
    solutions = _solutions(Equality(left, right, False))
    if solutions:
        return dict([*solutions.items()][-1:])  # the first axis is that of a batch
    for size in range(1, LARGEST_SIZE):
        values = dict.fromkeys(names, size)
        if _are_equal(left, right, values) and (right == "0" or evaluate(right, values) >= 1):
            return dict.fromkeys(names, str(size))
    return {}


def _are_equal(left: str, right: str, values: Mapping[str, int]) -> bool:
    return _holds(left, operator.eq, right, values)


def _holds(left: str, compare: Callable[[Dim, Dim], bool], right: str, values: Mapping[str, int]) -> bool:
    """Whether a comparison of two sizes holds at some values; not where one divides by zero.

    >>> _holds("mod(9, n - 1)", operator.ge, "0", {"n": 3}), _holds("mod(9, n - 1)", operator.ge, "0", {"n": 1})
    (True, False)
    """
    try:
        return bool(compare(evaluate(left, values), evaluate(right, values)))
    except ArithmeticError:
        return False


def place_of(error: JaxportError) -> tuple[str, str]:
    """Return the operator that an error is about, and where it is."""
    refusals = getattr(error, "refusals", ())
    if refusals:
        return refusals[0].name, refusals[0].where
    named = re.match("`(\\w+)`", getattr(error, "refused", ""))
    return named[1] if named else "", getattr(error, "where", "")

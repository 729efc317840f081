"""What has to hold for sizes that only have names: read from why a program cannot be traced, and solved.

A file declares `[batch, 3, height, width]`, and its network halves an image, doubles it again, and joins it with the image:
`2*floordiv(height, 2) == height`. That holds for even heights, so `height` becomes `2*height`.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import jax

from jaxport.errors import InvalidArgument, JaxportError
from jaxport.importer.host import SizesNeeded
from jaxport.jaxprs import Dim
from jaxport.jaxprs.dim_text import parse
from jaxport.jaxprs.dims import evaluate, same, solve_linear, symbols

__all__ = ["Assumptions", "Condition", "Equality", "example", "needed", "place_of", "with_assumptions"]

MOST_ROUNDS = 40
LARGEST_FACTOR = 64
LARGEST_SIZE = 4096
"""The largest size that is tried."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of sizes.

    Attributes:
      constraints: inequalities, as `jax.export.symbolic_shape` takes them: `length <= 512` if a model slices its positions
        from a table of 512.
      checked: the smallest value of sizes for which smaller ones would have other results, by name.
      sizes: an expression in place of a name: `2*height`.
      because: the node that needs it, by the text of the assumption.
    """

    constraints: tuple[str, ...] = ()
    checked: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)

    def symbol(self, name: str, scope: jax.export.SymbolicScope) -> Dim:
        """Return what stands for a name in a scope."""
        return jax.export.symbolic_shape(self.sizes.get(name, name), scope=scope)[0]

    def with_constraint(self, text: str, where: str) -> Assumptions:
        constraints = (*self.constraints, text)
        return Assumptions(constraints, self.checked, self.sizes, {**self.because, text: where})

    def with_least(self, name: str, least: int, where: str) -> Assumptions:
        made = self.with_constraint(f"{name} >= {least}", where)
        return Assumptions(made.constraints, {**self.checked, name: least}, made.sizes, made.because)

    def with_size(self, name: str, text: str, where: str) -> Assumptions:
        """Return the assumptions with an expression for a name; those about the name itself are asked for again."""
        scope = jax.export.SymbolicScope()
        names = {symbol for old in self.sizes.values() for symbol in symbols(old)} | symbols(text) | {name}
        values = {each: jax.export.symbolic_shape(text if each == name else each, scope=scope)[0] for each in names}
        sizes = {each: str(evaluate(old, values)) for each, old in self.sizes.items()}
        constraints = tuple(each for each in self.constraints if name not in _names(each))
        checked = {each: least for each, least in self.checked.items() if each != name}
        return Assumptions(constraints, checked, {name: str(values[name]), **sizes}, {**self.because, name: where})

    def beyond(self, constraints: Sequence[str]) -> Assumptions:
        """Return the assumptions without constraints that a user gave."""
        return replace(self, constraints=tuple(text for text in self.constraints if text not in constraints))

    def lines(self) -> list[str]:
        """Return what is assumed, as sentences.

        >>> Assumptions(("length <= 512",), sizes={"height": "8*height"}).lines()
        ['`height` has to be a multiple of 8', '`length <= 512` has to hold']
        """
        lines = [(_size_line(name, text), self.because.get(name, "")) for name, text in self.sizes.items()]
        told = [text for text in self.constraints if not _always(text)]
        lines += [(f"`{text}` has to hold", self.because.get(text, "")) for text in told]
        return [f"{line}, for {where}" if where else line for line, where in lines]


def _size_line(name: str, text: str) -> str:
    linear = solve_linear(jax.export.symbolic_shape(text)[0]) if not text.isdecimal() else None
    if linear is None or linear[0] != name:
        return f"`{name}` has to be {text}" if text.isdecimal() else f"`{name}` has to be `{text}`"
    _, factor, offset = linear
    if not offset:
        return f"`{name}` has to be a multiple of {factor}"
    return f"`{name}` has to be {offset} more than a multiple of {factor}"


class Equality(NamedTuple):
    """Two sizes that have to be equal.

    Attributes:
      left, right: their text.
      broadcasts: whether one of them may be 1 instead.
    """

    left: str
    right: str
    broadcasts: bool

    def __str__(self) -> str:
        return f"{self.left} == {self.right}"


class _Inequality(NamedTuple):
    """A constraint, as JAX takes it.

    Attributes:
      text: its text.
      checked: whether results would differ without it.
    """

    text: str
    checked: bool

    def __str__(self) -> str:
        return self.text


Condition = Equality | _Inequality


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
    for _ in range(MOST_ROUNDS):
        try:
            return attempt(assumed)
        except JaxportError as error:
            more = _strengthened(assumed, needed(error), place_of(error)[1])
            if more is None:
                raise
            assumed = more
    return attempt(assumed)


def _strengthened(assumed: Assumptions, conditions: Sequence[Condition], where: str) -> Assumptions | None:
    """Return assumptions that imply the conditions, as far as these have one solution; None if no condition has one."""
    before = assumed
    done: set[str] = set()
    for condition in conditions:
        if done & _names(str(condition)):
            continue  # it is read in the symbols before a substitution
        if isinstance(condition, _Inequality):
            assumed = _with_inequality(assumed, condition, where)
            continue
        cut = _cut(condition)
        if cut is not None and cut not in assumed.constraints:
            assumed = assumed.with_constraint(cut, where)
            continue
        found = _solutions(condition)
        if len(found) == 1:
            ((name, text),) = found.items()
            assumed, done = assumed.with_size(name, text, where), done | {name}
    return None if assumed is before else assumed


def _with_inequality(assumed: Assumptions, condition: _Inequality, where: str) -> Assumptions:
    least = _least(condition.text)
    if least is not None:
        text = f"{least[0]} >= {least[1]}"
        if text not in assumed.constraints:
            return assumed.with_least(*least, where) if condition.checked else assumed.with_constraint(text, where)
    if condition.checked or condition.text in assumed.constraints:
        return assumed
    return assumed.with_constraint(condition.text, where)


def _least(text: str) -> tuple[str, int] | None:
    """Return the name in an inequality, and the size from which on it holds.

    >>> _least("floordiv(h - 2, 2) + 1 >= 1")
    ('h', 2)
    """
    names, (left, right) = _names(text), text.split(">=") if ">=" in text else ("0", "1")
    if len(names) != 1 or ">=" not in text:
        return None
    (name,) = names
    failing = [n for n in range(1, LARGEST_SIZE) if evaluate(left, {name: n}) < evaluate(right, {name: n})]
    return (name, max(failing, default=0) + 1) if len(failing) < LARGEST_SIZE // 2 else None


def _always(text: str) -> bool:
    """Whether a constraint that JAX cannot decide holds for all sizes, small ones and the largest: a product of sizes does.

    >>> _always("floordiv(h - 3, 4)*floordiv(w - 3, 4) + floordiv(w - 3, 4) + floordiv(h - 3, 4) + 1 >= 0")
    True
    """
    left, comparison, right = re.split("(>=|<=)", text)
    names = sorted(_names(text))
    sizes = (*range(1, min(40, int(2000 ** (1 / max(len(names), 1))))), LARGEST_SIZE)
    compare = operator.ge if comparison == ">=" else operator.le
    at = [dict(zip(names, values, strict=True)) for values in itertools.product(sizes, repeat=len(names))]
    return all(compare(evaluate(left, values), evaluate(right, values)) for values in at)


def _cut(condition: Equality) -> str | None:
    """Return the constraint under which the rows that a slice has at most are not fewer than it asks for.

    >>> _cut(Equality("min(8, past + seq)", "past + seq", True))
    'past + seq <= 8'
    """
    for side in (condition.left, condition.right):
        for start in [match.end() for match in re.finditer(r"\bmin\(", side)]:
            parts = _split(_balanced(side, start))
            numbers = [part for part in parts if part.isdecimal()]
            others = [part for part in parts if not part.isdecimal()]
            if len(numbers) == 1 and len(others) == 1:
                return f"{others[0]} <= {numbers[0]}"
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


def example(condition: Condition) -> dict[str, str]:
    """Return sizes by name for which a condition holds, if some are found: expressions, or else one number for all names."""
    if isinstance(condition, _Inequality):
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
    """Whether two sizes are equal at some values; not where one divides by zero."""
    try:
        return bool(evaluate(left, values) == evaluate(right, values))
    except ArithmeticError:
        return False


_COMPARED = re.compile(r"comparison '([^']*)' >= '([01])' is inconclusive")
_REMAINDER = "The remainder mod("
_REFLECTED = re.compile(
    r"axis size \(= (.*)\) is larger than 1 and larger or equal than the padding length \(= (\d+)\)"
)
_BROADCAST = re.compile(r"(?i)broadcast")


def needed(error: Exception) -> list[Condition]:
    """Return the conditions on sizes whose lack is the reason of an error."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    asked = [link for link in chain if isinstance(link, SizesNeeded)]
    if asked:
        return [_Inequality(asked[-1].constraint, True)]
    return next((found for link in chain[::-1] if (found := _read(str(link)))), [])


def _read(text: str) -> list[Condition]:
    """Return the conditions on sizes in the message of an error."""
    compared = _COMPARED.search(text)
    if compared is not None:
        return [_Inequality(f"{compared[1]} >= {compared[2]}", False)]
    reflected = _REFLECTED.search(text)
    if reflected is not None:  # ONNX reflects an axis once, without its border
        return [_Inequality(f"{reflected[1]} >= {int(reflected[2]) + 1}", False)]
    remainder = text.find(_REMAINDER)
    if remainder >= 0:
        divided, divisor = _split(_balanced(text, remainder + len(_REMAINDER)))
        return [Equality(f"mod({divided}, {_positive(divisor)})", "0", False)]
    return [*_mismatches(text)]


def _positive(divisor: str) -> str:
    """Return a divisor that JAX writes as a negative one, because an axis of the shape is -1."""
    scope = jax.export.SymbolicScope()
    values = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in symbols(divisor)}
    return str(-evaluate(divisor, values) if "-" in divisor else evaluate(divisor, values))


def _mismatches(text: str) -> Iterator[Equality]:
    """Yield the sizes that differ between the first two shapes in a message."""
    shapes = [*_shapes(text)][:2]
    if len(shapes) < 2:
        return
    broadcasts = _BROADCAST.search(text) is not None
    if len(shapes[0]) != len(shapes[1]) and not broadcasts:
        return
    joined = re.search(r"concatenating along dimension (\d+)", text)
    apart = len(shapes[0]) - 1 - int(joined[1]) if joined else -1
    for at, (left, right) in enumerate(zip(*(shape[::-1] for shape in shapes), strict=False)):
        is_one = broadcasts and "1" in (left, right)
        if left != right and at != apart and not is_one and symbols(left) | symbols(right):
            yield Equality(left, right, broadcasts)


def _shapes(text: str) -> Iterator[list[str]]:
    """Yield the shapes in a message: what is in parentheses, and is sizes with commas."""
    at = 0
    while (at := text.find("(", at)) >= 0:
        inside = _balanced(text, at + 1)
        parts = _split(inside)
        if (
            "," in inside
            and (at == 0 or not (text[at - 1].isalnum() or text[at - 1] == "_"))
            and all(map(_is_size, parts))
        ):
            yield parts
            at += len(inside)
        at += 1


@functools.lru_cache(maxsize=256)
def _is_size(text: str) -> bool:
    try:
        return bool(parse(text))
    except InvalidArgument:
        return False


def _balanced(text: str, start: int) -> str:
    """Return the text up to the parenthesis that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return text[start:at]
    return ""


def _split(text: str) -> list[str]:
    """Split at the commas outside of parentheses; one at the end is Python's spelling of one size."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    pieces = [piece.strip() for piece in pieces]
    return pieces[:-1] if len(pieces) > 1 and not pieces[-1] else pieces


def _names(text: str) -> set[str]:
    return {name for side in re.split("[<>=]=", text) for name in symbols(side)}


def place_of(error: JaxportError) -> tuple[str, str]:
    """Return the operator that an error is about, and where it is."""
    refusals = getattr(error, "refusals", ())
    if refusals:
        return refusals[0].name, refusals[0].where
    named = re.match("`(\\w+)`", getattr(error, "refused", ""))
    return named[1] if named else "", getattr(error, "where", "")

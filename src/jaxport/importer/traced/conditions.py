"""Conditions on sizes, read from why a program cannot be traced."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax

from jaxport.errors import InvalidArgument
from jaxport.importer.values.host import SizesDiffer, SizesNeeded
from jaxport.jaxprs.dim_text import parse, split_sizes, symbols
from jaxport.jaxprs.dims import evaluate, same
from jaxport.sizes.sums import size_sum


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


class Inequality(NamedTuple):
    """A constraint, as JAX takes it.

    Attributes:
      text: its text.
    """

    text: str

    def __str__(self) -> str:
        return self.text


Condition = Equality | Inequality


# What JAX asks whether it is smaller, as the elements to pad with, must not be.
_COMPARED = re.compile(r"comparison '([^']*)' (?:>=|<) '(\d+)' is inconclusive")
_REMAINDER = "The remainder mod("
_REFLECTED = re.compile(
    r"axis size \(= (.*)\) is larger than 1 and larger or equal than the padding length \(= (\d+)\)"
)
_BROADCAST = re.compile(r"(?i)broadcast")


def needed(error: Exception) -> list[Condition]:
    """Return the conditions on sizes whose lack is the reason of an error."""
    chain = causes(error)
    asked = [link for link in chain if isinstance(link, SizesNeeded)]
    if asked:
        return [Inequality(asked[-1].constraint)]
    apart = [link for link in chain if isinstance(link, SizesDiffer)]
    if apart:
        return [Equality(*_without_factors(apart[-1].left, apart[-1].right), False)]
    return next((found for link in chain[::-1] if (found := _read(str(link)))), [])


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    return chain


def _read(text: str) -> list[Condition]:
    """Return the conditions on sizes in the message of an error."""
    compared = _COMPARED.search(text)
    if compared is not None:
        return [Inequality(f"{compared[1]} >= {compared[2]}")]
    reflected = _REFLECTED.search(text)
    if reflected is not None:  # ONNX reflects an axis once, without its border; JAX takes one element for a constant
        return [Inequality(f"{reflected[1]} >= {max(int(reflected[2]) + 1, 2)}")]
    remainder = text.find(_REMAINDER)
    if remainder >= 0:
        divided, divisor = split_sizes(balanced(text, remainder + len(_REMAINDER)))
        divided, divisor = _reduced(divided, _positive(divisor))
        return [Equality(f"mod({divided}, {divisor})", "0", False)]
    return [*_mismatches(text)]


def _positive(divisor: str) -> str:
    """Return a divisor that JAX writes as a negative one, because an axis of the shape is -1."""
    scope = jax.export.SymbolicScope()
    values = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in symbols(divisor)}
    return str(-evaluate(divisor, values) if "-" in divisor else evaluate(divisor, values))


def _reduced(divided: str, divisor: str) -> tuple[str, str]:
    """Return a division without the sizes that are factors of both sides.

    >>> _reduced("3*b*n + b*m", "4*b")
    ('3*n + m', '4')
    """
    scope = jax.export.SymbolicScope()
    values = {
        name: jax.export.symbolic_shape(name, scope=scope)[0] for name in sorted(symbols(f"{divided} + {divisor}"))
    }
    for name in sorted(symbols(divisor)):
        parts = [size_sum(side).split(size_sum(name)) for side in (divided, divisor)]
        if all(rest.value == 0 and name not in symbols(str(whole)) for whole, rest in parts):
            divided, divisor = (str(evaluate(side, {**values, name: 1})) for side in (divided, divisor))
    return divided, divisor


def _mismatches(text: str) -> Iterator[Equality]:
    """Yield the sizes that differ between the shapes in a message: all of operands, else the first two."""
    broadcasts = _BROADCAST.search(text) is not None
    joined = re.search(r"concatenating along dimension (\d+)", text)
    shapes = [*_shapes(text)][: None if broadcasts or joined else 2]
    found: dict[Equality, None] = {}
    for pair in itertools.combinations(shapes, 2):
        if len(pair[0]) != len(pair[1]) and not broadcasts:
            continue
        apart = len(pair[0]) - 1 - int(joined[1]) if joined else -1
        for at, (left, right) in enumerate(zip(*(shape[::-1] for shape in pair), strict=False)):
            is_one = broadcasts and "1" in (left, right)
            if left != right and at != apart and not is_one and symbols(left) | symbols(right):
                found[Equality(left, right, broadcasts)] = None
    yield from found


def _without_factors(left: str, right: str) -> tuple[str, str]:
    """Return two sizes without the names and the number that are factors of both.

    >>> _without_factors("12*batch*seq", "12*seq"), _without_factors("64*seq + 64*past", "64*total")
    (('batch', '1'), ('seq + past', 'total'))
    """
    left, right = _reduced(left, right)
    scope = jax.export.SymbolicScope()
    values = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in sorted(symbols(f"{left} + {right}"))}
    number = math.gcd(*map(int, re.findall(r"\b\d+\b", f"{left} {right}")))
    if number > 1 and left != right:
        sides = [evaluate(side, values) for side in (left, right)]
        if all(same(side, side // number * number) for side in sides):
            left, right = (str(side // number) for side in sides)
    return left, right


def _shapes(text: str) -> Iterator[list[str]]:
    """Yield the shapes in a message: what is in parentheses, and is sizes with commas."""
    at = 0
    while (at := text.find("(", at)) >= 0:
        inside = balanced(text, at + 1)
        parts = split_sizes(inside)
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


def balanced(text: str, start: int) -> str:
    """Return the text up to the parenthesis that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return text[start:at]
    return ""


def names_in(text: str) -> set[str]:
    """Return the names of sizes in a condition."""
    return {name for side in re.split("[<>=]=", text) for name in symbols(side)}

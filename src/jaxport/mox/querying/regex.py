"""Regular expressions in queries: read by Python, and matched in a time that does not explode.

Python tries one way after another, so that `(a+)+b` takes minutes for thirty letters. Here a pattern maps a set of
positions in the text to those at which it may end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

# The only reader of Python's patterns is private; a test compares the results with those of `re`.
from re import _constants as codes, _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

from jaxport.errors import QueryError

_MOST = 1_000_000
"""The number of steps that a pattern may take for one text."""

_CATEGORIES = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_WORD: lambda letter: letter.isalnum() or letter == "_",
}
_OPPOSITES = {
    codes.CATEGORY_NOT_DIGIT: codes.CATEGORY_DIGIT,
    codes.CATEGORY_NOT_SPACE: codes.CATEGORY_SPACE,
    codes.CATEGORY_NOT_WORD: codes.CATEGORY_WORD,
}


def matches(text: str, pattern: str) -> bool:
    r"""Whether a pattern matches somewhere in a text.

    Raises:
      QueryError: it has a back reference, looks behind, or changes flags inside; or it takes too long.
      re.error: it is malformed.

    >>> matches("layers.10.mlp", r"^layers\.\d+"), matches("a" * 40, "(a+)+b")
    (True, False)
    """
    items, flags = _parsed(pattern)
    return bool(_Matching(text, pattern, flags).ends(items, frozenset(range(len(text) + 1))))


@lru_cache(maxsize=64)
def _parsed(pattern: str) -> tuple[Sequence[tuple], int]:
    made = parser.parse(pattern)
    return made, made.state.flags


class _Matching:
    """One pattern and one text."""

    def __init__(self, text: str, pattern: str, flags: int):
        self.folded = bool(flags & re.IGNORECASE)
        self.lines = bool(flags & re.MULTILINE)
        self.dotall = bool(flags & re.DOTALL)
        self.pattern = pattern
        self.text = text
        self.left = _MOST + 20 * len(text)

    def refused(self, why: str) -> QueryError:
        return QueryError(
            f"the regular expression `{self.pattern}` is not supported",
            where="`matches`",
            why=why,
            instead="write it without",
        )

    def ends(self, items: Sequence[tuple], starts: frozenset[int]) -> frozenset[int]:
        """Return the positions at which a sequence may end that begins at one of `starts`."""
        for code, argument in items:
            if not starts:
                break
            self.left -= 1 + len(starts)
            if self.left < 0:
                raise QueryError(
                    f"the regular expression `{self.pattern}` takes too long",
                    where="`matches`",
                    why=f"more than {_MOST:,} steps for a text of {len(self.text)} characters",
                    instead="nest fewer repetitions, or give a predicate: `mox.select(lambda match: ...)`",
                )
            starts = self.after(code, argument, starts)
        return starts

    def after(self, code: Any, argument: Any, starts: frozenset[int]) -> frozenset[int]:
        """Return the positions at which one item may end."""
        match code:
            case codes.LITERAL | codes.NOT_LITERAL | codes.IN | codes.ANY:
                ends = [start for start in starts if start < len(self.text)]
                return frozenset(start + 1 for start in ends if self.is_one(code, argument, self.text[start]))
            case codes.BRANCH:
                return frozenset().union(*(self.ends(branch, starts) for branch in argument[1]))
            case codes.SUBPATTERN:
                if argument[1] or argument[2]:
                    raise self.refused("flags inside it are not supported")
                return self.ends(argument[3], starts)
            case codes.MAX_REPEAT | codes.MIN_REPEAT:
                least, most, body = argument
                return self.repeated(least, most, body, starts)
            case codes.AT:
                return frozenset(start for start in starts if self.is_at(argument, start))
            case codes.ASSERT | codes.ASSERT_NOT if argument[0] > 0:
                wanted = code is codes.ASSERT
                return frozenset(one for one in starts if bool(self.ends(argument[1], frozenset((one,)))) == wanted)
        raise self.refused("it has a back reference, looks behind, or gives nothing back")

    def repeated(self, least: int, most: int, items: Sequence[tuple], starts: frozenset[int]) -> frozenset[int]:
        count = 0
        while count < least and starts:
            ends = self.ends(items, starts)
            # What ends where it began does so any number of times.
            count = least if ends == starts else count + 1
            starts = ends
        reached, new = starts, starts
        while new and (most is codes.MAXREPEAT or count < most):
            new = self.ends(items, new) - reached
            reached |= new
            count += 1
        return reached

    def is_one(self, code: Any, argument: Any, letter: str) -> bool:
        """Whether a letter is what an item asks for."""
        letters = {letter, letter.lower(), letter.upper()} if self.folded else {letter}
        match code:
            case codes.ANY:
                return self.dotall or letter != "\n"
            case codes.LITERAL:
                return chr(argument) in letters
            case codes.NOT_LITERAL:
                return chr(argument) not in letters
        negated = argument[0][0] is codes.NEGATE
        return any(_is_in(item, one) for item in argument[negated:] for one in letters) != negated

    def is_at(self, place: object, position: int) -> bool:
        text, size = self.text, len(self.text)
        match place:
            case codes.AT_BEGINNING:
                return position == 0 or (self.lines and text[position - 1] == "\n")
            case codes.AT_BEGINNING_STRING:
                return position == 0
            case codes.AT_END:
                rest = text[position:]
                return rest in ("", "\n") or (self.lines and rest[0] == "\n")
            case codes.AT_END_STRING:
                return position == size
        is_word = _CATEGORIES[codes.CATEGORY_WORD]
        sides = [0 <= index < size and is_word(text[index]) for index in (position - 1, position)]
        return (sides[0] != sides[1]) == (place is codes.AT_BOUNDARY)


def _is_in(item: tuple, letter: str) -> bool:
    code, argument = item
    match code:
        case codes.LITERAL:
            return ord(letter) == argument
        case codes.RANGE:
            return argument[0] <= ord(letter) <= argument[1]
    opposite = _OPPOSITES.get(argument)
    return not _CATEGORIES[opposite](letter) if opposite is not None else _CATEGORIES[argument](letter)

"""Regular expressions in time linear in the text, whatever the expression: ONNX uses RE2's, not Python's.

Python's parser reads them; the result becomes an automaton without backtracking, whose states are followed all at once.
Features that need backtracking (references to groups, lookahead and lookbehind), which RE2 lacks too, are refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from jaxport.errors import ModelError

# The parser of `re` has this name since Python 3.11.
_parser: Any = vars(re)["_parser"]
_names: Any = vars(re)["_constants"]

MOST_STATES = 20_000
MOST_REPEATS = 1000
"""The largest repeat count of RE2."""

Test = Callable[[str], bool]


class Regular:
    r"""A regular expression that matches whole texts.

    Args:
      pattern: the expression.

    Raises:
      ModelError: it is malformed, needs backtracking, or is too large.

    >>> Regular("(a+)+b").matches("a" * 50), Regular(r"\w{2,3}|[^x]").matches("ab")
    (False, True)
    """

    def __init__(self, pattern: str):
        self.pattern = pattern
        # A state is a test of a character and the next state, or a list of states that follow at once.
        self.states: list[tuple[Test, int] | tuple[str, list[int]]] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about what Python's expressions may mean one day
                tree = _parser.parse(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise self._refused(str(error)) from error
        self.flags = tree.state.flags
        self.end = self._follow("end", [])
        self.start = self._sequence(list(tree), self.end)

    def _refused(self, why: str) -> ModelError:
        return ModelError(
            f"the regular expression `{self.pattern[:100]}` is refused",
            why=why,
            instead="write it in the syntax of RE2",
        )

    def matches(self, text: str) -> bool:
        """Whether the whole text is matched."""
        current = self._reached([self.start], text, 0)
        for position, character in enumerate(text):
            following = [
                state[1]
                for index in current
                if callable((state := self.states[index])[0]) and isinstance(state[1], int) and state[0](character)
            ]
            current = self._reached(following, text, position + 1)
            if not current:
                return False
        return self.end in current

    def _reached(self, states: Iterable[int], text: str, position: int) -> set[int]:
        pending, seen = list(states), set()
        while pending:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            kind, following = self.states[index]
            if isinstance(following, list) and (kind in ("jump", "end") or _holds(str(kind), text, position)):
                pending += following
        return seen

    def _follow(self, kind: str, following: list[int]) -> int:
        self.states.append((kind, following))
        if len(self.states) > MOST_STATES:
            raise self._refused(f"it has more than {MOST_STATES} states")
        return len(self.states) - 1

    def _sequence(self, items: list[Any], after: int) -> int:
        for kind, argument in reversed(items):
            after = self._item(str(kind), argument, after)
        return after

    def _item(self, kind: str, argument: Any, after: int) -> int:
        match kind:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                self.states.append((self._test(kind, argument), after))
                return self._follow("jump", [len(self.states) - 1])
            case "BRANCH":
                return self._follow("jump", [self._sequence(list(branch), after) for branch in argument[1]])
            case "SUBPATTERN":
                _, added, removed, inner = argument
                outer, self.flags = self.flags, (self.flags | added) & ~removed
                start = self._sequence(list(inner), after)
                self.flags = outer
                return start
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = argument
                return self._repeated(least, most, inner, after)
            case "AT":
                name = str(argument)
                multiline = bool(self.flags & re.MULTILINE)
                if name in ("AT_BEGINNING", "AT_END") and multiline:
                    name += "_LINE"
                return self._follow(name, [after])
        raise self._refused(f"RE2 has no {kind.lower().replace('_', ' ')}")

    def _repeated(self, least: int, most: Any, inner: Any, after: int) -> int:
        items, unbounded = list(inner), most is _names.MAXREPEAT
        if least > MOST_REPEATS or (not unbounded and most > MOST_REPEATS):
            raise self._refused(f"it repeats something more than {MOST_REPEATS} times")
        if unbounded:
            loop = self._follow("jump", [after])
            body = self._sequence(items, loop)
            following = self.states[loop][1]
            assert isinstance(following, list)
            following.append(body)
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self._follow("jump", [self._sequence(items, after), end])
        for _ in range(least):
            after = self._sequence(items, after)
        return after

    def _test(self, kind: str, argument: Any) -> Test:
        ignore, dot_all = bool(self.flags & re.IGNORECASE), bool(self.flags & re.DOTALL)
        if kind == "ANY":
            return lambda character: dot_all or character != "\n"
        if kind == "IN":
            negated = str(argument[0][0]) == "NEGATE"
            tests = [self._member(str(member), value) for member, value in argument[negated:]]
        else:
            negated, tests = kind == "NOT_LITERAL", [self._member("LITERAL", argument)]

        def test(character: str) -> bool:
            forms = {character, character.lower(), character.upper()} if ignore else {character}
            return any(member(form) for form in forms if len(form) == 1 for member in tests) != negated

        return test

    def _member(self, kind: str, value: Any) -> Test:
        match kind:
            case "LITERAL":
                return lambda character: ord(character) == value
            case "RANGE":
                return lambda character: value[0] <= ord(character) <= value[1]
            case "CATEGORY":
                # RE2's classes are ASCII only.
                category = str(value).removeprefix("CATEGORY_")
                inside = _CATEGORIES.get(category.removeprefix("NOT_"))
                if inside is not None:
                    return lambda character: (character in inside) != category.startswith("NOT_")
        raise self._refused(f"RE2 has no {kind.lower()} of this kind")


_DIGITS = frozenset("0123456789")
_WORD = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_CATEGORIES = {"DIGIT": _DIGITS, "WORD": _WORD, "SPACE": frozenset("\t\n\f\r ")}


def _holds(place: str, text: str, position: int) -> bool:
    """Whether an assertion such as the beginning of the text holds at a position."""
    before, after = text[position - 1 : position] if position else "", text[position : position + 1]
    match place:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return position == 0
        case "AT_END" | "AT_END_STRING":
            return not after
        case "AT_BEGINNING_LINE":
            return position == 0 or before == "\n"
        case "AT_END_LINE":
            return not after or after == "\n"
    return ((before in _WORD) != (after in _WORD)) == (place == "AT_BOUNDARY")

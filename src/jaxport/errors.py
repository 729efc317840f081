"""The one family of errors, and the only place where their messages are formatted.

Every error says what was refused, where, why, and what to do instead. All of them derive from
`JaxportError`, so that a caller can catch the family.

>>> print(
...     InvalidArgument(
...         "opset 99 is out of range",
...         where="`to_onnx(opset=99)`",
...         why="opsets 17 to 26 can be written",
...         instead="leave `opset` out",
...     )
... )
opset 99 is out of range
  where:   `to_onnx(opset=99)`
  why:     opsets 17 to 26 can be written
  instead: leave `opset` out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ExportError",
    "InvalidArgument",
    "JaxportError",
    "ModelError",
    "NotInstalled",
    "QueryError",
    "Refusal",
    "RuleError",
    "RunError",
    "SaveError",
    "StateChanged",
    "Unsupported",
    "ValueNotKnown",
    "VerificationFailed",
]


class JaxportError(Exception):
    """The base of all errors of this package.

    Args:
      refused: what was refused, one sentence without a final stop.
      where: the user's file and line, the argument, or the node and its scope.
      why: the reason.
      instead: what to do instead.
    """

    def __init__(self, refused: str, *, where: str = "", why: str = "", instead: str = ""):
        self.refused, self.where, self.why, self.instead = refused, where, why, instead
        details = [("where:", where), ("why:", why), ("instead:", instead)]
        lines = [f"  {label:<8} {_indented(text)}" for label, text in details if text]
        super().__init__("\n".join([refused, *lines]))


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 11)


class InvalidArgument(JaxportError, ValueError):
    """An argument of a public function is malformed or contradicts another."""


class ExportError(JaxportError):
    """A function cannot be exported for a reason other than an unsupported operation."""


class RuleError(JaxportError):
    """A rule or an operator function broke its contract: a bug in it, not in the user's model."""


class StateChanged(JaxportError):
    """The traced call changes module state, and the caller did not say what becomes of it."""


class SaveError(JaxportError, OSError):
    """A file could not be written; nothing was left half-written."""


class NotInstalled(JaxportError, ImportError):
    """Something needs a package that is not in this environment."""


class RunError(JaxportError, RuntimeError):
    """A runtime refuses to load a model, or fails to run it."""


class ModelError(JaxportError, ValueError):
    """An ONNX model is malformed: truncated, inconsistent, or hostile."""


class QueryError(JaxportError, ValueError):
    """A query is malformed, or hit another number of things than it was told to."""


class VerificationFailed(JaxportError, AssertionError):
    """The two sides of a conversion disagree."""


@dataclass(frozen=True)
class Refusal:
    """One unsupported thing: its `name`, `where` the user wrote it, and `why` or what to do.

    >>> Refusal("pure_callback", "train.py:88 in step", "runs Python on the host").name
    'pure_callback'
    """

    name: str
    where: str
    why: str


class Unsupported(JaxportError):
    """Some operations of a model cannot be converted: all of them, reported together.

    >>> print(
    ...     Unsupported(
    ...         "2 operations of `policy` cannot be exported",
    ...         [
    ...             Refusal("pure_callback", "train.py:88 in step", "runs Python on the host"),
    ...             Refusal("all_gather", "model.py:41 in attend", "needs several devices"),
    ...         ],
    ...     )
    ... )
    2 operations of `policy` cannot be exported
      pure_callback   train.py:88 in step     runs Python on the host
      all_gather      model.py:41 in attend   needs several devices
    """

    def __init__(self, headline: str, refusals: Sequence[Refusal]):
        self.refusals = tuple(refusals)
        counted = Counter(self.refusals)  # the same line may run many times
        name_width = max((len(r.name) for r in counted), default=0)
        where_width = max((len(r.where) for r in counted), default=0)
        rows = [
            f"  {r.name:<{name_width}}   {r.where:<{where_width}}   {r.why}{f' ({n} times)' if n > 1 else ''}".rstrip()
            for r, n in counted.items()
        ]
        super().__init__("\n".join([headline, *rows]))


class ValueNotKnown(Unsupported):
    """A shape, an axis or a count depends on values that are not known while a program is traced."""


# Users meet these as `jaxport.Unsupported`, whatever file defines them.
for _name in __all__:
    globals()[_name].__module__ = "jaxport"

"""The errors of this package, and the only place where their messages are formatted.

Every error says what was refused, where, why, and what to do instead. All of them derive from `JaxportError`, so that a
caller can catch them together. The names in a message are `printable`; the attributes of the error have them as they
are.

>>> print(
...     InvalidArgument(
...         "opset 99 is out of range",
...         where="`to_onnx(opset=99)`",
...         why="opsets 13 to 26 can be written",
...         instead="leave `opset` out",
...     )
... )
opset 99 is out of range
  where:   `to_onnx(opset=99)`
  why:     opsets 13 to 26 can be written
  instead: leave `opset` out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jaxport.columns import titled
from jaxport.printable import printable, printable_lines

__all__ = [
    "AGAIN",
    "ExportError",
    "InvalidArgument",
    "JaxportError",
    "ModelError",
    "NeedsWideTypes",
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
    "boundary",
    "check_inputs_exist",
    "noted",
]

AGAIN = "export the model again"
"""What to do instead of importing a malformed file."""


class JaxportError(Exception):
    """The base of all errors of this package.

    Args:
      refused: what was refused, as one sentence without a full stop.
      where: the user's file and line, the argument, or the node and its scope.
      why: the reason.
      instead: what to do instead.
    """

    def __init__(self, refused: str, *, where: str = "", why: str = "", instead: str = ""):
        self.refused, self.where, self.why, self.instead = refused, where, why, instead
        details = [("where:", where), ("why:", why), ("instead:", instead)]
        lines = [f"  {label:<8} {_indented(text)}" for label, text in details if text]
        super().__init__("\n".join([printable(refused), *lines]))


def _indented(text: str) -> str:
    return printable_lines(text).replace("\n", "\n" + " " * 11)


class InvalidArgument(JaxportError, ValueError):
    """An argument of a public function is malformed or contradicts another."""


class ExportError(JaxportError):
    """A function cannot be exported for a reason other than an unsupported operation."""


class RuleError(JaxportError):
    """A rule or an operator function broke its contract: a bug in it, not in the user's model."""


class StateChanged(JaxportError):
    """The traced call changes module state, and the caller did not choose how to treat that."""


class SaveError(JaxportError, OSError):
    """A file could not be written; no partial file was left."""


class NotInstalled(JaxportError, ImportError):
    """Something needs a package that is not in this environment."""


class RunError(JaxportError, RuntimeError):
    """A runtime refuses to load a model, or fails to run it."""


class ModelError(JaxportError, ValueError):
    """An ONNX model is malformed: truncated, inconsistent, or hostile."""


class NeedsWideTypes(ModelError):
    """A program computes with an integer that needs 64 bits, and JAX's types of 64 bits are off."""


class QueryError(JaxportError, ValueError):
    """A query is malformed, or matches another number of things than expected."""


class VerificationFailed(JaxportError, AssertionError):
    """The two sides of a conversion disagree."""


@dataclass(frozen=True)
class Refusal:
    """One thing that is not supported: its `name`, `where` the user wrote it, and `why` it is refused or what to do
    instead.

    >>> from jaxport import Refusal
    >>> Refusal("pure_callback", "train.py:88 in step", "runs Python on the host").name
    'pure_callback'
    """

    name: str
    where: str
    why: str


class Unsupported(JaxportError):
    """Some operations of a model cannot be converted; all of them are reported together.

    >>> from jaxport import Refusal, Unsupported
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
        self.headline, self.refusals = headline, tuple(refusals)
        counted = Counter(self.refusals)  # the same line may run many times
        rows = [(r.name, r.where, f"{r.why}{f' ({n} times)' if n > 1 else ''}") for r, n in counted.items()]
        super().__init__(headline)
        self.args = (titled(headline, rows, gap=3),)


def check_inputs_exist(given: Iterable[str], names: Collection[str], where: str) -> None:
    """Refuse the name of an input that a model does not have.

    >>> check_inputs_exist(["mask"], ["ids", "positions"], "`verify(avoid=...)`")
    Traceback (most recent call last):
    jaxport.InvalidArgument: `mask` is not an input of the model
      where:   `verify(avoid=...)`
      instead: the inputs are `ids`, `positions`
    """
    for name in given:
        if name not in names:
            known = ", ".join(f"`{name}`" for name in names)
            raise InvalidArgument(
                f"`{name}` is not an input of the model", where=where, instead=f"the inputs are {known or 'none'}"
            )


class ValueNotKnown(Unsupported):
    """A shape, an axis or a count depends on values that are not known while a program is traced."""


_PLACE = "jaxport: at "
LONGEST_REASON = 2000


def noted(error: Exception, place: str) -> None:
    """Note on a foreign error where it was raised, for the boundary that will catch it.

    >>> error = KeyError("x")
    >>> noted(error, "node `add`")
    >>> error.__notes__
    ['jaxport: at node `add`']
    """
    if not isinstance(error, JaxportError) and not _places(error):
        error.add_note(_PLACE + printable_lines(place))


def _places(error: BaseException) -> list[str]:
    return [note.removeprefix(_PLACE) for note in getattr(error, "__notes__", ()) if note.startswith(_PLACE)]


@contextmanager
def boundary(
    refused: str,
    *,
    where: str | Callable[[BaseException], str] = "",
    instead: str | Callable[[str], str] = "",
    kind: Callable[..., JaxportError] = ModelError,
) -> Iterator[None]:
    """Turn any other error raised inside into one of this package; the original is its cause.

    It surrounds each public function that users call with data from others. Warnings turned into errors pass, and so
    does anything that is not an `Exception`.

    Args:
      refused: what could not be done.
      where: the place, unless the error itself has it (`noted`), or a function of the error.
      instead: what to do instead, or a function of the reason.
      kind: the class of the new error.

    >>> with boundary("the model cannot be read", where="`m.onnx`"):
    ...     {}["x"]
    Traceback (most recent call last):
    jaxport.ModelError: the model cannot be read
      where:   `m.onnx`
      why:     KeyError: 'x'
    """
    try:
        yield
    except (JaxportError, Warning):
        raise
    except Exception as error:
        chain: list[BaseException] = [error]
        while chain[-1].__cause__ is not None:
            chain.append(chain[-1].__cause__)
        told = where if isinstance(where, str) else where(error)
        place, why = next((place for link in chain for place in _places(link)), told), _reason(chain[-1])
        raise kind(
            refused, where=place, why=why, instead=instead if isinstance(instead, str) else instead(why)
        ) from error


def _reason(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an error that cannot even say what it is
        text = ""
    return f"{type(error).__name__}: {text}"[:LONGEST_REASON].rstrip(": ")


# Users see these as `jaxport.Unsupported`, whatever file defines them.
for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = "jaxport"

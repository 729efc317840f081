"""Resource limits for importing, running and printing a model: a small file can ask for more than any machine has."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields

from jaxport.errors import InvalidArgument, ModelError
from jaxport.scoped import scoped


@dataclass(frozen=True)
class Limits:
    """Resource limits. If one is exceeded, the error names the operation, the size, and the limit to raise.

    Attributes:
      bytes: the total memory that loading and constant folding may allocate, and the largest result of one operation.
      growth: the largest result of one operation, as a multiple of the size of the model and its inputs, if that is
        more than `bytes`.
      nesting: the depth of nested function calls.
      operations: the number of operations, where those of functions count once per call; a graph may have more of its
        own.
      iterations: the number of iterations, per call, of loops that XLA cannot run, because their values change shape
        or their end is unknown; and the number of elements that a tensor is split into as a sequence.

    >>> from jaxport import Limits
    >>> Limits(bytes=2**34).growth
    1024
    """

    bytes: int = 2**29
    growth: int = 1024
    nesting: int = 64
    operations: int = 100_000
    iterations: int = 5_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 0:
                raise InvalidArgument(
                    f"`{field.name}` is {value!r}",
                    where="`jaxport.Limits`",
                    instead="give a whole number, zero or more",
                )


class Budget:
    """The remaining budget, while a model is loaded and for each of its calls.

    Args:
      limits: the limits.
      used: the bytes of the model and its inputs.
    """

    def __init__(self, limits: Limits, used: int = 0):
        self.limits = limits
        self.largest = max(limits.bytes, limits.growth * used)
        self.left = self.largest
        self.iterations = 0

    def spend(self, size: int, where: str, subject: str) -> None:
        """Count bytes that are created on the host.

        Raises:
          ModelError: they exceed the rest of the budget.
        """
        if size > self.left:
            self.refuse(size, where, subject)
        self.left -= size

    def check(self, size: int, where: str, subject: str) -> None:
        """Refuse the result of one operation that is too large.

        Raises:
          ModelError: it has more bytes than the limits allow.
        """
        if size > self.largest:
            self.refuse(size, where, subject)

    def iterate(self) -> None:
        """Count an iteration of an unrolled loop.

        Raises:
          ModelError: there were more than the limits allow.
        """
        self.iterations += 1
        self.check_iterations(self.iterations)

    def check_iterations(self, count: int) -> None:
        """Refuse a loop of so many iterations.

        Raises:
          ModelError: the limits allow fewer.
        """
        if count > self.limits.iterations:
            raise ModelError(
                f"the loop has more than {self.limits.iterations:,} iterations",
                why="its values change shape, or it does not end",
                instead="if you trust the model, raise the limit: `from_onnx(…, limits=jaxport.Limits(iterations=…))`",
            )

    def check_elements(self, count: int) -> None:
        """Refuse a sequence of too many elements.

        Raises:
          ModelError: it has more than an unrolled loop may have iterations.
        """
        if count > self.limits.iterations:
            raise ModelError(
                f"a sequence has {count:,} elements",
                why=f"the limits allow {self.limits.iterations:,}: each is an array, and made by an operation of its "
                "own",
                instead="if you trust the model, raise the limit: `from_onnx(…, limits=jaxport.Limits(iterations=…))`",
            )

    def refuse(self, size: int, where: str, subject: str) -> None:
        raise ModelError(
            f"{subject} has {size:,} bytes",
            where=where,
            why=f"the limits allow {self.largest:,} bytes in all, {max(self.left, 0):,} are left: it would be larger "
            "than that",
            instead="if you trust the model, raise them: `from_onnx(…, limits=jaxport.Limits(bytes=…))`",
        )


_in_force: ContextVar[Budget | None] = ContextVar("budget", default=None)


def budget_in_force() -> Budget:
    """Return the budget of the running call; the default one outside of calls.

    >>> budget_in_force().largest == Limits().bytes
    True
    """
    return _in_force.get() or Budget(Limits())


def budget(limits: Limits, used: int) -> AbstractContextManager[Budget]:
    """Put a budget in force inside the context."""
    return scoped(_in_force, Budget(limits, used))

"""A module of StableHLO as plain values: functions, operations and types, with nothing left of MLIR but constants'
buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from jaxport.errors import ModelError
from jaxport.importer.limits import Limits
from jaxport.jaxprs import Array

Value = Array
"""What an operation computes with: an array of JAX, a known one of NumPy, a tuple, or None for a token."""
Attributes = Mapping[str, Any]
"""Attributes by name, as Python values."""


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor: its sizes, None for open ones, and its dtype.

    >>> TensorType((None, 4), np.dtype("float32"))
    float32[?,4]
    """

    shape: tuple[Any, ...]
    dtype: np.dtype

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join('?' if size is None else str(size) for size in self.shape)}]"

    @property
    def bytes(self) -> int:
        """How many bytes it has, with open sizes counted as one."""
        count = self.dtype.itemsize
        for size in self.shape:
            count *= 1 if size is None else size
        return count


Kind = TensorType
"""The type of a value: a `TensorType`, a tuple of types, or None for a token."""


@dataclass(eq=False)
class HloOperation:
    """An operation: values are numbers, which are unique in a module.

    Attributes:
      name: `stablehlo.add`.
      operands, results: the numbers of the values that it takes and makes.
      types: the types of its results: `TensorType`, a tuple of types, or None for a token.
      attributes: its attributes by name, as Python values; discardable ones, whose names have a dot, too.
      bodies: its regions.
      scope: the names around it that its location has: `("Encoder", "Dense_0")`.
      where: its place in the user's source or in the file.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[TensorType, ...]
    attributes: Attributes
    bodies: tuple[HloBody, ...] = ()
    scope: tuple[str, ...] = ()
    where: str = ""

    def __repr__(self) -> str:
        return f"{self.name} {self.types}"


@dataclass(eq=False)
class HloBody:
    """A block of operations: the numbers of its arguments, their types, and the numbers of what it returns."""

    arguments: tuple[int, ...]
    types: tuple[TensorType, ...]
    operations: list[HloOperation]
    returned: tuple[int, ...]

    def walk(self) -> Iterator[HloOperation]:
        """Yield all operations, with those of regions after theirs."""
        for operation in self.operations:
            yield operation
            for body in operation.bodies:
                yield from body.walk()


@dataclass(eq=False)
class HloFunction:
    """A function of a module.

    Attributes:
      name: its symbol.
      body: its block.
      argument_attributes: what is said of each argument, by name.
    """

    name: str
    body: HloBody
    argument_attributes: Sequence[Attributes]


@dataclass(eq=False)
class HloModule:
    """A module: its functions by name, the operation that makes each value, how many values there are, and devices."""

    name: str
    functions: Mapping[str, HloFunction]
    makers: dict[int, HloOperation]
    values: int
    devices: int | None = None
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def main(self) -> HloFunction:
        """The function that a caller calls."""
        return self.functions["main"]

    @cached_property
    def kinds(self) -> dict[int, Kind]:
        """The types of all values."""
        bodies = [
            body for f in self.functions.values() for body in (f.body, *(b for o in f.body.walk() for b in o.bodies))
        ]
        found = {value: kind for body in bodies for value, kind in zip(body.arguments, body.types, strict=True)}
        found.update((v, kind) for o in self.operations() for v, kind in zip(o.results, o.types, strict=True))
        return found

    @cached_property
    def asserted(self) -> frozenset[HloOperation | None]:
        """The operations whose results the module asserts."""
        calls = [o for o in self.operations() if o.attributes.get("call_target_name") == "shape_assertion"]
        return frozenset(self.makers.get(call.operands[0]) for call in calls)

    @property
    def is_dynamic(self) -> bool:
        """Whether sizes are computed."""
        return any(
            isinstance(kind, TensorType) and None in kind.shape
            for function in self.functions.values()
            for operation in function.body.walk()
            for kind in operation.types
        )

    def operations(self) -> Iterator[HloOperation]:
        """Yield the operations of all functions."""
        for function in self.functions.values():
            yield from function.body.walk()

    def check(self, limits: Limits) -> None:
        """Refuse a module whose calls recur, nest too deeply, or make too many operations of few.

        Raises:
          ModelError: the limits allow less.
        """
        count = self._count("main", (), limits)
        if count > limits.operations:
            raise ModelError(
                f"the module has {count:,} operations, those of functions counted once per call",
                why=f"the limits allow {limits.operations:,}",
                instead="if you trust it, raise them: `from_stablehlo(…, limits=jaxport.Limits(operations=…))`",
            )

    def _count(self, name: str, around: tuple[str, ...], limits: Limits, where: str = "") -> int:
        if name in around or len(around) > limits.nesting or name not in self.functions:
            problem = "calls itself" if name in around else "is called too deeply"
            problem = problem if name in self.functions else "does not exist"
            raise ModelError(f"the function `{name}` {problem}", where=where, instead="write the artifact again")
        if name not in self.counts:
            total = 0
            for operation in self.functions[name].body.walk():
                called = [operation.attributes.get(key) for key in ("callee", "decomposition")]
                inner = (*around, name)
                total += 1 + sum(self._count(each, inner, limits, operation.where) for each in called if each)
            self.counts[name] = total
        return self.counts[name]


def canonical(module: HloModule, body: HloBody) -> tuple:
    """Return a key that bodies share if and only if they compute the same, operation by operation; called functions
    included.
    """
    numbers = {value: at for at, value in enumerate(body.arguments)}
    return _canonical(module, body, numbers)


def _canonical(module: HloModule, body: HloBody, numbers: dict[int, int]) -> tuple:
    for value in body.arguments:
        numbers.setdefault(value, len(numbers))
    steps: list[tuple] = []
    same: dict[int, int] = {}
    for operation in body.operations:
        if operation.name == "stablehlo.convert" and module.kinds[operation.operands[0]] == operation.types[0]:
            same[operation.results[0]] = operation.operands[0]  # of a number without a type of its own
            continue
        callee = operation.attributes.get("callee") or operation.attributes.get("decomposition")
        inner = [canonical(module, module.functions[callee].body)] if callee else []
        inner += [_canonical(module, each, numbers) for each in operation.bodies]
        for value in operation.results:
            numbers.setdefault(value, len(numbers))
        attributes = tuple(
            sorted(
                (name, value.tobytes() if isinstance(value, np.ndarray) else repr(value))
                for name, value in operation.attributes.items()
                if "." not in name and value is not False and name not in ("callee", "decomposition", "result_accuracy")
            )
        )
        read = tuple(numbers.get(same.get(value, value), -1) for value in operation.operands)
        steps.append((operation.name, read, operation.types, attributes, tuple(inner)))
    return (tuple(steps), tuple(numbers.get(same.get(value, value), -1) for value in body.returned), body.types)

"""The names of the values of a function: each has one of its own.

h, y = Variable(hint="/encoder/query/MatMul_output_0"), Variable()    →    query_matmul, x
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from jaxport.importer.names import identifier, unique
from jaxport.importer.values.recording import Function, Step, Variable

Expression = TypeVar("Expression")


@dataclass
class ValueNames(Generic[Expression]):
    """Names that are unique in a whole module, so that closures mean what they say.

    Attributes:
      taken: the names in use.
      named: makes the expression of a name.
      expressions: what stands for each value.
    """

    taken: set[str]
    named: Callable[[str], Expression]
    expressions: dict[Variable | Function, Expression] = field(default_factory=dict)

    def bind(self, variable: Variable, default: str = "x") -> str:
        """Return a name for a variable, which stands for it from now on."""
        chosen = self.fresh(variable_name(variable.hint, default))
        self.expressions[variable] = self.named(chosen)
        return chosen

    def fresh(self, wanted: str) -> str:
        """Return a name that no value has."""
        chosen = unique(wanted, self.taken)
        self.taken.add(chosen)
        return chosen

    def default(self, step: Step) -> str:
        """Return a name for the result of a step that has none."""
        return default_name(step)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """While names are those of a nested function."""
        yield


def variable_name(hint: str, default: str = "x") -> str:
    """Return a readable name from the name of an ONNX value: its last part, in lower case.

    >>> variable_name("/encoder/layer.0/query/MatMul_output_0"), variable_name("Not"), variable_name("123")
    ('query_matmul', 'not_', 'x_123')
    """
    path = hint.removesuffix("_output_0").replace(":", "_").split("/")
    short = "_".join(path[-2:]) if len(path) > 1 else hint
    return identifier(short.lower(), default) if short else default


def default_name(step: Step) -> str:
    """Return a name for the result of a step that has none: that of the function."""
    if step.form == "call":
        return identifier(step.name.rpartition(".")[2], "x")
    return {"method": identifier(step.name.rpartition(".")[2]), "vmap": "mapped", "index": "part"}.get(step.form, "x")

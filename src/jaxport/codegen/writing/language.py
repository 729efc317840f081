"""What a language says: how the expressions and statements read that the printer of modules puts in order.

    pattern(["x", "_"]), assigned(…)     x, _ = self.lstm(x)     let (x, _) = self.lstm.forward(x);

`jaxport.codegen.writing.calls` decides what is a statement, what it is called and what a loop is; it knows no language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from jaxport.codegen.writing.dialect import LayerLibrary
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.size_names import SizeStatement
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Step, Variable

Expression = TypeVar("Expression")
Statement = TypeVar("Statement")


class Language(Protocol[Expression, Statement]):
    """Writes the computation of one module in a language.

    Attributes:
      names: the names of values, and the expressions that stand for them.
      library: the layers that there are.
      dims: the names of sizes that are read.
      tables: the tensors that are not parameters and too large for the source, by attribute.
      tied: where the embeddings are whose tables are read here, by the variable that stands for each.
      lists: the values that a list holds, by its name.
      result_names: the names of the results of functions, by function; those of others are what they are read for.
    """

    names: ModuleNames[Expression]
    dims: set[str]
    tables: dict[str, HostValue]
    tied: dict[Variable, str]
    lists: dict[str, list[Variable]]

    @property
    def library(self) -> LayerLibrary[Expression]: ...

    @property
    def result_names(self) -> Mapping[str, Sequence[str]]: ...

    def of_round(self, names: ModuleNames[Expression]) -> Language[Expression, Statement]:
        """Return what writes a round of a loop, which has names of its own."""
        ...

    # Expressions -------------------------------------------------------------------------------------------------

    def part(self, path: str) -> Expression:
        """Return a name, or a part of the module: `self.layers[1:]`."""
        ...

    def name_of(self, expression: Expression) -> str:
        """Return the name that an expression is; empty if it is none."""
        ...

    def names_in(self, expression: Expression) -> Iterable[str]:
        """Return the names in an expression."""
        ...

    def text(self, expression: Expression) -> str:
        """Return an expression as it is written."""
        ...

    def value(self, value: object) -> Expression:
        """Return any argument as an expression."""
        ...

    def expression(self, step: Step) -> Expression:
        """Return a call."""
        ...

    def invoked(self, called: Expression, arguments: list[Expression], sizes: Sequence[str]) -> Expression:
        """Return the call of a module, with the sizes that it wants."""
        ...

    def rows(self, row: Variable | tuple[Variable, ...]) -> Expression:
        """Return what a loop over values runs over: several of them, or the parts of one along its first axis."""
        ...

    def element(self, chosen: str, index: int) -> Expression:
        """Return an element of a list."""
        ...

    def empty_list(self) -> Expression:
        """Return a list without elements."""
        ...

    # Statements --------------------------------------------------------------------------------------------------

    def nested(self, step: Step) -> list[Statement]:
        """Return the functions that are defined for a step."""
        ...

    def statements_of(
        self,
        step: Step,
        uses: Counter[Variable],
        reader: int | None,
        usual: Callable[[int | None], list[Statement]],
    ) -> list[Statement]:
        """Return the statements of a step, as they are in this language; `usual` returns those that others have."""
        ...

    def pattern(self, names: Sequence[str]) -> Expression:
        """Return what values are assigned to: a name, or several."""
        ...

    def target(self, tree: object, uses: Counter[Variable], default: str | Sequence[str]) -> Expression:
        """Return what the outputs of a call are assigned to; `default` is the name of all that have none, or that of
        each.
        """
        ...

    def assigned(self, target: Expression, value: Expression) -> Statement:
        """Return an assignment."""
        ...

    def appended(self, chosen: str, values: list[Expression]) -> list[Statement]:
        """Return the statements that append values to a list."""
        ...

    def loop(self, iterated: Sequence[tuple[str, Expression]], count: int, body: list[Statement]) -> Statement:
        """Return a loop over modules and values side by side; over nothing, `count` times."""
        ...

    def returned(self, value: Expression) -> Statement:
        """Return what ends a function."""
        ...

    def finished(self, statements: list[Statement]) -> list[Statement]:
        """Return the statements of a block without those that read sizes for nothing."""
        ...

    def sizes(self, statements: Iterable[SizeStatement]) -> list[Statement]:
        """Return the statements that read sizes from shapes, and refuse some."""
        ...

    def unread(self) -> set[str]:
        """Return the sizes that statements read, and that none inside has read from results."""
        ...

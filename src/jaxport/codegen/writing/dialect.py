"""The description of a framework for the printer of structured source: tables of layers, and a few texts."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np

from jaxport.codegen.tree import Layer, Option
from jaxport.codegen.writing.literals import call, number
from jaxport.importer.values.recording import Step

Expression = TypeVar("Expression")
Tree = TypeVar("Tree", bound=ast.AST)

SHORTEST_RUN = 3
"""Equal elements beside others that are a comprehension at least."""


@dataclass(frozen=True)
class Field:
    """Where a framework keeps a weight of a layer.

    Attributes:
      name: the attribute of the layer.
      axes: the order of the axes that it has there, if it is not that of the tree.
      pieces: the attributes of the pieces that it is made of, if the framework keeps these.
    """

    name: str
    axes: tuple[int, ...] | None = None
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Constructor(Generic[Expression]):
    """How a kind of layer is made.

    Attributes:
      build: the expression that makes a layer.
      fields: where its weights are, by role.
    """

    build: Callable[[Layer], Expression]
    fields: Callable[[Layer], Mapping[str, Field]]


@dataclass(frozen=True)
class SequenceForm:
    """How modules that follow one another are one module.

    Attributes:
      build: the expression that makes it of those of its elements, as `in_runs` returns them.
      path: where its elements are below it.
    """

    build: Callable[[Sequence[ast.expr]], ast.expr]
    path: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LayerLibrary(Generic[Expression]):
    """A library of layers, as far as the printer of modules needs to know it, whatever the language.

    Attributes:
      name: the name by which users ask for it.
      layers: the kinds of layers that it has.
      accepts: whether it has a layer.
      functions: calls of its own functions in place of calls of JAX's, by the name of those.
      signature: what constructors hand down, and its type.
      value: the array behind a weight.
      frozen: the array behind a tensor that is not trained.
      reserved: names that its modules have already.
      attends: the method of an embedding that multiplies by its table; empty if it has none.
    """

    name: str
    layers: Mapping[str, Constructor[Expression]]
    accepts: Callable[[Layer], bool]
    functions: Mapping[str, Callable[[Step], Step | None]]
    signature: tuple[str, str]
    value: Callable[[Expression], Expression]
    frozen: Callable[[Expression], Expression]
    reserved: frozenset[str]
    attends: str = ""


@dataclass(frozen=True, kw_only=True)
class Dialect(LayerLibrary[ast.expr]):
    """A framework of Python: tables of layers, and a few texts.

    Attributes:
      base: the class that modules are derived from.
      imports: the lines that import it.
      sequence: makes a list of modules of an expression.
      sequential: how a sequence is made, by the name of the list in which it keeps its elements; empty if it is the
        list.
      parameter: makes a parameter of the expression of an array, `table` a tensor that is not trained.
      random: makes a random array of the expressions of its sizes, and of its dtype if that is not the usual one.
      declared: whether fields are declared in the body of the class.
      definitions: the source of classes that the module may need, by name.
      loading: makes the source of `load` of the name of the model's class, whether its layers draw random numbers, and
        the paths of what is trained, if not all parameters are.
    """

    base: str
    imports: tuple[str, ...]
    sequence: Callable[[ast.expr], ast.expr]
    sequential: Mapping[str, SequenceForm]
    parameter: Callable[[ast.expr], ast.expr]
    table: Callable[[ast.expr], ast.expr]
    random: Callable[..., ast.expr]
    declared: bool
    definitions: Mapping[str, str]
    loading: Callable[[str, bool, Sequence[str] | None], str]


def constant(value: Option, role: str) -> ast.expr:
    """Return a number that may become an argument of the constructor, which then is called by its role."""
    if isinstance(value, tuple):
        return ast.Tuple([constant(part, role) for part in value], ast.Load())
    if isinstance(value, str | None):
        return ast.Constant(value)
    expression = (
        ast.Constant(value)
        if isinstance(value, bool)
        else number(np.float32(value) if isinstance(value, float) and _is_single(value) else value)
    )
    return with_role(expression, role) if isinstance(expression, ast.Constant) else expression


def with_role(number: ast.Constant, role: str) -> ast.Constant:
    """Return a number with the name that it has as an argument; it is changed."""
    number.role = role  # type: ignore[attr-defined]
    return number


def keywords(options: Mapping[str, Option], defaults: Mapping[str, Option]) -> dict[str, ast.expr]:
    """Return the options of a layer as arguments by keyword, of which those that have their default are marked.

    Classes are alike if they differ in the values of options only, and `without_defaults` drops what is the same in
    all.
    """
    made = {key: constant(value, key) for key, value in options.items()}
    for key, expression in made.items():
        expression.is_default = key in defaults and options[key] == defaults[key]  # type: ignore[attr-defined]
    return made


def without_defaults(tree: Tree) -> Tree:
    """Return a tree without arguments that have their default; it is changed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if not getattr(keyword.value, "is_default", False)]
    return tree


def in_runs(elements: Sequence[ast.expr]) -> list[ast.expr]:
    """Return the elements of a list, in which a run of equal ones is `*(Block(rngs=rngs) for _ in range(5))`."""
    runs = [list(run) for _, run in groupby(elements, key=ast.dump)]
    shortest = SHORTEST_RUN if len(runs) > 1 else 2
    grouped: list[ast.expr] = []
    for run in runs:
        if len(run) < shortest:
            grouped += run
        else:
            count = call("range", constant(len(run), "depth"))
            loop = ast.comprehension(ast.Name("_", ast.Store()), count, [], 0)
            grouped.append(ast.Starred(ast.GeneratorExp(run[0], [loop]), ast.Load()))
    return grouped


def listed(elements: Sequence[ast.expr]) -> ast.expr:
    """Return a list of elements, or the comprehension that the only run of them is."""
    first = elements[0] if len(elements) == 1 else None
    if isinstance(first, ast.Starred) and isinstance(first.value, ast.GeneratorExp):
        return ast.ListComp(first.value.elt, first.value.generators)
    return ast.List([*elements], ast.Load())


def for_all_axes(values: tuple) -> Option:
    """Return the one number that holds for all axes, and for both of their ends; or the values of each.

    >>> for_all_axes((2, 2)), for_all_axes(((1, 1), (1, 1))), for_all_axes(((0, 1), (0, 1)))
    (2, 1, ((0, 1), (0, 1)))
    """
    numbers = {number for value in values for number in (value if isinstance(value, tuple) else (value,))}
    return numbers.pop() if len(numbers) == 1 else values


def sized(array: np.dtype) -> ast.expr | None:
    """Return the dtype of parameters if it is not the usual one."""
    return None if array == np.float32 else ast.parse(f"jnp.{np.dtype(array).name}", mode="eval").body


def _is_single(value: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(value)) == value

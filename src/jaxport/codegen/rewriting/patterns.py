"""Patterns of recorded steps, written as the Python that they match.

In a pattern,

* `x` is any value, the same one wherever the name stands, or an equal constant; `_` is anything;
* `1`, `True`, `None`, `inf` and `nan` are known values all of whose elements are this;
* `x + y`, `~x`, `x[i]`, `x.mT`, `x.astype(kind)`, `jnp.where(c, x, y)` are the steps that make values; of what
  commutes, the operands are in either order;
* `(jnp.max | jnp.min)(x)` is a call of one of several functions;
* `jnp.mean(x, axis=a)` has exactly these arguments, `jnp.mean(x, **options)` any keywords, and `jnp.arange(*ends)` any
  number;
* `[a, b]` and `(0, 2, 1)` are lists or tuples;
* `(y := jnp.exp(x))` gives a value a name, too;
* `jnp.split(x, 2)[i]` is a result of a call that has several, `(split := jnp.split(x, 2))[i]` names its step;
* `spread(x)` is a view: `x` is what the value stands for, as the function of `VIEWS` says.

>>> x, root, output = (Variable((2,), np.dtype("float32")) for _ in range(3))
>>> producers = Producers()
>>> producers.note(Step("call", "jnp.sqrt", (x,), {}, root, None))
>>> step = Step("operator", "/", (HostValue(np.float32(1)), root), {}, output, None)
>>> [bound["x"] is x for bound in bindings(pattern("1 / jnp.sqrt(x)"), step, producers)]
[True]
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxport.codegen.rewriting.producers import Producers, number
from jaxport.codegen.rewriting.steps import leaf_key
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Form, Step, Variable
from jaxport.jaxprs import Parameters

Bindings = Parameters
"""What the names of a pattern stand for."""

OPERATORS: Mapping[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("+",), ast.Sub: ("-",), ast.Mult: ("*",), ast.Div: ("/",), ast.FloorDiv: ("//",), ast.Mod: ("%",),
    ast.MatMult: ("@",), ast.BitAnd: ("&", "jnp.logical_and"), ast.BitOr: ("|", "jnp.logical_or"), ast.Eq: ("==",),
    ast.NotEq: ("!=",), ast.Lt: ("<",),
    ast.LtE: ("<=",), ast.Gt: (">",), ast.GtE: (">=",), ast.USub: ("-",), ast.Invert: ("~", "jnp.logical_not"),
}  # fmt: skip
"""The names of the steps that an operator stands for."""
COMMUTATIVE = frozenset(
    {"+", "*", "==", "!=", "&", "|", "jnp.logical_and", "jnp.logical_or", "jnp.minimum", "jnp.maximum"}
)
NUMBERS = {"inf": math.inf, "nan": math.nan}
NAMESPACES = frozenset({"jnp", "jnp.linalg", "jnp.fft", "nn", "lax", "helper", "random", "channels_first"})

VIEWS: dict[str, Callable[[Any, Producers], Any]] = {}
"""By name, functions that return what a value stands for in a pattern."""


def view(
    function: Callable[[object, Producers], object],
) -> Callable[[object, Producers], object]:
    """Make a function a view: patterns know it by its name."""
    VIEWS[function.__name__] = function
    return function


@dataclass(frozen=True)
class Anything:
    """Any value; or one that matches a pattern, if there is one."""

    name: str
    inner: Pattern | None = None


@dataclass(frozen=True)
class Constant:
    """A known value all of whose elements are a number, a truth value or None."""

    value: float | bool | None


@dataclass(frozen=True)
class View:
    """What a value stands for."""

    function: str
    inner: Pattern


@dataclass(frozen=True)
class Listed:
    """A list or tuple, of either kind if it is matched."""

    parts: tuple[Pattern, ...]
    kind: type[list[Any]] | type[tuple[Any, ...]] = list


@dataclass(frozen=True)
class StepPattern:
    """A step: its form, the names that it may have, and its arguments; `rest` and `options` name those that are
    left.
    """

    form: Form
    names: tuple[str, ...]
    args: tuple[Pattern, ...]
    keywords: tuple[tuple[str, Pattern], ...] = ()
    rest: str = ""
    options: str = ""


Pattern = Anything | Constant | View | Listed | StepPattern


@functools.cache
def pattern(text: str) -> Pattern:
    """Return the pattern that a text is.

    Raises:
      SyntaxError: it is none.
    """
    return _read(ast.parse(text, mode="eval").body)


def _read(node: ast.expr) -> Pattern:
    match node:
        case ast.Name(name):
            return Constant(NUMBERS[name]) if name in NUMBERS else Anything(name)
        case ast.Constant(value) if value is None or isinstance(value, int | float):
            return Constant(value)
        case ast.UnaryOp(ast.USub(), operand) if isinstance(inner := _read(operand), Constant):
            return Constant(-(inner.value or 0.0))
        case ast.NamedExpr(ast.Name(name), value):
            return Anything(name, _read(value))
        case ast.List(parts) | ast.Tuple(parts):
            return Listed(tuple(map(_read, parts)), list if isinstance(node, ast.List) else tuple)
        case ast.UnaryOp(operation, operand):
            return StepPattern("operator", OPERATORS[type(operation)], (_read(operand),))
        case ast.BinOp(left, operation, right) | ast.Compare(left, [operation], [right]):
            return StepPattern("operator", OPERATORS[type(operation)], (_read(left), _read(right)))
        case ast.Subscript(value, index):
            return StepPattern("index", ("",), (_read(value), _read(index)))
        case ast.Attribute(value, name):
            return StepPattern("attribute", (name,), (_read(value),))
        case ast.Call(ast.Name(name), [inner], []):
            return View(name, _read(inner))
        case ast.Call(function, args, keywords):
            starred = [ast.unparse(arg.value) for arg in args if isinstance(arg, ast.Starred)]
            rest, own = "".join(starred), tuple(_read(arg) for arg in args if not isinstance(arg, ast.Starred))
            exact = tuple((word.arg, _read(word.value)) for word in keywords if word.arg is not None)
            options = next((ast.unparse(word.value) for word in keywords if word.arg is None), "")
            if isinstance(function, ast.Attribute) and ast.unparse(function.value) not in NAMESPACES:
                return StepPattern("method", (function.attr,), (_read(function.value), *own), exact, rest, options)
            return StepPattern("call", tuple(ast.unparse(function).split(" | ")), own, exact, rest, options)
    raise SyntaxError(f"no pattern of a step: {ast.unparse(node)}")


def names(wanted: Pattern) -> frozenset[str]:
    """Return the names in a pattern.

    >>> sorted(names(pattern("jnp.mean((y := x * x), **options)")))
    ['options', 'x', 'y']
    """
    own = {wanted.name} if isinstance(wanted, Anything) else set()
    own |= {wanted.rest, wanted.options} - {""} if isinstance(wanted, StepPattern) else set()
    return frozenset(own).union(*map(names, _parts(wanted)))


def inner_steps(wanted: Pattern) -> Iterator[StepPattern]:
    """Yield the steps inside a pattern.

    >>> [step.names for step in inner_steps(pattern("jnp.exp(x * (y := jnp.sin(x)))"))]
    [('*',), ('jnp.sin',)]
    """
    for part in _parts(wanted):
        if isinstance(part, StepPattern):
            yield part
        yield from inner_steps(part)


def _parts(wanted: Pattern) -> tuple[Pattern, ...]:
    match wanted:
        case Anything(_, inner) | View(_, inner) if inner is not None:
            return (inner,)
        case Listed(parts):
            return parts
        case StepPattern():
            return (*wanted.args, *(value for _, value in wanted.keywords))
    return ()


def bindings(
    wanted: Pattern,
    value: object,
    producers: Producers,
    bound: Bindings | None = None,
    dtype: np.dtype | None = None,
) -> Iterator[Bindings]:
    """Yield what the names of a pattern may stand for in a value or a step.

    Args:
      wanted: the pattern.
      value: the value, or the step that makes it.
      producers: the steps that make values.
      bound: what some names stand for already.
      dtype: that of the arithmetic with the value, if it is floating-point: constants are rounded to it.
    """
    bound = bound or {}
    match wanted:
        case Anything(name, inner):
            if name in bound and not _are_same(bound[name], value):
                return
            known = bound if name == "_" or name in bound else {**bound, name: value}
            if inner is None:
                yield known
            else:
                yield from bindings(inner, value, producers, known, dtype)
        case Constant(number_):
            if _is_everywhere(value, number_, dtype):
                yield bound
        case View(function, inner):
            yield from bindings(inner, VIEWS[function](value, producers), producers, bound, dtype)
        case Listed(parts):
            if isinstance(value, list | tuple) and len(value) == len(parts):
                yield from _all([(part, each, None) for part, each in zip(parts, value, strict=True)], producers, bound)
        case StepPattern():
            step = value if isinstance(value, Step) else producers.step(value, *wanted.names)
            if step is not None and step.name in wanted.names and step.form != "vmap":
                yield from _of_step(wanted, step, producers, bound)
            elif wanted.form == "index" and isinstance(value, Variable) and value in producers.parts:
                pairs = zip(wanted.args, producers.parts[value], (None, None), strict=True)
                yield from _all([*pairs], producers, bound)


def _of_step(wanted: StepPattern, step: Step, producers: Producers, bound: Bindings) -> Iterator[Bindings]:
    words = dict(wanted.keywords)
    exact = step.kwargs.keys() == words.keys() if not wanted.options else words.keys() <= step.kwargs.keys()
    count = len(wanted.args)
    if not exact or (len(step.args) < count if wanted.rest else len(step.args) != count):
        return
    dtype = step.outputs.dtype if isinstance(step.outputs, Variable) else None
    rest = [(value, step.kwargs[word], None) for word, value in wanted.keywords]
    if wanted.rest:
        rest.append((Anything(wanted.rest), step.args[count:], None))
    if wanted.options:
        rest.append(
            (Anything(wanted.options), {word: value for word, value in step.kwargs.items() if word not in words}, None)
        )
    swaps = step.name in COMMUTATIVE and len(step.args) == 2
    for args in (step.args, step.args[::-1]) if swaps else (step.args,):
        pairs = [(part, arg, dtype) for part, arg in zip(wanted.args, args, strict=False)]
        if any(isinstance(part, Constant) and _enlarges(arg, step) for part, arg, _ in pairs):
            continue
        yield from _all([*pairs, *rest], producers, bound)


def _all(
    pairs: Sequence[tuple[Pattern, object, np.dtype | None]], producers: Producers, bound: Bindings
) -> Iterator[Bindings]:
    if not pairs:
        yield bound
        return
    (wanted, value, dtype), *rest = pairs
    for known in bindings(wanted, value, producers, bound, dtype):
        yield from _all(rest, producers, known)


def _enlarges(constant: object, step: Step) -> bool:
    """Whether a constant gives a result its shape: without it, the other operands are smaller."""
    shape = step.outputs.shape if isinstance(step.outputs, Variable) else None
    others = (arg for arg in step.args if isinstance(arg, Variable))
    return isinstance(constant, HostValue) and constant.ndim > 0 and all(other.shape != shape for other in others)


def _are_same(one: object, other: object) -> bool:
    """Whether two values are one: the same variable, or constants, sizes or options that are equal."""
    if one is other:
        return True
    if isinstance(one, Variable) or isinstance(other, Variable):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_same(one[key], other[key]) for key in one)
    numbers = number(one), number(other)
    if None not in numbers:
        return numbers[0] == numbers[1]
    sizes = [value.item() if isinstance(value, HostValue) and value.size == 1 else value for value in (one, other)]
    key = leaf_key(sizes[0])
    return key is not None and key == leaf_key(sizes[1])


def _is_everywhere(value: object, wanted: float | bool | None, dtype: np.dtype | None) -> bool:
    """Whether a value is a constant whose elements are all a number in a type."""
    if wanted is None:
        return value is None
    if isinstance(value, HostValue) and not value.symbolic and value.size:
        data = value.data
    elif isinstance(value, int | float | np.number):
        data = np.asarray(value)
    else:
        return False
    if data.dtype.kind == "V" and jnp.issubdtype(data.dtype, np.floating):  # of fewer bits than NumPy's
        data = data.astype(np.float32)
    if (data.dtype.kind == "b") != isinstance(wanted, bool) or data.dtype.kind not in "iufb":
        return False
    if dtype is not None and np.dtype(dtype).kind not in "iub" and data.dtype.kind == "f":
        with np.errstate(over="ignore"):
            data = data.astype(dtype)
    return bool(np.isnan(data).all() if math.isnan(wanted) else (data == wanted).all())

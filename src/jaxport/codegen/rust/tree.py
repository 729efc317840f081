"""Trees of Rust: expressions, statements and functions, and what is known of them beyond their text.

    let y = x.exp() + 1.0;     Let(Identifier("y"), Binary(Method(Identifier("x"), "exp"), "+", Literal("1.0")))

The fields of a node are its parts, in their order, and all that its text is made of. What is only known of it is a
keyword: the element that fills a tensor, the type of a name, whether a name is assigned to later. Two nodes of equal
parts are alike, whatever is known of them, and a copy knows what the node does. `jaxport.codegen.rust.text` writes
trees, `jaxport.codegen.rust.ownership` says which uses of a value clone it.

The printer of modules walks and compares the trees of all languages by their `_fields`: `jaxport.codegen.nodes`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar, dataclass_transform

import numpy as np

from jaxport.codegen import nodes
from jaxport.importer.values.host import Dim

Node = TypeVar("Node", bound="RustNode")


class RustNode:
    """A node of a tree of Rust; `_fields` are the names of its parts."""

    _fields: ClassVar[tuple[str, ...]] = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __copy__(self: Node) -> Node:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self: Node, memo: dict[int, object]) -> Node:
        """Return a node with copies of its parts; what is known of it, such as a size with a name, cannot be copied."""
        made = copy.copy(self)
        for part in self._fields:
            setattr(made, part, copy.deepcopy(getattr(self, part), memo))
        return made


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def _node(cls: type[Node]) -> type[Node]:
    """Make a node of a class: its fields are its parts, but for those that are keywords only."""
    made = dataclass(eq=False)(cls)
    made._fields = made.__match_args__
    return made


@_node
class RustExpression(RustNode):
    """An expression of Rust, or a pattern.

    `fills` is the number that all elements of a tensor are, or the size, if the expression creates one of known
    elements.
    """

    fills: Dim | np.generic | None = field(default=None, kw_only=True)


@_node
class Literal(RustExpression):
    """Text that stays as it is: a number that is no argument, a constant, a type."""

    text: str


@_node
class Number(RustExpression):
    """A number or boolean. Where modules that are alike have others it becomes an argument of their constructor, called
    by its role.
    """

    value: float
    role: str = field(default="", kw_only=True)


@_node
class Identifier(RustExpression):
    """The name of a value that is read, or, in a pattern, of one that is bound; `type` is the type that it is bound
    with, if known.
    """

    id: str
    type: str = field(default="", kw_only=True)


@_node
class FieldAccess(RustExpression):
    """`value.field`; the value is not moved."""

    value: RustExpression
    field: str


@_node
class Index(RustExpression):
    """`value[index]`; the value is not moved."""

    value: RustExpression
    index: RustExpression


@_node
class Method(RustExpression):
    """`receiver.name::<generics>(arguments)`.

    Attributes:
      borrows: whether the receiver is not moved.
      is_default: whether this sets an option to the default that it has.
      least: the number that no element of the result is below, if this is a bound.
      added: the axes that this adds, if it does.
      casts_booleans: whether this makes numbers of a mask, which is the receiver.
    """

    receiver: RustExpression
    name: str
    arguments: list[RustExpression]
    generics: str = ""
    borrows: bool = False
    is_default: bool = field(default=False, kw_only=True)
    least: float | None = field(default=None, kw_only=True)
    added: Sequence[int] | None = field(default=None, kw_only=True)
    casts_booleans: bool = field(default=False, kw_only=True)


@_node
class Invocation(RustExpression):
    """`path(arguments)`: a call of a function; the path may have generics."""

    path: str
    arguments: list[RustExpression]


@_node
class Tuple(RustExpression):
    """`(a, b)`."""

    elements: list[RustExpression]


@_node
class Array(RustExpression):
    """`[a, b]`."""

    elements: list[RustExpression]


@_node
class Vector(RustExpression):
    """`vec![a, b]`."""

    elements: list[RustExpression]


@_node
class Borrow(RustExpression):
    """`&value`."""

    value: RustExpression


@_node
class Try(RustExpression):
    """`value?`."""

    value: RustExpression


@_node
class Binary(RustExpression):
    """`left + right`, of tensors or numbers; `as` is one, too.

    `window` is the number of elements of a window where the left side is their mean, and the whole their sum.
    """

    left: RustExpression
    symbol: str
    right: RustExpression
    window: int | None = field(default=None, kw_only=True)


@_node
class Unary(RustExpression):
    """`-value`, `!value`."""

    symbol: str
    value: RustExpression


@_node
class RustRange(RustExpression):
    """`start..end` or `start..end;step`, each end of which may be missing."""

    start: RustExpression | None
    end: RustExpression | None
    step: int = 1


@_node
class Slices(RustExpression):
    """`s![.., 0..3]`."""

    parts: list[RustExpression]


@_node
class Zipped(RustExpression):
    """`a.iter().zip(b)`: what a loop goes over side by side; modules, which are fields or parts of them, are
    references.
    """

    values: list[RustExpression]


@_node
class Closure(RustExpression):
    """`|a, b| value`."""

    parameters: list[str]
    value: RustExpression


@_node
class Structure(RustExpression):
    """`Name { field: value }`."""

    name: str
    fields: list[str]
    values: list[RustExpression]


@_node
class Braces(RustExpression):
    """`{ statements; value }`."""

    statements: list[RustStatement]
    value: RustExpression


@_node
class IfElse(RustExpression):
    """`if condition { … } else { … }`, with a value; `otherwise` is a block, or another choice."""

    condition: RustExpression
    then: Braces
    otherwise: Braces | IfElse


@_node
class RustStatement(RustNode):
    """A statement or an item of Rust."""


@_node
class Let(RustStatement):
    """`let target = value;`.

    Attributes:
      mutable: the names in the target that are assigned to later.
      assigns: whether the names were bound before: `target = value;`.
    """

    target: RustExpression
    value: RustExpression
    mutable: frozenset[str] = field(default=frozenset(), kw_only=True)
    assigns: bool = field(default=False, kw_only=True)


@_node
class Return(RustStatement):
    """The value of a function or of a block, which is its last line."""

    value: RustExpression


@_node
class ExpressionStatement(RustStatement):
    """`value;`."""

    value: RustExpression


@_node
class For(RustStatement):
    """`for target in over { … }`; `mutable` are the names in the target that are assigned to."""

    target: RustExpression
    over: RustExpression
    body: list[RustStatement]
    mutable: frozenset[str] = field(default=frozenset(), kw_only=True)


@_node
class While(RustStatement):
    """`loop { statements; if !condition { break; } … }`: the condition is computed by statements of its own."""

    before: list[RustStatement]
    condition: RustExpression
    body: list[RustStatement]


@_node
class RustFunction(RustStatement):
    """A function or method.

    `parameters` are names with their types, `mutable` those that are assigned to; `returned` is a type. A method of a
    value has `&self` first.
    """

    name: str
    parameters: list[str]
    types: list[str]
    returned: str
    body: list[RustStatement]
    generics: str = ""
    is_method: bool = False
    is_public: bool = False
    documentation: str = ""
    mutable: frozenset[str] = field(default=frozenset(), kw_only=True)


def method(
    receiver: RustExpression, name: str, *arguments: RustExpression, generics: str = "", borrows: bool = False
) -> Method:
    """Return the call of a method.

    >>> method(Identifier("x"), "exp").name
    'exp'
    """
    return Method(receiver, name, [*arguments], generics, borrows)


def path_call(path: str, *arguments: RustExpression) -> Invocation:
    """Return the call of a function."""
    return Invocation(path, [*arguments])


def place(path: str) -> RustExpression:
    """Return a name, or a part of the module: `self.layers[0]`, or some of a list.

    >>> place("self.layers[1:]").value.field
    'layers'
    """
    first, *parts = re.findall(r"\w+|\[[^]]*\]", path)
    made: RustExpression = Identifier(first)
    for part in parts:
        start, colon, end = part.strip("[]").partition(":")
        if not part.startswith("["):
            made = FieldAccess(made, part)
        elif colon:
            begin, behind = (Number(int(bound)) if bound else None for bound in (start, end))
            made = Index(made, RustRange(begin, behind))
        else:
            made = Index(made, Number(int(start)))
    return made


def clone(value: RustExpression) -> Method:
    """Return `value.clone()`."""
    return method(value, "clone", borrows=True)


def constant(value: float, role: str) -> Number:
    """Return a number of a constructor, which is called by its role; one of float32 has the digits of float32.

    >>> constant(float(np.float32(0.1)), "epsilon").value, constant(0.1, "epsilon").value, constant(True, "bias").value
    (0.1, 0.1, True)
    """
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return Number(float(str(single if float(single) == value else value)), role=role)
    return Number(value.item() if isinstance(value, np.generic) else value, role=role)


def walk(tree: RustNode) -> Iterator[RustNode]:
    """Yield a node and all nodes in it."""
    return (node for node in nodes.walk([tree]) if isinstance(node, RustNode))


def names(trees: Iterable[RustNode]) -> Iterator[Identifier]:
    """Yield the names in trees: those that are read, and those that are bound."""
    return (node for tree in trees for node in walk(tree) if isinstance(node, Identifier))


def has_name(trees: Iterable[RustNode], name: str) -> bool:
    """Whether a name is in trees."""
    return any(one.id == name for one in names(trees))


def rewritten(tree: RustExpression, change: Callable[[RustExpression], RustExpression]) -> RustExpression:
    """Return an expression with what `change` makes of all expressions in it, the inner ones first; it is changed.

    >>> rewritten(
    ...     method(Identifier("x"), "exp"), lambda node: Literal("1.0") if isinstance(node, Identifier) else node
    ... ).receiver.text
    '1.0'
    """
    rewrite_parts(tree, change)
    return change(tree)


def rewrite_parts(tree: RustNode, change: Callable[[RustExpression], RustExpression]) -> None:
    """Put what `change` makes of the expressions in a statement, or in an expression, in place of them."""

    def changed(value: object) -> object:
        if isinstance(value, RustExpression):
            return rewritten(value, change)
        if isinstance(value, RustStatement):
            rewrite_parts(value, change)
        return value

    for part in tree._fields:
        value = getattr(tree, part)
        if isinstance(value, list):
            value[:] = map(changed, value)
        else:
            setattr(tree, part, changed(value))


def returned_at_once(statements: Sequence[RustStatement]) -> list[RustStatement]:
    """Return statements of which the last returns a value that the one before only binds to a name, or to several."""
    *before, last = statements
    if before and isinstance(made := before[-1], Let) and isinstance(last, Return):
        bound, read = (
            [part.id if isinstance(part, Identifier) else "" for part in _parts(pattern)]
            for pattern in (made.target, last.value)
        )
        if bound == read and "" not in bound:
            return [*before[:-1], Return(made.value)]
    return [*statements]


def _parts(pattern: RustExpression) -> list[RustExpression]:
    return pattern.elements if isinstance(pattern, Tuple) else [pattern]

"""The check of the inputs: what `run` returns as an error, and `forward` panics with; and the sizes in their
elements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from jax.export import SymbolicScope, symbolic_shape

from jaxport.codegen.burn.values import signed_node, size_node, tensor_type
from jaxport.codegen.rust.text import function_text, quoted
from jaxport.codegen.rust.tree import (
    Array,
    Binary,
    Borrow,
    ExpressionStatement,
    Identifier,
    Index,
    Let,
    Literal,
    Number,
    Return,
    RustExpression,
    RustFunction,
    RustStatement,
    Try,
    method,
    path_call,
)
from jaxport.codegen.writing.size_names import LINEAR, ReadShape, SizeStatement, SolvedSize
from jaxport.importer.traced.assumptions import Bounds
from jaxport.importer.traced.zero_sizes import may_be_nothing, size_text
from jaxport.importer.values.host import Dim, HostValue, is_dim
from jaxport.importer.values.recording import Variable
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.dims import evaluate
from jaxport.sizes.conditions import SizeComparison

CHECK_HELPERS = (
    "check_at_least",
    "check_cache",
    "check_elements",
    "check_equal",
    "check_shape",
    "check_size",
    "check_sizes",
    "sizes_in",
)
"""The helper functions that a check may call."""
_DOCUMENTATION = "Checks the shapes of the inputs. `forward` does so, too, and panics with the same text."


def check_text(
    inputs: Mapping[str, tuple[str, Variable]],
    spelled: Mapping[str, str],
    read: Mapping[str, HostValue] = MappingProxyType({}),
    conditions: Sequence[SizeComparison] = (),
) -> str:
    """Return the method `check` of a model.

    Args:
      inputs: the name in the file and the variable of each argument of `forward`, by the name of the argument.
      spelled: the names of sizes that Rust spells otherwise.
      read: the elements of those arguments that are sizes.
      conditions: what has to hold of sizes.
    """
    statements, known = _sizes({key: variable for key, (_, variable) in inputs.items()})
    for key, (label, variable) in inputs.items():
        shape = tuple(variable.shape)
        if any(not is_dim(size) and size == 0 for size in shape):
            continue  # nothing is read of it
        needed = [_needed(size, known, key, axis) for axis, size in enumerate(shape)] or [Literal("1")]
        declared = f"[{', '.join(map(size_text, shape or (1,)))}]"
        empty = [Literal(str(axis)) for axis, size in enumerate(shape) if may_be_nothing(size)][:1]
        check = "check_cache" if empty else "check_shape"
        called = path_call(
            check, Literal(quoted(label)), _own_sizes(key), Array(needed), Literal(quoted(declared)), *empty
        )
        statements.append(ExpressionStatement(Try(called)))
    for key, elements in read.items():
        label, own = Literal(quoted(inputs[key][0])), Identifier(key)
        sizes = [*elements.data.ravel()]
        statements.append(
            ExpressionStatement(Try(path_call("check_elements", label, own, Literal(str(_least(sizes))))))
        )
        wanted = {name for size in sizes for name in symbols(str(size))} - known
        made, found = element_statements({key: elements}, wanted, is_borrowed=True)
        statements += made
        known |= found
        if not _are_free(sizes):
            declared = Literal(quoted(f"[{', '.join(map(str, sizes))}]"))
            called = path_call("sizes_in", own)
            needed = Array([_needed(size, known, "", 0) for size in sizes])
            statements.append(ExpressionStatement(Try(path_call("check_sizes", label, called, needed, declared))))
    statements += [_held(one) for one in conditions if one.names <= known]
    last = statements[-1] if statements else None
    if isinstance(last, ExpressionStatement) and isinstance(last.value, Try):
        statements[-1] = Return(last.value.value)
    else:
        statements.append(Return(Literal("Ok(())")))
    types = [f"&{tensor_type(variable.shape, variable.dtype)}" for _, variable in inputs.values()]
    function = RustFunction(
        "check", [*inputs], types, "Result<(), String>", statements,
        is_method=True, is_public=True, documentation=_DOCUMENTATION,
    )  # fmt: skip
    return function_text(function, [*known, *inputs], 1, spelled)


def _held(asked: SizeComparison) -> RustStatement:
    """Return the check of an equality or an inequality of sizes, of which no side is less than 0."""
    left, comparison, right = asked.left, asked.symbol, asked.right
    if left in asked.names and right.isdecimal():
        bounds = int(right) * (comparison != "<="), None if comparison == ">=" else int(right)
        return ExpressionStatement(Try(size_check(left, bounds)))
    scope = SymbolicScope()
    names = {name: symbolic_shape(name, scope=scope)[0] for name in sorted(asked.names)}
    if comparison != "==":
        difference = evaluate(left, names) - evaluate(right, names)
        left, right = _apart(str(difference if comparison == ">=" else -difference))
        if left.isdecimal():
            most = Literal(quoted(right)), size_node(evaluate(right, names))[0], Literal("0"), Literal(left)
            return ExpressionStatement(Try(path_call("check_size", *most)))
    arguments = [
        part for side in (left, right) for part in (Literal(quoted(side.strip())), size_node(evaluate(side, names))[0])
    ]
    return ExpressionStatement(Try(path_call("check_equal" if comparison == "==" else "check_at_least", *arguments)))


def _apart(difference: str) -> tuple[str, str]:
    """Return what is added in a difference, and what is subtracted.

    >>> _apart("- past - 2*length + 512"), _apart("total - length"), _apart("- a + b")
    (('512', 'past + 2*length'), ('total', 'length'), ('b', 'a'))
    """
    sides: dict[str, list[str]] = {"+": [], "-": []}
    for sign, term in re.findall(r"(?:^|(?<= ))([+-]?) ?((?:\([^()]*(?:\([^()]*\)[^()]*)*\)|[^\s()])+)", difference):
        sides[sign or "+"].append(term)
    return " + ".join(sides["+"]) or "0", " + ".join(sides["-"]) or "0"


def check_statement(arguments: Sequence[str]) -> RustStatement:
    """Return the statement of `forward` that panics with what `check` says."""
    # A size may be called `self`, and is spelled otherwise then.
    called = method(Literal("self"), "check", *(Borrow(Identifier(key)) for key in arguments), borrows=True)
    return panicking(called)


def size_check(size: str, bounds: Bounds) -> RustExpression:
    """Return the call that says whether a size is inside of bounds."""
    least, most = bounds
    end = Literal("usize::MAX" if most is None else str(most))
    return path_call("check_size", Literal(quoted(size)), Identifier(size), Literal(str(least)), end)


def panicking(check: RustExpression) -> RustStatement:
    """Return the statement that panics with what a check says."""
    return ExpressionStatement(method(check, "unwrap_or_else", Literal('|error| panic!("{error}")')))


def element_statements(
    read: Mapping[str, HostValue], wanted: Collection[str], *, is_borrowed: bool = False
) -> tuple[list[RustStatement], set[str]]:
    """`let [shape_0, shape_1] = sizes_in(&shape);`: return the statements that read sizes, and the names of those.

    Args:
      read: the elements of arguments that are sizes.
      wanted: the names that are needed.
      is_borrowed: whether the arguments are references.
    """
    statements: list[RustStatement] = []
    known: set[str] = set()
    for argument, elements in read.items():
        targets: list[Identifier] = []
        solved: list[RustStatement] = []
        for size in map(str, elements.data.ravel()):
            linear = LINEAR.fullmatch(size)
            if linear is None or linear["name"] in known or linear["name"] not in wanted:
                targets.append(Identifier("_"))
                continue
            known.add(linear["name"])
            targets.append(Identifier(linear["name"]))
            node = _solved(Identifier(linear["name"]), linear)
            if not isinstance(node, Identifier):
                solved.append(Let(Identifier(linear["name"]), node))
        if any(target.id != "_" for target in targets):
            own = Identifier(argument)
            called = path_call("sizes_in", own if is_borrowed else Borrow(own))
            statements += [Let(Array([*targets]), called), *solved]
    return statements, known


def sizes_in_rust(statements: Iterable[SizeStatement]) -> list[RustStatement]:
    """`let [batch, _] = x.dims(); let height = (x.dims()[1] - 1) / 32;`: what is refused, `check` has refused
    before.
    """
    made: list[RustStatement] = []
    for statement in statements:
        if isinstance(statement, ReadShape):
            made.append(Let(Array([*map(Identifier, statement.names)]), _own_sizes(statement.argument)))
        elif isinstance(statement, SolvedSize):
            size, factor = statement.size, statement.factor
            node: RustExpression = Index(_own_sizes(size.argument), Number(size.axis))
            node = Binary(node, "-" if size.added < 0 else "+", Number(abs(size.added))) if size.added else node
            made.append(Let(Identifier(statement.name), Binary(node, "/", Number(factor)) if factor > 1 else node))
    return made


def _least(sizes: Sequence[Dim]) -> int:
    """Return the smallest number that all elements of an input may be: those that count from 0 are a size less 1."""
    return 0 if any(str(size).endswith(" - 1") for size in sizes) else 1


def _are_free(sizes: Sequence[Dim]) -> bool:
    """Whether elements may be any sizes."""
    texts = [LINEAR.fullmatch(str(size)) for size in sizes]
    names = [text["name"] for text in texts if text is not None and not text["factor"]]
    return len({*names}) == len(sizes)


def _solved(node: RustExpression, linear: re.Match[str]) -> RustExpression:
    """Return the size whose name is the only one in an expression that a number is."""
    if linear["sign"] == "+":
        node = method(node, "saturating_sub", Literal(linear["offset"]))
    elif linear["sign"]:
        node = Binary(node, "+", Literal(linear["offset"]))
    return Binary(node, "/", Literal(linear["factor"])) if linear["factor"] else node


def _sizes(arguments: Mapping[str, Variable]) -> tuple[list[RustStatement], set[str]]:
    """Return the statements that read sizes from the shapes of arguments, and their names."""
    known: set[str] = set()
    statements: list[RustStatement] = []
    read = {key: [*map(size_text, variable.shape)] for key, variable in arguments.items()}
    needed = {name for sizes in read.values() for size in sizes for name in symbols(size)}
    for key, sizes in read.items():
        targets = [Identifier(size if size in needed - known else "_") for size in sizes]
        for axis, target in enumerate(targets):  # a name may stand twice
            target.id = "_" if target.id in {other.id for other in targets[:axis]} else target.id
        if any(target.id != "_" for target in targets):
            statements.append(Let(Array([*targets]), _own_sizes(key)))
        known |= {target.id for target in targets} - {"_"}
    for key, sizes in read.items():
        for axis, size in enumerate(sizes):
            linear = LINEAR.fullmatch(size)
            if linear is None or linear["name"] in known:
                continue
            node = _solved(_own_size(key, axis), linear)
            statements.append(Let(Identifier(linear["name"]), node))
            known.add(linear["name"])
    return statements, known


def _needed(size: Dim, known: set[str], argument: str, axis: int) -> RustExpression:
    """Return what a size has to be; one whose names are not known is what it is."""
    if not is_dim(size):
        return Literal(str(int(size)))
    if not symbols(size_text(size)) <= known:
        return _own_size(argument, axis)
    if "-" in size_text(size):  # below 0 no shape agrees
        return Binary(signed_node(size)[0], "as", Literal("usize"))
    return size_node(size)[0]


def _own_size(argument: str, axis: int) -> RustExpression:
    return Index(_own_sizes(argument), Literal(str(axis)))


def _own_sizes(argument: str) -> RustExpression:
    return method(Identifier(argument), "dims", borrows=True)

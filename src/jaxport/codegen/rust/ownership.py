"""Which uses of a value move it and which clone it: the last one moves, earlier ones clone.

The pass runs over the finished statements of one function, from the last to the first, with the names that are read
later. Names of a loop's body that the next round reads, or what follows the loop, are assigned to instead of bound
anew; they are `let mut` where they are bound.

    let y = norm(x);         let y = norm(x.clone());
    let z = y + x;     →     let z = y + x;
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxport.codegen.rust.tree import (
    Borrow,
    Braces,
    Closure,
    ExpressionStatement,
    FieldAccess,
    For,
    Identifier,
    IfElse,
    Index,
    Let,
    Method,
    Return,
    RustExpression,
    RustFunction,
    RustNode,
    RustStatement,
    While,
    clone,
    names,
)
from jaxport.importer.names import unique

Binders = dict[str, Let | For | RustFunction]
"""What binds each name: of a parameter, the function."""


def own(function: RustFunction, copied: Collection[str]) -> None:
    """Insert the clones that a function needs, in place, and note what is assigned to.

    Args:
      function: the function.
      copied: the names whose values are copied: sizes, references to modules.
    """
    _without_unread(function.body, set())
    _split_carried(function.body, {*function.parameters})
    _bind(function.body, dict.fromkeys(function.parameters, function), set())
    _insert(function.body, set(), copied)


def targets(statement: RustStatement) -> set[str]:
    """Return the names that a statement binds or assigns to, those of a loop's body left out."""
    return {name.id for name in names([statement.target])} if isinstance(statement, Let) else set()


def live(statements: Sequence[RustStatement], after: Collection[str]) -> set[str]:
    """Return the names that are read by statements, or behind them, before they are bound."""
    alive = set(after)
    for statement in reversed(statements):
        if isinstance(statement, For | While):
            alive |= _live_in_loop(statement, alive)
        else:
            alive -= targets(statement)
            alive |= _read(statement)
    return alive


def _read(node: RustNode) -> set[str]:
    """Return the names that a statement or an expression reads, those of the branches of a choice included."""
    read = {use.name.id for use in _uses(node)}
    for block in _branches(node):
        read |= _live_in_block(block)
    return read


def _live_in_block(block: Braces) -> set[str]:
    return live([*block.statements, Return(block.value)], ())


def _branches(node: RustNode) -> list[Braces]:
    """Return the branches of the choice that a statement is the result of, if it is one."""
    value = node.value if isinstance(node, Let | Return | ExpressionStatement) else None
    found: list[Braces] = []
    while isinstance(value, IfElse):
        found.append(value.then)
        value = value.otherwise
    return [*found, value] if isinstance(value, Braces) else found


def _live_in_loop(loop: For | While, after: Collection[str]) -> set[str]:
    once = _read(loop.over) if isinstance(loop, For) else set()
    return _live_in_rounds(loop, after) | once


def _live_in_rounds(loop: For | While, after: Collection[str]) -> set[str]:
    inside = loop.body if isinstance(loop, For) else [*loop.before, ExpressionStatement(loop.condition), *loop.body]
    again = live(inside, after) - _bound(loop)
    return live(inside, {*after, *again}) - _bound(loop)


def _split_carried(statements: Sequence[RustStatement], known: set[str]) -> None:
    """Give the values that a round of a loop only has meanwhile names of their own, if they share that of a carried
    one.
    """
    for statement in statements:
        if isinstance(statement, For | While):
            _split_carried(statement.body, {*known, *_bound(statement)})
            inside = statement.body
            carried = {name for inner in inside for name in targets(inner)} & known
            for name in carried:
                places = [at for at, inner in enumerate(inside) if name in targets(inner)]
                types = {_type_of(inside[at], name) for at in places}
                if len(places) > 1 and len(types) > 1:
                    _rename(inside, places, name, unique("h", {*known, *(one.id for one in names(inside))}))
        known = known | targets(statement)


def _bound(loop: For | While) -> set[str]:
    return {name.id for name in names([loop.target])} if isinstance(loop, For) else set()


def _type_of(statement: RustStatement, name: str) -> str:
    assert isinstance(statement, Let)
    return next(target.type for target in names([statement.target]) if target.id == name)


def _rename(statements: Sequence[RustStatement], places: Sequence[int], name: str, other: str) -> None:
    """Rename the values between the first place that binds a name and the last."""
    first, last = places[0], places[-1]
    for at in range(first, last + 1):
        statement = statements[at]
        within: list[RustNode] = [statement]
        if isinstance(statement, Let):
            within = [*[statement.value] * (at > first), *[statement.target] * (at < last)]
        for one in names(within):
            if one.id == name:
                one.id = other


def _bind(statements: Sequence[RustStatement], binders: Binders, after: set[str]) -> None:
    """Find the assignments in loops to names that are bound before them."""
    for index, statement in enumerate(statements):
        if isinstance(statement, For | While):
            behind = live(statements[index + 1 :], after)
            wanted = behind | _live_in_loop(statement, behind)
            inner = dict(binders)
            if isinstance(statement, For):
                inner |= dict.fromkeys(_bound(statement), statement)
            else:
                _assign(statement.before, inner, wanted)
                _bind(statement.before, inner, wanted)
            _assign(statement.body, inner, wanted)
            _bind(statement.body, inner, wanted)
        elif (list_ := _extended(statement)) is not None:
            _mark(list_, binders)
        else:
            for block in _branches(statement):
                _bind(block.statements, dict(binders), live([Return(block.value)], ()))
            if isinstance(statement, Let) and not statement.assigns:
                binders |= dict.fromkeys(targets(statement), statement)


def _extended(statement: RustStatement) -> str | None:
    """Return the list that a statement pushes a value to."""
    value = statement.value if isinstance(statement, ExpressionStatement) else None
    if isinstance(value, Method) and value.name == "push" and isinstance(value.receiver, Identifier):
        return value.receiver.id
    return None


def _assign(body: list[RustStatement], binders: Binders, wanted: Collection[str]) -> None:
    for inner in [*body]:
        assigned = targets(inner) & binders.keys() & set(wanted)
        if not assigned or not isinstance(inner, Let):
            continue
        for name in assigned:
            _mark(name, binders)
        if not targets(inner) - assigned - {"_"}:
            inner.assigns = True
            continue
        taken = {*binders, *(one.id for one in names(body))}  # some are bound, others assigned to
        for name in sorted(assigned):
            meanwhile = unique(f"next_{name}", taken)
            taken.add(meanwhile)
            for target in names([inner.target]):
                if target.id == name:
                    target.id = meanwhile
            body.insert(body.index(inner) + 1, Let(Identifier(name), Identifier(meanwhile), assigns=True))


def _mark(name: str, binders: Binders) -> None:
    if name in binders:
        binders[name].mutable |= {name}


def _without_unread(statements: list[RustStatement], after: Collection[str]) -> None:
    """Take out what binds values that nothing reads, in loops and branches first: no expression does anything but
    compute.
    """
    alive = set(after)
    for statement in [*reversed(statements)]:
        if isinstance(statement, Let) and not targets(statement) & alive:
            statements.remove(statement)
            continue
        if isinstance(statement, For | While):
            again = alive | _live_in_rounds(statement, alive)
            if isinstance(statement, While):
                again |= live([*statement.before, ExpressionStatement(statement.condition)], again)
            _without_unread(statement.body, again - _bound(statement))
            alive |= _live_in_loop(statement, alive)
            continue
        for block in _branches(statement):
            _without_unread(block.statements, alive | _read(block.value))
        alive -= targets(statement)
        alive |= _read(statement)


def _insert(statements: Sequence[RustStatement], after: Collection[str], copied: Collection[str]) -> None:
    """Insert clones, from the last statement to the first; `after` are the names that are read behind them."""
    alive = set(after)
    for statement in [*reversed(statements)]:
        if isinstance(statement, For | While):
            again = alive | _live_in_rounds(statement, alive)
            once = _live_in_loop(statement, alive)
            if isinstance(statement, For):
                _drop_unread(statement.target, live(statement.body, ()))
                _insert(statement.body, again - _bound(statement), copied)
                _clones(_uses(statement.over, statement, "over"), again, copied)
            else:
                # The condition is followed by another round, or by what is behind the loop.
                behind = live(statement.body, again) | alive
                condition = ExpressionStatement(statement.condition)
                _insert([*statement.before, condition], behind, copied)
                statement.condition = condition.value
                _insert(statement.body, again, copied)
            alive = again | once
            continue
        if isinstance(statement, Let):
            _drop_unread(statement.target, alive)
        alive -= targets(statement)
        branches = _branches(statement)
        for block in branches:
            last = Return(block.value)
            _insert([*block.statements, last], alive, copied)
            block.value = last.value
        _clones(_uses(statement), alive.union(*map(_live_in_block, branches)), copied)
        alive |= _read(statement)


def _drop_unread(target: RustExpression, alive: Collection[str]) -> None:
    """Bind what nothing reads to `_`."""
    for name in names([target]):
        if name.id not in alive:
            name.id = "_"


class Use(NamedTuple):
    """A name that is read.

    Attributes:
      name: the name.
      parent: the node around it; None if there is none.
      place: the field of that node.
      is_captured: whether it is in a closure, which may run many times.
    """

    name: Identifier
    parent: RustNode | None
    place: str
    is_captured: bool


def _clones(uses: Iterable[Use], after: Collection[str], copied: Collection[str]) -> None:
    """Clone the values whose use is not the last; `uses` are in the order of evaluation."""
    alive = set(after)
    for name, parent, place, is_captured in reversed([*uses]):
        if name.id in copied or parent is None:
            continue
        borrowed = isinstance(parent, Method) and parent.borrows and place == "receiver"
        borrowed = borrowed or isinstance(parent, Borrow | Index | FieldAccess)
        if not borrowed and (name.id in alive or is_captured):
            _replace(parent, place, name, clone(Identifier(name.id)))
        alive.add(name.id)


def _uses(node: RustNode, parent: RustNode | None = None, place: str = "", is_captured: bool = False) -> Iterator[Use]:
    """Yield the names that are read, in the order of evaluation, each with the node around it and its field there.

    The branches of a choice have statements of their own, and are left out.
    """
    match node:
        case Identifier():
            yield Use(node, parent, place, is_captured)
        case Braces():
            return
        case IfElse():
            yield from _uses(node.condition, node, "condition", is_captured)
            if isinstance(node.otherwise, IfElse):
                yield from _uses(node.otherwise, node, "otherwise", is_captured)
        case Closure():
            inside = _uses(node.value, node, "value", is_captured=True)
            yield from (use for use in inside if use.name.id not in node.parameters)
        case Let():
            yield from _uses(node.value, node, "value", is_captured)
        case _:
            for part in node._fields:
                value = getattr(node, part)
                for element in value if isinstance(value, list) else [value]:
                    if isinstance(element, RustNode):
                        yield from _uses(element, node, part, is_captured)


def _replace(parent: RustNode, place: str, old: RustExpression, new: RustExpression) -> None:
    value = getattr(parent, place)
    if isinstance(value, list):
        value[value.index(old)] = new
    else:
        setattr(parent, place, new)

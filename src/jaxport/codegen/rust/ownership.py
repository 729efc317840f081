"""Which uses of a value move it and which clone it: the last one moves, earlier ones clone.

The pass runs over the finished statements of one function, from the last to the first, with the names that are read
later. Names of a loop's body that the next round reads, or what follows the loop, are assigned to instead of bound anew;
they are `let mut` where they are bound.

    let y = norm(x);         let y = norm(x.clone());
    let z = y + x;     →     let z = y + x;
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxport.codegen.rust.nodes import Borrow, Braces, Closure, IfElse, Method, While, clone
from jaxport.importer.names import unique

__all__ = ["Ownership", "live", "own"]


@dataclass(eq=False)
class Ownership:
    """What a function's statements need beyond their text.

    Attributes:
      copied: the names whose values are copied: sizes, references to modules.
      mutable: the statements that bind names which are assigned to later, with these names.
      assigning: the statements that assign to names bound before.
      arguments: the parameters of the function that are assigned to.
    """

    copied: Collection[str]
    mutable: dict[ast.stmt, set[str]] = field(default_factory=dict)
    assigning: set[ast.stmt] = field(default_factory=set)
    arguments: set[str] = field(default_factory=set)


def own(statements: list[ast.stmt], parameters: Sequence[str], copied: Collection[str]) -> Ownership:
    """Insert the clones that statements need, in place, and return what else they need."""
    facts = Ownership(copied)
    _without_unread(statements, set())
    _split_carried(statements, set(parameters))
    _bind(statements, dict.fromkeys(parameters), facts, set())
    _insert(statements, set(), facts)
    return facts


def targets(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds or assigns to, those of a loop's body left out."""
    if isinstance(statement, ast.Assign):
        return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def reads(expression: ast.AST) -> list[ast.Name]:
    """Return the uses of names in an expression, in the order of evaluation."""
    return [name for name, _, _ in _uses(expression, None, "")]


def live(statements: Sequence[ast.stmt], after: Collection[str]) -> set[str]:
    """Return the names that are read by statements, or behind them, before they are bound."""
    alive = set(after)
    for statement in reversed(statements):
        if isinstance(statement, ast.For | While):
            alive |= _live_in_loop(statement, alive)
        else:
            alive -= targets(statement)
            alive |= _read(statement)
    return alive


def _read(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads, those of the branches of a choice included."""
    names = {name.id for name in reads(statement)}
    for block in _branches(statement):
        names |= live([*block.statements, ast.Expr(block.value)], ())
    return names


def _branches(statement: ast.AST) -> list[Braces]:
    """Return the branches of the choice that a statement is the result of, if it is one."""
    value = getattr(statement, "value", None)
    found: list[Braces] = []
    while isinstance(value, IfElse):
        found.append(value.then)
        value = value.otherwise
    return [*found, value] if isinstance(value, Braces) else found


def _live_in_loop(loop: ast.For | While, after: Collection[str]) -> set[str]:
    once = {name.id for name in reads(loop.iter)} if isinstance(loop, ast.For) else set()
    return _live_in_rounds(loop, after) | once


def _live_in_rounds(loop: ast.For | While, after: Collection[str]) -> set[str]:
    if isinstance(loop, ast.For):
        bound = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        again = live(loop.body, after) - bound
        return live(loop.body, {*after, *again}) - bound
    inside = [*loop.before, ast.Expr(loop.condition), *loop.body]
    again = live(inside, after)
    return live(inside, {*after, *again})


def _split_carried(statements: list[ast.stmt], known: set[str]) -> None:
    """Give the values that a round of a loop only has meanwhile names of their own, if they share that of a carried one."""
    for statement in statements:
        if isinstance(statement, ast.For | While):
            _split_carried(statement.body, {*known, *_bound(statement)})
            inside = statement.body
            carried = {name for inner in inside for name in targets(inner)} & known
            for name in carried:
                places = [at for at, inner in enumerate(inside) if name in targets(inner)]
                types = {_type_of(inside[at], name) for at in places}
                if len(places) > 1 and len(types) > 1:
                    _rename(inside, places, name, unique("h", {*known, *_names(inside)}))
        known = known | targets(statement)


def _bound(loop: ast.For | While) -> set[str]:
    return (
        {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        if isinstance(loop, ast.For)
        else set()
    )


def _names(statements: Sequence[ast.stmt]) -> set[str]:
    return {node.id for inner in statements for node in ast.walk(inner) if isinstance(node, ast.Name)}


def _type_of(statement: ast.stmt, name: str) -> str:
    nodes = (node for target in getattr(statement, "targets", ()) for node in ast.walk(target))
    return next(getattr(node, "type", "") for node in nodes if isinstance(node, ast.Name) and node.id == name)


def _rename(statements: Sequence[ast.stmt], places: Sequence[int], name: str, other: str) -> None:
    """Rename the values between the first place that binds a name and the last."""
    first, last = places[0], places[-1]
    for at in range(first, last + 1):
        statement = statements[at]
        if isinstance(statement, ast.Assign):
            nodes = [node for node in ast.walk(statement.value) if at > first]
            if at < last:
                nodes += [node for target in statement.targets for node in ast.walk(target)]
        else:
            nodes = [*ast.walk(statement)]
        for node in nodes:
            if isinstance(node, ast.Name) and node.id == name:
                node.id = other


def _bind(
    statements: Sequence[ast.stmt], binders: dict[str, ast.stmt | None], facts: Ownership, after: set[str]
) -> None:
    """Find the assignments in loops to names that are bound before them.

    `binders` has the statement that binds each name; None for a parameter.
    """
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.For | While):
            behind = live(statements[index + 1 :], after)
            wanted = behind | _live_in_loop(statement, behind)
            inner = {**binders, **dict.fromkeys(_bound(statement), statement)}
            if isinstance(statement, While):
                _assign(statement.before, inner, wanted, facts)
                _bind(statement.before, inner, facts, wanted)
            _assign(statement.body, inner, wanted, facts)
            _bind(statement.body, inner, facts, wanted)
        elif (list_ := _extended(statement)) is not None:
            _mark(list_, binders, facts)
        else:
            for block in _branches(statement):
                _bind(block.statements, dict(binders), facts, live([ast.Expr(block.value)], ()))
            if statement not in facts.assigning:
                binders |= dict.fromkeys(targets(statement), statement)


def _extended(statement: ast.stmt) -> str | None:
    """Return the list that a statement pushes a value to."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, Method) and value.name == "push" and isinstance(value.receiver, ast.Name):
        return value.receiver.id
    return None


def _assign(
    body: list[ast.stmt], binders: dict[str, ast.stmt | None], wanted: Collection[str], facts: Ownership
) -> None:
    for inner in [*body]:
        names = targets(inner) & binders.keys() & set(wanted)
        if not names or not isinstance(inner, ast.Assign):
            continue
        for name in names:
            _mark(name, binders, facts)
        if targets(inner) - names - {"_"}:  # some are bound, others assigned to
            taken = {*binders, *_names(body)}
            for name in sorted(names):
                meanwhile = unique(f"next_{name}", taken)
                taken.add(meanwhile)
                for target in inner.targets:
                    for node in ast.walk(target):
                        if isinstance(node, ast.Name) and node.id == name:
                            node.id = meanwhile
                assignment = ast.Assign([ast.Name(name, ast.Store())], ast.Name(meanwhile, ast.Load()), lineno=0)
                body.insert(body.index(inner) + 1, assignment)
                facts.assigning.add(assignment)
        else:
            facts.assigning.add(inner)


def _mark(name: str, binders: dict[str, ast.stmt | None], facts: Ownership) -> None:
    binder = binders.get(name)
    if binder is None:
        facts.arguments.add(name)
    else:
        facts.mutable.setdefault(binder, set()).add(name)


def _without_unread(statements: list[ast.stmt], after: Collection[str]) -> None:
    """Take out what binds values that nothing reads, in loops and branches first: no expression does anything but compute."""
    alive = set(after)
    for statement in [*reversed(statements)]:
        if isinstance(statement, ast.Assign) and not targets(statement) & alive:
            statements.remove(statement)
            continue
        if isinstance(statement, ast.For | While):
            again = alive | _live_in_rounds(statement, alive)
            if isinstance(statement, While):
                again |= live([*statement.before, ast.Expr(statement.condition)], again)
            _without_unread(statement.body, again - _bound(statement) if isinstance(statement, ast.For) else again)
            alive |= _live_in_loop(statement, alive)
            continue
        for block in _branches(statement):
            _without_unread(block.statements, alive | {name.id for name in reads(block.value)})
        alive -= targets(statement)
        alive |= _read(statement)


def _insert(statements: list[ast.stmt], after: Collection[str], facts: Ownership) -> None:
    """Insert clones, from the last statement to the first; `after` are the names that are read behind them."""
    alive = set(after)
    for statement in [*reversed(statements)]:
        if isinstance(statement, ast.For | While):
            again = alive | _live_in_rounds(statement, alive)
            once = _live_in_loop(statement, alive)
            if isinstance(statement, ast.For):
                read = live(statement.body, ())
                for node in ast.walk(statement.target):
                    if isinstance(node, ast.Name) and node.id not in read:
                        node.id = "_"
                _insert(statement.body, again - _bound(statement), facts)
                _clones(_uses(statement.iter, statement, "iter"), again, facts)
            else:
                # The condition is followed by another round, or by what is behind the loop.
                behind = live(statement.body, again) | alive
                _insert([*statement.before, ast.Expr(statement.condition)], behind, facts)
                _insert(statement.body, again, facts)
            alive = again | once
            continue
        _drop_unread(statement, alive)
        alive -= targets(statement)
        for block in _branches(statement):
            last = ast.Return(block.value)
            _insert([*block.statements, last], alive, facts)
            assert last.value is not None
            block.value = last.value
        read = _read(statement)
        inside = set().union(*(live([*b.statements, ast.Expr(b.value)], ()) for b in _branches(statement)))
        _clones(_uses(statement, None, ""), alive | inside, facts)
        alive |= read


def _drop_unread(statement: ast.stmt, alive: Collection[str]) -> None:
    """Bind what nothing reads to `_`."""
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and node.id not in alive:
                node.id = "_"


def _clones(uses: Iterable[tuple[ast.Name, ast.AST | None, str]], after: Collection[str], facts: Ownership) -> None:
    """Clone the values whose use is not the last; `uses` are in the order of evaluation."""
    alive = set(after)
    for node, parent, place in reversed([*uses]):
        if node.id in facts.copied or parent is None:
            continue
        borrowed = isinstance(parent, Method) and parent.borrows and place == "receiver"
        borrowed = borrowed or isinstance(parent, Borrow | ast.Subscript | ast.Attribute)
        if not borrowed and (node.id in alive or getattr(node, "captured", False)):
            _replace(parent, place, node, clone(ast.Name(node.id, ast.Load())))
        alive.add(node.id)


def _uses(node: ast.AST, parent: ast.AST | None, place: str) -> Iterator[tuple[ast.Name, ast.AST | None, str]]:
    """Yield the names that are read, in the order of evaluation, each with the node around it and its field there.

    The branches of a choice have statements of their own, and are left out.
    """
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load):
            yield node, parent, place
    elif isinstance(node, IfElse):
        yield from _uses(node.condition, node, "condition")
        if isinstance(node.otherwise, IfElse):
            yield from _uses(node.otherwise, node, "otherwise")
    elif isinstance(node, Closure):
        for name, around, field_ in _uses(node.value, node, "value"):
            if name.id not in node.parameters:
                name.captured = True  # type: ignore[attr-defined]
                yield name, around, field_
    elif not isinstance(node, Braces):
        fields = {ast.Assign: ("value",), ast.Call: ("args",)}  # the functions of Python's calls are no values
        for field_name in fields.get(type(node), node._fields):
            value = getattr(node, field_name, None)
            for element in value if isinstance(value, list) else [value]:
                if isinstance(element, ast.AST):
                    yield from _uses(element, node, field_name)


def _replace(parent: ast.AST, place: str, old: ast.AST, new: ast.AST) -> None:
    value = getattr(parent, place)
    if isinstance(value, list):
        value[value.index(old)] = new
    else:
        setattr(parent, place, new)

"""Families of inputs and outputs as one argument and one result, in the model and in the modules inside it.

A loop over the keys and the values of the layers becomes one over their pairs:

    for layer, key, value in zip(self.h, (past_0_key, past_1_key), (past_0_value, past_1_value), strict=True):
    for layer, (key, value) in zip(self.h, past, strict=True):
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxport.codegen.bundles import CallSite, call_method, is_complete, names_in, sites_of, without_number
from jaxport.codegen.families import Family, State
from jaxport.codegen.writing.literals import name
from jaxport.importer.names import unique

Cell = tuple[int, int]
"""A row and a part of a family."""


def group(definitions: Sequence[ast.stmt], root: str, states: Sequence[State], count: int) -> None:
    """Make families one argument and one result of the model, and of the modules inside that take or return all of
    them, in place.

    Args:
      definitions: the classes and functions.
      root: the name of the model's class.
      states: the families, whose places are those of the model's arguments and results.
      count: how many results the model has.
    """
    grouping = _FamilyGrouping({one.name: one for one in definitions if isinstance(one, ast.ClassDef)})
    method = call_method(grouping.classes[root])
    assert method is not None
    given = [argument.arg for argument in method.args.args[1:]]
    for state in states:
        past = state.past
        grid = [[given[past.place(row, part)] for part in range(past.parts)] for row in range(past.rows)]
        grouping.arguments(method, grid, past)
    for state in [*states][::-1]:  # those behind first: the places of the others stay
        grouping.results(method, state.present, count)
        count -= state.present.rows * state.present.parts - 1


@dataclass(frozen=True)
class _FamilyGrouping:
    """Makes families one argument, and one result.

    Attributes:
      classes: the classes by name.
      types: the types of results that are families.
    """

    classes: Mapping[str, ast.ClassDef]
    types: dict[ast.expr, str] = field(default_factory=dict)

    def arguments(self, method: ast.FunctionDef, grid: Sequence[Sequence[str]], family: Family) -> None:
        """Make one argument of those in a grid, of a row for each layer."""
        flat = [one for row in grid for one in row]
        first = min(at for at, argument in enumerate(method.args.args) if argument.arg in flat)
        kept = [argument for argument in method.args.args if argument.arg not in flat]
        method.args.args = [*kept[:first], ast.arg(family.name, _parsed(family.annotation)), *kept[first:]]
        names = (node for node in ast.walk(method) if isinstance(node, ast.Name) and node.id in flat)
        if any(isinstance(node.ctx, ast.Store) for node in names):
            method.body.insert(0, _unpacked(grid, family))
            return
        cells = _Cells({one: (row, part) for row, names in enumerate(grid) for part, one in enumerate(names)}, family)
        method.body = [cells.visit(statement) for statement in method.body]
        for node in ast.walk(method):
            if isinstance(node, ast.For):
                _loop_over_rows(node, method, cells)
        for title in self.classes:
            sites = sites_of(title, self.classes)
            if len(sites) == 1 and sites[0].method is method:
                self._hand_on(title, sites[0], cells)
        for node in ast.walk(method):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self."):
                _spread_rows(node, cells)

    def _hand_on(self, title: str, site: CallSite, cells: _Cells) -> None:
        """Hand the whole family to a module that takes all of it."""
        inner, family = call_method(self.classes[title]), cells.family
        if inner is None or not is_complete(site, inner):
            return
        found = [cells.of(argument) for argument in site.call.args]
        everything = [(row, part) for row in range(family.rows) for part in range(family.parts)]
        if sorted(cell for cell in found if cell is not None) == everything:
            names = dict(zip(found, (argument.arg for argument in inner.args.args[1:]), strict=True))
            first = min(at for at, cell in enumerate(found) if cell is not None)
            kept = [argument for argument, cell in zip(site.call.args, found, strict=True) if cell is None]
            site.call.args = [*kept[:first], name(family.name), *kept[first:]]
            grid = [[names[row, part] for part in range(family.parts)] for row in range(family.rows)]
            self.arguments(inner, grid, family)

    def results(self, method: ast.FunctionDef, family: Family, count: int) -> bool:
        """Make one result of those at the places of a family, among so many; whether it was done."""
        last = method.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            return False
        if not isinstance(last.value, ast.Tuple):
            inner = self._called(last.value)
            done = inner is not None and self.results(inner, family, count)
            method.returns = inner.returns if done and inner is not None else method.returns
            return done
        elements = last.value.elts
        run = _run(elements, family, count)
        if run is None:
            return False
        begin, end = run
        if not self._inner(method, elements, run, family):
            elements[begin:end] = [_listed(elements[begin:end], method, family)]
        self.types[elements[begin]] = family.annotation
        is_open = any(isinstance(element, ast.Starred) for element in elements)
        kinds = ", ".join(self.types.get(element, "Array") for element in elements)
        method.returns = _parsed("tuple" if is_open else f"tuple[{kinds}]")
        return True

    def _called(self, value: ast.expr) -> ast.FunctionDef | None:
        """Return the method of the module that a call is of, if it is called there only."""
        for title, one in self.classes.items():
            sites = sites_of(title, self.classes)
            if [site.call for site in sites] == [value]:
                return call_method(one)
        return None

    def _inner(self, method: ast.FunctionDef, elements: list[ast.expr], run: tuple[int, int], family: Family) -> bool:
        """Take a family from a module that returns all of it as one result; whether it was done."""
        begin, end = run
        names = [element.id for element in elements[begin:end] if isinstance(element, ast.Name)]
        assigned = _assignment(method, names) if len(names) == end - begin else None
        if assigned is None:
            return False
        targets, value, at = assigned
        inner = self._called(value)
        if inner is None or not self.results(inner, replace(family, begin=at), len(targets.elts)):
            return False
        chosen = unique(family.name, names_in(method))
        targets.elts[at : at + len(names)] = [ast.Name(chosen, ast.Store())]
        elements[begin:end] = [name(chosen)]
        if len(targets.elts) == 2:
            without_number(targets.elts[1 - at], method)
        return True


class _Cells(ast.NodeTransformer):
    """Puts `past[0][1]` in the place of the names of a family's arguments."""

    def __init__(self, cells: Mapping[str, Cell], family: Family):
        self.cells, self.family = cells, family

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.cells:
            return node
        row, part = self.cells[node.id]
        whole = ast.Subscript(name(self.family.name), ast.Constant(row), ast.Load())
        return whole if self.family.parts == 1 else ast.Subscript(whole, ast.Constant(part), ast.Load())

    def of(self, node: ast.expr) -> Cell | None:
        """Return which of the family an expression is."""
        places: list[int] = []
        while (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, int)
        ):
            places.insert(0, node.slice.value)
            node = node.value
        if not isinstance(node, ast.Name) or node.id != self.family.name or len(places) != min(self.family.parts, 2):
            return None
        return places[0], places[-1] if self.family.parts > 1 else 0

    def column(self, node: ast.expr) -> tuple[int, int, int] | None:
        """Return which part an expression has of some rows that follow one another, and which rows."""
        found = [self.of(element) for element in node.elts] if isinstance(node, ast.Tuple) else []
        first = found[0] if found else None
        if first is None or found != [(first[0] + at, first[1]) for at in range(len(found))]:
            return None
        return first[1], first[0], first[0] + len(found)


def _loop_over_rows(loop: ast.For, method: ast.FunctionDef, cells: _Cells) -> None:
    """Make `for (key, value) in past` of a loop over the parts of rows side by side, in place."""
    together, family = loop.iter, cells.family
    is_zip = isinstance(together, ast.Call) and isinstance(together.func, ast.Name) and together.func.id == "zip"
    iterated = together.args if is_zip and isinstance(together, ast.Call) else [together]
    targets = loop.target.elts if is_zip and isinstance(loop.target, ast.Tuple) else [loop.target]
    columns = [cells.column(one) for one in iterated]
    rows = {column[1:] for column in columns if column is not None}
    parts = [column[0] for column in columns if column is not None]
    if len(rows) != 1 or len({*parts}) != len(parts):
        return
    ((begin, end),) = rows
    bounds = ast.Slice(ast.Constant(begin) if begin else None, ast.Constant(end) if end < family.rows else None)
    is_whole = (begin, end) == (0, family.rows)
    whole = name(family.name) if is_whole else ast.Subscript(name(family.name), bounds, ast.Load())
    by_part = {column[0]: target for column, target in zip(columns, targets, strict=True) if column is not None}
    for target in by_part.values():
        _shortened(target, targets[0], method)
    unread = ast.Name("_", ast.Store())
    row = [by_part.get(part, unread) for part in range(family.parts)]
    target = ast.Tuple(row, ast.Store()) if family.parts > 1 else row[0]
    first = next(at for at, column in enumerate(columns) if column is not None)
    kept = [at for at, column in enumerate(columns) if column is None or at == first]
    iterated[:] = [whole if at == first else iterated[at] for at in kept]
    targets[:] = [target if at == first else targets[at] for at in kept]
    loop.iter = loop.iter if is_zip else whole
    loop.target = loop.target if is_zip else target


def _shortened(target: ast.expr, element: ast.expr, method: ast.FunctionDef) -> None:
    """Name a part `key`, not `layer_key`, now that no argument has that name."""
    if isinstance(target, ast.Name) and isinstance(element, ast.Name):
        long = target.id
        short = long.removeprefix(f"{element.id}_")
        if short not in names_in(method):
            for node in ast.walk(method):
                if isinstance(node, ast.Name) and node.id == long:
                    node.id = short


def _unpacked(grid: Sequence[Sequence[str]], family: Family) -> ast.stmt:
    """Return `(past_0_key, past_0_value), … = past`, for a method that gives these names to other values, too."""
    rows = [ast.Tuple([ast.Name(one, ast.Store()) for one in row], ast.Store()) for row in grid]
    targets: list[ast.expr] = [*rows] if family.parts > 1 else [row.elts[0] for row in rows]
    return ast.Assign([ast.Tuple(targets, ast.Store())], name(family.name), lineno=0)


def _run(elements: Sequence[ast.expr], family: Family, count: int) -> tuple[int, int] | None:
    """Return which elements of a tuple are the family; None if a list has other results, too, or a part of the
    family.
    """
    starred = [at for at, element in enumerate(elements) if isinstance(element, ast.Starred)]
    if len(starred) > 1:
        return None
    sizes = [count - len(elements) + 1 if at in starred else 1 for at in range(len(elements))]
    starts = [sum(sizes[:at]) for at in range(len(elements) + 1)]
    if family.begin not in starts or family.end not in starts:
        return None
    begin, end = starts.index(family.begin), starts.index(family.end)
    return (begin, end) if end - begin == 1 or not {*starred} & {*range(begin, end)} else None


def _spread_rows(called: ast.Call, cells: _Cells) -> None:
    """Write `*past[0]` for the parts of a row that a module takes side by side, in place."""
    found, count = [cells.of(argument) for argument in called.args], cells.family.parts
    for begin in range(len(found) - count, -1, -1):
        row = (found[begin] or (-1, 0))[0]
        if count > 1 and found[begin : begin + count] == [(row, part) for part in range(count)]:
            whole = ast.Subscript(name(cells.family.name), ast.Constant(row), ast.Load())
            called.args[begin : begin + count] = [ast.Starred(whole, ast.Load())]


def _listed(elements: Sequence[ast.expr], method: ast.FunctionDef, family: Family) -> ast.expr:
    """Return the list of some results, which may be one already: that of the loop that collects them."""
    if isinstance(elements[0], ast.Starred):
        return _collected(elements[0].value, method, family)
    if family.parts == 1:
        return ast.List([*elements], ast.Load())
    rows = [elements[at : at + family.parts] for at in range(0, len(elements), family.parts)]
    return ast.List([ast.Tuple([*row], ast.Load()) for row in rows], ast.Load())


def _collected(listed: ast.expr, method: ast.FunctionDef, family: Family) -> ast.expr:
    """Return the list that a loop collects, of a tuple for each layer."""
    if not isinstance(listed, ast.Name):
        return listed if family.parts == 1 else _in_rows(listed, family.parts)
    key, chosen = listed.id, unique(family.name, names_in(method))
    uses = [node for node in ast.walk(method) if isinstance(node, ast.Name) and node.id == key]
    if family.parts > 1:
        calls = [
            (node, node.func) for node in ast.walk(method)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "extend"
            if isinstance(node.func.value, ast.Name) and node.func.value.id == key
        ]  # fmt: skip
        added = calls[0][0].args[0] if len(calls) == 1 else None
        if len(uses) != 3 or not isinstance(added, ast.Tuple) or len(added.elts) != family.parts:
            return _in_rows(listed, family.parts)
        calls[0][1].attr = "append"
    for node in uses:
        node.id = chosen
    return listed


def _in_rows(listed: ast.expr, parts: int) -> ast.expr:
    """Return a list of single values as one of tuples: `[*zip(cats[::2], cats[1::2], strict=True)]`."""
    text = ast.unparse(listed)
    columns = ", ".join(f"{text}[{part or ''}::{parts}]" for part in range(parts))
    return _parsed(f"[*zip({columns}, strict=True)]")


def _assignment(method: ast.FunctionDef, names: Sequence[str]) -> tuple[ast.Tuple, ast.expr, int] | None:
    """Return the targets that values are assigned to side by side, what is assigned, and where they begin; nothing else
    reads them.
    """
    uses = Counter(node.id for node in ast.walk(method) if isinstance(node, ast.Name))
    for node in ast.walk(method):
        targets = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(targets, ast.Tuple):
            own = [target.id if isinstance(target, ast.Name) else "" for target in targets.elts]
            begin = own.index(names[0]) if names[0] in own else -1
            if begin >= 0 and own[begin : begin + len(names)] == [*names] and all(uses[one] == 2 for one in names):
                return targets, node.value, begin
    return None


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body

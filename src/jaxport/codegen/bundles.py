"""Values that modules only hand on to the rounds of a loop, such as the caches of a decoder, as one argument and one
result.

A module that calls the layers of a decoder takes twice as many caches as it has layers, and returns as many:

    cats = []
    for layer, past in zip(self.h, (past_1, past_2, past_3), strict=True):
        cat, x = layer(x, past)
        cats.append(cat)
    return (*cats, x)

Its argument becomes `pasts`, its result `(cats, x)`, and so on in the modules around it, up to the model itself, whose
arguments and results are those of the file.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxport.codegen.writing.literals import name
from jaxport.codegen.writing.statements import plural
from jaxport.importer.names import unique

CALL = "__call__"


@dataclass(frozen=True)
class CallSite:
    """A call of a module in the method of another one: `a, b = self.model(x, y)`."""

    method: ast.FunctionDef
    call: ast.Call
    statement: ast.Assign | None


def bundle(definitions: Sequence[ast.stmt], root: str) -> None:
    """Bundle what classes hand on, in place.

    Args:
      definitions: the classes, those of parts before those of modules around them, and functions.
      root: the name of the class whose arguments and results stay as they are.
    """
    classes = {one.name: one for one in definitions if isinstance(one, ast.ClassDef)}
    for title, one in classes.items():
        method = call_method(one) if title != root else None
        if method is None or not (_displays(method, one) or _listed_results(method)):
            continue
        sites = sites_of(title, classes)
        if sites and all(is_complete(site, method) for site in sites):
            _bundle_arguments(method, [site.call for site in sites], one)
            _bundle_results(method, sites)


def call_method(one: ast.ClassDef) -> ast.FunctionDef | None:
    """Return the method of a class that computes it."""
    return next((part for part in one.body if isinstance(part, ast.FunctionDef) and part.name == CALL), None)


def sites_of(title: str, classes: Mapping[str, ast.ClassDef]) -> list[CallSite]:
    """Return where modules of a class are called; none unless each is an attribute of its own, and called there
    only.
    """
    sites: list[CallSite] = []
    for around in classes.values():
        nodes = [*ast.walk(around)]
        named = sum(isinstance(node, ast.Name) and node.id == title for node in nodes)
        if not named:
            continue
        annotations = [node.annotation for node in nodes if isinstance(node, ast.AnnAssign)]
        made = named - sum(isinstance(node, ast.Name) and node.id == title for node in annotations)
        keys = {key for key, value in _attributes(around) if _is_call_of(value, title)}
        if made != len(keys):
            return []
        method = call_method(around)
        reads = [
            node for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in keys
        ]  # fmt: skip
        found = [] if method is None else [*_calls_of(method, keys)]
        if len(reads) != len(found):
            return []
        sites += found
    return sites


def _attributes(around: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            yield node.targets[0].attr, node.value


def _is_call_of(value: ast.expr, title: str) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == title


def _calls_of(method: ast.FunctionDef, keys: set[str]) -> Iterator[CallSite]:
    assigned = {node.value: node for node in ast.walk(method) if isinstance(node, ast.Assign)}
    for node in ast.walk(method):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in keys and ast.unparse(called.value) == "self":
            assert isinstance(node, ast.Call)
            yield CallSite(method, node, assigned.get(node))


def is_complete(site: CallSite, method: ast.FunctionDef) -> bool:
    """Whether a call has an expression for each argument."""
    has_each = len(site.call.args) == len(method.args.args) - 1
    return has_each and not any(isinstance(argument, ast.Starred) for argument in site.call.args)


# Arguments


def _bundle_arguments(method: ast.FunctionDef, calls: Sequence[ast.Call], around: ast.ClassDef) -> None:
    """Make one argument of those that stand side by side in the method, as what a loop is over, or in a call."""
    parameters = [argument.arg for argument in method.args.args[1:]]
    for listed in _displays(method, around):
        names = [element.id for element in listed.elts if isinstance(element, ast.Name)]
        assigned = {
            node.id for node in ast.walk(method) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        if len(names) != len(listed.elts) or len({*names}) != len(names) or not {*names} <= {*parameters} - assigned:
            continue
        stem = re.sub(r"_?\d+(?=_|$)", "", names[0]) or "values"
        chosen = unique(
            plural(stem), {node.id for node in ast.walk(method) if isinstance(node, ast.Name)} | {*parameters}
        )
        places = [parameters.index(one) for one in names]
        _ByBundle(listed, names, chosen).visit(method)
        kept = [place for place in range(len(parameters)) if place == places[0] or place not in places]
        parameters = [chosen if place == places[0] else parameters[place] for place in kept]
        own, annotations = method.args.args, [argument.annotation for argument in method.args.args[1:]]
        bundled = ast.arg(chosen, ast.parse("tuple[Array, ...]", mode="eval").body)
        others = [ast.arg(old, annotations[place]) for old, place in zip(parameters, kept, strict=True)]
        method.args.args = [own[0], *(bundled if one.arg == chosen else one for one in others)]
        for call in calls:
            packed = ast.Tuple([call.args[place] for place in places], ast.Load())
            call.args = [packed if place == places[0] else call.args[place] for place in kept]


def _displays(method: ast.FunctionDef, around: ast.ClassDef) -> list[ast.Tuple]:
    """Return the tuples that a method loops over, or calls a module with."""
    keys = {key for key, _ in _attributes(around)}
    found = []
    for node in ast.walk(method):
        if isinstance(node, ast.Call):
            is_zip = isinstance(node.func, ast.Name) and node.func.id == "zip"
            is_module = isinstance(node.func, ast.Attribute) and node.func.attr in keys
            found += [one for one in node.args if (is_zip or is_module) and isinstance(one, ast.Tuple)]
    return [one for one in found if len(one.elts) > 1]


class _ByBundle(ast.NodeTransformer):
    """Puts the name of a bundle in the place of the tuple that it is, and of its elements elsewhere."""

    def __init__(self, listed: ast.Tuple, names: Sequence[str], chosen: str):
        self.listed, self.names, self.chosen = listed, names, chosen

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return name(self.chosen) if node is self.listed else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.names or not isinstance(node.ctx, ast.Load):
            return node
        return ast.Subscript(name(self.chosen), ast.Constant(self.names.index(node.id)), ast.Load())


# Results


def _bundle_results(method: ast.FunctionDef, sites: Sequence[CallSite]) -> None:
    """Return a list itself instead of its elements, if all that callers do with these is to return them side by
    side.
    """
    found = _listed_results(method)
    if found is None:
        return
    elements, place, listed = found
    runs = [_run(site, place, len(elements) - 1) for site in sites]
    if any(run is None for run in runs):
        return
    elements[place] = listed
    kinds = ", ".join("list[Array]" if at == place else "Array" for at in range(len(elements)))
    method.returns = ast.parse(f"tuple[{kinds}]", mode="eval").body
    for site, run in zip(sites, runs, strict=True):
        assert run is not None
        targets, returned, begin, count = run
        chosen = unique(listed.id, names_in(site.method))
        targets.elts[place : place + count] = [ast.Name(chosen, ast.Store())]
        returned.elts[begin : begin + count] = [ast.Starred(name(chosen), ast.Load())]
        if len(targets.elts) == 2:
            without_number(targets.elts[1 - place], site.method)


def _listed_results(method: ast.FunctionDef) -> tuple[list[ast.expr], int, ast.Name] | None:
    """Return what a method returns, and the list of which it returns the elements, with its place; None if there is no
    such list.
    """
    last = method.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
        return None
    starred = [(place, one.value) for place, one in enumerate(last.value.elts) if isinstance(one, ast.Starred)]
    if len(starred) != 1 or not isinstance(starred[0][1], ast.Name):
        return None
    return last.value.elts, starred[0][0], starred[0][1]


def _run(site: CallSite, place: int, others: int) -> tuple[ast.Tuple, ast.Tuple, int, int] | None:
    """Return the targets of a call, and where what it returns has the elements of a list: from which place on, and how
    many.
    """
    last = site.method.body[-1]
    targets = site.statement.targets[0] if site.statement is not None else None
    if not isinstance(targets, ast.Tuple) or not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
        return None
    own = [target.id for target in targets.elts if isinstance(target, ast.Name)]
    count = len(own) - others
    if len(own) != len(targets.elts) or count < 2:
        return None
    wanted = own[place : place + count]
    uses = Counter(node.id for node in ast.walk(site.method) if isinstance(node, ast.Name))
    returned = [one.id if isinstance(one, ast.Name) else "" for one in last.value.elts]
    begin = next((at for at in range(len(returned)) if returned[at : at + count] == wanted), None)
    if (
        begin is None
        or any(uses[one] != 2 for one in wanted)
        or any(isinstance(one, ast.Starred) for one in last.value.elts)
    ):
        return None
    return targets, last.value, begin, count


def without_number(target: ast.expr, method: ast.FunctionDef) -> None:
    """Name a result that is the only one beside a list `decoder`, not `decoder_25`."""
    assert isinstance(target, ast.Name)
    numbered, stem = target.id, re.sub(r"_\d+$", "", target.id)
    if stem not in names_in(method):
        for node in ast.walk(method):
            if isinstance(node, ast.Name) and node.id == numbered:
                node.id = stem


def names_in(method: ast.FunctionDef) -> set[str]:
    """Return the names that a method has for its arguments and values."""
    return {node.id for node in ast.walk(method) if isinstance(node, ast.Name)} | {
        argument.arg for argument in method.args.args
    }

"""Repeated statements of a method, which differ in values, numbers or parameters, become a function that is called each
time.

Only the text is compared: what runs is the same. It is done when all classes are settled, so that no class differs by
it.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from jaxport.codegen.writing.literals import attribute, call, name
from jaxport.importer.names import unique

LONGEST = 24
"""Statements of a function at most."""
FEWEST_SAVED = 8
"""Lines that a function has to save."""
MOST_ARGUMENTS = 8
OVERHEAD = 3
"""Lines of a function beside its statements."""
WIDTH = 88
"""Characters of a line."""

NAMES = (
    ("scan", "recurrent"), ("conv_general_dilated", "convolved"), ("dot_product_attention", "attended"),
    ("fake_quantized", "quantized"), ("dynamically_quantized", "quantized"), ("matmul", "multiplied"),
)  # fmt: skip
"""Names of functions, by what they call."""


@dataclass(frozen=True)
class Outlined:
    """A method whose statements call functions, and these: those that need the module are methods."""

    method: ast.FunctionDef
    methods: tuple[ast.FunctionDef, ...]
    functions: tuple[ast.FunctionDef, ...]


@dataclass(frozen=True)
class _Text:
    """One statement as it is compared.

    Attributes:
      tokens: what it is: texts, and the local names in it.
      slots: the numbers and the attributes of the module that may differ from those of other occurrences.
      read: the local names that it reads.
      made: the names that it assigns.
      lines: about how many lines it has.
    """

    tokens: tuple[str | tuple[str], ...]
    slots: tuple[ast.expr, ...]
    read: dict[str, None]
    made: dict[str, None]
    lines: int

    @property
    def shape(self) -> tuple[str, ...]:
        """What it is, whatever the names are."""
        return tuple("" if isinstance(token, tuple) else token for token in self.tokens)


def _text(statement: ast.stmt, local: frozenset[str]) -> _Text:
    tokens: list[str | tuple[str]] = []
    slots: list[ast.expr] = []

    def add(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and node.id in local:
            tokens.extend((type(node.ctx).__name__, (node.id,)))
        elif isinstance(node, ast.arg):
            tokens.extend(("arg", (node.arg,)))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            tokens.append(type(node.value).__name__)
            slots.append(node)
        elif _is_attribute(node) or _is_parameter(node):
            assert isinstance(node, ast.expr)
            tokens.append("attribute")
            slots.append(node)
        else:
            tokens.append(f"({type(node).__name__}")
            for part, value in ast.iter_fields(node):
                if part == "name" and isinstance(node, ast.FunctionDef):
                    tokens.append((node.name,))
                elif isinstance(node, ast.Call) and part == "func" and _is_attribute(value):
                    tokens.append(ast.dump(value))  # a module that is called
                else:
                    for one in value if isinstance(value, list) else (value,):
                        add(one) if isinstance(one, ast.AST) else tokens.append(repr(one))
            tokens.append(")")

    add(statement)
    nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    stored = [node.id for node in nodes if isinstance(node.ctx, ast.Store) and node.id != "_"]
    own: set[str] = set()
    if isinstance(statement, ast.FunctionDef):  # its names are its own
        own = {*stored, *(node.arg for node in ast.walk(statement) if isinstance(node, ast.arg))}
        stored = [statement.name]
    read = dict.fromkeys(n.id for n in nodes if isinstance(n.ctx, ast.Load) and n.id in local and n.id not in own)
    text = ast.unparse(ast.fix_missing_locations(statement))
    lines = sum(1 + len(line) // WIDTH * 3 for line in text.splitlines())
    return _Text(tuple(tokens), tuple(slots), read, dict.fromkeys(stored), lines)


@dataclass(eq=False)
class _Run:
    """One occurrence of statements: where it begins, its local names as they are met, and what may differ in it."""

    begin: int
    names: dict[str, int]
    slots: list[ast.expr]


def _is_parameter(node: ast.AST) -> bool:
    """Whether an expression is the array of a parameter: `self.weight[...]`."""
    is_whole = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value is Ellipsis
    return isinstance(node, ast.Subscript) and is_whole and _is_attribute(node.value)


def _is_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def outlined(method: ast.FunctionDef, taken: Iterable[str]) -> Outlined:
    r"""Return a method with calls in place of repeated statements.

    >>> lines = [
    ...     f"y = lax.conv_general_dilated(x, self.w[...], (1, {n}), ((0, 0), (0, 0)), {'1, ' * 40})" for n in range(5)
    ... ]
    >>> text = "def f(self, x):\n    " + "\n    ".join(f"{line}\n    x = x + y" for line in lines) + "\n    return x"
    >>> made = outlined(ast.parse(text).body[0], ["x"])
    >>> print(ast.unparse(made.method))
    def f(self, x):
        x = self.convolved(x, 0)
        x = self.convolved(x, 1)
        x = self.convolved(x, 2)
        x = self.convolved(x, 3)
        x = self.convolved(x, 4)
        return x
    """
    own = set[str]()
    names = {*taken, *_local_names(method)}  # a function whose name is a local one's could not be called
    body, methods, functions = [*method.body], [], []
    while (found := _Search(method, body, own).best()) is not None:
        made, body, is_method = found.applied(names)
        names.add(made.name)
        own.add(f"self.{made.name}" if is_method else made.name)
        (methods if is_method else functions).append(made)
    changed = copy.copy(method)
    changed.body = body
    return Outlined(changed, tuple(methods), tuple(functions))


@dataclass(eq=False)
class _Search:
    """Looks for repeated statements in the body of a method; `functions` are those that were found already."""

    method: ast.FunctionDef
    body: list[ast.stmt]
    functions: Set[str]

    def __post_init__(self) -> None:
        parameters = self.method.args
        self.sizes = {one.arg for one in parameters.kwonlyargs}
        self.local = frozenset(_local_names(parameters))
        for statement in self.body:
            made = _local_names(statement)
            self.local |= made
            if isinstance(statement, ast.Assign) and getattr(statement.value, "attr", "") == "shape":
                self.sizes |= made
        self.texts = [_text(statement, self.local) for statement in self.body]
        # A call of one function is no other function.
        self.single = [not (isinstance(s, ast.Assign) and _called(s) in self.functions) for s in self.body]

    def best(self) -> _Repeated | None:
        """Return the statements that save most lines as a function."""
        ids: dict[tuple[str, ...], int] = {}
        keys = [
            ids.setdefault(text.shape, len(ids)) if isinstance(statement, ast.Assign | ast.FunctionDef) else -1 - at
            for at, (statement, text) in enumerate(zip(self.body, self.texts, strict=True))
        ]
        best: _Repeated | None = None
        for length in range(1, min(LONGEST, len(keys) // 2) + 1):
            places: dict[tuple[int, ...], list[int]] = {}
            for begin in range(len(keys) - length + 1):
                places.setdefault(tuple(keys[begin : begin + length]), []).append(begin)
            for begins in places.values():
                lines = sum(text.lines for text in self.texts[begins[0] :][:length])
                least = best.saved if best is not None else FEWEST_SAVED - 1
                if length == 1 and not self.single[begins[0]]:
                    continue
                runs = _most_apart(begins, length)
                if runs > 1 and lines * (runs - 1) - runs - OVERHEAD > least:
                    for found in self._alike(begins, length):
                        if found.saved > (best.saved if best is not None else FEWEST_SAVED - 1):
                            best = found
        return best

    def _alike(self, begins: Sequence[int], length: int) -> Iterator[_Repeated]:
        groups: dict[tuple[str | int, ...], list[_Run]] = {}
        for begin in begins:
            names: dict[str, int] = {}
            texts = self.texts[begin : begin + length]
            key = tuple(
                names.setdefault(token[0], len(names)) if isinstance(token, tuple) else token
                for text in texts
                for token in text.tokens
            )
            runs = groups.setdefault(key, [])
            if not runs or begin >= runs[-1].begin + length:
                runs.append(_Run(begin, names, [slot for text in texts for slot in text.slots]))
        return (_Repeated(self, runs, length) for runs in groups.values() if len(runs) > 1)

    def live(self, begin: int, names: Iterable[str]) -> set[str]:
        """Return which of these names are read from a place on before they are assigned again."""
        waiting, live = {*names}, set()
        for statement, text in zip(self.body[begin:], self.texts[begin:], strict=True):
            live |= waiting & text.read.keys()
            waiting -= live
            if isinstance(statement, ast.Assign | ast.FunctionDef):
                waiting -= text.made.keys()
            if not waiting:
                break
        return live


def _most_apart(begins: Sequence[int], length: int) -> int:
    """Return how many of some places are so far apart."""
    count, free = 0, 0
    for begin in begins:
        if begin >= free:
            count, free = count + 1, begin + length
    return count


def _local_names(tree: ast.AST) -> set[str]:
    """Return the names that statements bind: of arguments, of values, and of the functions inside."""
    nodes = [*ast.walk(tree)]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return (names | {node.arg for node in nodes if isinstance(node, ast.arg)}) - {"self", "_"}


def _called(statement: ast.Assign) -> str:
    return ast.unparse(statement.value.func) if isinstance(statement.value, ast.Call) else ""


class _Repeated:
    """Repeated statements, and what differs."""

    def __init__(self, search: _Search, runs: Sequence[_Run], length: int):
        self.search, self.runs, self.length = search, runs, length
        first = runs[0]
        self.statements = search.body[first.begin : first.begin + length]
        read: dict[str, None] = {}
        made: dict[str, None] = {}
        for text in search.texts[first.begin : first.begin + length]:
            read |= dict.fromkeys(one for one in text.read if one not in made)
            made |= text.made
        order = [*first.names]
        self.inputs = [first.names[one] for one in read]
        places = [first.names[one] for one in made]
        live = (search.live(run.begin + length, [[*run.names][at] for at in places]) for run in runs)
        self.outputs = sorted({run.names[one] for run, names in zip(runs, live, strict=True) for one in names})
        self.order = order
        columns: dict[tuple[str, ...], list[int]] = {}
        for at, nodes in enumerate(zip(*(run.slots for run in runs), strict=True)):
            texts = tuple(map(ast.unparse, nodes))
            if len({*texts}) > 1:
                columns.setdefault(texts, []).append(at)
        self.columns = [*columns.values()]
        self.saved = self._saved()

    def _saved(self) -> int:
        arguments = len(self.inputs) + len(self.columns)
        functions = {one.name for one in self.statements if isinstance(one, ast.FunctionDef)}
        if not functions.isdisjoint(self.order[at] for at in self.outputs):
            return 0
        if not self.outputs or arguments > MOST_ARGUMENTS or len(self.outputs) > MOST_ARGUMENTS // 2:
            return 0
        lines, calls = (
            sum(text.lines for text in self.search.texts[self.runs[0].begin :][: self.length]),
            len(self.runs) * (1 + (8 * arguments + 16) // WIDTH),
        )
        return lines * (len(self.runs) - 1) - calls - OVERHEAD

    def applied(self, taken: set[str]) -> tuple[ast.FunctionDef, list[ast.stmt], bool]:
        """Return the function, the statements of the method with its calls, and whether it needs the module."""
        first = self.runs[0]
        kinds: dict[int, str] = {}
        renamed = self._renamed()
        used = {*renamed.values()}
        parameters: list[ast.arg] = [
            ast.arg(renamed[self.order[at]], name("int" if self.order[at] in self.search.sizes else "Array"))
            for at in self.inputs
        ]
        replaced: dict[ast.AST, str] = {}
        for places in self.columns:
            node = first.slots[places[0]]
            kind = type(node.value).__name__ if isinstance(node, ast.Constant) else "Array"
            wanted = {"int": "size", "float": "factor"}.get(kind) or re.sub(r"_\d+$", "", _attribute_of(node))
            chosen = unique(wanted, used)
            used.add(chosen)
            parameters.append(ast.arg(chosen, name(kind)))
            replaced |= {first.slots[at]: chosen for at in places}
            kinds[places[0]] = chosen
        replacing = _Replacing(replaced, renamed)
        body: list[ast.stmt] = []
        for one in self.statements:
            changed = replacing.visit(copy.deepcopy(one, memo=_same(one)))
            assert isinstance(changed, ast.stmt)
            body.append(changed)
        results: list[ast.expr] = [name(renamed[self.order[at]]) for at in self.outputs]
        last = body[-1]
        if (
            len(results) == 1
            and isinstance(last, ast.Assign)
            and ast.unparse(last.targets[0]) == ast.unparse(results[0])
        ):
            body[-1] = ast.Return(last.value)
        else:
            body.append(ast.Return(results[0] if len(results) == 1 else ast.Tuple(results, ast.Load())))
        is_method = any(isinstance(node, ast.Name) and node.id == "self" for one in body for node in ast.walk(one))
        text = " ".join(map(ast.unparse, self.statements))
        wanted = next(
            (chosen for function, chosen in NAMES if f"{function}(" in text), "multiplied" if " @ " in text else "step"
        )
        made = unique(wanted, taken)
        arguments = [ast.arg("self"), *parameters] if is_method else parameters
        returned = name("Array") if len(results) == 1 else ast.parse("tuple[Array, ...]", mode="eval").body
        definition = ast.FunctionDef(
            made, ast.arguments([], arguments, None, [], [], None, []), body, [], returned, None, lineno=0
        )
        return definition, self._with_calls(attribute(f"self.{made}") if is_method else name(made)), is_method

    def _with_calls(self, function: ast.expr) -> list[ast.stmt]:
        body: list[ast.stmt] = []
        begins = {run.begin: run for run in self.runs}
        at = 0
        while at < len(self.search.body):
            run = begins.get(at)
            if run is None:
                body.append(self.search.body[at])
                at += 1
                continue
            at += self.length
            names = [*run.names]
            live = self.search.live(at, [names[place] for place in self.outputs])
            targets: list[ast.expr] = [
                ast.Name(names[place] if names[place] in live else "_", ast.Store()) for place in self.outputs
            ]
            operands = [name(names[place]) for place in self.inputs]
            made = call(function, *operands, *(run.slots[places[0]] for places in self.columns))
            body.append(
                ast.Assign([targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())], made, lineno=0)
            )
        return body

    def _renamed(self) -> Mapping[str, str]:
        """Return the names in the function: the first ones for values that had none of their own."""
        renamed: dict[str, str] = {}
        for one in [*(self.order[at] for at in self.inputs), *self.order]:
            if one not in renamed:
                stem = "x" if re.fullmatch(r"x_\d+", one) else one
                renamed[one] = unique(stem, renamed.values())
        return renamed


def _same(statement: ast.stmt) -> dict[int, object]:
    """Return what a copy of a statement shares with it: the numbers and attributes, by which they are found."""
    kept = (node for node in ast.walk(statement) if isinstance(node, ast.Constant))
    attributes = (node for node in ast.walk(statement) if _is_attribute(node) or _is_parameter(node))
    return {id(node): node for node in (*kept, *attributes)}


class _Replacing(ast.NodeTransformer):
    """Parameters in place of what differs, and other names."""

    def __init__(self, replaced: Mapping[ast.AST, str], renamed: Mapping[str, str]):
        self.replaced, self.renamed = replaced, renamed

    def visit(self, node: ast.AST) -> ast.AST:
        if node in self.replaced:
            return name(self.replaced[node])
        if isinstance(node, ast.Name):
            return ast.Name(self.renamed.get(node.id, node.id), node.ctx)
        if isinstance(node, ast.arg):
            return ast.arg(self.renamed.get(node.arg, node.arg), node.annotation)
        if isinstance(node, ast.FunctionDef):
            node.name = self.renamed.get(node.name, node.name)
        return node if _is_attribute(node) else self.generic_visit(node)


def _attribute_of(node: ast.expr) -> str:
    node = node.value if isinstance(node, ast.Subscript) else node
    assert isinstance(node, ast.Attribute)
    return node.attr

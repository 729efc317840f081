"""One change of a function's code: what a slip of the pen would be, and a test has to notice."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip
#: Calls whose arguments only say something to a person.
WORDS = {
    "append_note",
    "cast",
    "InvalidArgument",
    "Unsupported",
    "decline",
    "declined",
    "getLogger",
    "refuse",
    "NotImplementedError",
}
#: What emits or computes operators: a call of anything else with its arguments exchanged fails at once.
EMITTERS = {"op", "jnp", "lax", "np"}
#: Functions of two operands of which either may come first.
COMMUTATIVE = {"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "add", "multiply", "maximum", "minimum", "max", "min", "zip", "isinstance", "equal", "logical_and", "logical_or"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A function with one change.

    Attributes:
      file: its file, from the root of the repository.
      function: its name, with those around it.
      first: the first line of its code, which Python counts from its decorators.
      line: the line of the change.
      before, after: the changed expression.
      code: the changed function's code; None of a number, which is doubled.
    """

    file: str
    function: str
    first: int
    line: int
    before: str
    after: str
    code: CodeType | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function}) `{self.before}` → `{self.after}`"


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.Lambda]]:
    """The functions of a file that no other function contains: also methods, and lambdas in tables."""

    def inside(node: ast.AST, around: str) -> Iterator[tuple[str, ast.FunctionDef | ast.Lambda]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                yield f"{around}{child.name}", child
            elif isinstance(child, ast.Lambda):
                yield f"{around}<lambda>", child
            else:
                yield from inside(child, f"{child.name}." if isinstance(child, ast.ClassDef) else around)

    yield from inside(tree, "")


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.Assign]]:
    """The numbers with names of their own, but those that only say how long something is tried."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper() and not name.startswith(
                "MOST_"
            ):
                parts = [part for part in ast.walk(value) if not isinstance(part, ast.BinOp | ast.operator)]
                if all(isinstance(part, ast.Constant) and isinstance(part.value, int | float) for part in parts):
                    yield name, node


def _parts(function: ast.FunctionDef | ast.Lambda) -> Iterator[ast.AST]:
    """What is computed in a function: no annotations, docstrings, errors and formatted texts."""
    pending: list[ast.AST] = [*function.body] if isinstance(function, ast.FunctionDef) else [function.body]
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in WORDS:
            continue
        yield node
        if isinstance(node, ast.FunctionDef):
            pending.extend(node.body)
        else:
            pending.extend(ast.iter_child_nodes(node))


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one change."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[first]) if type(first) in COMPARISONS:
            new.ops = [COMPARISONS[type(first)]()]
            yield new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield new.operand
        case ast.BinOp() if type(new.op) in OPERATORS and not isinstance(
            new.left, ast.Constant | ast.List | ast.Tuple | ast.JoinedStr
        ):
            new.op = OPERATORS[type(new.op)]()
            yield new
        case ast.Constant(value=bool()):
            new.value = not new.value
            yield new
        case ast.Constant(value=int() | float()):
            new.value = new.value + 1
            yield new
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
            yield new
        case ast.Call(func=ast.Attribute(value=ast.Name(id=holder), attr=name)) if holder in EMITTERS:
            for index, keyword in enumerate(new.keywords):
                if keyword.arg is not None:
                    less = copy.deepcopy(new)
                    del less.keywords[index]
                    yield less
            if (
                len(new.args) > 1
                and name not in COMMUTATIVE
                and not any(isinstance(arg, ast.Starred) for arg in new.args[:2])
            ):
                new.args[0], new.args[1] = new.args[1], new.args[0]
                yield new


def _code(whole: CodeType, name: str, first: int) -> CodeType | None:
    """The code of the function that begins in a line."""
    for constant in whole.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_name == name and constant.co_firstlineno == first:
                return constant
            if (found := _code(constant, name, first)) is not None:
                return found
    return None


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().generic_visit(node)

    visit = generic_visit


def mutant(root: Path, file: str, name: str, first: int, seed: str) -> Mutant | None:
    """The mutant of a function that a seed draws; None if nothing in it can be changed."""
    text = (root / file).read_text()
    tree = ast.parse(text)
    for own, constant in constants(tree):
        if (own, constant.lineno) == (name, first):
            value = ast.unparse(constant.value)
            return Mutant(file, name, first, first, value, f"2 * ({value}) or 1", None)
    function = next(node for own, node in functions(tree) if own == name and begins(node) == first)
    changes = [(node, new) for node in _parts(function) for new in _changes(node)]
    generator = random.Random(f"{seed} {file} {name} {first}")
    original = _code(compile(text, file, "exec", dont_inherit=True), name.rpartition(".")[2], first)
    generator.shuffle(changes)
    for old, new in changes:
        # The tree is read again for each change, since replacing changes it: the same node is at the same place.
        index = next(i for i, node in enumerate(ast.walk(tree)) if node is old)
        fresh = ast.parse(text)
        ast.copy_location(new, old)
        made = ast.fix_missing_locations(_Replaced(list(ast.walk(fresh))[index], new).visit(fresh))
        code = _code(compile(made, str(root / file), "exec", dont_inherit=True), name.rpartition(".")[2], first)
        if original is not None and code is not None and code.co_freevars == original.co_freevars:
            return Mutant(file, name, first, old.lineno, ast.unparse(old), ast.unparse(new), code)
    return None


def begins(function: ast.FunctionDef | ast.Lambda) -> int:
    """The line with which Python says that a function's code begins."""
    decorators = getattr(function, "decorator_list", [])
    return min([function.lineno, *(decorator.lineno for decorator in decorators)])

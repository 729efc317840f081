"""Trees of Rust as text."""

from __future__ import annotations

import ast
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

import numpy as np

from jaxport.codegen.rust.nodes import (
    Array,
    Binary,
    Borrow,
    Braces,
    Closure,
    IfElse,
    Invocation,
    Literal,
    Method,
    RustFunction,
    RustRange,
    Slices,
    Structure,
    Try,
    Unary,
    Vector,
    While,
)
from jaxport.codegen.rust.ownership import Ownership, live, own
from jaxport.importer.values.host import RuntimeValue

__all__ = ["LAYOUT", "expression_text", "formatted", "function_text", "number_text", "quoted"]

LAYOUT = {"use_small_heuristics": "Max"}
"""The options of rustfmt: a call or a chain of methods is one line if it fits into one."""
_PRECEDENCE = {
    "as": 13, "*": 12, "/": 12, "%": 12, "+": 11, "-": 11, "<<": 10, ">>": 10, "&": 9, "^": 8, "|": 7,
    "==": 6, "!=": 6, "<": 6, ">": 6, "<=": 6, ">=": 6, "&&": 5, "||": 4, "..": 3,
}  # fmt: skip
_PYTHON = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%", ast.Div: "/"}
_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def expression_text(node: ast.expr) -> str:
    """Return an expression on one line.

    >>> expression_text(Binary(Method(ast.Name("x", ast.Load()), "exp", [], "", False), "+", ast.Constant(1.0)))
    'x.exp() + 1.0'
    """
    return _text(node, 0)


def _text(node: ast.AST | None, around: int) -> str:
    text, precedence = _parts(node)
    return f"({text})" if precedence < around else text


def _parts(node: ast.AST | None) -> tuple[str, int]:
    """Return the text of an expression and its precedence."""
    match node:
        case None:
            return "", 20
        case Literal():
            return node.text, 14 if node.text.startswith("-") else 20
        case ast.Constant():
            return number_text(node.value), 14 if isinstance(node.value, int | float) and node.value < 0 else 20
        case ast.Name():
            return node.id, 20
        case ast.Attribute():
            return f"{_text(node.value, 15)}.{node.attr}", 20
        case ast.Subscript():
            return _subscript(node), 20
        case Method():
            generics = f"::<{node.generics}>" if node.generics else ""
            return f"{_text(node.receiver, 15)}.{node.name}{generics}({_list(node.arguments)})", 20
        case Invocation():
            return f"{node.path}({_list(node.arguments)})", 20
        case Array():
            return f"[{_list(node.elements)}]", 20
        case Vector():
            return f"vec![{_list(node.elements)}]", 20
        case Slices():
            return f"s![{_list(node.parts)}]", 20
        case ast.Tuple():
            return f"({_list(node.elts)}{',' if len(node.elts) == 1 else ''})", 20
        case ast.List():
            return ("Vec::new()" if not node.elts else f"vec![{_list(node.elts)}]"), 20
        case Borrow():
            return f"&{_text(node.value, 14)}", 14
        case Try():
            return f"{_text(node.value, 15)}?", 20
        case Unary():
            return f"{node.symbol}{_text(node.value, 14)}", 14
        case ast.UnaryOp():
            return f"-{_text(node.operand, 14)}", 14
        case Binary():
            own = _PRECEDENCE[node.symbol]
            return f"{_text(node.left, own)} {node.symbol} {_text(node.right, own + 1)}", own
        case ast.BinOp() if isinstance(node.op, ast.Pow):
            return f"{_text(node.left, 15)}.pow({_text(node.right, 0)})", 20
        case ast.BinOp():
            symbol = _PYTHON[type(node.op)]
            own = _PRECEDENCE[symbol]
            return f"{_text(node.left, own)} {symbol} {_text(node.right, own + 1)}", own
        case ast.Compare():
            symbol = _COMPARISONS[type(node.ops[0])]
            return f"{_text(node.left, 7)} {symbol} {_text(node.comparators[0], 7)}", 6
        case RustRange():
            step = f";{node.step}" if node.step != 1 else ""
            return f"{_text(node.start, 4)}..{_text(node.end, 4)}{step}", 3
        case Closure():
            return f"|{', '.join(node.parameters)}| {_text(node.value, 0)}", 1
        case Structure():
            return f"{node.name} {{ {_fields(node)} }}", 20
        case ast.Call() if isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
            first, second = node.args
            return f"{_text(first, 15)}.{node.func.id}({_text(second, 0)})", 20
        case ast.Call() if isinstance(node.func, ast.Name) and node.func.id == "range":
            return f"0..{_text(node.args[0], 4)}", 3
        case ast.Call() if isinstance(node.func, ast.Name) and node.func.id == "zip":
            first, *others = node.args
            return f"{_iterated(first)}{''.join(f'.zip({_iterated(other)})' for other in others)}", 20
        case Braces():
            lines = [*_lines(node.statements, _NOTHING, 0), _text(node.value, 0)]
            return "{ " + " ".join(lines) + " }", 20
        case IfElse():
            return f"if {_text(node.condition, 0)} {_text(node.then, 0)} else {_text(node.otherwise, 0)}", 1
    raise TypeError(f"{type(node).__name__} has no text in Rust")


def _fields(node: Structure) -> str:
    pairs = ((key, _text(value, 0)) for key, value in zip(node.fields, node.values, strict=True))
    return ", ".join(key if key == value else f"{key}: {value}" for key, value in pairs)


def _subscript(node: ast.Subscript) -> str:
    if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":  # x.shape[0]
        return f"{_text(node.value.value, 15)}.dims()[{_text(node.slice, 0)}]"
    if isinstance(node.slice, ast.Slice):
        bounds = f"{_text(node.slice.lower, 4)}..{_text(node.slice.upper, 4)}"
        return f"{_text(node.value, 15)}[{bounds}]"
    return f"{_text(node.value, 15)}[{_text(node.slice, 0)}]"


def _list(nodes: Sequence[ast.AST]) -> str:
    return ", ".join(_text(node, 0) for node in nodes)


def number_text(value: RuntimeValue) -> str:
    """Return a number: the shortest text that is the same float32 or float64, always with a point.

    >>> number_text(1.0), number_text(np.float32(0.1)), number_text(float("-inf")), number_text(12), number_text(True)
    ('1.0', '0.1', 'f64::NEG_INFINITY', '12', 'true')
    """
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if np.issubdtype(type(value), np.floating):
        kind = "f32" if np.dtype(type(value)) == np.float32 else "f64"
        if math.isnan(value):
            return f"{kind}::NAN"
        if math.isinf(value):
            return f"{kind}::INFINITY" if value > 0 else f"{kind}::NEG_INFINITY"
        text = str(value)
        mantissa, e, exponent = text.partition("e")
        mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
        return f"{mantissa}{e}{int(exponent)}" if e else mantissa
    raise TypeError(f"{value!r} is no number")


def quoted(text: str) -> str:
    r"""Return untrusted text as a string of Rust.

    >>> print(quoted('a"b'))
    "a\"b"
    """
    made = "".join(
        character
        if character.isascii() and character.isprintable() and character not in '"\\'
        else f"\\u{{{ord(character):x}}}"
        if character not in '"\\'
        else f"\\{character}"
        for character in text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
    return f'"{made}"'


_NOTHING = Ownership(())


def _lines(statements: Sequence[ast.stmt], facts: Ownership, depth: int) -> list[str]:
    indent = "    " * depth
    lines: list[str] = []
    for statement in statements:
        match statement:
            case ast.Assign():
                target = _target(statement.targets[0], facts.mutable.get(statement, set()), statement.value)
                let = "" if statement in facts.assigning else "let "
                value = _value_text(statement.value, depth, facts)
                lines.append(f"{indent}{let}{target} = {value};")
            case ast.Return() if isinstance(statement.value, IfElse):
                lines.append(f"{indent}{_value_text(statement.value, depth, facts)}")
            case ast.Return():
                lines.append(f"{indent}{_text(statement.value, 0)}")
            case ast.For():
                target = _paired(statement.target, facts.mutable.get(statement, set()))
                over = statement.iter
                text = f"&{_text(over, 14)}" if isinstance(over, ast.Attribute | ast.Subscript) else _text(over, 0)
                lines.append(f"{indent}for {target} in {text} {{")
                lines += [*_lines(statement.body, facts, depth + 1), f"{indent}}}"]
            case While() if not statement.before:
                lines.append(f"{indent}while {_text(statement.condition, 0)} {{")
                lines += [*_lines(statement.body, facts, depth + 1), f"{indent}}}"]
            case While():
                lines += [f"{indent}loop {{", *_lines(statement.before, facts, depth + 1)]
                lines += [f"{indent}    if !{_text(statement.condition, 14)} {{", f"{indent}        break;"]
                lines += [f"{indent}    }}", *_lines(statement.body, facts, depth + 1), f"{indent}}}"]
            case ast.If():  # a size that is refused
                assert isinstance(statement.test, ast.BinOp | ast.Compare)
                (raised,) = statement.body
                assert isinstance(raised, ast.Raise)
                assert isinstance(raised.exc, ast.Call)
                (message,) = raised.exc.args
                assert isinstance(message, ast.Constant)
                holds = _refuted(statement.test)
                lines.append(f"{indent}assert!({holds}, {quoted(str(message.value))});")
            case ast.Expr():
                lines.append(f"{indent}{_text(statement.value, 0)};")
            case _:
                raise TypeError(f"{type(statement).__name__} has no text in Rust")
    return lines


def _refuted(test: ast.expr) -> str:
    """Return the text of what holds for the sizes that are not refused."""
    if isinstance(test, ast.Compare):
        opposite = ">=" if isinstance(test.ops[0], ast.Lt) else "<="
        return f"{_text(test.left, 7)} {opposite} {_text(test.comparators[0], 7)}"
    assert isinstance(test, ast.BinOp)  # a remainder
    return f"{_text(test.left, 14)}.is_multiple_of({_text(test.right, 0)})"


def _value_text(value: ast.expr, depth: int, facts: Ownership) -> str:
    if isinstance(value, IfElse):
        indent = "    " * depth
        branches = f"if {_text(value.condition, 0)} {{\n{_block(value.then, depth, facts)}\n{indent}}}"
        return f"{branches} else {_value_text(value.otherwise, depth, facts)}"
    if isinstance(value, Braces):
        return "{\n" + _block(value, depth, facts) + "\n" + "    " * depth + "}"
    return _text(value, 0)


def _block(block: Braces, depth: int, facts: Ownership) -> str:
    return "\n".join([*_lines(block.statements, facts, depth + 1), "    " * (depth + 1) + _text(block.value, 0)])


def _target(target: ast.expr, mutable: set[str], value: ast.expr | None) -> str:
    if isinstance(target, ast.Name):
        return f"mut {target.id}" if target.id in mutable else target.id
    if isinstance(target, Structure):
        read = [isinstance(part, ast.Name) and part.id != "_" for part in target.values]
        return f"{target.name} {{ {_fields(target)} }}" if any(read) else "_"
    assert isinstance(target, ast.Tuple)
    parts = ", ".join(_target(part, mutable, None) for part in target.elts)
    of_shape = isinstance(value, ast.Attribute) and value.attr == "shape"
    return (
        f"[{parts}]" if of_shape or getattr(target, "is_array", False) else f"({parts}{',' * (len(target.elts) == 1)})"
    )


def _paired(target: ast.expr, mutable: set[str]) -> str:
    """Return the pattern of what a loop goes over side by side: pairs of pairs."""
    if not isinstance(target, ast.Tuple):
        return _target(target, mutable, None)
    first, *others = (_target(part, mutable, None) for part in target.elts)
    for other in others:
        first = f"({first}, {other})"
    return first


def _iterated(node: ast.expr) -> str:
    """Return what goes over values side by side with others: references to modules, or the values."""
    return f"{_text(node, 15)}.iter()" if isinstance(node, ast.Attribute | ast.Subscript) else _text(node, 0)


def function_text(
    function: RustFunction, copied: Sequence[str] = (), depth: int = 0, sizes: Mapping[str, str] | None = None
) -> str:
    """Return a function; clones are inserted into its body, in place.

    `sizes` has the names of sizes that are spelled otherwise in Rust.
    """
    if sizes:
        _respell(function, sizes)
        copied = [*copied, *sizes.values()]
    facts = own(function.body, function.parameters, copied)
    read = live(function.body, ())
    receiver = ["&self"] if function.is_method else []
    parameters = [
        f"{'mut ' * (name in facts.arguments)}{'_' * (name not in read)}{name}: {kind}"
        for name, kind in zip(function.parameters, function.types, strict=True)
    ]
    indent, public = "    " * depth, "pub " * function.is_public
    head = f"{public}fn {function.name}{function.generics}"
    returned = f" -> {function.returned}" if function.returned else ""
    lines = [f"{indent}/// {line}".rstrip() for line in function.documentation.splitlines()]
    lines.append(f"{indent}{head}({', '.join([*receiver, *parameters])}){returned} {{")
    lines += [_with_dims(line) for line in _lines(function.body, facts, depth + 1)]
    return "\n".join([*lines, f"{indent}}}"])


def _with_dims(line: str) -> str:
    """Return `= x.dims();` for Python's `= x.shape`."""
    return re.sub(r"= (\w+)\.shape;", r"= \1.dims();", line)


def _respell(function: RustFunction, names: Mapping[str, str]) -> None:
    """Spell sizes otherwise, in place; a size has no fields: in `self.norm`, `self` is the receiver, whatever sizes are called."""
    receivers = {node.value for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node not in receivers:
            node.id = names.get(node.id, node.id)
    function.parameters = [names.get(one, one) for one in function.parameters]


def formatted(code: str) -> str:
    """Return code formatted by rustfmt if that is installed; it is valid Rust either way."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), os.path.expanduser("~/.cargo/bin")))
    rustfmt = shutil.which("rustfmt", path=folders)
    if rustfmt is None:
        return code
    done = subprocess.run(
        [rustfmt, "--edition", "2024", "--emit", "stdout", "--config", ",".join(map("=".join, LAYOUT.items()))],
        input=code,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else code

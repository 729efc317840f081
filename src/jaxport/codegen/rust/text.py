"""Trees of Rust as text."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxport.codegen.rust.ownership import live, own
from jaxport.codegen.rust.tree import (
    Array,
    Binary,
    Borrow,
    Braces,
    Closure,
    ExpressionStatement,
    FieldAccess,
    For,
    Identifier,
    IfElse,
    Index,
    Invocation,
    Let,
    Literal,
    Method,
    Number,
    Return,
    RustExpression,
    RustFunction,
    RustNode,
    RustRange,
    RustStatement,
    Slices,
    Structure,
    Try,
    Tuple,
    Unary,
    Vector,
    While,
    Zipped,
    names,
    walk,
)

LAYOUT = {"use_small_heuristics": "Max"}
"""The options of rustfmt: a call or a chain of methods is one line if it fits into one."""
_PRECEDENCE = {
    "as": 13, "*": 12, "/": 12, "%": 12, "+": 11, "-": 11, "<<": 10, ">>": 10, "&": 9, "^": 8, "|": 7,
    "==": 6, "!=": 6, "<": 6, ">": 6, "<=": 6, ">=": 6, "&&": 5, "||": 4, "..": 3,
}  # fmt: skip


def expression_text(node: RustExpression) -> str:
    """Return an expression on one line.

    >>> expression_text(Binary(Method(Identifier("x"), "exp", []), "+", Number(1.0)))
    'x.exp() + 1.0'
    """
    return _text(node, 0)


def _prefixed(symbol: str, text: str) -> str:
    """Return an expression behind a prefix; the compiler warns of `--x`.

    >>> _prefixed("-", "x"), _prefixed("-", "-x")
    ('-x', '-(-x)')
    """
    return f"{symbol}({text})" if symbol == "-" and text.startswith("-") else f"{symbol}{text}"


def _text(node: RustExpression | None, around: int) -> str:
    text, precedence = _parts(node)
    return f"({text})" if precedence < around else text


def _parts(node: RustExpression | None) -> tuple[str, int]:
    """Return the text of an expression and its precedence."""
    match node:
        case None:
            return "", 20
        case Literal():
            return node.text, 14 if node.text.startswith("-") else 20
        case Number():
            return number_text(node.value), 14 if node.value < 0 else 20
        case Identifier():
            return node.id, 20
        case FieldAccess():
            return f"{_text(node.value, 15)}.{node.field}", 20
        case Index():
            return f"{_text(node.value, 15)}[{_text(node.index, 0)}]", 20
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
        case Tuple():
            return _tuple([_text(part, 0) for part in node.elements]), 20
        case Borrow():
            return f"&{_text(node.value, 14)}", 14
        case Try():
            return f"{_text(node.value, 15)}?", 20
        case Unary():
            return _prefixed(node.symbol, _text(node.value, 14)), 14
        case Binary():
            own_ = _PRECEDENCE[node.symbol]
            return f"{_text(node.left, own_)} {node.symbol} {_text(node.right, own_ + 1)}", own_
        case RustRange():
            step = f";{node.step}" if node.step != 1 else ""
            return f"{_text(node.start, 4)}..{_text(node.end, 4)}{step}", 3
        case Zipped():
            first, *others = map(_iterated, node.values)
            return f"{first}{''.join(f'.zip({other})' for other in others)}", 20
        case Closure():
            return f"|{', '.join(node.parameters)}| {_text(node.value, 0)}", 1
        case Structure():
            return f"{node.name} {{ {_fields(node)} }}", 20
        case Braces():
            lines = [*_lines(node.statements, 0), _text(node.value, 0)]
            return "{ " + " ".join(lines) + " }", 20
        case IfElse():
            return f"if {_text(node.condition, 0)} {_text(node.then, 0)} else {_text(node.otherwise, 0)}", 1
    raise TypeError(f"{type(node).__name__} has no text in Rust")


def _fields(node: Structure) -> str:
    pairs = ((key, _text(value, 0)) for key, value in zip(node.fields, node.values, strict=True))
    return ", ".join(key if key == value else f"{key}: {value}" for key, value in pairs)


def _list(nodes: Sequence[RustExpression]) -> str:
    return ", ".join(_text(node, 0) for node in nodes)


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def number_text(value: Any) -> str:
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
    raise TypeError(f"{value!r} is not a number")


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


def _lines(statements: Sequence[RustStatement], depth: int) -> list[str]:
    indent = "    " * depth
    lines: list[str] = []
    for statement in statements:
        match statement:
            case Let():
                target = _pattern(statement.target, statement.mutable)
                let = "" if statement.assigns else "let "
                lines.append(f"{indent}{let}{target} = {_value_text(statement.value, depth)};")
            case Return(value=IfElse()):
                lines.append(f"{indent}{_value_text(statement.value, depth)}")
            case Return():
                lines.append(f"{indent}{_text(statement.value, 0)}")
            case For():
                over = statement.over
                text = f"&{_text(over, 14)}" if isinstance(over, FieldAccess | Index) else _text(over, 0)
                lines.append(f"{indent}for {_paired(statement.target, statement.mutable)} in {text} {{")
                lines += [*_lines(statement.body, depth + 1), f"{indent}}}"]
            case While() if not statement.before:
                lines.append(f"{indent}while {_text(statement.condition, 0)} {{")
                lines += [*_lines(statement.body, depth + 1), f"{indent}}}"]
            case While():
                lines += [f"{indent}loop {{", *_lines(statement.before, depth + 1)]
                lines += [f"{indent}    if !{_text(statement.condition, 14)} {{", f"{indent}        break;"]
                lines += [f"{indent}    }}", *_lines(statement.body, depth + 1), f"{indent}}}"]
            case ExpressionStatement():
                lines.append(f"{indent}{_text(statement.value, 0)};")
            case _:
                raise TypeError(f"{type(statement).__name__} has no text in Rust")
    return lines


def _value_text(value: RustExpression, depth: int) -> str:
    if isinstance(value, IfElse):
        indent = "    " * depth
        branches = f"if {_text(value.condition, 0)} {{\n{_block(value.then, depth)}\n{indent}}}"
        return f"{branches} else {_value_text(value.otherwise, depth)}"
    if isinstance(value, Braces):
        return "{\n" + _block(value, depth) + "\n" + "    " * depth + "}"
    return _text(value, 0)


def _block(block: Braces, depth: int) -> str:
    return "\n".join([*_lines(block.statements, depth + 1), "    " * (depth + 1) + _text(block.value, 0)])


def _pattern(target: RustExpression, mutable: Collection[str]) -> str:
    match target:
        case Identifier():
            return f"mut {target.id}" if target.id in mutable else target.id
        case Structure():
            read = [isinstance(part, Identifier) and part.id != "_" for part in target.values]
            return f"{target.name} {{ {_fields(target)} }}" if any(read) else "_"
        case Array():
            return f"[{', '.join(_pattern(part, mutable) for part in target.elements)}]"
        case Tuple():
            return _tuple([_pattern(part, mutable) for part in target.elements])
    raise TypeError(f"{type(target).__name__} is no pattern in Rust")


def _paired(target: RustExpression, mutable: Collection[str]) -> str:
    """Return the pattern of what a loop goes over side by side: pairs of pairs."""
    if not isinstance(target, Tuple):
        return _pattern(target, mutable)
    first, *others = (_pattern(part, mutable) for part in target.elements)
    for other in others:
        first = f"({first}, {other})"
    return first


def _iterated(node: RustExpression) -> str:
    """Return what goes over values side by side with others: references to modules, or the values."""
    return f"{_text(node, 15)}.iter()" if isinstance(node, FieldAccess | Index) else _text(node, 0)


def function_text(
    function: RustFunction, copied: Collection[str] = (), depth: int = 0, sizes: Mapping[str, str] | None = None
) -> str:
    """Return a function; clones are inserted into its body, in place.

    `sizes` has the names of sizes that are spelled otherwise in Rust.
    """
    if sizes:
        _respell(function, sizes)
        copied = [*copied, *sizes.values()]
    own(function, copied)
    read = live(function.body, ())
    receiver = ["&self"] if function.is_method else []
    parameters = [
        f"{'mut ' * (name in function.mutable)}{'_' * (name not in read)}{name}: {kind}"
        for name, kind in zip(function.parameters, function.types, strict=True)
    ]
    indent, public = "    " * depth, "pub " * function.is_public
    head = f"{public}fn {function.name}{function.generics}"
    returned = f" -> {function.returned}" if function.returned else ""
    lines = [f"{indent}/// {line}".rstrip() for line in function.documentation.splitlines()]
    lines.append(f"{indent}{head}({', '.join([*receiver, *parameters])}){returned} {{")
    return "\n".join([*lines, *_lines(function.body, depth + 1), f"{indent}}}"])


def _respell(function: RustFunction, spelled: Mapping[str, str]) -> None:
    """Spell sizes otherwise, in place; a size has no fields: in `self.norm`, `self` is the receiver, whatever sizes are
    called.
    """
    receivers: set[RustNode] = {node.value for node in walk(function) if isinstance(node, FieldAccess)}
    for name in names([function]):
        if name not in receivers:
            name.id = spelled.get(name.id, name.id)
    function.parameters = [spelled.get(one, one) for one in function.parameters]


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

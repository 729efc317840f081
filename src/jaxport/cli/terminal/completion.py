"""What a shell offers where a user presses the tab key, before JAX or anything else that is slow is loaded."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.completion import Shells, get_completion_script, install
from typer.core import TyperCommand, TyperGroup

from jaxport.errors import InvalidArgument

_ASKED = "_JAXPORT_COMPLETE"
"""The variable with which the scripts of shells ask what may follow."""

PRECISIONS = ("float16", "bfloat16", "int8-dynamic", "int8", "int4")
"""The names of precisions, which a shell gets without JAX being loaded."""


def precisions(incomplete: str) -> list[str]:
    """Return the precisions that begin so.

    >>> precisions("int4")
    ['int4']
    """
    return [name for name in PRECISIONS if name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Return the modules in the current folder, or after a colon the functions, classes and variables of a module.

    Nothing is imported: the names are read from the source.
    """
    module, colon, attribute = incomplete.partition(":")
    if not colon:
        found = sorted((name for name in _modules() if name.startswith(module)), key="{}:".format)
        if len(found) != 1:
            return [f"{name}:" for name in found]
        module = found[0]  # a shell puts a space after a word that is the only one: no name may end with the colon
    return sorted({f"{module}:{name}" for name in _names(module) if name.startswith(attribute)})


def _modules() -> Iterator[str]:
    """Yield the modules and packages of the current folder, and the modules of those packages."""
    for path in Path.cwd().iterdir():
        if path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem
        elif (path / "__init__.py").is_file():
            yield path.name
            yield from (f"{path.name}.{file.stem}" for file in path.glob("*.py") if file.stem != "__init__")


def _names(module: str) -> Iterator[str]:
    path = Path.cwd().joinpath(*module.split("."))
    files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    if not files:
        return
    try:
        tree = ast.parse(files[0].read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [statement.name]
        elif isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


_SAID = {
    "^Value error, ": "",
    "^Input should be a valid integer.*": "it takes a whole number",
    "^Input should be a valid number.*": "it takes a number",
    "^Input should be greater than or equal to (.*)": r"it takes a number from \1 on",
}
"""What pydantic says of values, and what a user of a command line understands."""


class Command(TyperCommand):
    """A command that does not convert values where only their places matter: conversions load pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command."""
        if ctx.resilient_parsing:
            return _placed(self, ctx, args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            for said, meant in _SAID.items():
                error.message = re.sub(said, meant, error.message)
            raise


class Group(TyperGroup):
    """The same for the command in front."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words up to the name of a command."""
        if not ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        rest = _placed(self, ctx, args)
        ctx._protected_args, ctx.args = rest[:1], rest[1:]
        return ctx.args


def _placed(command: TyperCommand | TyperGroup, ctx: typer.Context, args: list[str]) -> list[str]:
    """Assign words to the parameters of a command, and return those that are left."""
    parser = command.make_parser(ctx)
    given, rest, _ = parser.parse_args(args=args)
    for parameter in command.get_params(ctx):
        ctx.params[parameter.name], source = parameter.consume_value(ctx, given)
        ctx.set_parameter_source(parameter.name, source)
    ctx.args = rest
    ctx._opt_prefixes.update(parser._opt_prefixes)
    return rest


@contextlib.contextmanager
def in_bash() -> Iterator[None]:
    """Answer bash, which takes `module:attribute` for three words, and replaces the last one, inside the context."""
    if os.environ.get(_ASKED) != "complete_bash":
        yield
        return
    words, current = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
    if len(words) == 1:  # a script of one's own, or a test
        yield
        return
    joined, begun = _joined([*words[:current], *words[current : current + 1]])
    os.environ.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(len(joined) - 1))
    answer = io.StringIO()
    try:
        with contextlib.redirect_stdout(answer):
            yield
    finally:
        os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(current))
        sys.stdout.write("".join(line.removeprefix(begun) for line in answer.getvalue().splitlines(keepends=True)))


def _joined(words: Sequence[str]) -> tuple[list[str], str]:
    """Put words together that a colon parts, and return them, with what stands before the end of the last one.

    >>> _joined(["jaxport", "export", "nets", ":", "mo"])
    (['jaxport', 'export', 'nets:mo'], 'nets:')
    """
    joined: list[str] = []
    for word in words:
        if joined and (word.startswith(":") or joined[-1].endswith(":")):
            joined[-1] += word
        else:
            joined.append(word)
    before, colon, _ = joined[-1].rpartition(":")
    return joined, before + colon


def answered(words: Sequence[str]) -> bool:
    """Print or install the script of a shell, if the words ask for that: `--show-completion zsh`.

    Raises:
      InvalidArgument: the shell is not known.
    """
    if not words or words[0] not in ("--show-completion", "--install-completion"):
        return False
    known = [shell.value for shell in Shells]
    shell = words[1] if len(words) > 1 else _detected()
    if shell not in known:
        raise InvalidArgument(
            f"the shell `{shell}` has no completion" if shell else "the shell is not known",
            where=f"`{words[0]}`",
            why="it is looked for among the processes that started this one" if len(words) == 1 else "",
            instead=f"name one of {', '.join(known)}: `jaxport {words[0]} {known[0]}`",
        )
    if words[0] == "--show-completion":
        sys.stdout.write(get_completion_script(prog_name="jaxport", complete_var=_ASKED, shell=shell) + "\n")
    else:
        _, path = install(shell=shell, prog_name="jaxport", complete_var=_ASKED)
        sys.stdout.write(f"{shell} completion installed in {path}: it takes effect in a new terminal\n")
    return True


def _detected() -> str:
    import shellingham

    try:
        return shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        return ""

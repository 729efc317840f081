"""The commands about programs as trees: `tree`, `view`, `query`, `sub` and `account`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxport.cli import specs
from jaxport.cli.tables import console, file_size, key_values, table
from jaxport.cli.targets import load_target
from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxport.jaxprs import PythonFunction, PyTree
    from jaxport.mox import Mox

__all__ = ["show_account", "show_query", "show_tree", "substitute", "view"]

Model = Annotated[
    str,
    typer.Argument(
        help="An ONNX file, a Mox (`.json`, `.yson`, `.xml`), or `module:attribute` with its inputs.",
        metavar="MODEL",
    ),
]
Query = Annotated[str, typer.Argument(help="XPath 1.0: `//MatMul`, `//Linear[@features=10]`.", metavar="XPATH")]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        default_factory=list,
        show_default=False,
        metavar="SPEC",
        help='One input, in the order of the arguments: "B,224,224,3", "ids:int32[B,T]".',
    ),
]
Expected = Annotated[
    int | None, typer.Option("--expect", metavar="COUNT", help="The number of matches that the query must have.")
]


def load_mox(model: str, inputs: list[str]) -> Mox:
    """Return the Mox of a command's model.

    Raises:
      InvalidArgument: there is no such model, or it needs inputs that are not given.
    """
    import jaxport
    from jaxport.export.signature.specs import read_inputs

    suffix = Path(model).suffix
    if suffix in (".json", ".yson", ".xml"):
        return jaxport.mox.load(model)
    parsed = specs.parse_inputs(inputs)
    args = read_inputs([spec.value for spec in parsed]).args
    if suffix == ".onnx":
        return _of_file(model, args)
    if not args:
        raise InvalidArgument(
            f"`{model}` needs inputs", where="the command line", instead='give them in order: `--input "B,3"`'
        )
    return jaxport.make_mox(load_target(model))(*args)


def _of_file(model: str, args: Sequence[PyTree]) -> Mox:
    """Return the Mox of an ONNX file; what its open sizes have to be is told."""
    import jaxport
    from jaxport.importer.traced.assumptions import Assumptions, with_assumptions
    from jaxport.importer.traced.input_specs import input_specs

    program = jaxport.from_onnx(model)
    if args:
        return jaxport.make_mox(program)(*args)

    def attempt(assumed: Assumptions) -> tuple[Mox, Assumptions]:
        return jaxport.make_mox(program)(*input_specs(program, assumed).values()), assumed

    mox, assumed = with_assumptions(attempt)
    for line in assumed.lines():
        typer.echo(line, err=True)
    return mox


def show_tree(model: Model, inputs: Inputs) -> None:
    """Show a model as a tree of modules and equations."""
    typer.echo(str(load_mox(model, inputs)))


def view(
    model: Model,
    inputs: Inputs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("model.html"),
) -> None:
    """Write a model as an HTML page.

    The page shows a collapsible tree that can be searched by text or XPath.
    """
    load_mox(model, inputs).show().save(output)
    typer.echo(f"{output}")


def show_query(model: Model, query: Query, inputs: Inputs, expect: Expected = None) -> None:
    """List the matches of a query.

    Each match is printed with its type, its path, and the shapes of its inputs and outputs.
    """
    selection = load_mox(model, inputs).select(query, expect=expect)
    shapes = lambda avals: ", ".join(aval.str_short(short_dtypes=True) for aval in avals)
    rows = [(m.type, m.path, shapes(m.in_avals), shapes(m.out_avals)) for m in selection]
    console().print(table(f"{query}: {len(rows)}", ("type", "path", "inputs", "outputs"), rows))


def show_account(model: Model, inputs: Inputs) -> None:
    """Show what each block costs.

    The table lists calls, parameters, bytes, operations and activations.
    """
    from jaxport.mox import account

    typer.echo(str(account(load_mox(model, inputs))))


def substitute(
    model: Model,
    query: Query,
    replacement: Annotated[str, typer.Argument(help="A function: `jax.nn.gelu`, `my.module:function`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    inputs: Inputs,
    expect: Expected = None,
) -> None:
    """Replace the matches of a query with a function.

    The edited model is written as ONNX.
    """
    import jaxport

    mox = load_mox(model, inputs)
    selection = mox.select(query, expect=expect)
    edited = selection.sub(_function(replacement))
    exported = jaxport.to_onnx(edited, edited.jaxpr.in_avals[len(edited.weights) :])
    exported.save(output)
    console().print(
        key_values(
            {
                "replaced": f"{selection.count()} of {len(mox.tree.nodes)} operations",
                "dropped": ", ".join(edited.dropped) or "no parameters",
                "written": f"{output} ({file_size(output.stat().st_size)})",
            }
        )
    )


def _function(name: str) -> PythonFunction:
    """A function by its name, with a colon or without."""
    if ":" in name:
        return load_target(name)
    module, _, attribute = name.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), attribute, None) if module else None
    except ImportError:
        function = None
    if not callable(function):
        raise InvalidArgument(
            f"`{name}` is not a function",
            where="the replacement",
            instead="write `jax.nn.gelu`, or `package.module:function`",
        )
    return function

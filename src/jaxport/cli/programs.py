"""The commands about programs as trees: `tree`, `view`, `query`, `sub` and `account`."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxport.cli import specs
from jaxport.cli.files import STANDARD, model_file, output_file, written
from jaxport.cli.importing import Values, parse_values
from jaxport.cli.tables import file_size, key_values, table
from jaxport.cli.targets import declared_inputs, load_target
from jaxport.cli.terminal import completion
from jaxport.cli.terminal.output import settings, tell
from jaxport.columns import counted
from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jax.core import AbstractValue

    from jaxport.importer import Program
    from jaxport.jaxprs import PythonFunction
    from jaxport.mox import Mox
    from jaxport.mox.programs.tree import Node

Model = Annotated[
    str,
    typer.Argument(
        help="An ONNX file, a Mox (.json, .yson, .xml), or module:attribute with its inputs; - is an ONNX file on the "
        "standard input.",
        metavar="MODEL",
        autocompletion=completion.targets,
    ),
]
Query = Annotated[str, typer.Argument(help="XPath 1.0: //MatMul, //Linear[@features=10].", metavar="XPATH")]
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
Strict = Annotated[
    bool, typer.Option("--strict/--no-strict", help="Whether a name that the model does not have is an error.")
]


def load_mox(model: str, inputs: list[str], values: list[str]) -> Mox:
    """Return the Mox of a command's model.

    Raises:
      InvalidArgument: there is no such model, it needs inputs that are not given, or it has no inputs whose values can
        be.
    """
    import jaxport
    from jaxport.export.failures import explaining
    from jaxport.export.specs import read_inputs
    from jaxport.stablehlo.program import is_stablehlo

    suffix = Path(model).suffix
    is_mox = suffix in (".json", ".yson", ".xml")
    given, known = [spec.value for spec in specs.parse_inputs(inputs)], parse_values(values)
    if not is_mox and (suffix == ".onnx" or model == "-" or (Path(model).exists() and not is_stablehlo(model))):
        return _of_file(model, read_inputs(given).args, known)
    if known:
        raise InvalidArgument(
            f"`{model}` is no ONNX file",
            where="`--value`",
            why="values replace inputs of an ONNX file",
            instead="let a function of your module call the model with these values",
        )
    if is_mox:
        return jaxport.mox.load(model)
    function = load_target(model)
    read = read_inputs(given or declared_inputs(function) or [])
    if not read.args:
        raise InvalidArgument(
            f"`{model}` needs inputs", where="the command line", instead='give them in order: `--input "B,3"`'
        )
    with explaining(model.partition(":")[2], function, read):
        return jaxport.make_mox(function)(*read.args)


def _of_file(model: str, args: Sequence[object], known: Mapping[str, object]) -> Mox:
    """Return the Mox of an ONNX file for some known inputs; what its open sizes have to be is told."""
    import jaxport
    from jaxport.importer.traced.assumptions import Assumptions, with_assumptions
    from jaxport.importer.traced.input_specs import input_specs, read_specs

    program = jaxport.from_onnx(model_file(model))
    names = [name for name in program.input_names if name not in known]
    given, values, constraints = read_specs(program, {**dict(zip(names, args, strict=False)), **known})
    if len(args) not in (0, len(names)):  # a wrong number of them, or optional inputs
        if not known:
            return jaxport.make_mox(program)(*args)
        raise InvalidArgument(
            f"the model has {counted(len(names), 'input')} without a value, and the sizes of {len(args)} are given",
            where="`--input`",
            instead=f"give those of {', '.join(f'`{name}`' for name in names)}, in this order, or none",
        )
    run = _with_known(program, known) if known else program

    def attempt(assumed: Assumptions) -> tuple[Mox, Assumptions]:
        arguments = input_specs(program, assumed, given, values) | values
        return jaxport.make_mox(run)(*(arguments[name] for name in names)), assumed

    mox, assumed = with_assumptions(attempt, Assumptions(constraints))
    for line in [] if settings.quiet else assumed.beyond(constraints).lines():
        typer.echo(line, err=True)
    return mox


def _with_known(program: Program, known: Mapping[str, object]) -> PythonFunction:
    """Return the program as a function of its other inputs, under its name and theirs."""
    left = {name: key for name, key in zip(program.input_names, program.keywords, strict=True) if name not in known}

    def run(*inputs: object) -> object:
        return program(**dict(zip(left, inputs, strict=True)), **known)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(key, kind) for key in left.values()])
    vars(run)["__signature__"] = signature
    run.__name__ = run.__qualname__ = type(program).__name__
    return run


def show_tree(
    model: Model,
    inputs: Inputs,
    values: Values,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, metavar="LEVELS", help="Show modules down to this level only.")
    ] = None,
) -> None:
    """Show a model as a tree of modules and equations."""
    mox = load_mox(model, inputs, values)
    tell(_tree(mox, depth) if settings.as_json else {}, str(mox if depth is None else mox.fold(depth)))


def _tree(mox: Mox, depth: int | None) -> dict[str, object]:
    """Return a Mox as nested values, one per node of its tree that is at most so deep."""
    inside: dict[Node | None, list[object]] = {None: []}
    levels: dict[Node | None, int] = {}
    for node in mox.tree.nodes:
        inside[node] = []
        levels[node] = levels.get(node.parent, 0) + 1
        if depth is None or levels[node] <= depth:
            inside[node.parent].append({**_values(node), "nodes": inside[node]})
    return {"name": mox.name, "nodes": inside[None]}


def _values(node: Node) -> dict[str, object]:
    equation = node.equation
    return {
        "type": node.type,
        "path": node.path,
        "inputs": [_short(variable.aval) for variable in equation.invars],
        "outputs": [_short(variable.aval) for variable in equation.outvars],
    }


def _short(aval: AbstractValue) -> str:
    return aval.str_short(short_dtypes=True)


def view(
    model: Model,
    inputs: Inputs,
    values: Values,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write; - is the standard output.")] = Path(
        "model.html"
    ),
) -> None:
    """Write a model as an HTML page.

    The page shows a collapsible tree that can be searched by text or XPath.
    """
    settings.file_is_output = output == STANDARD
    output_file(output)
    with written(output) as file:
        load_mox(model, inputs, values).show().save(file)
    tell({"written": str(output)}, f"{output}", brief="" if output == STANDARD else str(output))


def show_query(
    model: Model, query: Query, inputs: Inputs, values: Values, expect: Expected = None, strict: Strict = True
) -> None:
    """List the matches of a query.

    Each match is printed with its type, its path, and the shapes of its inputs and outputs. A name matches modules and
    operations: the title says how many of each.
    """
    selection = load_mox(model, inputs, values).select(query, expect=expect, strict=strict)
    rows = [(m.type, m.path, [*map(_short, m.in_avals)], [*map(_short, m.out_avals)]) for m in selection]
    modules = sum(match.block is not None and match.block.kind == "module" for match in selection)
    functions = sum(match.block is not None and match.block.kind != "module" for match in selection)
    others = len(rows) - modules - functions
    kinds = [
        counted(count, noun)
        for count, noun in ((modules, "module"), (functions, "function"), (others, "operation"))
        if count
    ]
    title = f"{query}: {counted(len(rows), 'match', 'matches')}" + (f" ({', '.join(kinds)})" if kinds else "")
    keys = ("type", "path", "inputs", "outputs")
    tell(
        [dict(zip(keys, row, strict=True)) for row in rows],
        table(title, keys, [(kind, path, ", ".join(taken), ", ".join(made)) for kind, path, taken, made in rows]),
    )


def show_account(model: Model, inputs: Inputs, values: Values) -> None:
    """Show what each block costs.

    The table lists calls, parameters, bytes, operations and activations.
    """
    from jaxport.mox import account
    from jaxport.mox.looking.account import Row

    costs = account(load_mox(model, inputs, values))
    names = [field.name for field in fields(Row)]
    rows = [[getattr(row, name) for name in names] for row in costs.rows]
    tell(costs.as_dict(), table("", names, rows, right=names[2:]))


def substitute(
    model: Model,
    query: Query,
    replacement: Annotated[str, typer.Argument(help="A function: jax.nn.gelu, my.module:function.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write; - is the standard output.")],
    inputs: Inputs,
    values: Values,
    expect: Expected = None,
    strict: Strict = True,
) -> None:
    """Replace the matches of a query with a function.

    The edited model is written as ONNX.
    """
    import jaxport

    settings.file_is_output = output == STANDARD
    output_file(output)
    mox = load_mox(model, inputs, values)
    selection = mox.select(query, expect=expect, strict=strict)
    edited = selection.sub(_function(replacement))
    exported = jaxport.to_onnx(edited, edited.jaxpr.in_avals[len(edited.weights) :])
    with written(output) as file:
        exported.save(file)
        size = file.stat().st_size
    name = "standard output" if output == STANDARD else str(output)
    tell(
        {"replaced": selection.count(), "of": len(mox.tree.nodes), "dropped": list(edited.dropped), "written": name},
        key_values(
            {
                "replaced": f"{selection.count():,} of {counted(len(mox.tree.nodes), 'operation')}",
                "dropped": ", ".join(edited.dropped) or "no parameters",
                "written": f"{name} ({file_size(size)})",
            }
        ),
        brief="" if output == STANDARD else name,
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

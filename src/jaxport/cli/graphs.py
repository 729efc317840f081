"""The commands that make an ONNX file of another: `optimize` and `extract`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from jaxport.cli import specs
from jaxport.cli.files import STANDARD, model_file, output_file, written
from jaxport.cli.tables import file_size, key_values, table, typed
from jaxport.cli.terminal.output import settings, tell
from jaxport.columns import counted
from jaxport.errors import InvalidArgument, VerificationFailed

if TYPE_CHECKING:
    import onnx_ir as ir
    from rich.table import Table

    from jaxport.cli.summary import Summary
    from jaxport.export.delivery.targets import TargetName
    from jaxport.export.exported import Exported
    from jaxport.importer.program import Program
    from jaxport.importer.traced.assumptions import Assumptions
    from jaxport.verify.report import Output

    Ends = Mapping[str, list[ir.Value]]
    """The values that a name stands for, by name."""

Model = Annotated[Path, typer.Argument(help="An ONNX file; - is the standard input.", metavar="MODEL")]
Written = Annotated[Path, typer.Option("--output", "-o", help="The file to write; - is the standard output.")]
Sizes = Annotated[
    list[str],
    typer.Option(
        "--size",
        default_factory=list,
        show_default=False,
        metavar="SIZES",
        help='Compare at these sizes of the dims that the model names: "batch=1,seq=8". May be repeated.',
    ),
]


def optimize(
    model: Model,
    output: Written,
    sizes: Sizes,
    destination: Annotated[
        Literal["onnx", "portable", "web", "openvino", "onnxruntime"],
        typer.Option("--target", help="Where the model will run."),
    ] = "onnx",
    seed: Annotated[int, typer.Option(help="The seed of the sampled inputs and sizes.")] = 0,
) -> None:
    """Optimize any ONNX file.

    The file is imported and exported again, with all graph passes. Both files are run on the same inputs; nothing is
    written if they differ. Inputs, outputs and parameters keep their names and types.
    """
    import jaxport
    from jaxport.cli.summary import summarize

    settings.file_is_output = output == STANDARD
    output_file(output)
    path = model_file(model)
    program = jaxport.from_onnx(path)
    exported = _again(program, destination)
    compared = _compared(program, exported, specs.parse_sizes(sizes), seed)
    wrong = [each for each in compared if not each.ok]
    if wrong:
        raise VerificationFailed(
            f"`{output}` was not written",
            where=f"the output `{wrong[0].name}`",
            why=f"the optimized model differs from the file: {wrong[0].difference.problem}",
            instead="report it, with the file if you may share it",
        )
    before = summarize(path)
    with written(output) as file:
        exported.save(file)
        after = summarize(file)
    worst = max((each.difference.relative for each in compared), default=0.0)
    name = "standard output" if output == STANDARD else str(output)
    at = [", ".join(f"{size}={length}" for size, length in each.sizes.items()) for each in compared]
    tell(
        {
            "written": name,
            "before": _figures(before),
            "after": _figures(after),
            "compared": [
                {"output": o.name, "sizes": dict(o.sizes), "relative": o.difference.relative} for o in compared
            ],
        },
        _before_and_after(before, after),
        key_values(
            {
                "written": f"{name} ({file_size(after.file_bytes)})",
                "compared": f"largest relative difference {worst:.2g}"
                + (f", at {'; '.join(dict.fromkeys(at))}" if any(at) else ""),
            }
        ),
        brief="" if output == STANDARD else name,
    )


def _again(program: Program, target: TargetName) -> Exported:
    """Export a program with the inputs, outputs and names of its file."""
    import jax

    import jaxport
    from jaxport.importer.traced.assumptions import with_assumptions
    from jaxport.importer.traced.input_specs import input_specs

    if program.static_inputs:
        raise InvalidArgument(
            f"the values of the input `{program.static_inputs[0]}` decide shapes",
            where=f"`{program.name}`",
            why="an export needs to know the shapes",
            instead="make the input a constant of the file first",
        )

    def attempt(assumed: Assumptions) -> Exported:
        with jax.enable_x64(True):
            inputs = list(input_specs(program, assumed).values())
        return jaxport.to_onnx(
            program,
            inputs,
            input_names=program.input_names,
            output_names=program.output_names,
            double_precision=True,
            target=target,
            name=program.name or None,
        )

    return with_assumptions(attempt)


def _compared(program: Program, exported: Exported, sizes: list[dict[str, int]] | None, seed: int) -> list[Output]:
    """Run the model of a program and an export of it on the same inputs, and compare."""
    from jaxport.export.delivery.runtime import as_written
    from jaxport.verify.importing import Comparison
    from jaxport.verify.running import Sampling

    comparison = Comparison(program)
    session = as_written(exported.model)
    return [
        output
        for run in comparison.runs(None, Sampling(sizes, seed=seed))
        for output in comparison.compared(run, comparison.expected(run), session.run(run.arrays))
    ]


def _figures(summary: Summary) -> dict[str, object]:
    return {
        "nodes": sum(summary.operators.values()),
        "operators": summary.operators,
        "opsets": summary.opsets,
        "file_bytes": summary.file_bytes,
        "weight_bytes": summary.weight_bytes,
    }


def _before_and_after(before: Summary, after: Summary) -> Table:
    names = sorted({*before.operators, *after.operators})
    rows: list[tuple[str, object, object]] = [
        (name, was, now)
        for name in names
        if (was := before.operators.get(name, 0)) != (now := after.operators.get(name, 0))
    ]
    rows = [
        ("file", file_size(before.file_bytes), file_size(after.file_bytes)),
        ("opset", before.opsets.get("ai.onnx", 0), after.opsets.get("ai.onnx", 0)),
        ("nodes", sum(before.operators.values()), sum(after.operators.values())),
        *rows,
    ]
    return table("", ["", "before", "after"], rows)


def extract(
    model: Model,
    output: Written,
    begins: Annotated[
        list[str],
        typer.Option(
            "--from",
            default_factory=list,
            show_default=False,
            metavar="NAME",
            help="Where the part begins: a tensor, or a module whose inputs are meant. Default: the inputs of the "
            "model.",
        ),
    ],
    ends: Annotated[
        list[str],
        typer.Option(
            "--to",
            default_factory=list,
            show_default=False,
            metavar="NAME",
            help="Where it ends: a tensor, or a module whose outputs are meant. Default: the outputs of the model.",
        ),
    ],
) -> None:
    """Write a part of an ONNX file.

    The part lies between tensors or modules, which may be repeated: --from encoder.layers.0 --to encoder.layers.3. Of a
    module that is called several times, all calls are meant. The names of modules are those that "jaxport inspect"
    shows.
    """
    import onnx_ir as ir

    import jaxport
    from jaxport import saving
    from jaxport.cli.summary import summarize

    settings.file_is_output = output == STANDARD
    output_file(output)
    if not begins and not ends:
        raise InvalidArgument("the whole model is not a part", where="`--from`, `--to`", instead="give one of the two")
    path = model_file(model)
    program = jaxport.from_onnx(path)
    whole = program.model
    entering, leaving = _ends(program)
    inputs = _named(begins, entering, "--from") if begins else [*program.inputs]
    outputs = _named(ends, leaving, "--to") if ends else list(whole.graph.outputs)
    inputs = _reached(inputs, outputs)
    _with_types(whole, [*inputs, *outputs], path)
    try:
        graph = ir.convenience.extract(whole.graph, inputs, outputs)
    except ValueError as error:
        raise InvalidArgument(
            "these names do not bound a part of the model",
            where="`--from`, `--to`",
            why=str(error),
            instead="name every tensor that enters the part; without `--from`, it begins at the inputs of the model",
        ) from error
    part = ir.Model(
        graph,
        ir_version=whole.ir_version,
        producer_name="jaxport",
        functions=list(whole.functions.values()),
    )
    part.graph.opset_imports.update(whole.opset_imports)

    with written(output) as file:
        saving.save(part, file)
        summary = summarize(file)
    name = "standard output" if output == STANDARD else str(output)
    nodes, all_nodes = sum(summary.operators.values()), sum(1 for _ in whole.graph.all_nodes())
    tell(
        {
            "written": name,
            "inputs": [tensor.name for tensor in summary.inputs],
            "outputs": [tensor.name for tensor in summary.outputs],
            "nodes": nodes,
            "of": all_nodes,
        },
        key_values(
            {
                "written": f"{name} ({file_size(summary.file_bytes)})",
                "inputs": ", ".join(map(typed, summary.inputs)),
                "outputs": ", ".join(map(typed, summary.outputs)),
                "nodes": f"{nodes:,} of {counted(all_nodes, 'node')}",
            }
        ),
        brief="" if output == STANDARD else name,
    )


def _ends(program: Program) -> tuple[Ends, Ends]:
    """Return the values that enter and that leave what a name stands for: a tensor itself, or a module.

    Of a module that is called several times, those that none of its calls makes, and those that none of them needs.
    """
    from jaxport.importer.segments import calls_of_modules, segments

    graph = program.model.graph
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    entering: dict[str, list[ir.Value]] = {value.name: [value] for value in values if value.name}
    leaving = dict(entering)
    own = set(values)
    items = segments(program.body, program.places, {*program.weights.initializers.values()})
    for path, calls in calls_of_modules(items).items():
        # Those in a branch or in a function are not part of the graph.
        whole = [call for call in calls if own.issuperset(call.inputs) and own.issuperset(call.outputs)]
        taken = list(dict.fromkeys(value for call in whole for value in call.inputs))
        made = list(dict.fromkeys(value for call in whole for value in call.outputs))
        if len(whole) > 1:
            needed, after = _before(taken), set(made)
            for node in graph:
                after.update(node.outputs if not after.isdisjoint(_read(node)) else ())
            taken, made = [v for v in taken if v not in after], [v for v in made if v not in needed]
        if whole:
            entering.setdefault(path, taken)
            leaving.setdefault(path, made)
    return entering, leaving


def _read(node: ir.Node) -> Iterable[ir.Value]:
    """Yield the values that a node reads, those that its branches take from outside too."""
    import onnx_ir as ir

    made: set[ir.Value] = set()
    pending = [node]
    while pending:
        current = pending.pop(0)
        for value in current.inputs:
            if value is not None and value not in made:
                yield value
        made.update(current.outputs)
        for attribute in current.attributes.values():
            graphs = (
                [attribute.as_graph()]
                if attribute.type == ir.AttributeType.GRAPH
                else attribute.as_graphs()
                if attribute.type == ir.AttributeType.GRAPHS
                else []
            )
            for graph in graphs:
                made.update((*graph.inputs, *graph.initializers.values()))
                pending += list(graph)


def _named(names: Collection[str], known: Ends, option: str) -> list[ir.Value]:
    import difflib

    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            raise InvalidArgument(
                f"the model has neither a tensor nor a module `{name}`",
                where=f"`{option}`",
                why=f"it has {', '.join(f'`{other}`' for other in near)}" if near else "",
                instead="`jaxport inspect` lists the modules",
            )
    return list(dict.fromkeys(value for name in names for value in known[name]))


def _reached(inputs: list[ir.Value], outputs: list[ir.Value]) -> list[ir.Value]:
    """Return the inputs that the outputs depend on."""
    before = _before(outputs, inputs)
    return [value for value in inputs if value in before]


def _before(values: Iterable[ir.Value], ends: Collection[ir.Value] = ()) -> set[ir.Value]:
    """Return the values that others are computed of, and these themselves, back to the `ends`."""
    pending, seen = list(values), set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is not None and value not in ends:
            pending += _read(node)
    return seen


def _with_types(model: ir.Model, values: Iterable[ir.Value], path: Path) -> None:
    """Infer the types of values that the file does not declare.

    Raises:
      InvalidArgument: a type cannot be inferred.
    """
    values = list(values)
    if all(value.type is not None and value.shape is not None for value in values):
        return
    import onnx_ir as ir
    from onnx_ir.passes.common import ShapeInferencePass

    inferred = model.clone()
    ShapeInferencePass(check_type=False)(inferred)
    found = ir.convenience.create_value_mapping(inferred.graph, include_subgraphs=False)
    for value in values:
        other = found.get(value.name or "")
        if other is not None:
            value.type, value.shape = value.type or other.type, value.shape or other.shape
        if value.type is None:
            raise InvalidArgument(
                f"the type of `{value.name}` is not known",
                where=f"`{path}`",
                why="the file does not declare it, and it cannot be inferred",
                instead="name another tensor",
            )

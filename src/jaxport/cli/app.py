"""The commands: each converts its options into arguments of the Python API, calls it, and prints the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from jaxport import __version__
from jaxport.cli import specs
from jaxport.cli.comparing import report_values, show_difference
from jaxport.cli.decoders import DecoderOption, parse_decoder
from jaxport.cli.files import STANDARD, as_given, model_file, output_file, output_folder, written
from jaxport.cli.graphs import extract, optimize
from jaxport.cli.importing import import_model, run_model
from jaxport.cli.programs import show_account, show_query, show_tree, substitute, view
from jaxport.cli.reporting import reporting
from jaxport.cli.tables import file_size, key_values, nodes_of, summary_view, typed
from jaxport.cli.targets import declared_inputs, inputs_of_file, load_target
from jaxport.cli.terminal import completion
from jaxport.cli.terminal.output import command, remark, settings, tell
from jaxport.columns import counted
from jaxport.errors import InvalidArgument, VerificationFailed

if TYPE_CHECKING:
    from jaxport.export.delivery.targets import TargetName
    from jaxport.export.exported import Exported
    from jaxport.jaxprs import Parameters, PythonFunction
    from jaxport.verify import Report

# Plain help: the boxes of rich cut words off in a terminal of 80 columns.
app = typer.Typer(
    cls=completion.Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_TARGET_HELP = (
    "module:attribute: a model object, a function, a class or a function without parameters (both are called), "
    "or a call such as models:resnet(depth=50)."
)
_DESTINATION_HELP = (
    'Where the model will run: "onnx", "portable", "web", "webgpu", "edge" (small devices), "openvino", '
    '"onnxruntime" or "genai".'
)
_DECODER_HELP = (
    "Export one step of a language model (instead of --input), as a folder for onnxruntime-genai: "
    '"layers=2,kv_heads=2,head_size=8", with context_length and eos_token_id; also cache=static, position_ids=False. '
    'With --encoder: "layers=2,heads=4,head_size=8,encoder_length=1500".'
)
_ENCODER_HELP = (
    "The encoder that the decoder attends to, as MODULE:ATTRIBUTE; --input then describes the encoder's input."
)
_PRECISION_HELP = (
    'The precision of the weights: "float16", "bfloat16", "int8-dynamic", "int4", or "int4,group=64,symmetric=True"; '
    '"int8" needs data and is available only from Python.'
)
_INPUT_HELP = 'One input, in the order of the arguments: "B,224,224,3", "ids:int32[B,T]", "scale:float32[]".'
_INPUT_PARAM_HELP = 'A keyword argument that becomes an input: "mask:bool[B,T]"; "train:bool" is a Python flag.'
_FUNCTION_HELP = "A block whose calls become an ONNX function: flax.nnx.Linear."
_WEIGHTS_HELP = (
    'How weights are stored: "constants", "inputs", or a pattern such as "layers.*.kernel" for paths that '
    "become inputs."
)
_CONSTRAINT_HELP = 'A constraint on the symbolic dims: "T >= 2".'
_RTOL_HELP = "The relative tolerance of an element; by default that of its dtype."
_ATOL_HELP = "The absolute tolerance of an element; by default that of the dtype for the largest element."
_SIZE_HELP = 'Compare at these sizes of the symbolic dims: "B=1,T=8". May be repeated.'
_AVOID_HELP = 'Integers not to sample for an input: "ids=0". May be repeated.'


def _option(*names: str, metavar: str, text: str) -> object:
    """An option that may be repeated; its default is the empty list."""
    return typer.Option(*names, default_factory=list, show_default=False, metavar=metavar, help=text)


Target = Annotated[
    str, typer.Argument(help=_TARGET_HELP, metavar="MODULE:ATTRIBUTE", autocompletion=completion.targets)
]
Destination = Literal["onnx", "portable", "web", "webgpu", "edge", "openvino", "onnxruntime", "genai"]
Inputs = Annotated[list[str], _option("--input", "-i", metavar="SPEC", text=_INPUT_HELP)]
InputParams = Annotated[list[str], _option("--input-param", metavar="SPEC", text=_INPUT_PARAM_HELP)]
Statics = Annotated[list[str], _option("--static", metavar="NAME=VALUE", text="A keyword argument that is baked in.")]
Sizes = Annotated[list[str], _option("--size", metavar="SIZES", text=_SIZE_HELP)]
Avoid = Annotated[list[str], _option("--avoid", metavar="NAME=VALUES", text=_AVOID_HELP)]
OutputNames = Annotated[list[str], _option("--output-name", metavar="NAME", text="A name for each output, in order.")]
NchwInputs = Annotated[
    list[int], _option("--nchw-input", metavar="INDEX", text="An input that the graph takes as NCHW.")
]
NchwOutputs = Annotated[
    list[int], _option("--nchw-output", metavar="INDEX", text="An output that the graph returns as NCHW.")
]
Functions = Annotated[list[str], _option("--function", metavar="BLOCK", text=_FUNCTION_HELP)]
Constraints = Annotated[list[str], _option("--constraint", metavar="FACT", text=_CONSTRAINT_HELP)]
DoublePrecision = Annotated[bool, typer.Option("--double-precision", help="Trace with 64-bit types.")]
State = Annotated[
    Literal["refuse", "outputs", "discard"], typer.Option(help="How to treat state that the call changes.")
]
Nonfinite = Annotated[
    Literal["runtime", "exact", "ignore"],
    typer.Option(
        help="NaN and infinities: as the runtime's max pools and recurrent layers treat them, exactly as in JAX, or "
        "with the promise that nothing is NaN."
    ),
]
Checks = Annotated[
    Literal["discard", "refuse"],
    typer.Option(help="How to treat checks that raise Python errors, such as `equinox.error_if`."),
]
PerBlock = Annotated[
    bool, typer.Option("--per-block", help="Also measure the difference of each block, which exports the model again.")
]
RelativeTolerance = Annotated[float | None, typer.Option("--rtol", help=_RTOL_HELP)]
AbsoluteTolerance = Annotated[float | None, typer.Option("--atol", help=_ATOL_HELP)]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxport {__version__}")
        raise typer.Exit


@app.callback()
def jaxport(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The bridge between JAX and ONNX."""


_COMPARING = ("verify", "per_block")


@command(app, "export", needs=dict.fromkeys(("sizes", "avoid", "rtol", "atol"), _COMPARING))
def export(
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write; - is the standard output.")],
    inputs: Inputs,
    input_params: InputParams,
    statics: Statics,
    constraints: Constraints,
    output_names: OutputNames,
    nchw_inputs: NchwInputs,
    nchw_outputs: NchwOutputs,
    functions: Functions,
    sizes: Sizes,
    avoid: Avoid,
    opset: Annotated[
        int | None,
        typer.Option(
            help="The operator set, 13 or newer; by default the lowest from 18 on that can say what the model means."
        ),
    ] = None,
    destination: Annotated[Destination, typer.Option("--target", help=_DESTINATION_HELP)] = "onnx",
    decoder: Annotated[str | None, typer.Option(metavar="NAME=VALUE[,NAME=VALUE]", help=_DECODER_HELP)] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="MODULE:ATTRIBUTE", help=_ENCODER_HELP, autocompletion=completion.targets)
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar="NAME[,OPTION=VALUE]", help=_PRECISION_HELP, autocompletion=completion.precisions),
    ] = None,
    border: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option("--io", help="The dtype that replaces float32 in inputs and outputs."),
    ] = None,
    double_precision: DoublePrecision = False,
    weights: Annotated[str, typer.Option(metavar="WHICH", help=_WEIGHTS_HELP)] = "constants",
    state: State = "refuse",
    nonfinite: Nonfinite = "runtime",
    checks: Checks = "discard",
    unroll_scans: Annotated[
        int | None, typer.Option(metavar="STEPS", help="Unroll scans of at most this many steps; 0 keeps all loops.")
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--single-file", help="Write the weights to a separate file; by default only above 2 GB."
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Run both sides and compare before writing.")] = False,
    per_block: PerBlock = False,
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    explain: Annotated[bool, typer.Option("--explain", help="List each equation with its rule and nodes.")] = False,
    report_file: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write what a bug report needs as Markdown, also of a refusal: versions, the program, the error, "
            "--explain.",
        ),
    ] = None,
) -> None:
    """Export a JAX callable to an ONNX file."""
    import jaxport

    settings.file_is_output = output == STANDARD
    (output_folder if decoder else output_file)(output)
    if settings.file_is_output and external_data:
        raise InvalidArgument(
            "the standard output takes one file",
            where="`--external-data`",
            instead="name a file: `--output model.onnx`, or leave `--external-data` out",
        )
    positional, keywords = specs.parse_inputs(inputs), specs.parse_input_params(input_params)
    step = parse_decoder(decoder, encoder, destination, bool(positional))
    function = load_target(target)
    shapes, names = [spec.value for spec in positional], specs.input_names(positional, keywords)
    if not positional and not step:
        shapes = declared_inputs(function) or []
    keyword_inputs = {name: spec.value for name, spec in keywords.items()}
    shared: Parameters = {
        "double_precision": double_precision,
        "opset": opset,
        "target": "genai" if step else destination,
        "precision": specs.parse_precision(precision),
        "io": border,
        "weights": weights,
        "state": state,
        "nonfinite": nonfinite,
        "checks": checks,
        "unroll_scans": unroll_scans,
    }
    with reporting(report_file, target, function, step.inputs if step else shapes, keyword_inputs) as report:
        exported = jaxport.to_onnx(
            function,
            step.inputs if step else shapes,
            input_params=keyword_inputs,
            static_params=specs.parse_keyword(statics, "--static"),
            input_names=None if step else names,
            output_names=output_names or None,
            inputs_as_nchw=nchw_inputs,
            outputs_as_nchw=nchw_outputs,
            functions=functions or None,
            constraints=constraints,
            **shared,
        )
        before = None
        if step and step.encoder:
            before = jaxport.to_onnx(load_target(step.encoder), shapes, input_names=names, **shared)
        models = [model for model in (before, exported) if model is not None]
        explained = "\n\n".join(str(model.explain()) for model in models)
        report.explained = explained
        if explain and not settings.as_json:
            tell({}, explained)
        comparisons = []
        if verify or per_block:
            own: Parameters = {"sizes": specs.parse_sizes(sizes), "avoid": specs.parse_avoided(avoid)}
            for model in models:
                compared = model.verify(
                    rtol=rtol, atol=atol, check=False, per_block=per_block, **({} if model is before else own)
                )
                comparisons.append(compared)
                report.compared += f"{compared}\n"
                remark(str(compared))
                if not compared.ok:
                    raise VerificationFailed(
                        f"`{output}` was not written", why="the exported model and the function differ"
                    )
    _save(exported, before, step, output, external_data, comparisons, explained if explain else None)


def _save(
    exported: Exported,
    before: Exported | None,
    step: DecoderOption | None,
    output: Path,
    external_data: bool | None,
    comparisons: Sequence[Report],
    explained: str | None,
) -> None:
    """Write what was exported, and print what it is."""
    from jaxport.cli.summary import summarize

    with written(output) as file:
        if step:
            file = step.save(exported, before, file, external_data)
        else:
            exported.save(file, external_data=external_data)
        summary = summarize(file)
    name = "standard output" if output == STANDARD else str(file)
    rows = {
        "written": f"{name} ({file_size(summary.file_bytes)})",
        "inputs": ", ".join(map(typed, summary.inputs)),
        "outputs": ", ".join(map(typed, summary.outputs)),
        "nodes": nodes_of(summary),
        "weights": f"{counted(summary.element_count, 'element')}, {file_size(summary.weight_bytes)}",
        "needs": str(exported.requirements).splitlines()[0],
    }
    if before is not None:
        rows["beside it"] = "encoder_model.onnx, genai_config.json"
    values = {"written": name, **dataclasses.asdict(summary), "file": name, "needs": rows["needs"]}
    if comparisons:
        values["compared"] = [report_values(report) for report in comparisons]
    if explained is not None:
        values["explained"] = explained
    tell(values, key_values(rows), brief="" if output == STANDARD else name)


@command(app, "inspect")
def inspect(
    model: Annotated[Path, typer.Argument(help="An ONNX file; - is the standard input.", metavar="MODEL")],
    everything: Annotated[bool, typer.Option("--all", help="List every initializer.")] = False,
) -> None:
    """Show the contents of an ONNX file.

    These are its inputs, outputs, sizes, operators and modules.
    """
    from jaxport.cli.summary import summarize

    summary = summarize(model_file(model))
    summary = dataclasses.replace(summary, file=as_given(summary.file))
    tell(dataclasses.asdict(summary), summary_view(summary, everything=everything))


@command(app, "verify")
def verify(
    model: Annotated[Path, typer.Argument(help="An ONNX file; - is the standard input.", metavar="MODEL")],
    target: Target,
    inputs: Inputs,
    input_params: InputParams,
    statics: Statics,
    constraints: Constraints,
    nchw_inputs: NchwInputs,
    nchw_outputs: NchwOutputs,
    sizes: Sizes,
    avoid: Avoid,
    double_precision: DoublePrecision = False,
    state: State = "refuse",
    per_block: PerBlock = False,
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    seed: Annotated[int, typer.Option(help="The seed of the sampled inputs and sizes.")] = 0,
) -> None:
    """Compare an ONNX file with the JAX callable it came from.

    Without inputs, they are those that the callable or the file declares. The status is 1 if they differ.
    """
    from jaxport.verify import verify_file

    path = model_file(model)
    function = load_target(target)
    keywords = {name: spec.value for name, spec in specs.parse_input_params(input_params).items()}
    positional = [spec.value for spec in specs.parse_inputs(inputs)]
    if not positional and not keywords:
        positional = declared_inputs(function) or inputs_of_file(path)
    signature: Parameters = {
        "input_params": keywords,
        "static_params": specs.parse_keyword(statics, "--static"),
        "constraints": constraints,
        "inputs_as_nchw": nchw_inputs,
        "outputs_as_nchw": nchw_outputs,
        "double_precision": double_precision,
        "state": state,
    }
    runs: Parameters = {
        "sizes": specs.parse_sizes(sizes),
        "rtol": rtol,
        "atol": atol,
        "avoid": specs.parse_avoided(avoid),
        "seed": seed,
        "check": False,
    }
    report = verify_file(path, function, positional, **signature, **runs)
    if per_block:
        again = exported_like(path, function, positional, signature)
        report = dataclasses.replace(report, blocks=again.verify(per_block=True, **runs).blocks)
    tell(report_values(report), str(report), brief=str(report).partition("\n")[0])
    if not report.ok:
        raise typer.Exit(1)


def exported_like(path: Path, function: PythonFunction, inputs: list[object], signature: Parameters) -> Exported:
    """Export a callable as a file was exported: for its target, and in its precision."""
    import jaxport
    from jaxport.cli.summary import load_model

    recorded = load_model(path).metadata_props
    return jaxport.to_onnx(
        function,
        inputs,
        target=cast("TargetName", recorded.get("jaxport.target", "onnx")),  # which `to_onnx` checks
        precision=specs.parse_precision(recorded.get("jaxport.precision")),
        **signature,
    )


command(
    app,
    "import",
    needs={"rtol": ["verify"], "atol": ["verify"], "sizes": ["verify", "of_torch"]},
    unless=dict.fromkeys(("rtol", "atol", "strict"), "of_torch"),
)(import_model)
command(app, "run")(run_model)
command(app, "optimize")(optimize)
command(app, "diff")(show_difference)
command(app, "extract")(extract)
command(app, "tree")(show_tree)
command(app, "view")(view)
command(app, "query")(show_query)
command(app, "sub")(substitute)
command(app, "account")(show_account)


def _commands() -> list[str]:
    return [str(registered.name) for registered in app.registered_commands]


@app.command("help", cls=completion.Command)
def show_help(
    name: Annotated[str | None, typer.Argument(metavar="COMMAND", help="A command.", autocompletion=_commands)] = None,
) -> None:
    """Show the options of a command."""
    app(args=["--help"] if name is None else [name, "--help"], prog_name="jaxport")


def options_of(words: Sequence[str]) -> frozenset[str]:
    """Return the options of the command that a command line runs.

    >>> "--static" in options_of(["export", "m:f"]), "--static" in options_of(["inspect", "m.onnx"])
    (True, False)
    """
    commands: Any = getattr(typer.main.get_command(app), "commands", {})
    chosen = next((commands[word] for word in words if word in commands), None)
    if chosen is None:
        return frozenset()
    return frozenset(name for parameter in chosen.params for name in (*parameter.opts, *parameter.secondary_opts))

"""The commands: each converts its options into arguments of the Python API, calls it, and prints the result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jaxport import __version__
from jaxport.cli import specs
from jaxport.cli.decoders import parse_decoder
from jaxport.cli.importing import import_model, run_model
from jaxport.cli.programs import show_account, show_query, show_tree, substitute, view
from jaxport.cli.summary import summarize
from jaxport.cli.tables import console, file_size, key_values, summary_view
from jaxport.cli.targets import load_target
from jaxport.errors import VerificationFailed
from jaxport.phases import progress

if TYPE_CHECKING:
    from jaxport.jaxprs import Parameters

__all__ = ["app"]

# Plain help: the boxes of rich cut words off in a terminal of 80 columns.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

_TARGET_HELP = (
    "module:attribute: a model object, a function, a class or a function without parameters (both are called), "
    "or a call such as models:resnet(depth=50)."
)
_DESTINATION_HELP = 'Where the model will run: "onnx", "portable", "web", "openvino", "onnxruntime" or "genai".'
_DECODER_HELP = (
    "Export one step of a language model (instead of --input), as a folder for onnxruntime-genai: "
    '"layers=2,kv_heads=2,head_size=8,…", with context_length and eos_token_id; also cache=static, position_ids=False. '
    'With --encoder: "layers=2,heads=4,head_size=8,encoder_length=1500,…".'
)
_ENCODER_HELP = (
    "The encoder that the decoder attends to, as MODULE:ATTRIBUTE; --input then describes the encoder's input."
)
_PRECISION_HELP = (
    'The precision of the weights: "float16", "bfloat16", "int8-dynamic", "int4", or "int4,group=64,symmetric=True"; '
    '"int8" needs data and is available only from Python.'
)
_INPUT_HELP = 'One input, in the order of the arguments: "B,224,224,3", "ids:int32[B,T]", "scale:float32[]".'
_INPUT_PARAM_HELP = 'A keyword argument that becomes an input: "mask:bool[B,T]".'
_FUNCTION_HELP = "A block whose calls become an ONNX function: flax.nnx.Linear."
_WEIGHTS_HELP = 'How weights are stored: "constants", "inputs", or a pattern such as "layers.*.kernel" for paths that become inputs.'
_CONSTRAINT_HELP = 'A constraint on the symbolic dims: "T >= 2".'
_RTOL_HELP = "The relative tolerance of an element; by default that of its dtype."
_ATOL_HELP = "The absolute tolerance of an element; by default that of the dtype for the largest element."
_SIZE_HELP = 'Compare at these sizes of the symbolic dims: "B=1,T=8". May be repeated.'
_AVOID_HELP = 'Integers not to sample for an input: "ids=0". May be repeated.'


def _option(*names: str, metavar: str, text: str) -> Any:
    """An option that may be repeated; its default is the empty list."""
    return typer.Option(*names, default_factory=list, show_default=False, metavar=metavar, help=text)


Target = Annotated[str, typer.Argument(help=_TARGET_HELP, metavar="MODULE:ATTRIBUTE")]
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
    Literal["runtime", "exact"],
    typer.Option(
        help="How max pooling and recurrent layers treat NaN: as the runtime's operators do, or exactly as JAX does."
    ),
]
Checks = Annotated[
    Literal["discard", "refuse"],
    typer.Option(help="How to treat checks that raise Python errors, such as `equinox.error_if`."),
]
RelativeTolerance = Annotated[float | None, typer.Option("--rtol", help=_RTOL_HELP)]
AbsoluteTolerance = Annotated[float | None, typer.Option("--atol", help=_ATOL_HELP)]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxport {__version__}")
        raise typer.Exit


@app.callback()
def jaxport(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The bridge between JAX and ONNX."""
    context.with_resource(progress())


@app.command()
def export(
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
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
    opset: Annotated[int | None, typer.Option(help="The operator set; by default that of the target.")] = None,
    destination: Annotated[str, typer.Option("--target", metavar="NAME", help=_DESTINATION_HELP)] = "onnx",
    decoder: Annotated[str | None, typer.Option(metavar="NAME=VALUE,…", help=_DECODER_HELP)] = None,
    encoder: Annotated[str | None, typer.Option(metavar="MODULE:ATTRIBUTE", help=_ENCODER_HELP)] = None,
    precision: Annotated[str | None, typer.Option(metavar="NAME[,OPTION=VALUE…]", help=_PRECISION_HELP)] = None,
    border: Annotated[
        str | None, typer.Option("--io", metavar="DTYPE", help="The dtype that replaces float32 in inputs and outputs.")
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
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    explain: Annotated[bool, typer.Option("--explain", help="List each equation with its rule and nodes.")] = False,
) -> None:
    """Export a JAX callable to an ONNX file."""
    import jaxport

    positional, keywords = specs.parse_inputs(inputs), specs.parse_input_params(input_params)
    step = parse_decoder(decoder, encoder, destination, bool(positional))
    shapes, names = [spec.value for spec in positional], specs.input_names(positional, keywords)
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
    exported = jaxport.to_onnx(
        load_target(target),
        step.inputs if step else shapes,
        input_params={name: spec.value for name, spec in keywords.items()},
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
    if explain:
        typer.echo("\n\n".join(str(model.explain()) for model in models))
    if verify:
        own: Parameters = {"sizes": specs.parse_sizes(sizes), "avoid": specs.parse_avoided(avoid)}
        for model in models:
            report = model.verify(rtol=rtol, atol=atol, check=False, **({} if model is before else own))
            typer.echo(str(report))
            if not report.ok:
                raise VerificationFailed(
                    f"`{output}` was not written", why="the exported model and the function differ"
                )
    if step:
        output = step.save(exported, before, output, external_data)
    else:
        exported.save(output, external_data=external_data)
    summary = summarize(output)
    nodes = sum(summary.operators.values())
    rows = {
        "written": f"{output} ({file_size(summary.file_bytes)})",
        "inputs": ", ".join(tensor.name for tensor in summary.inputs),
        "outputs": ", ".join(tensor.name for tensor in summary.outputs),
        "nodes": f"{nodes:,} of {len(summary.operators)} operators",
        "weights": f"{summary.element_count:,} elements, {file_size(summary.weight_bytes)}",
        "needs": str(exported.requirements).splitlines()[0],
    }
    if before is not None:
        rows["beside it"] = "encoder_model.onnx, genai_config.json"
    console().print(key_values(rows))


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    everything: Annotated[bool, typer.Option("--all", help="List every initializer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Show the contents of an ONNX file.

    These are its inputs, outputs, sizes, operators and modules.
    """
    summary = summarize(model)
    if as_json:
        # JSON's writer escapes all controls but one.
        typer.echo(json.dumps(dataclasses.asdict(summary), indent=2).replace("\x7f", "\\u007f"))
    else:
        console().print(summary_view(summary, everything=everything))


@app.command()
def verify(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
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
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    seed: Annotated[int, typer.Option(help="The seed of the sampled inputs and sizes.")] = 0,
) -> None:
    """Compare an ONNX file with the JAX callable it came from.

    The status is 1 if they differ.
    """
    from jaxport.verify import verify_file

    report = verify_file(
        model,
        load_target(target),
        [spec.value for spec in specs.parse_inputs(inputs)],
        input_params={name: spec.value for name, spec in specs.parse_input_params(input_params).items()},
        static_params=specs.parse_keyword(statics, "--static"),
        constraints=constraints,
        inputs_as_nchw=nchw_inputs,
        outputs_as_nchw=nchw_outputs,
        double_precision=double_precision,
        state=state,
        sizes=specs.parse_sizes(sizes),
        rtol=rtol,
        atol=atol,
        avoid=specs.parse_avoided(avoid),
        seed=seed,
        check=False,
    )
    typer.echo(str(report))
    if not report.ok:
        raise typer.Exit(1)


app.command("import")(import_model)
app.command("run")(run_model)
app.command("tree")(show_tree)
app.command("view")(view)
app.command("query")(show_query)
app.command("sub")(substitute)
app.command("account")(show_account)

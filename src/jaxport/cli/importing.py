"""The commands for ONNX models as input: `import` and `run`."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.text import Text

from jaxport.cli import specs
from jaxport.cli.tables import console, file_size, key_values, table
from jaxport.errors import InvalidArgument, VerificationFailed
from jaxport.verify.importing import Comparison
from jaxport.verify.report import Report

if TYPE_CHECKING:
    import jax

    from jaxport.importer.program import Program
    from jaxport.jaxprs import Parameters, PythonFunction, PyTree

__all__ = ["import_model", "parse_shapes", "parse_values", "run_model"]

Model = Annotated[Path, typer.Argument(help="An ONNX file.", metavar="MODEL")]
Values = Annotated[
    list[str],
    typer.Option(
        "--value",
        default_factory=list,
        show_default=False,
        metavar="NAME=VALUE",
        help="An input's value: `shape=[2,3]`, or a file: `x=x.npy`. Inputs that shapes depend on need one.",
    ),
]
Sizes = Annotated[
    list[str],
    typer.Option(
        "--size",
        default_factory=list,
        show_default=False,
        metavar="SIZES",
        help='Run at these sizes of the dims that the model has names for: "batch=1,seq=8". May be repeated.',
    ),
]
RelativeTolerance = Annotated[float | None, typer.Option("--rtol", help="The relative tolerance of an element.")]
AbsoluteTolerance = Annotated[float | None, typer.Option("--atol", help="The absolute tolerance of an element.")]
Seed = Annotated[int, typer.Option(help="The seed of the sampled inputs and sizes.")]


Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        default_factory=list,
        show_default=False,
        metavar="NAME:SIZES",
        help='The sizes of an input, in place of those that the file declares: "images:B,3,32*H,32*W".',
    ),
]


def import_model(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    inputs: Inputs,
    values: Values,
    sizes: Sizes,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with ONNX Runtime before writing.")] = False,
    dump: Annotated[
        bool, typer.Option("--dump", help="Write the graph after each phase of the import into OUTPUT/phases.")
    ] = False,
    framework: Annotated[
        str,
        typer.Option(
            "--framework",
            help="What to print: `jax`, one function; `nnx` or `equinox`, classes; `burn`, a Rust crate.",
        ),
    ] = "jax",
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse attributes that operators do not define, even where ONNX Runtime ignores them."
        ),
    ] = False,
) -> None:
    """Turn an ONNX file into JAX source code and a weights file."""
    import jaxport

    program = jaxport.from_onnx(model, strict=strict)
    known = parse_values(values)
    described = {**known, **parse_shapes(inputs, program)}
    if dump:
        folder = output / "phases"
        folder.mkdir(parents=True, exist_ok=True)
        for number, phase in enumerate(program.explain(described).phases, start=1):
            (folder / f"{number}-{phase.name}.txt").write_text(f"{phase}\n", encoding="utf-8")
    if verify:
        report = program.verify(known, sizes=specs.parse_sizes(sizes), rtol=rtol, atol=atol, check=False)
        typer.echo(str(report))
        if not report.ok:
            raise VerificationFailed(f"`{output}` was not written", why="JAX and ONNX Runtime differ")
    source = program.to_source(output, inputs=described, framework=framework)
    files = _written(output, framework)
    elements = sum(tensor.size for tensor in source.tensors.values())
    console().print(
        key_values(
            {
                "written": ", ".join(f"{path} ({file_size(path.stat().st_size)})" for path in files),
                "inputs": ", ".join(program.input_names),
                "outputs": ", ".join(program.output_names),
                "source": f"{len(source.code.splitlines()):,} lines",
                **({"notes": "; ".join(source.notes)} if source.notes else {}),
                **({"phases": f"{output / 'phases'}"} if dump else {}),
                "weights": f"{elements:,} elements in {len(source.tensors):,} tensors",
            }
        )
    )


def _written(folder: Path, framework: str) -> list[Path]:
    """Return the files of a source in the folder that it was written to."""
    if framework == "burn":
        paths = [
            folder / "Cargo.toml",
            *(folder / "src").iterdir(),
            *(folder / "tests").glob("*"),
            *folder.glob("*.safetensors"),
        ]
        return sorted(paths)
    begin = "model.py" if framework == "jax" else "model."
    return sorted(path for path in folder.iterdir() if path.name.startswith(begin))


def run_model(
    model: Model,
    values: Values,
    sizes: Sizes,
    random: Annotated[bool, typer.Option("--random", help="Sample the inputs that have no value.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="How many calls are timed; the fastest counts.")] = 5,
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    seed: Seed = 0,
) -> None:
    """Run an ONNX file in JAX and in ONNX Runtime, and compare.

    Values and times are printed; the status is 1 if the values differ.
    """
    import jaxport

    program, load_seconds = _timed(lambda: jaxport.from_onnx(model))
    known = parse_values(values)
    missing = [name for name in program.input_names if name not in known]
    if missing and not random:
        raise InvalidArgument(
            f"the input `{missing[0]}` has no value",
            where="`jaxport run`",
            instead=f"give one: `--value {missing[0]}=FILE.npy`, or sample it: `--random`",
        )
    comparison = Comparison(program)
    outputs, rows = [], []
    for run in comparison.runs(known, specs.parse_sizes(sizes), seed):
        (in_jax, compile_seconds), in_runtime = (
            _timed(lambda run=run: comparison.in_jax(run)),
            comparison.in_runtime(run),
        )
        expected, actual = in_runtime(), in_jax()
        outputs += comparison.compared(run, expected, actual, rtol, atol)
        jax_seconds, runtime_seconds = _fastest(in_jax, repeat), _fastest(in_runtime, repeat)
        shown = ", ".join(f"{name}={size}" for name, size in run.sizes.items()) or "-"
        times = (compile_seconds, jax_seconds, runtime_seconds)
        rows.append((shown, *(f"{1000 * seconds:.2f} ms" for seconds in times), f"{jax_seconds / runtime_seconds:.2f}"))
    report = Report(program.name or model.name, tuple(outputs))
    typer.echo(str(report))
    screen = console()
    columns = ["sizes", "trace and compile", "JAX", "ONNX Runtime", "ratio"]
    screen.print(Text(), table(f"times (loaded in {load_seconds:.2f} s)", columns, rows), sep="\n")
    if not report.ok:
        raise typer.Exit(1)


def parse_shapes(texts: Iterable[str], program: Program) -> dict[str, jax.ShapeDtypeStruct]:
    """Read the `--input` options: sizes of inputs by name, as `Program.to_source` takes them.

    Raises:
      InvalidArgument: a text is malformed, or the model has no such input.
    """
    import jax

    declared = {value.name or "": value for value in program.inputs}
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for text in texts:
        # Names in files have dots, slashes and colons; the longest one that fits is meant.
        name = max((name for name in declared if text.startswith(f"{name}:")), key=len, default=None)
        if name is None or name in shapes:
            raise InvalidArgument(
                f'"{text}" does not name an input of the model' if name is None else f"`{name}` is given twice",
                where="`--input`",
                instead=f'write it like "{next(iter(declared), "x")}:B,3"; the inputs are {", ".join(declared)}',
            )
        spec = specs.parse_input(text.removeprefix(f"{name}:"))
        kind = declared[name].dtype
        own = None if kind is None else kind.numpy()
        shapes[name] = jax.ShapeDtypeStruct(
            spec.dims, spec.value.dtype if spec.dtype is not None or own is None else own
        )
    return shapes


def parse_values(texts: Iterable[str]) -> Parameters:
    """Read the `--value` options: each an input by name, with a Python literal or the path of a `.npy` file.

    Raises:
      InvalidArgument: a text has no `=`, its value is neither, a name occurs twice, or a file cannot be read.

    >>> parse_values(["shape=[2, 3]", "flag=True"])
    {'shape': [2, 3], 'flag': True}
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f'"{text}" is not a value', where="`--value`", instead='write it like "shape=[2,3]"')
        if name in values:
            raise InvalidArgument(f"`{name}` is given twice", where="`--value`", instead="give it once")
        values[name] = _array(value) if value.endswith(".npy") else _literal(text, value)
    return values


def _array(path: str) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"`{path}` cannot be read", where="`--value`", why=str(error)) from error


def _literal(text: str, value: str) -> PyTree:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError) as error:
        raise InvalidArgument(
            f'"{text}" is not a value',
            where="`--value`",
            why=f"`{value}` is neither a Python literal nor the path of a `.npy` file",
            instead='write it like "shape=[2,3]" or "x=x.npy"',
        ) from error


def _timed(call: PythonFunction) -> tuple[PyTree, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def _fastest(call: PythonFunction, repeat: int) -> float:
    return min(_timed(call)[1] for _ in range(repeat))

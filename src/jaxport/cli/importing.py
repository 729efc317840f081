"""The commands for ONNX models as input: `import` and `run`."""

from __future__ import annotations

import ast
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jaxport.cli import specs
from jaxport.cli.comparing import report_values
from jaxport.cli.files import STANDARD, model_file, output_file, output_folder
from jaxport.cli.specs import given_twice
from jaxport.cli.tables import file_size, key_values, table
from jaxport.cli.targets import torch_program
from jaxport.cli.terminal.output import remark, tell
from jaxport.columns import counted
from jaxport.errors import InvalidArgument, VerificationFailed
from jaxport.files import publish

if TYPE_CHECKING:
    import jax
    import numpy as np

    from jaxport.importer.program import Program
    from jaxport.jaxprs import Parameters, PythonFunction

Model = Annotated[Path, typer.Argument(help="An ONNX file; - is the standard input.", metavar="MODEL")]
Imported = Annotated[
    Path,
    typer.Argument(help="An ONNX file; - is the standard input. With --torch, module:attribute.", metavar="MODEL"),
]
Values = Annotated[
    list[str],
    typer.Option(
        "--value",
        default_factory=list,
        show_default=False,
        metavar="NAME=VALUE",
        help="An input's value: shape=[2,3], or a file: x=x.npy. Inputs that shapes depend on need one.",
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
        "-i",
        default_factory=list,
        show_default=False,
        metavar="NAME:SIZES",
        help='The sizes of an input, in place of those that the file declares: "images:B,3,32*H,32*W".',
    ),
]


def import_model(
    model: Imported,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    inputs: Inputs,
    values: Values,
    sizes: Sizes,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with ONNX Runtime, or with the module of PyTorch, before writing.")
    ] = False,
    dump: Annotated[
        bool, typer.Option("--dump", help="Write the graph after each phase of the import into OUTPUT/phases.")
    ] = False,
    framework: Annotated[
        Literal["nnx", "equinox", "jax", "burn"],
        typer.Option(
            "--framework",
            help="What to print: classes of Flax NNX or Equinox; one function of plain JAX; a Rust crate for Burn.",
        ),
    ] = "nnx",
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse attributes that operators do not define, even where ONNX Runtime ignores them."
        ),
    ] = False,
    of_torch: Annotated[
        bool,
        typer.Option(
            "--torch", help="MODEL is a module of PyTorch, module:attribute; --input describes its arguments, by name."
        ),
    ] = False,
    ties: Annotated[
        Literal["auto", "keep", "none"],
        typer.Option(
            "--ties",
            help="Which uses of one tensor are one parameter: what an author may have tied, what the file stores "
            "once, none.",
        ),
    ] = "auto",
    keep_guards: Annotated[
        bool,
        typer.Option("--keep-guards", help="Print guards against NaN, even where finite inputs and weights give none."),
    ] = False,
) -> None:
    """Turn an ONNX file into JAX source code and a weights file."""
    import jaxport

    output_folder(output)
    known = parse_values(values)
    if of_torch:
        program = torch_program(str(model), inputs, known, sizes, ties, verify)
        known, described, verify = {}, {}, False
    else:
        program = jaxport.from_onnx(model_file(model), strict=strict, ties=ties)
        described = {**known, **parse_shapes(inputs, program)}
    report = None
    if dump:
        folder = output / "phases"
        folder.mkdir(parents=True, exist_ok=True)
        for number, phase in enumerate(program.explain(described).phases, start=1):
            (folder / f"{number}-{phase.name}.txt").write_text(f"{phase}\n", encoding="utf-8")
    if verify:
        report = program.verify(known, sizes=specs.parse_sizes(sizes), rtol=rtol, atol=atol, check=False)
        remark(str(report))
        if not report.ok:
            raise VerificationFailed(f"`{output}` was not written", why="JAX and ONNX Runtime differ")
    source = program.to_source(output, inputs=described, framework=framework, strict=keep_guards)
    files = _written(output, framework)
    elements, lines = sum(tensor.size for tensor in source.tensors.values()), len(source.code.splitlines())
    tell(
        {
            "written": [str(path) for path in files],
            "inputs": list(program.input_names),
            "outputs": list(program.output_names),
            "lines": lines,
            "notes": list(source.notes),
            "phases": str(output / "phases") if dump else None,
            "tensors": len(source.tensors),
            "elements": elements,
            "compared": None if report is None else report_values(report),
        },
        key_values(
            {
                "written": ", ".join(f"{path} ({file_size(path.stat().st_size)})" for path in files),
                "inputs": ", ".join(program.input_names),
                "outputs": ", ".join(program.output_names),
                "source": counted(lines, "line"),
                **({"notes": "; ".join(source.notes)} if source.notes else {}),
                **({"phases": f"{output / 'phases'}"} if dump else {}),
                "weights": f"{counted(elements, 'element')} in {counted(len(source.tensors), 'tensor')}",
            }
        ),
        brief="\n".join(map(str, files)),
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
    input_file: Annotated[
        Path | None,
        typer.Option("--inputs", metavar="FILE.npz", help="Inputs by name, as numpy.savez writes them."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FILE.npz", help="Write the outputs of ONNX Runtime at the first sizes, by name."
        ),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Sample the inputs that have no value.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="How many calls are timed.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="The threads of ONNX Runtime; by default it decides.")
    ] = None,
    rtol: RelativeTolerance = None,
    atol: AbsoluteTolerance = None,
    seed: Seed = 0,
) -> None:
    """Run an ONNX file in JAX and in ONNX Runtime, and compare.

    Outputs and times are printed; the status is 1 if the two sides differ.
    """
    from rich.text import Text

    import jaxport
    from jaxport.verify.comparing import Tolerance
    from jaxport.verify.importing import Comparison
    from jaxport.verify.report import Report
    from jaxport.verify.running import Sampling

    if save is not None:
        if save == STANDARD:
            raise InvalidArgument("outputs need a file", where="`--save`", instead="name one: `--save outputs.npz`")
        output_file(save, "--save")
    path = model_file(model)
    program, load_seconds = _timed(lambda: jaxport.from_onnx(path))
    known = {**_arrays(input_file), **parse_values(values)}
    missing = [name for name in program.input_names if name not in known]
    if missing and not random:
        raise InvalidArgument(
            f"the input `{missing[0]}` has no value",
            where="`jaxport run`",
            instead=f"give one: `--value {missing[0]}=FILE.npy` or `--inputs FILE.npz`, or sample it: `--random`",
        )
    comparison = Comparison(program, threads)
    outputs, timings, first = [], [], None
    for run in comparison.runs(known, Sampling(specs.parse_sizes(sizes), seed=seed)):
        (in_jax, compile_seconds), in_runtime = (
            _timed(lambda run=run: comparison.in_jax(run)),
            comparison.in_runtime(run),
        )
        expected, actual = in_runtime(), in_jax()
        first = first if first is not None else dict(zip(program.output_names, expected, strict=True))
        outputs += comparison.compared(run, expected, actual, Tolerance(rtol, atol))
        timings.append(_Timing(run.sizes, compile_seconds, _times(in_jax, repeat), _times(in_runtime, repeat)))
    report = Report(program.name or model.name, tuple(outputs))
    results = first or {}
    if save is not None:
        publish(save, lambda file, _: _save(file, results))
    rows = [row for timing in timings for row in timing.rows()]
    title = f"milliseconds of {counted(repeat, 'call')} (loaded in {load_seconds:.2f} s)"
    columns = ["sizes", "side", "compile", "fastest", "median", "90 %", "slowest", "ratio"]
    tell(
        {
            "compared": report_values(report),
            "outputs": {name: _described(array) for name, array in results.items()},
            "load_seconds": load_seconds,
            "times": [timing.values() for timing in timings],
            "saved": None if save is None else str(save),
        },
        str(report),
        Text(),
        key_values({name: _shown(array) for name, array in results.items()}),
        Text(),
        table(title, columns, rows, right=columns[2:]),
        *([f"outputs written to {save}"] if save is not None else []),
        brief=key_values({name: _shown(array) for name, array in results.items()}),
    )
    if not report.ok:
        raise typer.Exit(1)


PERCENTILES = (0, 50, 90, 100)


@dataclass(frozen=True)
class _Timing:
    """The seconds of each call at one set of sizes; `compilation` is tracing and compiling in JAX."""

    sizes: Mapping[str, int]
    compilation: float
    in_jax: list[float]
    in_runtime: list[float]

    def rows(self) -> Iterator[tuple[str, ...]]:
        import numpy as np

        shown = ", ".join(f"{name}={size}" for name, size in self.sizes.items()) or "-"
        ratio = min(self.in_jax) / min(self.in_runtime)
        for side, first, seconds, relative in (
            ("JAX", f"{1000 * self.compilation:.2f}", self.in_jax, f"{ratio:.2f}"),
            ("ONNX Runtime", "-", self.in_runtime, "1"),
        ):
            times = (f"{1000 * value:.3f}" for value in np.percentile(seconds, PERCENTILES))
            yield shown, side, first, *times, relative

    def values(self) -> dict[str, object]:
        import numpy as np

        return {
            "sizes": dict(self.sizes),
            "compile_seconds": self.compilation,
            "jax_seconds": dict(zip(map(str, PERCENTILES), np.percentile(self.in_jax, PERCENTILES), strict=True)),
            "onnxruntime_seconds": dict(
                zip(map(str, PERCENTILES), np.percentile(self.in_runtime, PERCENTILES), strict=True)
            ),
        }


MOST_ELEMENTS = 8
"""The elements of an output that are printed."""


def _shown(array: np.ndarray) -> str:
    """Return the type of an array, and its elements: all if they are few, otherwise the first ones."""
    head = array.reshape(-1)[:MOST_ELEMENTS].tolist() if array.dtype.kind != "O" else list(array.flat)[:MOST_ELEMENTS]
    elements = ", ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in head)
    more = ", ..." if array.size > MOST_ELEMENTS else ""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]  {elements}{more}"


def _described(array: np.ndarray) -> dict[str, object]:
    flat = array.reshape(-1)[:MOST_ELEMENTS]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "first": flat.tolist()}


def _save(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import numpy as np

    with file.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def _arrays(file: Path | None) -> dict[str, np.ndarray]:
    """Return the arrays of the file of `--inputs`."""
    import numpy as np

    if file is None:
        return {}
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it has one array, without a name")
        with loaded:
            return dict(loaded)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidArgument(
            f"`{file}` cannot be read",
            where="`--inputs`",
            why=str(error),
            instead="write it with `numpy.savez(file, **{name: array})`",
        ) from error


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
    values: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f'"{text}" is not a value', where="`--value`", instead='write it like "shape=[2,3]"')
        if name in values:
            raise given_twice(name, "--value")
        values[name] = _array(value) if value.endswith(".npy") else _literal(text, value)
    return values


def _array(path: str) -> np.ndarray:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"`{path}` cannot be read", where="`--value`", why=str(error)) from error


def _literal(text: str, value: str) -> object:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError) as error:
        raise InvalidArgument(
            f'"{text}" is not a value',
            where="`--value`",
            why=f"`{value}` is neither a Python literal nor the path of a `.npy` file",
            instead='write it like "shape=[2,3]" or "x=x.npy"',
        ) from error


def _timed(call: PythonFunction) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def _times(call: PythonFunction, repeat: int) -> list[float]:
    return [_timed(call)[1] for _ in range(repeat)]

"""The page of `benchmarks.bench_gpu`: tables of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.measure import rendered

Found = dict[str, Any]

HEAD = """# Imported models on a GPU

See here how fast models run on a GPU on each way between PyTorch and JAX: in PyTorch, written by hand in Flax NNX, imported by
`from_torch`, as the source that the import prints, and exported from Flax and imported again (the round trip). All have the same
random weights. `imported` is `jax.jit(program.apply)`, with the weights as arguments; models of Flax run under `jax.jit` with
their state as an argument. Figures are medians of a call, in ms: four calls are started, then the device is waited for. The ways
of a row alternate in one process; ratios below 1 mean that the way named first is faster. A dash means: not measured.

Both sides compute products of float32 in TF32: the default of JAX on such GPUs, and
`torch.set_float32_matmul_precision("high")` with cuDNN's default in PyTorch. Compiled kernels differ somewhat between processes,
as several compiled at once and XLA times its candidates on the device: differences of some percent mean nothing. The exported
files themselves were not run on the GPU: there was no GPU build of ONNX Runtime.

* Imported models take 0.81 to 1.00 times as long as the same models written by hand in Flax.
* In float32 they take 0.48 to 0.97 times as long as PyTorch, and 0.87 to 1.13 times as long as `torch.compile`. In
  bfloat16 this was measured of BERT alone, which takes 1.13 times as long as with `torch.compile`.
* After a round trip, a model in bfloat16 takes 1.5 to 1.75 times as long: ONNX Runtime has no kernels of bfloat16 for most
  operators on CPUs, so the exported file computes them in float32.

`python -m benchmarks.bench_gpu` measures; its option `--write` writes this page.
"""
FORWARD = (
    "model", "type", "PyTorch, ms", "`torch.compile`, ms", "Flax, ms", "imported, ms", "imported : PyTorch",
    "imported : `torch.compile`", "imported : Flax", "constants : Flax", "printed : Flax", "round trip : Flax",
)  # fmt: skip
GRADIENT = (
    "model", "type", "PyTorch, ms", "`torch.compile`, ms", "Flax, ms", "imported, ms", "imported : PyTorch",
    "imported : `torch.compile`", "imported : Flax", "printed : Flax", "round trip : Flax",
)  # fmt: skip
EXACT = (
    "model", "type", "PyTorch, ms", "Flax, ms", "imported, ms", "imported : PyTorch", "imported : Flax",
)  # fmt: skip
ERRORS = (
    "model",
    "type",
    "PyTorch",
    "`torch.compile`",
    "Flax",
    "imported",
    "printed",
    "round trip",
)
COSTS = ("model", "type", "what", "PyTorch", "`torch.compile`", "Flax", "imported", "printed")


WHAT = ("compiling a call, s", "compiling the gradient, s", "memory of a call, MB", "memory of the gradient, MB")
"""What `COSTS` has rows of."""

NOTES = {
    "Errors": "\nThe largest difference of a result from PyTorch in float32 without TF32, relative to the largest element.",
    "Compile time and memory": "\nMemory is that of temporary values and results; processes beside this one compiled, too.",
}


def page(results: Sequence[Found]) -> str:
    """Return the page for what was found of each model in each type."""
    tables = [
        ("A call", FORWARD, [forward(found) for found in results]),
        ("The loss and its gradient", GRADIENT, [gradient(found) for found in results]),
        ("A call in float32 without TF32", EXACT, [exact(f) for f in results if f["dtype"] == "float32"]),
        ("Errors", ERRORS, [errors(found) for found in results]),
        ("Compile time and memory", COSTS, [row for found in results for row in costs(found)]),
        ("`nnx.jit`", ("model", "type", "Flax, ms", "printed, ms"), [walked(found) for found in results]),
    ]
    parts = [HEAD, machine(results), inputs(results)]
    for title, header, rows in tables:
        if measured := [row for row in rows if not {*row[2:]} <= {"–", *WHAT}]:
            parts += [rendered(title, header, measured), *([NOTES[title]] if title in NOTES else [])]
    problems = [f"* {f['model']}, {f['dtype']}: {way}: {p}" for f in results for way, p in f["problems"].items()]
    return "\n".join([*parts, *(["", "## What failed", "", *problems] if problems else [])]) + "\n"


def machine(results: Sequence[Found]) -> str:
    """Return a sentence on the device and the versions."""
    found = results[0]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"Measured on one {found['device']}, with {versions}."


def inputs(results: Sequence[Found]) -> str:
    """Return a table of the models."""
    models = {found["model"]: found for found in results}
    shapes = {name: " × ".join(map(str, found["inputs"][0])) for name, found in models.items()}
    rows = [[name, f"{found['parameters'] / 1e6:.0f} M", shapes[name]] for name, found in models.items()]
    return rendered("The models", ("model", "parameters", "input"), rows)


def shown(value: float | None, form: str = ".2f") -> str:
    """Return a figure, or a dash if there is none."""
    return "–" if value is None else f"{value:{form}}"


def figure(found: Found, way: str, key: str = "ms") -> float | None:
    """Return a figure of a way, if it was measured."""
    return found["ways"].get(way, {}).get(key)


def ratio(found: Found, one: str, other: str) -> str:
    """Return the time of one way in units of another's."""
    ours, theirs = figure(found, one), figure(found, other)
    return shown(ours / theirs if ours and theirs else None)


def kind(found: Found) -> list[str]:
    return [found["model"], found["dtype"]]


def forward(found: Found) -> list[str]:
    ways = ("PyTorch eager", "torch.compile", "Flax", "imported")
    return [
        *kind(found),
        *(shown(figure(found, way)) for way in ways),
        *(ratio(found, "imported", way) for way in ways[:3]),
        *(ratio(found, way, "Flax") for way in ("imported, constant weights", "printed", "round trip")),
    ]


def gradient(found: Found) -> list[str]:
    ways = [f"{way}, gradient" for way in ("PyTorch eager", "torch.compile", "Flax", "imported")]
    return [
        *kind(found),
        *(shown(figure(found, way)) for way in ways),
        *(ratio(found, ways[3], way) for way in ways[:3]),
        *(ratio(found, f"{way}, gradient", ways[2]) for way in ("printed", "round trip")),
    ]


def exact(found: Found) -> list[str]:
    ways = [f"{way}, exact" for way in ("PyTorch eager", "Flax", "imported")]
    ratios = (ratio(found, ways[2], way) for way in ways[:2])
    return [*kind(found), *(shown(figure(found, way)) for way in ways), *ratios]


def errors(found: Found) -> list[str]:
    ways = ("PyTorch eager", "torch.compile", "Flax", "imported", "printed", "round trip")
    return [*kind(found), *(shown(figure(found, way, "error"), ".1e") for way in ways)]


def costs(found: Found) -> list[list[str]]:
    rows = []
    kinds = (
        ("compile seconds", "", ".1f"),
        ("compile seconds", ", gradient", ".1f"),
        ("MB", "", ".0f"),
        ("MB", ", gradient", ".0f"),
    )
    for what, (key, suffix, form) in zip(WHAT, kinds, strict=True):
        ways = ("PyTorch eager", "torch.compile", "Flax", "imported", "printed")
        cells = [shown(figure(found, way + suffix, key), form) for way in ways]
        rows.append([*kind(found), what, *cells])
    return rows


def walked(found: Found) -> list[str]:
    return [*kind(found), *(shown(figure(found, f"{way}, nnx.jit")) for way in ("Flax", "printed"))]

"""Files of ONNX as crates for Burn, each with inputs beside it: printed, compiled many to a binary, run, and compared.

python -m tests.burn.files FOLDER [NAME …] --write results.json

The folder holds what `tests.torch.exporting` wrote: `NAME.onnx`, and `NAME.0.npz` and `NAME.1.npz` with inputs of two sizes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.errors import JaxportError, RunError
from jaxport.importer.interface import in_model_order
from jaxport.jaxprs.releases import QUICKLY
from jaxport.verify import difference
from jaxport.verify.importing import caller
from tests.burn.crates import BUILD, Case, RunError as PanicError, build, case_of, unformatted
from tests.burn.suite import Report, Result, first_line
from tests.torch.imported import Checks

LIMIT = 1e-5
"""Of float32 results, relative to the largest element."""


class Printed(NamedTuple):
    """A file as a crate.

    Attributes:
      case: its sources.
      sets: the inputs that this crate is for, each with what is expected of it.
      shares: what part of the largest element results may differ by.
    """

    case: Case
    sets: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]
    share: float


def printed(path: Path, folder: Path) -> list[Printed] | Result:
    """Print a file, its weights into a folder: once for all sizes, or for each if it has the sizes of its inputs only."""
    warnings.simplefilter("ignore")
    try:
        checks = Checks(path)
        names = checks.program.output_names
        expected = [dict(zip(names, results, strict=True)) for results in checks.expected]
        sets = [one for one in zip(checks.sets, expected, strict=True) if _can_run(checks, one[0])]
        share = checks.limits.get("atol", LIMIT)
        program = in_model_order(checks.program)
        with jax.enable_x64(True):
            made: list[Printed] = []
            for number, (specs, chosen) in enumerate(_with_sizes(checks, sets)):
                crate = to_crate(record_fused(program, specs, reads_sizes=True))
                made.append(Printed(case_of(crate, f"{path.stem}.{number}", folder), chosen, share))
    except JaxportError as error:
        rows = sorted({f"{row.name}: {row.why}" for row in getattr(error, "refusals", ())})
        return Result("refused", "; ".join(rows) or " ".join(str(error).split())[:200])
    except Exception as error:  # noqa: BLE001  a report of failures of all kinds
        return Result("crashes", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    return made


def _can_run(checks: Checks, inputs: Mapping[str, np.ndarray]) -> bool:
    """Whether the file fits inputs at all: PyTorch's exporters write some sizes of their example into files."""
    try:
        checks.comparison.session.run(inputs)
    except RunError:
        try:
            caller(checks.program, inputs, QUICKLY)()
        except JaxportError:
            return False
    return True


def _with_sizes(checks: Checks, sets: list) -> Iterator[tuple[Mapping[str, Any] | None, list]]:
    """Yield what a crate is printed with, and the inputs it is for."""
    specs = checks.recorded_with()
    if specs is None or any(jax.export.is_symbolic_dim(dim) for spec in specs.values() for dim in spec.shape):
        yield specs, sets
    else:
        for inputs, expected in sets:
            shapes = {key: jax.ShapeDtypeStruct(value.shape, value.dtype) for key, value in inputs.items()}
            yield shapes, [(inputs, expected)]


def check(paths: Collection[Path], folder: str = "files", *, processes: int = 1, lint: bool = False) -> Report:
    """Print, compile and run files; the crates are in a folder of this name. `lint` asks clippy and rustfmt, too."""
    weights = BUILD / "weights" / folder
    shutil.rmtree(weights, ignore_errors=True)
    weights.mkdir(parents=True)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        made = dict(zip((path.stem for path in paths), pool.map(printed, paths, [weights] * len(paths)), strict=True))
    report = Report({name: one for name, one in made.items() if isinstance(one, Result)})
    crates = {
        name if len(ones) == 1 else f"{name}.{number}": (name, one)
        for name, ones in made.items()
        if isinstance(ones, list)
        for number, one in enumerate(ones)
    }
    cases = {key: one.case for key, (_, one) in crates.items()}
    built = build(cases, folder)
    if lint:
        for key, messages in build(cases, folder, lint=True).warnings.items():
            built.warnings[key] += messages
        for key in unformatted(cases):
            built.warnings[key].append("rustfmt has another layout")
    jobs = [(key, inputs, expected) for key, (_, one) in crates.items() for inputs, expected in one.sets]
    ran = built.run_all([(key, inputs) for key, inputs, _ in jobs])
    for (key, _, expected), outputs in zip(jobs, ran, strict=True):
        name, one = crates[key]
        if report.results.get(name, Result("equal")).kind != "equal":
            continue
        if key in built.errors:
            report.results[name] = Result("does not compile", first_line(built.errors[key]))
        elif isinstance(outputs, PanicError):
            report.results[name] = Result("fails", outputs.message[:200])
        else:
            problem = _difference(outputs, expected, one.share)
            report.results[name] = Result("differs", problem) if problem else Result("equal")
        if key in built.warnings and report.results[name].kind == "equal":
            report.results[name] = Result("warns", first_line(built.warnings[key]))
    return report


def _difference(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], share: float) -> str:
    for name, wanted in expected.items():
        found = difference(wanted, outputs[name])
        if found.problem and (share == LIMIT or found.relative > share):
            return f"{name}: {found.problem}"
        if found.relative > share:
            return f"{name}: differs by {found.relative:.1e} of the largest element"
    return ""


def main() -> int:
    """Print, compile and run files, and say what became of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.burn.files", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="patterns of the names of files")
    parser.add_argument("--into", default="files", help="where the crates are, beside others")
    parser.add_argument("--lint", action="store_true", help="ask clippy and rustfmt, too")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many print")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where the results go, as JSON")
    arguments = parser.parse_args()
    patterns = arguments.names or ["*"]
    paths = sorted({path for pattern in patterns for path in arguments.folder.glob(f"{pattern}.onnx")})
    report = check(paths, arguments.into, processes=arguments.processes, lint=arguments.lint)
    print(report.text())
    if arguments.write:
        report.write(arguments.write)
    return report.failed()


if __name__ == "__main__":
    sys.exit(main())

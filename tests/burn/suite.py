"""ONNX's own cases as crates for Burn: printed, compiled many to a binary, run, and compared with what the suite expects.

python -m tests.burn.suite --only test_resize --write results.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxport.codegen.burn.crate import Crate, elements, to_crate
from jaxport.codegen.burn.rules.drawing import draws
from jaxport.codegen.recorded.fused import record_fused
from jaxport.errors import JaxportError, ValueNotKnown
from jaxport.importer import Program, from_onnx
from tests.burn.crates import BUILD, Case, RunError, build, case_of, narrowed
from tests.importer import backend

__all__ = ["KINDS", "Report", "Result", "check", "chosen", "first_line"]

KINDS = ("equal", "refused", "crashes", "does not compile", "warns", "fails", "differs")
"""What may become of a case; only the first two are right."""


class Drawn(Exception):
    """A case has random values: its crate draws others, and is not compared."""


@dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
      kind: one of `KINDS`.
      message: why.
    """

    kind: str
    message: str = ""


@dataclass(frozen=True)
class Printed:
    """A case as a crate.

    Attributes:
      case: its sources.
      jobs: the arguments by name and the expected outputs, of each set of stored data that this crate is for.
      outputs: the names of the outputs.
    """

    case: Case
    jobs: list[tuple[dict[str, np.ndarray], list[Any]]]
    outputs: list[str]


@dataclass
class Report:
    """What became of cases.

    Attributes:
      results: by the name of the case.
    """

    results: dict[str, Result] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        counted = Counter(result.kind for result in self.results.values())
        return {kind: counted[kind] for kind in KINDS}

    def failed(self) -> bool:
        """Whether a case is neither equal nor refused."""
        counts = self.counts()
        return sum(counts.values()) != counts["equal"] + counts["refused"]

    def write(self, path: Path) -> None:
        """Write the counts and the results as JSON."""
        results = {name: [one.kind, one.message] for name, one in sorted(self.results.items())}
        path.write_text(json.dumps({"counts": self.counts(), "results": results}, indent=1) + "\n")

    def text(self) -> str:
        """Return a table of the counts, and below it why cases are not equal, the most frequent reasons first."""
        lines = [f"{count:6} {kind}" for kind, count in self.counts().items()]
        for kind in KINDS[1:]:
            names = defaultdict(list)
            for name, result in self.results.items():
                if result.kind == kind:
                    names[result.message].append(name)
            if names:
                lines.append(f"\n{kind}")
            ranked = sorted(names.items(), key=lambda entry: -len(entry[1]))
            lines += [f"{len(found):6} {message[:400]}   {', '.join(found[:4])}" for message, found in ranked]
        return "\n".join(lines)


def chosen(pattern: str = "", sample: int | None = None) -> list[str]:
    """Return the names of the cases that a pattern matches, or of some of them, always the same."""
    names = [name for name in backend.cases() if re.search(pattern, name) and not backend.reasons(name)]
    return names if sample is None or sample >= len(names) else sorted(random.Random(0).sample(names, sample))


def printed(name: str, folder: Path) -> list[Printed] | Result:
    """Print a case, its weights into a folder; once for all stored data, or once for each if values are known."""
    warnings.simplefilter("ignore")
    case = backend.cases()[name]
    made: list[Printed] = []
    try:
        model = case.model()
        program = from_onnx(model)
        with jax.enable_x64(True):
            for number, (inputs, expected) in enumerate(case.data(model)):
                named = elements(dict(zip(program.input_names, inputs, strict=False)))
                results = elements(dict(zip(program.output_names, expected, strict=True)))
                if made and made[0].jobs[0][0].keys() == named.keys() and _alike(made[0].jobs[0][0], named):
                    made[0].jobs.append((named, [*results.values()]))
                    continue
                crate, arguments = _crate(program, inputs)
                sources = case_of(crate, f"{name}.{number}", folder)
                made.append(Printed(sources, [(elements(arguments), [*results.values()])], [*results]))
    except Drawn:
        return Result("refused", "random values are Burn's")
    except JaxportError as error:
        rows = sorted({f"{row.name}: {row.why}" for row in getattr(error, "refusals", ())})
        return Result("refused", "; ".join(rows) or " ".join(str(error).split())[:200])
    except Exception as error:  # noqa: BLE001  a report of failures of all kinds
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "jaxport" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return Result("crashes", f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:160]}")
    return made


def _alike(arguments: dict[str, np.ndarray], others: dict[str, Any]) -> bool:
    shapes = [
        [(np.shape(value), np.asarray(value).dtype) for value in values.values()] for values in (arguments, others)
    ]
    return shapes[0] == shapes[1]


def _crate(program: Program, inputs: list[Any]) -> tuple[Crate, dict[str, Any]]:
    """Return a crate for inputs of these sizes, and the inputs that stayed arguments; where sizes depend on values, these are known."""
    for known, traced in (backend.split(program, inputs), backend.split(program, inputs, scalars_known=True)):
        try:
            return _recorded(program, known, traced), traced
        except ValueNotKnown:
            continue
    return _recorded(program, dict(zip(program.input_names, inputs, strict=False)), {}), {}


def _recorded(program: Program, known: dict[str, Any], traced: dict[str, Any]) -> Crate:
    def spec(array: np.ndarray) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))

    recorded = record_fused(program, {**known, **jax.tree.map(spec, traced)}, reads_sizes=True)
    if draws(recorded):
        raise Drawn
    return to_crate(recorded)


def check(names: Collection[str], folder: str = "suite", *, processes: int = 1) -> Report:
    """Print, compile and run cases; the crates are in a folder of this name."""
    weights = BUILD / "weights" / folder
    shutil.rmtree(weights, ignore_errors=True)
    weights.mkdir(parents=True)
    report = Report()
    cases: dict[str, Printed] = {}
    for name, made in _printed_all(names, weights, processes):
        if isinstance(made, Result):
            report.results[name] = made
        else:
            cases |= {f"{name}.{number}" if number else name: one for number, one in enumerate(made)}
    built = build({name: one.case for name, one in cases.items()}, folder)
    jobs = [(name, inputs, expected) for name, one in cases.items() for inputs, expected in one.jobs]
    ran = built.run_all([(name, inputs) for name, inputs, _ in jobs])
    for (name, _, expected), outputs in zip(jobs, ran, strict=True):
        case = name if name in names else name.rpartition(".")[0]
        before = report.results.get(case)
        if before is not None and before.kind != "equal":
            continue
        if name in built.errors:
            report.results[case] = Result("does not compile", first_line(built.errors[name]))
        elif isinstance(outputs, RunError):
            report.results[case] = Result("fails", outputs.message[:200])
        else:
            report.results[case] = _compared(case, [outputs[key] for key in cases[name].outputs], expected)
        if name in built.warnings and report.results[case].kind == "equal":
            report.results[case] = Result("warns", first_line(built.warnings[name]))
    return report


def _printed_all(names: Iterable[str], weights: Path, processes: int) -> Iterable[tuple[str, list[Printed] | Result]]:
    if processes == 1:
        return [(name, printed(name, weights)) for name in names]
    names = [*names]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return [*zip(names, pool.map(printed, names, [weights] * len(names), chunksize=20), strict=True)]


def first_line(messages: list[str]) -> str:
    """Return what the compiler says of a case first."""
    return " ".join(line.strip() for line in messages[0].splitlines()[:1])


def _compared(name: str, outputs: list[np.ndarray], expected: list[Any]) -> Result:
    case = backend.cases()[name]
    if any(getattr(value, "dtype", None) == np.float16 for value in expected):
        case = case._replace(test=replace(case.test, rtol=max(case.test.rtol, 2**-9)))  # two units in the last place
    if "dft_inverse" in name:  # what is expected has the rounding of a transform in single precision where parts are 0
        case = case._replace(test=replace(case.test, atol=max(case.test.atol, 1e-5)))
    try:
        outputs = [narrowed(output, np.asarray(value).dtype) for output, value in zip(outputs, expected, strict=True)]
        case.compare(outputs, expected)
    except AssertionError as error:
        return Result("differs", " ".join(str(error).split())[:160])
    return Result("equal")


def main() -> int:
    """Print, compile and run the cases of ONNX's suite, and say what became of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.burn.suite", description=main.__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="which cases: a regular expression")
    parser.add_argument("--among", type=Path, metavar="FILE", help="the cases that are not equal in a file of --write")
    parser.add_argument("--sample", type=int, metavar="N", help="how many of them")
    parser.add_argument("--folder", default="suite", help="where the crates are, beside others")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many print")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where the results go, as JSON")
    arguments = parser.parse_args()
    names = chosen(arguments.only, arguments.sample)
    if arguments.among:
        stored = json.loads(arguments.among.read_text())["results"]
        names = [name for name in names if stored.get(name, [""])[0] != "equal"]
    report = check(names, arguments.folder, processes=arguments.processes)
    print(report.text())
    if arguments.write:
        report.write(arguments.write)
    return report.failed()


if __name__ == "__main__":
    sys.exit(main())

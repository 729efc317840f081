"""Printed models for Burn, compiled many to a binary, and run: what a test says of a case is found again in the compiler's words.

The crate is written to a folder that git ignores, its dependencies are compiled once:

    built = build({"relu": Case(model=..., glue=...)})
    assert not built.errors
    outputs = built.run("relu", {"x": np.ones((2, 3), np.float32)})
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import jaxport
from jaxport.codegen.burn.crate import Crate, to_crate
from jaxport.codegen.burn.source import weights_text
from jaxport.codegen.burn.values import held, is_narrow
from jaxport.codegen.recorded.fused import record_fused
from jaxport.codegen.rust.text import LAYOUT, formatted
from jaxport.errors import ModelError
from jaxport.importer.interface import in_model_order
from jaxport.jaxprs import Array

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TEMPLATES = ROOT / "src/jaxport/codegen/burn/templates"
BUILD = Path(os.environ.get("JAXPORT_BURN", ROOT / ".burn"))
WASM = "wasm32-unknown-unknown"
"""The target of browsers, which rustup installs: `rustup target add wasm32-unknown-unknown`."""
CHUNK = 100
"""Modules in one binary: the compiler's memory and what one error holds up stay small."""
ROUNDS = 8
"""How often what does not compile is left out: the compiler finds types before moves, and stops between."""
PATIENCE = 60.0
"""Seconds that a case may run."""
DTYPES = {
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{
        f"{letter}{bits}": np.dtype(f"{name}{bits}")
        for letter, name in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
}


@dataclass(frozen=True)
class Case:
    """The sources of a case.

    Attributes:
      model: the text of `model.rs`.
      glue: `pub fn load(path: impl Into<PathBuf>, device: &Device) -> Result<M, E>` and
        `pub fn run(model: &M, inputs: &Tensors, device: &Device) -> Result<Tensors, TensorsError>`; `model` is a module beside them.
      helpers: the text of `helpers.rs`; without it there is no such module.
      weights: the file that is loaded.
      loading: the text of `weights.rs`; without it there is no such module.
    """

    model: str
    glue: str
    helpers: str = ""
    weights: Path | None = None
    loading: str = ""


@dataclass(frozen=True)
class RunError:
    """Why a case gave nothing: the error or the panic, or how the process ended."""

    message: str


def cargo_environment() -> dict[str, str]:
    """Return the environment of cargo with which all crates share what they depend on: in one folder, of one profile."""
    return {"CARGO_TARGET_DIR": str(BUILD / "target"), "CARGO_PROFILE_DEV_DEBUG": "0", **os.environ}


def selected(request: pytest.FixtureRequest, parameter: str) -> list[str]:
    """Return the values of a parameter in the tests of a module that run: what is left out is not compiled."""
    items = [item for item in request.session.items if getattr(item, "module", None) is request.node.obj]
    parameters = [getattr(item, "callspec", None) for item in items]
    return [*dict.fromkeys(one.params[parameter] for one in parameters if one is not None and parameter in one.params)]


def crate_and_results(
    model: ir.Model, inputs: Mapping[str, Array], is_wide: bool
) -> tuple[Crate, dict[str, np.ndarray]]:
    """The crate of a model, and what the program computes of inputs: with types of 64 bits if `is_wide`, or if it needs them."""
    with jax.enable_x64(is_wide):
        try:
            program = in_model_order(jaxport.from_onnx(model))
            crate = to_crate(record_fused(program))
        except ModelError:  # it computes with integers of 64 bits; so does the crate then
            if is_wide:
                raise
            return crate_and_results(model, inputs, is_wide=True)
        values = program(**inputs)
        arrays = [np.asarray(value) for value in (values if isinstance(values, tuple) else (values,))]
        return crate, dict(zip(program.output_names, arrays, strict=True))


def case_of(crate: Crate, name: str, folder: Path = BUILD / "weights") -> Case:
    """Return the sources of a printed model; its weights are written to a file of this name."""
    weights = folder / f"{name}.safetensors"
    weights.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(weights, crate.tensors)
    return Case(crate.model, crate.glue, crate.helpers, weights, formatted(weights_text(crate)))


def cargo() -> str:
    """Return cargo's path; without it the test is skipped, and fails where `CI` is true."""
    found = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo/bin"))
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("There is no cargo on PATH: the printed crates were not compiled.")
        pytest.skip("There is no cargo on PATH: the printed crates were not compiled.")
    return found


def compiles_to_wasm() -> bool:
    """Whether the standard library for browsers is there."""
    command = [str(Path(cargo()).with_name("rustc")), "--print", "target-libdir", "--target", WASM]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    return found.returncode == 0 and Path(found.stdout.strip()).is_dir()


@dataclass
class Built:
    """What became of cases.

    Attributes:
      errors: of each case that does not compile, the compiler's errors.
      warnings: of each case that has any, the compiler's warnings.
    """

    folder: Path
    cases: Mapping[str, Case]
    errors: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    warnings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    binaries: dict[str, Path] = field(default_factory=dict)

    def run(self, case: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | RunError:
        """Run one case and return its outputs by name."""
        return self.run_all([(case, inputs)])[0]

    def run_all(self, jobs: Iterable[tuple[str, Mapping[str, np.ndarray]]]) -> list[dict[str, np.ndarray] | RunError]:
        """Run many cases, each with its inputs, and return the outputs of each; a process serves all cases of a binary."""
        jobs = list(jobs)
        results: list[dict[str, np.ndarray] | RunError] = [RunError("did not compile")] * len(jobs)
        by_binary: dict[Path, list[int]] = defaultdict(list)
        for index, (case, _) in enumerate(jobs):
            if case in self.binaries:
                by_binary[self.binaries[case]].append(index)
        for binary, indices in by_binary.items():
            data = self.folder / "data" / binary.name
            data.mkdir(parents=True, exist_ok=True)
            lines, outputs = [], []
            for number, index in enumerate(indices):
                case, inputs = jobs[index]
                write_tensors(data / f"{number}.in", inputs)
                outputs.append(data / f"{number}.out")
                lines.append(
                    "\t".join(
                        [_module(case), str(self.cases[case].weights or "-"), f"{data}/{number}.in", str(outputs[-1])]
                    )
                )
            (data / "jobs").write_text("\n".join(lines))
            for index, output, said in zip(indices, outputs, _said(binary, data / "jobs", len(lines)), strict=True):
                results[index] = read_tensors(output) if said == "ok" else RunError(said)
        return results


def build(
    cases: Mapping[str, Case],
    name: str = "cases",
    *,
    lint: bool = False,
    features: Iterable[str] = (),
    release: bool = False,
) -> Built:
    """Compile cases; what does not compile is left out and told.

    Args:
      cases: by name, of any letters.
      name: of the folder, so that several sets of cases do not replace each other: letters, digits, `_`.
      lint: let clippy look at them instead; its warnings count as the compiler's.
      features: of the crate, such as `train`.
      release: compile them as programs are that are used, without checks of Burn's own.
    """
    program = cargo()
    folder = BUILD / name
    for source, text in _fixed(name).items():
        _write(folder / source, text)
    built = Built(folder, cases)
    left = sorted(cases)
    chunks = {f"{name}_{start // CHUNK:02}": left[start : start + CHUNK] for start in range(0, len(left), CHUNK)}
    binaries = folder / "src/bin"
    for stale in set(binaries.glob("*")) - {binaries / chunk for chunk in chunks}:
        shutil.rmtree(stale)
    for chunk, names in chunks.items():
        _write_chunk(binaries / chunk, {case: cases[case] for case in names})
    command = [program, "clippy" if lint else "build", "--locked", "--message-format=json", "--keep-going"]
    command += [f"--features={feature}" for feature in features] + ["--release"] * release
    environment = cargo_environment()
    for _ in range(ROUNDS):
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, env=environment)
        executables, failed = _read_messages(done.stdout, chunks, built)
        if done.returncode == 0:
            break
        if not failed:
            raise RuntimeError(
                f"cargo failed, and not for a case:\n{done.stderr[-4000:]}\n{_rendered(done.stdout)[-4000:]}"
            )
        for chunk, names in chunks.items():
            if failed & set(names):
                chunks[chunk] = [case for case in names if case not in built.errors]
                _write_main(binaries / chunk, chunks[chunk])
    built.binaries = {
        case: executables[chunk] for chunk, names in chunks.items() if chunk in executables for case in names
    }
    return built


def unformatted(cases: Mapping[str, Case]) -> list[str]:
    """Return the names of the cases whose `model.rs` or `helpers.rs` `rustfmt --check` would change."""
    program = Path(cargo()).with_name("rustfmt")
    folder = BUILD / "format"
    shutil.rmtree(folder, ignore_errors=True)
    for case, sources in cases.items():
        for file, text in (
            ("model.rs", sources.model),
            ("helpers.rs", sources.helpers),
            ("weights.rs", sources.loading),
        ):
            if text:
                _write(folder / _module(case) / file, text)
    files = sorted(map(str, folder.glob("*/*.rs")))
    layout = ",".join(f"{option}={value}" for option, value in LAYOUT.items())
    command = [str(program), "--check", "--edition", "2024", "--config", layout, "--files-with-diff", *files]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode and not done.stdout:
        raise RuntimeError(f"rustfmt failed:\n{done.stderr[-4000:]}")
    changed = {Path(line).parent.name for line in done.stdout.splitlines()}
    return [case for case in cases if _module(case) in changed]


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file of safetensors; those of few bits in the types that hold them."""
    header, start = {}, 0
    arrays = {name: np.asarray(array, held(np.asarray(array).dtype)) for name, array in tensors.items()}
    for name, array in arrays.items():
        dtype = next(key for key, value in DTYPES.items() if value == array.dtype)
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [start, start + array.nbytes]}
        start += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values()))


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file of safetensors, each in its own dtype."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    arrays = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            arrays[name] = np.frombuffer(data[start:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def narrowed(output: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an output as elements of few bits, which it has to be already; any other stays what it is."""
    if not is_narrow(dtype) or output.dtype != held(dtype):
        return output
    narrow = output.astype(dtype)
    np.testing.assert_array_equal(narrow.astype(output.dtype), output, f"no numbers of {dtype.name}")
    return narrow


def _fixed(name: str) -> dict[str, str]:
    """The files of the crate that are the same for all cases.

    Each set has a version of its own: in one target folder cargo takes crates of one name and version for the same one.
    """
    version = f'version = "0.0.{zlib.crc32(name.encode())}"'
    return {
        "Cargo.toml": (HERE / "Cargo.toml").read_text().replace('version = "0.0.0"', version),
        "Cargo.lock": (HERE / "Cargo.lock").read_text().replace('version = "0.0.0"', version),
        "src/lib.rs": '#![recursion_limit = "256"]\npub mod runner;\npub mod tensors;\n',
        "src/runner.rs": (HERE / "runner.rs").read_text(),
        "src/tensors.rs": (TEMPLATES / "tensors.rs").read_text(),
    }


def _write_chunk(folder: Path, cases: Mapping[str, Case]) -> None:
    wanted = {_module(case) for case in cases}
    for stale in folder.glob("case_*"):
        if stale.name not in wanted:
            shutil.rmtree(stale)
    for case, sources in cases.items():
        module = folder / _module(case)
        parts = {"helpers": sources.helpers, "model": sources.model, "weights": sources.loading}
        parts = {part: text for part, text in parts.items() if text}
        modules = "".join(f"pub mod {part};\n" for part in parts)
        _write(module / "mod.rs", f"{modules}\n{sources.glue}")
        for part, text in parts.items():
            _write(module / f"{part}.rs", text)
    _write_main(folder, list(cases))


def _write_main(folder: Path, cases: list[str]) -> None:
    modules = "".join(f"mod {_module(case)};\n" for case in cases)
    run = "|weights, inputs, device| Ok({0}::run(&{0}::load(weights, device)?, inputs, device)?)"
    table = "".join(f'        ("{_module(case)}", {run.format(_module(case))}),\n' for case in cases)
    text = (
        '#![recursion_limit = "256"]\n'
        "#![allow(clippy::approx_constant, clippy::excessive_precision, clippy::too_many_arguments, clippy::type_complexity)]\n"
        "#![allow(dead_code)] // a user calls `save`, nothing here does\n"
        f"use cases::tensors;\n\n{modules}\n"
        "fn main() -> Result<(), Box<dyn std::error::Error>> {\n"
        f"    cases::runner::run_jobs(&[\n{table}    ])\n}}\n"
    )
    _write(folder / "main.rs", text)


def _write(path: Path, text: str) -> None:
    """Write a file unless it is there: cargo looks at the times of files."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _module(case: str) -> str:
    """The module of a case: its name if that may be a module's, else what of it may, and a number that only it has."""
    slug = re.sub(r"[^a-z0-9]+", "_", case.lower()).strip("_")
    return f"case_{slug}" if slug == case else f"case_{slug}_{zlib.crc32(case.encode()):08x}"


def _messages(output: str) -> Iterator[dict]:
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _rendered(output: str) -> str:
    return "\n".join(
        message["message"]["rendered"] for message in _messages(output) if message["reason"] == "compiler-message"
    )


def _read_messages(output: str, chunks: Mapping[str, list[str]], built: Built) -> tuple[dict[str, Path], set[str]]:
    """Give each message to its case; return the executables by chunk, and the cases that have errors now."""
    by_module = {_module(case): case for names in chunks.values() for case in names}
    executables: dict[str, Path] = {}
    failed: set[str] = set()
    for message in _messages(output):
        if message["reason"] == "compiler-artifact" and message.get("executable"):
            executables[message["target"]["name"]] = Path(message["executable"])
        if message["reason"] != "compiler-message":
            continue
        level, rendered = message["message"]["level"], message["message"]["rendered"]
        case = by_module.get(_place(message["message"]))
        if case is None or level not in {"error", "warning"}:
            continue
        told = built.errors if level == "error" else built.warnings
        if rendered not in told[case]:
            told[case].append(rendered)
        if level == "error":
            failed.add(case)
    return executables, failed


def _place(message: dict) -> str:
    """The module that the message is about: of the first span in one; a span in a macro's text has where it is used."""
    spans = list(message["spans"]) + [span for child in message["children"] for span in child["spans"]]
    for span in sorted(spans, key=lambda span: not span["is_primary"]):
        while span is not None:
            for part in Path(span["file_name"]).parts:
                if part.startswith("case_"):
                    return part
            span = (span.get("expansion") or {}).get("span")
    named = re.search(r"\bcase_\w+", message["rendered"])  # what `main` says of a module
    return named[0] if named else ""


def _said(binary: Path, jobs: Path, count: int) -> list[str]:
    """Run the jobs; a process that ends or hangs is that job's error, and the next one starts another."""
    said: list[str] = []
    while len(said) < count:
        command = [str(binary), str(jobs), str(len(said))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                output, errors = process.communicate(timeout=PATIENCE + (count - len(said)))
                ended = f"the process ended with {process.returncode}: {errors[-500:]}"
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                ended = f"was not done within {PATIENCE:.0f} s"
        said += output.splitlines()
        if len(said) < count:
            said.append(ended)
    return said

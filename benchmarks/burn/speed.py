"""The CPU time of one forward on one thread: printed crates for Burn, ONNX Runtime, `jax.jit`, and the peer's code.

python -m benchmarks.burn.speed FOLDER [NAME …] [--examples MODEL/FRAMEWORK …] [--quick] [--write rows.json]

The folder has files `NAME.onnx` with inputs in `NAME.0.npz`, as `tests.torch.exporting` writes them; `--examples` writes examples
into it first, at their published sizes. The peer's generator is compiled from `benchmarks/burn/peer`; files that it does not
convert have no figure of it. `--quick` takes what the tests have compiled, with the checks of a development build: to try the
script, not for figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

import jaxport
from benchmarks.measure import rendered, run
from examples.models import build as build_example
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer.interface import in_model_order
from tests.burn.crates import BUILD, Built, Case, RunError, build, cargo, case_of
from tests.torch.imported import Checks

HERE = Path(__file__).parent
SECONDS = 1.0
"""For how long a model runs while its time is taken."""
ROUNDS = 3
"""How often crates take turns, so that both have their share of a busy machine: the median counts."""
BATCH = 0.05
"""For how long calls are timed together, so that short ones are not lost between two looks at the clock."""
TOKENS = 64
"""The length of the text that examples read."""
TIMED = """
/// The processor time of all threads of this process, in nanoseconds.
fn spent() -> u64 {
    std::thread::yield_now(); // the kernel adds up what ran when it chooses again
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
    texts.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
}

pub fn run(model: &ROOT, inputs: &Tensors, device: &Device) -> Result<Tensors, TensorsError> {
    computed(model, inputs, device)?;
    let start = std::time::Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || start.elapsed().as_secs_f64() < SECONDS {
        let (before, batch, mut calls) = (spent(), std::time::Instant::now(), 0);
        while calls == 0 || batch.elapsed().as_secs_f64() < BATCH {
            computed(model, inputs, device)?;
            calls += 1;
        }
        times.push((spent() - before) as f32 / 1e6 / calls as f32);
    }
    times.sort_by(f32::total_cmp);
    let mut outputs = computed(model, inputs, device)?;
    outputs.insert("milliseconds", burn::tensor::Tensor::<1>::from_data([times[times.len() / 2]], device));
    Ok(outputs)
}
"""
PEER = """use std::path::PathBuf;

use burn::prelude::*;
use burn::tensor::{{FloatDType, IntDType}};

use crate::tensors::{{Tensors, TensorsError}};
use model::Model;

pub fn load(path: impl Into<PathBuf>, device: &Device) -> Result<Model, TensorsError> {{
    let path: PathBuf = path.into();
    Ok(Model::from_file(path.to_str().unwrap(), device))
}}

pub fn computed(model: &Model, inputs: &Tensors, device: &Device) -> Result<Tensors, TensorsError> {{
    let {pattern} = model.forward({arguments});
    let mut outputs = Tensors::default();
{stored}
    Ok(outputs)
}}
"""
RUNTIME = """
import time, numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession({path!r}, options, providers=["CPUExecutionProvider"])
inputs = dict(np.load({inputs!r}))
call = lambda: session.run(None, inputs)
"""
JAX = """
import time, numpy as np, jax, jaxport
program = jaxport.from_onnx({path!r})
inputs = dict(np.load({inputs!r}))
compiled = jax.jit(lambda inputs: program.apply(program.params, **inputs))
call = lambda: jax.block_until_ready(compiled(inputs))
"""
TAKEN = """
call(), call()
times, start = [], time.perf_counter()
while len(times) < 3 or time.perf_counter() - start < {seconds}:
    before = time.process_time()
    call()
    times.append(1000 * (time.process_time() - before))
result = {{"milliseconds": sorted(times)[len(times) // 2]}}
"""


@dataclass(frozen=True)
class Row:
    """The milliseconds of a model; NaN where there is none.

    Attributes:
      burn: the printed crate.
      runtime: ONNX Runtime.
      jax: the imported program, compiled.
      peer: what the peer's generator makes of the file.
      why: why the peer has no figure.
    """

    name: str
    burn: float
    runtime: float
    jax: float
    peer: float
    why: str = ""


def written(cell: str, folder: Path) -> str:
    """Write an example and its inputs to a folder, and return the name of the file."""
    name = cell.replace("/", "_")
    if not (folder / f"{name}.onnx").exists():
        example = build_example(*cell.split("/"), "real")  # type: ignore[arg-type]
        exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
        for number, sizes in enumerate(example.sizes[:2]):
            sample = example.sample(np.random.default_rng(0), {**sizes, **{key: TOKENS for key in sizes if key == "T"}})
            arrays: dict[str, Any] = exported.flatten(sample, {})
            np.savez(folder / f"{name}.{number}.npz", **arrays)
        exported.save(folder / f"{name}.onnx")
    return name


def timed(case: Case) -> Case:
    """Return a case that takes its time: `run` returns it beside the outputs."""
    root = re.search(r"pub fn (?:run|computed)\(model: &(\w+)", case.glue)
    assert root is not None
    text = TIMED.replace("ROOT", root[1]).replace("SECONDS", str(SECONDS)).replace("BATCH", str(BATCH))
    return replace(case, glue=case.glue.replace("pub fn run(", "pub fn computed(") + text)


def printed(path: Path) -> Case:
    """Print a file."""
    checks = Checks(path)
    crate = to_crate(record_fused(in_model_order(checks.program), checks.recorded_with()))
    return timed(case_of(crate, f"speed_{path.stem}"))


def of_peer(path: Path) -> Case | str:
    """Return what the peer makes of a file, or why it makes nothing."""
    program, target = cargo(), BUILD / "peer"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    subprocess.run([program, "build"], check=True, cwd=HERE / "peer", env=environment, capture_output=True)
    folder = target / "sources" / path.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (file := folder / "model.onnx").write_bytes(path.read_bytes())
    done = subprocess.run([target / "debug/peer", file, folder], check=False, capture_output=True, text=True)
    if done.returncode or not (folder / "model.rs").exists():
        lines = [line for line in done.stderr.splitlines() if "panicked" not in line and line.strip()]
        return " ".join(lines[:2])[:120] or "it writes nothing"
    graph = onnx.load(file, load_external_data=False).graph
    known = {tensor.name for tensor in graph.initializer}
    arguments = [_argument(value) for value in graph.input if value.name not in known]
    places = [f"y{number}" for number in range(len(graph.output))]
    glue = PEER.format(
        pattern=places[0] if len(places) == 1 else f"({', '.join(places)})",
        arguments=", ".join(arguments),
        stored="\n".join(f'    outputs.insert("{place}", {place});' for place in places),
    )
    text = (
        (folder / "model.rs").read_text().replace("burn_store::", "burn::store::")
    )  # the crate that Burn has as a module
    return timed(Case(text, glue, weights=folder / "model.bpk"))


def _argument(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    kind = {"f": "float", "b": "bool"}.get(dtype.kind, "int")
    cast = {"float": ".cast(FloatDType::F32)", "int": ".cast(IntDType::I64)", "bool": ""}[kind]
    return f'inputs.{kind}::<{len(tensor.shape.dim)}>("{value.name}", device)?{cast}'


def milliseconds(built: Built, name: str, inputs: Mapping[str, np.ndarray]) -> tuple[float, str]:
    """Return the time of a case, or NaN and why there is none."""
    if name in built.errors:
        return float("nan"), "it does not compile: " + built.errors[name][0].splitlines()[0][:100]
    with mock.patch.dict(os.environ, {"RAYON_NUM_THREADS": "1"}):
        outputs = built.run(name, inputs)
    if isinstance(outputs, RunError):
        return float("nan"), outputs.message[:120]
    return float(outputs["milliseconds"][0]), ""


def measured_beside(
    built: Built, name: str, why: str, inputs: Mapping[str, np.ndarray]
) -> tuple[tuple[float, float], str]:
    """Return the times of a crate and of the peer's, one after the other, and why the peer has none."""
    burn, problem = milliseconds(built, name, inputs)
    assert not problem, f"{name}: {problem}"
    peer, why = (float("nan"), why) if why else milliseconds(built, f"{name} of the peer", inputs)
    return (burn, peer), why


def measured(paths: Sequence[Path], release: bool) -> list[Row]:
    """Compile all models once, and take the time of each."""
    cases: dict[str, Case] = {path.stem: printed(path) for path in paths}
    reasons: dict[str, str] = {}
    for path in paths:
        case = of_peer(path)
        if isinstance(case, str):
            reasons[path.stem] = case
        else:
            cases[f"{path.stem} of the peer"] = case
    built = build(cases, "speed", release=release)
    rows = []
    for path in paths:
        name, inputs = path.stem, BUILD / "speed" / f"{path.stem}.npz"
        known = {value.name for value in onnx.load(path, load_external_data=False).graph.input}
        arrays: dict[str, Any] = {
            key: array for key, array in np.load(path.with_suffix(".0.npz")).items() if key in known
        }
        np.savez(inputs, **arrays)  # without the results that lie beside them
        rounds = [measured_beside(built, name, reasons.get(name, ""), arrays) for _ in range(ROUNDS)]
        burn, peer = (sorted(times)[ROUNDS // 2] for times in zip(*(times for times, _ in rounds), strict=True))
        why = rounds[0][1]
        places = {"path": str(path), "inputs": str(inputs)}
        runtime, compiled = (
            run(text.format(**places) + TAKEN.format(seconds=SECONDS))["milliseconds"] for text in (RUNTIME, JAX)
        )
        rows.append(Row(name, burn, runtime, compiled, peer, why))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure files, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.burn.speed", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="patterns of the names of files")
    parser.add_argument("--examples", nargs="*", default=[], metavar="CELL", help="examples, such as `gpt2/nnx`")
    parser.add_argument("--quick", action="store_true", help="a development build, to try the script")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where the rows go, as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    patterns = [*arguments.names, *(written(cell, arguments.folder) for cell in arguments.examples)] or ["*"]
    paths = sorted({path for pattern in patterns for path in arguments.folder.glob(f"{pattern}.onnx")})
    rows = measured(paths, release=not arguments.quick)
    header = ("file", "Burn, ms", "× ONNX Runtime", "× jax.jit", "× burn-onnx", "why not")
    cells = [(r.name, r.burn, r.burn / r.runtime, r.burn / r.jax, r.burn / r.peer, r.why) for r in rows]
    print(rendered(f"jaxport {jaxport.__version__}, Burn 0.22.1", header, cells))
    if arguments.write:
        arguments.write.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

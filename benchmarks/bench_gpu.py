"""Imported models on a GPU, beside PyTorch and beside models written by hand in Flax NNX: times, errors and memory.

`python -m benchmarks.bench_gpu [NAME …] [--small] [--results FILE]`, in an environment with PyTorch and `transformers`, measures
and writes figures as JSON; `--write` makes `docs/gpu.md` of them. Without a GPU, `--small` tries the benchmark on the CPU.

Each model has a process of its own for each type. They compile side by side; when all have compiled, one measures after the other.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import page
from benchmarks.measure import ROOT

PARALLEL = 12
"""How many processes compile at once; of XLA's compiler there are fewer."""

CALLS = 4
"""Calls that are started before the device is waited for: so many hide the time in which Python starts one."""


class Measured:
    """The ways of one model in one type, and what is found of each.

    Args:
      name: that of the model.
      dtype: "float32" or "bfloat16".
      small: whether it is small.
      budget: the seconds after which nothing more is compiled.
      without: how the names of ways begin that are left out.
    """

    def __init__(self, name: str, dtype: str, small: bool, budget: float, without: list[str]):
        self.found: dict[str, Any] = {"model": name, "dtype": dtype, "ways": {}, "problems": {}}
        self.ready: dict[str, Any] = {}
        self.name, self.dtype, self.small, self.without = name, dtype, small, without
        self.budget, self.start = budget, time.perf_counter()

    def tried(self, way: str, act: Callable[[], Any]) -> Any:
        """Return what an act returns; None if it fails, which is recorded and must not end the others."""
        if time.perf_counter() - self.start > self.budget:
            self.found["problems"][way] = "not compiled: there was no time left"
            return None
        try:
            return act()
        except Exception as error:  # noqa: BLE001  whatever a library raises
            self.found["problems"][way] = f"{type(error).__name__}: {error}"[:1500]
            return None

    def compile(self) -> None:
        """Make the model, and compile it on all ways."""
        import jax
        import jax.numpy as jnp
        import torch

        import jaxport
        from benchmarks.gpu import sides
        from benchmarks.gpu.cases import CASES, made

        case, dtype = CASES[self.name], getattr(torch, self.dtype)
        model = made(case, self.small, dtype)
        types = {torch.float32: jnp.float32, torch.bfloat16: jnp.bfloat16}
        inputs = tuple(jnp.asarray(each.float().numpy(), types.get(each.dtype, jnp.int32)) for each in model.inputs)
        flax_inputs = tuple(
            jnp.asarray(each, getattr(jnp, self.dtype) if each.dtype.kind == "f" else jnp.int32)
            for each in model.flax_inputs
        )
        flax = self.tried("Flax", lambda: sides.flax_model(case.architecture, model, getattr(jnp, self.dtype)))
        program = self.tried("imported", lambda: jaxport.from_torch(model.module, model.inputs, verify=False))
        self.found |= {"parameters": sum(each.numel() for each in model.module.parameters()), "small": self.small}
        self.found |= {
            "inputs": [list(each.shape) for each in model.inputs],
            "device": str(jax.devices()[0].device_kind),
        }
        self.found["versions"] = {
            name: importlib.metadata.version(name) for name in ("jax", "flax", "torch", "transformers", "onnx")
        }
        with sides.full_precision(True):
            reference = copy.deepcopy(model.module).to(sides.device()).float()
            given = [each.to(sides.device()) for each in model.inputs]
            output = reference(*(each.float() if each.is_floating_point() else each for each in given))
            loss = output.square().mean()
            loss.backward()
            self.expected = output.detach()
            self.gradient = {name: each.grad for name, each in reference.named_parameters() if each.grad is not None}
            del reference, output, loss
        makers = sides.of_torch(model)
        if flax is not None:
            makers |= sides.of_flax("Flax", flax, flax_inputs)
        if program is not None:
            makers |= sides.of_program("imported", program, inputs)
            folder = Path(tempfile.mkdtemp()) / "printed"
            wanted = "printed" not in self.without
            source = self.tried("printed", lambda: sides.printed(program, folder)) if wanted else None
            makers |= {} if source is None else sides.of_flax("printed", source, inputs)
        if flax is not None and "round trip" not in self.without:

            def returned() -> jaxport.Program:
                return jaxport.from_onnx(jaxport.to_onnx(flax, list(flax_inputs)).model)

            again = self.tried("round trip", returned)
            makers |= {} if again is None else sides.of_program("round trip", again, flax_inputs)
        left_out = tuple(self.without)
        order = [way for way in WAYS if way in makers and not way.startswith(left_out)]
        if self.dtype != "float32":  # the two processes of a model do not wait for the same thing at once
            order = sorted(
                (way for way in order if "constant" not in way and "nnx.jit" not in way),
                key=lambda way: "orch" in way,
            )
        with sides.full_precision(False):
            for way in order:
                self.ready[way] = self.tried(way, makers[way])
        if self.dtype == "float32":
            with sides.full_precision(True):
                for way in ("PyTorch eager", "imported", "Flax"):
                    if way in makers and not f"{way}, exact".startswith(left_out):
                        self.ready[f"{way}, exact"] = self.tried(f"{way}, exact", makers[way])
        self.ready = {way: ready for way, ready in self.ready.items() if ready is not None}

    def measure(self, repeats: int) -> None:
        """Compare the values of each way, and time them in turns."""
        from benchmarks.gpu import sides

        times: dict[str, list[float]] = {}
        for exact in (False, True):
            with sides.full_precision(exact):
                ways = [way for way in self.ready if way.endswith(", exact") is exact]
                ways = [way for way in ways if self.tried(way, lambda way=way: self.checked(way))]
                for number in range(repeats):
                    for way in ways if number % 2 else reversed(ways):
                        ready = self.ready[way]
                        start = time.perf_counter()
                        result = ready.run()
                        for _ in range(CALLS - 1):
                            result = ready.run()
                        ready.wait(result)
                        del result
                        times.setdefault(way, []).append((time.perf_counter() - start) / CALLS)
        for way, seconds in times.items():
            self.found["ways"][way] |= {
                "ms": 1000 * statistics.median(seconds),
                "quartiles": [1000 * each for each in statistics.quantiles(seconds, n=4)[::2]],
            }

    def checked(self, way: str) -> bool:
        """Record how far a way is from PyTorch in float32, and what memory it takes."""
        import torch

        from benchmarks.gpu import sides

        ready, on_gpu = self.ready[way], torch.cuda.is_available()
        found: dict[str, Any] = {"compile seconds": ready.seconds, "MB": ready.megabytes}
        ready.wait(ready.run())
        if on_gpu and ready.megabytes is None and "orch" in way:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            result = ready.wait(ready.run())
            found["MB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        else:
            result = ready.wait(ready.run())

        if "gradient" in way:
            loss, gradients = result
            expected = float(self.expected.square().mean())
            found["loss error"] = abs(float(loss) - expected) / expected
            if isinstance(gradients, dict) and gradients.keys() >= self.gradient.keys():
                found["gradient error"] = sides.gradient_difference(gradients, self.gradient)
        else:
            found["error"] = sides.difference(result, self.expected)
        self.found["ways"][way] = found
        return True


WAYS = tuple(
    way + kind
    for kind in ("", ", gradient", ", constant weights", ", nnx.jit")
    for way in ("PyTorch eager", "torch.compile", "Flax", "imported", "printed", "round trip")
    if (way + kind) != "round trip, constant weights"
)


def child(options: argparse.Namespace) -> None:
    """Compile, wait for a line, measure, and write what was found."""
    measured = Measured(options.names[0], options.child, options.small, options.budget, options.without)
    results = Path(options.results)
    measured.tried("making", measured.compile)
    measured.found["seconds until compiled"] = time.perf_counter() - measured.start
    results.write_text(json.dumps(measured.found))
    print("COMPILED", flush=True)
    sys.stdin.readline()
    measured.budget = float("inf")
    measured.tried("measuring", lambda: measured.measure(options.repeats))
    results.write_text(json.dumps(measured.found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="models; all by default")
    parser.add_argument("--small", action="store_true", help="small models, to try the benchmark itself")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), action="append", help="both by default")
    parser.add_argument("--results", default=str(ROOT / "gpu.json"), help="where figures are written as JSON")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--parallel", type=int, default=PARALLEL)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds in which a model may compile")
    parser.add_argument("--without", action="append", default=[], help="how the names of ways begin that are left out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="make the page of the figures that are there")
    options = parser.parse_args()
    if options.write:
        (ROOT / "docs" / "gpu.md").write_text(page(json.loads(Path(options.results).read_text())))
        return
    if options.child:
        child(options)
        return
    from benchmarks.gpu.cases import CASES

    found = measured_in_processes(
        [(name, dtype) for dtype in options.dtype or ("float32", "bfloat16") for name in options.names or CASES],
        options,
    )
    Path(options.results).write_text(json.dumps(found, indent=1))
    print(page(found))


def measured_in_processes(jobs: list[tuple[str, str]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what was found of each model in each type: all compile first, some at once; then each measures alone."""
    environment = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # both libraries share the memory
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        **os.environ,
    }
    waiting, compiling, done = list(enumerate(jobs)), [], []
    with tempfile.TemporaryDirectory() as folder:
        environment["JAXPORT_GPU_SLOTS"] = folder
        paths = [Path(options.results).with_suffix(f".{number}.json") for number, _ in enumerate(jobs)]
        log = (Path(folder) / "log").open("w+")

        def started(number: int, name: str, dtype: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_gpu", name, "--child", dtype]
            command += [
                "--results",
                str(paths[number]),
                "--repeats",
                str(options.repeats),
                "--budget",
                str(options.budget),
            ]
            command += ["--small"] * options.small + [f"--without={each}" for each in options.without]
            pipe = subprocess.PIPE
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)

        while waiting or compiling:
            while waiting and len(compiling) < options.parallel:
                number, (name, dtype) = waiting.pop(0)
                compiling.append((number, started(number, name, dtype)))
            number, process = compiling.pop(0)
            for line in process.stdout or ():
                if line == "COMPILED\n":
                    break
            print(f"compiled: {jobs[number]}", file=sys.stderr, flush=True)
            done.append((number, process))
        for number, process in done:
            process.communicate("measure\n" if process.poll() is None else None)
            print(f"measured: {jobs[number]}, exit status {process.returncode}", file=sys.stderr, flush=True)
        log.seek(0)
        print(log.read()[-4000:], file=sys.stderr)
    found = [json.loads(path.read_text()) for path in paths if path.exists()]
    for path in paths:
        path.unlink(missing_ok=True)
    return found


if __name__ == "__main__":
    main()

"""Mutated files: whatever is done to one, it is read or refused, soon, small, and with an error of the package.

`python -m tests.fuzzing KIND SEED COUNT`, where KIND is onnx, json, yson, xml or stablehlo, operations (of a Mox, each alone, with other
parameters; `operations-programs` without those of the functions of JAX), or programs of JAX, prints what went wrong otherwise, a
summary, and leaves with status 1 if anything did. The files are tried in a worker process, which is replaced when it
crashes or hangs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS, SECONDS_OF_PROGRAMS = 10, 60
"""CPU seconds that one file may take, and a program, which is compiled several times."""

WALL = 180
"""Seconds without any word of the worker after which it hangs."""

GIGABYTE = 2**30
"""Memory that one file may take beyond what the process has."""

GIGABYTES = 24
"""Address space of the process, of which JAX itself reserves much."""


class _TooLong(BaseException):
    """A file takes too long: no `except Exception` of the package may keep it."""


def attempts(kind: str, seed: int, count: int, first: int, folder: Path) -> Iterator[tuple[int, Any, Any]]:
    """For each file its number, what can be shown of it, and a function that tries it."""
    if kind in ("onnx", "stablehlo"):
        from tests.fuzzing import artifacts, onnx_files

        room = onnx_files if kind == "onnx" else artifacts
        for index, data in enumerate(room.files(seed, count)):
            if index >= first:
                yield index, data, lambda data=data: room.attempt(data, folder)
    elif kind == "programs":
        from tests.fuzzing import jax_programs

        for index, made in enumerate(jax_programs.files(seed, count)):
            if index >= first:
                yield index, made, lambda made=made: jax_programs.attempt(made, folder)
    elif kind.startswith("operations"):
        from tests.fuzzing import equations

        for index, text in enumerate(equations.files(kind.partition("-")[2] or "jax", seed, count)):
            if index >= first:
                yield index, text, lambda text=text: equations.attempt(text, folder)
    else:
        from tests.fuzzing import mox_files

        for index, (text, weights) in enumerate(mox_files.files(kind, seed, count)):
            if index >= first:
                yield index, text, lambda text=text, weights=weights: mox_files.attempt(kind, text, weights, folder)


def peak() -> int:
    """The most memory that the process had since it was last asked."""
    with open("/proc/self/status") as status:
        most = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return most


def work(kind: str, seed: int, count: int, first: int) -> None:
    """Tries the files from `first` on; one line before and one after each."""
    from tests.compiling import compile_fast
    from tests.fuzzing.opened import opened_files

    compile_fast()
    most = SECONDS_OF_PROGRAMS if kind == "programs" else SECONDS

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES * 2**30, GIGABYTES * 2**30))

    def too_long(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGPROF, too_long)
    import jaxport.codegen.source as printing

    printing._formatted = lambda code: code  # another process for each file takes long
    own = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, Path(__file__).parents[2], "/proc/self")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        cache = os.path.realpath(os.environ["JAX_COMPILATION_CACHE_DIR"])
        # The last are the devices, among which ONNX Runtime 1.28 looks for GPUs.
        allowed = (str(folder), *own, f"/proc/{os.getpid()}", os.devnull, cache, "/sys/")
        for index, shown, attempt in attempts(kind, seed, count, first, folder):
            print(json.dumps({"begin": index}), flush=True)
            problem, before = "", peak()
            start = time.process_time()
            with opened_files() as opened:
                signal.setitimer(signal.ITIMER_PROF, most)
                try:
                    result = attempt()
                except (Exception, _TooLong):  # noqa: BLE001  whatever it is, it is what is looked for
                    result, problem = "foreign", traceback.format_exc()
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
            seconds, memory = time.process_time() - start, peak() - before
            elsewhere = [path for path in opened if not path.startswith(allowed)]
            if seconds > most:
                result, problem = "hang", f"{seconds:.0f} CPU seconds\n{problem}"
            elif memory > GIGABYTE:
                result, problem = "memory", f"{memory:,} bytes\n{problem}"
            elif elsewhere and kind != "programs":  # which are not files from elsewhere
                result, problem = "elsewhere", f"{elsewhere}\n{problem}"
            row = {"end": index, "result": result, "seconds": seconds, "memory": memory}
            print(
                json.dumps(row | ({"problem": problem[-3000:], "file": _shown(shown)} if problem else {})),
                flush=True,
            )


def _shown(made: Any) -> str:
    return (repr(made) if isinstance(made, str | bytes) else str(made))[:8000]


def watched(command: list[str]) -> Iterator[dict[str, Any]]:
    """The lines of a worker; it is killed where it says nothing for long."""
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert worker.stdout is not None
    while True:
        timer = threading.Timer(WALL, worker.kill)
        timer.start()
        line = worker.stdout.readline()
        timer.cancel()
        if not line:
            break
        yield json.loads(line)
    worker.wait()


def main(kind: str, seed: str, count: str) -> int:
    found: Counter[str] = Counter()
    first, slowest, largest = 0, 0.0, 0
    begun = time.monotonic()
    next(attempts(kind, int(seed), 0, 0, Path()), None)  # what takes minutes to make, before a worker has to say a word
    while first < int(count):
        current = first
        for row in watched([sys.executable, "-m", "tests.fuzzing", "--work", kind, seed, count, str(first)]):
            if "begin" in row:
                current = row["begin"]
                continue
            first = row["end"] + 1
            found[row["result"]] += 1
            slowest, largest = max(slowest, row["seconds"]), max(largest, row["memory"])
            if "problem" in row:
                print(f"file {row['end']}: {row['result']}\n{row['problem']}\n{row['file']}\n", flush=True)
        if first < int(count):
            found["crash or silence"] += 1
            print(f"file {current}: the worker died", flush=True)
            first = current + 1
    problems = {name: found[name] for name in ("crash or silence", "hang", "foreign", "elsewhere", "memory")}
    print(
        f"{kind}, seed {seed}: {count} files in {time.monotonic() - begun:.0f} s; {problems}; "
        f"{dict(found - Counter(problems))}; at most {slowest:.1f} CPU s and {largest / 2**20:.0f} MB a file"
    )
    return bool(sum(problems.values()))


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        _, _, kind, seed, count, first = sys.argv
        work(kind, int(seed), int(count), int(first))
    else:
        sys.exit(main(*sys.argv[1:]))

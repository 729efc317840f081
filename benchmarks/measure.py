"""What the benchmarks share: fresh processes, CPU time on one thread, peak memory, medians, a table."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"

_EPILOGUE = """
import json, resource
usage = resource.getrusage(resource.RUSAGE_SELF)
print("MEASURED " + json.dumps({
    "cpu": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024, **globals().get("result", {})
}))
"""


def run(program: str, python: str | os.PathLike[str] = sys.executable, source: Path = ROOT / "src") -> dict[str, Any]:
    """Run a program in a fresh process on one thread; its global `result`, its CPU seconds and its peak memory.

    `source` is the folder that jaxport is imported from: that of this checkout.
    """
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(source)]),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    finished = subprocess.run(
        [python, "-W", "ignore", "-c", textwrap.dedent(program) + _EPILOGUE],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,  # its own error is shown below
    )
    if finished.returncode:
        raise SystemExit(f"the measured program failed:\n{finished.stderr[-3000:]}")
    line = next(line for line in reversed(finished.stdout.splitlines()) if line.startswith("MEASURED "))
    return json.loads(line.removeprefix("MEASURED "))


def median(program: str, key: str = "cpu", repeats: int = 5, python: str | os.PathLike[str] = sys.executable) -> float:
    """The median of one measured quantity over several fresh processes."""
    return statistics.median(run(program, python)[key] for _ in range(repeats))


def in_turns(calls: Sequence[Callable[[], object]], repeats: int, share: float = 0.5) -> list[float]:
    """The median CPU milliseconds of each call; they take turns, so that what else the machine does hits all of them.

    `share` is that of the calls that take at most the time returned: less than half leaves out what other work made slow.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, into in zip(calls, seconds, strict=True):
            start = time.process_time()
            call()
            into.append(time.process_time() - start)
    if share == 0.5:
        return [1000 * statistics.median(each) for each in seconds]
    return [1000 * sorted(each)[int(share * (len(each) - 1))] for each in seconds]


def have_peers() -> bool:
    """Whether the environment of the peers was made (`make bench` makes it)."""
    return PEERS.exists()


#: A cell of figures: a number, two of them, or none.
_FIGURE = re.compile(r"–|[-+]?[\d.]+(e[-+]?\d+)?( → \d+)?")


def rendered(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, under its title: numbers have three digits, and their columns are aligned to the right."""
    shown = [[f"{cell:#.3g}".rstrip(".") if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    columns = zip(*shown, strict=True) if shown else [() for _ in header]
    aligned = ["---:" if column and all(map(_FIGURE.fullmatch, column)) else "---" for column in columns]
    lines = [f"\n## {title}\n", f"| {' | '.join(header)} |", f"|{'|'.join(aligned)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in shown)])


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table in Markdown."""
    print(rendered(title, header, rows))

"""What the sweeps found is counted at the end of a run."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print, of each namespace, how many functions and cells were exported and compared."""
    found: dict[str, Counter] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, value in getattr(report, "user_properties", ()):
                if key == "sweep" and report.when == "call":
                    namespace, what, count = value
                    found.setdefault(namespace, Counter())[what] += count
    if found:
        terminalreporter.section("sweeps")
    for namespace in sorted(found):
        counts = ", ".join(f"{count} {what}" for what, count in sorted(found[namespace].items()))
        terminalreporter.write_line(f"{namespace}: {counts}")

"""What was imported is shown as a table at the end of a run, and written as a page if nothing is missing."""

from __future__ import annotations

from typing import Any

PROPERTY = "model of PyTorch"

# What needs PyTorch, which has an environment of its own, is not even looked at for doctests.
collect_ignore = ["exporting.py", "families.py", "fresh.py", "idioms.py", "models.py", "networks.py", "published.py"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each model."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    rows = [
        value
        for report in reports
        if getattr(report, "when", "") == "call"
        for key, value in report.user_properties
        if key == PROPERTY
    ]
    if not rows:
        return
    from tests.torch import page

    terminalreporter.section("models of PyTorch")
    terminalreporter.write(page.page(rows).partition("| model")[2])
    from tests.torch.exporting import cells

    if len(rows) == len(cells()) and not terminalreporter.stats.get("failed"):
        page.write(rows)

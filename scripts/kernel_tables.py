"""Write a table of `src/jaxport/onnx_facts`; with `--check` say whether it is up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def write(target: Path, script: str, **tables: Any) -> None:
    """Write tables as JSON, one row a line, or end the process if `--check` finds others."""
    parts = {"written by": f"{script}, not by hand", **tables}
    text = "{\n" + ",\n".join(f"{json.dumps(name)}: {_rows(table)}" for name, table in parts.items()) + "\n}\n"
    if "--check" in sys.argv:
        raise SystemExit(0 if target.read_text() == text else f"{target} is out of date")
    target.write_text(text)


def _rows(table: Any) -> str:
    if not isinstance(table, dict):
        return json.dumps(table)
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in table.items()) + "\n}"

"""What the cells of a notebook print: they run from top to bottom, in a folder with the files of `docs/files`.

`python -m scripts.notebook_outputs docs/notebooks/lora.ipynb` prints a list in JSON, a text for each cell of code.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

FILES = Path(__file__).parents[1] / "docs" / "files"


def sources(path: Path) -> list[str]:
    """Return the sources of the cells of code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def outputs(path: Path) -> list[str]:
    """Run a notebook in the folder that is current; return what each cell prints, and the value of its last line."""
    shutil.copytree(FILES, ".", dirs_exist_ok=True)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return [_output(source, f"{path.name}, cell {number}", namespace) for number, source in enumerate(sources(path))]


def _output(source: str, name: str, namespace: dict[str, Any]) -> str:
    tree, value = ast.parse(source), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
        if value is not None:
            print(repr(value))  # noqa: T201  into the text
    return printed.getvalue().rstrip()


if __name__ == "__main__":
    notebook = Path(sys.argv[1]).resolve()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(json.dumps(outputs(notebook)))  # noqa: T201  the result
        os.chdir(FILES)

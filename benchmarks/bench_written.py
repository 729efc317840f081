"""How far printed source reads as its author wrote it: what exporters leave behind, counted in the printed files.

python -m benchmarks.bench_written FOLDER OUT [NAME …]     # prints ONNX files, and a table of what is left in them
python -m benchmarks.bench_written --count OUT             # the table of what was printed before

`--framework equinox` or `burn` instead of `nnx`. What is counted in Python is told from its syntax, in Rust from its text.
"""

from __future__ import annotations

import argparse
import ast
import collections
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jaxport
from benchmarks.measure import rendered

COUNTED = ("guards", "gathers", "spelled attention", "attention", "handed parameters", "mask lines", "lines", "classes")
COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
LOW = -1e9


class _Function:
    """What the body of a function holds, and which of its names depend on positions and sizes alone."""

    def __init__(self, function: ast.FunctionDef):
        self.function = function
        self.sizes: set[str] = set()
        self.positions: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".shape"):
                self.sizes |= {name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)}
        for statement in function.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                (self.positions.add if self.of_positions(statement.value) else self.positions.discard)(name)

    def of_positions(self, value: ast.expr) -> bool:
        """Whether an expression is computed from `arange` and sizes alone."""
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} - {"jnp", "nn", "int", "bool"}
        return (
            bool(names & self.positions or "jnp.arange" in ast.unparse(value)) and names <= self.positions | self.sizes
        )


def counts(code: str) -> collections.Counter[str]:
    """Return what is left behind in a printed module of Python."""
    tree, found = ast.parse(code), collections.Counter[str]()
    found["classes"] = sum(isinstance(node, ast.ClassDef) for node in tree.body)
    body = code.partition("\n\n\n")[2].partition("\n\n\ndef load(")[0]
    found["lines"] = sum(bool(line.strip()) for line in body.splitlines())
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for function in (node for node in kind.body if isinstance(node, ast.FunctionDef)):
            found += _counts(_Function(function))
    return found


def _counts(known: _Function) -> collections.Counter[str]:
    found, products, softmaxes = collections.Counter[str](), 0, 0
    for node in ast.walk(known.function):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found["guards"] += name == "jnp.isnan"
            found["attention"] += name.endswith("dot_product_attention")
            softmaxes += name.endswith("softmax") and "log" not in name
            if name in ("jnp.take", "jnp.take_along_axis") and len(node.args) > 1:
                is_table = re.search(r"embedding|\[\.\.\.\]", ast.unparse(node.args[0]))
                found["gathers"] += known.of_positions(node.args[1]) and not is_table
            if name.startswith(("self.", "layer", "one")):
                found["handed parameters"] += sum(map(_is_parameter, node.args))
        elif isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            found["gathers"] += any(not isinstance(part, ast.Slice) and known.of_positions(part) for part in parts)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            products += 1
    found["spelled attention"] += bool(softmaxes and products)
    for statement in known.function.body:
        if any(_is_of_mask(node) for node in ast.walk(statement)):
            found["mask lines"] += 1
    return found


def _is_parameter(node: ast.AST) -> bool:
    """Whether an expression is `self.weight[...]`: a parameter itself, not what is computed with it."""
    is_whole = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value is ...
    return is_whole and isinstance(node.value, ast.Attribute)


def _is_of_mask(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], COMPARED)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in (
            "jnp.logical_and",
            "jnp.logical_or",
            "jnp.logical_not",
            "jnp.tril",
            "jnp.finfo",
        )
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value <= LOW


def counts_of_rust(code: str) -> collections.Counter[str]:
    """Return what is left behind in a printed module of Rust."""
    found = collections.Counter[str]()
    found["classes"] = code.count("pub struct ")
    found["lines"] = sum(bool(line.strip()) for line in code.splitlines())
    found["guards"] = code.count(".is_nan()")
    found["gathers"] = len(re.findall(r"\b(?:take|select|gather|gather_nd)\([^;]*arange", code))
    found["attention"] = len(re.findall(r"\battention\(|dot_product_attention\(", code))
    softmaxes = re.findall(r"fn forward\(.*?\n    }", code, re.DOTALL)
    found["spelled attention"] = sum("softmax(" in body and ".matmul(" in body for body in softmaxes)
    found["mask lines"] = len(
        re.findall(r"^.*(?:lower_equal|greater|mask_where|bool_and|tril_mask).*$", code, re.MULTILINE)
    )
    return found


def _printed(folder: Path, out: Path, framework: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Print files, and yield the name of each with the reason why it was refused, or an empty text."""
    for path in sorted(folder.glob("*.onnx")):
        if names and path.stem not in names:
            continue
        try:
            jaxport.from_onnx(path).to_source(out / path.stem, framework=framework)
            yield path.stem, ""
        except jaxport.JaxportError as error:
            yield path.stem, " ".join(str(error).split())[:160]


def table(out: Path) -> str:
    """Return the table of what is left in printed files, with the sum of each column."""
    rows, total = [], collections.Counter[str]()
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        python, rust = folder / "model.py", sorted(folder.glob("src/*.rs"))
        if python.exists():
            found = counts(python.read_text())
        elif rust:
            found = sum(
                (counts_of_rust(path.read_text()) for path in rust if path.stem != "helpers"), collections.Counter()
            )
        else:
            continue
        rows.append([folder.name, *(found[name] for name in COUNTED)])
        total.update(found)
    files = [f"{sum(bool(row[at]) for row in rows)} files" for at in range(1, len(COUNTED) - 1)]
    rows += [["all", *(total[name] for name in COUNTED)], ["in", *files, ""]]
    return rendered("What exporters leave behind", ("file", *COUNTED), rows)


def main() -> None:
    """Print, count, or both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--framework", default="nnx", choices=("nnx", "equinox", "burn"))
    parser.add_argument("paths", nargs="+", type=Path)
    chosen = parser.parse_args()
    if not chosen.count:
        folder, out, *names = chosen.paths
        for name, refused in _printed(folder, out, chosen.framework, [str(name) for name in names]):
            print(name, refused and f"refused: {refused}", flush=True)
    print(table(chosen.paths[0 if chosen.count else 1]))


if __name__ == "__main__":
    main()

"""Writes `docs/pytorch.md`: which models of PyTorch were imported and compared. A run of `make test-torch` writes it.

`python -m tests.torch.page FOLDER` writes it from what `python -m tests.torch.imported FOLDER` found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "docs" / "pytorch.md"
ROWS = "rows.jsonl"
"""The file in the folder of the models that has a row for each."""

QUESTIONS = ("equal", "symbolic", "source", "gradient", "round_trip")
VARIANTS = {
    "float16": "in half precision",
    "qdq": "quantized by `quantize_static`, with calibrated scales",
    "int8": "quantized by `quantize_dynamic`",
    "fused": "what the optimizer of `onnxruntime.transformers` makes of it, in operators of `com.microsoft`",
    "optimized": "what ONNX Runtime itself makes of a model when it loads it",
}
TITLE = """# Models of PyTorch

What was imported and compared: {files} files of {models} architectures, written by both of PyTorch's exporters with open
sizes and random weights, few and narrow layers, in the operator sets {first} to {last}.{refusals}
A file counts for

- *equal* ({equal}) if the program under `jax.jit` equals ONNX Runtime at two sets of sizes. Where the runtime refuses
  the file (°), PyTorch's own results are what it equals. Of quantized models the graph is compared as it is written: ONNX
  Runtime's fusions change values by a quantization step. In half precision 2 % of the largest element are allowed, for the
  runtime rounds less often where it fuses, and 5 % in quantized models, where a value at the border of a step falls on
  either side of it and takes others along; else what the type justifies.
- *symbolic* ({symbolic}) if it traces with the names that the model has for sizes, without their values; images that a model
  halves and puts together again, with `32*height` and `32*width`;
- *source* ({source}) if the printed source computes the same where jaxport cannot be imported;
- *gradient* ({gradient}) if the gradient with respect to every parameter is finite, and not zero everywhere unless the model
  is quantized;
- *round trip* ({round_trip}) if the program, exported again, computes the same in ONNX Runtime.

{variants}

This page is written by `make test-torch` when it ran whole, or by `python -m tests.torch.page` from the files that were
compared so far.

| model | exporter | variant | opset | equal | symbolic | source | gradient | round trip |
|---|---|---|---|---|---|---|---|---|
"""


def page(rows: Iterable[dict[str, Any]]) -> str:
    """The page, from a row for each file.

    A row has `model`, `exporter`, `variant`; of an import also `opset`, `oracle`, and an answer for each of the questions,
    empty where it is yes; of a model that PyTorch cannot export, `refused`: what it says.
    """
    rows = sorted(rows, key=lambda row: (row["model"], row["exporter"], row["variant"]))
    imported = [row for row in rows if "opset" in row]
    opsets = [row["opset"] for row in imported]
    count = {question: f"{sum(not row[question] for row in imported)} of {len(imported)}" for question in QUESTIONS}
    refused = [row for row in rows if "refused" in row]
    text = TITLE.format(
        files=len(imported), models=len({row["model"] for row in imported}), first=min(opsets), last=max(opsets),
        refusals=f" {len(refused)} more PyTorch cannot export with open sizes (see the end)." if refused else "",
        variants="\n".join(f"- `{variant}`: {what};" for variant, what in VARIANTS.items()).removesuffix(";") + ".", **count,
    )  # fmt: skip
    reasons: dict[str, str] = {}
    for row in imported:
        answers = []
        for question in QUESTIONS:
            answers.append("yes" if not row[question] else "no")
            if row[question]:
                reasons[f"{_name(row)}, {question.replace('_', ' ')}"] = row[question]
        if row["oracle"] != "ONNX Runtime":
            answers[0] += "°"
        text += f"| {row['model']} | {row['exporter']} | {row['variant']} | {row['opset']} | {' | '.join(answers)} |\n"
    text += _listed("What does not hold", reasons)
    return text + _listed("What PyTorch cannot export with open sizes", {_name(row): row["refused"] for row in refused})


def _name(row: dict[str, Any]) -> str:
    return ", ".join(filter(None, (row["model"], row["exporter"], row["variant"])))


def _listed(title: str, reasons: dict[str, str]) -> str:
    if not reasons:
        return ""
    return f"\n## {title}\n\n" + "".join(f"- {what}: `{why.replace('`', '')}`\n" for what, why in reasons.items())


def write(rows: Sequence[dict[str, Any]]) -> None:
    TARGET.write_text(page(rows))


def main(*folders: str) -> None:
    lines = [line for folder in folders for line in (Path(folder) / ROWS).read_text().splitlines()]
    newest = {_name(row): row for row in map(json.loads, lines)}
    write(list(newest.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Writes the table of `docs/pytorch.md`: which PyTorch models were imported and compared. A run of `make test-torch` writes it.

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
    "fused": "optimized by `onnxruntime.transformers`, with operators of `com.microsoft`",
    "optimized": "as ONNX Runtime itself optimizes a model when it loads it",
}
TITLE = """## Tested models

See here which files of PyTorch models can be imported: {files} files of {models} architectures were imported and compared. They were
written by both of PyTorch's exporters with dynamic shapes, have few and narrow layers with random weights, and use opsets
{first} to {last}.{refusals}
Each column counts the files that pass a check:

- *equal* ({equal}): the program under `jax.jit` agrees with ONNX Runtime at two sets of sizes. If the runtime refuses the
  file (°), it is compared with PyTorch's own results. Quantized models are compared with the graph as written, since ONNX
  Runtime's fusions change values by a quantization step. The tolerance is that of the dtype, except for half precision, where
  it is 2 % of the largest element because the runtime rounds less often in fused operators, and for quantized models, where it
  is 5 % because a value halfway between two quantization levels may be rounded either way, which changes later values;
- *symbolic* ({symbolic}): it can be traced with the model's names for sizes in place of their values, or with `32*height` and
  `32*width` if the model downsamples images and joins them again;
- *source* ({source}): the printed source computes the same where jaxport is not installed;
- *gradient* ({gradient}): the gradient with respect to every parameter is finite, and not zero everywhere unless the model is
  quantized;
- *round trip* ({round_trip}): the program, exported again, computes the same in ONNX Runtime.

Variants:

{variants}

A complete run of `make test-torch` writes this page; `python -m tests.torch.page` writes it from the files compared so far.

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
        refusals=f" PyTorch itself cannot export {len(refused)} further files with dynamic shapes (listed at the end)."
        if refused
        else "",
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
    text += _listed("Checks that fail", reasons)
    return text + _listed(
        "What PyTorch cannot export with dynamic shapes", {_name(row): row["refused"] for row in refused}
    )


def _name(row: dict[str, Any]) -> str:
    return ", ".join(filter(None, (row["model"], row["exporter"], row["variant"])))


def _listed(title: str, reasons: dict[str, str]) -> str:
    if not reasons:
        return ""
    return f"\n## {title}\n\n" + "".join(f"- {what}: `{why.replace('`', '')}`\n" for what, why in reasons.items())


def write(rows: Sequence[dict[str, Any]]) -> None:
    """Write the part of the page that is about them; what is before stays."""
    before = TARGET.read_text().partition("## Tested models")[0]
    TARGET.write_text(before + page(rows))


def main(*folders: str) -> None:
    lines = [line for folder in folders for line in (Path(folder) / ROWS).read_text().splitlines()]
    newest = {_name(row): row for row in map(json.loads, lines)}
    write(list(newest.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])

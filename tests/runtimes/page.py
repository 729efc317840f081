"""Writes `docs/runtimes.md`. `make test-runtimes` calls it if every runtime is at hand and nothing fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "runtimes.md"
TITLE = """# Tested runtimes

See here which runtimes an exported model was tested in. `make test-runtimes` exports {count} programs for each target:
functions that once failed in some runtime (Fourier transforms, solvers, loops, sorting, random numbers, …), the precisions,
and an example of each kind. Every file is run in the runtimes of its target, each in its own environment, at two batch sizes
if its batch is symbolic, and the values of its second call are compared with those of JAX. The run writes this page.
WebGPU computes on a graphics processor in software, which has no float16.

With the default target, `"onnx"`, an old ONNX Runtime is given only the files whose `requirements` name it or an older
release.

"""
GENERATION = """
## Language models

onnxruntime-genai {version} chooses the same 32 tokens as JAX in greedy decoding, for:

{rows}

## The digits page

In {browser}, the [page](running.md#a-browser) recognises these digits, drawn on its canvas, by the CPU and by WebGPU: {digits}.
"""
FAULTY = """
## What runtimes get wrong

Each of these small files fails in the runtime named, and is correct in ONNX Runtime;
[Running exported models](running.md#openvino) explains what the target does about it.

"""
REFUSED = """
## What a target refuses

| program | target | why |
|---|---|---|
"""


@dataclass(frozen=True)
class Found:
    """What a runtime made of its models: by model, "" where it is right, or what is wrong.

    `name` is that of the runtime, with its version.
    """

    name: str
    results: Mapping[str, str]


def target_of(model: str, targets: Iterable[str]) -> str:
    """The target in a model's name.

    >>> target_of("int8-dynamic-web", ["onnx", "web"])
    'web'
    """
    return next(target for target in targets if model.endswith(f"-{target}"))


def page(
    general: Iterable[Found],
    generation: Found,
    digits: Found,
    refused: Mapping[str, str],
    targets: Iterable[str],
    count: int,
    faulty: Iterable[Found],
) -> str:
    """The page as text."""
    columns = [*targets]
    head = ["runtime", *(f'`"{target}"`' for target in columns)]
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * len(columns)}"]
    for found in general:
        cells = [_share(found.results, target, columns) for target in columns]
        lines.append(f"| {found.name} | {' | '.join(cells)} |")
    text = TITLE.format(count=count) + "\n".join(lines) + "\n"
    if refused:
        rows = (
            f'| {model.removesuffix(f"-{target}")} | `"{target}"` | {_headline(why)} |'
            for model, why in sorted(refused.items())
            for target in [target_of(model, columns)]
        )
        text += REFUSED + "\n".join(rows) + "\n"
    lists = [f"{found.name}: {', '.join(found.results)}.\n" for found in faulty]
    if lists:
        text += FAULTY + "\n".join(lists)
    return text + GENERATION.format(
        version=generation.name.rpartition(" ")[2],
        rows="\n".join(f"- {model}" for model in generation.results),
        browser=digits.name,
        digits=", ".join(model.rpartition(" ")[2] for model in digits.results),
    )


def _share(results: Mapping[str, str], target: str, targets: Iterable[str]) -> str:
    """How many of a target's models are right, of how many."""
    own = [why for model, why in results.items() if target_of(model, targets) == target]
    return f"{own.count('')} of {len(own)}" if own else "–"


def _headline(why: str) -> str:
    """The first line of an error, for a cell of a table."""
    return why.splitlines()[0].replace("|", "\\|")

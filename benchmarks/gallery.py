"""The page of examples: what each one is, its code, its graph, its modules, and the figures of `examples.json`.

All but the figures is read from the examples at their small size, so that a test can hold the page against them.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxport
from benchmarks.drawing import picture
from benchmarks.measure import ROOT
from examples.models import (
    MODELS,
    attention,
    bert,
    build,
    cnn,
    gpt2,
    llama,
    mlp,
    mobilenet,
    moe,
    preprocess,
    resnet,
    rnn,
    unet,
    vit,
)
from jaxport.cli.tables import file_size

__all__ = ["FIGURES", "PAGE", "PICTURES", "drawn", "figures", "page", "section"]

FIGURES = Path(__file__).with_name("examples.json")
PAGE = ROOT / "docs" / "examples.md"
PICTURES = ROOT / "docs" / "graphs"

NAMES = {"nnx": "Flax NNX", "linen": "Flax Linen", "equinox": "Equinox", "jax": "JAX"}

#: What each example shows of its code.
CODE: dict[str, list[Callable[..., Any]]] = {
    "mlp": [mlp.NnxMlp],
    "mlp_grad": [mlp.nnx_mlp_grad],
    "cnn": [cnn.NnxStage, cnn.NnxCnn],
    "cnn_train": [cnn.nnx_cnn_train],
    "resnet50": [resnet.NnxConvNorm, resnet.NnxBottleneck, resnet.NnxResNet],
    "resnet50_train": [resnet.LinenBottleneck, resnet.LinenResNet],
    "mobilenet_v2": [mobilenet.NnxInvertedResidual, mobilenet.NnxMobileNet],
    "vit_b16": [vit.NnxBlock, vit.NnxViT],
    "bert_base": [bert.NnxLayer, bert.NnxBert],
    "gpt2": [gpt2.NnxBlock, gpt2.NnxGpt2],
    "gpt2_decode": [gpt2.nnx_gpt2_decode],
    "gpt2_greedy": [gpt2.nnx_gpt2_greedy],
    "llama": [llama.NnxLayer, llama.NnxLlama],
    "llama_scan": [llama.NnxScannedLlama],
    "llama_decode": [llama.jax_decode_step],
    "llama_greedy": [llama.jax_greedy],
    "unet": [unet.NnxUNet],
    "lstm": [rnn.NnxLstm],
    "bidirectional_gru": [rnn.NnxBidirectionalGru],
    "moe": [moe.NnxExperts, moe.NnxMixture],
    "cross_attention": [attention.NnxCrossAttention],
    "preprocess": [preprocess.preprocess],
}

INTRODUCTION = """# Examples

Find a model like yours, with its code and its exported graph. These are complete models, written as users of each framework
write them, with random weights at the published sizes. Each is exported with symbolic dimensions and compared with `jax.jit`
in float32, at two sets of sizes. All of them are in `examples/models`, and have a small size that builds in a moment:

```python
import jaxport
from examples.models import build

example = build("gpt2", "nnx")  # or size="real"
exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
print(exported)
```

```text
<Exported NnxGpt2: (ids: int32[B, T]) -> (output: float32[B, T, 40]), ... nodes, opset ...>
```

"""

READING = """
*Error* is the largest error of any element of an output, relative to the largest element of that output; above 10⁻⁵, where
rounding is amplified, both sides are compared with float64. *Operators* counts those of the exported graph, *weights* is the
size of the weights in the file. *Export* is the CPU time of `to_onnx`, as a range over the frameworks; it is missing if the
graph has changed since it was measured.

The pictures and the lists of modules show the small size, which has fewer and narrower layers. A box is a module, or several
similar ones; a white box contains operators between modules. Arrows at the side skip boxes; sizes and other integers have no
arrows.
"""

FOOT = """
The figures are measured by `python -m benchmarks.bench_examples --measure`, which takes a quiet machine and some minutes;
`python -m benchmarks.bench_examples --write` writes the page.
"""


@functools.cache
def figures() -> dict[str, Any]:
    """What was measured at the published sizes: of each model its seconds, and of each framework error, size, operators."""
    return json.loads(FIGURES.read_text())


@functools.cache
def _descriptions() -> dict[str, tuple[str, str]]:
    """The parameters and the description of each model, as the table of the folder has them."""
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| ([^|]+) \|[^|]+\| ([^|]+) \|$", (ROOT / "examples/README.md").read_text(), re.MULTILINE
    )
    return {name: (parameters.strip(), text.strip()) for name, parameters, text in rows}


def page() -> str:
    """The whole page."""
    overview = ["| example | what it is | operators | weights | export |", "|---|---|---:|---:|---:|"]
    for name in MODELS:
        found = figures()[name]
        cells = found["frameworks"].values()
        sizes = _span([cell["operators"] for cell in cells], str), _span([cell["bytes"] for cell in cells], file_size)
        link = f"[{name}](#{name})"
        overview.append(f"| {link} | {_descriptions()[name][1]} | {' | '.join(sizes)} | {_seconds(found['seconds'])} |")
    return "\n".join([INTRODUCTION + "\n".join(overview), READING, *map(section, MODELS), FOOT.lstrip("\n")])


def section(name: str) -> str:
    """What the page says about one model."""
    parameters, description = _descriptions()[name]
    found, framework = figures()[name], next(iter(MODELS[name]))
    amount = "" if parameters == "0" else f", {parameters} parameters"
    took = f"; exported in {_seconds(found['seconds'])}" if found["seconds"] else ""
    table = ["| framework | operators | weights | error |", "|---|---:|---:|---:|"]
    table += [
        f"| {NAMES[each]} | {cell['operators']} | {file_size(cell['bytes'])} | {_error(cell)} |"
        for each, cell in found["frameworks"].items()
    ]
    code = "\n\n\n".join(inspect.getsource(each).rstrip() for each in CODE[name])
    tabs = {
        "Graph": f"![The graph of {name}](graphs/{name}.svg)",
        "Code": f"```py\n{code}\n```",
        "Figures": "\n".join(table),
    }
    if modules := _modules(name):
        tabs["Modules"] = f"```text\n{modules}\n```"
    return "\n".join([
        f"## {name}\n",
        f"{description[0].upper()}{description[1:]}{amount}{took}. Graph and code: {NAMES[framework]}.\n",
        *(f'=== "{title}"\n\n{textwrap.indent(text, "    ")}\n' for title, text in tabs.items()),
    ])  # fmt: skip


def drawn(name: str) -> str:
    """The picture of a model's graph."""
    return picture(_exported(name).model.graph, f"The graph of {name}")


@functools.lru_cache(maxsize=1)
def _exported(name: str) -> jaxport.Exported:
    example = build(name, next(iter(MODELS[name])))
    return jaxport.to_onnx(example.fn, list(example.inputs), **example.options)


def _modules(name: str) -> str:
    """The tree of modules with their parameters, of a model that has modules."""
    lines = str(jaxport.from_onnx(_exported(name).model)).splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("  modules")), None)
    if start is None:
        return ""
    root = lines[start].split()[1:]
    return "\n".join([*root, *(line[2:] for line in lines[start + 1 :])]) if root else ""


def _error(cell: dict[str, float]) -> str:
    text = _small(cell["error"])
    if "from_float64" not in cell:
        return text
    return f"{text}; from float64 {_small(cell['from_float64'])}, JAX itself {_small(cell['jax_from_float64'])}"


def _small(error: float) -> str:
    """Return a small number for people.

    >>> _small(1.14e-06), _small(0.0)
    ('1 · 10⁻⁶', '0')
    """
    digits, _, exponent = f"{error:.0e}".partition("e")
    return f"{digits} · 10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}" if error else "0"


def _seconds(span: list[float]) -> str:
    """Return a span of seconds with as many digits as mean something.

    >>> _seconds([0.0229, 0.531]), _seconds([1.36, 1.73]), _seconds([])
    ('0.02 to 0.5 s', '1.4 to 1.7 s', '')
    """
    return f"{_span(span, lambda seconds: f'{seconds:.{1 + (seconds >= 1)}g}')} s" if span else ""


def _span(values: list[Any], text: Callable[[Any], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"

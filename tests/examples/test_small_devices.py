"""Which examples are exported for small devices: those that the table of the page counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jaxport
from examples.models import build, cells
from tests.runtimes.writing import fixed

CELLS = list(cells())
PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"
#: What they need that the target lacks.
NEEDS = {
    **dict.fromkeys(((name, "nnx") for name in ("gpt2_decode", "gpt2_greedy")), "ScatterND"),
    **dict.fromkeys((("mlp_grad", framework) for framework in ("nnx", "linen", "equinox", "jax")), "int64|IsNaN"),
    **dict.fromkeys((("bidirectional_gru", framework) for framework in ("nnx", "linen")), "GatherND"),
    ("gpt2_decode", "linen"): "ScatterND",
    ("llama_decode", "jax"): "ScatterND",
    ("llama_greedy", "jax"): "Loop",
    ("moe", "jax"): "CumSum",
    ("moe", "linen"): "CumSum",
}


def test_the_page_has_the_counts():
    rows = dict(re.findall(r'^\| `(opset=\d+|target="edge")` \| (\d+) of \d+ \|', PAGE.read_text(), re.MULTILINE))
    assert rows.pop('target="edge"') == str(len(CELLS) - len(NEEDS))
    assert set(rows.values()) == {str(len(CELLS))}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "framework"), CELLS)
def test_an_example_is_exported_for_small_devices(name, framework):
    example = build(name, framework)
    specs = fixed(list(example.inputs), example.sizes[1])
    options = {**example.options, "target": "edge", "nonfinite": "ignore"}
    options.pop("constraints", None)
    if (name, framework) not in NEEDS:
        jaxport.to_onnx(example.fn, specs, **options)
        return
    with pytest.raises(jaxport.Unsupported, match=NEEDS[name, framework]):
        jaxport.to_onnx(example.fn, specs, **options)

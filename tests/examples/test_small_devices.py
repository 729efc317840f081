"""Which examples are exported for small devices: those that the table of the page counts."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

import jaxport
from examples.models import build, cells
from jaxport.jaxprs import dims

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


def fixed(spec, sizes):
    """A specification with numbers for the names of sizes."""
    one = lambda size: size if isinstance(size, int) else int(dims.evaluate(str(size), sizes))
    if isinstance(spec, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(tuple(map(one, spec.shape)), spec.dtype)
    return tuple(map(one, spec))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "framework"), CELLS)
def test_an_example_is_exported_for_small_devices(name, framework):
    example = build(name, framework)
    is_spec = lambda x: (
        isinstance(x, jax.ShapeDtypeStruct) or (isinstance(x, tuple) and all(isinstance(size, int | str) for size in x))
    )
    specs = jax.tree.map(lambda spec: fixed(spec, example.sizes[1]), list(example.inputs), is_leaf=is_spec)
    options = {**example.options, "target": "edge", "nonfinite": "ignore"}
    options.pop("constraints", None)
    if (name, framework) not in NEEDS:
        jaxport.to_onnx(example.fn, specs, **options)
        return
    with pytest.raises(jaxport.Unsupported, match=NEEDS[name, framework]):
        jaxport.to_onnx(example.fn, specs, **options)

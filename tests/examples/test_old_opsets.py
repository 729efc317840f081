"""Every small example at old opsets, compared with JAX: what `docs/deploying.md` says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jaxport
from examples.models import build, cells
from examples.models.comparing import compare

PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("opset", [13, 15, 17])
@pytest.mark.parametrize(("name", "framework"), cells())
def test_old_opsets_say_every_example(name, framework, opset):
    example = build(name, framework)
    exported = jaxport.to_onnx(example.fn, list(example.inputs), opset=opset, **example.options)
    found = compare(example, exported, example.sample(np.random.default_rng(0), example.sizes[0]))
    assert all(each.ok for each in found)


def test_the_page_says_how_many():
    assert f"All {len(cells())} small [examples](examples.md)" in PAGE.read_text()

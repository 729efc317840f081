"""Every small example at old opsets, compared with JAX; `test_small_devices` has the counts of the page."""

from __future__ import annotations

import numpy as np
import pytest

import jaxport
from examples.models import build, cells
from examples.models.comparing import compare


@pytest.mark.sampled(8)
@pytest.mark.parametrize("opset", [13, 15, 17])
@pytest.mark.parametrize(("name", "framework"), cells())
def test_old_opsets_say_every_example(name, framework, opset):
    example = build(name, framework)
    exported = jaxport.to_onnx(example.fn, list(example.inputs), opset=opset, **example.options)
    found = compare(example, exported, example.sample(np.random.default_rng(0), example.sizes[0]))
    assert all(each.ok for each in found)

"""Every example, exported, imported back, and compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import jaxport
from examples.models import MODELS, build, cells
from jaxport.jaxprs.releases import QUICKLY
from jaxport.verify import difference
from jaxport.verify.importing import caller

pytestmark = pytest.mark.sampled(2)

#: Relative to the largest element of an output.
LIMIT = 1e-5


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(name, framework, marks=() if framework == next(iter(MODELS[name])) else pytest.mark.slow)
        for name, framework in cells()
    ],
)
def test_what_was_exported_comes_back(name: str, framework: str):
    example = build(name, framework, "small")
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    program = jaxport.from_onnx(exported.model)
    assert program.modules.children or framework == "jax"
    inputs = exported.flatten(example.sample(np.random.default_rng(0), example.sizes[-1]), {})
    results = caller(program, inputs, QUICKLY)()
    for output, result, wanted in zip(program.output_names, results, exported.run(inputs), strict=True):
        found = difference(wanted, result)
        assert not found.problem, f"`{output}`: {found.problem}"
        assert found.relative <= LIMIT, f"`{output}`: {found}"

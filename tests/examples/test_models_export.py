"""Every example, exported with symbolic dims and compared with JAX at two sets of sizes."""

from __future__ import annotations

import numpy as np
import pytest

import jaxport
from examples.models import build, cells
from examples.models.comparing import compare
from jaxport.jaxprs import dim_text


def check(name, framework, size):
    """Export a cell, and compare at each of its sizes on its own samples."""
    example = build(name, framework, size)
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    symbols = {name for port in exported.inputs for dim in port.shape for name in dim_text.symbols(str(dim))}
    assert symbols == set().union(*example.sizes), "a named dimension was lost on the way"
    for sizes in example.sizes:
        arguments = example.sample(np.random.default_rng(0), sizes)
        for output, found in zip(exported.output_names, compare(example, exported, arguments), strict=True):
            assert found.ok, f"{output} at {sizes}: {found}"
    return exported


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "framework"), cells())
def test_small(name, framework):
    check(name, framework, "small")


@pytest.mark.real
@pytest.mark.parametrize(("name", "framework"), cells())
def test_real(name, framework):
    check(name, framework, "real")


def transposes(exported):
    return sum(node.op_type == "Transpose" for node in exported.model.graph.all_nodes())


@pytest.mark.parametrize("framework", ["nnx", "linen"])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_convolutional_models_keep_transposes_at_the_border_only(name, framework):
    example = build(name, framework)
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    assert transposes(exported) == 1
    nchw = jaxport.to_onnx(example.fn, list(example.inputs), inputs_as_nchw=[0], **example.options)
    assert transposes(nchw) == 0

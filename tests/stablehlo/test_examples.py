"""Exports of the examples through artifacts have hardly more nodes than direct ones, and compute the same."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxport
from examples.models import build, cells
from tests.stablehlo.round_trips import flat

MOST = 1.1


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "framework"), cells())
def test_exports_through_artifacts_have_the_nodes_of_direct_ones(name, framework):
    example = build(name, framework)
    direct = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    function, structs = flat(example.fn, example.inputs, example.options)
    artifact = jax.export.export(jax.jit(function))(*structs)
    again = jaxport.to_onnx(jaxport.from_stablehlo(artifact), structs)
    nodes = [len(list(exported.model.graph.all_nodes())) for exported in (direct, again)]
    assert nodes[1] <= MOST * nodes[0], nodes
    arguments = jax.tree.leaves(example.sample(np.random.default_rng(0), example.sizes[1]))
    wanted = jax.jit(function)(*arguments)
    for want, got in zip(wanted, jax.tree.leaves(again(*arguments)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(want).max())))

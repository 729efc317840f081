"""Padding: positive, negative and interior amounts, static and symbolic."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import check, expect_graph, f32, spec
from tests.export.rules.indices import DTYPES

CONFIGURATIONS = [
    (1, 2, 0), (0, 0, 0), (1, 2, 1), (-1, -2, 0), (-1, 2, 1), (2, -1, 0), (-4, 3, 2), (-7, 5, 0), (0, -3, 2), (0, 0, 3)
]  # fmt: skip


def padded(x, *config):
    return lax.pad(x, jnp.asarray(7, x.dtype), config)


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("size", [5, 1, 0])
def test_every_configuration(config, size):
    low, high, interior = config
    if low + high + size + max(size - 1, 0) * interior < 0:
        config = (low, 9, interior)
    check(lambda x: padded(x, config, (0, 1, 0)), f32(size, 2))


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=str)
def test_symbolic_sizes(config):
    low, high, interior = config
    empty = {"empty": "JAX takes symbolic sizes with interior padding as positive"}
    check(lambda x: padded(x, (0, 1, 0), (low, high, interior)), f32("B", "T + 9"), without=empty)


def test_symbolic_amounts():
    sizes = ({"B": 2, "T": 5}, {"B": 5, "T": 6})
    grow = lambda x, y: padded(x, (0, y.shape[0] - x.shape[0], 0))
    check(grow, f32("B"), f32("T"), sizes=sizes, constraints=["T >= B"])
    both = lambda x, y: padded(x, (x.shape[0] - y.shape[0], 3 * y.shape[0] - x.shape[0], 1))
    check(both, f32("B"), f32("T"), sizes=({"B": 2, "T": 5}, {"B": 5, "T": 2}), without={"empty": "no element to pad"})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    x = np.arange(5).astype(jnp.dtype(dtype))
    with jax.enable_x64(True):
        check(lambda x: padded(x, (1, -2, 1)), spec(5, dtype=x.dtype), values=(x,))


@pytest.mark.parametrize("opset", [17, 18, 26])
def test_every_opset(opset):
    check(lambda x: padded(x, (2, 1, 1), (1, -1, 0)), f32("B", 5), opset=opset)


MODES = "constant edge reflect symmetric wrap linear_ramp maximum mean median minimum empty".split()


@pytest.mark.parametrize("mode", MODES)
def test_numpy_modes(mode):
    check(lambda x: jnp.pad(x, ((2, 1), (0, 3)), mode=mode), f32(4, 5))


CASES = {
    "a scalar": (lambda x: padded(x), f32()),
    "gradient": (jax.grad(lambda x: jnp.sum(padded(x, (1, -1, 1), (0, 2, 0)) ** 2)), f32(4, 5)),
    "gradient of strides": (jax.grad(lambda x: jnp.sum(x[1::2, ::3] ** 2)), f32(4, 5)),
    "vmap": (jax.vmap(lambda x, v: lax.pad(x, v, ((1, 2, 1),))), f32("B", 3), f32("B")),
    "a value at run time": (lambda x, v: lax.pad(x, v, ((1, 2, 1),)), f32("T"), f32()),
}


@pytest.mark.parametrize("name", CASES)
def test_padding(name):
    fn, *specs = CASES[name]
    check(fn, *specs)


GRAPHS = {
    "around": ([(1, 2, 0), (0, 3, 0)], ["Pad[B, 10]"]),
    "a cut": ([(0, 0, 0), (-1, -2, 0)], ["Slice[B, 2]"]),
    "interior": ([(0, 0, 0), (0, 1, 1)], ["Unsqueeze -> Pad -> Reshape[B, 10]"]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_graph_looks_like(name):
    config, paths = GRAPHS[name]
    config = [(0, 0, 0), config[1]]
    exported = jaxport.to_onnx(lambda x: padded(x, *config), [f32("B", 5)])
    expect_graph(exported, [path.replace("[B, 10]", "[B, ?]") for path in paths], exact=True)

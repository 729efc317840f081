"""A model is exported with the same operators whether its sizes are fixed or open, and for a batch of one."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest

import jaxport
from examples.models import build, cells
from examples.models.example import FRAMEWORKS
from jaxport.onnx_facts import VIEWS

#: What computes shapes, positions and masks from sizes: with fixed sizes these are constants.
OF_SIZES = VIEWS | set(
    "Add And ArgMax Cast Clip Concat Cos Div Equal Gather GatherElements GatherND Greater GreaterOrEqual Less LessOrEqual "
    "Min Mul Neg Not Or Range ReduceMin ScatterElements ScatterND Shape Sin Slice Split Sub Tile Trilu Where".split()
)
#: Models whose operators depend on the sizes, each with why.
OTHERWISE = {
    ("preprocess", "jax"): "the matrix that resizes an image is a constant, which a convolution takes",
    **{("mlp_grad", framework): "the sum over a batch of one is not a sum" for framework in FRAMEWORKS},
    ("cnn_train", "equinox"): "an image of open sizes may be so small that its pools are empty, which have no mean",
}


def operators(fn, specs, options) -> Counter[str]:
    """The operators that compute, and how often they do."""
    model = jaxport.to_onnx(fn, specs, **options).model
    return Counter(node.op_type for node in model.graph.all_nodes() if node.op_type not in OF_SIZES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "framework"), [cell for cell in cells() if cell not in OTHERWISE])
def test_the_operators_do_not_depend_on_whether_sizes_are_fixed(name, framework):
    example = build(name, framework)
    opened = operators(example.fn, example.inputs, example.options)
    fixed = {key: value for key, value in example.options.items() if key != "constraints"}
    for sizes in ({**example.sizes[0], "B": 1}, example.sizes[1]):
        arguments = example.sample(np.random.default_rng(0), sizes)
        specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), arguments)
        assert operators(example.fn, specs, fixed) == opened, sizes

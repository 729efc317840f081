"""Framework × context × state: the blocks that a trace finds, their weights, their values, and the model afterwards."""

from __future__ import annotations

import jax
import pytest
from flax import nnx

from jaxport.blocks.tracing import trace
from jaxport.errors import StateChanged
from tests.blocks.checks import assert_same, blocks, check_remarked, evaluate, shapes_of, weights_of
from tests.frameworks.models import CELLS, nnx_subject

pytestmark = pytest.mark.sampled(2)


def _name(cell):
    subject, context, state = cell
    return f"{subject.__name__.removesuffix('_subject')}-{context}-{state}"


def arrays_of(model):
    """Copies of all arrays of a model."""
    leaves = jax.tree.leaves(nnx.state(model) if isinstance(model, nnx.Module) else model)
    return [leaf.copy() for leaf in leaves if isinstance(leaf, jax.Array)]


@pytest.mark.parametrize("cell", CELLS, ids=_name)
def test_cell(cell):
    make, context, state = cell
    subject, model = make(context, state)
    # A call writes into an NNX model, and into a bound Linen one: what is compared with has a model of its own.
    reference, reference_model = make(context, state)
    mutable = make is nnx_subject or context == "bound"
    before = arrays_of(model)
    if mutable and state == "norm":
        with pytest.raises(StateChanged, match=r"norm\.mean"):
            trace(subject.fn, shapes_of(subject.args))
    traced = trace(subject.fn, shapes_of(subject.args), state="outputs")
    assert_same(arrays_of(model), before)

    found = [(block.target.rpartition(".")[2], block.path) for block in blocks(traced.jaxpr.jaxpr)]
    if context == "grad":  # the forward pass; the backward equations lie in no block
        assert found[: len(subject.expected)] == subject.expected
    else:
        assert found == subject.expected
    assert weights_of(traced, subject.linear[0]) == subject.linear[1]

    # Primitive by primitive: the same ones are compiled once for all cells. But a gradient has functions that JAX compiles as
    # a whole where the user calls them, and XLA rounds otherwise what it fuses: there both sides are compiled as a whole.
    jit = jax.jit if context == "grad" else lambda fn: fn
    result, new_state = evaluate(traced, *subject.args, jit=jit)
    assert_same(result, jit(reference.fn)(*subject.args))
    if state == "none":
        check_remarked(traced)
    if make is nnx_subject:
        assert_same(new_state, changed_statistics(reference_model, new_state))
        assert bool(new_state) == (state == "norm")


def changed_statistics(model, paths):
    values = {".".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(nnx.state(model))}
    return {path: values[path] for path in paths}

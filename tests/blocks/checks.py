"""What the tests of blocks share: a trace is checked as a jaxpr, against the function, and against its own remarking."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from jaxport import jaxprs as jex_core
from jaxport.blocks.block import Block, block_p
from jaxport.blocks.grouping import Roots, group
from jaxport.blocks.marking.markers import block_enter_p, block_exit_p
from jaxport.blocks.marking.window import activation
from jaxport.blocks.tracing import Traced, trace
from jaxport.blocks.ungrouping import ungroup
from jaxport.jaxprs.walk import bodies


def blocks(jaxpr) -> list[Block]:
    """All blocks of a jaxpr, outer ones first, in program order."""
    return [equation.params["block"] for equation in equations(jaxpr) if equation.primitive is block_p]


def equations(jaxpr) -> Iterator[jex_core.JaxprEqn]:
    for equation in jaxpr.eqns:
        yield equation
        for body in bodies(equation.params):
            yield from equations(body)


def paths(jaxpr) -> list[str]:
    return [block.path for block in blocks(jaxpr)]


def shapes_of(tree):
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype) if hasattr(v, "shape") else v, tree)


def evaluate(traced: Traced, *args, jit=jax.jit, **kwargs):
    """What the jaxpr computes, blocks ungrouped, as the results and the new state."""
    inputs = [leaf for leaf in jax.tree.leaves((args, kwargs)) if hasattr(leaf, "shape")]
    plain = ungroup(traced.jaxpr)
    assert not any(e.primitive in (block_p, block_enter_p, block_exit_p) for e in equations(plain.jaxpr))
    outputs = jit(jex_core.jaxpr_as_fun(plain))(*(weight.value for weight in traced.weights), *inputs)
    count = len(traced.output_paths)
    leaves, arrays = dict(traced.static_outputs), iter(outputs[:count])
    full = [leaves[i] if i in leaves else next(arrays) for i in range(traced.out_tree.num_leaves)]
    return jax.tree.unflatten(traced.out_tree, full), dict(zip(traced.state_outputs, outputs[count:], strict=True))


def assert_same(one, other, units=0):
    """Two trees are the same, arrays bit by bit or by so many units in the last place."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if hasattr(a, "dtype") and jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        if units and jax.numpy.issubdtype(a.dtype, np.floating):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_array_max_ulp(a, b, units)
        else:
            np.testing.assert_array_equal(a, b, strict=True)


def check(
    fn, *args, expect: list[str] | None = None, state: str = "refuse", jit=jax.jit, functions=(), units=0, **kwargs
) -> Traced:
    """Traces `fn` and checks the trace in every way that does not depend on `fn`; returns it.

    `expect` are the paths of all blocks; `jit` is what compiles `fn` for the comparison (None: as it is); results may
    differ by so many units in the last place.
    """
    traced = trace(fn, shapes_of(args), shapes_of(kwargs), state=state, functions=functions)
    jex_core.check_jaxpr(traced.jaxpr.jaxpr)
    assert not any(e.primitive in (block_enter_p, block_exit_p) for e in equations(traced.jaxpr.jaxpr))
    assert len(traced.jaxpr.jaxpr.invars) == len(traced.weights) + len(traced.input_paths)
    names = [weight.path for weight in traced.weights] + list(traced.input_paths)
    assert len(set(names)) == len(names)
    for block in blocks(traced.jaxpr.jaxpr):
        assert set(block.weights.values()) <= set(names)
    if expect is not None:
        assert paths(traced.jaxpr.jaxpr) == expect
    jit = jit or (lambda function: function)
    result, _ = evaluate(traced, *args, jit=jit, **kwargs)
    assert_same(result, jit(fn)(*args, **kwargs), units)
    check_remarked(traced)
    return traced


def check_remarked(traced: Traced) -> None:
    """Marked and traced again, the blocks are the same."""
    with activation():
        again = jax.make_jaxpr(jex_core.jaxpr_as_fun(ungroup(traced.jaxpr, mark=True)))(*traced.jaxpr.in_avals)
    regrouped = group(again.jaxpr, Roots([str(i) for i in range(len(again.jaxpr.invars))], set())).jaxpr
    jex_core.check_jaxpr(regrouped)
    described = [(b.target, b.path, b.method, b.weights) for b in blocks(regrouped)]
    assert described == [(b.target, b.path, b.method, b.weights) for b in blocks(traced.jaxpr.jaxpr)]


def weights_of(traced: Traced, path: str) -> list[str]:
    """The parameters below its path of the first block with that path."""
    names = next(block for block in blocks(traced.jaxpr.jaxpr) if block.path == path).weights.values()
    return sorted(name for name in names if f"{path}." in name)

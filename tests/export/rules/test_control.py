"""Branches and loops: If, Scan, Loop, or written out; values, dtypes, and what the graph is made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import boolean, check, f32, i32, spec
from tests.exports import operators, weight_bytes

pytestmark = pytest.mark.sampled(2)

B, T = "B", "T"


# Branches ------------------------------------------------------------------------------------------------------------

FUNCTIONS = [jnp.sin, lambda x: x * 2, lambda x: x, lambda x: jnp.zeros_like(x), jnp.tanh]


def nested_cond(c, d, x):
    return lax.cond(c, lambda x: lax.cond(d, jnp.sin, jnp.cos, x), lambda x: lax.cond(d, jnp.tan, jnp.exp, x), x)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(lambda c, x: lax.cond(c, jnp.sin, jnp.cos, x), [boolean(), f32(B)], id="bool"),
        pytest.param(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), [f32(3, B)], id="computed"),
        pytest.param(lambda c, x: lax.cond(c, lambda: x, lambda: x + 1), [boolean(), f32(B)], id="closure"),
        pytest.param(lambda c, x: lax.cond(c, lambda x: (x, x), lambda x: (x * 2, x), x), [boolean(), f32(B)], id="same"),
        pytest.param(lambda c, x: lax.cond(c, lambda x: x, lambda x: jnp.ones(x.shape), x), [boolean(), f32(B)], id="ones"),
        pytest.param(lambda c, x: lax.cond(c, lambda x: {"a": x > 0}, lambda x: {"a": x < 0}, x), [boolean(), f32(B)], id="tree"),
        pytest.param(lambda c, x: jnp.where(c, 1, 2) + lax.cond(c, lambda: 1, lambda: 2), [boolean(), f32(B)], id="scalars"),
        pytest.param(nested_cond, [boolean(), boolean(), f32(B)], id="nested"),
        pytest.param(lambda c, x: jax.vmap(lambda c, x: lax.cond(c, jnp.sin, jnp.cos, x))(c, x), [boolean(B), f32(B)], id="vmap"),
        pytest.param(lambda c, x: jax.vmap(lambda x: lax.cond(c, jnp.sin, jnp.cos, x))(x), [boolean(), f32(B, 2)], id="vmap-x"),
        pytest.param(jax.grad(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.exp, x).sum()), [f32(B)], id="grad"),
        pytest.param(jax.hessian(lambda x: lax.cond(x.sum() > 0, lambda x: (x**3).sum(), jnp.sum, x)), [f32(3)], id="hessian"),
        pytest.param(lambda x, t: jax.jvp(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.exp, x), (x,), (t,)), [f32(B), f32(B)], id="jvp"),
        pytest.param(lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), [f32(B)], id="platform"),
        pytest.param(lambda x: lax.platform_dependent(x, tpu=jnp.sin, default=jnp.cos), [f32(B)], id="other-platform"),
    ],
)  # fmt: skip
def test_cond(fn, specs):
    check(fn, *specs)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_switch_clamps_its_index(count):
    for index in (-3, 0, 1, 2, 4, 9):
        check(
            lambda i, x: lax.switch(i, FUNCTIONS[:count], x),
            i32(),
            f32(3),
            values=(np.int32(index), np.ones(3, np.float32)),
        )


def test_the_branches_of_a_switch_are_halved():
    exported = check(lambda i, x: lax.switch(i, FUNCTIONS, x), i32(), f32(B))
    assert operators(exported, nested=True).count("If") == 4


def test_a_known_index_leaves_no_branch():
    exported = check(lambda x: lax.cond(x.shape[0] > 2, jnp.sin, jnp.cos, x), f32(3))
    assert operators(exported, nested=True) == ["Sin"]


def test_a_branch_may_be_for_onnx():
    call = lambda x: lax.platform_dependent(x, cpu=jnp.sin, onnx=jnp.cos, default=jnp.tan)
    assert operators(jaxport.to_onnx(call, [("B",)]), nested=True) == ["Cos"]


def test_a_predicate_is_used_as_it_is():
    exported = check(lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), f32(3))
    assert "Cast" not in operators(exported, nested=True)


# Loops while something holds -----------------------------------------------------------------------------------------


def collatz(n):
    return lax.while_loop(
        lambda c: c[0] != 1, lambda c: (jnp.where(c[0] % 2, 3 * c[0] + 1, c[0] // 2), c[1] + 1), (n, 0)
    )[1]


@pytest.mark.parametrize(
    ("fn", "specs", "values"),
    [
        pytest.param(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 2, 0), [i32()], [np.int32(5)], id="count"),
        pytest.param(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 2, 7), [i32()], [np.int32(5)], id="no-step"),
        pytest.param(lambda x: lax.while_loop(lambda x: x.sum() < 99, lambda x: x * 2 + 1, x), [f32(3)], [np.ones(3)], id="data"),
        pytest.param(collatz, [i32()], [np.int32(27)], id="collatz"),
        pytest.param(
            lambda x: jax.jvp(lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x)), (x,), (x,)),
            [f32(3)], [np.ones(3)], id="jvp",
        ),
        pytest.param(jax.vmap(collatz), [i32(5)], [np.array([1, 2, 7, 27, 3], np.int32)], id="vmap"),
        pytest.param(jax.vmap(jax.vmap(collatz)), [i32(2, 2)], [np.array([[1, 2], [7, 3]], np.int32)], id="vmap-vmap"),
        pytest.param(lambda n, x: lax.fori_loop(0, n, lambda i, x: x * 2 + i, x), [i32(), f32(3)], [np.int32(4), np.ones(3)], id="fori"),
        pytest.param(lambda n, x: lax.fori_loop(n, 3, lambda i, x: x * i, x), [i32(), f32(3)], [np.int32(-2), np.ones(3)], id="fori-from"),
        pytest.param(lambda n, x: lax.fori_loop(0, n, lambda i, x: x, x), [i32(), f32(3)], [np.int32(4), np.ones(3)], id="fori-nothing"),
        pytest.param(
            lambda n, x: jax.vmap(lambda n, x: lax.fori_loop(0, n, lambda i, x: x * 2 + i, x))(n, x),
            [i32(3), f32(3, 2)], [np.array([4, 0, 2], np.int32), np.ones((3, 2))], id="vmap-fori",
        ),
        pytest.param(
            lambda n, x: lax.fori_loop(0, n, lambda i, x: lax.fori_loop(0, i, lambda j, x: x + j, x), x),
            [i32(), f32(2)], [np.int32(4), np.ones(2)], id="fori-in-fori",
        ),
        pytest.param(
            lambda n, x: lax.fori_loop(0, n, lambda i, c: (c[1], c[0]), (x, x + 1)),
            [i32(), f32(2)], [np.int32(3), np.ones(2)], id="swap",
        ),
        pytest.param(
            lambda n, x: lax.fori_loop(0, n, lambda i, c: lax.cond(i % 2 == 0, jnp.sin, lambda c: c * 2, c), x),
            [i32(), f32(2)], [np.int32(3), np.ones(2)], id="cond-in-fori",
        ),
    ],
)  # fmt: skip
def test_while(fn, specs, values):
    check(fn, *specs, values=[v if v.dtype.kind == "i" else v.astype(np.float32) for v in values])


DTYPES = ["bool", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_state_of_a_loop_keeps_its_dtype(dtype):
    def turn(n, x):
        by_count = lax.fori_loop(0, n, lambda i, x: jnp.flip(x), x)
        by_condition = lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.flip(c[1])), (0, x))[1]
        stacked = lax.scan(lambda c, row: (row, c), x[0], x)
        return by_count, by_condition, stacked, lax.cond(n > 2, jnp.flip, lambda x: x, x)

    check(turn, i32(), spec(3, 2, dtype=dtype), values=(np.int32(3), np.arange(6).reshape(3, 2).astype(dtype)))


def test_what_a_loop_does_not_change_is_no_state():
    exported = check(
        lambda n, x, w: lax.fori_loop(0, n, jax.jit(lambda i, c: (c[0] @ c[1], c[1])), (x, w)),
        i32(), f32(2), f32(2, 2), values=(np.int32(2), np.ones(2, np.float32), np.ones((2, 2), np.float32)),
    )  # fmt: skip
    (loop,) = [node for node in exported.model.graph if node.op_type == "Loop"]
    assert len(loop.inputs) == 2 + 2  # the counter and x; neither w nor the bound


# Loops over arrays ---------------------------------------------------------------------------------------------------


def running_sum(x, **options):
    return lax.scan(lambda c, row: (c + row, c * 2), jnp.zeros(x.shape[1:]), x, **options)


def power_iteration(x):
    def step(v, _):
        v = x @ v
        return v / jnp.linalg.norm(v), v[0]

    return lax.scan(step, jnp.ones(x.shape[0]), None, length=4)


def scan_in_scan(x):
    return lax.scan(lambda c, row: (c + lax.scan(lambda d, e: (d + e * c, d), 0.0, row)[0], row.sum()), 0.0, x)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(running_sum, [f32(T, 2)], id="symbolic"),
        pytest.param(running_sum, [f32(4, B)], id="static"),
        pytest.param(lambda x: running_sum(x, reverse=True), [f32(T, 2)], id="reverse"),
        pytest.param(lambda x: running_sum(x, unroll=2), [f32(4, 2)], id="unroll"),
        pytest.param(lambda x: running_sum(x, unroll=True, reverse=True), [f32(4, B)], id="unroll-all"),
        pytest.param(lambda x: running_sum(x[1:]), [f32(T, B)], id="perhaps-empty"),
        pytest.param(lambda x: running_sum(x[1:], reverse=True), [f32(T, B)], id="perhaps-empty-reverse"),
        pytest.param(lambda x: running_sum(x[:0]), [f32(3, B)], id="empty"),
        pytest.param(lambda x: running_sum(x[:1]), [f32(3, B)], id="one-step"),
        pytest.param(power_iteration, [f32(3, 3)], id="no-rows"),
        pytest.param(lambda x: lax.scan(lambda _, row: (None, row * 2), None, x)[1], [f32(T)], id="no-state"),
        pytest.param(lambda x: lax.scan(lambda c, row: (c + row, None), 0.0, x)[0], [f32(T)], id="nothing-stacked"),
        pytest.param(lambda x, y: lax.scan(lambda c, r: (c + r[0] * r[1], r), 0.0, (x, y), reverse=True), [f32(T), f32(T)], id="two"),
        pytest.param(scan_in_scan, [f32(T, B)], id="nested"),
        pytest.param(lambda x: lax.map(lambda row: row[::-1] * 2, x), [f32(T, B)], id="map"),
        pytest.param(lambda x: lax.map(jnp.tanh, x, batch_size=2), [f32(5, 3)], id="map-batches"),
        pytest.param(lambda x: jax.vmap(running_sum)(x), [f32(2, T, B)], id="vmap"),
        pytest.param(jax.grad(lambda x: scan_in_scan(x)[0]), [f32(3, B)], id="grad-nested"),
        pytest.param(jax.grad(lambda x: lax.scan(lambda c, r: (jnp.sin(c * r), c), 1.0, x)[0]), [f32(T)], id="grad"),
        pytest.param(jax.hessian(lambda x: lax.scan(lambda c, r: (jnp.sin(c * r), c), 1.0, x)[0]), [f32(3)], id="hessian"),
        pytest.param(lambda x: jax.linearize(lambda x: running_sum(x)[0], x)[1](x), [f32(T, 2)], id="linearize"),
        pytest.param(lambda x: lax.scan(jax.checkpoint(lambda c, r: (jnp.sin(c * r), c)), 1.0, x), [f32(T)], id="remat"),
        pytest.param(lambda x: lax.scan(lambda c, r: (c, jnp.broadcast_to(r, (2, 3))), 1.0, x), [f32(T)], id="broadcast-rows"),
        pytest.param(lambda x: lax.scan(lambda c, r: (c, (r, r, c)), 1.0, x), [f32(T)], id="passed-on"),
        pytest.param(lambda x: lax.fori_loop(0, 5, lambda i, c: c * 2 + i, x), [f32(B)], id="fori"),
        pytest.param(lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c * 2 + i, x), [f32(B)], id="fori-symbolic"),
        pytest.param(jax.grad(lambda x: lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) + i, x).sum()), [f32(B)], id="fori-grad"),
        pytest.param(lambda x: lax.associative_scan(jnp.add, x), [f32(5, B)], id="associative"),
        pytest.param(lambda x: lax.associative_scan(jnp.multiply, x, reverse=True, axis=1), [f32(B, 4)], id="associative-reverse"),
    ],
)  # fmt: skip
def test_scan(fn, specs):
    check(fn, *specs)


def test_a_scan_of_no_steps_has_the_shapes_of_its_rows():
    sizes = [{"T": 1, "B": 3}, {"T": 4, "B": 2}]
    check(lambda x, y: lax.scan(lambda c, r: (c + 1, y * r), 0.0, x[1:]), f32(T), f32(B), sizes=sizes)


def test_a_scan_with_weights_closed_over_and_stacked():
    generator = np.random.default_rng(0)
    stacked, shared = (generator.normal(size=s).astype(np.float32) for s in ((3, 4, 4), (4,)))
    fn = lambda x: lax.scan(lambda h, w: (jnp.tanh(h @ w + shared), None), x, stacked)[0]
    exported = check(fn, f32(B, 4), unroll_scans=0)
    assert operators(exported, nested=True).count("Scan") == 1


def stacked_layers(count=3):
    generator = np.random.default_rng(0)
    return {
        "kernel": generator.normal(size=(count, 8, 8)).astype(np.float32) / 3,
        "bias": generator.normal(size=(count, 8)).astype(np.float32),
    }


def layer(h, weights):
    return jnp.tanh(h @ weights["kernel"] + weights["bias"]), h.sum()


LAYERS = {
    "forwards": lambda x: lax.scan(layer, x, stacked_layers()),
    "backwards": lambda x: lax.scan(layer, x, stacked_layers(), reverse=True),
    "one": lambda x: lax.scan(layer, x, stacked_layers(1)),
    "stacked twice": lambda x: lax.scan(
        lambda h, kernels: lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, kernels), x, stacked_layers(4)["kernel"].reshape(2, 2, 8, 8)
    )[0],
    "transposed": lambda x: lax.scan(lambda h, w: (h @ w.T, None), x, stacked_layers()["kernel"].swapaxes(1, 2))[0],
    "gradient": jax.grad(lambda x: (lax.scan(layer, x, stacked_layers())[0] ** 2).sum()),
}  # fmt: skip


@pytest.mark.parametrize("fn", LAYERS.values(), ids=LAYERS)
def test_a_scan_over_layers_is_written_out(fn):
    exported = check(fn, f32(B, 8))
    assert not {"Scan", "Loop", "Gather"} & set(operators(exported, nested=True)) or fn is LAYERS["gradient"]


def test_each_layer_has_its_weights_and_none_is_stored_twice():
    exported = check(LAYERS["forwards"], f32(B, 8))
    initializers = exported.model.graph.initializers.values()
    assert sorted(tuple(v.shape) for v in initializers if v.const_value.nbytes > 16) == [(8,)] * 3 + [(8, 8)] * 3
    looped = jaxport.to_onnx(LAYERS["forwards"], [(B, 8)], unroll_scans=0)
    assert weight_bytes(exported) <= weight_bytes(looped) + 64


def test_caches_beside_the_weights():
    def step(h, given):
        weights, cache = given
        h = jnp.tanh(h @ weights["kernel"]) + cache
        return h, h + weights["bias"]

    exported = check(lambda x, cache: lax.scan(step, x, (stacked_layers(), cache)), f32(B, 8), f32(3, B, 8))
    assert "Scan" not in operators(exported, nested=True)


KEPT_LOOPS = {
    "over time": (lambda x: lax.scan(lambda h, row: (jnp.tanh(h @ stacked_layers()["kernel"][0] + row), None), jnp.zeros(8), x), f32(T, 8)),
    "over positions": (lambda x: lax.scan(lambda h, row: (h + row, None), x, stacked_layers(30)["bias"]), f32(B, 8)),
    "over numbers": (lambda x: lax.scan(lambda h, i: (h + i, None), x, jnp.arange(9.0)), f32(B, 8)),
    "over too many": (lambda x: lax.scan(layer, x, stacked_layers(1500)), f32(B, 8)),
    "of weights that are inputs": (lambda x, w: lax.scan(lambda h, w: (h @ w, None), x, w), f32(B, 8), f32(3, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("fn_and_specs", KEPT_LOOPS.values(), ids=KEPT_LOOPS)
def test_other_scans_stay_loops(fn_and_specs):
    fn, *specs = fn_and_specs
    assert operators(jaxport.to_onnx(fn, specs), nested=True).count("Scan") == 1


@pytest.mark.parametrize(("limit", "loops"), [(0, 1), (2, 1), (3, 0)])
def test_scans_up_to_a_length_can_be_written_out(limit, loops):
    weights = np.random.default_rng(0).normal(size=(3, 4, 4)).astype(np.float32)
    exported = check(
        lambda x: lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, weights, reverse=True),
        f32(B, 4),
        unroll_scans=limit,
    )
    assert operators(exported, nested=True).count("Scan") == loops


@pytest.mark.parametrize(
    ("fn", "node"),
    [
        pytest.param(lambda x: lax.scan(lambda c, r: (c + r, c), 0.0, x), "Scan", id="over-rows"),
        pytest.param(lambda x: lax.scan(lambda c, r: (c + r, c), 0.0, x[1:]), "Loop", id="perhaps-no-row"),
        pytest.param(lambda x: lax.fori_loop(0, 9, lambda i, c: c + i, x), "Loop", id="counted"),
    ],
)  # fmt: skip
def test_the_loop_that_is_chosen(fn, node):
    found = operators(check(fn, f32(T)), nested=True)
    assert [n for n in found if n in ("Scan", "Loop")] == [node]


def test_sizes_are_computed_outside_of_loops():
    exported = check(
        lambda x: lax.scan(lambda c, r: (c + jnp.ones(2 * x.shape[1]).sum() * r.sum(), c), 0.0, x), f32(T, B)
    )
    (scan,) = [node for node in exported.model.graph if node.op_type == "Scan"]
    assert "Shape" not in [node.op_type for node in scan.attributes["body"].as_graph()]

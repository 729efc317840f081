"""What is made inside one branch or body is never used in another one: random programs of nested control flow."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from jax import lax

from jaxport import to_onnx
from jaxport.errors import ExportError
from jaxport.export.delivery.scopes import check_scopes
from jaxport.graph.editing import bodies

Array = jax.Array
Step = Callable[[Sequence[Array]], Array]
"""A function of the values so far."""

RNG = np.random.default_rng(0)
SHAPE = (2, 6, 6, 4)
KERNEL = 0.2 * RNG.normal(size=(3, 3, 4, 4)).astype(np.float32)
WEIGHT = 0.3 * RNG.normal(size=(4, 4)).astype(np.float32)
VIEWS: list[Callable[[Array], Array]] = [
    lambda x: jnp.flip(x, 1),
    lambda x: x.transpose(0, 2, 1, 3),
    lambda x: jnp.roll(x, 1, 3),
    lambda x: x.reshape(2, 36, 4).transpose(0, 2, 1).reshape(2, 4, 6, 6).transpose(0, 2, 3, 1),
    lambda x: jnp.concatenate([x[:, 3:], x[:, :3]], 1),
    lambda x: x.transpose(0, 3, 1, 2)[:, ::-1].transpose(0, 2, 3, 1),
    lambda x: jnp.pad(x[:, 1:], ((0, 0), (0, 1), (0, 0), (0, 0))),
]
OPERATIONS: list[Callable[[Array], Array]] = [
    lambda x: lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
    jnp.tanh,
    lambda x: jnp.tanh(x @ WEIGHT),
    lambda x: x * KERNEL[0, 0, 0],
    lambda x: jnp.maximum(x, 0.0),
]


def drawn_step(draw: random.Random, depth: int) -> Step:
    """One operation on some of the values so far, or control flow around more of them."""
    view, operation, first, second = draw.choice(VIEWS), draw.choice(OPERATIONS), draw.randrange(9), draw.randrange(9)
    if depth == 0 or draw.random() > 0.45:
        return draw.choice(
            [
                lambda values: view(values[first % len(values)]),
                lambda values: operation(values[first % len(values)]),
                lambda values: values[first % len(values)] + view(values[second % len(values)]),
            ]
        )
    kind = draw.choice(["cond", "cond", "cond", "switch", "scan", "fori", "while"])
    one, two, three = (drawn_block(draw, depth - 1) for _ in range(3))
    seen = draw.choice([view, lambda x: x])
    captured = draw.random() < 0.5
    if kind == "cond":
        above = draw.choice([-1.0, 0.0, 1.0])

        def branched(values: Sequence[Array]) -> Array:
            shown, chosen = [*map(seen, values)], values[0].sum() > above
            if captured:
                return lax.cond(chosen, lambda: one(shown), lambda: two(shown))
            return lax.cond(chosen, lambda *shown: one(shown), lambda *shown: two(shown), *shown)

        return branched
    if kind == "switch":
        return lambda values: lax.switch(
            (values[0].sum() > 0).astype(int) + first % 2,
            [lambda block=block: block(values) for block in (one, two, three)],
        )
    if kind == "scan":

        def scanned(values: Sequence[Array]) -> Array:
            def body(carry: Array, row: Array) -> tuple[Array, Array]:
                return jnp.tanh(one([carry, *map(seen, values[1:])]) + row.mean()), carry.mean()

            last, means = lax.scan(body, values[0], jnp.moveaxis(values[-1], 1, 0))
            return last + means.sum() / 10

        return scanned
    if kind == "fori":
        return lambda values: lax.fori_loop(
            0, 2, lambda _, carry: jnp.tanh(one([carry, *map(seen, values[1:])])), values[0]
        )
    return lambda values: lax.while_loop(
        lambda state: (state[0] < 3) & (state[1].sum() < 1e3),
        lambda state: (state[0] + 1, jnp.tanh(one([state[1], *values[1:]]))),
        (0, values[0]),
    )[1]


def drawn_block(draw: random.Random, depth: int) -> Step:
    steps = [drawn_step(draw, depth) for _ in range(draw.randint(2, 4))]

    def block(values: Sequence[Array]) -> Array:
        values = list(values)
        for step in steps:
            values.append(step(values))
        return values[-1] + values[-2]

    return block


def program(seed: int) -> Callable[[Array, Array], Array]:
    draw = random.Random(seed)
    block = drawn_block(draw, draw.choice([1, 2, 3]))
    return lambda x, y: block([x, y])


def compare(function: Callable[[Array, Array], Array], seed: int, **options: Any) -> None:
    """Export a function of two images, let onnx check it, and compare ONNX Runtime with JAX."""
    generator = np.random.default_rng(seed)
    inputs = [generator.normal(size=SHAPE).astype(np.float32) for _ in range(2)]
    exported = to_onnx(function, inputs, **options)
    onnx.checker.check_model(exported.proto, full_check=True)
    session = onnxruntime.InferenceSession(exported.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    (result,) = session.run(None, dict(zip(names, inputs, strict=True)))
    np.testing.assert_allclose(result, jax.jit(function)(*inputs), rtol=2e-3, atol=2e-4)


def test_branches_share_no_transposed_view() -> None:
    convolved = OPERATIONS[0]

    def step(x: Array, y: Array) -> Array:
        view = jnp.roll(x, 1, 1)
        inner = lambda: lax.cond(y.sum() > 0, lambda: convolved(jnp.flip(view, 1)), lambda: convolved(view))
        return lax.cond(x.sum() > 0, inner, lambda: convolved(view) * 2)

    compare(step, 0)


@pytest.mark.parametrize("seed", [20, 45])
def test_control_flow_around_views(seed: int) -> None:
    compare(program(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_much_control_flow_around_views(seed: int) -> None:
    compare(program(seed), seed)


def test_a_value_of_another_branch_is_told() -> None:
    def function(x: Array) -> Array:
        return lax.cond(x.sum() > 0, lambda: jnp.sin(x) + 1, lambda: jnp.cos(x) * 2)

    def mixed(model: ir.Model) -> None:
        """A pass that uses in one branch what the other has made."""
        (branches,) = [inner for node in model.graph if (inner := bodies(node))]
        first, second = (list(branch) for branch in branches)
        second[-1].replace_input_with(0, first[0].outputs[0])

    with pytest.raises(
        ExportError, match=r"the graph is not valid: `\w+` in `\w+` of `If.*` uses `\w+`, which is made"
    ):
        to_onnx(function, [SHAPE], passes=[mixed])


def test_a_name_of_two_values_is_told() -> None:
    def named_alike(model: ir.Model) -> None:
        first, second = [node.outputs[0] for node in model.graph][:2]
        second.name = first.name

    with pytest.raises(ExportError, match=r"two values are called `\w+`"):
        to_onnx(lambda x: jnp.tanh(jnp.cos(jnp.sin(x))), [SHAPE], passes=[named_alike])


def test_what_onnx_accepts_is_accepted() -> None:
    model = to_onnx(lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), x), [SHAPE], unroll_scans=None).model
    check_scopes(model)

"""Gradients of operators at special points: where a value is finite, its gradient is, as PyTorch's is, or the reason is told.

The table is derived: the cases of onnx's backend suite with one node, and each of their inputs of floating-point numbers in
place of which stand zeros, ones, equal numbers, and pairs of equal ones.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

from jaxport.errors import JaxportError
from jaxport.importer import from_onnx
from tests.importer import printed
from tests.importer.attributes import seeds
from tests.importer.backend import split
from tests.importer.models import model

POINTS = {
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "equal": lambda x: np.full_like(x, 0.3),
    "pairs": lambda x: (np.arange(x.size) // 2 % 3 - 1).astype(x.dtype).reshape(x.shape),
    "zeros but for one": lambda x: np.where(np.arange(x.size) < 1, 0.3, 0).astype(x.dtype).reshape(x.shape),
}
INFINITE = {
    "^A(cos|sin)-. x (ones|pairs)$": "the slope at -1 and 1 is infinite",
    "^Acosh-. x ones$": "the slope at 1 is infinite",
    "^Sqrt-. x zeros": "the slope at 0 is infinite",
}
"""Faults that are none, by their text: the gradient is infinite by definition, and in PyTorch."""


class Node(NamedTuple):
    """A model, and its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]


def nodes() -> Iterator[Node]:
    """The nodes of the suite that take and return floating-point numbers."""
    for (_, name), entries in seeds().items():
        for at, (made, inputs) in enumerate(entries):
            yield Node(f"{name}-{at}", made, inputs)


FURTHER = [
    ("float[1,2,4,4] x", 18, "y = LpPool<kernel_shape = [2, 2]> (x)"),
    ("float[1,2,4,4] x", 18, "y = LpPool<kernel_shape = [2, 2], p = 3> (x)"),
    ("float[1,2,4,4] x", 18, "y = GlobalLpPool (x)"),
    ("float[1,2,4,4] x", 18, "y = GlobalLpPool<p = 3> (x)"),
    ("float[1,2,4,4] x", 8, "y = MeanVarianceNormalization (x)"),
    ("float[2,3] x", 13, "y = ReduceL2<axes = [1]> (x)"),
    (
        "float[2,3] x",
        13,
        "n = ReduceL2<axes = [1]> (x) l = Constant<value = float {1e-12}> () c = Clip (n, l) y = Div (x, c)",
    ),
    ("float[2,3] x", 18, 'y = ai.onnx.ml.Normalizer<norm = "L2"> (x)'),
    ("float[2,3] x, float[2,3] z", 18, 'y = com.microsoft.CDist<metric = "euclidean"> (x, z)'),
]
"""What no case of the suite has: roots of other orders, other domains, older versions, and `F.normalize`."""


def faults(node: Node, as_source: bool = False) -> list[str]:
    """The inputs and points where the outputs are finite and a gradient is not; or where printed source has another one."""
    try:
        run = from_onnx(node.model)
        known, traced = split(run, node.inputs)
    except JaxportError:
        return []
    found = []
    for name, x in traced.items():
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or not x.size:
            continue
        try:
            at = losses(run, known, traced, name)
            values = {point: at(make(x)) for point, make in POINTS.items()}
        except (JaxportError, ValueError, TypeError, jax.errors.JAXTypeError):
            continue  # what has no gradient, or a size that depends on values, has tests of its own
        found += [
            f"{node.name} {name} {point}"
            for point, (value, gradient) in values.items()
            if np.isfinite(value).all() and not np.isfinite(gradient).all()
        ]
        if as_source:
            module = printed.load(printed.source_of(run, node.inputs)[0])
            call = lambda module=module, **inputs: module.model(module.params, *inputs.values())
            at = losses(call, {}, traced, name)
            for point, make in POINTS.items():
                np.testing.assert_allclose(at(make(x))[1], values[point][1], rtol=1e-5, atol=1e-6)
    return found


def losses(run: Any, known: dict[str, Any], traced: dict[str, Any], name: str) -> Any:
    """The outputs of a model, and the gradient of their sum, as a compiled function of one input."""
    rest = {key: value for key, value in traced.items() if key != name}

    def loss(x: Any) -> Any:
        inputs = {key: x if key == name else rest[key] for key in traced}
        leaves = [leaf for leaf in jax.tree.leaves(run(**inputs, **known)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return sum((jnp.sum(leaf.astype(np.float32)) for leaf in leaves), jnp.float32(0)), leaves

    def both(x: Any) -> Any:
        gradient, leaves = jax.grad(loss, has_aux=True)(x)
        return jnp.concatenate([jnp.ravel(leaf).astype(np.float32) for leaf in leaves] or [jnp.zeros(1)]), gradient

    return jax.jit(both)


def reason(fault: str) -> str | None:
    return next((why for pattern, why in INFINITE.items() if re.search(pattern, fault)), None)


def check(some: list[Node], as_source: bool = False) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = [fault for node in some for fault in faults(node, as_source) if reason(fault) is None]
    assert not wrong, "\n".join(wrong)


QUICK = "ReduceL2|ReduceLogSum|RoiAlign|LpNormalization|MeanVarianceNormalization|Sqrt"


def test_a_sample_of_the_suite_has_finite_gradients() -> None:
    check([node for node in nodes() if re.match(f"({QUICK})-0", node.name)])


@pytest.mark.slow
@pytest.mark.parametrize("operator", [name for _, name in seeds()])
def test_the_suite_has_finite_gradients(operator: str) -> None:
    check([node for node in nodes() if node.name.startswith(f"{operator}-")])


@pytest.mark.parametrize(("inputs", "opset", "text"), FURTHER)
def test_roots_of_sums_have_finite_gradients_in_programs_and_source(inputs: str, opset: int, text: str) -> None:
    made = model(f"g ({inputs}) => (float y) {{ {text} }}", opset)
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in made.graph.input]
    check([Node(text, made, [np.ones(shape, np.float32) for shape in shapes])], as_source=True)


def test_the_gradient_of_a_root_has_derivatives_both_ways() -> None:
    run = from_onnx(model("g (float[2,3] x) => (float[a,b] y) { y = ReduceL2<axes = [1]> (x) }", 13))
    x = jnp.array([[0.0, 0, 0], [3, 0, 4]])
    norm = lambda x: jnp.sum(run(x))
    np.testing.assert_allclose(jax.grad(norm)(x), [[0, 0, 0], [0.6, 0, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(norm, (x,), (jnp.ones_like(x),))[1], 1.4, rtol=1e-6)
    expected = (np.eye(3) - np.outer([0.6, 0, 0.8], [0.6, 0, 0.8])) / 5
    np.testing.assert_allclose(jax.hessian(norm)(x)[1, :, 1], expected, atol=1e-6)
    assert np.isfinite(jax.hessian(norm)(x)).all()

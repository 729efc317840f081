"""Sizes that a crate reads from the elements of inputs: each result is ONNX Runtime's, and other elements are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import jaxport
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.errors import ValueNotKnown
from tests.burn.crates import Built, RunError, build, case_of, selected
from tests.burn.test_gaps import Inputs, check_in_runtime, model, some

pytestmark = pytest.mark.burn

"""Relative to the largest element of an output."""
ZERO, ONE = np.array(0), np.array(1)


def sizes(**elements: int | list[int]) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.int64) for name, value in elements.items()}


def with_x(*shape: int, **elements: int | list[int]) -> dict[str, np.ndarray]:
    return {"x": some(*shape), **sizes(**elements)}


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[Inputs, ...]]] = {
    "range": (
        lambda: model("g (int64 n) => (int64[k] y) { y = Range(zero, n, one) }", zero=ZERO, one=ONE),
        (sizes(n=3), sizes(n=8)),
    ),
    "range in steps": (
        lambda: model("g (int64 a, int64 b, int64 c) => (int64[k] y) { y = Range(a, b, c) }"),
        (sizes(a=0, b=7, c=2), sizes(a=3, b=12, c=1)),
    ),
    "positions": (
        lambda: model(
            """g (int64 n, float[8, 4] x) => (float[k, 4] y)
            { p = Range(zero, n, one) w = Gather(x, p) f = Cast<to = 1>(n) y = Div(w, f) }""",
            zero=ZERO, one=ONE,
        ),
        (with_x(8, 4, n=3), with_x(8, 4, n=8)),
    ),
    "reshape": (
        lambda: model("g (float[n, 12] x, int64[3] shape) => (float[a, b, c] y) { r = Reshape(x, shape) y = Abs(r) }"),
        (with_x(2, 12, shape=[2, 3, 4]), with_x(5, 12, shape=[4, 1, 15])),
    ),
    "slice": (
        lambda: model("g (float[8, 6] x, int64[2] starts, int64[2] ends) => (float[a, b] y) { y = Slice(x, starts, ends) }"),
        (with_x(8, 6, starts=[0, 2], ends=[8, 4]), with_x(8, 6, starts=[3, 0], ends=[100, 1])),
    ),
    "slice in steps": (
        lambda: model(
            "g (float[n, 6] x, int64[2] starts, int64[2] ends) => (float[a, b] y) { y = Slice(x, starts, ends, axes, steps) }",
            axes=np.array([0, 1]), steps=np.array([2, 1]),
        ),
        (with_x(8, 6, starts=[0, 2], ends=[7, 4]), with_x(5, 6, starts=[1, 0], ends=[4, 6])),
    ),
    "constant of shape": (
        lambda: model("g (int64[3] shape) => (float[a, b, c] y) { y = ConstantOfShape<value = float[1] {2.5}>(shape) }"),
        (sizes(shape=[2, 3, 4]), sizes(shape=[1, 1, 5])),
    ),
    "expand": (
        lambda: model("g (float[3, 1] x, int64[3] shape) => (float[a, b, c] y) { y = Expand(x, shape) }"),
        (with_x(3, 1, shape=[2, 3, 4]), with_x(3, 1, shape=[1, 3, 1])),
    ),
    "resize": (
        lambda: model("""g (float[1, 2, 4, 5] x, int64[2] size) => (float[1, 2, c, d] y)
            { sizes = Concat<axis = 0>(channels, size) y = Resize<mode = "linear">(x, , , sizes) }""", channels=np.array([1, 2])),
        (with_x(1, 2, 4, 5, size=[8, 10]), with_x(1, 2, 4, 5, size=[3, 7])),
    ),
    "tile": (
        lambda: model("g (float[3, 4] x, int64[2] r) => (float[a, b] y) { y = Tile(x, r) }"),
        (with_x(3, 4, r=[2, 1]), with_x(3, 4, r=[1, 3])),
    ),
    "pad": (
        lambda: model("g (float[3, 4] x, int64[4] p) => (float[a, b] y) { y = Pad(x, p) }"),
        (with_x(3, 4, p=[0, 1, 2, 3]), with_x(3, 4, p=[1, 0, 0, 0])),
    ),
    "one hot": (
        lambda: model("g (int64[3] i, int64 depth) => (float[3, d] y) { y = OneHot(i, depth, v) }", v=np.array([0.5, 2], np.float32)),
        (sizes(i=[0, 1, -1], depth=3), sizes(i=[4, 1, -5], depth=5)),
    ),
    "greatest": (
        lambda: model("g (float[3, 8] x, int64[1] k) => (float[3, k] v, int64[3, k] i) { v, i = TopK(x, k) }"),
        (with_x(3, 8, k=[2]), with_x(3, 8, k=[8])),
    ),
    "split": (
        lambda: model("g (float[8, 4] x, int64[2] at) => (float[a, 4] y, float[b, 4] z) { y, z = Split(x, at) }"),
        (with_x(8, 4, at=[3, 5]), with_x(8, 4, at=[7, 1])),
    ),
    "mask": (
        lambda: model("g (float[n, n] x, int64 k) => (float[n, n] y) { y = Trilu(x, k) }"),
        (with_x(4, 4, k=1), with_x(6, 6, k=2)),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """All models of the tests that were selected, in one binary."""
    names = dict.fromkeys([*selected(request, "name"), *REFUSED])
    programs = {name: jaxport.from_onnx(CASES[name][0]()) for name in names}
    crates = {name: to_crate(record_fused(program, reads_sizes=True)) for name, program in programs.items()}
    return build({name: case_of(crate, f"sizes_{name.replace(' ', '_')}") for name, crate in crates.items()}, "sizes")


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_read_from_elements(name: str, compiled: Built) -> None:
    check_in_runtime(name, CASES[name], compiled)


REFUSED = {
    "reshape": [
        (with_x(2, 12, shape=[2, 3, 5]), "`shape_0*shape_1*shape_2` is 30, but has to be 12*n, which is 24"),
        (with_x(2, 12, shape=[2, -1, 4]), "`shape` is [2, -1, 4], but its elements have to be at least 1"),
    ],
    "expand": [(with_x(3, 1, shape=[2, 5, 4]), "`shape` is [2, 5, 4], but has to be [shape_0, 3, shape_2], such as [2, 3, 4]")],
    "slice": [(with_x(8, 6, starts=[0, 2], ends=[-1, 4]), "`ends` is [-1, 4], but its elements have to be at least 0")],
    "split": [(with_x(8, 4, at=[3, 4]), "`at` is [3, 4], but has to be [at_0, - at_0 + 8], such as [3, 5]")],
    "greatest": [(with_x(3, 8, k=[9]), "`k_0` is 9, but has to be at most 8")],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_elements_that_are_no_such_sizes_are_refused(name: str, compiled: Built) -> None:
    for inputs, text in REFUSED[name]:
        assert compiled.run(name, inputs) == RunError(f"error: {text}")


AXES = {
    "CumSum": "g (float[3, 4] x, int32 axis) => (float[3, 4] y) { y = CumSum(x, axis) }",
    "Unsqueeze": "g (float[3, 4] x, int64[1] axis) => (float[a, b, c] y) { y = Unsqueeze(x, axis) }",
}
"""What decides more than sizes."""


@pytest.mark.parametrize("operator", AXES)
def test_what_decides_more_than_sizes_is_refused(operator: str) -> None:
    with pytest.raises(ValueNotKnown, match=rf"(?s){operator}.*(`to_source\(inputs=|sizes=)"):
        jaxport.from_onnx(model(AXES[operator])).to_source(framework="burn")

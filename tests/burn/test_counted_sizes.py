"""Sizes that follow from values, which a crate has as it runs: each result is ONNX Runtime's, also where nothing is found.

Nodes that count are printed by `argwhere`, `selected` and `distinct`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
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

ZERO, FIRST, SECOND = np.float32(0), np.array([0]), np.array([1])
HIDDEN = np.where(np.arange(12).reshape(3, 4) % 5, 0, np.nan).astype(np.float32)
FEW = np.array([[2, 0, 2, 1], [0, 0, 1, 2], [2, 0, 2, 1], [1, 1, 0, 0]])


def rows(*signs: float) -> dict[str, np.ndarray]:
    """Rows of these signs, as many as there are."""
    return {"x": np.abs(some(len(signs), 4)) * np.array(signs, np.float32)[:, None]}


ABOVE = "s = ReduceSum<keepdims = 0>(x, second) m = Greater(s, zero)"
BOXES = (
    "g (float[1, n, 4] b, float[1, 2, n] s) => (int64[k, 3] y) { y = NonMaxSuppression(b, s, most, overlap, least) }"
)


def boxes(count: int, scale: float = 1) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(count)
    corner = generator.uniform(0, 4, (1, count, 2))
    whole = np.concatenate([corner, corner + generator.uniform(2, 4, (1, count, 2))], axis=-1).astype(np.float32)
    return {"b": whole, "s": (scale * generator.uniform(0.1, 1, (1, 2, count))).astype(np.float32)}


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[Inputs, ...]]] = {
    "nonzero": (
        lambda: model("g (float[n, 4] x) => (int64[2, k] y) { y = NonZero(x) }"),
        ({"x": FEW.astype(np.float32)}, {"x": np.zeros((3, 4), np.float32)}, {"x": HIDDEN}, {"x": some(5, 4)}),
    ),
    "nonzero of booleans": (
        lambda: model("g (bool[n] x) => (int64[1, k] y) { y = NonZero(x) }"),
        ({"x": np.array([True, False, True])}, {"x": np.array([False])}, {"x": np.ones(4, bool)}),
    ),
    "nonzero of integers": (
        lambda: model("g (int64[n, 2, 2] x) => (int64[3, k] y) { y = NonZero(x) }"),
        ({"x": FEW.reshape(-1, 2, 2)}, {"x": np.zeros((1, 2, 2), np.int64)}),
    ),
    "elements of a mask": (
        lambda: model("g (float[n, 4] x) => (float[k] y) { m = Greater(x, zero) i = NonZero(m) t = Transpose(i) y = GatherND(x, t) }", zero=ZERO),
        (rows(1, -1, 1), rows(-1, -1)),
    ),
    "rows of a mask": (
        lambda: model(f"""g (float[n, 4] x) => (float[k, 4] y, float[k, 4] z, int64[1] c, float[4] t) {{ {ABOVE}
            y = Compress<axis = 0>(x, m) h = Neg(x) v = Compress<axis = 0>(h, m) z = Add(y, v) c = Shape<end = 1>(y)
            t = ReduceSum<keepdims = 0>(y, first) }}""", zero=ZERO, first=FIRST, second=SECOND),
        (rows(1, -1, 1), rows(-1, -1), rows(1, 1)),
    ),
    "rows in another shape": (
        lambda: model(f"""g (float[n, 4] x) => (float[k, 2, 2] y, float[j, 4] z) {{ {ABOVE} r = Compress<axis = 0>(x, m)
            c = Shape<end = 1>(r) s2 = Concat<axis = 0>(c, two) y = Reshape(r, s2) w = Concat<axis = 0>(c, four)
            e = Expand(row, w) z = Concat<axis = 0>(e, x) }}""", zero=ZERO, second=SECOND, two=np.array([2, 2]), four=np.array([4]), row=some(1, 4)),
        (rows(1, -1, 1), rows(-1, -1), rows(1)),
    ),
    "columns": (
        lambda: model("g (float[n, 4] x, bool[4] m) => (float[n, k] y) { y = Compress<axis = -1>(x, m) }"),
        tuple({"x": some(3, 4), "m": np.array(bits, bool)} for bits in ([1, 0, 1, 1], [0, 0, 0, 0])),
    ),
    "flat": (
        lambda: model("g (float[n, 4] x, bool[k] m) => (float[j] y) { y = Compress(x, m) }"),
        tuple({"x": some(3, 4), "m": np.array(bits, bool)} for bits in ([1, 0, 0, 1, 1], [0, 0], [1] * 12)),
    ),
    "means": (
        lambda: model(f"g (float[n, 4] x) => (float[4] y) {{ {ABOVE} r = Compress<axis = 0>(x, m) y = ReduceMean<keepdims = 0>(r, first) }}",
            zero=ZERO, first=FIRST, second=SECOND),
        (rows(1, -1, 1), rows(1)),
    ),
    "scattered": (
        lambda: model("""g (float[n, 4] x) => (float[n, 4] y) { m = Greater(x, zero) i = NonZero(m) t = Transpose(i) v = GatherND(x, t)
            u = Mul(v, v) y = ScatterND(x, t, u) }""", zero=ZERO),
        (rows(1, -1, 1), rows(-1, -1)),
    ),
    "unique": (
        lambda: model("g (float[n, 4] x) => (float[k] y, int64[k] f, int64[m] i, int64[k] c) { y, f, i, c = Unique(x) }"),
        ({"x": FEW.astype(np.float32)}, {"x": np.zeros((3, 4), np.float32)}, {"x": some(2, 4)}),
    ),
    "unique as they come": (
        lambda: model("g (int64[n, 4] x) => (int64[k] y, int64[k] f, int64[m] i, int64[k] c) { y, f, i, c = Unique<sorted = 0>(x) }"),
        ({"x": FEW}, {"x": np.zeros((3, 4), np.int64)}),
    ),
    "unique rows": (
        lambda: model("g (int64[n, 4] x) => (int64[k, 4] y, int64[k] f, int64[n] i, int64[k] c) { y, f, i, c = Unique<axis = 0>(x) }"),
        ({"x": FEW}, {"x": FEW[:1]}),
    ),
    "unique columns": (
        lambda: model("g (float[n, 4] x) => (float[n, k] y, int64[k] f, int64[m] i, int64[k] c) { y, f, i, c = Unique<axis = 1>(x) }"),
        ({"x": FEW.astype(np.float32)}, {"x": some(2, 4)}),
    ),
    "boxes": (
        lambda: model(BOXES, most=np.array([3]), overlap=np.array([0.5], np.float32), least=np.array([0.3], np.float32)),
        (boxes(6), boxes(2), boxes(9), boxes(4, 0.1)),
    ),
    "two best": (
        lambda: model(f"g (float[n, 4] x) => (float[2, 4] y, int64[2, 4] i) {{ {ABOVE} r = Compress<axis = 0>(x, m) y, i = TopK<axis = 0>(r, two) }}",
            zero=ZERO, second=SECOND, two=np.array([2])),
        (rows(1, -1, 1), rows(1, 1)),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """All models of the tests that were selected, in one binary."""
    names = dict.fromkeys([*selected(request, "name"), "two best"])
    programs = {name: jaxport.from_onnx(CASES[name][0]()) for name in names}
    crates = {name: to_crate(record_fused(program, reads_sizes=True)) for name, program in programs.items()}
    return build(
        {name: case_of(crate, f"counted_{name.replace(' ', '_')}") for name, crate in crates.items()}, "counted"
    )


@pytest.mark.parametrize("name", CASES)
def test_sizes_follow_from_values(name: str, compiled: Built) -> None:
    check_in_runtime(name, CASES[name], compiled)


def test_places_of_64_bits_are_those() -> None:
    with jax.enable_x64(True):
        crate = to_crate(record_fused(jaxport.from_onnx(CASES["unique"][0]()), reads_sizes=True))
    built = build({"unique": case_of(crate, "counted_wide")}, "counted_wide")
    outputs = built.run("unique", {"x": FEW.astype(np.float32)})
    assert not isinstance(outputs, RunError), outputs
    assert {outputs[name].dtype.name for name in "fic"} == {"int64"}


def test_fewer_than_needed_are_refused(compiled: Built) -> None:
    found = compiled.run("two best", rows(-1, 1))
    assert isinstance(found, RunError)
    assert "`compress_count` is 1, but has to be at least 2" in found.message
    source = jaxport.from_onnx(CASES["two best"][0]()).to_source(framework="burn")
    assert source.notes == ("`compress_count >= 2` has to hold of what is counted",)


COUNTED = "m = Greater(x, zero) r = Compress<axis = 0>(x, m)"
REFUSED = {
    "a number": f"g (float[n] x, float[5] w) => (float[5] y) {{ {COUNTED} y = Add(r, w) }}",
    "another count": "g (float[n] x, bool[n] a, bool[n] b) => (float[k] y) { r = Compress(x, a) s = Compress(x, b) y = Add(r, s) }",
    "a multiple": f"g (float[n] x) => (float[k, 4] y) {{ {COUNTED} y = Reshape(r, four) }}",
    "a branch": f"""g (float[n] x) => (float[k] y) {{ {COUNTED} c = Shape(r) s = Squeeze(c) b = Cast<to = 9>(s) y = If(b)
        <then_branch = t () => (float[k] a) {{ a = Neg(r) }}, else_branch = e () => (float[k] e) {{ e = Neg(x) }}> }}""",
    "a loop": """g (float[n] x) => (float[n] y) { y = Loop(three, , x) <body = b (int64 i, bool go, float[n] v) => (bool next, float[n] w)
        { p = Greater(v, zero) r = Compress<axis = 0>(v, p) u = ReduceSum<keepdims = 0>(r) w = Add(v, u) next = Identity(go) }> }""",
}  # fmt: skip
"""What a count would have to be, or decide; in a loop each round has one of its own."""


@pytest.mark.parametrize("case", REFUSED)
def test_counts_that_would_have_to_be_something_are_refused(case: str) -> None:
    weights = {"zero": ZERO, "four": np.array([-1, 4]), "three": np.array(3)}
    made = model(REFUSED[case], **{key: value for key, value in weights.items() if key in REFUSED[case]})
    with pytest.raises(ValueNotKnown, match=r"(?s)Compress.*sizes=\{'r': bound\}"):
        jaxport.from_onnx(made).to_source(framework="burn")

"""Images with their channels last: operators that keep them so compute the same, and need no transpose."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxport.errors import ModelError
from jaxport.importer import Program
from jaxport.importer.resolving import layouts
from jaxport.importer.resolving.registry import operators
from tests.importer.models import program

pytestmark = pytest.mark.sampled(4)

UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf"
    " IsNaN LeakyRelu Mish Neg QuickGelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Swish"
    " Tan Tanh ThresholdedRelu GlobalAveragePool GlobalMaxPool"
).split()
BINARY = "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul PRelu Sub Sum".split()
LOGIC = "And Or Xor".split()
INTEGERS = "BitShift BitwiseAnd BitwiseOr BitwiseXor".split()
ATTRIBUTES = {"BitShift": '<direction="LEFT">', "Mod": "<fmod=1>"}
DOMAINS = {"QuickGelu": "com.microsoft.", "FusedConv": "com.microsoft."}

#: An operator that takes more than the image `c`, of shape 2×4×5×6, and something broadcast to it.
CASES: dict[str, list[tuple[str, int]]] = {
    "AveragePool": [("y = AveragePool<kernel_shape=[2,3], strides=[2,1], pads=[1,0,0,1]> (c)", 18),
        ("y = AveragePool<kernel_shape=[3,2], strides=[2,2], ceil_mode=1, count_include_pad=1, pads=[1,0,0,0]> (c)", 19),
        ("y = AveragePool<kernel_shape=[90,2], strides=[90,1], ceil_mode=1> (c)", 19),
        ("y = AveragePool<kernel_shape=[2,2], auto_pad=\"SAME_UPPER\"> (c)", 19)],
    "BatchNormalization": [("n = Abs (r) y = BatchNormalization (c, r, r, r, n)", version) for version in (8, 9, 14)]
        + [("n = Abs (r) y = BatchNormalization<training_mode=1> (c, r, r, r, n)", 14)],
    "BitwiseNot": [("n = Cast<to=6> (c) y = BitwiseNot (n)", 18)],
    "Cast": [("y = Cast<to=7> (c)", 18)],
    "CastLike": [("k = Constant<value = int32[2] {1, 2}> () y = CastLike (c, k)", 18)],
    "Clip": [("l = Constant<value_float=-0.5> () y = Clip (c, l)", 18), ("y = Clip<min=0.0, max=0.5> (c)", 6)],
    "Concat": [("y = Concat<axis=1> (c, i)", 18), ("y = Concat<axis=-1> (c, c)", 18)],
    "Conv": [("v = Constant<value = float[4,1,2,3] {K}> () y = Conv<group=4, strides=[2,1], pads=[1,0,0,1]> (c, v)", 18),
        ("v = Constant<value = float[6,2,2,2] {L}> () y = Conv<group=2, dilations=[1,2], auto_pad=\"SAME_LOWER\"> (c, v)", 18)],
    "ConvTranspose": [("v = Constant<value = float[4,3,2,2] {L}> () y = ConvTranspose<group=2, strides=[2,1]> (c, v)", 18),
        ("v = Constant<value = float[4,3,2,2] {L}> () y = ConvTranspose<strides=[2,3], auto_pad=\"SAME_UPPER\"> (c, v, t)", 18)],
    "DequantizeLinear": [("q = Cast<to=3> (c) s = Abs (r) y = DequantizeLinear<axis=1> (q, s)", 18)],
    "FusedConv": [("v = Constant<value = float[4,4,1,1] {M}> () y = com.microsoft.FusedConv<activation=\"Relu\"> (c, v, , i)", 18)],
    "GatherElements": [("k = Constant<value = int64[1] {1}> () s = Shape (c) n = Expand (k, s) y = GatherElements<axis=2> (c, n)", 18)],
    "GlobalLpPool": [("y = GlobalLpPool<p=3> (c)", 18), ("y = GlobalLpPool<p=1.0> (c)", 1), ("y = GlobalLpPool (c)", 1)],
    "GroupNormalization": [("p = Abs (c) y = GroupNormalization<num_groups=2> (p, g, g)", 18),
        ("y = GroupNormalization<num_groups=2> (c, r, r)", 21)],
    "Hardmax": [("y = Hardmax<axis=1> (c)", 18), ("y = Hardmax<axis=1> (c)", 11)],
    "InstanceNormalization": [("y = InstanceNormalization (c, r, r)", 18)],
    "Log": [("n = Abs (c) y = Log (n)", 18)],
    "LogSoftmax": [("y = LogSoftmax<axis=1> (c)", 18), ("y = LogSoftmax (c)", 18)],
    "LpPool": [("y = LpPool<kernel_shape=[2,3], strides=[2,1], pads=[1,0,0,1]> (c)", 18),
        ("y = LpPool<kernel_shape=[3,2], p=1, auto_pad=\"SAME_UPPER\"> (c)", 11), ("y = LpPool<kernel_shape=[2,2], p=1.0> (c)", 1)],
    "MaxPool": [("y = MaxPool<kernel_shape=[2,3], strides=[2,1], pads=[1,0,0,1]> (c)", 18),
        ("y = MaxPool<kernel_shape=[2,2], dilations=[1,2], ceil_mode=1, strides=[2,2]> (c)", 18)],
    "Not": [("n = Greater (c, r_image) y = Not (n)", 18)],
    "Pad": [("p = Constant<value = int64[4] {1,2,0,3}> () a = Constant<value = int64[2] {-1,1}> () y = Pad (c, p, , a)", 18),
        ("p = Constant<value = int64[8] {0,1,2,0, 0,0,3,-1}> () y = Pad (c, p)", 18),
        ("y = Pad<pads=[0,0,2,1, 0,1,3,0], mode=\"reflect\"> (c)", 10)],
    "Pow": [("k = Constant<value_float=2.0> () y = Pow (c, k)", 18), ("n = Abs (c) y = Pow (n, r_image)", 18)],
    "QuantizeLinear": [("s = Abs (r) y = QuantizeLinear<axis=1> (c, s)", 18), ("k = Constant<value_float=0.1> () y = QuantizeLinear (c, k)", 12)],
    "Resize": [("s = Constant<value = float[4] {1.0,1.0,2.0,1.5}> () y = Resize<mode=\"linear\"> (c, , s)", 18),
        ("s = Constant<value = int64[4] {2,4,3,7}> () y = Resize (c, , , s)", 18)],
    "ScatterElements": [("o = Constant<value_int=0> () j = Constant<value_int=3> () n = Relu (c) k = Cast<to=7> (n) m = Clip (k, o, j) y = ScatterElements<axis=-1, reduction=\"add\"> (c, m, i)", 18)],
    "Softmax": [("y = Softmax<axis=1> (c)", 18), ("y = Softmax<axis=1> (c)", 11)],
    "Split": [("y, z = Split<axis=1> (c)", 13), ("s = Constant<value = int64[2] {1,4}> () z, y = Split<axis=-2> (c, s)", 13)],
    "Sqrt": [("n = Abs (c) y = Sqrt (n)", 18)],
    "SwiGLU": [("y = SwiGLU<alpha=0.5> (c, i)", 28)],
    "TopK": [("k = Constant<value = int64[1] {2}> () y, z = TopK<axis=1> (c, k)", 18), ("k = Constant<value = int64[1] {2}> () z, y = TopK (c, k)", 18)],
    "Transpose": [("y = Transpose<perm=[0,2,3,1]> (c)", 18), ("y = Transpose<perm=[1,0,3,2]> (c)", 18), ("y = Transpose (c)", 18),
        ("n = Transpose<perm=[0,2,3,1]> (c) m = Exp (n) k = Transpose<perm=[0,3,1,2]> (m) y = Add (k, c)", 18)],
    "Upsample": [("y = Upsample<scales=[1.0,1.0,2.0,1.0]> (c)", 7)],
    "Where": [("n = Greater (c, r_image) y = Where (n, c, i)", 18)],
}  # fmt: skip
CASES |= {
    name: [(f"y = {DOMAINS.get(name, '')}{name} (c)", 20 if name == "Gelu" else 24 if name == "Swish" else 22)]
    for name in UNARY
}
PARTNERS = ("r_image", "i", "t_row", "scalar", "flat_row")
CASES |= {
    name: [(f"y = {name}{ATTRIBUTES.get(name, '')} (c, {partner})", 18) for partner in PARTNERS] for name in BINARY
}
CASES |= {
    name: [(f"n = Greater (c, r_image) m = Less (c, {partner}) y = {name} (n, m)", 18) for partner in ("i", "t_row")]
    for name in LOGIC
}
CASES |= {
    name: [(f"l = Abs (c) n = Cast<to=12> (l) k = Abs ({partner}) m = Cast<to=12> (k) y = {name}{ATTRIBUTES.get(name, '')} (n, m)", 18)
        for partner in ("i", "r_image")] for name in INTEGERS
}  # fmt: skip
for reduction in layouts.OVER:
    CASES[reduction] = [(f"n = Abs (c) y = {reduction}<axes={axes}, keepdims={kept}> (n)", 11)
        for axes, kept in (([2, 3], 1), ([2, 3], 0), ([1], 1), ([-3], 0), ([0, 3], 0))]  # fmt: skip
    CASES[reduction].append((f"a = Constant<value = int64[1] {{1}}> () n = Abs (c) y = {reduction} (n, a)", 18))

IN_ORDER = {
    ("Transpose", 0), ("Transpose", 1), ("Transpose", 2), ("Softmax", 1), ("Hardmax", 1), ("Split", 1), *((name, 4) for name in layouts.OVER),
}  # fmt: skip
"""Cases of which some axis has to be moved, or whose version does not work along one axis."""

WEIGHTS = {"K": 24, "L": 48, "M": 16}


def numbers(count: int) -> str:
    return ", ".join(map(str, np.sin(np.arange(count)).round(3).tolist()))


def around(body: str, opset: int) -> Program:
    """The operator behind a convolution, with what else it takes: for each channel, a second image, rows."""
    for name, count in WEIGHTS.items():
        body = body.replace(f"{{{name}}}", f"{{{numbers(count)}}}")
    constants = {
        "w": "4,3,1,1",
        "r": "4",
        "r_image": "4,1,1",
        "t": "3",
        "g": "2",
        "t_row": "5,6",
        "scalar": "1",
        "flat_row": "6",
    }
    made = " ".join(
        f"{name} = Constant<value = float[{sizes}] {{{numbers(int(np.prod([int(n) for n in sizes.split(',')])))}}}> ()"
        for name, sizes in constants.items()
    )
    graph = f"g (float[2,3,5,6] x, float[2,4,5,6] i) => (y) {{ {made} c = Conv (x, w) {body} }}"
    return program(graph, opset, domains=', "com.microsoft": 1' if "com.microsoft" in body else "")


def inputs() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((2, channels, 5, 6)).astype(np.float32) for channels in (3, 4)]


def transposes(call: Any, *args: np.ndarray) -> list[tuple[int, ...]]:
    """The shapes of the images that a program transposes."""
    equations = jax.make_jaxpr(call)(*args).eqns
    return [
        eqn.invars[0].aval.shape
        for eqn in equations
        if eqn.primitive.name == "transpose" and eqn.invars[0].aval.ndim == 4
    ]


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, rows in CASES.items() for number in range(len(rows))]
)
def test_computes_the_same(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.enable_x64(True):
        call = around(*CASES[name][number])
        actual, moved = jax.jit(call)(*inputs()), transposes(call, *inputs())
        monkeypatch.setattr(layouts, "CONVOLUTIONS", {})
        call = around(*CASES[name][number])
        expected, unmoved = jax.jit(call)(*inputs()), transposes(call, *inputs())
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)
    images = {(2, 3, 5, 6), (2, 4, 5, 6)}  # `x` and `i` on their way in
    inside = [shape for shape in moved[: len(moved) - (actual.ndim == 4)] if shape not in images]
    assert bool(inside) <= ((name, number) in IN_ORDER), moved
    assert len(unmoved) <= len([name for name in CASES[name][number][0].split() if name.startswith("Transpose")])


KERNEL = "w = Constant<value = float[2,2,1,1] {0.5, -0.25, 1.5, 0.75}> ()"
NESTED = {
    "branches": f"""g (float[1,2,3,4] x, bool flag) => (float[1,2,3,4] y) {{ {KERNEL} c = Conv (x, w)
        y = If (flag) <then_branch = t () => (z) {{ d = Conv (c, w) z = Add (d, c) }}, else_branch = e () => (z) {{ z = Exp (c) }}> }}""",
    "loop": f"""g (float[1,2,3,4] x, int64 n) => (float[1,2,3,4] y) {{ {KERNEL} t = Constant<value = bool {{1}}> () c = Conv (x, w)
        y = Loop (n, t, c) <body = b (int64 i, bool k, float[1,2,3,4] s) => (bool k2, float[1,2,3,4] s2) {{
            k2 = Identity (k) d = Conv (s, w) s2 = Sub (d, c) }}> }}""",
    "function": f"""g (float[1,2,3,4] x) => (float[1,2,3,4] y) {{ {KERNEL} c = Conv (x, w) d = own.Twice (c, w) y = Add (c, d) }}
        <domain: "own", opset_import: ["": 18]> Twice (a, b) => (z) {{ m = Relu (a) n = Conv (m, b) z = Add (n, a) }}""",
    "permutation of a function": f"""g (float[1,2,3,4] x) => (float[1,4,2,3] y) {{ {KERNEL} y = own.Moved<perm=[0, 3, 1, 2]> (x, w) }}
        <domain: "own", opset_import: ["": 18]> Moved<perm> (a, b) => (z) {{ n = Conv (a, b) z = Transpose<perm: ints = @perm> (n) }}""",
}  # fmt: skip


@pytest.mark.parametrize("case", NESTED)
def test_in_bodies_and_functions(case: str) -> None:
    graph, _, functions = NESTED[case].partition("<domain")
    nested = program(graph, functions=functions and f"<domain{functions}", domains=', "own": 1')
    samples = {"flag": np.array(True), "n": np.array(3)}
    inputs = {name: samples[name] for name in nested.input_names if name in samples}
    with jax.enable_x64(True):
        assert nested.verify(inputs).ok


IN_PLACE = (
    "s = Constant<value_ints=[2,1,-1]> () p = Constant<value_ints=[2,4,5,6]> () o = Constant<value_floats=[1.0]> ()"
)
BRANCH = "f{0} = Reshape (c{0}, s) n{0} = InstanceNormalization (f{0}, o, o) b{0} = Reshape (n{0}, p) c{1} = {2} (c{0}, b{0}) "
CHOICES = {
    # Each branch needs the model's order: so do the sums, and only the first convolution is transposed.
    "a stream that branches need": (f"c0 = Conv (x, w) {''.join(BRANCH.format(i, i + 1, 'Add') for i in range(3))} y = Relu (c3)", 2),
    # Each branch goes through a convolution, and is joined where this saves a transpose.
    "branches of convolutions": (f"c0 = Conv (x, w) {''.join(BRANCH.format(2 * i, 2 * i + 1, 'Mul') + f'c{2 * i + 2} = Conv (c{2 * i + 1}, v)' for i in range(2))} y = Relu (c4)", 6),
    # A vector per channel costs nothing: the sum stays with the convolutions.
    "a vector per channel": ("c0 = Conv (x, w) k = Constant<value_ints=[2,3]> () u = ReduceMean<axes=[2,3], keepdims=0> (c0) d = Exp (u) e = Unsqueeze (d, k) a = Add (c0, e) y = Conv (a, v)", 3),
    # Of equally good places the last one: what follows the Reshape is computed in the model's order.
    "a chain": ("f = Reshape (x, p3) g = Exp (f) h = Sin (g) c = Conv (h, w) d = Exp (c) y = Sin (d)", 2),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_as_few_transposes_as_possible(case: str) -> None:
    body, count = CHOICES[case]
    constants = f"w = Constant<value = float[4,3,1,1] {{{numbers(12)}}}> () v = Constant<value = float[4,4,1,1] {{{numbers(16)}}}> ()"
    constants += f" p3 = Constant<value_ints=[2,3,5,6]> () {IN_PLACE}"
    called = program(f"g (float[2,3,5,6] x) => (y) {{ {constants} {body} }}", 13)
    moved = transposes(called, inputs()[0])
    assert len(moved) == count, moved
    assert called.verify([inputs()[0]]).ok


WRONG = ["y = Concat<axis=4> (c, i)", "y = ReduceMax<axes=[1, 5]> (c)", "y = Transpose<perm=[0, 1, 2, 4]> (c)"]


@pytest.mark.parametrize("body", WRONG)
def test_axes_that_are_not_there_are_refused_as_the_model_has_them(body: str) -> None:
    with pytest.raises(ModelError, match=r"(?s)(Concat|ReduceMax|Transpose).*makes `y`.*[45]"):
        jax.jit(around(body, 13))(*inputs())


def test_every_operator_that_keeps_them_has_a_case() -> None:
    lowered = {operator.name for operator in operators() if operator.lowering is not None}
    tables = (layouts.EACH, layouts.ALONG, layouts.OVER, layouts.BY_AXIS)
    wrong = sorted(set().union(lowered, {"Transpose"}, *tables) ^ set(CASES))
    assert not wrong, f"the operators that keep channels last and `CASES` differ by {wrong}: add a case to each"

"""What is computed from positions and sizes alone is printed as a person writes it, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest

import jaxport
from tests.codegen.structured import load

CONSTANTS = (
    "zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] first = {0}, int64[1] second = {1}, int64[1] last = {-1}, "
    "int64[1] end = {9223372036854775807}, int64[2] flat = {-1, 1}"
)
SIZES = (
    "s = Shape(mask) b = Gather(s, zero) n = Gather(s, one) rows = Range(zero, b, one) i = Range(zero, n, one) "
    "a1 = Constant<value_ints = [1, 2, 3]>() a2 = Constant<value_ints = [0, 1, 2]>() a3 = Constant<value_ints = [0, 1, 3]>() "
    "r = Unsqueeze(rows, a1) k = Unsqueeze(i, a2) q = Unsqueeze(i, a3) t = Cast<to=9>(mask) "
)
POSITIONS = {
    "pairs of positions": (
        (f"{SIZES} e = Concat<axis=0>(bv, second, second, nv) rb = Expand(r, e) kb = Expand(k, e) r5 = Unsqueeze(rb, last) "
        "k5 = Unsqueeze(kb, last) p = Concat<axis=-1>(r5, k5) y = GatherND(t, p)"),
        "jnp.expand_dims(mask.astype(bool), (1, 2))",
    ),
    "flat positions": (
        f"{SIZES} f = Reshape(t, flat) m = Mul(r, n) at = Add(m, k) g = Gather(f, at) y = Squeeze(g, last)",
        "jnp.expand_dims(mask.astype(bool), (1, 2))",
    ),
    "positions that never are negative": (
        f"{SIZES} c = Less(i, zero) w = Add(i, n) x = Where(c, w, i) z = Gather<axis=1>(t, x) y = Unsqueeze(z, second)",
        "jnp.expand_dims(mask.astype(bool), 1)",
    ),
    "a condition that always holds": (
        f"{SIZES} always = GreaterOrEqual(q, zero) m = Unsqueeze(t, axes) y = And(always, m)",
        "jnp.expand_dims(mask.astype(bool), (1, 2))",
    ),
    "ones that are resized": (
        (f"{SIZES} small = Concat<axis=0>(second, second, nv, bv) wide = Concat<axis=0>(second, second, bv, nv) "
        "oo = ConstantOfShape<value = float[1] {1}>(small) rr = Resize(oo, , , wide) cc = Cast<to=9>(rr) "
        "front = Constant<value_ints = [0, 1]>() mm = Unsqueeze(t, front) y = And(cc, mm)"),
        "jnp.expand_dims(mask.astype(bool), (0, 1))",
    ),
    "packed sequences, of which there is one": (
        (f"{SIZES} w = Unsqueeze(i, first) h = Slice(w, first, second, second) e = Sub(h, one) j = Concat<axis=1>(e, w) "
        "u = Slice(j, second, end, second) v = Slice(j, first, last, second) d = Sub(u, v) ne = Equal(d, one) nn = Not(ne) "
        "ci = Cast<to=7>(nn) cs = CumSum(ci, one) ck = Unsqueeze(cs, second) cq = Unsqueeze(cs, third) same = Equal(ck, cq) "
        "m = Unsqueeze(t, axes) s4 = Unsqueeze(same, second) y = And(s4, m)"),
        "jnp.expand_dims(mask.astype(bool), (1, 2))",
    ),
    "a running sum of ones": (
        f"{SIZES} o = ConstantOfShape<value = int64[1] {{1}}>(s) c = CumSum(o, one) y = Sub(c, one)",
        "jnp.arange(1, length + 1",
    ),
    "a table of positions": (f"{SIZES} w = Slice(table, first, nv, second) y = Add(w, mask)", "jnp.arange(length)"),
    "equal rows of a table": (
        f"{SIZES} w = Gather<axis=1>(zeros, i) y = Add(w, mask)",
        "return mask",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", POSITIONS)
def test_positions(name: str, tmp_path: Path) -> None:
    body, text = POSITIONS[name]
    vectors = "bv = Gather(s, first) nv = Gather(s, second) "
    body = body.replace(SIZES, SIZES + vectors)
    table = ", ".join(map(str, range(100)))
    zeros = ", ".join(["0"] * 100)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> graph (int64[batch, length] mask) => (y) '
        f"<int64 {CONSTANTS}, int64[2] axes = {{1, 2}}, int64[1] third = {{2}}, int64[1, 100] table = {{{table}}}, "
        f"int64[1, 100] zeros = {{{zeros}}}> {{ {body} }}"
    )
    program = jaxport.from_onnx(model)
    code = program.to_source(tmp_path, framework="nnx").code
    call = " ".join(code.partition("def __call__")[2].partition("\n\n\n")[0].split())
    assert text in call
    assert "take" not in call
    made = load(tmp_path).load()
    for shape in ((2, 5), (3, 2)):
        mask = np.random.default_rng(0).integers(0, 2, shape)
        expected = program(mask)
        result = made(mask)
        np.testing.assert_array_equal(np.broadcast_to(result, expected.shape), expected)
        assert result.shape == expected.shape


def test_a_gather_by_data_stays(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> graph (float[batch, length] x, int64[batch, length] at) '
        "=> (float[batch, length] y) { y = GatherElements<axis=1>(x, at) }"
    )
    assert "take_along_axis" in jaxport.from_onnx(model).to_source(framework="nnx").code


def test_a_program_may_ask_whether_its_inputs_are_finite(tmp_path: Path) -> None:
    """Guards against NaN go; what a program tells of its inputs stays."""
    exported = jaxport.to_onnx(lambda x: (jnp.isfinite(x), jnp.isnan(x), jnp.isinf(x)), [("n",)])
    jaxport.from_onnx(exported).to_source(tmp_path, framework="nnx")
    x = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    for result, function in zip(load(tmp_path).load()(x), (np.isfinite, np.isnan, np.isinf), strict=True):
        np.testing.assert_array_equal(result, function(x))


ASKING: dict[str, Callable[[Any], Any]] = {
    "finite elements": lambda x: jnp.where(jnp.isfinite(x), x, 0).sum(-1),
    "no infinities": lambda x: jnp.where(jnp.isinf(x), jnp.sign(x), x).max(-1),
    "replaced": lambda x: jnp.nan_to_num(x).sum(-1),
    "of rows": lambda x: jnp.isnan(x[:, :2]).any(-1),
    "means": lambda x: jnp.nanmean(jnp.abs(x), -1),
}
"""Programs for inputs that are not finite."""


@pytest.mark.parametrize("case", ASKING)
def test_what_a_program_does_about_inputs_that_are_not_finite_stays(case: str, tmp_path: Path) -> None:
    x = np.array([[1, np.nan, -2, 3], [4, -5, -np.inf, 6], [7, 8, 9, np.nan]], np.float32)
    exported = jaxport.to_onnx(ASKING[case], [("n", 4)])
    jaxport.from_onnx(exported.model).to_source(tmp_path, framework="nnx")
    np.testing.assert_allclose(load(tmp_path).load()(x), ASKING[case](x), rtol=1e-6)

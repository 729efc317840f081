"""Attention is one call of JAX's function if that computes the same: also for rows that are masked as a whole."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from flax import nnx

import jaxport
from jaxport.codegen.recorded.fused import record_fused
from tests.codegen.structured import load

pytestmark = pytest.mark.sampled(2)

QUERIES, KEYS = "float[batch, 2, 5, 4] q", "float[batch, 2, 6, 4] k"
SCORES = "t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) s = Mul(a, scale)"
ZEROED = "z = IsNaN(p) g = Where(z, nothing, p) y = MatMul(g, k)"
WEIGHTED = "p = Softmax<axis=-1>(m) y = MatMul(p, k)"
MASK = "bool[batch, 1, 5, 6] mask"
BEHIND = (
    "h = Shape(q) two = Constant<value_int = 2>() n = Gather(h, two) from = Constant<value_int = 0>() "
    "by = Constant<value_int = 1>() i = Range(from, n, by) last = Constant<value_ints = [1]>() "
    "column = Unsqueeze(i, last) mask = GreaterOrEqual(column, i)"
)

BAND = (
    "i = Constant<value_ints = [0, 1, 2, 3, 4]>() j = Constant<value_ints = [0, 1, 2, 3, 4, 5]>() "
    "last = Constant<value_ints = [1]>() column = Unsqueeze(i, last) away = Sub(column, j) far = Abs(away) "
    "three = Constant<value_int = 3>() mask = Less(far, three)"
)


def attention(body: str, *inputs: str, low: str = "-3.4028235e38", opset: int = 20) -> onnx.ModelProto:
    """A model of queries, of keys that are the values too, and of other inputs."""
    own = inputs if any(" q" in one for one in inputs) else (QUERIES, KEYS, *inputs)
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> '
        f"graph ({', '.join(own)}) => ({own[0].split(']')[0]}] y) "
        f"<float scale = {{0.25}}, float nothing = {{0}}, float low = {{{low}}}> {{ {body} }}"
    )


def masked(masking: str, *inputs: str, low: str = "-3.4028235e38", opset: int = 20) -> onnx.ModelProto:
    """An attention with operators that compute `m` from the scores `s`."""
    return attention(f"{SCORES} {masking} {WEIGHTED}", *inputs, low=low, opset=opset)


def guarded(masking: str, *inputs: str, low: str = "-3.4028235e38") -> onnx.ModelProto:
    """The same, with zeros for weights that are NaN."""
    return attention(f"{SCORES} {masking} p = Softmax<axis=-1>(m) {ZEROED}", *inputs, low=low)


def printed(model: onnx.ModelProto, folder: Path) -> str:
    """The source, after a comparison of values: one sequence has a row that is masked as a whole."""
    program = jaxport.from_onnx(model)
    code = program.to_source(folder, framework="nnx").code
    random = np.random.default_rng(0)
    arrays = []
    for value in program.inputs:
        shape = [size if isinstance(size, int) else 3 for size in value.shape or ()]
        array = random.standard_normal(shape).astype(np.float32)
        if value.dtype in (ir.DataType.BOOL, ir.DataType.INT32):
            array = array > -0.5
            (array if array.ndim > 1 else array[:, None])[..., 1, :] = False
            array = np.where(array, 3, 0).astype(value.dtype.numpy())
        arrays.append(array)
    made, expected = load(folder).load()(*arrays), program(*arrays)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    return code


CAUSAL = ("float[batch, 2, length, 4] q", "float[batch, 2, length, 4] k")
SQUARE = "bool[batch, 1, length, length] c"
MASKED = {
    "scores are replaced": (masked("m = Where(mask, s, low)", MASK), "mask=mask"),
    "scores are replaced elsewhere": (masked("m = Where(mask, low, s)", MASK), "mask=jnp.logical_not(mask)"),
    "a low number is added": (masked("b = Where(mask, nothing, low) m = Add(s, b)", MASK), "mask=mask"),
    "infinity is added": (
        masked("b = Where(mask, nothing, low) m = Add(s, b)", MASK, low="-inf"),
        "bias=jnp.where(mask, 0.0, jnp.float32(-jnp.inf))",
    ),
    "a number that is not that low is added": (
        masked("b = Where(mask, nothing, low) m = Add(s, b)", MASK, low="-1e4"),
        "bias=jnp.where(mask, 0.0, jnp.float32(-10000.0))",
    ),
    "a bias is under the mask": (
        masked("b = Add(s, bias) m = Where(mask, b, low)", MASK, "float[2, 5, 6] bias"),
        "bias=jnp.expand_dims(bias, 0), mask=mask",
    ),
    "a bias of windows, which are in the axis of the batch": (
        attention(
            "four = Constant<value_ints = [-1, 2, 5, 4]>() q4 = Reshape(q5, four) q = Neg(q4) rows = Constant<value_ints = [-1, 2, 6, 4]>() "
            f"k4 = Reshape(k5, rows) k = Neg(k4) {SCORES} apart = Constant<value_ints = [-1, 3, 2, 5, 6]>() a5 = Reshape(s, apart) m5 = Add(a5, w) "
            "back = Constant<value_ints = [-1, 2, 5, 6]>() m = Reshape(m5, back) p = Softmax<axis=-1>(m) r = MatMul(p, k) "
            "five = Constant<value_ints = [-1, 3, 2, 5, 4]>() y = Reshape(r, five)",
            "float[batch, 3, 2, 5, 4] q5",
            "float[batch, 3, 2, 6, 4] k5",
            "float[1, 3, 1, 5, 6] w",
        ),
        "bias=jnp.tile(jnp.squeeze(w, 0), (batch, 1, 1, 1)), scale=0.25",
    ),
    "two masks": (
        masked("b = Where(other, s, low) m = Where(mask, b, low)", MASK, "bool[5, 6] other"),
        "mask=jnp.logical_and(mask, other)",
    ),
    "a low number is added before the scale": (
        attention(
            "t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) b = Where(mask, nothing, low) s = Add(a, b) "
            f"m = Mul(s, scale) {WEIGHTED}",
            MASK,
        ),
        "mask=mask, scale=0.25",
    ),
    "the keys behind each query": (masked(f"{BEHIND} m = Where(mask, s, low)", *CAUSAL), "is_causal=True"),
    "the keys behind, by infinity": (
        masked(f"{BEHIND} m = Where(mask, s, low)", *CAUSAL, low="-inf"),
        "is_causal=True",
    ),
    "a band of known sizes, by infinity": (masked(f"{BAND} m = Where(mask, s, low)", low="-inf"), "mask="),
    "the keys behind, and a mask": (
        masked(f"{BEHIND} both = And(mask, c) m = Where(both, s, low)", *CAUSAL, SQUARE),
        "mask=c, scale=0.25, is_causal=True",
    ),
    "the keys behind, and one of two masks": (
        masked(f"{BEHIND} later = Not(mask) one = Or(later, c) m = Where(one, low, s)", *CAUSAL, SQUARE),
        "mask=jnp.logical_not(c), scale=0.25, is_causal=True",
    ),
    "the keys behind, between two masks": (
        masked(
            f"{BEHIND} axes = Constant<value_ints = [0, 1]>() wide = Unsqueeze(mask, axes) first = And(c, wide) both = And(first, d) "
            "m = Where(both, s, low)",
            *CAUSAL,
            SQUARE,
            "bool[batch, 1, length, length] d",
        ),
        "mask=jnp.logical_and(c, d), scale=0.25, is_causal=True",
    ),
    "the keys behind, by addition": (
        masked(f"{BEHIND} b = Where(mask, nothing, low) m = Add(s, b)", *CAUSAL, low="-inf"),
        "is_causal=True",
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks(name: str, tmp_path: Path) -> None:
    model, text = MASKED[name]
    code = printed(model, tmp_path)
    assert text in " ".join(code.split())
    assert "nn.dot_product_attention(" in code


ZEROS = "jnp.any(mask, axis=3, keepdims=True).transpose(0, 2, 1, 3)"
GUARDED = {
    "a low number is added": (guarded("b = Where(mask, nothing, low) m = Add(s, b)", MASK), ""),
    "infinity is added": (guarded("b = Where(mask, nothing, low) m = Add(s, b)", MASK, low="-inf"), ZEROS),
    "scores are replaced by infinity": (guarded("m = Where(mask, s, low)", MASK, low="-inf"), ZEROS),
    "the keys behind, by infinity": (guarded(f"{BEHIND} m = Where(mask, s, low)", *CAUSAL, low="-inf"), ""),
    "the keys behind, by arithmetic": (
        guarded(
            f"{BEHIND} f = Cast<to=1>(mask) u = Constant<value_float = 1.0>() o = Sub(u, f) b = Mul(o, low) m = Add(s, b)",
            *CAUSAL,
        ),
        "",
    ),
    "a window behind, by infinity": (
        guarded(
            f"{BEHIND} three = Constant<value_int = 3>() f = Sub(column, three) w = Less(f, i) e = And(mask, w) "
            "m = Where(e, s, low)", *CAUSAL, low="-inf",
        ),
        "",
    ),
    "the operator": (attention("y = Attention(q, k, k, mask)", QUERIES, KEYS, MASK, opset=23), ZEROS),
    "the operator, with all heads of keys": (
        attention(
            "o = Constant<value_ints = [2]>() e = Unsqueeze(k, o) s = Constant<value_ints = [3, 2, 3, 6, 4]>() "
            "x = Expand(e, s) r = Constant<value_ints = [0, 6, 6, 4]>() z = Reshape(x, r) y = Attention(q, z, z)",
            "float[3, 6, 5, 4] q", "float[3, 2, 6, 4] k", opset=23,
        ),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GUARDED)
def test_guards(name: str, tmp_path: Path) -> None:
    """A guard that cannot act is gone; where a row may be masked as a whole, the result is zero there."""
    model, text = GUARDED[name]
    code = " ".join(printed(model, tmp_path).split())
    assert "nn.dot_product_attention(" in code
    assert not {"isnan", "softmax", "jnp.max"} & {word for word in ("isnan", "softmax", "jnp.max") if word in code}
    assert (text or "(") in code
    assert bool(text) == ("jnp.where(" in code)


def test_guards_stay_if_asked_for(tmp_path: Path) -> None:
    model, _ = GUARDED["a low number is added"]
    program = jaxport.from_onnx(model)
    assert "isnan" in program.to_source(framework="nnx", strict=True).code
    plain = program.to_source(framework="nnx")
    assert "isnan" not in plain.code
    assert "inputs and weights are finite: guards against NaN are left out" in plain.code


FLAT = "v = Attention<q_num_heads=2, kv_num_heads=2{more}>(q, k, k{mask}) y = Identity(v)"
OPERATORS = {
    "softmax before opset 13": attention(f"{SCORES} p = Softmax<axis=3>(s) y = MatMul(p, k)", opset=12),
    "ONNX Runtime's product": attention(
        "s = com.microsoft.FusedMatMul<alpha=0.25, transB=1>(q, k) p = Softmax<axis=-1>(s) y = MatMul(p, k)"
    ),
    "the operator, with a mask": attention(
        "m = Where(mask, nothing, low) y = Attention(q, k, k, m)", QUERIES, KEYS, MASK, low="-1e30", opset=23
    ),
    "the operator, with merged heads": attention(
        "y = Attention<q_num_heads=4, kv_num_heads=2, is_causal=1>(q, k, k)",
        "float[batch, 5, 8] q", "float[batch, 6, 4] k", opset=23,
    ),
    "the operator, of scale zero": attention("y = Attention<scale=0.0>(q, k, k)", opset=23),
    "ONNX Runtime's operator, of scale zero": attention(
        "y = com.microsoft.MultiHeadAttention<num_heads=2, scale=0.0>(q, k, k)",
        "float[batch, 5, 8] q", "float[batch, 6, 8] k",
    ),
    "ONNX Runtime's operator": attention(
        "y = com.microsoft.MultiHeadAttention<num_heads=2, scale=0.25>(q, k, k)",
        "float[batch, 5, 8] q", "float[batch, 6, 8] k",
    ),
    "ONNX Runtime's operator, with a bias, a mask and a term": attention(
        "y = com.microsoft.MultiHeadAttention<num_heads=2, unidirectional=1>(q, k, k, b, mask, term)",
        "float[batch, 5, 8] q", "float[batch, 5, 8] k", "float[24] b", "int32[batch, 5] mask", "float[1, 2, 5, 5] term",
    ),
    "ONNX Runtime's operator, with projections": attention(
        "y = com.microsoft.Attention<num_heads=2>(q, w, b)", "float[batch, 5, 8] q", "float[8, 24] w", "float[24] b",
    ),
    "ONNX Runtime's operator, with projections and a mask": attention(
        "y = com.microsoft.Attention<num_heads=2, mask_filter_value=-3.4e38>(q, w, , mask)",
        "float[batch, 5, 8] q", "float[8, 24] w", "int32[batch, 5] mask",
    ),
    "a temperature of each head": attention(
        f"t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) s = Mul(a, heat) m = Add(s, bias) {WEIGHTED}",
        QUERIES, KEYS, "float[2, 1, 1] heat", "float[2, 5, 6] bias",
    ),
    "a temperature of each query, behind a scale": attention(
        f"{SCORES} m = Mul(s, heat) {WEIGHTED}", QUERIES, KEYS, "float[batch, 1, 5, 1] heat"
    ),
    "ONNX Runtime's operator, with lengths": attention(
        "y = com.microsoft.Attention<num_heads=2>(q, w, b, mask)",
        "float[batch, length, 8] q", "float[8, 24] w", "float[24] b", "int32[batch] mask",
    ),
    "ONNX Runtime's operator, with a mask of queries and keys": attention(
        "y = com.microsoft.Attention<num_heads=2>(q, w, b, mask)",
        "float[batch, 5, 8] q", "float[8, 24] w", "float[24] b", "int32[batch, 5, 5] mask",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_other_operators(name: str, tmp_path: Path) -> None:
    code = printed(OPERATORS[name], tmp_path)
    assert "nn.dot_product_attention(" in code
    assert "softmax" not in code


def test_the_last_query_sees_all_keys(tmp_path: Path) -> None:
    """ONNX Runtime's operator hides no key from it, if there are more keys than queries."""
    body = "y = com.microsoft.MultiHeadAttention<num_heads=2, unidirectional=1>(q, k, k)"
    code = printed(attention(body, "float[batch, 5, 8] q", "float[batch, 6, 8] k"), tmp_path)
    assert "is_causal" not in code


def test_a_factor_of_each_key_is_no_factor_of_the_queries(tmp_path: Path) -> None:
    model = attention(f"{SCORES} m = Mul(s, heat) {WEIGHTED}", QUERIES, KEYS, "float[batch, 1, 1, 6] heat")
    assert "nn.softmax(" in printed(model, tmp_path)


WINDOWS = "t = Transpose<perm=[0,1,2,4,3]>(k) a = MatMul(q, t) s = Mul(a, scale)"
APART = {
    "windows next to the batch": (attention(f"{WINDOWS} p = Softmax<axis=-1>(s) y = MatMul(p, k)",
        "float[batch, 3, 2, 5, 4] q", "float[batch, 3, 2, 6, 4] k"), ".reshape(-1, 5, 2, 4)"),
    "windows next to the heads": (
        attention(f"{WINDOWS} p = Softmax<axis=-1>(s) w = MatMul(p, k) r = Transpose<perm=[0,3,2,1,4]>(w) e = Tanh(r) "
            "y = Transpose<perm=[0,3,2,1,4]>(e)", "float[batch, 2, 3, 5, 4] q", "float[batch, 2, 3, 6, 4] k"), "5, 6, 4)",
    ),
    "a mask of each window": (attention(f"{WINDOWS} m = Where(mask, s, low) p = Softmax<axis=-1>(m) y = MatMul(p, k)",
        "float[batch, 3, 2, 5, 4] q", "float[batch, 3, 2, 6, 4] k", "bool[1, 3, 1, 5, 6] mask",
    ), "mask=jnp.tile(jnp.squeeze(mask, 0), (batch, 1, 1, 1))"),
    "a mask of all": (attention(f"{WINDOWS} m = Where(mask, s, low) p = Softmax<axis=-1>(m) y = MatMul(p, k)",
        "float[batch, 3, 2, 5, 4] q", "float[batch, 3, 2, 6, 4] k", "bool[5, 6] mask"), "mask=jnp.expand_dims(mask, (0, 1))"),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_windows_attend_apart(name: str, tmp_path: Path) -> None:
    """They are merged into the batch, or into the heads, whichever they are next to."""
    model, text = APART[name]
    code = printed(model, tmp_path)
    assert "nn.dot_product_attention(" in code
    assert text in " ".join(code.split()), code


VALUES = "float[batch, 2, 6, 3] v"
CAPPED = "t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) r = Mul(a, scale) u = Tanh(r) s = Div(u, scale)"
HELPED = {
    "a soft cap": (attention(f"{CAPPED} m = Identity(s) {WEIGHTED}"), "softcap=4.0"),
    "a soft cap under a mask": (attention(f"{CAPPED} m = Where(mask, s, low) {WEIGHTED}", MASK), "mask=mask, scale=1.0, softcap=4.0"),
    "a soft cap, and a bias": (
        attention(f"{CAPPED} m = Add(s, bias) {WEIGHTED}", QUERIES, KEYS, "float[2, 5, 6] bias"), "bias=jnp.expand_dims(bias, 0)",
    ),
    "a soft cap, and the keys behind": (
        attention(f"{CAPPED} {BEHIND} m = Where(mask, s, low) {WEIGHTED}", *CAUSAL), "is_causal=True, softcap=4.0",
    ),
    "the keys behind, and a mask": (
        attention(f"{CAPPED} {BEHIND} b = Where(mask, s, low) m = Where(c, b, low) {WEIGHTED}", *CAUSAL, "bool[batch, 1, length, length] c"),
        "mask=c, scale=1.0, is_causal=True, softcap=4.0",
    ),
    "a soft cap, and fewer heads of keys": (
        attention(
            "o = Constant<value_ints = [2]>() e = Unsqueeze(k, o) z = Constant<value_ints = [1, 2, 3, 6, 4]>() x = Expand(e, z) "
            "f = Constant<value_ints = [0, 6, 6, 4]>() g = Reshape(x, f) t = Transpose<perm=[0,1,3,2]>(g) a = MatMul(q, t) "
            "r = Mul(a, scale) u = Tanh(r) s = Div(u, scale) p = Softmax<axis=-1>(s) y = MatMul(p, g)",
            "float[batch, 6, 5, 4] q", "float[batch, 2, 6, 4] k",
        ),
        "attention(q.transpose(0, 2, 1, 3), x, x, scale=1.0, softcap=4.0)",
    ),
    "a sink": (
        attention(
            f"{SCORES} h = Shape<end = 3>(q) one = Constant<value_ints = [1]>() e = Concat<axis = 0>(h, one) f = Expand(sink, e) "
            "c = Concat<axis = 3>(s, f) l = Constant<value_ints = [-1]>() x = ReduceMax<keepdims = 1>(c, l) d = Sub(c, x) "
            "j = Softmax<axis = -1>(d) zero = Constant<value_ints = [0]>() n = Constant<value_ints = [6]>() "
            "p = Slice(j, zero, n, l) y = MatMul(p, k)", QUERIES, KEYS, "float[1, 2, 1, 1] sink",
        ),
        "sink=",
    ),
    "values of another size": (
        attention(f"{SCORES} p = Softmax<axis=-1>(s) w = MatMul(p, v) l = Constant<value_ints = [3]>() y = ReduceSum<keepdims=1>(w, l)",
            QUERIES, KEYS, VALUES), "scale=0.25",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HELPED)
def test_what_jax_has_no_function_for_is_one(name: str, tmp_path: Path) -> None:
    model, text = HELPED[name]
    code = printed(model, tmp_path)
    assert text in " ".join(code.split()).replace("( ", "("), code
    assert code.count("softmax(") == code.count("def attention(") == 1
    assert "softmax" in jaxport.from_onnx(model).to_source(framework="burn").code


OTHERS = {
    "a row that is masked by infinity is NaN": masked("m = Where(mask, s, low)", MASK, low="-inf"),
    "what is masked is not low": masked("m = Where(mask, s, low)", MASK, low="-1"),
    "the operator bounds its scores": attention("y = Attention<softcap=2.0>(q, k, k)", opset=23),
    "ONNX Runtime's operator has a cache": attention(
        "y, past, present = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, k, , , , c, c)",
        "float[batch, 5, 8] q", "float[batch, 6, 8] k", "float[batch, 2, 3, 4] c",
    ),
    "ONNX Runtime's operator has a mask of ends and starts": attention(
        "y = com.microsoft.Attention<num_heads=2>(q, w, , mask)",
        "float[3, 5, 8] q", "float[8, 24] w", "int32[6] mask",
    ),
    "what is added to its scores is scaled with them": attention(
        f"t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) s = Add(a, bias) m = Mul(s, scale) {WEIGHTED}",
        QUERIES, KEYS, "float[2, 5, 6] bias",
    ),
    "softmax over two axes": attention(f"{SCORES} p = Softmax<axis=2>(s) y = MatMul(p, k)", opset=12),
    "the scale is negative": attention(f"{SCORES} m = Neg(s) p = Softmax<axis=-1>(m) y = MatMul(p, k)"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_computes_something_else_stays(name: str, tmp_path: Path) -> None:
    code = printed(OTHERS[name], tmp_path)
    assert "nn.dot_product_attention(" not in code
    assert "softmax" in code


def test_an_attention_without_heads_stays(tmp_path: Path) -> None:
    body = "t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t) p = Softmax<axis=-1>(s) y = MatMul(p, k)"
    assert "softmax" in printed(attention(body, "float[batch, 5, 4] q", "float[batch, 6, 4] k"), tmp_path)


def test_weights_that_others_read_stay(tmp_path: Path) -> None:
    """The softmax would be computed twice."""
    body = f"{SCORES} p = Softmax<axis=-1>(s) w = MatMul(p, k) l = Constant<value_ints = [3]>() n = ReduceMax(p, l)"
    assert "softmax" in printed(attention(f"{body} y = Add(w, n)"), tmp_path)


def in_half(model: onnx.ModelProto, kind: int, **numbers: float) -> jaxport.Program:
    """The program of a model with its floats, and numbers in the place of its constants, in half precision."""
    for one in (*model.graph.input, *model.graph.output):
        if one.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            one.type.tensor_type.elem_type = kind
    del model.graph.initializer[:]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    for name, number in numbers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number, dtype), name))
    return jaxport.from_onnx(model)


KINDS = [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16]


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind: int) -> None:
    """It is one call, in float32 for float16, unless each rounding of the file is asked for."""
    body = f"{SCORES} p = Softmax<axis=-1>(s) c = Cast<to={kind}>(p) y = MatMul(c, k)"
    program = in_half(attention(body), kind, scale=0.25)
    q, k = (
        np.random.default_rng(0).normal(size=(2, 2, size, 4)).astype(program.inputs[0].dtype.numpy()) for size in (5, 6)
    )
    for strict in (False, True):
        fused = record_fused(program, strict=strict)
        names = [step.name for step in fused.steps]
        assert ("nn.dot_product_attention" in names) is not strict
        found, expected = (np.asarray(one(q, k), np.float32) for one in (fused.program, program))
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)  # the file rounds its scores


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_in_half_precision(kind: int, tmp_path: Path) -> None:
    """With the lowest number of the type; a row that is masked as a whole is an average."""
    low = float(
        onnx.numpy_helper.to_array(onnx.helper.make_tensor("low", kind, [], [-3.38e38 if kind == KINDS[1] else -65504]))
    )
    model = masked("b = Where(mask, nothing, low) m = Add(s, b)", MASK)
    program = in_half(model, kind, scale=0.25, nothing=0, low=low)
    code = program.to_source(tmp_path, framework="nnx").code
    assert "mask=mask" in code
    dtype = program.inputs[0].dtype.numpy()
    q, k = (np.random.default_rng(0).normal(size=(3, 2, size, 4)).astype(dtype) for size in (5, 6))
    mask = np.random.default_rng(1).random((3, 1, 5, 6)) < 0.5
    mask[1] = False
    found, expected = (np.asarray(one(q, k, mask), np.float32) for one in (load(tmp_path).load(), program))
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


IN_BATCH = {
    "positions first, as in PyTorch's layer": (
        ("c = Constant<value_ints = [5, -1, 4]>() u = Reshape(q, c) d = Constant<value_ints = [6, -1, 4]>() w = Reshape(k, d) "
        "a = Transpose<perm=[1,0,2]>(u) b = Transpose<perm=[1,2,0]>(w) v = Transpose<perm=[1,0,2]>(w) s = MatMul(a, b) "
        "z = Mul(s, half) p = Softmax<axis=-1>(z) r = MatMul(p, v) t = Transpose<perm=[1,0,2]>(r) "
        "e = Constant<value_ints = [5, -1, 8]>() y = Reshape(t, e)"),
        ("float[5, batch, 8] q", "float[6, batch, 8] k"),
    ),
    "batch first, with a bias of heads": (
        ("c = Constant<value_ints = [0, 0, 2, 4]>() g = Reshape(q, c) h = Reshape(k, c) "
        "gt = Transpose<perm=[0,2,1,3]>(g) ht = Transpose<perm=[0,2,1,3]>(h) i = Constant<value_ints = [-1, 5, 4]>() "
        "j = Constant<value_ints = [-1, 6, 4]>() u = Reshape(gt, i) v = Reshape(ht, j) b = Transpose<perm=[0,2,1]>(v) "
        "s = MatMul(u, b) z = Mul(s, half) l = Constant<value_ints = [-1, 1, 6]>() n = Reshape(slopes, l) m = Add(z, n) "
        "p = Softmax<axis=-1>(m) r = MatMul(p, v) o = Constant<value_ints = [-1, 2, 5, 4]>() x = Reshape(r, o) "
        "t = Transpose<perm=[0,2,1,3]>(x) e = Constant<value_ints = [0, 0, 8]>() y = Reshape(t, e)"),
        ("float[batch, 5, 8] q", "float[batch, 6, 8] k", "float[batch, 2, 6] slopes"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_BATCH)
def test_heads_in_the_axis_of_the_batch(name: str, tmp_path: Path) -> None:
    body, inputs = IN_BATCH[name]
    model = attention(body, *inputs)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    code = printed(model, tmp_path)
    assert "nn.dot_product_attention(" in code
    assert "softmax" not in code


def test_the_operator_is_that_of_this_package() -> None:
    fused = record_fused(jaxport.from_onnx(masked("m = Where(mask, s, low)", MASK))).program
    own = [(node.domain, node.op_type) for node in fused.model.graph if node.domain]
    assert own == [("jaxport", "DotProductAttention")]


def projected(last: str) -> onnx.ModelProto:
    """A sum of two linear layers whose biases are one tensor of the file; `last` computes the second one."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> graph (float[batch, 8] x) => (float[batch, 4] y) '
        "{ first, second = Split<axis=0, num_outputs=2>(bias) "
        f"p = MatMul(x, p_kernel) q = MatMul(x, q_kernel) a = Add(p, first) b = {last} y = Mul(a, b) }}"
    )
    arrays = {"bias": (8,), "p_kernel": (8, 4), "q_kernel": (8, 4)}
    for name, shape in arrays.items():
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_parts_of_a_bias_belong_to_the_layers(tmp_path: Path) -> None:
    code = printed(projected("Add(q, second)"), tmp_path)
    assert code.count("nnx.Linear(8, 4, rngs=rngs)") == 2
    assert "split" not in code


def test_a_bias_with_a_part_of_another_use_stays_whole(tmp_path: Path) -> None:
    code = printed(projected("Mul(q, second)"), tmp_path)
    assert code.count("nnx.Linear(8, 4, use_bias=False, rngs=rngs)") == 2
    assert "jnp.split(self.bias[...], 2" in code


def test_a_bias_with_a_part_that_is_a_result_stays_whole(tmp_path: Path) -> None:
    model = projected("Neg(q)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, [4]))
    code = jaxport.from_onnx(model).to_source(tmp_path, framework="nnx").code
    assert "jnp.split(self.bias[...], 2" in code


def test_modules_that_cannot_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is known that has such; the search for them has to end nevertheless."""
    monkeypatch.setattr(sys.modules["jaxport.codegen.structure.modules.build"], "_are_doubled", lambda *_: True)
    with pytest.raises(jaxport.InvalidArgument, match="a parameter would belong to several"):
        jaxport.from_onnx(projected("Add(q, second)")).to_source(framework="nnx")


def test_a_bias_of_zeros_may_be_read_elsewhere():
    """T5 adds a bias of zeros in cross-attention, made of sizes that other operators read, too."""
    zeros = (
        "h = Shape(q) two = Constant<value_int = 2>() n = Gather(h, two) last = Constant<value_ints = [0]>() "
        "w = Unsqueeze(n, last) six = Constant<value_ints = [6]>() d = Concat<axis = 0>(w, six) "
        "o = ConstantOfShape(d) m = Add(s, o)"
    )
    body = f"{SCORES} {zeros} p = Softmax<axis=-1>(m) r = MatMul(p, k) c = Cast<to = 1>(n) y = Add(r, c)"
    program = jaxport.from_onnx(attention(body, "float[batch, 2, n, 4] q", KEYS))
    assert [step.name for step in record_fused(program).steps].count("nn.dot_product_attention") == 1
    q, k = (np.random.default_rng(0).normal(size=(2, 2, size, 4)).astype(np.float32) for size in (5, 6))
    np.testing.assert_allclose(record_fused(program).program(q, k), program(q, k), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("framework", ["nnx", "equinox", "jax"])
def test_a_module_named_like_a_function_does_not_bring_it(framework: str) -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.attention(x)

    source = jaxport.from_onnx(jaxport.to_onnx(Model(), [("B", "T", 8)]).model).to_source(framework=framework)
    assert "def attention(" not in source.code

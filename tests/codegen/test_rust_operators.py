"""Single operators in Rust, as text: what needs no compiler to be seen."""

from __future__ import annotations

import copy

import jax.export
import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.burn.equations import printed
from jaxport.codegen.recorded.fused import record_fused
from jaxport.codegen.rust.tree import Identifier
from jaxport.errors import Unsupported
from jaxport.importer import from_onnx


def model(text: str) -> str:
    """`model.rs` of a graph."""
    return crate(text).model


def crate(text: str):
    header = '<ir_version: 8, opset_import: ["": 18]> agraph '
    return to_crate(record_fused(from_onnx(onnx.parser.parse_model(header + text))))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("(float[2, 3] x) => (int64[2, 3] y) { y = ArgMax<axis = 1>(x) }", ".cast(IntDType::"),
        ("(int32[2, 3] x) => (int64[2, 3] y) { y = ArgMax<axis = 1>(x) }", ".cast(IntDType::"),
        (
            "(float[2, 0] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceMax<keepdims = 0>(x, a) }",
            "f32::NEG_INFINITY",
        ),
        ("(float[2] x, float[2] z) => (float[2] y) { y = Exp(x) }", "self.check(&x, &z)"),
        ("(int32[3] x) => (int32[3] y) <int32[3] a = {5, 5, 5}> { b = Neg(x) y = Min(b, a) }", "clamp_max(5)"),
        (
            "(float[n, m] x, int64[n, 1] i, int64[n, 1] j) => (float[n] y) { ij = Concat<axis = 1>(i, j) y = GatherND(x, ij) }",
            "gather_nd::<2, 2, 1, _>(x, ",
        ),
        ("(float[2] x) => (float[2] y) <float a = {-1.5}> { y = Add(x, a) }", "x - 1.5"),
        (
            (
                "(float[n, 8] x) => (float[n, 8, 2] y) { b = Constant<value_ints = [2]>() s = Shape(x) z = ConstantOfShape(s) "
                "r = Unsqueeze(x, b) i = Unsqueeze(z, b) p = Concat<axis = 2>(r, i) y = DFT<axis = 1>(p) }"
            ),
            "Tensor::<2>::zeros([n, 8]",
        ),
        ("(float[2] x) => (bool[2] y) { y = IsNaN(x) }", "x.is_nan()"),
        (
            (
                "(float[5, 3] x, int64[5] i) => (float[4, 3] y) <int64[2] s = {4, 3}, int64[1] a = {1}> "
                '{ z = ConstantOfShape(s) u = Unsqueeze(i, a) y = ScatterND<reduction = "add">(z, u, x) }'
            ),
            "lax_scatter(",
        ),
        (
            "(int32[n] x, float[m] z) => (int32[n] y) { s = Shape(z) c = Cast<to = 6>(s) y = Mod(x, c) }",
            "x.remainder_scalar(m as i64)",
        ),
        ("(int32[n] x, int32[n] z) => (int32[n] y) { y = Mod(x, z) }", "remainder_int(x, z)"),
        (
            "(int64[2] x) => (int64[2] y) <int64 a = {-3}, int64 b = {5}> { z = Max(x, a) y = Min(z, b) }",
            ".clamp(-3, 5)",
        ),
        ("(float[5, 9] x) => (float[5, 3] y, int64[5, 3] z) <int64[1] k = {3}> { y, z = TopK(x, k) }", "top_k(x"),
        (
            "(float[5, 9] x) => (float[3, 9] y, int64[3, 9] z) <int64[1] k = {3}> { y, z = TopK<axis = 0>(x, k) }",
            "transpose()",
        ),
        (
            "(float[1, 2, 8, 8] x) => (float[1, 2, 3, 3] y) { y = AveragePool<kernel_shape = [3, 3], strides = [2, 2]>(x) }",
            "avg_pool2d(x, AvgPoolOptions::new([3, 3]).with_stride([2, 2]))",
        ),
        (
            f"(int64[1] x) => (int64[20] y) <int64[20] a = {{{', '.join(map(str, range(3, 43, 2)))}}}> {{ y = Mul(a, x) }}",
            "Tensor::arange_step(3..43, 2, (&device, DType::I32))",
        ),
        (
            "(int64[n] i) => (float[n, 2] y) <float[2, 2] w = {1.0, 2.0, 3.0, 4.0}> { y = Gather(w, i) }",
            "embed::<1, 2>(&self.embed, i)",
        ),
        (
            "(float[2, 7] x) => (float[2, 3] y) <int64[1] one = {1}, int64[1] end = {7}, int64[1] two = {2}> { y = Slice(x, one, end, one, two) }",
            "x.slice(s![.., 1..;2])",
        ),
        (
            "(float[2] x, float p) => (float[4] y) <int64[2] a = {1, 1}> { y = Pad(x, a, p) }",
            "pad_computed(x, [(1, 1, 0)], p)",
        ),
        (
            "(int32[2] x, float[b] z) => (int32[4] y) <int64[2] a = {1, 1}> { s = Size(z) p = Cast<to = 6>(s) y = Pad(x, a, p) }",
            "pad_computed(x, [(1, 1, 0)], Tensor::<1, Int>::full([1], b as i64, (&device, DType::I32)))",
        ),
    ],
)
def test_form(text: str, part: str) -> None:
    assert part in model(text), model(text)


@pytest.mark.parametrize(
    ("attributes", "part"),
    [("", "1, true"), (', round_mode = "nearest"', "1 << 22, true"), (", saturate = 0", "1, false")],
)
def test_exponents_are_one_call(attributes: str, part: str) -> None:
    text = f"(float[2] x) => (float8e8m0[2] y) {{ y = Cast<to = 24{attributes}>(x) }}"
    model_ = onnx.parser.parse_model(f'<ir_version: 12, opset_import: ["": 24]> agraph {text}')
    assert f"to_power_of_two(x, {part})" in to_crate(record_fused(from_onnx(model_))).model


def test_expressions_are_copied_with_sizes_that_fill_tensors() -> None:
    (size,) = jax.export.symbolic_shape("n")
    made = RustBody(set(), lambda _: Identifier("table"), printed).created(size, (3,), np.dtype("int32"))
    assert copy.deepcopy(made).fills is size


def test_results_that_are_lists_are_their_elements() -> None:
    text = model("(float[2] x) => (seq(float[1]) y) { y = SplitToSequence(x) }")
    assert "pub fn forward(&self, x: Tensor<1>) -> (Tensor<1>, Tensor<1>) {" in text


def test_random_values_are_drawn_and_refused_in_loops() -> None:
    assert ".lower(x)" in model("(float[2] x) => (float[2] y) { y = Bernoulli(x) }")
    with pytest.raises(Unsupported, match="random_seed"):
        model("""(float[2] x, bool c) => (float[2] y) { y = Loop(, c, x) <body = b (int64 i, bool go, float[2] v) => (bool next, float[2] w)
            { w = RandomNormalLike(v) s = ReduceSum<keepdims = 0>(w) next = Cast<to = 9>(s) }> }""")


def test_names_in_texts_are_not_imported() -> None:
    node = helper.make_node("Cast", ["Slice // DType"], ["y"], to=TensorProto.FLOAT16)
    given, made = (
        helper.make_tensor_value_info(name, kind, ["n", 2])
        for name, kind in (("Slice // DType", TensorProto.FLOAT), ("y", TensorProto.FLOAT16))
    )
    graph = helper.make_graph([node], "g", [given], [made])
    text = to_crate(
        record_fused(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)))
    ).model
    assert [line for line in text.splitlines() if line.startswith("use ")] == [
        "use burn::prelude::*;",
        "use burn::tensor::FloatDType;",
        "use super::helpers::check_shape;",
    ]

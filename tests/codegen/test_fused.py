"""What a file spells out is an operator before a printer sees it, but only if that changes no value."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import onnx.parser
import pytest

import jaxport
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer import Program
from tests.codegen.structured import check, load
from tests.exports import operators

GELU = "d = Div(x, root) e = Erf(d) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)"
SCALED = f"x = Mul(v, w) {GELU}"
WEIGHTS = "float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}"


def program(
    body: str, given: str = "float[batch, 8] x", weights: str = "", opset: int = 17, functions: str = ""
) -> Program:
    kind = given.partition("[")[0]
    numbers = [f"{kind} {name} = {{{value}}}" for name, value in (("root", 1.4142135), ("one", 1), ("half", 0.5))]
    tensors = ", ".join([*numbers, *([weights] if weights else [])])
    return jaxport.from_onnx(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": {opset}, "own": 1]> '
            f"agraph ({given}) => ({kind}[batch, 8] y) <{tensors}> {{ {body} }} {functions}"
        )
    )


def calls(spelled: Program) -> list[str]:
    return [step.name for step in record_fused(spelled).steps]


@pytest.mark.parametrize("opset", [9, 13, 17, 22])
def test_operators_may_be_newer_than_the_file(opset: int):
    assert calls(program(GELU, opset=opset)) == ["nn.gelu"]


SPELLED = {
    "Clip-6": ("a = Add(x, three) c = Clip<min = 0.0, max = 6.0>(a) m = Mul(x, c) y = Div(m, six)", "nn.hard_swish"),
    "HardSigmoid": ("s = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) y = Mul(s, x)", "nn.hard_swish"),
    "HardSigmoid of other numbers": ("s = HardSigmoid<alpha = 0.2, beta = 0.5>(x) y = Mul(s, x)", "*"),
    "HardSigmoid of something else": (
        "n = Neg(x) s = HardSigmoid<alpha = 0.16666667, beta = 0.5>(n) y = Mul(s, x)",
        "*",
    ),
    "times one": ("a = Mul(x, one) s = Sigmoid(a) y = Mul(x, s)", "nn.silu"),
    "by one": ("a = Div(x, one) s = Sigmoid(a) y = Mul(s, x)", "nn.silu"),
    "one by it": ("a = Div(one, x) s = Sigmoid(a) y = Mul(s, x)", "*"),
}


@pytest.mark.parametrize("case", SPELLED)
def test_activations_as_older_exporters_write_them(case: str):
    body, expected = SPELLED[case]
    spelled = program(body, weights="float three = {3}, float six = {6}", opset=9)
    assert calls(spelled)[-1] == expected
    assert record_fused(spelled).steps[-1].outputs.dtype == np.float32
    x = np.linspace(-4, 4, 16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_allclose(record_fused(spelled).program(x), spelled(x), rtol=2e-6, atol=1e-6)


def test_one_limit_of_a_clip_is_kept():
    spelled = program("c = Clip<min = -1.0>(x) y = Neg(c)", opset=9)
    x = np.linspace(-4, 4, 16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_array_equal(record_fused(spelled).program(x), -np.maximum(x, -1))


def test_a_file_in_which_operators_broadcast_otherwise_is_left_as_it_is():
    body = "d = Div<broadcast = 1>(x, root) e = Tanh(d) s = Mul<broadcast = 1>(e, half) y = Neg(s)"
    assert calls(program(body, opset=6)) == ["/", "jnp.tanh", "*", "jnp.negative"]


def test_the_program_of_the_user_stays():
    spelled = program(SCALED, "float[batch, 8] v", WEIGHTS)
    before = operators(spelled)
    shapes = [node.outputs[0].shape for node in spelled.model.graph]
    fused = record_fused(spelled).program
    assert operators(spelled) == before
    assert [node.outputs[0].shape for node in spelled.model.graph] == shapes
    assert spelled.model.opset_imports[""] == 17
    assert [node.op_type for node in fused.model.graph if node.op_type != "Constant"] == ["Mul", "Gelu"]
    assert fused.output_names == ("y",)
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_allclose(fused(x), spelled(x), rtol=2e-6, atol=1e-6)  # `1 + erf(x)` cancels


def test_options_of_the_import_stay():
    model = program(SCALED, "float[batch, 8] v", WEIGHTS).model
    assert list(record_fused(jaxport.from_onnx(model, trainable=[])).params) == []
    assert {*record_fused(jaxport.from_onnx(model, trainable=["w", "half"])).params} == {"w", "half"}
    assert list(record_fused(jaxport.from_onnx(model, ties="none")).params) == ["w"]


def test_a_number_that_is_trained_is_no_constant():
    model = program(GELU).model
    fused = record_fused(jaxport.from_onnx(model, trainable=["half"]))
    assert "nn.gelu" not in [step.name for step in fused.steps]


def test_other_precisions_round_where_the_file_says():
    halves = "a = Cast<to = 10>(x) b = Mul(a, a) c = Exp(b) t = Constant<value_ints = [-1]>() "
    halves += (
        "m = ReduceMax<axes = [-1]>(a) d = Sub(a, m) e = Exp(d) n = ReduceSum(e, t) s = Div(e, n) y = Cast<to = 1>(s)"
    )
    assert "nn.softmax" in calls(program(halves.replace("to = 10", "to = 1")))
    assert "nn.softmax" not in calls(program(halves))
    with jax.enable_x64(True):
        assert calls(program(GELU, "double[batch, 8] x"))[1] == "lax.erf"


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE])
def test_an_operator_that_rounds_where_its_parts_do_is_one_in_any_precision(dtype: int):
    with jax.enable_x64(True):
        assert "nn.silu" in calls(
            program(f"a = Cast<to = {dtype}>(x) s = Sigmoid(a) b = Mul(s, a) y = Cast<to = 1>(b)")
        )


def test_constants_that_sizes_determine():
    """A scale that the graph computes from the size of an axis."""
    body = (
        "h = Shape(x) a = Constant<value_ints = [1]>() n = Gather(h, a) f = Cast<to = 1>(n) "  # 8
        "c = Constant<value_floats = [16.0]>() k = Div(f, c) "
        "d = Div(x, root) e = Erf(d) s = Add(e, one) p = Mul(x, s) y = Mul(p, k)"
    )
    assert calls(program(body)) == ["nn.gelu"]


FUNCTION = (
    '<domain: "own", opset_import: ["": 17]> spelled (x) => (y) { root = Constant<value_float = 1.4142135>() '
    f"one = Constant<value_float = 1.0>() half = Constant<value_float = 0.5>() {GELU} }}"
)


def test_functions_are_searched():
    body = "y = own.spelled(x)"
    assert calls(program(body, functions=FUNCTION)) == ["nn.gelu"]


TWICE = (
    "z = Constant<value_ints = [0]>() {other} f = own.spelled(x) g = own.spelled(o) m = ReduceSum(g, z) y = Add(f, m)"
)


def test_a_function_may_be_called_at_two_sizes():
    body = TWICE.format(other="o = Concat<axis = 0>(x, x)")
    assert calls(program(body, functions=FUNCTION)).count("nn.gelu") == 2


def test_a_function_that_is_called_at_two_ranks_is_not_searched():
    """Its values have no shape of their own."""
    body = TWICE.format(other="o = Unsqueeze(x, z)").replace("ReduceSum(g, z)", "Squeeze(g, z)")
    assert "nn.gelu" not in calls(program(body, functions=FUNCTION))


def test_casts_to_the_same_type_are_seen_through():
    body = (
        "t = Constant<value_float = 2.0>() l = Constant<value_ints = [-1]>() epsilon = Constant<value_float = 1e-5>() "
        "c = Cast<to = 1>(x) q = Pow(c, t) m = ReduceMean<axes = [-1]>(q) a = Add(m, epsilon) r = Sqrt(a) "
        "n = Div(c, r) d = Cast<to = 1>(n) y = Mul(w, d)"
    )
    spelled = program(body, weights=WEIGHTS)
    assert [node.op_type for node in record_fused(spelled).program.model.graph][-1] == "RMSNormalization"
    assert "nnx.RMSNorm(8" in spelled.to_source(framework="nnx").code


def fused_by_onnx_runtime() -> onnx.ModelProto:
    """Two layers of a BERT as ONNX Runtime's optimizer leaves them: what it made has names of its own, the results have the old ones."""
    draw, tensors, nodes = np.random.default_rng(0), [], []

    def weight(name: str, *shape: int) -> str:
        tensors.append(onnx.numpy_helper.from_array((draw.standard_normal(shape) / 4).astype(np.float32), name))
        return name

    def add(kind: str, inputs: list[str], output: str, name: str, **attributes: object) -> str:
        domain = "" if kind == "MatMul" else "com.microsoft"
        nodes.append(onnx.helper.make_node(kind, inputs, [output], name, domain=domain, **attributes))
        return output

    x = "x"
    for at in range(2):
        layer, own = f"/encoder/layer.{at}", f"encoder.layer.{at}"
        packed = [weight(f"Attention_{at}_qkv_weight", 8, 24), weight(f"Attention_{at}_qkv_bias", 24)]
        attended = add(
            "Attention", [x, *packed, "length"], f"{layer}/self/Reshape_3_output_0", f"Attention_{at}", num_heads=2
        )
        made = add("MatMul", [attended, weight(f"onnx::MatMul_{at}", 8, 8)], f"{layer}/dense/MatMul_output_0", f"{layer}/dense/MatMul")  # fmt: skip
        norm = [weight(f"{own}.norm.weight", 8), weight(f"{own}.norm.bias", 8), weight(f"{own}.dense.bias", 8)]
        last = "y" if at else f"{layer}/norm/Add_1_output_0"
        x = add("SkipLayerNormalization", [made, x, *norm], last, f"SkipLayerNorm_AddBias_{at}", epsilon=1e-5)
    value = lambda name, kind, *dims: onnx.helper.make_tensor_value_info(name, kind, dims)
    FLOAT, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
    inputs = [value("x", FLOAT, "batch", "length", 8), value("length", INT32, "batch")]
    graph = onnx.helper.make_graph(nodes, "bert", inputs, [value("y", FLOAT, "batch", "length", 8)], tensors)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=opsets)


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_what_onnx_runtime_fused_is_in_the_modules_that_its_results_are_named_after(framework: str, tmp_path: Path):
    inputs = {
        "x": np.random.default_rng(1).standard_normal((3, 5, 8)).astype(np.float32),
        "length": np.array([5, 2, 3], np.int32),
    }
    code = check(fused_by_onnx_runtime(), inputs, tmp_path, framework)
    assert "for _ in range(2)" in code
    assert "class Layer_2" not in code
    assert "use_bias=False" not in code  # the one behind the residual is that of the layer before it


REPEATED = (
    "p = Constant<value_ints = [0, 1]>() z = Constant<value_ints = [0]>() n = Shape<start = 0, end = 1>(x) {repeated} "
    "m = {extreme}<keepdims = 0>(t) o = Constant<value_int = {added}>() k = Add(m, o) u = Unsqueeze(k, z) "
    "f = Constant<value_ints = [1]>() r = Concat<axis = 0>(f, u) y = Tile(x, r)"
)


@pytest.mark.parametrize("extreme", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(
    "repeated",
    ["t = Tile(p, n)", "c = Unsqueeze(p, f0) s = Concat<axis = 0>(n, two) e = Expand(p, s) t = Transpose(e)"],
)
def test_the_largest_of_what_is_repeated_for_each_row_is_known(extreme: str, repeated: str, tmp_path: Path):
    """Sizes follow from it, though the number of rows is open."""
    constants = "f0 = Constant<value_ints = [0]>() two = Constant<value_ints = [2]>() "
    body = REPEATED.format(repeated=constants + repeated, extreme=extreme, added=1 if extreme == "ReduceMax" else 2)
    spelled = program(body, given="float[batch, 4] x")
    assert "tile(x, [1, 2])" in spelled.to_source(tmp_path, framework="nnx").code
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(load(tmp_path).load()(x), spelled(x))

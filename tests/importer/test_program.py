"""The program that `from_onnx` returns: names, inputs, parameters, transformations, refusals."""

from __future__ import annotations

import warnings

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import onnx.defs
import onnx.parser
import onnx_ir as ir
import pytest

import jaxport
from jaxport import onnx_facts
from jaxport.errors import InvalidArgument, ModelError, ValueNotKnown
from jaxport.importer import Host, OutputCount, RandomKey, from_onnx, op
from jaxport.importer.resolving import resolve
from jaxport.importer.resolving.registry import lookup
from tests.importer import backend
from tests.importer.models import model, program

GEMM = "g (float[N, 2] x) => (float[N, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 0, -1}> { y = Gemm(x, w, b) }"
X = np.array([[1, 2], [3, 4]], np.float32)
W = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
B = np.array([1, 0, -1], np.float32)


def test_parameters_are_named_after_the_initializers_and_trainable() -> None:
    gemm = program(GEMM)
    assert {name: value.shape for name, value in gemm.params.items()} == {"w": (2, 3), "b": (3,)}
    np.testing.assert_allclose(gemm(X), X @ W + B)
    np.testing.assert_allclose(gemm.apply({"w": 2 * W, "b": B}, X), 2 * X @ W + B)
    grads = jax.jit(jax.grad(lambda params: gemm.apply(params, X).sum()))(gemm.params)
    np.testing.assert_allclose(grads["w"], np.repeat(X.sum(0)[:, None], 3, 1))


def test_vmap_maps_a_program() -> None:
    gemm = program(GEMM)
    np.testing.assert_allclose(jax.vmap(gemm)(X[:, None]), (X @ W + B)[:, None])


def test_scalars_tables_and_shapes_are_constants() -> None:
    graph = """g (float[N, 2] x) => (float[M] y)
        <float two = {2}, int64[1] shape = {-1}, float[2] w = {3, 4}> { a = Pow(x, two) b = Mul(a, w) y = Reshape(b, shape) }"""
    mixed = program(graph)
    assert set(mixed.params) == {"w"}
    assert set(mixed.constants) == {"two", "shape"}
    np.testing.assert_array_equal(mixed(X), [3, 16, 27, 64])


def test_inputs_by_position_and_by_any_name() -> None:
    made = model("g (float[1] a, float[1] b) => (float[1] y) { y = Sub(a, b) }")
    made.graph.input[0].name = made.graph.node[0].input[0] = "input.1"
    difference = from_onnx(made)
    one, two = np.ones(1, np.float32), np.full(1, 2, np.float32)
    for outputs in (
        difference(one, two),
        difference(one, b=two),
        difference(**{"input.1": one, "b": two}),
        difference(input_1=one, b=two),
    ):
        assert outputs == -1
    assert difference.input_names == ("input.1", "b")


def test_several_outputs_are_a_named_tuple_in_the_order_of_the_graph() -> None:
    made = model("g (float[2] x) => (float[2] a, float[2] b) { b = Neg(x) a = Abs(x) }")
    made.graph.output[0].name = made.graph.node[1].output[0] = "out/a b"
    outputs = from_onnx(made)(np.array([-1, 2], np.float32))
    assert outputs._fields == ("out_a_b", "b")
    np.testing.assert_array_equal(outputs.b, [1, -2])


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {}, "the input `x` is missing"),
        ((X, X), {}, "2 inputs are given, the model has 1"),
        ((X,), {"x": X}, "`x` is given twice"),
        ((X,), {"z": X}, "`z` is not an input of the model"),
        ((X.astype(int),), {}, "the input `x` is int64, the model declares float32"),
        ((X[0],), {}, r"the input `x` has shape \[2\], the model declares \[N,2\]"),
        ((X.T[:, :1],), {}, r"the input `x` has shape \[2, 1\]"),
    ],
)
def test_inputs_that_are_refused(args, named, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        program(GEMM)(*args, **named)


def test_parameters_that_are_refused() -> None:
    gemm = program(GEMM)
    with pytest.raises(InvalidArgument, match="`nope` is not a parameter of the model"):
        gemm.apply({**gemm.params, "nope": B}, X)
    with pytest.raises(InvalidArgument, match="1 parameters are missing, `b` first"):
        gemm.apply({"w": W}, X)


def test_an_operator_that_fails_names_its_node() -> None:
    made = model("g (float[N] a, float[M] b) => (float[N] y) { y = Add(a, b) }")
    made.graph.node[0].name = "sum/it"
    add = from_onnx(made)
    with pytest.raises(ModelError, match="`Add` cannot be computed") as caught:
        add(np.ones(2, np.float32), np.ones(3, np.float32))
    assert "where:   node `sum/it` (Add)" in str(caught.value)
    assert "(2,), (3,)" in str(caught.value)


RESHAPE = "g (float[N] x, int64[2] shape) => (float[A, B] y) { y = Reshape(x, shape) }"


def test_a_shape_that_is_an_input_works_outside_jit_or_closed_over() -> None:
    reshape, shape = program(RESHAPE), np.array([2, 2])
    assert reshape.static_inputs == ("shape",)
    assert reshape(X.ravel(), shape).shape == (2, 2)
    assert reshape(X.ravel(), jnp.asarray(shape)).shape == (2, 2)
    assert jax.jit(lambda x: reshape(x, shape))(X.ravel()).shape == (2, 2)
    with pytest.raises(
        ValueNotKnown, match="`shape` of an operation has to be known before the program is traced"
    ) as caught:
        jax.jit(reshape)(X.ravel(), jnp.asarray(shape))
    assert "the Reshape that makes `y`" in str(caught.value)


def test_what_shapes_are_computed_from_is_static_and_what_they_are_read_from_is_not() -> None:
    graph = """g (float[N, 2] x, int64[1] tail) => (float[A, B] y)
        { s = Shape(x) z = Constant<value_ints = [0]>() n = Gather(s, z) t = Concat<axis = 0>(n, tail) y = Reshape(x, t) }"""
    assert program(graph).static_inputs == ("tail",)


SHAPES = """g (float[batch, seq, 4] x) => (float[A, B, C, D] y) {
    s = Shape(x) zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
    heads = Constant<value_ints = [2]>() rest = Constant<value_ints = [-1]>()
    b = Gather(s, zero) n = Gather(s, one) t = Concat<axis = 0>(b, n, heads, rest) y = Reshape(x, t) }"""


def test_a_program_traces_with_sizes_that_only_have_names() -> None:
    batch, seq = jax.export.symbolic_shape("batch, seq")
    traced = jax.eval_shape(program(SHAPES), jax.ShapeDtypeStruct((batch, seq, 4), np.float32))
    assert str(traced.shape) == "(batch, seq, 2, 2)"
    exported = jax.export.export(jax.jit(program(SHAPES)))(jax.ShapeDtypeStruct((batch, seq, 4), np.float32))
    assert exported.call(np.zeros((3, 5, 4), np.float32)).shape == (3, 5, 2, 2)


def test_shape_arithmetic_is_no_array_code() -> None:
    traced = jax.make_jaxpr(program(SHAPES))(np.zeros((2, 3, 4), np.float32))
    assert [str(equation.primitive) for equation in traced.eqns] == ["reshape"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([1.5, 2], "fractions are not integers"),
        ([300, 1], "300"),
        ([[1], [2, 3]], "inhomogeneous"),
        (["a", "b"], "'a'"),
    ],
)
def test_python_numbers_that_the_declared_type_cannot_hold(value: list, why: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"(?s)the input `x` cannot be uint8\n.*{why}"):
        program("g (uint8[n] x) => (uint8[n] y) { y = Add(x, x) }")(value)


def test_inputs_may_be_called_as_the_methods_call_their_own() -> None:
    subtract = program("g (float[2] rng, float[2] params) => (float[2] y) { y = Sub(rng, params) }")
    np.testing.assert_array_equal(subtract(rng=[3, 3], params=[1, 2]), [2, 1])
    made = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    made.graph.input[0].name = made.graph.node[0].input[0] = "self"
    np.testing.assert_array_equal(from_onnx(made)(self=[1, 2]), [-1, -2])


def test_narrow_outputs_are_announced_once() -> None:
    wide = program("g (int64[N] x) => (int64[N] y) { y = Add(x, x) }")
    with pytest.warns(UserWarning, match="the outputs `y` are 32-bit"):
        assert wide(np.array([1, 2])).dtype == np.int32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide(np.array([1, 2]))
    with jax.enable_x64(True):
        assert wide(np.array([2**40, 2])).tolist() == [2**41, 4]
    with pytest.raises(ModelError, match=r"(?s)1099511627776 does not fit into int32\n.*the tensor `x`"):
        wide(np.array([2**40, 2]))


DOUBLES = {
    "arithmetic": "c = Cast<to = 11>(x) d = Mul(c, c) y = Cast<to = 1>(d)",
    "a branch": """t = Constant<value = bool {1}>() y = If(t) <then_branch = b () => (float[n] q) { c = Cast<to = 11>(x)
        d = Mul(c, c) q = Cast<to = 1>(d) }, else_branch = e () => (float[n] q) { q = Neg(x) }>""",
    "a function": "c = Cast<to = 11>(x) d = d.Square(c) y = Cast<to = 1>(d)",
    "": """c = Constant<value = double {2.5}>() d = Cast<to = 1>(c) e = Cast<to = 11>(x) f = Min(e, c) k = Cast<to = 1>(f)
        y = Mul(k, d)""",
}


@pytest.mark.parametrize("what", DOUBLES)
def test_outputs_that_doubles_decide_are_announced(what: str) -> None:
    square = '<domain: "d", opset_import: ["": 18]> Square (x) => (y) { y = Mul(x, x) }'
    graph = f"g (float[n] x) => (float[n] y, float[n] z) {{ z = Neg(x) {DOUBLES[what]} }}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(graph, functions=square, domains=', "d": 1')(np.ones(2, np.float32))
    assert [str(w.message).partition(";")[0] for w in caught] == [
        "64-bit types are off: the outputs `y` are computed without doubles"
    ] * bool(what)


PRODUCTS = {
    "a quotient": "q = Div(p, l) y = Cast<to = 6>(q)",
    "a comparison": "q = Less(p, l) y = Cast<to = 6>(q)",
    "a float": "f = Cast<to = 1>(p) y = Cast<to = 6>(f)",
    "a shift": 'u = Cast<to = 13>(p) q = BitShift<direction = "RIGHT">(u, u) y = Cast<to = 6>(q)',
    "a branch": """t = Constant<value = bool {1}>() y = If(t) <then_branch = b () => (int32[n] q) { r = Div(p, l)
        q = Cast<to = 6>(r) }, else_branch = e () => (int32[n] q) { q = Neg(i) }>""",
    "": "s = Add(p, l) a = Sub(s, p) y = Cast<to = 6>(a)",
}
GROWN = {
    "a sum": "s = Add(l, l) q = Div(s, two) y = Cast<to = 6>(q)",
    "a difference": "m = Neg(l) s = Sub(l, m) q = Div(s, two) y = Cast<to = 6>(q)",
    "a power": "s = Pow(l, two) q = Div(s, two) y = Cast<to = 6>(q)",
    "a running sum": "s = CumSum(l, zero) q = Div(s, two) y = Cast<to = 6>(q)",
    "a running sum as a float": "s = CumSum(l, zero) f = Cast<to = 1>(s) y = Cast<to = 6>(f)",
    "a sum of all": "s = ReduceSum<keepdims = 0>(l) q = Div(s, l) y = Cast<to = 6>(q)",
    "a product of matrices": "s = MatMul(l, l) q = Div(l, s) y = Cast<to = 6>(q)",
    "a shift": 'u = Cast<to = 13>(l) s = BitShift<direction = "LEFT">(u, u) q = Div(s, u) y = Cast<to = 6>(q)',
    "": "s = Add(l, l) c = CumSum(s, zero) p = Pow(c, c) y = Cast<to = 6>(s)",
    "truth values": "b = Greater(l, two) m = Cast<to = 7>(b) s = CumSum(m, zero) q = Div(s, two) y = Cast<to = 6>(q)",
    "positions": "s = CumSum(l, zero) y = Gather(i, s)",
    "a constant": "s = Add(l, two) q = Div(s, two) y = Cast<to = 6>(q)",
    "sizes": "s = Shape(i) t = Add(s, s) h = Div(t, two) q = Mul(l, h) y = Cast<to = 6>(q)",
}
SILENT = ("", "truth values", "positions", "a constant", "sizes")


@pytest.mark.parametrize("what", GROWN)
def test_outputs_that_the_upper_bits_of_sums_decide_are_announced(what: str) -> None:
    graph = f"""g (int32[n] i) => (int32[n] y, int32[n] z) <int64 two = {{2}}, int64 zero = {{0}}> {{
        z = Neg(i) l = Cast<to = 7>(i) {GROWN[what]} }}"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(graph)(np.zeros(2, np.int32))
    assert [str(w.message).partition(";")[0] for w in caught] == [
        "64-bit types are off: the outputs `y` are computed without integers of 64 bits"
    ] * (what not in SILENT)


@pytest.mark.parametrize("what", PRODUCTS)
def test_outputs_that_the_upper_bits_of_products_decide_are_announced(what: str) -> None:
    graph = f"""g (int32[n] i) => (int32[n] y, int32[n] z) {{
        z = Neg(i) l = Cast<to = 7>(i) p = Mul(l, l) {PRODUCTS[what]} }}"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(graph)(np.ones(2, np.int32))
    assert [str(w.message).partition(";")[0] for w in caught] == [
        "64-bit types are off: the outputs `y` are computed without integers of 64 bits"
    ] * bool(what)


BOUNDED = frozenset(
    """BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CastLike CenterCropPad Div GridSample Loop Mod Pad Range Relu Resize Scan
    Scatter Shrink Sign Trilu Unique Upsample""".split()
)
"""Operators of integers whose results have no more bits than the operands, beside those that have elements of these."""


def test_each_operator_of_integers_has_results_of_more_bits_or_not() -> None:
    integral = set()
    for schema in onnx.defs.get_all_schemas():
        types = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
        kinds = {one.type_str for one in schema.inputs} & {one.type_str for one in schema.outputs[:1]}
        if schema.domain == "" and any("tensor(int64)" in types.get(kind, ()) for kind in kinds):
            integral.add(schema.name)
    bounded = onnx_facts.CHOICES | onnx_facts.SCATTERS | onnx_facts.SIGN_CHANGES | BOUNDED
    assert integral - bounded == onnx_facts.GROWING & integral
    assert not onnx_facts.GROWING & bounded


INTEGERS = {
    "a maximum of integers": "d = Cast<to = 11>(i) m = Max(d, d) y = Cast<to = 6>(m)",
    "a comparison": "d = Cast<to = 11>(i) e = Neg(d) l = Less(e, d) y = Cast<to = 6>(l)",
    "": "d = Cast<to = 11>(i) m = Max(d, d) f = Cast<to = 1>(m) y = Cast<to = 6>(f)",
}


@pytest.mark.parametrize("what", INTEGERS)
def test_integers_that_doubles_hold_are_announced(what: str) -> None:
    graph = f"g (int32[n] i) => (int32[n] y, int32[n] z) {{ z = Neg(i) {INTEGERS[what]} }}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(graph)(np.ones(2, np.int32))
    assert [str(w.message).partition(";")[0] for w in caught] == [
        "64-bit types are off: the outputs `y` are computed without doubles"
    ] * bool(what)


def test_a_function_with_the_name_of_an_operator_is_no_operator() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "mine": 1]>
        g (double[2] x) => (float[2] y) { c = mine.Cast() d = Cast<to = 1>(x) y = Add(d, c) }
        <domain: "mine", opset_import: ["": 17]> Cast () => (k) { k = Constant<value = float[2] {1.0, 2.0}>() }""")
    np.testing.assert_array_equal(from_onnx(model)(np.ones(2, np.float32)), [2, 3])


def test_doubles_that_sizes_decide_are_exact_and_not_announced() -> None:
    graph = """g (float[n] x) => (float[n] y) {
        s = Shape(x) d = Cast<to = 11>(s) third = Constant<value = double {0.333333333333333}>()
        p = Mul(d, third) f = Cast<to = 1>(p) y = Mul(x, f) }"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(program(graph)(np.ones(3, np.float32)), np.ones(3))


FUNCTIONS = """<domain: "d", opset_import: ["": 18]> scaled <by: float = 2.0> (x) => (y)
    { f = Constant<value_float: float = @by>() c = CastLike(f, x) y = Mul(x, c) }"""


def test_local_functions_with_attributes_and_defaults() -> None:
    graph = "g (float[2] x) => (float[2] a, float[2] b) { a = d.scaled(x) b = d.scaled<by = 5.0>(x) }"
    outputs = program(graph, functions=FUNCTIONS, domains=', "d": 1')(X[0])
    np.testing.assert_array_equal(outputs, [[2, 4], [5, 10]])


def test_a_function_uses_its_own_opset() -> None:
    """Squeeze has its axes as an attribute up to version 12, in the function, and as an input in the model."""
    function = '<domain: "d", opset_import: ["": 11]> f (x) => (y) { y = Squeeze<axes = [0]>(x) }'
    graph = "g (float[1, 2] x) => (float[2] y) { f = d.f(x) z = Constant<value_ints = [0]>() u = Unsqueeze(f, z) y = Squeeze(u, z) }"
    assert program(graph, functions=function, domains=', "d": 1')(X[:1]).shape == (2,)


BODIES = {
    "test_softsign": {"Softsign"},
    "test_layer_normalization_2d_axis0": {"LayerNormalization"},
    "test_affine_grid_2d": {"AffineGrid"},
    "test_attention_4d_gqa": {"Attention"},
    # A body with an operator in it whose body depends on an attribute of the first.
    "test_sce_sum": {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"},
    "test_sce_none_weights": {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"},
}


@pytest.mark.parametrize("case", BODIES)
def test_an_operator_without_a_function_runs_by_its_schema(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have a function, so it is hidden."""
    monkeypatch.setattr(resolve, "lookup", lambda d, name, v: None if name in BODIES[case] else lookup(d, name, v))
    backend.run(backend.cases()[case])


def test_an_operator_of_ones_own() -> None:
    @op("test.program", "Window", since=1)
    def window(x, size: Host, *, scale=1.0, outputs: OutputCount):
        return tuple(x[: int(size)] * scale for _ in range(outputs))

    graph = "g (float[N] x, int64 n) => (float[A] a, float[B] b) { a, b = test.program.Window<scale = 3.0>(x, n) }"
    outputs = program(graph, domains=', "test.program": 1')(X[0], np.array(1))
    np.testing.assert_array_equal(outputs, [[3], [3]])


def test_random_operators_take_a_key() -> None:
    @op("test.program", "Noise", since=1)
    def noise(x, *, key: RandomKey):
        return jax.random.normal(key, x.shape)

    graph = "g (float[N] x) => (float[N] a, float[N] b) { a = test.program.Noise(x) b = test.program.Noise(x) }"
    noisy = program(graph, domains=', "test.program": 1')
    first, second = noisy(X[0])
    assert not np.array_equal(first, second), "two nodes draw different numbers"
    np.testing.assert_array_equal(noisy(X[0])[0], first)
    assert not np.array_equal(noisy.apply(noisy.params, X[0], rng=jax.random.key(1))[0], first)


def test_initializers_listed_as_inputs_are_parameters() -> None:
    graph = "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }"
    listed = program(graph, opset=8)
    assert listed.input_names == ("x",)
    assert set(listed.params) == {"w"}


def test_dead_nodes_are_not_evaluated_nor_refused() -> None:
    alive = program("g (float[2] x) => (float[2] y) { dead = Nope(x) y = Abs(x) }")
    assert len(alive.body.nodes) == 1


def test_a_long_chain_is_resolved_and_evaluated() -> None:
    nodes = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(2000))
    chain = program(f"g (float[1] v0) => (float[1] v2000) {{ {nodes} }}")
    assert chain(np.ones(1, np.float32)) == 1


def test_the_representation_names_inputs_outputs_operators_and_parameters() -> None:
    assert str(program(GEMM)).splitlines() == [
        "Program `g` of 1 operation",
        "  input   x: FLOAT [N,2]",
        "  output  y: FLOAT [N,3]",
        "  params  2 arrays, 9 elements",
        "  ops     Gemm 1",
        "  calls   none yet",
    ]


def test_jax_names_a_program_without_writing_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = program(GEMM)
    monkeypatch.setattr(type(gemm), "__repr__", lambda self: pytest.fail("the text of the program was written"))
    assert "module @jit_Program" in jax.jit(gemm).lower(X).as_text()
    for transform in (jax.make_jaxpr(gemm), jax.checkpoint(gemm), jax.grad(lambda x: gemm(x).sum())):
        transform(X)
    assert [value.name for value in jaxport.to_onnx(gemm, [(2, 2)]).inputs] == ["x"]


def test_a_node_of_onnx_ir_may_have_a_version_of_its_own():
    text = '<ir_version: 8, opset_import: ["": 17]> agraph (float[N] x) => (float[N] y) { y = Gelu(x) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(jaxport.Unsupported, match="Gelu"):
        jaxport.from_onnx(model)
    model.graph[0].version = 20
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    np.testing.assert_array_equal(jaxport.from_onnx(model)(x), jax.nn.gelu(x, approximate=False))

"""Files as they come: what ONNX's specification has otherwise, and ONNX Runtime accepts. Each is compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from jaxport.errors import InvalidArgument, ModelError, Unsupported
from jaxport.importer import from_onnx
from tests.importer import printed

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
LARGEST = 2**63 - 1


def file(
    nodes: Sequence[onnx.NodeProto],
    *,
    opsets: Sequence[tuple[str, int]] = (("", 18),),
    tensors: Sequence[onnx.TensorProto] = (),
    shape: Any = None,
    declared: Any = None,
    outputs: Sequence[str] = ("y",),
    kind: int = FLOAT,
    functions: Sequence[onnx.FunctionProto] = (),
    **inputs: Any,
) -> onnx.ModelProto:
    """A file with these nodes; `inputs` maps names to arrays, `declared` their names to other shapes."""
    formals = [
        helper.make_tensor_value_info(
            name,
            STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype),
            (declared or {}).get(name, x.shape),
        )
        for name, x in inputs.items()
    ]
    made = [helper.make_tensor_value_info(name, kind, shape) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", formals, made, list(tensors))
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, functions=list(functions))


def check(model: onnx.ModelProto, source: bool = True, **inputs: Any) -> tuple[Any, ...]:
    """Compares a call, `jax.jit` and the printed source with ONNX Runtime; the outputs."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, inputs)
    program = from_onnx(model)
    results = program(**inputs)
    runs = [results, jax.jit(lambda arrays: program(**arrays))(inputs)] if source else [results]
    for run in runs:
        for result, expected in zip(run if isinstance(run, tuple) else (run,), wanted, strict=True):
            assert np.shape(result) == expected.shape
            if expected.dtype == object:
                assert np.asarray(result).tolist() == expected.tolist()
            else:
                np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)
    if source:
        code, arguments = printed.source_of(program, list(inputs.values()))
        for result, expected in zip(printed.run(printed.load(code), arguments), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)
    return results if isinstance(results, tuple) else (results,)


def number(name: str, value: Any, kind: int = INT64, shape: tuple[int, ...] = ()) -> onnx.TensorProto:
    return helper.make_tensor(name, kind, shape, np.ravel(value).tolist())


UNSORTED = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]


def branches(condition: str = "c") -> list[onnx.NodeProto]:
    """An `If` whose branches are unsorted and use what is computed after it."""
    then = helper.make_graph(
        [helper.make_node("Neg", ["b"], ["t"]), helper.make_node("Add", ["late", "x"], ["b"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", FLOAT, None)],
    )
    otherwise = helper.make_graph(
        [helper.make_node("Identity", ["late"], ["e"])], "else", [], [helper.make_tensor_value_info("e", FLOAT, None)]
    )
    node = helper.make_node("If", [condition], ["y"], then_branch=then, else_branch=otherwise)
    return [node, helper.make_node("Relu", ["x"], ["late"])]


pytestmark = pytest.mark.filterwarnings("ignore:64-bit types are off")


def test_nodes_in_any_order() -> None:
    check(file(UNSORTED, x=X), x=X)


@pytest.mark.parametrize("condition", [True, False])
def test_graphs_inside_of_nodes_in_any_order(condition: bool) -> None:
    """ONNX Runtime sorts the outer graph only: it is given the branches in order."""
    c, model = np.array(condition), file(branches(), x=X, c=np.array(condition))
    program = from_onnx(model)
    model.graph.node[0].attribute[1].g.node.reverse()
    (wanted,) = check(model, x=X, c=c)
    np.testing.assert_array_equal(program(X, c), wanted)


def test_functions_in_any_order() -> None:
    body = helper.make_function("local", "F", ["x"], ["y"], UNSORTED, [helper.make_opsetid("", 18)])
    model = file(
        [helper.make_node("F", ["x"], ["y"], domain="local")],
        opsets=[("", 18), ("local", 1)],
        functions=[body],
        x=X,
    )
    program = from_onnx(model)
    model.functions[0].node.reverse()  # ONNX Runtime sorts no functions
    (wanted,) = check(model, x=X)
    np.testing.assert_array_equal(program(X), wanted)


def test_a_model_in_memory_is_sorted_as_a_copy() -> None:
    model = ir.from_proto(file(UNSORTED, x=X))
    np.testing.assert_array_equal(from_onnx(model)(X), np.maximum(-X, 0))
    assert [node.op_type for node in model.graph] == ["Relu", "Neg"]


def test_a_cycle_is_refused_with_its_nodes() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    with pytest.raises(ModelError, match=r"(?s)the nodes form a cycle.*(first|second).*each of these is used"):
        from_onnx(file(nodes, x=X))


def test_a_branch_that_uses_its_own_result_is_a_cycle() -> None:
    node, late = branches()
    node.attribute[1].g.node[0].input[0] = "y"
    with pytest.raises(ModelError, match="the nodes form a cycle"):
        from_onnx(file([node, late], x=X, c=np.array(True)))


@pytest.mark.parametrize(
    ("operator", "domain", "attributes"),
    [
        ("FusedMatMul", "com.microsoft", {"transB": 1}),
        ("Scaler", "ai.onnx.ml", {"offset": [1.0], "scale": [2.0]}),
    ],
)
def test_domains_that_are_not_imported(operator: str, domain: str, attributes: dict[str, Any]) -> None:
    inputs = ["x", "x"] if operator == "FusedMatMul" else ["x"]
    check(file([helper.make_node(operator, inputs, ["y"], domain=domain, **attributes)], x=X), x=X)


def test_a_domain_that_is_not_imported_has_its_newest_version() -> None:
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[1, 2], values_int64s=[5, 6])
    x = np.array([2, 1, 3])
    check(file([node], kind=INT64, x=x), x=x)
    old = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", classes_strings=["a"])
    with pytest.raises(Unsupported, match="`classes_strings` is not one of its attributes"):
        from_onnx(file([old], x=x))


def test_operators_of_onnx_where_only_another_domain_is_imported() -> None:
    check(file([helper.make_node("Relu", ["x"], ["y"])], opsets=[("com.microsoft", 1)], x=X), x=X)
    with pytest.raises(Unsupported, match=r"imports no opset of the domain `ai\.onnx`"):
        from_onnx(file([helper.make_node("Relu", ["x"], ["y"])], opsets=[], x=X))


@pytest.mark.parametrize(
    "opsets", [[("", 18), ("ai.onnx", 11)], [("ai.onnx", 11), ("", 18)], [("", 18), ("ai.onnx", 18)]]
)
@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_two_names_of_one_domain(opsets: list[tuple[str, int]], domain: str) -> None:
    """The last version counts: of opset 11, Softmax is over all axes from the second on."""
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    model = file([helper.make_node("Softmax", ["x"], ["y"], domain=domain)], opsets=opsets, x=x)
    before = model.SerializeToString()
    check(model, x=x)
    assert model.SerializeToString() == before


def test_negative_sizes_are_unknown() -> None:
    model = file([helper.make_node("Relu", ["x"], ["y"])], declared={"x": [-1, 3]}, shape=[-1, 3], x=X)
    check(model, x=X)
    with pytest.raises(InvalidArgument, match="has shape"):
        from_onnx(model)(X[:, :2])


def test_a_declared_rank_of_zero_is_any() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    check(file([node], declared={"x": []}, shape=[], x=X), source=False, x=X)
    check(file([node], shape=[], x=X), x=X)


def counting(declared: Sequence[int], stacked: bool) -> onnx.GraphProto:
    """A body that adds one until the sum is 7.5, or the number of the iteration."""
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Add", ["s", "f" if stacked else "one"], ["t"]),
        helper.make_node("Identity", ["c"], ["d"]) if stacked else helper.make_node("Less", ["t", "limit"], ["d"]),
        helper.make_node("Identity", ["f"], ["row"]),
    ]
    ends = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("d", BOOL), ("t", FLOAT))]
    ends[1].type.tensor_type.ClearField("shape")
    rows = [helper.make_tensor_value_info("row", FLOAT, declared)] if stacked else []
    starts = [("i", INT64, declared), ("c", BOOL, []), ("s", FLOAT, None)]
    inputs = [helper.make_tensor_value_info(*start) for start in starts]
    tensors = [number("one", 1.0, FLOAT), number("limit", 7.5, FLOAT)]
    return helper.make_graph(nodes, "body", inputs, [*ends, *rows], tensors)


@pytest.mark.parametrize("condition", ["go", ""])
def test_a_loop_that_only_its_condition_ends(condition: str) -> None:
    node = helper.make_node("Loop", ["most", condition, "x"], ["y"], body=counting([], False))
    x = np.zeros((), np.float32)
    tensors = [number("most", LARGEST), number("go", True, BOOL)]
    (y,) = check(file([node], tensors=tensors, x=x), x=x)
    assert y == 8


@pytest.mark.parametrize("declared", [[1], []])
@pytest.mark.parametrize("trips", [3, 9])
def test_the_number_of_an_iteration_has_the_rank_that_the_body_declares(declared: list[int], trips: int) -> None:
    node = helper.make_node("Loop", ["most", "", "x"], ["y", "rows"], body=counting(declared, True))
    x = np.zeros(1, np.float32)
    check(file([node], tensors=[number("most", trips)], outputs=("y", "rows"), x=x), x=x)


CASTS = {
    "bool": np.array([True, False]),
    "float": np.array([1, 0.1, 1e20, np.nan, -np.inf, 1 / 3], np.float32),
    "double": np.array([1, 0.1, 1e20, 1 / 3]),
    "half": np.array([1, 0.1, 6e4, 1 / 3], np.float16),
    "int": np.array([-3, 2**40]),
}


@pytest.mark.parametrize("x", CASTS.values(), ids=CASTS)
def test_numbers_as_text(x: np.ndarray) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=STRING)
    program = from_onnx(model := file([node], kind=STRING, x=x))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, {"x": x})[0]
    with jax.enable_x64(True):
        assert program(x).tolist() == wanted.tolist()


@pytest.mark.parametrize(("to", "texts"), [(INT64, ["1", "-3", "7.5", " 8 ", "1e3"]), (BOOL, ["1", "0", "-1", "0.5"])])
def test_text_as_integers(to: int, texts: list[str]) -> None:
    x = np.array(texts, object)
    check(file([helper.make_node("Cast", ["x"], ["y"], to=to)], kind=to, x=x), source=False, x=x)
    nothing = file([helper.make_node("Cast", ["x"], ["y"], to=to)], kind=to, x=x)
    with pytest.raises(ModelError, match="'abc' does not begin with an integer"):
        from_onnx(nothing)(np.array(["abc"] * len(texts), object))


@pytest.mark.parametrize(
    ("shapes", "sizes"), [([(1, 1, 3)], [3]), ([(2, 2, 3), (2, 3)], [6, 3]), ([(3,)], [3]), ([(2, 3), (2, 3)], [2, 4])]
)
def test_feature_vectorizer(shapes: list[tuple[int, ...]], sizes: list[int]) -> None:
    """Everything behind the first axis is a feature; there are as many as declared, or zeros."""
    arrays: dict[str, Any] = {f"x{k}": np.arange(np.prod(s), dtype=np.float32).reshape(s) for k, s in enumerate(shapes)}
    node = helper.make_node("FeatureVectorizer", list(arrays), ["y"], domain="ai.onnx.ml", inputdimensions=sizes)
    check(file([node], opsets=[("", 18), ("ai.onnx.ml", 1)], **arrays), **arrays)


@pytest.mark.parametrize("opset", [18, 20])
def test_group_normalization_with_a_scale_for_each_group(opset: int) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2)
    node = helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)
    tensors = [number("scale", [2.0, 3.0], FLOAT, (2,)), number("bias", [0.5, 1.0], FLOAT, (2,))]
    check(file([node], opsets=[("", opset)], tensors=tensors, x=x), x=x)


IMAGE = np.arange(-12, 12, dtype=np.float32).reshape(1, 2, 3, 4)
EXPERIMENTS: list[tuple[str, dict[str, Any]]] = [
    ("Affine", {"alpha": 2.0, "beta": 0.5}),
    ("Affine", {}),
    ("Crop", {"border": [1, 0, 1, 1]}),
    ("Crop", {"border": [1, 1, 0, 0], "scale": [2, 2]}),
    ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0]}),
    ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}),
    ("Scale", {"scale": 3.0}),
    ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}),
    ("ThresholdedRelu", {"alpha": 2.0}),
    ("MeanVarianceNormalization", {}),
    ("MeanVarianceNormalization", {"across_channels": 1}),
    ("MeanVarianceNormalization", {"normalize_variance": 0}),
]


@pytest.mark.parametrize(("operator", "attributes"), EXPERIMENTS)
def test_experimental_operators(operator: str, attributes: dict[str, Any]) -> None:
    check(file([helper.make_node(operator, ["x"], ["y"], **attributes)], opsets=[("", 7)], x=IMAGE), x=IMAGE)


def test_dynamic_slice() -> None:
    node = helper.make_node("DynamicSlice", ["x", "starts", "ends", "axes"], ["y"])
    tensors = [number(n, v, shape=(2,)) for n, v in (("starts", [1, -2]), ("ends", [2, 1000]), ("axes", [1, 3]))]
    check(file([node], opsets=[("", 7)], tensors=tensors, x=IMAGE), x=IMAGE)


def test_experimental_operators_are_gone_in_version_10() -> None:
    with pytest.raises(Unsupported, match="version 11 is not supported; 1 to 9 is"):
        from_onnx(file([helper.make_node("Affine", ["x"], ["y"])], opsets=[("", 11)], x=X))
    with pytest.raises(ModelError, match=r"the attribute `border` has to be"):
        from_onnx(file([helper.make_node("Crop", ["x"], ["y"], border=[1])], opsets=[("", 7)], x=IMAGE))(IMAGE)


def test_a_sparse_matrix_times_a_dense_one() -> None:
    node = helper.make_node("SparseToDenseMatMul", ["sparse", "x"], ["y"], domain="com.microsoft", alpha=0.5)
    model = file([node], x=X)
    model.graph.input.append(helper.make_sparse_tensor_value_info("sparse", FLOAT, [2, 2]))
    dense = np.array([[0, 2], [3, 0]], np.float32)
    sparse = onnxruntime.SparseTensor.sparse_coo_from_numpy(
        np.array([2, 2]), np.array([2, 3], np.float32), np.array([0, 1, 1, 0]), onnxruntime.OrtDevice.make("cpu", 0)
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, {"x": X, "sparse": onnxruntime.OrtValue.ort_value_from_sparse_tensor(sparse)})
    np.testing.assert_allclose(from_onnx(model)(X, dense), wanted[0])


REDUCTIONS = [
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceProd",
    "ReduceLogSumExp",
]


@pytest.mark.parametrize("operator", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [11, 18])
def test_axes_of_a_number_are_all(operator: str, keepdims: int, opset: int) -> None:
    x = np.array(-3, np.float32)
    for axes in ([0], [-1]):
        attributes: dict[str, Any] = {"axes": axes} if opset == 11 else {}
        inputs, tensors = (["x"], []) if opset == 11 else (["x", "axes"], [number("axes", axes, shape=(1,))])
        node = helper.make_node(operator, inputs, ["y"], keepdims=keepdims, **attributes)
        check(file([node], opsets=[("", opset)], tensors=tensors, declared={"x": None}, x=x), source=False, x=x)


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin", "ReduceMean"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_no_axes_are_all(operator: str, keepdims: int) -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    node = helper.make_node(operator, ["x"], ["y"], keepdims=keepdims)
    node.attribute.add(name="axes", type=onnx.AttributeProto.INTS)  # an empty list, which `make_node` leaves out
    check(file([node], opsets=[("", 11)], x=x), x=x)


@pytest.mark.parametrize("causal", [0, 1])
def test_the_masked_products_of_attention(causal: int) -> None:
    """A product that is masked is minus infinity, as ONNX has it; ONNX Runtime writes the lowest number there."""
    q = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    node = helper.make_node("Attention", ["q", "q", "q"], ["y", "", "", "s"], qk_matmul_output_mode=2, is_causal=causal)
    model = file([node], opsets=[("", 23)], outputs=("y", "s"), q=q)
    model.ir_version = 10
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, {"q": q})
    y, seen = from_onnx(model)(q)
    np.testing.assert_allclose(y, wanted[0], rtol=1e-5, atol=1e-5)
    lowest = np.finfo(np.float32).min
    np.testing.assert_allclose(np.maximum(seen, lowest), wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sentinel", [LARGEST, -LARGEST - 1])
def test_the_limits_of_64_bits_are_those_of_32_where_64_are_off(sentinel: int) -> None:
    """The smallest position at which a condition holds, which is written with the largest integer as a stand-in."""
    reduce, x = ("ReduceMin", X) if sentinel > 0 else ("ReduceMax", X)
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["holds"]),
        helper.make_node("Where", ["holds", "positions", "sentinel"], ["chosen"]),
        helper.make_node(reduce, ["chosen", "axes"], ["y"], keepdims=0),
    ]
    tensors = [
        number("zero", 0.0, FLOAT),
        number("positions", [0, 1, 2], shape=(3,)),
        number("sentinel", sentinel),
        number("axes", [1], shape=(1,)),
    ]
    check(file(nodes, tensors=tensors, kind=INT64, x=x), x=x)


def test_a_table_with_limits_is_stored_as_it_is_used() -> None:
    """Constants of more elements than a line holds lie in the weights file, in the type that JAX has for them."""
    table = np.arange(40)
    table[[3, 7]] = LARGEST, -LARGEST - 1
    nodes = [helper.make_node("Gather", ["table", "x"], ["rows"]), helper.make_node("Less", ["rows", "ten"], ["y"])]
    x = np.array([3, 7, 1, 30])
    check(file(nodes, tensors=[number("table", table, shape=(40,)), number("ten", 10)], kind=BOOL, x=x), x=x)


def test_other_integers_that_do_not_fit_are_refused() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["x"], ["i"], to=INT64)]
    nodes.append(helper.make_node("Add", ["i", "large"], ["y"]))
    with pytest.raises(ModelError, match="4294967296 does not fit into int32"):
        from_onnx(file(nodes, tensors=[number("large", 2**32)], kind=INT64, x=X))(X)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_a_window_larger_than_the_image(operator: str) -> None:
    """The number of windows is rounded towards zero, then there is one more."""
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 2, 6)
    check(file([helper.make_node(operator, ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2])], x=x), x=x)

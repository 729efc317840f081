"""`ai.onnx.ml` against ONNX Runtime: every operator, over its attributes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from jaxport.errors import ModelError, ValueNotKnown
from jaxport.export.api import to_onnx
from jaxport.importer import from_onnx

pytestmark = pytest.mark.sampled(3)

DOMAIN = "ai.onnx.ml"
X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
TYPES = {np.dtype(object): TensorProto.STRING}


def model_of(operator: str, inputs: list[np.ndarray], outputs: list[int], version: int, attributes: dict) -> bytes:
    """A model of one node; `outputs` are element types."""
    kinds = [TYPES.get(x.dtype) or helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    formals = [
        helper.make_tensor_value_info(f"x{i}", k, [None] * x.ndim)
        for i, (k, x) in enumerate(zip(kinds, inputs, strict=True))
    ]
    made = [helper.make_tensor_value_info(f"y{i}", kind, None) for i, kind in enumerate(outputs)]
    node = helper.make_node(operator, [v.name for v in formals], [v.name for v in made], domain=DOMAIN, **attributes)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, version)]
    graph = helper.make_graph([node], "graph", formals, made)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def check(
    operator: str,
    *inputs: Any,
    outputs: tuple[int, ...] = (TensorProto.FLOAT,),
    version: int = 3,
    jit: bool = True,
    tolerance: float = 1e-5,
    **attributes: Any,
) -> None:
    """Compares with ONNX Runtime, under `jax.jit` unless there are strings."""
    data = model_of(operator, list(inputs), list(outputs), version, attributes)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})
    with jax.enable_x64(True):
        program = from_onnx(data)
        results = (jax.jit(program) if jit else program)(*inputs)
    for result, expected in zip(results if isinstance(results, tuple) else (results,), wanted, strict=True):
        assert np.shape(result) == np.shape(expected)
        if np.asarray(expected).dtype.kind in "OUi":
            assert np.asarray(result).tolist() == np.asarray(expected).tolist()
        else:
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


BOTH = (TensorProto.INT64, TensorProto.FLOAT)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
WEIGHTS = [0.3, -0.2, 0.5, 1.1, 0.4, -0.7, 0.2, 0.9, -0.1]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [1, 3])
def test_linear_classifier(classes: int, transform: str) -> None:
    """One row of weights for two classes, or a row each."""
    labels = [7, 8, 9][: max(classes, 2)]
    attributes: dict[str, Any] = {"coefficients": WEIGHTS[: 3 * classes], "intercepts": [0.1, 0.2, 0.3][:classes]}
    check(
        "LinearClassifier", X, outputs=BOTH, version=1, classlabels_ints=labels, post_transform=transform, **attributes
    )


def test_samples_with_other_features_than_the_coefficients_are_refused() -> None:
    attributes: dict[str, Any] = {"coefficients": WEIGHTS, "intercepts": [0.1] * 3, "classlabels_ints": [7, 8, 9]}
    with pytest.raises(ModelError, match="the samples have 2 features, and the coefficients are for 3"):
        check("LinearClassifier", X[:, :2], outputs=BOTH, version=1, **attributes)


def test_linear_classifier_of_strings() -> None:
    attributes: dict[str, Any] = {
        "coefficients": WEIGHTS,
        "intercepts": [0.1, 0.2, 0.3],
        "classlabels_strings": ["a", "b", "c"],
    }
    check("LinearClassifier", X, outputs=(TensorProto.STRING, TensorProto.FLOAT), version=1, jit=False, **attributes)
    data = model_of("LinearClassifier", [X], [TensorProto.STRING, TensorProto.FLOAT], 1, attributes)
    with pytest.raises(
        ValueNotKnown, match=r"(?s)strings depend on values\n  LinearClassifier.*only outside `jax.jit`"
    ):
        jax.jit(from_onnx(data))(X)


@pytest.mark.parametrize("targets", [1, 2])
def test_linear_regressor(targets: int) -> None:
    check(
        "LinearRegressor",
        X,
        version=1,
        targets=targets,
        coefficients=WEIGHTS[: 3 * targets],
        intercepts=[0.5] * targets,
    )


SUPPORT: dict[str, Any] = {"support_vectors": [*WEIGHTS, 0.5, 0.1, -0.4], "kernel_params": [0.5, 0.2, 2.0]}


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, one_class: int) -> None:
    check(
        "SVMRegressor",
        X,
        version=1,
        kernel_type=kernel,
        n_supports=4,
        coefficients=[0.4, -0.3, 0.8, -0.6],
        rho=[0.1],
        one_class=one_class,
        **SUPPORT,
    )


def test_svm_regressor_without_support_vectors() -> None:
    check("SVMRegressor", X, version=1, coefficients=[0.4, -0.3, 0.8], rho=[0.1], kernel_params=[0.0, 0.0, 0.0])


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(kernel: str, probabilities: bool) -> None:
    attributes: dict[str, Any] = {
        "vectors_per_class": [1, 2, 1],
        "coefficients": [0.4, -0.3, 0.8, -0.6, 0.5, 0.2, -0.9, 0.7],
    }
    attributes |= {"rho": [0.1, -0.2, 0.05], "classlabels_ints": [4, 5, 6], "kernel_type": kernel} | SUPPORT
    if probabilities:
        attributes |= {"prob_a": [-1.0, -1.5, -0.7], "prob_b": [0.1, -0.1, 0.2]}
    check("SVMClassifier", X, outputs=BOTH, version=1, tolerance=1e-4, **attributes)


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("sign", [1, -1])
def test_svm_classifier_of_two_classes(probabilities: bool, transform: str, sign: int) -> None:
    attributes: dict[str, Any] = {
        "vectors_per_class": [2, 2],
        "coefficients": [0.4 * sign, 0.3, -0.8 * sign, -0.6],
        "rho": [0.1],
    }
    attributes |= {"classlabels_ints": [4, 5], "kernel_type": "RBF", "post_transform": transform} | SUPPORT
    if probabilities:
        attributes |= {"prob_a": [-1.0], "prob_b": [0.1]}
    check("SVMClassifier", X, outputs=BOTH, version=1, tolerance=1e-4, **attributes)


@pytest.mark.parametrize(
    "weights", [WEIGHTS, WEIGHTS[:6], [0.4, 0.1, 0.2, 0.3, 0.1, 0.2]], ids=["three", "two", "positive"]
)
def test_svm_classifier_without_support_vectors(weights: list[float]) -> None:
    check(
        "SVMClassifier",
        X,
        outputs=BOTH,
        version=1,
        coefficients=weights,
        rho=[0.1],
        classlabels_ints=[4, 5, 6][: len(weights) // 3],
        kernel_params=[0.0, 0.0, 0.0],
    )


def trees(kind: str, ids: list[int], mode: str = "BRANCH_LEQ", depth: int = 1, **extra: Any) -> dict[str, Any]:
    """Attributes of three small trees; `ids` are the targets that every leaf has a weight for."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
    leaves: dict[str, list[Any]] = {f"{kind}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(3):
        rows = [(tree, 0.1 * tree, mode, 1, 2), (2, -0.3, mode, 3, 4), *[(0, 0.0, "LEAF", 0, 0)] * 3]
        for number, row in enumerate(rows):
            for name, value in zip(names, (tree, number, *row), strict=True):
                nodes[f"nodes_{name}"].append(value)
            for target in ids if row[2] == "LEAF" else ():
                weight = 0.1 * number + 0.07 * tree + (0.2 if target else 0.0) * (number - 3)
                for name, value in zip(
                    ("treeids", "nodeids", "ids", "weights"), (tree, number, target, weight), strict=True
                ):
                    leaves[f"{kind}_{name}"].append(value)
    return nodes | leaves | extra


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"])
def test_tree_modes(mode: str) -> None:
    check("TreeEnsembleRegressor", X, n_targets=1, **trees("target", [0], mode))


def test_trees_of_several_modes_with_missing_values() -> None:
    attributes = trees("target", [0, 1])
    attributes["nodes_modes"] = [
        m if m == "LEAF" else ("BRANCH_LEQ", "BRANCH_GT")[i % 2] for i, m in enumerate(attributes["nodes_modes"])
    ]
    attributes["nodes_missing_value_tracks_true"] = [i % 2 for i in range(15)]
    check("TreeEnsembleRegressor", np.where(X > 0.5, np.nan, X).astype(np.float32), n_targets=2, **attributes)


@pytest.mark.parametrize("children", [([0, 0], [1, 1]), ([1, 0], [1, 0])], ids=["of itself", "of two"])
def test_a_cycle_of_a_tree_is_refused(children: tuple[list[int], list[int]]) -> None:
    yes, no = children
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0] * 3,
        nodes_nodeids=[0, 1, 2], nodes_featureids=[0] * 3, nodes_values=[0.5] * 3,
        nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"], nodes_truenodeids=[*yes, 0], nodes_falsenodeids=[*no, 0],
        target_treeids=[0], target_nodeids=[2], target_ids=[0], target_weights=[1.0],
    )  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 1]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    made = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)
    with pytest.raises(ModelError, match="the nodes of a tree form a cycle"):
        from_onnx(made)(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(aggregate: str) -> None:
    check(
        "TreeEnsembleRegressor",
        X,
        n_targets=2,
        aggregate_function=aggregate,
        base_values=[0.1, 0.2],
        **trees("target", [0, 1]),
    )


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("base", [[], [0.05]])
@pytest.mark.parametrize("scored", [0, 1])
def test_tree_classifier_of_two_classes(transform: str, negative: bool, base: list[float], scored: int) -> None:
    """Scores of one class: probabilities where all are positive, log-odds elsewhere."""
    attributes = trees("class", [scored], classlabels_int64s=[4, 5], post_transform=transform)
    attributes["class_weights"] = [w - 0.35 * negative for w in attributes["class_weights"]]
    if base:
        attributes["base_values"] = base
    check("TreeEnsembleClassifier", X, outputs=BOTH, **attributes)


def test_trees_of_one_class_with_base_values_of_two_are_refused() -> None:
    attributes = trees("class", [0], classlabels_int64s=[4, 5], base_values=[0.1, 0.2])
    with pytest.raises(ModelError, match="scores of one class, and two base values"):
        check("TreeEnsembleClassifier", X, outputs=BOTH, **attributes)


SVM = {"coefficients": [0.4, 0.3, -0.8, -0.6], "rho": [0.1], "vectors_per_class": [2, 2], "kernel_type": "RBF"}
PROBITS: dict[str, tuple[str, dict[str, Any]]] = {
    "a machine": ("SVMClassifier", {"classlabels_ints": [4, 5], **SVM}),
    "a product": ("LinearClassifier", {"classlabels_ints": [4, 5], "coefficients": WEIGHTS[:3], "intercepts": [0.1]}),
    "trees": ("TreeEnsembleClassifier", {"classlabels_int64s": [4, 5]}),
}


@pytest.mark.parametrize("what", PROBITS)
def test_probit_of_the_one_score_of_two_classes_is_refused(what: str) -> None:
    operator, attributes = PROBITS[what]
    more = trees("class", [0]) if what == "trees" else SUPPORT if what == "a machine" else {}
    with pytest.raises(ModelError, match=r"(?s)PROBIT of the score of one.*leaves the other uninitialized"):
        check(
            operator, X, outputs=BOTH, version=3 if more and what == "trees" else 1,
            post_transform="PROBIT", **attributes, **more,
        )  # fmt: skip


def test_probit_of_the_probabilities_of_two_classes() -> None:
    attributes: dict[str, Any] = {"classlabels_ints": [4, 5], "prob_a": [-1.0], "prob_b": [0.1], **SVM, **SUPPORT}
    # ONNX Runtime's inverse of the error function has an error of some 1e-4.
    check("SVMClassifier", X, outputs=BOTH, version=1, tolerance=1e-3, post_transform="PROBIT", **attributes)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_tree_classifier_of_three_classes(transform: str) -> None:
    attributes = trees("class", [0, 1, 2], classlabels_int64s=[4, 5, 6], post_transform=transform)
    check("TreeEnsembleClassifier", X, outputs=BOTH, base_values=[0.1, 0.0, 0.3], **attributes)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    check("Normalizer", np.abs(X), version=1, norm=norm)


def test_scaler() -> None:
    check("Scaler", X, version=1, offset=[0.1, 0.2, 0.3], scale=[2.0, 3.0, 4.0])
    check("Scaler", X, version=1, offset=[0.1], scale=[2.0])


def test_imputer() -> None:
    holes = np.where(X > 0.3, np.nan, X).astype(np.float32)
    check("Imputer", holes, version=1, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=np.nan)
    check(
        "Imputer",
        np.arange(6).reshape(2, 3),
        outputs=(TensorProto.INT64,),
        version=1,
        imputed_value_int64s=[9],
        replaced_value_int64=4,
    )


def test_encoders() -> None:
    words = np.array(["a", "c", "b", "x"], dtype=object)
    check("OneHotEncoder", np.array([[3, 5], [4, 9]]), version=1, cats_int64s=[3, 4, 5])
    check("OneHotEncoder", words, version=1, jit=False, cats_strings=["a", "b", "c"])
    check(
        "LabelEncoder",
        np.array([3, 5, 9]),
        outputs=(TensorProto.FLOAT,),
        version=2,
        keys_int64s=[5, 3],
        values_floats=[0.5, 0.25],
    )
    check(
        "LabelEncoder",
        words,
        outputs=(TensorProto.INT64,),
        version=2,
        jit=False,
        keys_strings=["a", "b"],
        values_int64s=[1, 2],
    )
    check(
        "LabelEncoder",
        np.array([0, 2, 5]),
        outputs=(TensorProto.STRING,),
        version=1,
        jit=False,
        classes_strings=["x", "y", "z"],
    )
    check(
        "CategoryMapper",
        words,
        outputs=(TensorProto.INT64,),
        version=1,
        jit=False,
        cats_strings=["a", "b"],
        cats_int64s=[10, 20],
    )
    check("FeatureVectorizer", X, X[:, :1], version=1, inputdimensions=[3, 1])
    check("Binarizer", X, version=1, threshold=0.2)
    check("ArrayFeatureExtractor", X, np.array([2, 0]), version=1)


def test_a_key_that_is_nan_matches_nan() -> None:
    data = model_of(
        "LabelEncoder", [X[0]], [TensorProto.INT64], 2, {"keys_floats": [2.0, np.nan], "values_int64s": [8, 9]}
    )
    with jax.enable_x64(True):
        result = jax.jit(from_onnx(data))(np.array([1.0, np.nan, 2.0], np.float32))
    assert result.tolist() == [-1, 9, 8]


def maps(operator: str, taken: onnx.TypeProto, made: onnx.TypeProto, **attributes: Any) -> bytes:
    node = helper.make_node(operator, ["x"], ["y"], domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node], "graph", [helper.make_value_info("x", taken)], [helper.make_value_info("y", made)]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def test_maps() -> None:
    """From a matrix to maps and from a map to a matrix; JAX takes dicts."""
    floats = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, None])
    scalar = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    rows = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, scalar))
    words = helper.make_map_type_proto(TensorProto.STRING, scalar)
    numbers = helper.make_map_type_proto(TensorProto.INT64, scalar)
    cases = [
        (maps("ZipMap", floats, rows, classlabels_int64s=[3, 4, 5]), X),
        (maps("DictVectorizer", words, floats, string_vocabulary=["b", "a", "z"]), {"a": 1.5, "b": 2.5}),
        (maps("CastMap", numbers, floats), {4: 1.5, 2: 2.5}),
        (maps("CastMap", numbers, floats, map_form="SPARSE", max_map=4), {1: 1.5, 2: 2.5}),
    ]
    for data, sample in cases:
        wanted: Any = onnxruntime.InferenceSession(data).run(None, {"x": sample})[0]
        result = from_onnx(data)(sample)
        flat, expected = (
            jax.tree.leaves(tree if isinstance(tree, list) else np.asarray(tree)) for tree in (result, wanted)
        )
        np.testing.assert_allclose(np.ravel(flat), np.ravel(expected), rtol=1e-6)


def test_maps_of_rows_whose_number_is_open_are_refused() -> None:
    floats = helper.make_tensor_type_proto(TensorProto.FLOAT, ["rows", 3])
    scalar = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    rows = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, scalar))
    program = from_onnx(maps("ZipMap", floats, rows, classlabels_int64s=[3, 4, 5]))
    with pytest.raises(ValueNotKnown, match=r"it has rows maps.*'zipmap': False"):
        program.to_source(framework="burn")


def doubles(*numbers: float) -> onnx.TensorProto:
    return helper.make_tensor("", TensorProto.DOUBLE, [len(numbers)], numbers)


#: By operator: its version, and attributes that have numbers of 64 bits.
IN_DOUBLE = {
    "TreeEnsemble": (5, {
        "n_targets": 1, "aggregate_function": 1, "post_transform": 0, "tree_roots": [0], "nodes_featureids": [0],
        "nodes_modes": helper.make_tensor("", TensorProto.UINT8, [1], [0]), "nodes_splits": doubles(0.5),
        "nodes_truenodeids": [0], "nodes_trueleafs": [1], "nodes_falsenodeids": [1], "nodes_falseleafs": [1],
        "leaf_targetids": [0, 0], "leaf_weights": doubles(1.0, 2.0),
    }),
    "TreeEnsembleRegressor": (3, {
        "n_targets": 1, "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values_as_tensor": doubles(0.5, 0.0, 0.0),
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_ids": [0, 0],
        "target_nodeids": [1, 2], "target_weights_as_tensor": doubles(1.0, 2.0),
    }),
    "LabelEncoder": (4, {
        "keys_tensor": doubles(0.25, 0.75), "values_tensor": doubles(10.0, 20.0), "default_tensor": doubles(-1.0)
    }),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:64-bit types are off")
@pytest.mark.parametrize("operator", IN_DOUBLE)
def test_attributes_are_written_again_in_the_types_of_the_program(operator: str) -> None:
    version, attributes = IN_DOUBLE[operator]
    result = TensorProto.FLOAT if operator == "TreeEnsembleRegressor" else TensorProto.DOUBLE
    x = np.array([[0.25, 1], [0.75, 0]])
    data = model_of(operator, [x], [result], version, attributes)
    wanted: Any = onnxruntime.InferenceSession(data).run(None, {"x0": x})
    for is_wide in (False, True):
        with jax.enable_x64(is_wide):
            exported = to_onnx(from_onnx(data), [jax.ShapeDtypeStruct(("B", 2), np.float64 if is_wide else np.float32)])
            assert operator in [node.op_type for node in exported.model.graph]
            np.testing.assert_array_equal(np.asarray(exported(x if is_wide else x.astype(np.float32))), wanted[0])

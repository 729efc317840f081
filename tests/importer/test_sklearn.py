"""Models of scikit-learn, converted by skl2onnx, against ONNX Runtime and against scikit-learn itself."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest

from jaxport.importer import from_onnx

skl2onnx = pytest.importorskip("skl2onnx")

from sklearn import (  # noqa: E402  what skl2onnx needs
    cluster,
    decomposition,
    ensemble,
    feature_extraction,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((60, 4)).astype(np.float32)
TWO = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
THREE = TWO + (X[:, 2] > 0.5)
REAL = (X @ np.array([1.0, 2.0, -1.0, 0.5])).astype(np.float32)
WORDS = np.array(["no", "yes"])[TWO]
SMALL: dict[str, Any] = {"n_estimators": 5, "max_depth": 3, "random_state": 0}

CLASSIFIERS: dict[str, Any] = {
    "logistic regression": linear_model.LogisticRegression(),
    "ridge classifier": linear_model.RidgeClassifier(),
    "perceptron": linear_model.Perceptron(),
    "stochastic gradient descent": linear_model.SGDClassifier(loss="log_loss", random_state=0),
    "linear support vectors": svm.LinearSVC(),
    "support vectors": svm.SVC(kernel="rbf"),
    "support vectors with probabilities": svm.SVC(kernel="poly", random_state=0, probability=True),  # pyright: ignore[reportArgumentType]
    "support vectors nu": svm.NuSVC(nu=0.3, kernel="sigmoid"),
    "decision tree": tree.DecisionTreeClassifier(max_depth=4),
    "random forest": ensemble.RandomForestClassifier(**SMALL),
    "extra trees": ensemble.ExtraTreesClassifier(**SMALL),
    "gradient boosting": ensemble.GradientBoostingClassifier(**SMALL),
    "boosted trees": ensemble.AdaBoostClassifier(n_estimators=4, random_state=0),
    "bagging": ensemble.BaggingClassifier(n_estimators=3, random_state=0),
    "voting": ensemble.VotingClassifier([("a", linear_model.LogisticRegression()), ("b", naive_bayes.GaussianNB())], voting="soft", flatten_transform=False),
    "naive Bayes": naive_bayes.GaussianNB(),
    "neighbours": neighbors.KNeighborsClassifier(3),
    "perceptron of layers": neural_network.MLPClassifier((8,), max_iter=50, random_state=0),
}  # fmt: skip
REGRESSORS: dict[str, Any] = {
    "linear regression": linear_model.LinearRegression(),
    "lasso": linear_model.Lasso(alpha=0.1),
    "support vectors": svm.SVR(),
    "decision tree": tree.DecisionTreeRegressor(max_depth=4),
    "random forest": ensemble.RandomForestRegressor(**SMALL),
    "gradient boosting": ensemble.GradientBoostingRegressor(**SMALL),
    "neighbours": neighbors.KNeighborsRegressor(3),
    "perceptron of layers": neural_network.MLPRegressor(hidden_layer_sizes=(8,), max_iter=50, random_state=0),
}
TRANSFORMERS: dict[str, Any] = {
    "standard scaler": preprocessing.StandardScaler(),
    "smallest and largest": preprocessing.MinMaxScaler(),
    "robust scaler": preprocessing.RobustScaler(),
    "normalizer": preprocessing.Normalizer(),
    "binarizer": preprocessing.Binarizer(threshold=0.2),
    "bins": preprocessing.KBinsDiscretizer(3, encode="onehot-dense"),
    "polynomials": preprocessing.PolynomialFeatures(2),
    "power": preprocessing.PowerTransformer(),
    "imputer": impute.SimpleImputer(),
    "principal components": decomposition.PCA(2),
    "singular values": decomposition.TruncatedSVD(2),
    "clusters": cluster.KMeans(3, random_state=0),
    "pipeline": pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler(), decomposition.PCA(2)),
}


def converted(model: Any, sample: np.ndarray, **options: Any) -> bytes:
    return skl2onnx.to_onnx(model, sample, options={id(model): options} if options else None).SerializeToString()


def check(data: bytes, *inputs: np.ndarray, jit: bool = True) -> list[Any]:
    """The outputs, after comparing them with ONNX Runtime."""
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, {value.name: x for value, x in zip(session.get_inputs(), inputs, strict=True)})
    with jax.enable_x64(True):
        program = from_onnx(data)
        results = (jax.jit(program) if jit else program)(*inputs)
    results = list(results) if isinstance(results, tuple) else [results]
    for result, expected in zip(results, wanted, strict=True):
        if np.asarray(expected).dtype.kind in "OUi":
            assert np.asarray(result).tolist() == np.asarray(expected).tolist()
        else:
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    return results


@pytest.mark.parametrize("target", ["two", "three", "words"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier(name: str, target: str) -> None:
    """Labels are those of scikit-learn, scores those of ONNX Runtime."""
    y = {"two": TWO, "three": THREE, "words": WORDS}[target]
    if name == "support vectors nu" and target == "three":
        pytest.skip("this share of support vectors is infeasible")
    model = CLASSIFIERS[name].fit(X, y)
    options = {} if isinstance(model, svm.LinearSVC) else {"zipmap": False}
    labels, *_ = check(converted(model, X[:1], **options), X, jit=target != "words")
    assert np.mean(np.asarray(labels) == model.predict(X)) > 0.9, "the conversion may decide ties otherwise"


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressor(name: str) -> None:
    model = REGRESSORS[name].fit(X, REAL)
    (result,) = check(converted(model, X[:1]), X)
    np.testing.assert_allclose(np.ravel(result), model.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformer(name: str) -> None:
    check(converted(TRANSFORMERS[name].fit(X), X[:1]), X)


def test_categories_and_words() -> None:
    table = np.array([["a", "x"], ["b", "y"], ["a", "z"]], dtype=object)
    for encoder in (preprocessing.OneHotEncoder(sparse_output=False), preprocessing.OrdinalEncoder()):
        check(converted(encoder.fit(table), table[:1]), table, jit=False)
    texts = np.array([["the cat sat"], ["the dog ran"], ["a cat ran"]], dtype=object)
    counter = feature_extraction.text.CountVectorizer(token_pattern="[a-z]+").fit(texts.ravel())
    kinds = [("text", skl2onnx.common.data_types.StringTensorType([None, 1]))]
    model = pipeline.Pipeline([("counts", counter)])
    data = skl2onnx.convert_sklearn(model, initial_types=kinds).SerializeToString()
    assert b"Tokenizer" in data or check(data, texts, jit=False)


def test_maps_of_probabilities() -> None:
    """The default of skl2onnx: a list of dicts."""
    model = linear_model.LogisticRegression().fit(X, TWO)
    data = converted(model, X[:1])
    with jax.enable_x64(True):
        _, rows = from_onnx(data)(X[:3])
    wanted: Any = onnxruntime.InferenceSession(data).run(None, {"X": X[:3]})[1]
    for row, expected in zip(rows, wanted, strict=True):
        assert {key: pytest.approx(value, rel=1e-5) for key, value in expected.items()} == {
            k: float(v) for k, v in row.items()
        }

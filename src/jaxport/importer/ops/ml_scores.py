"""Linear models and support vector machines of `ai.onnx.ml`, and transformations of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxport.errors import ModelError
from jaxport.importer.ops.strings import strings
from jaxport.importer.resolving.registry import op
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, Tensor, host
from jaxport.importer.values.namespaces import cast, for_strings, helper, jnp, lax, nn, vmap

DOMAIN = "ai.onnx.ml"


def transformed(scores: Tensor, transform: str) -> Tensor:
    """Return scores (samples, classes) as probabilities, or as `post_transform` says."""
    if transform == "SOFTMAX_ZERO":  # zeros stay zero
        return jnp.where(scores == 0, 0.0, nn.softmax(scores, axis=1, where=scores != 0))
    functions = {
        "NONE": lambda x: x,
        "LOGISTIC": nn.sigmoid,
        "SOFTMAX": lambda x: nn.softmax(x, axis=1),
        "PROBIT": lambda x: math.sqrt(2) * lax.erf_inv(2 * x - 1),
    }
    return functions[transform](scores)


def two_classes(score: Tensor, transform: str, opposite: float) -> Tensor:
    """Return the scores of both classes from the score (samples, 1) of the second: the first has `opposite - score`.

    Raises:
      ModelError: the transformation is PROBIT.
    """
    if transform == "PROBIT":
        raise ModelError(
            "the scores of two classes are PROBIT of the score of one",
            why="ONNX Runtime writes one of them, and leaves the other uninitialized",
            instead="export the model with scores of both classes, or with another `post_transform`",
        )
    if transform == "LOGISTIC":
        return nn.sigmoid(jnp.concatenate([-score, score], axis=1))
    return jnp.concatenate([opposite - score, score], axis=1)


def labelled(index: Tensor, integers: Sequence[int] | None, names: Sequence[str] | None) -> Tensor:
    """Return the labels of classes by index; string labels need a known index."""
    return chosen(strings(list(names)) if names else host(list(integers or range(2))), index)


@dataclass(frozen=True, kw_only=True)
class LabelAttributes:
    """The labels of classes: numbers or names."""

    classlabels_ints: Sequence[int] | None = None
    classlabels_strings: Sequence[str] | None = None

    @property
    def count(self) -> int:
        return len(self.classlabels_ints or self.classlabels_strings or ())

    def at(self, index: Tensor) -> Tensor:
        """Return the labels of classes by index."""
        return labelled(index, self.classlabels_ints, self.classlabels_strings)


def chosen(table: Tensor | HostValue, index: Tensor, axis: int = 0) -> Tensor:
    """Return the elements of a table at an index, which has to be known if they are strings.

    Raises:
      ValueNotKnown: they are strings, and the index depends on values.
    """
    if table.dtype != STRING:
        return jnp.take(table, index, axis=axis)
    return jnp.take(table, for_strings(index), axis=axis)


def _weighted(X: Tensor, coefficients: Sequence[float], rows: int, intercepts: Sequence[float] | None) -> Tensor:
    weights = host(np.array(coefficients, np.float32).reshape(rows, -1))
    if isinstance(X.shape[-1], int) and X.shape[-1] != weights.shape[1]:
        raise ModelError(
            f"the samples have {X.shape[-1]} features, and the coefficients are for {weights.shape[1]}",
            why="ONNX Runtime reads the coefficients as if there were fewer, and so not those of the model",
            instead=f"give samples of {weights.shape[1]} features; if the file declares the wrong number, correct it "
            "there",
        )
    y = cast(X, np.float32) @ weights.T
    return y if intercepts is None else y + host(np.array(intercepts, np.float32))


@op(DOMAIN, "LinearRegressor", since=1)
def linear_regressor(X, *, coefficients=None, intercepts=None, post_transform="NONE", targets=1):
    return transformed(_weighted(X, coefficients or (), targets, intercepts), post_transform)


@op(DOMAIN, "LinearClassifier", since=1)
def linear_classifier(
    X, *, coefficients, intercepts=None, labels: LabelAttributes, multi_class=0, post_transform="NONE"
):
    rows = len(intercepts) if intercepts else labels.count
    x = jnp.expand_dims(X, 0) if X.ndim == 1 else X
    scores = _weighted(x, coefficients, rows, intercepts)
    if rows > 1:
        index, scores = jnp.argmax(scores, axis=1), transformed(scores, post_transform)
    else:
        index = cast(scores[:, 0] > 0, np.int32)
        scores = two_classes(scores, post_transform, 1.0) if labels.count == 2 else transformed(scores, post_transform)
    return labels.at(index), scores


@dataclass(frozen=True, kw_only=True)
class SupportVectorAttributes:
    """The attributes of support vector machines."""

    coefficients: Sequence[float] | None = None
    kernel_params: Sequence[float] | None = None
    kernel_type: str = "LINEAR"
    post_transform: str = "NONE"
    rho: Sequence[float] | None = None
    support_vectors: Sequence[float] | None = None

    def kernel(self, X: Tensor, count: int) -> Tensor:
        """Return the kernel function between samples and `count` support vectors: (samples, vectors)."""
        vectors = host(np.array(self.support_vectors, np.float32).reshape(count, -1))
        gamma, offset, degree = self.kernel_params or (0.0, 0.0, 0.0)
        if self.kernel_type == "RBF":
            difference = jnp.expand_dims(X, 1) - vectors
            return jnp.exp(-gamma * jnp.sum(difference * difference, axis=2))
        dot = X @ vectors.T
        if self.kernel_type == "LINEAR":
            return dot
        dot = gamma * dot + offset
        return dot**degree if self.kernel_type == "POLY" else jnp.tanh(dot)


@op(DOMAIN, "SVMRegressor", since=1)
def svm_regressor(X, *, n_supports=0, one_class=0, machine: SupportVectorAttributes):
    x = cast(X, np.float32)
    x = machine.kernel(x, n_supports) if n_supports else x
    y = _weighted(x, machine.coefficients or (), 1, machine.rho and machine.rho[:1])
    return transformed(jnp.where(y > 0, 1.0, -1.0) if one_class else y, machine.post_transform)


@helper
def coupled_probabilities(pairs):
    """Return class probabilities from those of pairs (classes, classes), coupled as by Wu, Lin and Weng."""
    count = pairs.shape[0]
    matrix = -pairs.T * pairs
    matrix = jnp.where(jnp.eye(count, dtype=bool), ((pairs.T**2) * (1 - jnp.eye(count))).sum(1), matrix)

    def unfinished(state):
        step, p = state
        row = matrix @ p
        return (step < 100) & (jnp.abs(row - p @ row).max() >= 0.005 / count)

    def improved(state):
        step, p = state
        for t in range(count):
            row = matrix @ p
            change = (p @ row - row[t]) / matrix[t, t]
            p = p.at[t].add(change) / (1 + change)
        return step + 1, p

    return lax.while_loop(unfinished, improved, (0, jnp.full(count, 1 / count)))[1]


@op(DOMAIN, "SVMClassifier", since=1)
def svm_classifier(
    X, *, labels: LabelAttributes, machine: SupportVectorAttributes, prob_a=None, prob_b=None, vectors_per_class=None
):
    x, transform = cast(X, np.float32), machine.post_transform
    coefficients, rho = machine.coefficients or (), machine.rho or (0.0,)
    count = labels.count
    if not vectors_per_class:
        scores = _weighted(x, coefficients, count, None) + rho[0]
        index = jnp.argmax(scores, axis=1)
        if count == 2:  # the second class wins if any is likely, as for one score
            best = jnp.max(scores, axis=1)
            index = jnp.where(best >= 0.5 if min(coefficients) >= 0 else best > 0, 1, index)
        return labels.at(index), transformed(scores, transform)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    kernels = machine.kernel(x, sum(vectors_per_class))
    decisions = kernels @ _of_pairs(coefficients, vectors_per_class, pairs) + np.array(rho, np.float32)
    votes = sum(
        nn.one_hot(jnp.where(decisions[:, k] > 0, i, j), count, dtype=np.dtype("float32"))
        for k, (i, j) in enumerate(pairs)
    )
    if prob_a:
        scores = transformed(_probabilities(decisions, prob_a, prob_b, pairs, count), transform)
    elif count == 2:
        scores = two_classes(decisions, transform, 1.0 if transform.startswith("SOFTMAX") else 0.0)
    else:
        scores = transformed(decisions, transform)
    return labels.at(jnp.argmax(votes, axis=1)), scores


def _of_pairs(coefficients: Sequence[float], sizes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> HostValue:
    """Return the weights of the support vectors in the decision between two classes: (vectors, pairs)."""
    table = np.array(coefficients, np.float32).reshape(len(sizes) - 1, -1)
    starts = np.cumsum([0, *sizes])
    weights = np.zeros((table.shape[1], len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        weights[first, k], weights[second, k] = table[j - 1, first], table[i, second]
    return host(weights)


def _probabilities(
    decisions: Tensor, a: Tensor, b: Tensor | None, pairs: Sequence[tuple[int, int]], count: int
) -> Tensor:
    """Return the probability of each class from the decisions between two, by Platt's scaling."""
    likely = nn.sigmoid(-(decisions * np.array(a, np.float32) + np.array(b, np.float32)))
    likely = jnp.clip(likely, 1e-7, 1 - 1e-7)
    table = jnp.zeros((likely.shape[0], count, count))
    for k, (i, j) in enumerate(pairs):
        table = table.at[:, i, j].set(likely[:, k])
        table = table.at[:, j, i].set(1 - likely[:, k])
    return vmap(coupled_probabilities)(table)

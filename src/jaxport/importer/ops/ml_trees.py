"""Tree ensembles of `ai.onnx.ml`, of the older operators and of the one that replaced them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxport.errors import ModelError
from jaxport.importer.host import Attribute, HostValue, RuntimeValue, Tensor, host
from jaxport.importer.namespaces import cast, helper, jnp, lax
from jaxport.importer.ops.ml_scores import DOMAIN, labelled, transformed, two_classes
from jaxport.importer.registry import earlier, op

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""The comparison of a feature with its threshold, by its number in `TreeEnsemble`."""
LEAF = -1
TENSOR = "_as_tensor"


class Trees(NamedTuple):
    """Nodes of all trees, one row each: a leaf is its own child. `weights` (nodes, targets) is NaN for missing ones."""

    roots: np.ndarray
    features: np.ndarray
    thresholds: np.ndarray
    modes: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    weights: np.ndarray

    def depth(self) -> int:
        """Return the longest path from a root to a leaf."""
        at, steps = np.unique(self.roots), 0
        while np.any(self.modes[at] != LEAF):
            if steps > len(self.modes):
                raise ModelError("the nodes of a tree form a cycle", instead="export the model again")
            at, steps = np.unique(np.concatenate([self.yes[at], self.no[at]])), steps + 1
        return steps


@helper
def tree_leaves(x, roots, features, thresholds, modes, yes, no, missing, depth):
    """Return the leaf of each tree for each sample of `x`; `modes` is one comparison, or one of six for each node."""

    def holds(value, threshold, mode):
        tests = [
            value <= threshold,
            value < threshold,
            value >= threshold,
            value > threshold,
            value == threshold,
            value != threshold,
        ]
        return tests[mode] if isinstance(mode, int) else jnp.select([mode == m for m in range(6)], tests, False)

    def step(_, at):
        value = jnp.take_along_axis(x, jnp.take(features, at), axis=1)
        goes = holds(value, jnp.take(thresholds, at), modes if isinstance(modes, int) else jnp.take(modes, at))
        if missing is not None:
            goes = goes | (jnp.isnan(value) & jnp.take(missing, at))
        return jnp.where(goes, jnp.take(yes, at), jnp.take(no, at))

    start = jnp.broadcast_to(roots, (x.shape[0], roots.shape[0]))
    return lax.fori_loop(0, depth, step, start)


def _scores(X: Tensor, trees: Trees, aggregate: str, base: Tensor | HostValue | None) -> Tensor:
    """Aggregate the trees' weights for each target: (samples, targets)."""
    compared = np.unique(trees.modes[trees.modes != LEAF])
    modes = int(compared[0]) if len(compared) == 1 else host(np.asarray(trees.modes, np.int32)) if len(compared) else 0
    rows = (trees.roots, trees.features, trees.thresholds)
    links = (trees.yes, trees.no, trees.missing if np.any(trees.missing) else None)
    index = [
        part if part is None or part.dtype.kind in "fb" else np.asarray(part, np.int32) for part in (*rows, *links)
    ]
    first = [None if part is None else host(part) for part in index]
    leaves = tree_leaves(X, *first[:3], modes, *first[3:], trees.depth())
    absent = np.isnan(trees.weights)
    if aggregate in ("MIN", "MAX"):
        reduce, neutral = (jnp.min, np.inf) if aggregate == "MIN" else (jnp.max, -np.inf)
        y = reduce(jnp.take(host(np.where(absent, neutral, trees.weights)), leaves, axis=0), axis=1)
        y = jnp.where(jnp.isinf(y), 0.0, y)
    else:
        y = jnp.sum(jnp.take(host(np.where(absent, 0, trees.weights)), leaves, axis=0), axis=1)
        y = y / len(trees.roots) if aggregate == "AVERAGE" else y
    return y if base is None else y + base


def _numbers(values: Attribute, tensor: Attribute, dtype: type[np.generic] = np.float32) -> np.ndarray:
    """Return an attribute that may be given as numbers or as a tensor."""
    return tensor.data if tensor is not None else np.array(values if values is not None else (), dtype)


def _table(attributes: dict[str, Attribute], kind: str, targets: int) -> Trees:
    """Build the trees of the older operators, with nodes by tree and number; `kind` prefixes leaf attributes."""
    tree_of, number_of = (np.array(attributes[f"nodes_{name}"] or (), np.int64) for name in ("treeids", "nodeids"))
    row_of = {key: row for row, key in enumerate(zip(tree_of.tolist(), number_of.tolist(), strict=True))}
    names = np.array(attributes["nodes_modes"])
    modes = np.array([MODES.index(name) if name != "LEAF" else LEAF for name in names.tolist()], np.int64)
    rows = np.arange(len(modes))

    def children(name: str) -> np.ndarray:
        keys = zip(tree_of.tolist(), attributes[name], strict=True)
        return np.array(
            [row if mode == LEAF else row_of[key] for row, mode, key in zip(rows, modes, keys, strict=True)]
        )

    yes, no = children("nodes_truenodeids"), children("nodes_falsenodeids")
    tracks = attributes["nodes_missing_value_tracks_true"] or [0] * len(modes)
    scores = _numbers(attributes[f"{kind}_weights"], attributes.get(f"{kind}_weights_as_tensor"))
    weights = np.full((len(modes), targets), np.nan, scores.dtype)
    leaves = zip(attributes[f"{kind}_treeids"], attributes[f"{kind}_nodeids"], strict=True)
    at = ([row_of[leaf] for leaf in leaves], list(attributes[f"{kind}_ids"]))
    weights[at] = 0
    np.add.at(weights, at, scores)
    inner = modes != LEAF
    pointed = np.concatenate([yes[inner], no[inner]])
    roots = np.setdiff1d(rows, pointed)
    features = np.array(attributes["nodes_featureids"], np.int64)
    thresholds = _numbers(attributes["nodes_values"], attributes.get("nodes_values_as_tensor"))
    return Trees(roots, features, thresholds, modes, yes, no, np.array(tracks, bool), weights)


def _classified(
    X: Tensor, attributes: dict[str, Attribute], transform: str, integers: Any, names: Any
) -> tuple[Tensor, Tensor]:
    """Return labels and scores. A model of two classes may have the scores of one only."""
    count = len(integers or names or ())
    base = _numbers(attributes["base_values"], attributes.get("base_values_as_tensor"))
    ids = set(attributes["class_ids"])
    trees = _table(attributes, "class", max(count, 1))
    scores = _scores(X, trees, "SUM", host(base) if base.size else None)
    if count != 2 or len(ids) != 1 or base.size > 1:
        index = jnp.argmax(scores, axis=1)
        return labelled(index, integers, names), cast(transformed(scores, transform), np.float32)
    (column,) = ids
    score = scores[:, column : column + 1]
    likely = np.all(trees.weights[~np.isnan(trees.weights)] >= 0)  # then they are probabilities, else log-odds
    index = cast(score[:, 0] > (0.5 if likely else 0.0), np.int32)
    return labelled(index, integers, names), cast(two_classes(score, transform, 1.0 if likely else 0.0), np.float32)


@op(DOMAIN, "TreeEnsembleClassifier", since=3, until=4)
def tree_ensemble_classifier(
    X,
    *,
    base_values=None,
    base_values_as_tensor=None,
    class_ids=None,
    class_nodeids=None,
    class_treeids=None,
    class_weights=None,
    class_weights_as_tensor=None,
    classlabels_int64s=None,
    classlabels_strings=None,
    nodes_falsenodeids=None,
    nodes_featureids=None,
    nodes_hitrates=None,
    nodes_hitrates_as_tensor=None,
    nodes_missing_value_tracks_true=None,
    nodes_modes=None,
    nodes_nodeids=None,
    nodes_treeids=None,
    nodes_truenodeids=None,
    nodes_values=None,
    nodes_values_as_tensor=None,
    post_transform="NONE",
):
    return _classified(X, locals(), post_transform, classlabels_int64s, classlabels_strings)


earlier(
    DOMAIN,
    "TreeEnsembleClassifier",
    since=1,
    until=2,
    without=f"class_weights{TENSOR} base_values{TENSOR} nodes_hitrates{TENSOR} nodes_values{TENSOR}",
)


def _regressed(
    X: Tensor, attributes: dict[str, Attribute], aggregate: str, transform: str, targets: int | None
) -> Tensor:
    base = _numbers(attributes["base_values"], attributes.get("base_values_as_tensor"))
    trees = _table(attributes, "target", targets or 1 + max(attributes["target_ids"]))
    scores = _scores(X, trees, aggregate, host(base) if base.size else None)
    return transformed(cast(scores, np.float32), transform)


@op(DOMAIN, "TreeEnsembleRegressor", since=3, until=4)
def tree_ensemble_regressor(
    X,
    *,
    aggregate_function="SUM",
    base_values=None,
    base_values_as_tensor=None,
    n_targets=None,
    nodes_falsenodeids=None,
    nodes_featureids=None,
    nodes_hitrates=None,
    nodes_hitrates_as_tensor=None,
    nodes_missing_value_tracks_true=None,
    nodes_modes=None,
    nodes_nodeids=None,
    nodes_treeids=None,
    nodes_truenodeids=None,
    nodes_values=None,
    nodes_values_as_tensor=None,
    post_transform="NONE",
    target_ids=None,
    target_nodeids=None,
    target_treeids=None,
    target_weights=None,
    target_weights_as_tensor=None,
):
    return _regressed(X, locals(), aggregate_function, post_transform, n_targets)


earlier(
    DOMAIN,
    "TreeEnsembleRegressor",
    since=1,
    until=2,
    without=f"target_weights{TENSOR} base_values{TENSOR} nodes_hitrates{TENSOR} nodes_values{TENSOR}",
)


def _memberships(values: np.ndarray) -> list[np.ndarray]:
    """Return the sets of the nodes that test membership, in their order: NaN ends each."""
    ends = np.flatnonzero(np.isnan(values))
    return [part[~np.isnan(part)] for part in np.split(values, ends + 1)][: len(ends)]


def _unrolled(trees: Trees, sets: Sequence[np.ndarray]) -> Trees:
    """Replace each test of membership by a chain of tests of equality."""
    member, equal = MODES.index("BRANCH_MEMBER"), MODES.index("BRANCH_EQ")
    columns = {name: list(getattr(trees, name)) for name in ("features", "thresholds", "modes", "yes", "no", "missing")}
    weights = [trees.weights]
    for row, values in zip(np.flatnonzero(trees.modes == member), sets, strict=True):
        otherwise = columns["no"][row]
        for k, value in enumerate(values):
            at = row if k == 0 else len(columns["modes"])
            if k:
                for name, column in columns.items():
                    column.append(columns[name][row])
                weights.append(np.full((1, trees.weights.shape[1]), np.nan, trees.weights.dtype))
            columns["modes"][at], columns["thresholds"][at] = equal, value
            columns["no"][at] = otherwise if k == len(values) - 1 else len(columns["modes"])
    arrays = {name: np.array(column) for name, column in columns.items()}
    return Trees(trees.roots, weights=np.concatenate(weights), **arrays)


@op(DOMAIN, "TreeEnsemble", since=5)
def tree_ensemble(
    X,
    *,
    aggregate_function=1,
    leaf_targetids,
    leaf_weights,
    membership_values=None,
    n_targets=None,
    nodes_falseleafs,
    nodes_falsenodeids,
    nodes_featureids,
    nodes_hitrates=None,
    nodes_missing_value_tracks_true=None,
    nodes_modes,
    nodes_splits,
    nodes_truenodeids,
    nodes_trueleafs,
    post_transform=0,
    tree_roots,
):
    nodes, leaves = len(nodes_featureids), len(leaf_targetids)

    def joined(values: RuntimeValue, fill: RuntimeValue) -> np.ndarray:  # the leaves follow the nodes
        return np.concatenate([np.asarray(values), np.full(leaves, fill)])

    def children(ids: Sequence[int], is_leaf: Sequence[int]) -> np.ndarray:
        return np.concatenate([np.array(ids) + nodes * np.array(is_leaf), nodes + np.arange(leaves)])

    targets = n_targets or 1 + max(leaf_targetids)
    weights = np.full((nodes + leaves, targets), np.nan, leaf_weights.dtype)
    weights[nodes + np.arange(leaves), list(leaf_targetids)] = leaf_weights.data
    modes = joined(np.asarray(nodes_modes.data, np.int64), LEAF)
    splits = np.concatenate([nodes_splits.data, np.zeros(leaves, nodes_splits.dtype)])
    yes, no = children(nodes_truenodeids, nodes_trueleafs), children(nodes_falsenodeids, nodes_falseleafs)
    tracks = joined(np.array(nodes_missing_value_tracks_true or [0] * nodes, bool), False)
    trees = Trees(np.array(tree_roots), joined(nodes_featureids, 0), splits, modes, yes, no, tracks, weights)
    if membership_values is not None:
        trees = _unrolled(trees, _memberships(membership_values.data))
    aggregate = ("AVERAGE", "SUM", "MIN", "MAX")[aggregate_function]
    transform = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[post_transform]
    return transformed(_scores(X, trees, aggregate, None), transform)

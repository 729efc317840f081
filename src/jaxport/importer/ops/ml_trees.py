"""Tree ensembles of `ai.onnx.ml`, of the older operators and of the one that replaced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxport.errors import AGAIN, ModelError
from jaxport.importer.limits import budget_in_force
from jaxport.importer.ops.ml_scores import DOMAIN, labelled, transformed, two_classes
from jaxport.importer.resolving.registry import earlier, op
from jaxport.importer.values.host import HostValue, Tensor, host
from jaxport.importer.values.namespaces import cast, helper, jnp, lax

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""The comparison of a feature with its threshold, by its number in `TreeEnsemble`."""
LEAF = -1
SINCE_3 = " base_values_as_tensor nodes_hitrates_as_tensor nodes_values_as_tensor"
"""Attributes of ensembles that older versions lack."""


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
        """Return the longest path from a root to a leaf; each node is looked at once, behind all that lead to it."""
        inner = self.modes != LEAF
        parents = np.bincount(np.concatenate([self.yes[inner], self.no[inner]]), minlength=len(inner))
        at = np.flatnonzero(parents == 0)
        seen = steps = 0
        while len(at):
            seen, at = seen + len(at), at[inner[at]]
            steps += bool(len(at))
            children = np.concatenate([self.yes[at], self.no[at]])
            np.subtract.at(parents, children, 1)
            at = np.unique(children[parents[children] == 0])
        if seen < len(inner):
            raise ModelError("the nodes of a tree form a cycle", instead=AGAIN)
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


def _no_weights(nodes: int, targets: int, dtype: np.dtype) -> np.ndarray:
    """Return a table for the weights of nodes, without any: NaN.

    Raises:
      ModelError: the limits do not allow it, and what is computed from it.
    """
    budget_in_force().spend(3 * nodes * targets * dtype.itemsize, "", "the table of the leaves' weights")
    return np.full((nodes, targets), np.nan, dtype)


def _numbers(values: Sequence[float] | None, tensor: HostValue | None) -> np.ndarray:
    """Return an attribute that is either a list of numbers or a tensor."""
    return tensor.data if tensor is not None else np.array(values if values is not None else (), np.float32)


class Leaves(NamedTuple):
    """The weights of leaves: for each the target or class, the node, its tree, and the weight in one of two forms."""

    ids: Sequence[int]
    nodeids: Sequence[int]
    treeids: Sequence[int]
    weights: Sequence[float] | None
    weights_as_tensor: HostValue | None


@dataclass(frozen=True, kw_only=True)
class EnsembleAttributes:
    """The attributes that the older operators share: base scores, and the nodes by tree and number."""

    base_values: Sequence[float] | None = None
    base_values_as_tensor: HostValue | None = None
    nodes_falsenodeids: Sequence[int] | None = None
    nodes_featureids: Sequence[int] | None = None
    nodes_hitrates: Sequence[float] | None = None
    nodes_hitrates_as_tensor: HostValue | None = None
    nodes_missing_value_tracks_true: Sequence[int] | None = None
    nodes_modes: Sequence[str] | None = None
    nodes_nodeids: Sequence[int] | None = None
    nodes_treeids: Sequence[int] | None = None
    nodes_truenodeids: Sequence[int] | None = None
    nodes_values: Sequence[float] | None = None
    nodes_values_as_tensor: HostValue | None = None
    post_transform: str = "NONE"

    def base(self) -> HostValue | None:
        """Return what is added to the scores, if anything."""
        values = _numbers(self.base_values, self.base_values_as_tensor)
        return host(values) if values.size else None

    def trees(self, leaves: Leaves, targets: int) -> Trees:
        """Return the trees, with one row per node."""
        tree_of, number_of = (np.array(ids or (), np.int64) for ids in (self.nodes_treeids, self.nodes_nodeids))
        row_of = {key: row for row, key in enumerate(zip(tree_of.tolist(), number_of.tolist(), strict=True))}
        modes = np.array([LEAF if name == "LEAF" else MODES.index(name) for name in self.nodes_modes or ()], np.int64)
        rows = np.arange(len(modes))

        def children(numbers: Sequence[int] | None) -> np.ndarray:
            keys = zip(tree_of.tolist(), numbers or (), strict=True)
            return np.array(
                [row if mode == LEAF else row_of[key] for row, mode, key in zip(rows, modes, keys, strict=True)]
            )

        yes, no = children(self.nodes_truenodeids), children(self.nodes_falsenodeids)
        tracks = self.nodes_missing_value_tracks_true or [0] * len(modes)
        scores = _numbers(leaves.weights, leaves.weights_as_tensor)
        weights = _no_weights(len(modes), targets, scores.dtype)
        at = ([row_of[leaf] for leaf in zip(leaves.treeids, leaves.nodeids, strict=True)], list(leaves.ids))
        weights[at] = 0
        np.add.at(weights, at, scores)
        inner = modes != LEAF
        pointed = np.concatenate([yes[inner], no[inner]])
        roots = np.setdiff1d(rows, pointed)
        features = np.array(self.nodes_featureids, np.int64)
        thresholds = _numbers(self.nodes_values, self.nodes_values_as_tensor)
        return Trees(roots, features, thresholds, modes, yes, no, np.array(tracks, bool), weights)


@op(DOMAIN, "TreeEnsembleClassifier", since=3, until=4)
def tree_ensemble_classifier(
    X,
    *,
    class_ids=None,
    class_nodeids=None,
    class_treeids=None,
    class_weights=None,
    class_weights_as_tensor=None,
    classlabels_int64s=None,
    classlabels_strings=None,
    ensemble: EnsembleAttributes,
):
    labels, transform = (classlabels_int64s, classlabels_strings), ensemble.post_transform
    count, base = len(classlabels_int64s or classlabels_strings or ()), ensemble.base()
    ids = list(class_ids or ())
    leaves = Leaves(ids, class_nodeids or (), class_treeids or (), class_weights, class_weights_as_tensor)
    trees = ensemble.trees(leaves, max(count, 1))
    scores = _scores(X, trees, "SUM", base)
    if count != 2 or len(set(ids)) != 1:
        return labelled(jnp.argmax(scores, axis=1), *labels), cast(transformed(scores, transform), np.float32)
    # A model of two classes may have the scores of one only: of the first for those of both, of the second beside a 0.
    if base is not None and base.size > 1:
        raise ModelError(
            "the trees have scores of one class, and two base values",
            why="ONNX Runtime adds one of the values to a different score than the model says",
            instead="export the model with a base value for the one class, or with scores of both",
        )
    if ids[0] == 1:  # ONNX Runtime leaves out the base value
        scores = _scores(X, trees, "SUM", None)
    score = scores[:, ids[0] : ids[0] + 1]
    likely = np.all(trees.weights[~np.isnan(trees.weights)] >= 0)  # then they are probabilities, else log-odds
    index = cast(score[:, 0] > (0.5 if likely else 0.0), np.int32)
    if ids[0] == 1:
        return labelled(index, *labels), cast(transformed(scores, transform), np.float32)
    return labelled(index, *labels), cast(two_classes(score, transform, 1.0 if likely else 0.0), np.float32)


earlier(DOMAIN, "TreeEnsembleClassifier", since=1, until=2, without="class_weights_as_tensor" + SINCE_3)


@op(DOMAIN, "TreeEnsembleRegressor", since=3, until=4)
def tree_ensemble_regressor(
    X,
    *,
    aggregate_function="SUM",
    n_targets=None,
    target_ids=None,
    target_nodeids=None,
    target_treeids=None,
    target_weights=None,
    target_weights_as_tensor=None,
    ensemble: EnsembleAttributes,
):
    ids = target_ids or ()
    leaves = Leaves(ids, target_nodeids or (), target_treeids or (), target_weights, target_weights_as_tensor)
    trees = ensemble.trees(leaves, n_targets or 1 + max(ids))
    scores = _scores(X, trees, aggregate_function, ensemble.base())
    return transformed(cast(scores, np.float32), ensemble.post_transform)


earlier(DOMAIN, "TreeEnsembleRegressor", since=1, until=2, without="target_weights_as_tensor" + SINCE_3)


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
                weights.append(_no_weights(1, trees.weights.shape[1], trees.weights.dtype))
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

    def joined(values: ArrayLike, fill: ArrayLike) -> np.ndarray:  # the leaves follow the nodes
        return np.concatenate([np.asarray(values), np.full(leaves, fill)])

    def children(ids: Sequence[int], is_leaf: Sequence[int]) -> np.ndarray:
        return np.concatenate([np.array(ids) + nodes * np.array(is_leaf), nodes + np.arange(leaves)])

    targets = n_targets or 1 + max(leaf_targetids)
    weights = _no_weights(nodes + leaves, targets, leaf_weights.dtype)
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

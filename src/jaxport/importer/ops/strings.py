"""Strings, which live on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxport.importer.limits import budget_in_force
from jaxport.importer.ops.re2 import Regular
from jaxport.importer.resolving.registry import Host, op
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, Tensor, host


def strings(values: object) -> HostValue:
    """Return a tensor of strings from nested lists, or from an array of them."""
    return HostValue(np.array(values, dtype=object), STRING)


@op("StringConcat", since=20)
def string_concat(X: Host, Y: Host):
    longest = max(map(len, X.data.ravel()), default=0) + max(map(len, Y.data.ravel()), default=0)
    count = math.prod(np.broadcast_shapes(X.shape, Y.shape))
    budget_in_force().spend(count * (longest + 8), "", f"a tensor of {count} strings of up to {longest} characters")
    return strings(X.data + Y.data)


@op("StringSplit", since=20)
def string_split(X: Host, *, delimiter=None, maxsplit=None):
    parts = [text.split(delimiter or None, -1 if maxsplit is None else maxsplit) for text in X.data.ravel()]
    longest = max(map(len, parts), default=0)
    budget_in_force().spend(8 * longest * len(parts), "", f"a tensor of {len(parts)} by {longest} strings")
    padded = [[*part, *[""] * (longest - len(part))] for part in parts]
    counts = host(np.array(list(map(len, parts)), np.int64).reshape(X.shape))
    return strings(padded).reshape(*X.shape, longest), counts


@op("RegexFullMatch", since=20)
def regex_full_match(X: Host, *, pattern=None):
    expression = Regular(pattern or "")
    return host(np.array([expression.matches(text) for text in X.data.ravel()], bool).reshape(X.shape))


@op("StringNormalizer", since=10)
def string_normalizer(X: Host, *, case_change_action="NONE", is_case_sensitive=0, locale=None, stopwords=None):
    change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[case_change_action]
    fold = str if is_case_sensitive else str.lower
    stops = set(map(fold, stopwords or ()))
    kept = [change(text) for text in X.data.ravel() if fold(text) not in stops]
    return strings(kept or [""]).reshape(*X.shape[:-1], -1)


def _grams(pool: Sequence[Tensor], starts: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Return the n-grams of a pool, which has those of one element first, then those of two, and so on."""
    ends = [*starts[1:], len(pool)]
    return [
        tuple(pool[at : at + size])
        for size, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
        for at in range(start, end, size)
    ]


def _counted(row: Sequence[object], grams: Mapping[Any, int], sizes: range, skips: int) -> np.ndarray:
    """Count the occurrences of each n-gram in a row, with up to `skips` elements between its own."""
    counts = np.zeros(max(grams.values()) + 1, np.float32)
    for size in sizes:
        for step in range(1, skips + 2) if size > 1 else (1,):
            for at in range(len(row) - step * (size - 1)):
                column = grams.get(tuple(row[at : at + step * (size - 1) + 1 : step]))
                if column is not None:
                    counts[column] += 1
    return counts


@op("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(
    X: Host,
    *,
    max_gram_length,
    max_skip_count,
    min_gram_length,
    mode,
    ngram_counts,
    ngram_indexes,
    pool_int64s=None,
    pool_strings=None,
    weights=None,
):
    grams = dict(zip(_grams(pool_int64s or pool_strings or (), ngram_counts), ngram_indexes, strict=True))
    sizes = range(min_gram_length, max_gram_length + 1)
    rows = X.data.reshape(-1, X.shape[-1] if X.ndim else 1).tolist()
    counts = np.array([_counted(row, grams, sizes, max_skip_count) for row in rows], np.float32)
    counts = counts.reshape(*X.shape[:-1], max(ngram_indexes) + 1)
    counts = np.minimum(counts, 1) if mode == "IDF" else counts
    if mode == "TF" or weights is None:
        return host(counts)
    # Weights belong to n-grams, as indices do.
    columns = np.zeros(counts.shape[-1], np.float32)
    columns[list(ngram_indexes)] = weights
    return host(counts * columns)

"""Features of `ai.onnx.ml`: scaling, encoding, imputing, and the maps between labels and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from jaxport.errors import AGAIN, InvalidArgument, Refusal, ValueNotKnown
from jaxport.importer.ops.ml_scores import DOMAIN, chosen
from jaxport.importer.ops.strings import strings
from jaxport.importer.resolving.graph import Attribute
from jaxport.importer.resolving.registry import earlier, op
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, Tensor, host, is_dim
from jaxport.importer.values.namespaces import cast, for_strings, jnp, known


@op(DOMAIN, "ArrayFeatureExtractor", since=1)
def array_feature_extractor(X, Y):
    y = chosen(X, jnp.reshape(Y, (-1,)), axis=X.ndim - 1)
    return jnp.expand_dims(y, 0) if X.ndim == 1 else y


@op(DOMAIN, "Binarizer", since=1)
def binarizer(X, *, threshold=0.0):
    return cast(X > threshold, X.dtype)  # noqa: SIM300  `X` is the variable


@op(DOMAIN, "Scaler", since=1)
def scaler(X, *, offset=None, scale=None):
    x = cast(X, np.float32)
    return (x - host(np.array(offset or (0,), np.float32))) * host(np.array(scale or (1,), np.float32))


@op(DOMAIN, "Normalizer", since=1)
def normalizer(X, *, norm="MAX"):
    x = cast(X, np.float32)
    sizes = {"MAX": lambda x: x, "L1": jnp.abs, "L2": lambda x: x * x}[norm](x)
    total = (jnp.max if norm == "MAX" else jnp.sum)(sizes, axis=-1, keepdims=True)
    total = jnp.where(total == 0, 1, total)
    return x / (jnp.sqrt(total) if norm == "L2" else total)


@op(DOMAIN, "Imputer", since=1)
def imputer(
    X, *, imputed_value_floats=None, imputed_value_int64s=None, replaced_value_float=0.0, replaced_value_int64=0
):
    integers = not imputed_value_floats
    replaced = replaced_value_int64 if integers else replaced_value_float
    values = host(np.array(imputed_value_int64s if integers else imputed_value_floats), X.dtype)
    return jnp.where(jnp.isnan(X) if np.isnan(replaced) else X == replaced, values, X)  # noqa: SIM300  `X` is the variable


@op(DOMAIN, "FeatureVectorizer", since=1)
def feature_vectorizer(*X, inputdimensions=None):
    columns = [cast(jnp.reshape(x, (1 if x.ndim == 1 else x.shape[0], -1)), np.float32) for x in X]
    sizes = inputdimensions or [x.shape[1] for x in columns]
    return jnp.concatenate([_of_width(x, size) for x, size in zip(columns, sizes, strict=True)], axis=1)


def _of_width(x: Tensor, size: int) -> Tensor:
    """Return as many columns of `x` as are declared, padded with zeros if it has fewer."""
    columns = x.shape[1]
    if columns == size:
        return x
    return x[:, :size] if columns > size else jnp.pad(x, [(0, 0), (0, size - columns)])


@op(DOMAIN, "OneHotEncoder", since=1)
def one_hot_encoder(X, *, cats_int64s=None, cats_strings=None, zeros=1):
    if X.dtype == STRING:
        hot = host(np.expand_dims(X.data, -1) == np.array(cats_strings, dtype=object))
        unknown = [text for text in X.data.ravel().tolist() if not zeros and text not in cats_strings]
        if unknown:
            raise InvalidArgument(f"{unknown[0]!r} is not one of the categories", instead=f"give {cats_strings}")
    else:
        hot = jnp.expand_dims(cast(X, np.int64), -1) == host(list(cats_int64s or ()))
    return cast(hot, np.float32)


def _mapped(X: Tensor, keys: HostValue, values: HostValue, default: HostValue) -> Tensor | HostValue:
    """Look up each element in a table; the last of equal keys counts, and a NaN key matches NaN."""
    x = known(X) if X.dtype == STRING or values.dtype == STRING else X
    if x is None or isinstance(x, HostValue):
        return _mapped_on_host(for_strings(X), keys, values, default)
    order = np.argsort(keys.data, kind="stable")
    ordered, targets = host(keys.data[order]), host(values.data[order])
    at = jnp.searchsorted(ordered, x, side="right") - 1
    nearest = jnp.take(ordered, at, mode="clip")
    same = (nearest == x) | (jnp.isnan(nearest) & jnp.isnan(x)) if keys.dtype.kind == "f" else nearest == x
    return jnp.where(same & (at >= 0), jnp.take(targets, at, mode="clip"), jnp.reshape(default, ()))


def _mapped_on_host(x: HostValue, keys: HostValue, values: HostValue, default: HostValue) -> HostValue:
    def key(value: object) -> object:
        return "nan" if isinstance(value, float) and np.isnan(value) else value

    table = dict(zip(map(key, keys.tolist()), values.tolist(), strict=True))
    partners = [table.get(key(value), default.item()) for value in x.data.ravel().tolist()]
    return HostValue(np.array(partners, dtype=values.dtype).reshape(x.shape), values.dtype)


def _one(*candidates: tuple[Attribute, DTypeLike | None]) -> tuple[HostValue, int]:
    """Return the one attribute that is not None, as an array of its type, and its position."""
    for index, (values, dtype) in enumerate(candidates):
        if values is not None:
            array = values.data if isinstance(values, HostValue) else np.array(values, dtype=dtype)
            return HostValue(array, STRING if array.dtype.kind in "OU" else array.dtype), index
    raise InvalidArgument("the encoder has neither keys nor values", instead=AGAIN)


@op(DOMAIN, "LabelEncoder", since=4)
def label_encoder(
    X,
    *,
    default_float=-0.0,
    default_int64=-1,
    default_string="_Unused",
    default_tensor=None,
    keys_floats=None,
    keys_int64s=None,
    keys_strings=None,
    keys_tensor=None,
    values_floats=None,
    values_int64s=None,
    values_strings=None,
    values_tensor=None,
):
    keys, _ = _one((keys_strings, object), (keys_int64s, np.int64), (keys_floats, np.float32), (keys_tensor, None))
    values, kind = _one(
        (values_strings, object), (values_int64s, np.int64), (values_floats, np.float32), (values_tensor, None)
    )
    default = (default_string, default_int64, default_float, default_int64)[kind]
    fallback = (
        default_tensor if default_tensor is not None else HostValue(np.array(default, values.dtype), values.dtype)
    )
    return _mapped(X, keys, values, fallback)


earlier(DOMAIN, "LabelEncoder", since=2, until=3, without="default_tensor keys_tensor values_tensor")


def _classes(
    X: Tensor, names: Sequence[str], numbers: Sequence[int], default_int64: int, default_string: str
) -> Tensor | HostValue:
    """Map names to numbers, or numbers to names, depending on the type of `X`."""
    labels, ids = strings(list(names)), host(np.array(numbers, np.int64))
    if X.dtype == STRING:
        return _mapped(X, labels, ids, host(default_int64))
    return _mapped(X, ids, labels, strings(default_string))


@op(DOMAIN, "LabelEncoder", since=1, until=1)
def label_encoder_of_classes(X, *, classes_strings=None, default_int64=-1, default_string="_Unused"):
    names = classes_strings or ()
    return _classes(X, names, range(len(names)), default_int64, default_string)


@op(DOMAIN, "CategoryMapper", since=1)
def category_mapper(X, *, cats_int64s=None, cats_strings=None, default_int64=-1, default_string="_Unused"):
    return _classes(X, cats_strings or (), cats_int64s or (), default_int64, default_string)


@op(DOMAIN, "ZipMap", since=1)
def zip_map(X, *, classlabels_int64s=None, classlabels_strings=None):
    labels = classlabels_strings or classlabels_int64s or ()
    rows = jnp.reshape(X, (-1, len(labels)))
    if is_dim(rows.shape[0]):
        why = (
            f"it has {rows.shape[0]} maps; give that size a number, or leave `ZipMap` out: "
            f"`options={{'zipmap': False}}` of skl2onnx"
        )
        raise ValueNotKnown("a list of maps has a length that is known", [Refusal("", "", why)])
    return [{label: rows[row, column] for column, label in enumerate(labels)} for row in range(rows.shape[0])]


@op(DOMAIN, "DictVectorizer", since=1)
def dict_vectorizer(X, *, int64_vocabulary=None, string_vocabulary=None):
    values = [X.get(key, 0) for key in string_vocabulary or int64_vocabulary or ()]
    if any(isinstance(value, str) for value in values):
        return strings([[value or "" for value in values]])
    return jnp.expand_dims(jnp.stack([jnp.asarray(value) for value in values]), 0)


@op(DOMAIN, "CastMap", since=1)
def cast_map(X, *, cast_to="TO_FLOAT", map_form="DENSE", max_map=1):
    if map_form == "SPARSE":
        cells = [X.get(key, 0) for key in range(max_map)]
    else:
        cells = [X[key] for key in sorted(X)]
    if cast_to == "TO_STRING":
        return strings([[str(cell) for cell in cells]])
    dtype = {"TO_FLOAT": np.float32, "TO_INT64": np.int64}[cast_to]
    return host(np.array([[dtype(cell) for cell in cells]]))

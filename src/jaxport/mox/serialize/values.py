"""Values in params, configs and trees as plain data (None, bools, numbers, strings, lists, dicts), and back.

What plain data lacks is a dict with one key that begins with ``$``. Only what is listed here is made when a document
is read: nothing is imported, called or unpickled by name.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxport.blocks.block import FrozenMapping
from jaxport.blocks.callables.framework import public_name
from jaxport.errors import ModelError, noted
from jaxport.jaxprs import Array
from jaxport.jaxprs.rewrite import traced_equation
from jaxport.mox.serialize.json_values import JsonValue, list_of, object_of, pair_of, size_of, text_of


class Unwritable(Exception):
    """A value that no document can hold; the message says which."""


class Named:
    """A function or class of a config as it was named; it cannot be called.

    >>> Named("jax.lax.dot_general")
    Named('jax.lax.dot_general')
    """

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"Named({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


_ENUMS: dict[str, type[Enum]] = {
    cls.__name__: cls
    for cls in (
        lax.AccuracyMode, lax.FftType, lax.GatherScatterMode, lax.Precision, lax.RandomAlgorithm, lax.RoundingMethod,
        lax.DotAlgorithmPreset,
    )
}  # fmt: skip


@cache
def _records() -> dict[str, type]:
    """Return the classes of records of JAX, by name; that of the four bodies of a linear solve has no public name."""
    solve = traced_equation(lambda b: lax.custom_linear_solve(lambda x: x, b, lambda _, b: b), [jnp.zeros(1)])
    return {
        "ConvDimensionNumbers": lax.ConvDimensionNumbers,
        "GatherDimensionNumbers": lax.GatherDimensionNumbers,
        "ScatterDimensionNumbers": lax.ScatterDimensionNumbers,
        "RaggedDotDimensionNumbers": lax.RaggedDotDimensionNumbers,
        "LinearSolve": type(solve.params["jaxprs"]),
    }


@cache
def _names_of_records() -> dict[type, str]:
    return {cls: name for name, cls in _records().items()}


def dtype_text(dtype: object) -> str:
    """Return the name of a dtype; of keys, with their implementation.

    >>> dtype_text(np.dtype("float32")), dtype_text(jax.random.key(0).dtype)
    ('float32', 'key<fry>')
    """
    return str(dtype)


@cache
def dtype_of(text: str) -> np.dtype:
    """Return the dtype of that name.

    Raises:
      ModelError: there is none.

    >>> dtype_of("bfloat16"), dtype_of("key<fry>")
    (dtype(bfloat16), key<fry>)
    """
    if match := re.fullmatch(r"key<(\w+)>", text):
        for name in ("threefry2x32", "rbg", "unsafe_rbg"):
            dtype = jax.random.key(0, impl=name).dtype
            if str(dtype) == text:
                return dtype
        raise ModelError(f"`{text}` is not a kind of key", why=f"jax has no generator `{match[1]}`")
    scalar = getattr(ml_dtypes, text, None)
    try:
        return np.dtype(scalar if isinstance(scalar, type) else text)
    except TypeError as error:
        raise ModelError(f"`{text}` is not a dtype", why=str(error)) from error


def array_text(array: Array | np.generic) -> dict[str, JsonValue]:
    """Return a small array as plain data, bit by bit."""
    raw = np.asarray(array)
    return {
        "dtype": str(raw.dtype),
        "shape": list(raw.shape),
        "data": base64.b64encode(np.ascontiguousarray(raw).tobytes()).decode(),
    }


def array_from(data: JsonValue) -> Array:
    """Return the array of `array_text`.

    Raises:
      ModelError: the data do not fit the shape.
    """
    fields = _fields(data, "dtype", "shape", "data")
    dtype = dtype_of(str(fields["dtype"]))
    shape = tuple(size_of(size) for size in list_of(fields["shape"]))
    try:
        content = base64.b64decode(str(fields["data"]), validate=True)
        # A scalar stays one: params are compared and hashed.
        return np.frombuffer(content, dtype).reshape(shape)[()]
    except ValueError as error:
        raise ModelError("an array does not fit its shape", why=str(error)) from error


def _fields(data: JsonValue, *names: str) -> Mapping[str, JsonValue]:
    if not isinstance(data, Mapping) or set(data) != set(names):
        raise ModelError(
            f"a record has the fields {sorted(map(str, data)) if isinstance(data, Mapping) else data!r}",
            why=f"it must have {', '.join(names)}",
        )
    return data


@cache
def _type_of_keys() -> type:
    """Return the class of the dtypes of keys, which has no public name."""
    return type(jax.random.key(0).dtype)


Special = Callable[[Any], Any]


def encoded(value: Any, special: Special) -> JsonValue:
    """Return a value as plain data; `special` is asked first, and returns NotImplemented for what it does not know.

    Raises:
      Unwritable: the value is of no kind that can be read again.

    >>> encoded((1, np.dtype("int8")), lambda value: NotImplemented)
    {'$tuple': [1, {'$dtype': 'int8'}]}
    """
    known = special(value)
    if known is not NotImplemented:
        return known
    again = lambda item: encoded(item, special)
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if abs(value) < 1 << 62 else {"$int": str(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, complex) and not isinstance(value, np.generic):
        return {"$complex": [again(value.real), again(value.imag)]}
    if isinstance(value, Enum) and type(value).__name__ in _ENUMS:
        return {"$enum": [type(value).__name__, value.name]}
    if (record := _names_of_records().get(type(value))) is not None:
        fields = getattr(value, "_fields", None) or list(vars(value))
        return {"$record": [record, {name: again(getattr(value, name)) for name in fields}]}
    if type(value) is tuple:
        return {"$tuple": [again(item) for item in value]}
    if type(value) is list:
        return [again(item) for item in value]
    if isinstance(value, frozenset | set):
        return {"$set": sorted((again(item) for item in value), key=repr)}
    if isinstance(value, Mapping) and type(value) is not dict:
        return {"$map": [[again(key), again(item)] for key, item in value.items()]}
    if type(value) is dict:
        return {"$dict": [[again(key), again(item)] for key, item in value.items()]}
    if isinstance(value, (np.dtype, _type_of_keys())):
        return {"$dtype": dtype_text(value)}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"$scalar": np.dtype(value).name}
    if isinstance(value, np.ndarray | np.generic | jax.Array) and not jax.dtypes.issubdtype(
        value.dtype, jax.dtypes.extended
    ):
        return {"$array": array_text(value)}
    if isinstance(value, Named):
        return {"$named": value.name}
    raise Unwritable(f"a value of type `{public_name(type(value), ())}`")


Decode = Callable[[JsonValue], Any]


def _complex(data: JsonValue, again: Decode) -> complex:
    real, imaginary = pair_of(data)
    return complex(again(real), again(imaginary))


def _enum(data: JsonValue, _: Decode) -> Enum:
    kind, name = pair_of(data)
    return _ENUMS[text_of(kind)][text_of(name)]


def _record(data: JsonValue, again: Decode) -> object:
    kind, fields = pair_of(data)
    return _records()[text_of(kind)](**{name: again(item) for name, item in object_of(fields).items()})


def _items(data: JsonValue, again: Decode) -> dict[object, object]:
    return {again(key): again(item) for key, item in map(pair_of, list_of(data))}


_DECODERS: dict[str, Callable[[JsonValue, Decode], Any]] = {
    "$int": lambda data, _: int(text_of(data)),
    "$float": lambda data, _: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[text_of(data)],
    "$complex": _complex,
    "$enum": _enum,
    "$record": _record,
    "$tuple": lambda data, again: tuple(again(item) for item in list_of(data)),
    "$set": lambda data, again: frozenset(again(item) for item in list_of(data)),
    "$map": lambda data, again: FrozenMapping(_items(data, again)),
    "$dict": _items,
    "$dtype": lambda data, _: dtype_of(text_of(data)),
    "$scalar": lambda data, _: dtype_of(text_of(data)).type,
    "$array": lambda data, _: array_from(data),
    "$named": lambda data, _: Named(str(data)),
}


def decoded(data: JsonValue, special: Special) -> Any:
    """Return the value of plain data; `special` is asked first for each dict.

    Raises:
      ModelError: the data are not what `encoded` makes.

    >>> decoded({"$tuple": [1, {"$dtype": "int8"}]}, lambda data: NotImplemented)
    (1, dtype('int8'))
    """
    again = lambda item: decoded(item, special)
    if isinstance(data, list):
        return [again(item) for item in data]
    if not isinstance(data, dict):
        return data
    known = special(data)
    if known is not NotImplemented:
        return known
    key = next(iter(data), None)
    if len(data) != 1 or key not in _DECODERS:
        raise ModelError(f"a value has the unknown form {sorted(map(str, data))}")
    try:
        return _DECODERS[key](data[key], again)
    except Exception as error:
        noted(error, f"a value `{key}`")
        raise

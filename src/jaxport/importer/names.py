"""Turn the names of a model into Python identifiers that are harmless and unique, whatever they contain."""

from __future__ import annotations

import builtins
import keyword
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

Classes = Literal["nnx", "equinox"]
"""The frameworks for which a program is printed as classes."""
Framework = Literal["nnx", "equinox", "jax", "burn"]
"""The names of all that a program is printed for."""
Folder = str | os.PathLike[str] | None
"""Where source is written to; None writes nothing."""
Given = Mapping[str, Any] | None
"""Sizes and values of inputs, by name."""
LONGEST = 48
_RESERVED = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}


def identifier(name: str, default: str = "value") -> str:
    r"""Return `name` as a Python identifier of ASCII letters, digits and underscores that is no keyword or builtin.

    >>> identifier("/encoder/layer.0/MatMul_output_0"), identifier("class"), identifier("1x"), identifier("'\n")
    ('encoder_layer_0_MatMul_output_0', 'class_', 'value_1x', 'value')
    """
    text = re.sub(r"[^A-Za-z0-9]+", "_", name)[: 4 * LONGEST].strip("_")[:LONGEST].strip("_")
    if not text:
        return default
    if text[0].isdigit():
        text = f"{default}_{text}"
    return f"{text}_" if text in _RESERVED else text


def is_made_up(name: str) -> bool:
    """Whether a name is one that exporters number values with.

    >>> is_made_up("val_17"), is_made_up("unsqueeze_2"), is_made_up("w_0"), is_made_up("cls_token"), is_made_up("w1")
    (True, True, True, False, False)
    """
    operators = "matmul|add|mul|conv|gemm|unsqueeze|squeeze|transpose|permute|reshape|view|expand|clone|slice|cat"
    numbered = rf"(?i)(val|const|constant|onnx|{operators}|_*v|tensor|arg|param|(?-i:W)|w(?=_\d))?_*\d*"
    return re.fullmatch(numbered, name) is not None


def without_positions(path: str) -> str:
    """Return a path without the positions of elements in lists.

    >>> without_positions("encoder.layers.0.norm")
    'encoder.layers..norm'
    """
    return re.sub(r"(?<=[._])\d+(?=[._]|$)", "", path)


def given_name(name: str) -> str:
    """Return the last part of a tensor's name, or of the list that it is in; nothing if an exporter has made it up.

    >>> given_name("encoder.cls_token"), given_name("scales.0"), given_name("onnx::MatMul_123"), given_name("val_17")
    ('cls_token', 'scales', '', '')
    """
    last = re.split(r"[./:]", re.sub(r"(\.\d+)+$", "", name))[-1]
    return "" if is_made_up(last) else last


def unique(name: str, taken: Collection[str]) -> str:
    """Return `name`, or `name_2`, `name_3` … if it is taken.

    >>> unique("x", {"x", "x_2"})
    'x_3'
    """
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def unique_identifiers(names: Iterable[str], default: str = "value", reserved: Collection[str] = ()) -> list[str]:
    """Return a distinct identifier for each name, none of them `reserved`.

    >>> unique_identifiers(["a.b", "a/b", "c"])
    ['a_b', 'a_b_2', 'c']
    """
    taken = dict.fromkeys(reserved)
    for name in names:
        taken[unique(identifier(name, default), taken)] = None
    return list(taken)[len(reserved) :]

"""The names that a crate has already: those of the language, those that it may import, and those in the files that it gets as they are."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

from jaxport.codegen.burn.imports import NAMES
from jaxport.codegen.burn.layers import KEYWORDS

__all__ = ["names_in_use", "types_in_scope"]

_PRELUDE = (
    "AsMut AsRef Box Clone Copy Debug Default DoubleEndedIterator Drop Eq Err ExactSizeIterator Extend Fn FnMut FnOnce From FromIterator "
    "Future Hash Into IntoFuture IntoIterator Iterator None Ok Option Ord PartialEq PartialOrd Result Send Sized Some String Sync "
    "ToOwned ToString TryFrom TryInto Unpin Vec bool char f32 f64 i8 i16 i32 i64 isize str u8 u16 u32 u64 usize"
)
"""What every file of Rust sees, and the names of its primitive types."""
_PRINTED = "Outputs Path assert burn core device forward helpers load model new run save std vec"
"""What the printer writes itself: the structure of results, and the names in its functions."""


def types_in_scope(text: str) -> set[str]:
    """Return the types and constants that a text of Rust imports, defines or names without a path.

    >>> sorted(types_in_scope("use bytes::Bytes as Shared; struct Kept(DType::F32); // Note"))
    ['DType', 'Kept', 'Shared']
    """
    text = re.sub(r'"(?:[^"\\]|\\.)*"|//.*|\$\{\w+\}', "", text)
    imported = " ".join(re.findall(r"^\s*use [^;]*;", text, re.MULTILINE))
    return {*re.findall(r"(?<!\w)[A-Z]\w*", imported), *re.findall(r"(?<![\w:.])[A-Z]\w*", text)}


@functools.cache
def names_in_use() -> frozenset[str]:
    """Return the names that no structure, argument or function of a model may have.

    >>> {"Self", "Tensor", "SharedBytes", "TensorsError", "QuantizedLinear"} <= names_in_use()
    True
    """
    folder = files("jaxport.codegen.burn")
    texts = [
        file.read_text(encoding="utf-8")
        for part in ("helpers", "templates")
        for file in (folder / part).iterdir()
        if file.name.endswith(".rs")
    ]
    written = set().union(*map(types_in_scope, texts))
    return NAMES | written | {*KEYWORDS.split(), *_PRELUDE.split(), *_PRINTED.split()}

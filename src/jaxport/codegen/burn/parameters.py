"""Parameters of structures as they begin."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from jaxport.codegen.burn.values import kind_of, rank_of, tensor_type
from jaxport.codegen.rust.nodes import Array, Literal, Structure, method, path_call
from jaxport.codegen.writing.dialect import constant
from jaxport.codegen.writing.literals import name
from jaxport.codegen.writing.starts import Start

__all__ = ["parameter"]


def parameter(shape: Sequence[int], dtype: np.dtype, is_trained: bool, start: Start = "zeros") -> ast.expr:
    """Return a parameter as it begins, before a file fills it."""
    sizes = Array([constant(int(size), "size") for size in shape or (1,)])
    kind = kind_of(dtype)
    made: ast.expr
    if kind == "Float":
        normal = Structure("Initializer::Normal", ["mean", "std"], [Literal("0.0"), Literal("0.02")])
        initializer = normal if start == "random" else name(f"Initializer::{start.title()}")
        made = method(initializer, "init", sizes, name("device"))
        made = made if is_trained else method(made, "set_require_grad", Literal("false"))
    elif kind == "Int":
        made = path_call(
            "Param::initialized",
            path_call("ParamId::new"),
            path_call(f"Tensor::<{rank_of(shape)}, Int>::zeros", sizes, name("device")),
        )
    else:
        empty = path_call(f"Tensor::<{rank_of(shape)}, Int>::zeros", sizes, name("device"))
        made = path_call("Param::initialized", path_call("ParamId::new"), method(empty, "bool"))
    made.type = tensor_type(tuple(shape), dtype)  # type: ignore[attr-defined]
    return made

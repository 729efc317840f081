"""Bits, spectra and decompositions: what is computed by helper functions."""

from __future__ import annotations

import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.registry import Outs, primitive
from jaxport.codegen.burn.values import NotPrintable, TypedValue, dtype_name, kind_of, tensor
from jaxport.codegen.rust.tree import Literal


@primitive("bitcast_convert_type")
def bitcast_convert_type(body: RustBody, x: TypedValue, *, outs: Outs, new_dtype: DTypeLike) -> TypedValue:
    before, after = np.dtype(x.dtype), np.dtype(new_dtype)
    if before.itemsize != after.itemsize or "Bool" in (x.kind, kind_of(after)):
        raise NotPrintable("reading the bits of numbers as those of another width", "cast them in the model")
    rank, out = x.rank, outs[0]
    node = body.helper(
        "bitcast",
        body.tensor(x),
        Literal(f"DType::{dtype_name(after)}"),
        generics=f"{rank}, {x.kind}, {kind_of(after)}",
    )
    return tensor(node, out.shape, after)

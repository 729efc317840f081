"""Changing element types."""

from __future__ import annotations

from jaxport.importer.dtypes import dtype_of
from jaxport.importer.namespaces import cast
from jaxport.importer.registry import ShapeOnly, op


@op("Cast", since=6, until=18)
def cast_(input, *, to):
    return cast(input, dtype_of(to))


@op("CastLike", since=15, until=18)
def cast_like(input, target_type: ShapeOnly):
    return cast(input, target_type.dtype)


@op("Cast", since=19, until=23)
def cast_saturating(input, *, to, saturate=1):
    return cast(input, dtype_of(to))


@op("Cast", since=24)
def cast_rounding(input, *, to, saturate=1, round_mode="up"):
    return cast(input, dtype_of(to))


@op("CastLike", since=19, until=23)
def cast_like_saturating(input, target_type: ShapeOnly, *, saturate=1):
    return cast(input, target_type.dtype)


@op("CastLike", since=24)
def cast_like_rounding(input, target_type: ShapeOnly, *, saturate=1, round_mode="up"):
    return cast(input, target_type.dtype)

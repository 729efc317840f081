"""Values as Python expressions: dims, dtypes, host values, indices."""

from __future__ import annotations

import ast
import enum
import math
import re
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.rewriting.known import triangle_of
from jaxport.errors import RuleError
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import Dim, HostValue, is_dim
from jaxport.jaxprs.dim_text import Expression, parse

SHORTEST_UNIFORM = 4
"""Equal elements up to which an array is a literal."""
LARGEST_LITERAL = 16
"""Elements up to which a constant is written into the source; a larger one goes to the weights file."""

# What Python's own types mean in JAX is 64 bits wide where 64-bit types are on, and 32 bits wide elsewhere.
_WIDE = {np.dtype(np.int64): "int", np.dtype(np.float64): "float", np.dtype(bool): "bool"}

_LIMITS = {np.iinfo(np.int64).max: "max", np.iinfo(np.int64).min: "min"}


def name(identifier: str) -> ast.expr:
    """Return a variable that is read."""
    return ast.Name(identifier, ast.Load())


def attribute(path: str) -> ast.expr:
    """Return `a.b.c` as an expression."""
    first, *rest = path.split(".")
    expression = name(first)
    for part in rest:
        expression = ast.Attribute(expression, part, ast.Load())
    return expression


def attribute_of(expression: ast.expr, attribute: str) -> ast.expr:
    """Return an attribute of the value of an expression."""
    return ast.Attribute(expression, attribute, ast.Load())


def call(function: str | ast.expr, *args: ast.expr, **keywords: ast.expr) -> ast.Call:
    """Return a call of a function: an expression, or a dotted name."""
    callee = attribute(function) if isinstance(function, str) else function
    return ast.Call(callee, list(args), [ast.keyword(key, value) for key, value in keywords.items()])


def dim_expression(dim: Dim | str) -> ast.expr:
    """Return a symbolic size, or its text, as Python computes it.

    >>> import jax.export
    >>> (batch,) = jax.export.symbolic_shape("batch")
    >>> ast.unparse(dim_expression(3 * batch // 2 + batch**2))
    '3 * batch // 2 + batch ** 2'
    """
    return _expression_of(parse(str(dim)))


_DIM_OPERATORS: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "^": ast.Pow,
    "floordiv": ast.FloorDiv,
    "mod": ast.Mod,
}


def _expression_of(dim: Expression) -> ast.expr:
    parts = [_expression_of(part) for part in dim.parts]
    match dim.form:
        case "number":
            return ast.Constant(dim.value)
        case "name":
            return name(dim.name)
        case "neg":
            return ast.UnaryOp(ast.USub(), parts[0])
        case form if form in _DIM_OPERATORS:
            return ast.BinOp(parts[0], _DIM_OPERATORS[form](), parts[1])
    return call(dim.form, *parts)


def dtype_expression(dtype: DTypeLike) -> ast.expr:
    """Return a dtype, in the spelling that means the same whether 64-bit types are on or off.

    >>> ast.unparse(dtype_expression(np.dtype("int64"))), ast.unparse(dtype_expression(np.dtype("float32")))
    ('int', 'jnp.float32')
    """
    dtype = np.dtype(dtype)
    if dtype in _WIDE:
        return name(_WIDE[dtype])
    return attribute(f"jnp.{dtype.name}")


def number(value: Any) -> ast.expr:
    """Return a Python number, bool or string, with infinities and nan by name.

    >>> ast.unparse(number(float("-inf"))), ast.unparse(number(np.float32(0.1)))
    ('-jnp.inf', '0.1')
    >>> ast.unparse(number(np.int64(2**63 - 1)))
    'jnp.iinfo(jnp.result_type(int)).max'
    """
    if isinstance(value, float | np.floating) or type(value).__module__ == "ml_dtypes":
        value = float(str(value))
        if math.isnan(value):
            return attribute("jnp.nan")
        if math.isinf(value):
            infinity = attribute("jnp.inf")
            return infinity if value > 0 else ast.UnaryOp(ast.USub(), infinity)
    elif type(value) is np.int64 and int(value) in _LIMITS:
        # As wide as 64-bit types are where the source runs.
        return attribute_of(call("jnp.iinfo", call("jnp.result_type", name("int"))), _LIMITS[int(value)])
    elif isinstance(value, np.generic):
        value = value.item()
    if is_dim(value):
        return dim_expression(value)
    return ast.Constant(value)


def _is_uniform(value: HostValue) -> bool:
    values = value.data.ravel()
    return bool((values == values[:1]).all()) and len(set(np.signbit(values))) == 1


def literal(value: HostValue) -> ast.expr:
    """Return an array of the value's type and elements.

    >>> from jaxport.importer.values.host import host
    >>> [ast.unparse(literal(host(value))) for value in ([1, 2], 0.5, [1.5], True)]
    ['jnp.array([1, 2])', 'jnp.float32(0.5)', 'jnp.array([1.5], jnp.float32)', 'jnp.array(True)']
    """
    dtype = value.dtype
    if dtype == STRING and value.size == 0:
        return call("np.empty", _sizes(value), name("object"))
    if dtype == STRING:
        return call("np.array", _nested(value.data), dtype=name("object"))
    implied = dtype.kind == "b" or dtype == np.int64
    if value.ndim == 0 and not implied and not value.symbolic and dtype.kind in "fiu" and dtype.itemsize > 1:
        return call(dtype_expression(dtype), _nested(value.data)) if dtype not in _WIDE else _array(value, [])
    if not value.symbolic and value.size > (SHORTEST_UNIFORM if _is_uniform(value) else LARGEST_LITERAL):
        first = value.data.ravel()[0]
        if (value.data == first).all():
            short = (
                {0: "jnp.zeros", 1: "jnp.ones"}.get(first) if dtype.kind in "iuf" and not np.signbit(first) else None
            )
            kind = dtype_expression(dtype)
            return call(short, _sizes(value), kind) if short else call("jnp.full", _sizes(value), number(first), kind)
        if is_count(value):
            options = {} if dtype == np.int64 else {"dtype": dtype_expression(dtype)}
            return call("jnp.arange", ast.Constant(value.size), **options)
    if (triangle := _triangle(value)) is not None:
        return triangle
    return _array(value, [] if implied and (value.size or dtype.kind == "b") else [dtype_expression(dtype)])


def is_count(value: HostValue) -> bool:
    """Whether a vector is 0, 1, 2 …"""
    if value.ndim != 1 or value.symbolic or value.dtype not in (np.int64, np.int32, np.float32):
        return False
    return bool(np.array_equal(value.data, np.arange(value.size))) and not bool(np.signbit(value.data[:1]).any())


def is_made(value: HostValue) -> bool:
    """Whether a call makes an array: positions, or a triangle of ones."""
    return is_count(value) or triangle_of(value) is not None


def _triangle(value: HostValue) -> ast.expr | None:
    """Return the call that makes a triangle of ones; None for other arrays.

    >>> (
    ...     ast.unparse(literal(HostValue(np.tri(3, dtype=bool)))),
    ...     ast.unparse(literal(HostValue(np.triu(np.ones((3, 4)), 1)))),
    ... )
    ('jnp.tri(3, dtype=bool)', 'jnp.triu(jnp.ones((3, 4), float), 1)')
    """
    found = triangle_of(value)
    if found is None:
        return None
    is_upper, last = found
    kind = dtype_expression(value.dtype)
    if is_upper and value.dtype != bool:
        diagonal = [ast.Constant(last + 1)] if last != -1 else []
        return call("jnp.triu", call("jnp.ones", _sizes(value), kind), *diagonal)
    rows, columns = value.shape
    sizes = [ast.Constant(rows), *([ast.Constant(columns)] if rows != columns or last else [])]
    lower = call("jnp.tri", *sizes, *([number(last)] if last else []), dtype=kind)
    return ast.UnaryOp(ast.Invert(), lower) if is_upper else lower


def _array(value: HostValue, dtype: list[ast.expr]) -> ast.expr:
    if value.size == 0:
        return call("jnp.zeros", _sizes(value), dtype_expression(value.dtype))
    if value.dtype == np.float64:
        dtype = [dtype_expression(value.dtype)]
    return call("jnp.array", _nested(value.data), *dtype)


def _sizes(value: HostValue) -> ast.expr:
    return ast.Tuple([ast.Constant(size) for size in value.shape], ast.Load())


def _nested(data: object) -> ast.expr:
    if isinstance(data, np.ndarray) and data.ndim:
        return ast.List([_nested(row) for row in data], ast.Load())
    return number(data[()] if isinstance(data, np.ndarray) else data)


def plain(value: Any) -> ast.expr:
    """Return the expression of a Python value that is not an array: an option of an operator function.

    Raises:
      RuleError: the value has no expression; the operator function has to build it through a shared namespace.
    """
    if value is None or value is Ellipsis or isinstance(value, bool | str):
        return ast.Constant(value)
    if isinstance(value, enum.Enum):
        return attribute(f"lax.{type(value).__name__}.{value.name}")
    if isinstance(value, int | float | complex | np.generic) or is_dim(value):
        return number(value)
    if isinstance(value, np.dtype):
        return dtype_expression(value)
    if isinstance(value, type):
        return name(value.__name__) if value in (int, float, bool) else dtype_expression(value)
    raise RuleError(
        f"a `{type(value).__name__}` cannot be written as source",
        why="it is neither an array nor a plain Python value",
        instead="build it through the shared namespaces, or write the operator as a `helper`",
    )


_WIDENED = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8", "float4_e2m1fn": "float16"}


def storable(value: np.ndarray) -> tuple[np.ndarray, str]:
    """Return a tensor in a dtype that weights files have, and the expression that restores it, empty if that is its
    own.

    >>> storable(np.zeros(2, np.complex128))[1]
    'lax.complex(*{})'
    """
    dtype = value.dtype.name
    if dtype in _WIDENED:
        return value.astype(_WIDENED[dtype]), f"{{}}.astype(jnp.{dtype})"
    if dtype.startswith("float8"):
        return value.view(np.uint8), f"lax.bitcast_convert_type({{}}, jnp.{dtype})"
    if dtype == "complex128":
        return np.stack([np.real(value), np.imag(value)]), "lax.complex(*{})"
    return value, ""


def restored(value: np.ndarray, stored: ast.expr) -> ast.expr:
    """Return the expression that restores a tensor from the stored one."""
    restore = storable(value)[1]
    return ast.parse(restore.format(ast.unparse(stored)), mode="eval").body if restore else stored


def sentence(text: str) -> str:
    """Return text with names of a file in it, fit for a docstring: one line of ASCII, without quotes and backslashes.

    >>> sentence('`h >= 3` has to hold, for node `/Pad`"')
    '`h >= 3` has to hold, for node `/Pad`?'
    """
    return re.sub(r"[^A-Za-z0-9_ ./:,;`<>=+*\[\]()-]", "?", text)[:300]


def comment(text: str) -> str:
    """Return untrusted text fit for a comment or docstring: one line of printable ASCII, without quotes."""
    return re.sub(r"[^A-Za-z0-9_ ./:\[\]()-]", "?", text)[:100]

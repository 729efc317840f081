"""The helpers in Rust against JAX: one line for each case, all compiled into one binary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.helpers import names as helper_names, source as helper_source
from jaxport.codegen.burn.rules import indexing, shapes, windows  # noqa: F401  they register rules
from jaxport.codegen.burn.rules.registry import PRIMITIVES, WITHOUT_EFFECT
from jaxport.codegen.burn.values import tensor
from jaxport.codegen.rust.text import expression_text
from jaxport.codegen.rust.tree import Identifier, Literal
from tests.burn.crates import Built, Case, RunError, build

pytestmark = pytest.mark.burn

GLUE = """use std::convert::Infallible;
use std::path::PathBuf;

#[allow(unused_imports)]
use burn::prelude::*;
#[allow(unused_imports)]
use burn::tensor::{DType, IndexingUpdateOp, IntDType, ops::PadMode};

use crate::tensors::{Tensors, TensorsError};
#[allow(unused_imports)]
use helpers::*;

pub fn load(_: impl Into<PathBuf>, _: &Device) -> Result<(), Infallible> {
    Ok(())
}

#[allow(unused_variables)]
pub fn run(_: &(), inputs: &Tensors, device: &Device) -> Result<Tensors, TensorsError> {
    let mut outputs = Tensors::default();
INPUTS
    outputs.insert("y", EXPRESSION);
    Ok(outputs)
}
"""

MASK = "a.slice(s![.., .., 0..1, 0..1]).swap_dims(1, 2).expand([2, 1, 5, 6]).greater_elem(0.0)"


class Row(NamedTuple):
    """A case: what is printed, with the inputs `a`, `b`, ..., and what JAX computes of them."""

    expression: str
    reference: Callable[..., Any]
    inputs: tuple[Any, ...]


def f(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def attended(options: Callable[[Any], dict[str, Any]]) -> Callable[..., Any]:
    return lambda a, b, c: jax.nn.dot_product_attention(a, b, c, **options(a))


def i(*numbers: Any, dtype: Any = np.int32) -> np.ndarray:
    return np.array(numbers, dtype)


def some(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


NAN, INF = np.nan, np.inf
LEAST = -(2**31)
SPECIAL = f(1, NAN, NAN, -INF, INF, 0, 7, -7, 7.5, -7.5, 1e-9, -1e-9, 3, INF)
OTHERS = f(NAN, 1, NAN, 2, 2, 0, 3, 3, -2, 2, 3, 3, INF, INF)
WHOLE = i(7, -7, 7, -7, 6, 0, 5, -5, LEAST, LEAST, 2**31 - 1)
DIVISORS = i(2, 2, -2, -2, 3, 0, 0, 0, -1, 2, -1)
BYTES, BYTE_DIVISORS = i(200, 7, 255, 255, dtype=np.uint8), i(7, 0, 255, 1, dtype=np.uint8)
COUNTS = i(0, 1, 31, 32, 33, -1, 64)
BITS = i(1, -8, 3, 5, -5, 6, -1)
X34 = np.arange(12, dtype=np.float32).reshape(3, 4)
UNSTABLE = (np.arange(66) % 3).astype(np.float32).reshape(2, 33)
UNSTABLE[0, 3] = UNSTABLE[1, 30] = NAN
UNSTABLE[0, 5] = -0.0


def arithmetic(name: str, reference: Callable[..., Any], *inputs: Any) -> Row:
    return Row(f"{name}({', '.join('abc'[: len(inputs)])})", reference, inputs)


def take(mode: str, expression: str) -> Row:
    return Row(expression, lambda a, b: jnp.take(a, b, axis=1, mode=mode), (X34, i([0, -1], [3, 4], [-4, -5])))


def numbers(offset: Any, collapsed: Any, indexed: Any, batched: Any = ()) -> tuple[Any, str]:
    own, of_indices = tuple(a for a, _ in batched), tuple(b for _, b in batched)
    known = lax.GatherDimensionNumbers(offset, collapsed, indexed, own, of_indices)
    pairs = ", ".join(f"({a}, {b})" for a, b in batched)
    text = f"Windows {{ offset: &{list(offset)}, collapsed: &{list(collapsed)}, batched: &[{pairs}], indexed: &{list(indexed)} }}"
    return known, text


def lax_pad(x: Any, value: Any, *padding: tuple[int, int, int]) -> Row:
    return Row(
        f"lax_pad(a, [{', '.join(map(str, padding))}], {value})",
        lambda a: lax.pad(a, a.dtype.type(value), padding),
        (x,),
    )


def reduce_window(x: Any, combine: str, start: Any, function: Any, window: Any, strides: Any, dilation: Any) -> Row:
    call = f"reduce_window(a, {list(window)}, {list(strides)}, {list(dilation)}, {combine})"
    reference = lambda a: lax.reduce_window(a, start, function, window, strides, "VALID", window_dilation=dilation)
    return Row(call, reference, (x,))


def top_k(name: str, x: Any, part: int) -> Row:
    return Row(f"{name}(a, 5).{part}", lambda a: lax.top_k(a, 5)[part], (x,))


ROWS: dict[str, Row] = {
    "maximum": arithmetic("maximum", jnp.maximum, SPECIAL, OTHERS),
    "maximum of rows and columns": arithmetic("maximum", jnp.maximum, some(3, 1), f([NAN, 1.0])),
    "minimum": arithmetic("minimum", jnp.minimum, SPECIAL, OTHERS),
    "minimum of halves": arithmetic("minimum", jnp.minimum, SPECIAL.astype(np.float16), OTHERS.astype(np.float16)),
    "sign": arithmetic("sign", jnp.sign, SPECIAL),
    "divide_int": arithmetic("divide_int", lax.div, WHOLE, DIVISORS),
    "divide_int of bytes": arithmetic("divide_int", lax.div, BYTES, BYTE_DIVISORS),
    "remainder_int": arithmetic("remainder_int", jnp.remainder, WHOLE, DIVISORS),
    "remainder_int of bytes": arithmetic("remainder_int", jnp.remainder, BYTES, BYTE_DIVISORS),
    "rem_int": arithmetic("rem_int", lax.rem, WHOLE, DIVISORS),
    "shift_left": arithmetic("shift_left", lax.shift_left, BITS, COUNTS),
    "shift_left of bytes": arithmetic("shift_left", lax.shift_left, i(3, 3, 3, dtype=np.uint8), i(1, 7, 8, dtype=np.uint8)),
    "shift_right": arithmetic("shift_right", lax.shift_right_arithmetic, BITS, COUNTS),
    "shift_right of unsigned": arithmetic("shift_right", lax.shift_right_logical, BITS.astype(np.uint32), COUNTS.astype(np.uint32)),
    "shift_right_logical": arithmetic("shift_right_logical", lax.shift_right_logical, BITS, COUNTS),
    "expm1": arithmetic("expm1", jnp.expm1, f(1e-7, -1e-7, 0.3, -0.49, 0.51, -3, 50, -INF, INF, NAN, 100)),
    "erf_inv": arithmetic("erf_inv", lax.erf_inv, f(0, 0.5, -0.9, 0.999, 1, -1, 1e-6, -0.99999)),
    "bitcast": Row("bitcast::<1, Float, Int>(a, DType::I32)", lambda a: lax.bitcast_convert_type(a, jnp.int32), (f(1, -0.0, INF),)),
    "wrapped": Row("wrapped(a, 300)", lambda a: jnp.where(a < 0, a.astype(jnp.int32) + 300, a), (i(1, -1, 127, dtype=np.int8),)),
    "take_filled": take("fill", "take_filled::<2, 2, 3, _>(a, 1, b, f32::NAN)"),
    "take clipped": take("clip", "a.take::<2, 3>(1, clipped(b, 4))"),
    "take_along_axis": Row(
        "take_along_axis(a, b, 1, f32::NAN)", lambda a, b: jnp.take_along_axis(a, b, axis=1), (X34, i([0, -1, 4], [3, 1, -5], [2, 2, 2]))
    ),
    "take_along_axis of one row": Row(
        "take_along_axis(a, b, 0, f32::NAN)", lambda a, b: jnp.take_along_axis(a, b, axis=0), (X34, i([[0], [2]]).reshape(2, 1))
    ),
    "gather_nd": Row("gather_nd::<2, 2, 1, _>(a, b, 0)", lambda a, b: a[b[:, 0], b[:, 1]], (X34, i([0, -1], [-3, 2], [5, -9]))),
    "gather_nd of rows": Row("gather_nd::<2, 2, 2, _>(a, b, 0)", lambda a, b: a[b[:, 0]], (X34, i([2], [-1], [0], [1]))),
    "gather_nd of batches": Row(
        "gather_nd::<3, 2, 2, _>(a, b, 1)", lambda a, b: a[jnp.arange(2), b[:, 0]], (some(2, 3, 4), i([-1], [1]))
    ),
    **{
        f"scatter_nd {method}": Row(
            f"scatter_nd(a, b, c, IndexingUpdateOp::{operation})",
            lambda a, b, c, method=method: getattr(a.at[b[:, 0], b[:, 1]], method)(c),
            (X34, i([0, -1], [2, 1], [3, 0], [0, -5]), f(9, 8, 7, 6)),
        )
        for method, operation in (("set", "Assign"), ("add", "Add"), ("max", "Max"))
    },
    "scatter_nd of rows": Row(
        "scatter_nd(a, b, c, IndexingUpdateOp::Assign)", lambda a, b, c: a.at[b[:, 0]].set(c), (X34, i([-1], [7]), some(2, 4))
    ),
    "scatter_nd_extremes": Row(
        "scatter_nd_extremes(a, b, c, IndexingUpdateOp::Min)", lambda a, b, c: a.at[b[:, 0], b[:, 1]].min(c),
        (X34.copy(), i([0, -1], [2, 1], [2, 1], [0, -5]), f(9, NAN, 7, 6)),
    ),
    "rotary": Row(
        "rotary(a, b, c)",
        lambda a, b, c: jnp.concatenate([b * a[..., :3] - c * a[..., 3:], c * a[..., :3] + b * a[..., 3:]], -1),
        (some(2, 4, 6), some(1, 4, 3), some(1, 4, 3, seed=1)),
    ),
    "rotary_interleaved": Row(
        "rotary_interleaved(a, b, c)",
        lambda a, b, c: jnp.stack([b * a[..., ::2] - c * a[..., 1::2], c * a[..., ::2] + b * a[..., 1::2]], -1).reshape(a.shape),
        (some(2, 4, 6), some(1, 4, 3), some(1, 4, 3, seed=1)),
    ),
    "softplus": arithmetic("softplus", jax.nn.softplus, SPECIAL * 13),
    "dynamic_slice": Row("dynamic_slice(a, [-2, 3], [2, 3])", lambda a: a[:2, 1:], (X34,)),
    "dynamic_update_slice": Row("dynamic_update_slice(a, b, [9, 1])", lambda a, b: lax.dynamic_update_slice(a, b, (9, 1)), (X34, some(2, 2))),
    "reshaped": Row("reshaped::<2, 3, _>(a, [2, 0, 5])", lambda a: a.reshape(2, 0, 5), (np.zeros((0, 3), np.float32),)),
    "lax_pad": lax_pad(X34, 7.5, (1, 2, 0), (0, 1, 2)),
    "lax_pad negative": lax_pad(X34, 7.5, (-1, 2, 1), (3, -2, 0)),
    "lax_pad of integers": lax_pad(i(2**24 + 1, 2), 2**24 + 3, (1, -1, 1)),
    "lax_pad of nothing": lax_pad(np.zeros((0, 2), np.float32), 1.0, (1, 2, 1), (0, -1, 0)),
    "lax_pad of bools": Row("lax_pad(a, [(1, 0, 1)], true)", lambda a: lax.pad(a, np.True_, [(1, 0, 1)]), (np.array([False, False]),)),
    "argsort": Row("argsort(a, 1, false)", lambda a: jnp.argsort(a, axis=1), (UNSTABLE,)),
    "argsort descending": Row("argsort(a, 1, true)", lambda a: jnp.argsort(a, axis=1, descending=True), (UNSTABLE,)),
    "argsort of columns": Row("argsort(a, 0, false)", lambda a: jnp.argsort(a, axis=0), (UNSTABLE.T.copy(),)),
    "argsort_int": Row("argsort_int(a, 0, true)", lambda a: jnp.argsort(a, descending=True), (np.arange(40, dtype=np.int32) % 3,)),
    "linear_transposed": Row("linear_transposed(a, b)", lambda a, b: a @ b.T, (some(2, 3, 4), some(5, 4, seed=1))),
    "linear_transposed of one row": Row("linear_transposed(a, b)", lambda a, b: a @ b.T, (some(1, 4), some(5, 4, seed=1))),
    "top_k": top_k("top_k", UNSTABLE, 0),
    "top_k indices": top_k("top_k", UNSTABLE, 1),
    "top_k of NaN": Row("top_k(a, 5).1", lambda a: lax.top_k(a, 5)[1], (f(1, NAN, -NAN, INF, -INF),)),
    "top_k_int indices": top_k("top_k_int", np.arange(40, dtype=np.int32) % 3, 1),
    **{
        f"windows of {size}": Row(
            f"windows::<2, 3, _>(a, 1, {size}, 2)",
            lambda a, size=size: jnp.stack([a[:, k : k + size] for k in range(0, 5 - size, 2)], 1) if size < 5 else jnp.zeros((3, 0, size)),
            (X34,),
        )
        for size in (2, 3, 4, 5, 7)
    },
    "cumlogsumexp": Row("cumlogsumexp(a, 0)", lax.cumlogsumexp, (f(1, -INF, 300, 2, 299.5, INF, 3),)),
    "cumlogsumexp of nothing": Row("cumlogsumexp(a, 1)", lambda a: lax.cumlogsumexp(a, 1), (f([-INF, -INF, 2, NAN, 1], [0, 1, 2, 3, 4]),)),
    "rounded_to": Row("rounded_to(a, &FLOAT8_E4M3FN)", lambda a: a.astype(jnp.float8_e4m3fn).astype(jnp.float32), (SPECIAL,)),
    **{
        expression.partition("(")[0] + f" {name}": Row(
            expression,
            attended(options),
            (some(2, 5, 4, 3), some(2, 6, 2, 3, seed=1), some(2, 6, 2, 3, seed=2)),
        )
        for name, expression, options in (
            ("alone", "dot_product_attention(a, b, c, None)", lambda a: {}),
            (
                "masked", f"dot_product_attention(a.clone(), b, c, Some({MASK}))",
                lambda a: {"mask": jnp.broadcast_to(jnp.swapaxes(a[:, :, :1, :1], 1, 2), (2, 1, 5, 6)) > 0},
            ),
            (
                "biased", "biased_attention(a.clone(), b, c, Some(a.slice(s![0..1, .., 0..1, 0..1]).swap_dims(1, 2)), None, 0.3)",
                lambda a: {"bias": jnp.swapaxes(a[:1, :, :1, :1], 1, 2), "scale": 0.3},
            ),
        )
    },
}  # fmt: skip


def of_rule(function: Callable[..., Any], *inputs: np.ndarray) -> Row:
    """A case of a primitive, as its rule prints it."""
    (equation,) = jax.make_jaxpr(function)(*inputs).eqns
    body = RustBody(set(), table=lambda array: Literal(str(array)), printed=lambda *_: [])
    values = [tensor(Identifier(name), each.shape, each.dtype) for name, each in zip("abc", inputs, strict=False)]
    outs = [variable.aval for variable in equation.outvars]
    params = {key: value for key, value in equation.params.items() if key not in WITHOUT_EFFECT}
    made = PRIMITIVES[equation.primitive.name](body, *values, outs=outs, **params)
    return Row(expression_text(body.tensor(made)), function, inputs)


def gathered(x: np.ndarray, indices: np.ndarray, sizes: tuple[int, ...], mode: str, **numbers: tuple[int, ...]) -> Row:
    dimensions = lax.GatherDimensionNumbers(**{"offset_dims": (), "collapsed_slice_dims": (), **numbers})
    return of_rule(lambda a, b: lax.gather(a, b, dimensions, sizes, mode=mode), x, indices)


def scattered(
    update: Callable[..., Any],
    x: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    mode: str,
    **numbers: tuple[int, ...],
) -> Row:
    dimensions = lax.ScatterDimensionNumbers(**{"update_window_dims": (), "inserted_window_dims": (), **numbers})
    return of_rule(lambda a, b, c: update(a, b, c, dimensions, mode=mode), x, indices, updates)


PLACES = i([0, 1], [1, -1], [2, 3], [1, 2])
"""Where windows of two rows and two columns begin in `X34`; the second and the third are not inside."""
WINDOWS = {"offset_dims": (0, 2), "start_index_map": (0, 1)}
BATCHES = {"offset_dims": (2,), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,), "start_indices_batching_dims": (0,),
    "start_index_map": (1,)}  # fmt: skip
PAIRS = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,)}
ROWS |= {
    **{f"windows, {mode}": gathered(X34, PLACES, (2, 2), mode, **WINDOWS) for mode in ("clip", "fill")},
    **{f"batches, {mode}": gathered(some(2, 3, 4), i([[0], [3]], [[2], [-1]]), (1, 1, 4), mode, **BATCHES) for mode in ("clip", "fill")},
    "windows of booleans": gathered(X34 > 0, PLACES, (2, 2), "fill", **WINDOWS),
    "one window": gathered(X34, i(1, 9), (2, 2), "clip", offset_dims=(0, 1), start_index_map=(0, 1)),
    "one element": gathered(X34, i(1, 2), (1, 1), "fill", offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0, 1)),
    **{
        f"rows {dtype}, {mode}": gathered(X34.astype(dtype), i([[0], [5]], [[-1], [2]]), (1, 4), mode, **{**PAIRS, "offset_dims": (0,)})
        for dtype in ("float32", "int32", "bool") for mode in ("clip", "fill")
    },
    **{f"one row, {mode}": gathered(X34, i(2), (1, 4), mode, **{**PAIRS, "offset_dims": (0,)}) for mode in ("clip", "fill")},
    **{f"columns, {mode}": gathered(X34, i([3], [-1]), (3, 1), mode, offset_dims=(0,), collapsed_slice_dims=(1,), start_index_map=(1,))
       for mode in ("clip", "fill")},
    **{
        f"along an axis, {mode}": gathered(X34, i([[0], [9]], [[2], [-1]], [[1], [1]]), (1, 1), mode, collapsed_slice_dims=(1,),
            operand_batching_dims=(0,), start_indices_batching_dims=(0,), start_index_map=(1,))
        for mode in ("clip", "fill")
    },
    **{
        f"{update.__name__}, {mode}": scattered(update, X34, PLACES, some(2, 4, 2), mode, update_window_dims=(0, 2),
            scatter_dims_to_operand_dims=(0, 1))
        for update in (lax.scatter_add, lax.scatter_sub, lax.scatter_min) for mode in ("clip", "fill")
    },
    "scatter batches": scattered(lax.scatter, some(2, 3, 4), i([[0], [3]], [[2], [1]]), some(2, 2, 4), "fill", update_window_dims=(2,),
        inserted_window_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), scatter_dims_to_operand_dims=(1,)),
    "scatter booleans": scattered(lax.scatter, X34 > 0, i([0], [2]), some(2, 4) > 0, "clip", update_window_dims=(1,),
        inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)),
    "scatter_max of NaN": scattered(lax.scatter_max, f(1, NAN, -INF, 3, 0), i([0], [1], [2], [3], [3]), f(2, 5, NAN, 4, 1), "fill",
        inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)),
}  # fmt: skip


SLIDING: dict[str, dict[str, Any]] = {
    "of one axis": {"window_dimensions": (1, 3, 1), "window_strides": (1, 2, 1), "padding": ((0, 0), (1, 1), (0, 0))},
    "dilated": {"window_dimensions": (2, 2, 2), "window_strides": (1, 1, 3), "padding": ((0, 1), (0, 0), (2, 0)), "window_dilation": (1, 2, 2)},
    "spread": {"window_dimensions": (1, 2, 2), "window_strides": (2, 1, 1), "padding": ((0, 0), (-1, 0), (1, 1)), "base_dilation": (1, 2, 3)},
    "larger than the array": {"window_dimensions": (1, 9, 2), "window_strides": (1, 1, 1), "padding": "VALID"},
}  # fmt: skip
ROWS |= {
    f"{name} {label}": of_rule(lambda a, first=first, reduce=reduce, options=options: lax.reduce_window(a, first, reduce, **options),
        some(2, 5, 4))
    for name, first, reduce in (("sums", 0.0, lax.add), ("maxima", -INF, lax.max), ("minima", INF, lax.min))
    for label, options in SLIDING.items()
}  # fmt: skip

ROWS |= {
    "pad_computed": of_rule(lambda a, b: lax.pad(a, b, ((1, -1, 1), (-2, 3, 0))), X34, np.array(7.5, np.float32)),
    "pad with a computed truth value": of_rule(
        lambda a, b: lax.pad(a, b, ((1, 2, 1),)), np.array([True, False]), np.array(True)
    ),
}


def case(row: Row) -> Case:
    lines = []
    for name, array in zip("abc", row.inputs, strict=False):
        kind = {"f": "float", "b": "bool"}.get(array.dtype.kind, "int")
        lines.append(f'    let {name} = inputs.{kind}::<{max(1, array.ndim)}>("{name}", device)?;')
    helpers = set(re.findall(r"(?<![.\w])[a-z]\w*", row.expression)) & set(helper_names())
    helpers |= set(re.findall(r"(?<=&)FLOAT\w+|(?<=&)Windows", row.expression))
    glue = GLUE.replace("INPUTS", "\n".join(lines)).replace("EXPRESSION", row.expression)
    return Case("", glue if helpers else glue.replace("use helpers::*;", ""), helper_source(helpers))


@pytest.fixture(scope="module")
def built() -> Built:
    return build({name: case(row) for name, row in ROWS.items()}, "helpers")


@pytest.mark.parametrize("name", ROWS)
def test_helper(built: Built, name: str) -> None:
    row = ROWS[name]
    assert not built.errors.get(name), "\n".join(built.errors[name])
    assert not built.warnings.get(name), "\n".join(built.warnings[name])
    outputs = built.run(name, dict(zip("abc", row.inputs, strict=False)))
    assert not isinstance(outputs, RunError), outputs.message
    expected = np.asarray(row.reference(*map(jnp.asarray, row.inputs)))
    assert outputs["y"].dtype == expected.dtype
    np.testing.assert_allclose(outputs["y"], expected, rtol=2e-6, atol=3e-7 * _scale(expected))
    assert outputs["y"].shape == expected.shape


def _scale(expected: np.ndarray) -> float:
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64)) if expected.dtype.kind == "f" else np.ones(1)
    return finite.max(initial=1e-30)

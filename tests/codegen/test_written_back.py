"""Functions of JAX that an export spells out by operators are one call again in printed source, equal to the function."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import nn

import jaxport
from tests.codegen.structured import load

pytestmark = pytest.mark.sampled(2)

TABLE = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32).round(1)
TABLE[1, 3] = TABLE[1, 4] = TABLE[2, 0]
OTHER = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32).round(1)
OTHER[OTHER == 0] = 1
ROWS = np.array([4, 0, -1, 3, -5], np.int32)
PLACES = np.random.default_rng(2).integers(-10, 10, (5, 3)).astype(np.int32)
DIVISORS = np.random.default_rng(3).choice([-3, -1, 1, 2, 4], (5, 3)).astype(np.int32)
N8, INTEGERS = ("n", 8), jax.ShapeDtypeStruct(("n",), np.int32)
OF_PLACES = jax.ShapeDtypeStruct(("n", 3), np.int32)
WITH_NAN = np.where(TABLE > 1, np.nan, TABLE)

CASES: dict[str, tuple[Callable[..., Any], list[Any], list[np.ndarray], str]] = {
    "sort": (lambda x: jnp.sort(x, axis=-1), [N8], [WITH_NAN], "jnp.sort(x, axis=1)"),
    "sort of an open axis": (lambda x: jnp.sort(x, axis=0), [N8], [WITH_NAN], "jnp.sort(x, axis=0)"),
    "sort of integers": (jnp.sort, [INTEGERS], [ROWS], "jnp.sort(a, axis=0)"),
    "descending": (lambda x: jnp.sort(x, axis=-1, descending=True), [N8], [TABLE], "jnp.sort(x, axis=1)[:, ::-1]"),
    "argsort": (lambda x: jnp.argsort(x, axis=-1), [N8], [TABLE], "jnp.argsort(x, axis=1)"),
    "argsort of integers": (jnp.argsort, [INTEGERS], [ROWS], "jnp.argsort(a, axis=0)"),
    "top_k": (lambda x: jax.lax.top_k(x, 3), [N8], [TABLE], "lax.top_k(x, 3, axis=1)"),
    "sort of values by keys": (
        lambda x, y: jax.lax.sort((x, y), num_keys=1, dimension=1)[1], [N8, N8], [TABLE, OTHER],
        "jnp.take_along_axis(y, jnp.argsort(x, axis=1), axis=1)",
    ),
    "median": (lambda x: jnp.median(x, axis=-1), [N8], [WITH_NAN], "jnp.median(x, axis=1)"),
    "median of an odd number": (lambda x: jnp.median(x[:, 1:], axis=1), [N8], [TABLE], "jnp.median(x[:, 1:], axis=1)"),
    "floor_divide": (lambda x: x // 2.0, [N8], [TABLE], "x // 2.0"),
    "floor_divide of arrays": (lambda x, y: x // y, [N8, N8], [TABLE, OTHER], "x // y"),
    "mod": (lambda x: x % 0.75, [N8], [TABLE], "x % 0.75"),
    "mod of arrays": (lambda x, y: x % y, [N8, N8], [TABLE, OTHER], "x % y"),
    "mod of integers": (lambda a, b: a % b, [OF_PLACES, OF_PLACES], [PLACES, DIVISORS], "a % b"),
    "floor_divide of integers": (lambda a, b: a // b, [OF_PLACES, OF_PLACES], [PLACES, DIVISORS], "jnp.floor_divide(a, b)"),
    "divmod": (lambda x: jnp.add(*jnp.divmod(x, 3.0)), [N8], [TABLE], "x // 3.0 + x % 3.0"),
    "one_hot": (lambda i: nn.one_hot(i, 5), [INTEGERS], [ROWS], "nn.one_hot(i, 5, dtype=jnp.float32)"),
    "one_hot before": (lambda i: nn.one_hot(i, 5, axis=0), [OF_PLACES], [PLACES], "nn.one_hot(i, 5, axis=0, dtype=jnp.float32)"),
    "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i, 1), [N8, OF_PLACES], [TABLE, PLACES], "jnp.take_along_axis(x, i, axis=1)"),
    "an index": (lambda x, i: jnp.tanh(x)[:, i], [N8, jax.ShapeDtypeStruct(("m",), np.int32)], [TABLE, PLACES.ravel()], "jnp.tanh(x)[:, i]"),
    "an index of each row": (lambda x, i: jnp.tanh(x)[jnp.arange(x.shape[0]), i], [N8, INTEGERS], [TABLE, PLACES[:, 0]], "jnp.tanh(x)[jnp.arange(n), i]"),
    "roll of an open axis": (lambda x: jnp.roll(x, 2, 0), [N8], [TABLE], "jnp.roll(x, 2, axis=0)"),
    "roll back": (lambda x: jnp.roll(x, -1, 0), [N8], [TABLE], "jnp.roll(x, -1, axis=0)"),
    "flip": (lambda x: jnp.flip(x, 0), [N8], [TABLE], "x[::-1]"),
    "repeat": (lambda x: jnp.repeat(x, 3, axis=1), [N8], [TABLE], "jnp.repeat(x, 3, axis=1)"),
    "tril": (jnp.tril, [N8], [TABLE], "jnp.tril(m)"),
    "tril of known sizes": (lambda x: jnp.where(np.tri(5, 8, 1, bool), x, 0), [(5, 8)], [TABLE], "jnp.tril(x, 1)"),
    "triu of known sizes": (lambda x: jnp.where(np.tri(5, 8, 1, bool), 0, x), [(5, 8)], [TABLE], "jnp.triu(x, 2)"),
    "norm that keeps its axis": (
        lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True), [N8], [TABLE], "x / jnp.linalg.norm(x, axis=1, keepdims=True)",
    ),
    "tril below": (lambda x: jnp.tril(x, -2), [N8], [TABLE], "jnp.tril(x, -2)"),
    "triu": (jnp.triu, [N8], [TABLE], "jnp.triu(m)"),
    "triu above": (lambda x: jnp.triu(x, 2), [N8], [TABLE], "jnp.triu(x, 2)"),
    "isfinite": (jnp.isfinite, [N8], [WITH_NAN], "jnp.isfinite(x)"),
    "rows that are written": (
        lambda x, i, y: jnp.tanh(x).at[i].set(y), [(5, 8), INTEGERS, N8], [TABLE, np.array([4, 0, -3, 9, -6], np.int32), OTHER],
        "jnp.tanh(x).at[i].set(y)",
    ),
    "rows that are added": (
        lambda x, i, y: jnp.tanh(x).at[i].add(y), [(5, 8), INTEGERS, N8], [TABLE, np.array([4, 4, -3, 9, -6], np.int32), OTHER],
        "jnp.tanh(x).at[i].add(y)",
    ),
    "rows of an array of NumPy": (
        lambda x, i, y: jnp.asarray(x).at[i].add(y), [(5, 8), INTEGERS, N8], [TABLE, np.array([4, 4, -3, 9, -6], np.int32), OTHER],
        "jnp.asarray(x).at[i].add(y)",
    ),
    "counts": (
        lambda i: jnp.zeros(4, int).at[i].add(1), [INTEGERS], [np.array([3, 3, -1, 9, -6], np.int32)], ".at[i].add(1)",
    ),
    "any": (lambda x: (x > 1).any(1), [N8], [TABLE], "jnp.any(x > 1.0, axis=1)"),
    "all": (lambda x: (x > -1).all(1), [N8], [TABLE], "jnp.all(x > -1.0, axis=1)"),
    "argmax": (lambda x: x.argmax(1), [N8], [TABLE], "jnp.argmax(x, axis=1)"),
    "nan_to_num": (jnp.nan_to_num, [N8], [WITH_NAN], "jnp.nan_to_num(x)"),
    "trunc": (jnp.trunc, [N8], [TABLE], "jnp.trunc(x)"),
    "expm1": (jnp.expm1, [N8], [TABLE], "jnp.expm1(x)"),
    "log1p": (jnp.log1p, [N8], [TABLE], "jnp.log1p(x)"),
    "logaddexp": (jnp.logaddexp, [N8, ("n", 1)], [TABLE, OTHER[:, :1]], "jnp.logaddexp("),
    "hypot": (jnp.hypot, [N8, N8], [TABLE, OTHER], "jnp.hypot("),
    # newer releases of JAX compute it by a polynomial of their own
    **({"sinc": (jnp.sinc, [N8], [TABLE], "jnp.sinc(x)")} if re.search(r"\bsin\b", str(jax.make_jaxpr(jnp.sinc)(1.0))) else {}),
    "arctan2": (jnp.arctan2, [N8, N8], [TABLE, OTHER], "jnp.arctan2("),
    "cbrt": (jnp.cbrt, [N8], [TABLE], "jnp.cbrt(x)"),
    "roll of two axes": (lambda x: jnp.roll(x, (-1, 2), (0, 1)), [N8], [TABLE], "jnp.roll(x, (-1, 2), axis=(0, 1))"),
    "roll of three axes": (
        lambda x: jnp.roll(x, (1, -1, 1), (0, 1, 2)), [("n", 3, 5)], [np.arange(60, dtype=np.float32).reshape(4, 3, 5)],
        "jnp.roll(x, (1, -1, 1), axis=(0, 1, 2))",
    ),
    "logsumexp": (lambda x: nn.logsumexp(x, axis=1), [N8], [TABLE], "nn.logsumexp(x, axis=1)"),
    "norm": (lambda x: jnp.linalg.norm(x, axis=1), [N8], [TABLE], "jnp.linalg.norm(x, axis=1)"),
    "var": (lambda x: jnp.var(x, axis=1), [N8], [TABLE], "jnp.var(x, axis=1)"),
    "std": (lambda x: jnp.std(x, axis=1), [N8], [TABLE], "jnp.std(x, axis=1)"),
    "dynamic_slice": (
        lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 3, 1), [N8, jax.ShapeDtypeStruct((), np.int32)], [TABLE, np.int32(-2)],
        "lax.dynamic_slice_in_dim(x, i, 3, axis=1)",
    ),
    **{
        name: (getattr(nn, name), [N8], [TABLE], f"nn.{name}(x")
        for name in ("relu6", "hard_tanh", "elu", "celu", "selu", "leaky_relu", "log_sigmoid", "glu")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_function_comes_back(name: str, tmp_path: Path) -> None:
    function, specs, arrays, text = CASES[name]
    program = jaxport.from_onnx(jaxport.to_onnx(function, specs).model)
    code = program.to_source(tmp_path, framework="nnx").code
    body = code.partition("def __call__")[2].partition("\n\n\n")[0]
    assert text in " ".join(body.split()), body
    assert len(body.splitlines()) <= 3, body  # one statement, and perhaps one of sizes
    found, expected = (jax.tree.leaves(one(*arrays)) for one in (load(tmp_path).load(), function))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=2e-6, atol=1e-6)


LEFT: dict[str, tuple[Callable[..., Any], list[Any], list[np.ndarray], str]] = {
    "half of a sort": (lambda x: jnp.sort(x, axis=-1)[:, :3], [N8], [TABLE], "jnp.sort(x, axis=1)[:, :3]"),
    "a number for zero": (lambda x: jnp.where(jnp.tri(5, 8, dtype=bool), x, 1.0), [(5, 8)], [TABLE], "jnp.where("),
    "an index beyond": (lambda x, i: x[:, jnp.clip(i, 0, 3)], [N8, OF_PLACES], [TABLE, PLACES], "jnp.clip(i, 0, 3)"),
    "other classes": (
        lambda i: (i[:, None] == jnp.array([0, 1, 3])).astype(jnp.float32), [INTEGERS], [ROWS], "jnp.array([0, 1, 3]",
    ),
    "other rows that are left out": (
        lambda x, i, y: jnp.tanh(x).at[jnp.clip(i, -3, 2)].add(y), [(5, 8), INTEGERS, N8],
        [TABLE, np.array([4, 4, -3, 9, -6], np.int32), OTHER], "at[jnp.clip(i, -3, 2)].add(y)",
    ),
    "a mean of others": (lambda x: jnp.mean((x - x.mean(0)) ** 2, axis=1), [N8], [TABLE], "jnp.mean("),
    "halves in the other order": (lambda x: nn.sigmoid(x[:, :4]) * x[:, 4:], [N8], [TABLE], "nn.sigmoid("),
    "elements that are not those that are ordered": (
        lambda x: jnp.take_along_axis(x, jax.lax.top_k(jnp.where(jnp.isnan(x), jnp.inf, x), 3)[1], axis=1),
        [N8], [np.where(TABLE > 2.0, np.float32(np.nan), TABLE)], "jnp.take_along_axis(",
    ),
    "elements beside the middle": (lambda x: (jnp.sort(x, 1)[:, 2] + jnp.sort(x, 1)[:, 3]) * 0.5, [N8], [TABLE], "jnp.sort("),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_something_else_stays(name: str, tmp_path: Path) -> None:
    function, specs, arrays, text = LEFT[name]
    program = jaxport.from_onnx(jaxport.to_onnx(function, specs).model)
    code = " ".join(program.to_source(tmp_path, framework="nnx").code.partition("def __call__")[2].split())
    assert text in code
    np.testing.assert_allclose(
        load(tmp_path).load()(*arrays), function(*map(jnp.asarray, arrays)), rtol=2e-6, atol=1e-6
    )

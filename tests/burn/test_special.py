"""Programs of JAX on values where libraries differ: what prints computes in Rust what it computes in JAX.

Each program has many results, so that few modules are compiled; a difference is told by the name of its result, and those that
stay are in `EXPLAINED`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax, nn

import jaxport
from tests.burn.crates import (
    Built,
    Case,
    RunError,
    build,
    case_of,
    crate_and_results,
    read_tensors,
    selected,
    write_tensors,
)

pytestmark = pytest.mark.burn

Results = Mapping[str, Callable[..., Any]]
NAN, INF = np.nan, np.inf
FLOATS = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 7.0, -7.0, 1e10, -3e38, 3e38, 1e-9, -1e-9, 100.0, 2.5]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
TOLERANCES = {"float64": 1e-12, "float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}


class Program(NamedTuple):
    """Results by name, of inputs.

    Attributes:
      results: what is computed of the inputs.
      inputs: arrays.
      is_wide: whether JAX has types of 64 bits.
    """

    results: Results
    inputs: Sequence[np.ndarray]
    is_wide: bool = False


def floats(dtype: Any) -> np.ndarray:
    """Numbers that are special in a type; those that it has not are left out."""
    with np.errstate(over="ignore"):
        made = np.array(FLOATS).astype(dtype)
    return made[np.isnan(FLOATS) | (np.isinf(made.astype(float)) == np.isinf(FLOATS))]


def integers(dtype: np.dtype) -> np.ndarray:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    near = [n for n in (-7, -3, -2, -1, 0, 1, 2, 3, 7, 31, 33, 100) if least <= n <= most]
    return np.array([least, least + 1, *near, most - 1, most], dtype)


def pairs(values: np.ndarray) -> list[np.ndarray]:
    """Each value with each other."""
    return [*map(np.ravel, np.meshgrid(values, values, indexing="ij"))]


UNARY: Results = {
    name: getattr(module, name)
    for module, names in (
        (jnp, "abs sign exp expm1 log log1p sqrt sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arctanh square floor ceil"),
        (jnp, "trunc round isnan isinf isfinite signbit reciprocal cbrt exp2 log2 log10 negative nan_to_num"),
        (lax, "rsqrt erf logistic"),
        (nn, "relu sigmoid silu gelu softplus elu selu celu leaky_relu hard_swish log_sigmoid mish relu6 soft_sign hard_tanh"),
    )
    for name in names.split()
} | {"arccosh": lambda x: jnp.arccosh(jnp.abs(x)), "clip": lambda x: jnp.clip(x, -1, 2), "cube": lambda x: x**3}  # fmt: skip
COMPARED: Results = {
    name: getattr(jnp, name) for name in "equal not_equal less less_equal greater greater_equal maximum minimum".split()
}
BINARY: Results = COMPARED | {
    name: getattr(jnp, name)
    for name in "add subtract multiply divide power mod fmod remainder floor_divide arctan2 copysign logaddexp hypot".split()
} | {"where": lambda x, y: jnp.where(x < y, x, y), "rem": lax.rem, "mod 1.5": lambda x, y: (x % 1.5, y)[0]}  # fmt: skip
OF_INTEGERS: Results = COMPARED | {
    **{name: getattr(jnp, name) for name in "add subtract multiply floor_divide mod bitwise_and bitwise_or bitwise_xor left_shift right_shift".split()},
    **{name: getattr(lax, name) for name in "div rem shift_right_logical shift_right_arithmetic".split()},
    "not": lambda x, y: jnp.invert(x), "abs": lambda x, y: jnp.abs(x), "negative": lambda x, y: -x, "sign": lambda x, y: jnp.sign(x),
    "square": lambda x, y: x * x, "as float": lambda x, y: x.astype(jnp.float32), "bits": lambda x, y: lax.population_count(x),
    "halved": lambda x, y: x // 2, "divided": lambda x, y: lax.div(x, lax.full_like(x, 3)), "mod 3": lambda x, y: x % 3,
}  # fmt: skip
REDUCED: Results = {
    **{name: partial(getattr(jnp, name), axis=1) for name in "sum prod max min argmax argmin any all mean".split()},
    **{name: partial(getattr(lax, name), axis=1) for name in "cumsum cumprod cummax cummin".split()},
    "sort": partial(jnp.sort, axis=1), "argsort": partial(jnp.argsort, axis=1), "top": lambda x: lax.top_k(x, 3)[0],
    "top places": lambda x: lax.top_k(x, 3)[1], "flat": jnp.sum, "largest": jnp.max,
}  # fmt: skip
FLOAT_REDUCED: Results = REDUCED | {
    "softmax": nn.softmax,
    "log_softmax": nn.log_softmax,
    "logsumexp": partial(nn.logsumexp, axis=1),
}
PLACES = np.array([0, -1, 4, 5, -5, -6, 2, 100, -100], np.int32)
TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) + 1
INDEXED: Results = {
    **{f"take {mode}": partial(lambda x, i, mode: jnp.take(x, i, axis=0, mode=mode), mode=mode) for mode in ("fill", "clip", "wrap")},
    "columns": lambda x, i: jnp.take(x, i, axis=1), "whole numbers": lambda x, i: jnp.take(x.astype(jnp.int32), i, axis=0),
    "true": lambda x, i: jnp.take(x > 3, i, axis=0), "along": lambda x, i: jnp.take_along_axis(x, i[:5, None], axis=1),
    "one": lambda x, i: jnp.take(x, i[3], axis=0), "add": lambda x, i: x.at[i].add(1, mode="drop"), "cell": lambda x, i: x.at[i, i].add(1, mode="drop"),
    "window": lambda x, i: lax.dynamic_slice(x, (i[3], i[1]), (2, 2)),
    "placed": lambda x, i: lax.dynamic_update_slice(x, x[:2, :2], (i[7], i[8])),
    "hot": lambda x, i: nn.one_hot(i, 5),
}  # fmt: skip
CONTROL: Results = {
    "loop in a branch": lambda x: lax.cond(x.sum() > 0, lambda: lax.scan(lambda c, r: (2 * x, r), x, x)[0], lambda: x),
    "branch in a loop": lambda x: lax.scan(lambda c, r: (lax.cond(r > 0, lambda: c + r, lambda: -c), c), x, x)[0],
    "diagonal": lambda x: jax.grad(lambda a: jnp.diag(jnp.sin(a)).sum())(x[:9].reshape(3, 3)),
    "top_k": lambda x: lax.top_k(x, 3)[1] + lax.top_k(-x, 3)[1] + jnp.argsort(x)[:3],
}
NONE = np.zeros((0, 3), np.float32)
EMPTY: Results = {
    **{name: partial(getattr(jnp, name), axis=0) for name in "sum prod any all cumsum sort argsort".split()},
    "max": lambda x: jnp.max(x, axis=1), "product": lambda x: x @ jnp.ones((3, 2)), "of none": lambda x: x.T @ x,
    "joined": lambda x: jnp.concatenate([x, jnp.ones((2, 3))]), "reshaped": lambda x: x.reshape(3, 0), "softmax": nn.softmax,
    "mean": lambda x: jnp.mean(x, axis=1), "padded": lambda x: jnp.pad(x, ((1, 1), (0, 0))), "doubled": lambda x: 2 * x + 1,
    "relu": nn.relu, "rows": lambda x: jnp.take(jnp.arange(6.0).reshape(2, 3), x[:, 0].astype(jnp.int32), axis=0),
}  # fmt: skip


def cast(source: np.dtype, wide: bool) -> Results:
    names = (
        "bool int8 uint8 int16 uint16 int32 uint32 float16 bfloat16 float32".split()
        + wide * "int64 uint64 float64".split()
    )
    return {f"as {name}": lambda x, name=name: x.astype(name) for name in names if np.dtype(name) != source}


def products(dtype: np.dtype) -> Program:
    values = np.resize(integers(dtype), (4, 5))
    both = {
        "product": lambda x, y: x @ y,
        "sums": lambda x, y: jnp.sum(x, 0, dtype=dtype),
        "dot": lambda x, y: jnp.einsum("ij,ij->i", x, x),
    }
    return Program(both, [values, values.T.copy()], dtype.itemsize == 8)


def mlp(dtype: Any) -> Results:
    random = np.random.default_rng(0)
    first, second, kernel = (random.normal(size=shape).astype(dtype) for shape in ((8, 16), (16, 4), (4, 3, 3, 3)))
    scale = np.linspace(0.5, 1.5, 16).astype(dtype)

    def hidden(x: Any) -> Any:
        h = nn.gelu(x @ first)
        h = h - h.mean(-1, keepdims=True)
        return h * lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-3) * scale

    images = lambda x: lax.conv_general_dilated(x.reshape(-1, 3, 4, 4)[:, :3], kernel, (1, 1), "SAME")
    return {
        "logits": lambda x: hidden(x) @ second,
        "softmax": lambda x: nn.softmax(hidden(x) @ second),
        "conv": lambda x: images(jnp.tile(x, 6)[:, :48]),
    }


PROGRAMS: dict[str, Program] = {
    **{f"unary {np.dtype(dtype).name}": Program(UNARY, [floats(dtype)], dtype == "float64") for dtype in ("float32", "float16", BFLOAT16, "float64")},
    **{f"binary {np.dtype(dtype).name}": Program(BINARY, pairs(floats(dtype)), dtype == "float64") for dtype in ("float32", "float16", "float64")},
    **{f"integers {dtype.name}": Program(OF_INTEGERS, pairs(integers(dtype)), dtype.itemsize == 8) for dtype in INTEGERS},
    **{f"reduced {dtype.name}": Program(REDUCED, [np.resize(integers(dtype), (5, 7))], dtype.itemsize == 8) for dtype in INTEGERS},
    **{f"cast {dtype.name}": Program(cast(dtype, dtype.itemsize == 8), [integers(dtype)], dtype.itemsize == 8) for dtype in INTEGERS},
    **{f"cast {name}": Program(cast(np.dtype(name), name == "float64"), [floats(name)], name == "float64") for name in ("float32", "float64")},
    **{f"product {dtype.name}": products(dtype) for dtype in INTEGERS},
    **{f"model {np.dtype(dtype).name}": Program(mlp(dtype), [np.random.default_rng(1).normal(size=(3, 8)).astype(dtype)], dtype == "float64") for dtype in ("float32", "float16", BFLOAT16, "float64")},
    "reduced float32": Program(FLOAT_REDUCED, [np.resize(floats("float32"), (7, 11))]),
    "reduced zeros": Program(REDUCED, [np.array([[0.0, -0.0, -0.0, 0.0, 1.0], [-0.0, 0.0, -0.0, -1.0, -0.0]], np.float32)]),
    "control": Program(CONTROL, [np.linspace(1, -0.5, 10, dtype=np.float32)]),
    "indexed": Program(INDEXED, [TABLE, PLACES]),
    "empty": Program(EMPTY, [NONE]),
}  # fmt: skip
CAST = "model float32"
"""The program whose weights are loaded in other types, too."""
EXPLAINED: dict[str, str] = dict.fromkeys(
    ("unary float32: softplus", "unary float32: mish", "binary float32: logaddexp"),
    "XLA's `log1p` of what is near 0.001 has five digits, Rust's has all",
) | {
    "unary float32: gelu": "far below zero, `1 + erf` is zero in Burn's function, and what XLA computes by `erfc` is 1e-15",
    # The file compares doubles, which the import narrows and announces.
    "reduced float32: sort": "without 64-bit types, an import leaves NaN and infinity in the order in which they come; the crate sorts",
    "reduced float32: argsort": "the same",
}
"""Results that differ by name, `program: result`, and why they do."""


class Printed(NamedTuple):
    """A program as a crate, with what JAX computes of its inputs: outputs and their names by the results."""

    case: Case
    expected: Mapping[str, tuple[str, np.ndarray]]
    inputs: Mapping[str, np.ndarray]


@cache
def printed(name: str) -> Printed:
    results, inputs, is_wide = PROGRAMS[name]
    with jax.enable_x64(is_wide):
        kept = {key: function for key, function in results.items() if accepts(function, inputs)}
        exported = jaxport.to_onnx(lambda *args: tuple(function(*args) for function in kept.values()), [*inputs])
    given = dict(zip(exported.input_names, inputs, strict=True))
    crate, computed = crate_and_results(exported.model, given, is_wide)
    case = case_of(crate, f"special_{name.replace(' ', '_')}")
    return Printed(case, dict(zip(kept, computed.items(), strict=True)), given)


def accepts(function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> bool:
    """Whether JAX has an operation for the types of inputs."""
    try:
        jax.eval_shape(function, *inputs)
    except TypeError:
        return False
    return True


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """The programs of the tests that were selected, in one binary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {name: printed(name).case for name in dict.fromkeys([*selected(request, "name"), CAST])}
    return build(cases, "special")


def differs(found: np.ndarray, expected: np.ndarray, scale: float = 1e-2) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return True
    tolerance = TOLERANCES.get(expected.dtype.name)
    if tolerance is None:
        return not np.array_equal(found, expected)
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return not np.allclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def shown(found: np.ndarray, expected: np.ndarray) -> str:
    """Return the first elements that differ."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{found.shape} for {expected.dtype}{expected.shape}"
    pairs = zip(found.ravel(), expected.ravel(), strict=True)
    apart = [(at, *pair) for at, pair in enumerate(pairs) if differs(*map(np.asarray, pair))]
    return ", ".join(f"[{at}] {one} for {other}" for at, one, other in apart[:6])


@pytest.mark.parametrize("name", PROGRAMS)
def test_special_values(name: str, compiled: Built) -> None:
    made = printed(name)
    assert name not in compiled.errors, compiled.errors[name][0]
    assert name not in compiled.warnings, compiled.warnings[name][0]
    outputs = compiled.run(name, made.inputs)
    assert not isinstance(outputs, RunError), outputs
    scale = 3.0 if name.startswith("model") else 1e-2  # sums of many terms
    wrong = {
        key: shown(outputs[output], expected)
        for key, (output, expected) in made.expected.items()
        if differs(outputs[output], expected, scale)
    }
    explained = {key.partition(": ")[2] for key in EXPLAINED if key.startswith(f"{name}: ")}
    assert wrong.keys() <= explained, wrong


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_weights_of_another_type_are_cast(dtype: str, compiled: Built) -> None:
    made, weights = printed(CAST), compiled.cases[CAST].weights
    assert weights is not None
    other = weights.with_name(f"special_{dtype}.safetensors")
    write_tensors(other, {key: value.astype(dtype) for key, value in read_tensors(weights).items()})
    cases = {**compiled.cases, CAST: replace(compiled.cases[CAST], weights=other)}
    outputs = replace(compiled, cases=cases).run(CAST, made.inputs)
    assert not isinstance(outputs, RunError), outputs
    for name, expected in made.expected.values():
        assert outputs[name].dtype == np.float32
        np.testing.assert_allclose(outputs[name], expected, atol=2e-2)

"""One generic checker: export, run on both sides, compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxport.export import dims
from jaxport.export.api import to_onnx
from jaxport.export.exported import Exported
from jaxport.export.ports import is_key

#: Sizes that every symbolic case runs at: small, different from each other, and including one.
SIZES: tuple[Mapping[str, int], ...] = ({"B": 2, "T": 5, "H": 6, "W": 7}, {"B": 1, "T": 3, "H": 9, "W": 8})


def spec(*shape: Any, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    """A specification: dims are integers, names, or expressions."""
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


def f32(*shape: Any) -> jax.ShapeDtypeStruct:
    """A float32 specification."""
    return spec(*shape)


def f64(*shape: Any) -> jax.ShapeDtypeStruct:
    """A float64 specification."""
    return spec(*shape, dtype=np.float64)


def i32(*shape: Any) -> jax.ShapeDtypeStruct:
    """An int32 specification."""
    return spec(*shape, dtype=np.int32)


def sample(generator: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Values of a dtype that show mistakes: both signs, no special values."""
    dtype = np.dtype(dtype)
    match dtype.kind:
        case "b":
            return generator.random(shape) > 0.5
        case "u":
            return generator.integers(0, 10, shape).astype(dtype)
        case "i":
            return generator.integers(-9, 10, shape).astype(dtype)
        case _:
            return (generator.normal(size=shape) * 2).astype(dtype)


def check(
    fn: Callable[..., Any],
    *specs: Any,
    values: Sequence[Any] | None = None,
    sizes: Sequence[Mapping[str, int]] = SIZES,
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> Exported:
    """Export `fn`, run it in ONNX Runtime and in JAX on the same inputs, and compare all outputs.

    Args:
      fn: the function.
      specs: one specification per positional argument.
      values: the arguments to run on; by default sampled, at each of `sizes` where a dim is symbolic.
      sizes: the sizes of the symbols.
      rtol, atol: tolerances of floats; integers and booleans are compared exactly.
      options: passed to `to_onnx`.
    """
    exported = to_onnx(fn, list(specs), **options)
    symbolic = any(not dims.all_static(port.shape) for port in exported.inputs)
    for size in sizes if symbolic and values is None else sizes[:1]:
        generator = np.random.default_rng(0)
        if values is None:
            leaves = [sample(generator, [dims.evaluate(d, size) for d in p.shape], p.dtype) for p in exported.inputs]
            args, kwargs = jax.tree.unflatten(exported.traced.in_tree, leaves)
        else:
            args, kwargs = tuple(values), {}
        with jax.enable_x64(bool(options.get("double_precision")) or jax.config.jax_enable_x64):
            expected = jax.tree.leaves(jax.jit(fn)(*args, **kwargs))
        actual = jax.tree.leaves(exported(*args, **kwargs))
        for index, (e, a) in enumerate(zip(expected, actual, strict=True)):
            assert_equal(_array(e), _array(a), f"output {index} at {dict(size)}", rtol, atol)
    return exported


def _array(value: Any) -> np.ndarray:
    """A result as NumPy has it; PRNG keys by their data."""
    return np.asarray(jax.random.key_data(value) if is_key(value.dtype) else value)


def assert_equal(expected: np.ndarray, actual: np.ndarray, what: str, rtol: float | None, atol: float | None) -> None:
    """Equal dtypes, shapes and values, the latter within what the dtype justifies."""
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    epsilon = float(np.finfo(np.float32).eps) if expected.dtype.itemsize >= 4 else 2.0**-7
    if expected.dtype == np.float64:
        epsilon = float(np.finfo(np.float64).eps)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        actual.astype(wide),
        expected.astype(wide),
        rtol=100 * epsilon if rtol is None else rtol,
        atol=20 * epsilon if atol is None else atol,
        err_msg=what,
    )

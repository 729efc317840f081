"""Functions of JAX that an export spells out are read back as one call, in each dtype and opset, with the file's values."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.codegen.recorded.functions import FUNCTIONS, JaxFunction
from jaxport.codegen.recorded.fused import record_fused
from tests.codegen.structured import load

FLOATS = ("float32", "float16", "bfloat16")
DTYPES = {
    "jnp.gcd": ("int32", "uint8"),
    "jnp.lcm": ("int32", "uint8"),
    "lax.div": ("uint8",),
    "jnp.floor_divide": (*FLOATS, "int32"),
    "mod": (*FLOATS, "int32", "uint8"),
    # JAX has these in single precision and above
    **{f"jax.scipy.special.{name}": ("float32",) for name in ("ndtr", "log_ndtr", "ndtri")},
}
"""The dtypes of functions that are not of all floats, and of nothing else."""
CASES = [(function, dtype) for function in FUNCTIONS for dtype in DTYPES.get(function.name, FLOATS)]
RTOL = {"float32": 3e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""A few last digits: JAX's function and the export's spelling round in other places."""
ARRAY = np.float32([[0.0, -0.0, 0.5, -0.25, 1.0, 3.0, 2.75], [np.nan, np.inf, -np.inf, 0.125, -1.5, 7.0, 4.0]])


def read_back(call, specs, opset: int, folder: Path) -> jaxport.Program:
    path = folder / "model.onnx"
    jaxport.to_onnx(call, specs, opset=opset).save(path)
    return jaxport.from_onnx(path)


def arguments(function: JaxFunction, dtype: str) -> list[np.ndarray]:
    if dtype in FLOATS:
        return [
            np.asarray(array, jnp.dtype(dtype)) for array in (np.roll(ARRAY, 3 * k, 1) for k in range(function.arity))
        ]
    first, second = np.arange(14).reshape(2, 7) * 5, np.arange(14)[::-1].reshape(2, 7) // 3
    return [array.astype(dtype) for array in (first, second)]


@pytest.mark.parametrize(
    ("function", "dtype"),
    CASES,
    ids=lambda one: one if isinstance(one, str) else f"{one.name} by another" if one.spelling else one.name,
)
def test_a_function_comes_back_as_one_call(function: JaxFunction, dtype: str, tmp_path: Path) -> None:
    call = function.exported
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 7"), dtype)
    for opset in (18, 23) if dtype == "float32" else (23,):
        program = read_back(lambda *xs: call(*xs), [spec] * function.arity, opset, tmp_path)
        assert {step.name for step in record_fused(program).steps} <= {function.name, "%", "helper.cast"}
    program.to_source(tmp_path / "printed", framework="nnx")
    args = arguments(function, dtype)
    expected = np.asarray(program(*args), np.float64)
    module = load(tmp_path / "printed")
    model = next(
        value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
    )
    found = np.asarray(model(rngs=nnx.Rngs(0))(*map(jnp.asarray, args)), np.float64)
    np.testing.assert_allclose(found, expected, rtol=RTOL.get(dtype, 0), atol=RTOL.get(dtype, 0))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("divisor", [3, -2, 1])
def test_divisions_by_a_number_come_back(divisor: int, dtype: str, tmp_path: Path) -> None:
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 7"), dtype)
    program = read_back(lambda x: (x % divisor, x // divisor), [spec], 23, tmp_path)
    code = program.to_source(framework="nnx").code
    assert "jnp.where" not in code
    assert "lax." not in code


def test_what_is_almost_a_function_stays(tmp_path: Path) -> None:
    """`log1p` with another number, and `hypot` without its guard."""

    def almost(x):
        size = x + 1.5
        return x * jnp.where((size == 1) | (size == jnp.inf), 1, jnp.log(size) / jnp.where(size == 1, 1, size - 1))

    program = read_back(almost, [("n", 7)], 23, tmp_path)
    assert not any(step.name == "jnp.log1p" for step in record_fused(program).steps)


@pytest.mark.parametrize("name", ["digamma", "erf_inv"])
def test_source_of_one_function_calls_them_too(name: str, tmp_path: Path) -> None:
    program = read_back(getattr(jax.lax, name), [("n", 7)], 23, tmp_path)
    code = program.to_source(framework="jax").code
    assert code.rstrip().endswith(f"return lax.{name}(x)"), code

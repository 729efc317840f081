"""The one check for all programs: exported as a user would, run in ONNX Runtime, compared with JAX at two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxport
from jaxport.export.ports import is_key
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.releases import QUICKLY
from jaxport.testing import check_model
from jaxport.verify import sampling

#: What the symbols stand for in the two runs.
SIZES = ({"B": 2, "T": 5, "H": 6, "W": 7, "N": 4}, {"B": 3, "T": 4, "H": 5, "W": 6, "N": 7})


def program(*specs: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[[], None]]:
    """Make a test of a program: the decorated function, exported with these specifications."""
    return lambda fn: lambda: verified(fn, *specs, **options)


def built(*specs: Any, **options: Any) -> Callable[[Callable[[], Any]], Callable[[], None]]:
    """Make a test of what the decorated function returns, a model or another callable."""
    return lambda make: lambda: verified(make(), *specs, **options)


def verified(
    fn: Callable[..., Any],
    *specs: Any,
    sizes: Sequence[Mapping[str, int]] = SIZES,
    inputs: Any = None,
    tolerance: float | None = None,
    finite: bool = True,
    jitted: bool = True,
    **options: Any,
) -> None:
    """Export a program and compare it with JAX.

    The program itself is run under `jax.jit`, so that what the export traced is compared with what JAX does; what
    changes state or has flags is compared by `verify`.

    Args:
      fn: the program.
      specs: one specification per positional argument, as `to_onnx` takes them.
      sizes: of the symbols.
      inputs: the positional arguments of the runs, instead of sampled ones.
      tolerance: relative and absolute; by default what the dtypes justify.
      finite: whether all that the program computes shall be finite.
      jitted: whether the program is run under `jax.jit`, which NNX does not allow for a module that a function closes over
        where a transformation of NNX changes the module.
      options: passed to `to_onnx`.
    """
    exported = jaxport.to_onnx(fn, list(specs), **options)
    check_model(exported)
    names = sorted({name for port in exported.inputs for dim in port.shape for name in _names(dim)})
    runs = [{name: given[name] for name in names} for given in (sizes if names else sizes[:1])]
    if exported.state != "refuse" or exported.flags:
        exported.verify(inputs, sizes=runs if names else None, rtol=tolerance, atol=tolerance)
        return
    for run in runs:
        _compare(exported, run, inputs, tolerance, finite, jitted)


def _names(dim: Any) -> frozenset[str]:
    return frozenset() if isinstance(dim, int) else symbols(str(dim))


def _compare(
    exported: jaxport.Exported,
    sizes: Mapping[str, int],
    inputs: Any,
    tolerance: float | None,
    finite: bool,
    jitted: bool,
) -> None:
    """Compare results, dtypes, shapes and pytrees with those of the program under `jax.jit`."""
    with jax.enable_x64(exported.x64):
        args, kwargs = (inputs, {}) if inputs is not None else _sampled(exported, sizes)
        # Through a function of its own: JAX hashes what it compiles, and a module of Equinox has no hash.
        call = lambda *args, **kwargs: exported.fn(*args, **kwargs)
        expected = (jax.jit(call, compiler_options=QUICKLY) if jitted else call)(*args, **kwargs)
        actual = exported(*args, **kwargs)
        assert jax.tree.structure(actual) == jax.tree.structure(expected)
        for wanted, found in zip(map(_plain, jax.tree.leaves(expected)), jax.tree.leaves(actual), strict=True):
            found = _plain(found)
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            if not jax.dtypes.issubdtype(wanted.dtype, np.inexact):
                np.testing.assert_array_equal(found, wanted)
                continue
            near = tolerance or max(1e-4, 8 * float(jax.numpy.finfo(wanted.dtype).eps))
            wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
            wanted, found = wanted.astype(wide), found.astype(wide)
            assert not finite or np.isfinite(wanted).all(), "the program gives infinities or NaN"
            largest = np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted))
            np.testing.assert_allclose(found, wanted, rtol=near, atol=near * max(1.0, largest))


def _sampled(exported: jaxport.Exported, sizes: Mapping[str, int]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    generator = np.random.default_rng(0)
    bounds, first = sampling.bounds(exported.traced.jaxpr), len(exported.traced.weights)
    ports = [port for port in exported.inputs if not port.weight]
    leaves = [
        port.to_jax(
            port.to_model(sampling.sample(port, sizes, generator, bounds.get(first + index, ()), ()), exported.x64)
        )
        for index, port in enumerate(ports)
    ]
    return jax.tree.unflatten(exported.traced.in_tree, leaves)


def _plain(value: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(value) if is_key(getattr(value, "dtype", np.float32)) else value)

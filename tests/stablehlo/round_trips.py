"""A plugin of pytest: `check` takes each case of a test through an artifact instead of ONNX.

`pytest -p tests.stablehlo.round_trips tests/export/rules` exports each case by `jax.export`, reads it back, and compares values
with those of the function, and gradients for every fourth case; with `--to-onnx` also what ONNX Runtime gives for an export of
the program, for every eighth. What was compared is counted, and printed at the end.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.export.api import _trace
from jaxport.export.delivery.runtime import Session
from jaxport.export.functions import selector
from jaxport.export.specs import read_inputs
from jaxport.jaxprs import dims
from jaxport.jaxprs.releases import QUICKLY
from jaxport.stablehlo.program import HloProgram, from_stablehlo
from jaxport.testing import checking
from jaxport.testing.specs import sample
from jaxport.verify.running import run_traced

GRADIENTS, ONNX = 4, 8
"""Every so manieth case has its gradients compared, or is exported to ONNX."""

counted: Counter[str] = Counter()
#: What `jax.export` and JAX raise for functions that have no artifact, or no gradient.
NONE = (NotImplementedError, ValueError, TypeError, KeyError, AssertionError, jax.errors.JAXTypeError)

Flat = Callable[..., Sequence[Any]]


def artifact_of(function: Flat, structs: Sequence[Any]) -> jax.export.Exported | None:
    """The artifact of a function of arrays; None if JAX has none."""
    try:
        anything = [jax.export.DisabledSafetyCheck.custom_call("ALL")]
        return jax.export.export(jax.jit(function), disabled_checks=anything)(*structs)
    except Exception:  # noqa: BLE001  whatever lowering raises, there is nothing to read then
        return None


def real(leaves: Sequence[Any]) -> list[int]:
    """The numbers of the floating-point arguments."""
    return [at for at, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]


def loss_of(function: Flat, leaves: Sequence[Any], *given: Any) -> Any:
    """A weighted sum of the results, with other floating-point arguments."""
    full = [*leaves]
    for at, x in zip(real(leaves), given, strict=True):
        full[at] = x
    results = [y for y in function(*full) if jnp.issubdtype(y.dtype, jnp.floating)]
    weights = (jnp.cos(jnp.arange(y.size)).astype(y.dtype).reshape(y.shape) for y in results)
    return sum(jnp.sum(y * w) for y, w in zip(results, weights, strict=True))


def is_slope(function: Flat, leaves: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether gradients are how the loss changes, by differences of it along the axes."""
    given, step = [leaves[at] for at in real(leaves)], 1e-2
    for number, gradient in enumerate(found):
        for at in np.ndindex(gradient.shape):
            ends = [
                float(
                    loss_of(
                        function,
                        leaves,
                        *(x.at[at].add(sign * step) if n == number else x for n, x in enumerate(given)),
                    )
                )
                for sign in (1, -1)
            ]
            if abs((ends[0] - ends[1]) / (2 * step) - float(gradient[at])) > 0.02 * (1 + abs(float(gradient[at]))):
                return False
    return True


def gradients(function: Flat, leaves: Sequence[Any]) -> list[Any]:
    """The gradients of a weighted sum of the results by the floating-point arguments."""
    of = real(leaves)
    loss = partial(loss_of, function, leaves)
    compiled = jax.jit(jax.grad(loss, tuple(range(len(of)))), compiler_options=QUICKLY)
    return list(compiled(*(leaves[at] for at in of))) if of else []


def flat(fn: Any, specs: Sequence[Any], options: Mapping[str, Any]) -> tuple[Flat, list[Any]]:
    """A function as one of arrays alone, state included, and the types of these; with the options of `to_onnx`."""
    read = read_inputs(specs, options.get("input_params"), options.get("constraints", ()), False, fn)
    traced, _ = _trace(fn, read, options.get("static_params"), options.get("state", "discard"), "f", selector(()))
    variables = traced.jaxpr.jaxpr.invars[len(traced.weights) :]
    return lambda *xs: run_traced(traced, xs), [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables]


def round_trip(
    case: Any, specs: Sequence[Any], sizes: Mapping[str, int], values: Any, options: Mapping[str, Any], has_onnx: bool
) -> None:
    counted["cases"] += 1
    number = counted["cases"]
    options = dict(options)
    with jax.enable_x64(bool(options.pop("double_precision", False) or jax.config.read("jax_enable_x64"))):
        function, structs = flat(case.fn, specs, options)
        options = {name: value for name, value in options.items() if name not in ("input_params", "constraints")}
        generator, given = np.random.default_rng(0), jax.tree.leaves(values)
        leaves = [
            jnp.asarray(given[at])
            if values is not None
            else drawn(generator, [dims.evaluate(d, sizes) for d in struct.shape], struct.dtype)
            for at, struct in enumerate(structs)
        ]
        artifact = artifact_of(function, structs)
        if artifact is None:
            counted["without an artifact"] += 1
            return
        program = from_stablehlo(artifact)
        again: Flat = lambda *xs: jax.tree.leaves(program(*xs))
        with jax.default_matmul_precision("highest"):
            try:
                expected = jax.jit(function, compiler_options=QUICKLY)(*leaves)
            except ValueError as error:
                if "refining shapes" not in str(error):
                    raise
                counted["that XLA cannot compute"] += 1  # JAX's own lowering has open sizes where XLA wants numbers
                return
            compare(case, expected, jax.jit(again, compiler_options=QUICKLY)(*leaves), f"stablehlo {dict(sizes)}")
            counted["values"] += 1
            if number % GRADIENTS == 0:
                try:
                    wanted = gradients(function, leaves)
                except NONE:
                    wanted = []
                if wanted:
                    loose = checking._Case(case.fn, 1e-3, 1e-3, False)
                    found = gradients(again, leaves)
                    try:
                        compare(loose, wanted, found, f"gradient {dict(sizes)}")
                    except AssertionError:
                        if is_slope(function, leaves, wanted) or not is_slope(function, leaves, found):
                            raise
                        counted["whose derivative is a rule of their own"] += 1  # which artifacts do not have
                    counted["gradients"] += 1
        if has_onnx and number % ONNX == 0:
            to_onnx(case, specs, options, program, structs, leaves, expected)


def drawn(generator: np.random.Generator, shape: Sequence[int], dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), shape) if shape else jax.random.key(0)
    return jnp.asarray(sample(generator, shape, dtype))


def compare(case: Any, expected: Sequence[Any], found: Sequence[Any], what: str) -> None:
    for want, got in zip(expected, found, strict=True):
        case._compare(checking._plain(want), checking._plain(got), what)


def to_onnx(
    case: Any,
    specs: Sequence[Any],
    options: Mapping[str, Any],
    program: HloProgram,
    structs: Sequence[Any],
    leaves: Sequence[Any],
    expected: Sequence[Any],
) -> None:
    direct = jaxport.to_onnx(case.fn, list(specs), **options)
    again = jaxport.to_onnx(program, list(structs))
    counted["onnx"] += 1
    counted["nodes"] += len(list(again.model.graph.all_nodes()))
    counted["nodes of direct exports"] += len(list(direct.model.graph.all_nodes()))
    results = Session(again.model, threads=1).run({**again.defaults, **again.flatten(leaves, {})})
    found = [port.to_jax(result) for port, result in zip(again.outputs, results, strict=True)]
    compare(case, expected, found, "onnx of the artifact")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--to-onnx", action="store_true", help="export the programs to ONNX, too, and run them")


@pytest.fixture(autouse=True)
def _through_an_artifact(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(fn: Any, *specs: Any, values: Any = None, sizes: Any = checking.SIZES, rtol: Any = None, atol: Any = None,
              changes_state: bool = False, **options: Any) -> Any:  # fmt: skip
        for name in ("without", "opsets", "shapes", "dtypes", "function_count"):
            options.pop(name, None)
        case = checking._Case(fn, rtol, atol, changes_state)
        (variant,) = itertools.islice(checking._variants(fn, specs, values, sizes, None, options), 1)
        round_trip(case, specs, variant.sizes[0], values, options, request.config.getoption("--to-onnx"))
        pytest.skip("the case went through an artifact; what the test expects of a graph is another test's")

    for module in {checking, jaxport.testing, request.module}:
        if hasattr(module, "check"):
            monkeypatch.setattr(module, "check", check)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line("through artifacts: " + ", ".join(f"{count} {name}" for name, count in counted.items()))

"""What makes real models pass: narrow floats inside, ids that are avoided, results that rounding alone changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.importer import from_onnx
from jaxport.verify import conditioning, difference, verifying
from jaxport.verify.comparing import tolerances
from jaxport.verify.conditioning import _rounded_otherwise, spread
from jaxport.verify.precision import narrowest

WEIGHT = jnp.asarray(np.random.default_rng(0).normal(size=(256, 64)), jnp.bfloat16)
MANY = np.random.default_rng(0).normal(size=(4096, 3)).astype(np.float32)


def narrow(fn, *args):
    return narrowest(jax.make_jaxpr(fn)(*args))[0]


@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (lambda x: (x.astype(jnp.bfloat16) @ WEIGHT).astype(jnp.float32), jnp.bfloat16),
        (lambda x: x @ WEIGHT.astype(jnp.float32), np.float32),  # stored in bfloat16, computed in float32
        (lambda x: jax.jit(lambda y: y.astype(np.float16))(x).astype(np.float32), np.float16),
        (lambda x: jax.lax.scan(lambda c, r: (c, r.astype(np.float16) * 2), 0.0, x)[1].astype(np.float32), np.float16),
        (lambda x: jnp.sum(x), np.float32),
        (lambda x: x.T, None),
    ],
)
def test_the_narrowest_float_inside_is_known(fn, dtype):
    assert narrow(fn, jnp.ones((2, 256))) == dtype


def test_the_tolerance_is_that_of_the_narrowest_float():
    assert tolerances(np.float32, jnp.bfloat16) == tolerances(jnp.bfloat16)
    assert tolerances(np.float32, np.float64) == tolerances(np.float32)
    expected, actual = np.float32([1, 2]), np.float32([1.01, 2.01])
    assert difference(expected, actual).problem
    assert not difference(expected, actual, inside=jnp.bfloat16).problem


def test_a_model_with_bfloat16_inside_agrees():
    def model(x):
        return jax.nn.softmax((jnp.tanh(x.astype(jnp.bfloat16)) @ WEIGHT).astype(jnp.float32))

    exported = jaxport.to_onnx(model, [("B", 256)])
    assert exported.verify().ok
    assert from_onnx(exported.model).verify().ok


def test_a_narrow_float_does_not_excuse_other_outputs():
    def model(x):
        return (x.astype(jnp.bfloat16) * 2).astype(jnp.float32), jnp.tanh(x)

    exported = jaxport.to_onnx(
        model, [("B", 4)], rules={"tanh": lambda op, x, **_: op.Mul(op.Tanh(x), np.float32(1.001))}
    )
    assert [output.name for output in exported.verify(check=False).failures] == ["output_1", "output_1"]


def test_sampled_ids_avoid_what_is_given():
    seen = []

    def model(ids):
        return jnp.asarray(MANY[:8])[ids]

    exported = jaxport.to_onnx(model, [jax.ShapeDtypeStruct(("B", 64), np.int32)])
    run = exported.session.run
    exported.session.run = lambda inputs: seen.append(inputs["ids"]) or run(inputs)
    assert exported.verify(avoid={"ids": [0, 3, 7, -100]}).ok
    assert set(np.unique(np.concatenate(seen))) == {1, 2, 4, 5, 6}


@pytest.mark.parametrize(
    ("avoid", "text"),
    [({"x": [0]}, "`x` is not an input"), ({"ids": range(8)}, "no value is left for the input `ids`")],
)
def test_what_cannot_be_avoided_is_refused(avoid, text):
    exported = jaxport.to_onnx(lambda ids: jnp.asarray(MANY[:8])[ids], [jax.ShapeDtypeStruct((5,), np.int32)])
    with pytest.raises(jaxport.InvalidArgument, match=text):
        exported.verify(avoid=avoid)


def test_sampled_ids_of_an_imported_model_avoid_them_too():
    exported = jaxport.to_onnx(lambda ids: jnp.asarray(MANY[:8])[ids], [jax.ShapeDtypeStruct((5,), np.int32)])
    assert from_onnx(exported.model).verify(avoid={"ids": [0]}).ok
    with pytest.raises(jaxport.InvalidArgument, match="`x` is not an input"):
        from_onnx(exported.model).verify(avoid={"x": [0]})


def test_rounding_changes_what_is_ill_conditioned_and_nothing_else():
    program = jax.make_jaxpr(lambda x: (jnp.sin(x), jnp.tanh(x), jnp.floor(x)))(jnp.ones(3))
    sine, tanh, floor = spread(program, [np.float32([2**30 + 128, 1.25, 3.5])], 0)
    assert sine[0] > 0.1
    assert sine[1] < 1e-6
    assert tanh.max() < 1e-6
    assert floor[1:].max() == 0


def test_deep_programs_compile_as_little_as_shallow_ones():
    x, weights = np.ones((2, 3), np.float32) / 3, np.ones((3, 3), np.float32) / 7

    def change(count):
        def layers(x, weights):
            for _ in range(count):
                x = jnp.tanh(x @ weights)
            return x

        return spread(jax.make_jaxpr(layers)(x, weights), [x, weights], 0)[0]

    changes, compiled = [change(1)], _rounded_otherwise._cache_size()
    changes.append(change(9))
    assert _rounded_otherwise._cache_size() == compiled
    assert all(each.max() > 0 and each.max() < 1e-6 for each in changes)


def chaotic(x):
    return jnp.sin(1e6 * (x @ MANY))


def test_an_ill_conditioned_result_is_told_from_a_wrong_one():
    # Both sides sum in orders of their own, and the sine of 1e6 times that has nothing to do with it any more.
    exported = jaxport.to_onnx(chaotic, [(4, 4096)])
    report = exported.verify()
    assert report.ok
    assert "agrees where it is well-conditioned" in str(report)
    assert "elements are ill-conditioned: JAX itself changes them by up to" in str(report)


def test_given_tolerances_are_kept():
    exported = jaxport.to_onnx(chaotic, [(4, 4096)])
    report = exported.verify(rtol=1e-5, atol=1e-5, check=False)
    assert not report.ok
    assert "the function is ill-conditioned there" in report.failures[0].difference.problem


def test_a_wrong_result_is_called_wrong():
    def fn(x):
        return jnp.tanh(x) + jnp.where(x > 100, chaotic(x)[0, 0], 0)

    wrong = {"tanh": lambda op, x, **_: op.Sin(x)}
    report = jaxport.to_onnx(fn, [(4, 4096)], rules=wrong).verify(check=False)
    assert not report.ok
    assert "rounding does not explain it" in report.failures[0].difference.problem


def test_no_more_runs_than_what_explains_a_difference(monkeypatch):
    runs, rounding = [], conditioning._Rounding
    monkeypatch.setattr(conditioning, "_Rounding", lambda seed: runs.append(seed) or rounding(seed))
    exported = jaxport.to_onnx(lambda x: jnp.sin(1e4 * (x @ MANY)), [(1, 4096)])
    assert exported.verify().ok
    assert len(runs) < conditioning.RUNS
    runs.clear()
    assert not exported.verify(rtol=1e-9, atol=1e-9, check=False).ok
    assert len(runs) == conditioning.RUNS


def test_a_large_model_is_loaded_once_jax_has_run(monkeypatch):
    calls = []
    monkeypatch.setattr(verifying, "LARGE", 0)
    expected, load = verifying._Subject.expected, verifying.Session
    monkeypatch.setattr(verifying._Subject, "expected", lambda self, run: calls.append("JAX") or expected(self, run))
    monkeypatch.setattr(verifying, "Session", lambda model, **options: calls.append(options) or load(model, **options))
    exported = jaxport.to_onnx(lambda x: x @ MANY, [("B", 4096)])
    assert exported.verify().ok
    assert calls == ["JAX", "JAX", {"packs": False}]
    assert "session" not in vars(exported)  # which keeps its own memory
    _ = exported.session
    assert exported.verify().ok
    assert len(calls) == 5  # without another session

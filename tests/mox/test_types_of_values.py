"""Values that `==` takes for one and JAX does not: what is baked in, weak types, and integers of 64 bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport

X = jnp.ones((2, 4))
NAN = float("nan")
HALVES = jnp.ones(3, jnp.float16)
# What is baked in, what is given, and whether they are the same.
BAKED = [(2, 2.0, False), (True, 1, False), (0.0, -0.0, False), (NAN, NAN, True), (2, np.int32(2), False), (2, 2, True)]


@pytest.mark.parametrize(("baked", "given", "same"), BAKED)
@pytest.mark.parametrize("place", ["by position", "by name", "left out", "in a list"])
def test_what_is_baked_in_is_compared_as_jit_compares_it(baked, given, same, place):
    function = lambda x, k=baked: x * (k[0] if isinstance(k, list) else k)
    call = {
        "by position": lambda run, k: run(X, k),
        "by name": lambda run, k: run(X, k=k),
        "left out": lambda run, k: run(X, k=k),
        "in a list": lambda run, k: run(X, [k]),
    }[place]
    mox = jaxport.make_mox(function)(X) if place == "left out" else call(jaxport.make_mox(function), baked)
    if same:
        np.testing.assert_array_equal(call(mox, given), call(function, given))
        return
    with pytest.raises(jaxport.InvalidArgument, match=r"was baked in|are not those that it was traced with"):
        call(mox, given)


def types(result):
    return [(str(jax.typeof(leaf)), jax.typeof(leaf).weak_type) for leaf in jax.tree.leaves(result)]


@pytest.mark.parametrize("function", [lambda x: (x * 2, x * HALVES, x), lambda x: x * 2 + 1, lambda x: [x, jnp.sin(x)]])
def test_weak_types_stay_weak_or_are_refused(function):
    weak, strong = jnp.asarray(2.0), jnp.float32(2)
    traced = jaxport.make_mox(function)(weak)
    for mox in (traced, jaxport.mox.loads(jaxport.mox.dumps(traced), {**traced.params, **traced.state})):
        assert types(mox(weak)) == types(jax.jit(function)(weak))
        try:
            made = types(mox(strong))
        except jaxport.InvalidArgument as error:
            assert "weak type" in str(error)  # noqa: PT017
            assert types(function(strong)) != types(function(weak))
        else:
            assert made == types(jax.jit(function)(strong))
    assert types(jaxport.make_mox(function)(strong)(strong)) == types(jax.jit(function)(strong))


def test_integers_that_do_not_fit_are_not_read(tmp_path):
    large, small = np.arange(3) * 2**40, np.arange(3)
    jaxport.mox.save_params({"small": small, "large": large}, tmp_path / "w.safetensors")
    with pytest.raises(jaxport.ModelError, match=r"integers of type int64 do not fit in int32(.|\n)*`large`(.|\n)*x64"):
        jaxport.mox.load_params(tmp_path / "w.safetensors")
    with jax.enable_x64(True):
        assert jaxport.mox.load_params(tmp_path / "w.safetensors")["large"].tolist() == large.tolist()
    jaxport.mox.save_params({"small": small}, tmp_path / "w.safetensors")
    assert jaxport.mox.load_params(tmp_path / "w.safetensors")["small"].tolist() == [0, 1, 2]

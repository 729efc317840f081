"""What ONNX cannot do is refused by name, all at once, with the reason and a way out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback, pallas as pl
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import jaxport
from jaxport.export.rules.refused import REASONS
from jaxport.testing import check, f32


def double(x):
    return pl.pallas_call(lambda x_ref, y_ref: y_ref.__setitem__(..., x_ref[...] * 2), out_shape=x)(x)


TWO_DEVICES = AbstractMesh((2,), ("i",), axis_types=(AxisType.Auto,))


def on_two_devices(x):
    return jax.shard_map(lambda x: lax.psum(x, "i"), mesh=TWO_DEVICES, in_specs=P("i"), out_specs=P(), check_vma=False)(
        x
    )


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


CASES = {
    "pure_callback": lambda x: jax.pure_callback(np.sin, like(x), x),
    "io_callback": lambda x: io_callback(np.sin, like(x), x),
    "ffi_call": lambda x: jax.ffi.ffi_call("native", like(x))(x),
    "pallas_call": double,
    "create_token": lambda x: lax.create_token(x),
    "after_all": lambda x: lax.after_all(),
    "check": lambda x: (checkify.check(x.sum() > 0, "negative"), x)[1],
    "rng_bit_generator": lambda x: x + lax.rng_bit_generator(jnp.zeros(4, np.uint32), (4,))[1],
    "rng_uniform": lambda x: lax.rng_uniform(jnp.float32(0), jnp.float32(1), (4,)),
    "shard_map": on_two_devices,
}


def refusals(fn, *specs, **options):
    with pytest.raises(jaxport.Unsupported) as error:
        jaxport.to_onnx(fn, list(specs), **options)
    return error.value


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name_with_the_users_line(name):
    (row,) = refusals(CASES[name], f32(4)).refusals
    assert row.name == name
    assert row.where.startswith("test_refused.py:")
    if name in REASONS:
        assert row.why == REASONS[name]


@pytest.mark.parametrize("name", REASONS)
def test_every_reason_says_what_to_do_instead(name):
    why, _, instead = REASONS[name].partition("; ")
    assert why
    assert instead.split()[0] in ("pass", "write", "export", "make", "use", "define", "scale", "return")


def test_all_at_once():
    error = refusals(
        lambda x: io_callback(np.sin, like(x), jax.pure_callback(np.sin, like(x), x)), f32(4), name="policy"
    )
    lines = str(error).splitlines()
    assert lines[0] == "2 operations of `policy` cannot be exported"
    assert lines[1].startswith("  pure_callback   test_refused.py:")
    assert lines[1].endswith("runs Python on the host; pass its result in as an input, or write it with jax.numpy")
    assert lines[2].startswith("  io_callback     test_refused.py:")


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: lax.cond(x[0] > 0, CASES["pure_callback"], jnp.sin, x), id="branch"),
        pytest.param(lambda x: lax.cond(x[0] > 0, lambda x: (io_callback(print, None, x), x)[1], jnp.sin, x), id="effect"),
        pytest.param(lambda x: lax.scan(lambda c, r: (CASES["pure_callback"](c), r), x, x), id="scan"),
        pytest.param(lambda x: lax.while_loop(lambda x: x.sum() < 3, CASES["pure_callback"], x), id="while"),
        pytest.param(lambda x: jax.vmap(CASES["io_callback"])(x), id="vmap"),
    ],
)  # fmt: skip
def test_refused_inside_of_anything(fn):
    assert {row.name for row in refusals(fn, f32(4)).refusals} <= {"pure_callback", "io_callback"}


def test_a_mesh_of_several_devices_is_named():
    (row,) = refusals(on_two_devices, f32(4)).refusals
    assert row.why == (
        "runs on several devices (the mesh has `i` of 2); export the function that one device runs, over all data"
    )


def test_a_fallback_takes_the_place_of_a_kernel():
    exported = jaxport.to_onnx(
        double, [f32(4)], rules={"pallas_call": lambda op, *xs, **_: op.call(lambda x: x * 2, *xs)}
    )
    np.testing.assert_array_equal(exported(np.arange(4, dtype=np.float32)), [0, 2, 4, 6])


def test_debug_prints_are_left_out_with_a_warning():
    def shown(x):
        jax.debug.print("x is {}", x)
        jax.debug.callback(lambda x: None, x)
        return lax.cond(x[0] > 0, lambda x: (jax.debug.print("positive"), x)[1], lambda x: -x, x) + 1

    with pytest.warns(UserWarning, match="it only shows values") as warned:
        exported = jaxport.to_onnx(shown, [f32(2)])
    texts = sorted(str(w.message) for w in warned)
    assert [text.split()[0] for text in texts] == ["`debug_callback`", "`debug_print`", "`debug_print`"]
    assert texts[1].startswith("`debug_print` at test_refused.py:")
    assert texts[1].endswith(" in shown is not in the exported model: it only shows values")
    np.testing.assert_array_equal(exported(np.array([-1, 2], np.float32)), [2, -1])


def test_a_forward_derivative_that_jax_cannot_run_either():
    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))
    (row,) = refusals(lambda x: jax.linearize(sine, x)[1](x), f32(4)).refusals
    assert (row.name, row.why) == ("custom_lin", REASONS["custom_lin"])


# One device -----------------------------------------------------------------------------------------------------------

MESH = jax.make_mesh((1, 1), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


SPLIT = P("i")


def mapped(fn, out_specs=SPLIT, **options):
    return jax.shard_map(fn, mesh=MESH, in_specs=SPLIT, out_specs=out_specs, **options)


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(mapped(lambda x: x * 2), id="nothing"),
        pytest.param(mapped(lambda x: lax.psum(x, "i"), P()), id="psum"),
        pytest.param(mapped(lambda x: lax.psum(x, ("i", "j")), P(), check_vma=False), id="psum-unchecked"),
        pytest.param(mapped(lambda x: lax.pmean(x, "i"), P()), id="pmean"),
        pytest.param(mapped(lambda x: lax.pmax(x, "i") - lax.pmin(x, "i"), P()), id="pmax"),
        pytest.param(mapped(lambda x: lax.all_gather(x, "i")), id="all_gather"),
        pytest.param(mapped(lambda x: lax.all_gather(x, "i", axis=1, tiled=True)), id="all_gather-tiled"),
        pytest.param(mapped(lambda x: lax.psum_scatter(x, "i", tiled=True)), id="psum_scatter"),
        pytest.param(mapped(lambda x: lax.ppermute(x, "i", [(0, 0)])), id="ppermute"),
        pytest.param(mapped(lambda x: lax.ppermute(x, "i", [])), id="ppermute-nothing"),
        pytest.param(mapped(lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True)), id="all_to_all"),
        pytest.param(mapped(lambda x: x + lax.axis_index("i")), id="axis_index"),
        pytest.param(jax.grad(lambda x: mapped(lambda x: lax.psum(x**2, "i"), P())(x).sum()), id="grad"),
        pytest.param(lambda x: lax.with_sharding_constraint(x, jax.sharding.NamedSharding(MESH, P("i"))), id="constraint"),
        pytest.param(jax.vmap(lambda x: lax.psum(x, "b") * lax.axis_index("b"), axis_name="b"), id="vmap-psum"),
        pytest.param(jax.vmap(lambda x: lax.pmax(x, "b") - lax.pmin(x, "b"), axis_name="b"), id="vmap-pmax"),
        pytest.param(jax.vmap(lambda x: lax.all_gather(x, "b"), axis_name="b"), id="vmap-all_gather"),
    ],
)  # fmt: skip
def test_one_device(fn):
    check(fn, f32(4, 3))

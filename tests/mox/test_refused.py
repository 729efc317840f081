"""What cannot be replaced, captured or called is refused with what, where and why; and the whole list of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.mox import Replacement, factory, lora

X = jnp.asarray([0.3, -1.2, 0.7])


FOUR = jnp.ones(4)


def linear():
    return nnx.Linear(3, 4, rngs=nnx.Rngs(0))


WRONG = {
    "shape": (lambda x: x, r"returns float32\[3\](.|\n)*`Linear` returns float32\[4\], and later operations"),
    "dtype": (lambda x: jnp.zeros(4, jnp.int32), r"returns int32\[4\](.|\n)*returns float32\[4\]"),
    "count": (lambda x: (jnp.zeros(4), x), r"returns float32\[4\], float32\[3\]"),
    "nothing": (lambda x: None, "returns no arrays"),
    "arity": (lambda x, y: x, r"fails: TypeError(.|\n)*called with float32\[3\]"),
    "its own failure": (lambda x: x @ x.reshape(1, 3), "fails: TypeError"),
    "no callable": (3, "a `int` cannot take the place of `Linear`"),
    "the original with another shape": (factory(lambda m: lambda x: m(x[:2])), r"the original is given float32\[2\]"),
    "an unknown parameter": (factory(lambda m: lambda x: m(x, params={"w": x})), "has no parameter `w`"),
    "a parameter of another shape": (
        factory(lambda m: lambda x: m(x, params={"kernel": x})),
        r"`kernel` is given float32\[3\](.|\n)*takes float32\[3,4\]",
    ),
    "arrays without a name": (
        Replacement(lambda original, params, x: original(x) * FOUR),
        "closes over 1 arrays",
    ),
    "a rank of zero": (lambda: lora(rank=0), "rank=0 is not a valid rank"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_replacement_that_does_not_fit_is_refused(name):
    layer = linear()
    mox = jaxport.make_mox(lambda x: jnp.tanh(layer(x)))(X)
    before = str(mox)
    replacement, message = WRONG[name]
    with pytest.raises(jaxport.InvalidArgument, match=message) as error:
        mox.sub("//Linear", replacement() if name == "a rank of zero" else replacement)
    assert "`Linear`" in str(error.value) or "`kernel`" in str(error.value) or name == "a rank of zero"
    assert str(mox) == before


def test_an_input_that_is_there_already_is_refused():
    spec = jax.ShapeDtypeStruct((), jnp.float32)
    scaled = Replacement(lambda original, params, y, **inputs: original(y), inputs={"x": spec})
    with pytest.raises(jaxport.InvalidArgument, match="the new input `x` clashes"):
        jaxport.make_mox(lambda x: jnp.sin(x))(X).sub("//sin", scaled)
    scaled = Replacement(lambda original, params, x, s: s * original(x), inputs={"s": spec})
    edited = jaxport.make_mox(jnp.sin)(X).sub("//sin", scaled)
    with pytest.raises(jaxport.InvalidArgument, match=r"the input `s` is missing(.|\n)*pass `s=...`"):
        edited(X)


def with_reference(x):
    ref = jax.new_ref(x)
    ref[...] = jnp.sin(ref[...])
    return ref[...]


def vmapped_parameters(x):
    make = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: nnx.Linear(3, 4, rngs=rngs)))
    cells = make(nnx.Rngs(0))
    return nnx.vmap(lambda cell, x: cell(x), in_axes=(0, None))(cells, x)


# Everything that cannot be replaced: the program, a query, and the reason.
REFUSED = {
    "a program that was differentiated": (
        jax.grad(lambda x: jnp.sin(jax.nn.sigmoid(x)).sum()),
        "//logistic",
        "was differentiated before it was traced",
    ),
    "a forward derivative": (lambda x: jax.jvp(jnp.sin, (x,), (x,)), "//sin", "was differentiated before"),
    "a mutable reference": (with_reference, "//swap | //get", "reads or writes a mutable reference"),
    "a solver": (
        lambda x: jax.lax.custom_linear_solve(lambda v: 2 * v, x, lambda f, b: b / 2),
        "//custom_linear_solve//mul",
        None,
    ),
    "parameters that alone are batched": (
        vmapped_parameters,
        "//Linear",
        "under a `vmap` over none of its arguments",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replaced_is_named(name):
    program, xpath, why = REFUSED[name]
    mox = jaxport.make_mox(program)(X)
    if why is None:  # its bodies are not part of the tree
        assert mox.select(xpath).count() == 0
        return
    with pytest.raises(jaxport.Unsupported, match=r"cannot be replaced(.|\n)*" + why):
        mox.sub(xpath, lambda *args: args[0])


def test_all_refusals_are_reported_together():
    mox = jaxport.make_mox(jax.grad(lambda x: (jnp.sin(x) * jnp.tanh(x)).sum()))(X)
    with pytest.raises(jaxport.Unsupported, match=r"sin(.|\n)*tanh"):
        mox.sub("//sin | //tanh", jnp.abs)


def batched(axes, function, *arguments):
    """A Mox of a module call under `vmap`."""

    class Call(nnx.Module):
        def __init__(self):
            self.linear = linear()

        def __call__(self, x, y):
            return function(self.linear, x, y)

    call = Call()
    return jaxport.make_mox(jax.vmap(lambda x, y: call(x, y), in_axes=axes))(*arguments)


ROWS = jnp.stack([X, 2 * X])

# What the original cannot do under `vmap`, where it runs for the whole batch at once.
IN_A_BATCH = {
    "other parameters": (
        lambda match: lambda x, y: match(x, y, params={"linear.kernel": x[:, None] * jnp.ones((3, 4))}),
        "given parameters that differ along a batch",
    ),
    "a shared argument": (
        lambda match: lambda x, y: match(x, y * x),
        "given another argument 1 in each element of the batch",
    ),
    "a derivative by a shared argument": (
        lambda match: lambda x, y: match(x, y) * jax.grad(lambda v: match(x, v).sum())(y)[0],
        "is differentiated by what all elements of the batch share",
    ),
}


@pytest.mark.parametrize("name", IN_A_BATCH)
def test_the_original_runs_for_the_whole_batch(name):
    replacement, message = IN_A_BATCH[name]
    mox = batched((0, None), lambda linear, x, y: linear(x * y), ROWS, X)
    with pytest.raises(jaxport.InvalidArgument, match=rf"the original (is )?{message.removeprefix('is ')}"):
        mox.sub("//Call", factory(replacement))


def test_new_parameters_of_calls_that_share_them_have_one_shape():
    layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    mox = jaxport.make_mox(lambda x: layer(layer(x).sum(0)))(ROWS)
    wide = factory(lambda match: Replacement(lambda o, p, x: o(x) + p["b"], {"b": jnp.zeros(match.out_avals[0].shape)}))
    with pytest.raises(jaxport.InvalidArgument, match=r"has two shapes(.|\n)*float32\[2,3\] in one call, float32\[3\]"):
        mox.sub("//Linear", wide)


@pytest.mark.parametrize("norm", ["a module", "a Mox"])
def test_a_replacement_that_changes_state_is_refused(norm):
    batch_norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    replacement = jaxport.make_mox(batch_norm)(ROWS @ jnp.ones((3, 4))) if norm == "a Mox" else batch_norm
    mox = jaxport.make_mox(lambda layer, x: jnp.sin(layer(x)))(linear(), ROWS)
    with pytest.raises(jaxport.InvalidArgument, match=r"changes the state of its modules(.|\n)*`mean`, `var`"):
        mox.sub("//sin", replacement)
    with pytest.raises(jaxport.InvalidArgument, match=r"changes the state of its modules(.|\n)*count`"):
        mox.sub("//sin", nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    mox.sub("//sin", nnx.BatchNorm(4, use_running_average=True, rngs=nnx.Rngs(0)))


MESH = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
SPEC = jax.sharding.PartitionSpec("d")


def sharded(function, **options):
    return jax.shard_map(function, mesh=MESH, in_specs=SPEC, out_specs=SPEC, **options)


def test_what_a_shard_map_does_not_allow_is_refused():
    mox = jaxport.make_mox(sharded(lambda x: jnp.sin(x) * jax.lax.psum(jnp.exp(x.sum()), "d")))(X)
    with pytest.raises(jaxport.Unsupported, match="inside `shard_map`, whose body cannot return more results"):
        mox.capture("//sin")
    with pytest.raises(jaxport.InvalidArgument, match=r"returns values that differ along \['d'\]"):
        jaxport.make_mox(sharded(lambda x: x * jax.lax.psum(x, "d")))(X).sub("//psum_invariant | //psum", lambda y: y)
    with pytest.raises(jaxport.InvalidArgument, match="takes a single number that differs along 'd'"):
        mox.sub("//exp", jnp.cos)
    traced = jaxport.make_mox(jnp.sin)(X)
    with pytest.raises(jaxport.InvalidArgument, match="inside a `shard_map` that tracks the axes along which"):
        sharded(traced)(X)
    np.testing.assert_array_equal(sharded(traced, check_vma=False)(X), jnp.sin(X))


def test_a_shard_map_in_another_is_refused():
    mesh = jax.make_mesh((1, 1), ("d", "e"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    whole = jax.sharding.PartitionSpec()
    inner = jax.shard_map(jnp.sin, in_specs=whole, out_specs=whole, axis_names={"e"})
    outer = jax.shard_map(inner, mesh=mesh, in_specs=SPEC, out_specs=SPEC, axis_names={"d"})
    with jax.set_mesh(mesh):
        mox = jaxport.make_mox(jax.jit(outer))(X)
    with pytest.raises(jaxport.Unsupported, match="is inside several `shard_map`s"):
        mox.sub("//sin", jnp.cos)


def test_a_parameter_that_the_program_does_not_hold_has_no_value():
    mox = jaxport.make_mox(lambda layer, x: layer(x))(linear(), X)
    with pytest.raises(jaxport.InvalidArgument, match=r"is not a parameter that the program holds(.|\n)*an argument"):
        mox.select("//Linear")[0].param("kernel")


def test_the_gradient_of_an_edited_program_is_its_own():
    gradient = jaxport.make_mox(jax.grad(lambda x: jnp.sin(x).sum()))(X)
    with pytest.raises(jaxport.Unsupported, match="differentiate the Mox"):
        gradient.sub("//cos", jnp.exp)
    edited = jaxport.make_mox(jnp.sin)(X).sub("//sin", jnp.exp)
    np.testing.assert_allclose(jax.grad(lambda x: edited(x).sum())(X), jnp.exp(X), rtol=1e-6)


def test_a_condition_cannot_be_captured():
    mox = jaxport.make_mox(lambda x: jax.lax.while_loop(lambda c: jnp.sin(c).sum() < 2, lambda c: c + 1, x))(X)
    with pytest.raises(jaxport.Unsupported, match="in the condition of a `while`, which has one result"):
        mox.capture("//sin")


CALLS = {
    "shape": (lambda mox: mox(X[:2]), r"`inputs` is float32\[2\](.|\n)*traced with float32\[3\]"),
    "dtype": (lambda mox: mox(X.astype(jnp.int32)), r"`inputs` is int32\[3\]"),
    "arity": (lambda mox: mox(X, X), "are not those that it was traced with"),
    "unknown parameter": (lambda mox: mox.apply({**mox.params, "w": X}, X), "`w` is not a parameter of the Mox"),
    "parameter of another shape": (lambda mox: mox.apply({**mox.params, "bias": X}, X), r"`bias` is float32\[3\]"),
    "with_params unknown": (lambda mox: mox.with_params({"w": X}), "`w` is not a parameter of the Mox"),
    "with_params shape": (lambda mox: mox.with_params({"bias": X}), r"`bias` is given float32\[3\]"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused(name):
    call, message = CALLS[name]
    with pytest.raises(jaxport.InvalidArgument, match=message):
        call(jaxport.make_mox(linear())(X))


def test_a_static_argument_is_baked_in():
    mox = jaxport.make_mox(lambda x, power: x**power)(X, 2)
    np.testing.assert_array_equal(mox(X, 2), X**2)
    with pytest.raises(jaxport.InvalidArgument, match=r"an argument that is not an array is 3(.|\n)*2 was baked in"):
        mox(X, 3)


def test_merging_without_adapters_is_refused():
    mox = jaxport.make_mox(linear())(X)
    with pytest.raises(jaxport.InvalidArgument, match="has no adapters"):
        jaxport.mox.merge_lora(mox)


class Tied(nnx.Module):
    """Two layers that share a kernel, one of which also multiplies with it by itself."""

    def __init__(self, by_itself):
        self.one = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.two = nnx.Linear(3, 3, rngs=nnx.Rngs(1))
        self.two.kernel = self.one.kernel
        self.by_itself = by_itself

    def __call__(self, x):
        return self.one(x) @ self.one.kernel if self.by_itself else self.two(self.one(x))


UNMERGEABLE = {
    "two adapters of one weight": (Tied(False), "//Linear", lora(2), "the adapters of `one.kernel` cannot be merged"),
    "a layer without": (Tied(False), '//*[@path="two"]', lora(2), "the adapters of `one.kernel` cannot be merged"),
    "the weight by itself": (Tied(True), "//Linear", lora(2), "the adapters of `one.kernel` cannot be merged"),
}


@pytest.mark.parametrize("name", UNMERGEABLE)
def test_adapters_that_no_weight_can_stand_for_are_not_merged(name):
    model, xpath, edit, message = UNMERGEABLE[name]
    adapted = jaxport.make_mox(model)(X).sub(xpath, edit)
    with pytest.raises(jaxport.InvalidArgument, match=message):
        jaxport.mox.merge_lora(adapted)


@pytest.mark.parametrize("edit", ["prune", "operation"])
def test_adapters_around_another_edit_are_not_merged(edit):
    adapted = jaxport.make_mox(linear())(X).sub("//Linear", lora(2))
    if edit == "operation":
        adapted = adapted.sub("//Linear//dot_general", factory(lambda m: lambda a, b: 2 * m(a, b)))
    else:
        adapted = adapted.sub("//Linear", jaxport.mox.prune(0.5))
    with pytest.raises(jaxport.InvalidArgument, match="`kernel` cannot be merged"):
        jaxport.mox.merge_lora(adapted)


def test_a_weight_that_is_given_with_its_adapters_is_not_quantized():
    conv = nnx.Conv(4, 3, (2,), rngs=nnx.Rngs(0))
    adapted = jaxport.make_mox(conv)(jnp.ones((1, 5, 4))).sub("//Conv", lora(2))
    with pytest.raises(jaxport.InvalidArgument, match="has adapters, which would be quantized with it"):
        adapted.sub("//Conv", jaxport.mox.quantize())


def test_adapters_of_arguments_need_them():
    adapted = jaxport.make_mox(lambda layer, x: layer(x))(linear(), X).sub("//Linear", lora(2))
    with pytest.raises(jaxport.InvalidArgument, match=r"is an argument of the model(.|\n)*arguments="):
        jaxport.mox.merge_lora(adapted)


def test_a_fraction_of_the_weights_is_pruned():
    with pytest.raises(jaxport.InvalidArgument, match=r"fraction=1.5 is out of range"):
        jaxport.mox.prune(1.5)

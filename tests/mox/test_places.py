"""A path, a query, a class and a predicate mean the same layer to every edit, after every other edit."""

from __future__ import annotations

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport import mox as package
from jaxport.mox import lora, prune, quantize
from tests.mox.test_modules import NnxStack

pytestmark = pytest.mark.sampled(4)

# Every edit of layers that the package offers, with the arguments that it cannot do without.
NEEDED = {"cast": [jnp.bfloat16], "prune": [0.5], "qdq": [0.1]}
EDITS = {
    name: functools.partial(made, *NEEDED.get(name, []))
    for name in package.__all__
    if inspect.isfunction(made := getattr(package, name))
    and made.__module__.startswith("jaxport.mox.edits.")
    and made.__annotations__.get("return") in ("Factory", "Rewrite")
}
EDITS |= {
    "lora with a name": lambda: lora(2, name="other"),
    "ia3 of inputs": lambda: package.ia3(inputs=True),
    "quantize in groups": lambda: quantize(dtype="int4", group=2, symmetric=False),
}


class Net(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.mix = nnx.Conv(8, 8, 3, rngs=rngs)
        self.down = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jax.nn.relu(self.mix(self.up(x))))


X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)
MOX = jaxport.make_mox(Net(nnx.Rngs(0)))(X)
LAYERS = {"down": nnx.Linear, "mix": nnx.Conv}
WAYS = {
    "a path": lambda mox, path: mox.select(path),
    "a class": lambda mox, path: mox.select(LAYERS[path]).where(lambda match: match.path == path),
    "a predicate": lambda mox, path: mox.select(lambda match: match.block is not None and match.path == path),
    "an attribute": lambda mox, path: mox.select(f'//*[@path="{path}"]'),
    "a query": lambda mox, path: mox.select(f'//{LAYERS[path].__name__}[@path="{path}"]'),
}


def outcome(selection, edit):
    """What an edit makes of a selection: values and results, or why it is refused."""
    try:
        made = selection.sub(edit())
    except jaxport.JaxportError as error:
        return str(error)
    return {**made.params, **made.state, " result": made(X)}


def test_all_edits_are_found():
    assert {"cast", "dora", "ia3", "lora", "prune", "qdq", "quantize"} <= {*EDITS}


@pytest.mark.parametrize("path", LAYERS)
@pytest.mark.parametrize(("first", "second"), [*itertools.product(EDITS, repeat=2)])
def test_an_edit_of_a_layer_is_the_same_however_it_is_selected(first, second, path):
    try:
        edited = MOX.sub("//Linear | //Conv", EDITS[first]())
    except jaxport.JaxportError:
        edited = MOX.sub("//Linear", EDITS[first]())
    *others, wanted = (outcome(select(edited, path), EDITS[second]) for select in WAYS.values())
    for name, made in zip(WAYS, others, strict=False):
        assert type(made) is type(wanted), (name, made, wanted)
        if isinstance(made, str):
            assert made == wanted, name
            continue
        assert list(made) == list(wanted), name
        for key in made:
            np.testing.assert_array_equal(made[key], wanted[key], f"{name}: {key}")


def test_adapters_are_edited_if_they_are_asked_for():
    adapted = MOX.sub("//Linear", lora(2))
    assert [*adapted.sub("down", prune(0.5)).state] == ["down.kernel.mask"]
    masks = adapted.select("//lora[@path='down']").sub(prune(0.5)).state
    assert {"down.kernel.mask", "down.lora_a.mask", "down.lora_b.mask"} == {*masks}


def test_a_function_takes_the_place_of_all_that_is_at_a_path():
    adapted = MOX.sub("//Linear", lora(2))
    assert "down.lora_a" not in adapted.sub("down", lambda x: x[..., :4]).params
    assert adapted.capture("down")(X)["down"].shape == X.shape


# After LoRA, on layers of a stack that was written out, whose parameters are slices of the stack's.
@pytest.mark.parametrize("second", EDITS)
@pytest.mark.parametrize("first", EDITS)
def test_layers_that_were_unrolled_are_edited_like_those_in_a_scan(first, second):
    y = X[0]
    mox = jaxport.make_mox(NnxStack(nnx.Rngs(0)))(y)
    one, other = (_twice(stack, first, second, y) for stack in (mox, mox.unroll()))
    assert type(one) is type(other), (one, other)
    if not isinstance(one, str):
        np.testing.assert_allclose(one, other, rtol=2e-2 if "cast" in (first, second) else 1e-5, atol=1e-5)


def _twice(stack, first, second, y):
    try:
        return stack.sub("//Linear", EDITS[first]()).sub("//Linear", EDITS[second]())(y)
    except jaxport.JaxportError as error:
        return str(error)


# What queries ask of a model: each names a layer by its place among others.
QUERIES = [
    "//Block/Linear[1]", "//Block/Linear[2]", "//Block/Linear", "//Linear[last()]", "//Linear[position()=1]",
    "//Linear[position() mod 2 = 0]", "(//Linear)[3]", "//Linear[following-sibling::Linear]", "//Block[2]/Linear[last()]",
    "//Linear[preceding-sibling::Linear]", "//Linear[not(preceding::Linear)]", "//Linear[count(preceding::Linear)=2]",
    "//Block[count(Linear)=2]", "//Block/child::*[1]", "//Block/*[last()]", "//Block/descendant::Linear[2]", "//Block/*",
    "//Linear/following-sibling::*[1]", "//Linear/preceding-sibling::*[1]", "//Linear/..", "//Linear/parent::Block",
    "//Linear/*", "//Linear/*[2]", "//dot_general", "//dot_general[1]/ancestor::*[1]", "//add/preceding::dot_general[1]",
    "//Linear/dot_general", "//*", "//*[@kind='module']", "//*[@kind='function']", "//module_call[@type='Linear']",
    "//Linear[@name='up']", "//Linear[@use_bias]", "//*[@path='blocks.0.up']", "//Linear[contains(@params, 'kernel')]",
    "//flax.nnx.Linear[1]", "//Linear[not(*[4])]", "//Linear[count(descendant::*)=3]", "//jit[@name='relu']",
    "//jit[preceding-sibling::Linear]", "//max", "//mul", "//Linear[@features=8]", "//*[name()='Linear'][2]", "blocks.1.up",
    nnx.Linear, lambda match: match.type == "Linear", lambda match: match.config.get("in_features") == 8,
    lambda match: match.block is not None and match.block.target == "flax.nnx.Linear", package.activations,
]  # fmt: skip


INSIDE = {
    "//Linear/*", "//Linear/*[2]", "//dot_general", "//dot_general[1]/ancestor::*[1]", "//add/preceding::dot_general[1]",
    "//Linear/dot_general", "//*", "//Linear[count(descendant::*)=3]", "//Linear[contains(@params, 'kernel')]",
}  # fmt: skip


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jax.nn.relu(self.up(x)))


class Blocks(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs), Block(rngs)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def saved(mox):
    return package.loads(package.dumps(mox), {**mox.params, **mox.state})


PLAIN = jaxport.make_mox(Blocks(nnx.Rngs(0)))(X)
AROUND = {
    name: lambda mox, query, made=made: mox.sub(query, made()) for name, made in EDITS.items() if "cast" not in name
}
AROUND |= {
    "before": lambda mox, query: mox.select(query).before(lambda x: jnp.sin(2 * x)),
    "after": lambda mox, query: mox.select(query).after(lambda y: jnp.exp(y) @ jnp.ones((y.shape[-1],) * 2)),
    "called twice": lambda mox, query: mox.select(query).wrap(lambda layer, x: layer(x) - layer(0 * x)),
    "in a loop": lambda mox, query: mox.select(query).wrap(lambda layer, x: jax.jit(lambda x: layer(x))(x)),
    "patched": lambda mox, query: mox.patch({query: lambda y: 2 * y}),
    "patched with a value": lambda mox, query: mox.patch({query: 2.0}),
    "an adapter that is off": lambda mox, query: package.set_adapter(mox.sub(query, lora(2, name="math"))),
    "lora of quantized": lambda mox, query: mox.sub(query, quantize()).sub(query, lora(2)),
    "after of lora": lambda mox, query: mox.sub(query, lora(2)).select(query).after(jnp.tanh),
    "saved": lambda mox, query: saved(mox.sub(query, lora(2))),
}


@pytest.mark.parametrize("edit", AROUND)
@pytest.mark.parametrize("place", ["//Block/Linear[1]", "//Linear", "//Block"])
def test_a_query_means_the_same_layers_after_any_edit(place, edit):
    try:
        edited = AROUND[edit](PLAIN, place)
    except jaxport.JaxportError:
        assert place == "//Block"  # no layer with one weight
        return
    if (edit, place) == ("patched with a value", "//Block"):
        assert edited.select(place).paths() == PLAIN.select(place).paths()
        return
    for query in QUERIES:
        if edit == "patched with a value" and query in INSIDE:
            continue  # what is in the layer does not run
        before, after = PLAIN.select(query).paths(), edited.select(query).paths()
        assert list(dict.fromkeys(before)) == list(dict.fromkeys(after)), query
        if before:
            assert {*edited.capture(query)(X)} == {*before}, query


@pytest.mark.parametrize("edit", AROUND)
def test_what_is_done_next_is_done_to_the_same_layers(edit):
    edited, query = AROUND[edit](PLAIN, "//Block/Linear[1]"), "//Block/Linear[1]"
    if edit == "patched with a value":
        assert (
            edited.capture(query)(X)["blocks.0.up"].tolist() == edited.capture("blocks.0.up")(X)["blocks.0.up"].tolist()
        )
        return
    at_path, of_query = edited.capture("blocks.0.up")(X), edited.capture(query)(X)
    np.testing.assert_array_equal(at_path["blocks.0.up"], of_query["blocks.0.up"])
    again = edited.sub(query, lora(2, name="again"))
    assert {path.partition(".again")[0] for path in again.params if ".again" in path} == {"blocks.0.up", "blocks.1.up"}
    mesh = jax.make_mesh((1,), ("model",))
    split = edited.shard(mesh, {query: {"bias": jax.P("model"), "output": jax.P()}})
    assert {path for path, v in split.params.items() if v.sharding.spec == jax.P("model")} == {
        "blocks.0.up.bias",
        "blocks.1.up.bias",
    }
    frozen = package.trainable(edited, query)
    assert frozen == package.trainable(edited, "blocks.0.up") | {
        path: is_trained for path, is_trained in package.trainable(edited, "blocks.1.up").items() if is_trained
    }
    assert {path.rpartition(".")[0] for path, is_trained in frozen.items() if is_trained} == {
        "blocks.0.up",
        "blocks.1.up",
    }


@pytest.mark.parametrize("edit", ["qdq", "before", "after", "patched", "called twice", "after of lora"])
def test_an_operation_stays_what_it_is_in_its_place(edit):
    query = "//jit[@name='relu']" if edit != "after of lora" else "//max"
    wrap = AROUND[edit] if edit != "after of lora" else AROUND["after"]
    edited = saved(wrap(PLAIN, query))
    for asked in (
        query,
        "//jit[@name='relu']",
        "//Block/*",
        "//Linear[2]/preceding-sibling::*[1]",
        "//max",
        package.activations,
    ):
        plain = wrap(PLAIN, query).select(asked).paths()
        assert plain == edited.select(asked).paths()
    assert edited.select(query).paths()[:2] == PLAIN.select(query).paths()


def test_what_edits_compute_is_found_by_the_names_of_edits():
    adapted = PLAIN.sub("//Linear", quantize()).sub("//Linear", lora(2, name="math"))
    assert adapted.select("//dot_general").count() == 4
    assert adapted.select("//lora/dot_general").count() == 8
    assert adapted.select("//lora//dot_general").count() == 12
    for query in (
        "//quantize",
        "//lora",
        "//*[@adapter='math']",
        "//function_call[@type='lora']",
        "//jaxport.mox.lora",
    ):
        assert adapted.select(query).paths() == PLAIN.select("//Linear").paths(), query
    assert {match.type for match in adapted.select(lambda match: match.type == "lora")} == {"lora"}
    assert adapted.select("//Linear").select(".//lora").count() == 4
    assert adapted.select("//quantize/dequantize_linear").count() == 4


TIES = {
    "called": lambda match: lambda x: match.root["blocks.0.up"](x),
    "itself": lambda match: match.root["blocks.0.up"],
    "its parameter": lambda match: lambda x: x @ match.root.params["blocks.0.up.kernel"],
    "beside the original": lambda match: lambda x: match.root["blocks.0.up"](x) + match(x),
}


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("place", ["blocks.1.up", "//Block[2]"])
def test_a_replacement_that_runs_another_block_shares_its_parameters(tie, place):
    if place == "//Block[2]":
        make = jaxport.mox.factory(lambda match: lambda x: match(x) + match.root["blocks.0.up"](x).sum())
    else:
        make = jaxport.mox.factory(TIES[tie])
    tied = PLAIN.sub(place, make)
    assert {*tied.params} <= {*PLAIN.params}
    assert not tied.state
    again = saved(tied)
    np.testing.assert_array_equal(again(X), tied(X))
    name = "blocks.0.up.kernel"
    step = lambda scale: tied.apply({**tied.params, name: scale * tied.params[name]}, X)

    def wanted(scale):
        up, down = scale * PLAIN.params[name], PLAIN.params["blocks.0.down.kernel"]
        x = X + jax.nn.relu(X @ up) @ down
        if place == "//Block[2]":
            plain = x + jax.nn.relu(x @ PLAIN.params["blocks.1.up.kernel"]) @ PLAIN.params["blocks.1.down.kernel"]
            return plain + (x @ up).sum()
        own = x @ PLAIN.params["blocks.1.up.kernel"] if tie == "beside the original" else 0
        return x + jax.nn.relu(x @ up + own) @ PLAIN.params["blocks.1.down.kernel"]

    for scale in (1.0, 2.0):
        np.testing.assert_allclose(step(scale), wanted(scale), rtol=1e-5, atol=1e-5)

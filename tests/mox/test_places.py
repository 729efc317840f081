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

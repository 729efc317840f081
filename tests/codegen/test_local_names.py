"""What values and classes are called: after what they are for, and after what differs."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.importer.names import Framework
from tests.codegen.structured import check, load

FRAMEWORKS = ("nnx", "equinox", "burn")


class Attention(nnx.Module):
    """Attention whose projections are one product."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.inside = nnx.Linear(8, 24, rngs=rngs)
        self.out = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x: jax.Array, memory: jax.Array) -> jax.Array:
        query, key, value = (jnp.tanh(one).reshape(*x.shape[:2], 2, 4) for one in jnp.split(self.inside(x), 3, axis=-1))
        return self.out(jax.nn.dot_product_attention(query, key + memory, value).reshape(x.shape))


class Gated(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.gate = nnx.Linear(8, 16, rngs=rngs)
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nnx.silu(self.gate(x)) * self.up(x)) + jnp.exp(-x) * jnp.square(x).mean(-1, keepdims=True)


class Layer(nnx.Module):
    """A layer that may have a shortcut."""

    def __init__(self, features: int, *, shortcut: bool, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.first = nnx.Linear(8, features, rngs=rngs)
        self.second = nnx.Linear(features, 8, rngs=rngs)
        self.shortcut = nnx.Linear(8, 8, rngs=rngs) if shortcut else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.second(nnx.relu(self.first(self.norm(x))))
        return y + (x if self.shortcut is None else self.shortcut(x))


class Layers(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.layers = nnx.List([Layer(size, shortcut=size == 16, rngs=rngs) for size in (12, 16, 20, 16, 24)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def programs() -> dict[str, jaxport.Program]:
    rngs = nnx.Rngs(0)
    x, heads = jax.ShapeDtypeStruct((2, 3, 8), np.float32), jax.ShapeDtypeStruct((2, 3, 2, 4), np.float32)
    made = {
        "attention": (Attention(rngs=rngs), [x, heads]),
        "gated": (Gated(rngs=rngs), [x]),
        "layers": (Layers(rngs=rngs), [x]),
    }
    return {name: jaxport.from_onnx(jaxport.to_onnx(model, inputs).model) for name, (model, inputs) in made.items()}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_operands_of_an_attention_are_called_so(programs: dict[str, jaxport.Program], framework: Framework) -> None:
    code = programs["attention"].to_source(framework=framework).code
    assert not re.search(r"\bx_\d", code)
    assert re.search(r"\bkey = ", code), code


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_value_beside_x_says_what_it_is(programs: dict[str, jaxport.Program], framework: Framework) -> None:
    code = programs["gated"].to_source(framework=framework).code
    assert not re.search(r"\bx_\d", code), code


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_classes_of_one_name_are_told_apart_by_their_parts(
    programs: dict[str, jaxport.Program], framework: Framework
) -> None:
    code = programs["layers"].to_source(framework=framework).code
    names = re.findall(r"^(?:class|pub struct) (Layer(?!s|Norm)\w*?)(?:Config)?\b", code, re.MULTILINE)
    assert {*names} in ({"Layer", "LayerWithShortcut"}, {"Layer", "LayerWithoutShortcut"})


def test_a_structure_with_arguments_has_a_configuration(programs: dict[str, jaxport.Program]) -> None:
    code = programs["layers"].to_source(framework="burn").code
    assert re.search(r"#\[derive\(Config, Debug\)\]\npub struct Layer\w*Config \{\n    pub \w+: usize,\n\}", code)
    assert re.search(r"Layer\w*Config::new\(12\)\.init\(device\)", code)
    assert re.search(r"pub fn init\(&self, device: &Device\) -> Layer", code)
    assert "Layers::new(device)" not in code.partition("impl Layers {")[2].partition("forward")[0]


class Turned(nnx.Module):
    """A layer that is called as a helper is, which turns its result if `turns`."""

    def __init__(self, *, turns: bool, rngs: nnx.Rngs):
        self.rotary = nnx.Linear(8, 8, rngs=rngs)
        self.turns = turns

    def __call__(self, x: jax.Array) -> jax.Array:
        rotary = self.rotary(x)
        angles = jnp.arange(3.0)[:, None, None] * jnp.array([1.0, 0.1])
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        first, second = jnp.split(rotary.reshape(2, 3, 2, 4), 2, axis=-1)
        turned = jnp.concatenate([cos * first - sin * second, sin * first + cos * second], axis=-1)
        return jnp.tanh(rotary) * (turned.reshape(x.shape) if self.turns else rotary)


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("turns", [False, True])
def test_only_helpers_that_are_called_keep_their_names(turns: bool, framework: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    exported = jaxport.to_onnx(Turned(turns=turns, rngs=nnx.Rngs(0)), [x])
    code = check(exported.proto, {exported.input_names[0]: x}, tmp_path, framework)
    assert ("def rotary(" in code) == turns
    assert ("rotary_2 = self.rotary(" in code) == turns


def summed(x: jax.Array) -> jax.Array:
    """Three times the statements that become a function `step`, and a loop whose body is called so."""
    parts = [jax.scipy.special.spence(jnp.square(one) + 0.5) for one in (x, x + 1, jnp.tanh(x))]
    return sum(parts, jax.lax.while_loop(lambda carry: jnp.sum(carry) < 40, lambda carry: carry * 1.5 + 1, x))


def test_a_shared_function_is_not_hidden_by_a_local_one(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (2, 3)).astype(np.float32)
    program = jaxport.from_onnx(jaxport.to_onnx(summed, [x]).proto)
    source = program.to_source(tmp_path, framework="nnx")
    assert re.search(r"^def step_2\(", source.code, re.MULTILINE)
    assert re.search(r"^        def step\(", source.code, re.MULTILINE)
    np.testing.assert_allclose(load(tmp_path).load()(x), summed(jnp.asarray(x)), rtol=2e-5)

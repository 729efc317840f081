"""What users of adapters, quantization, pruning and interventions do every day, composed, on a model of each kind.

All models are one network with the same weights: three residual blocks and a head, written for NNX, Linen and Equinox,
with scanned blocks, and imported from ONNX. `network` is what they compute; an edit is told by its effect on the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax import lax

import jaxport
from jaxport.mox import (
    Mox,
    Replacement,
    calibrate,
    cast,
    dora,
    factory,
    ia3,
    load_adapter,
    lora,
    merge_lora,
    prune,
    qdq,
    quantize,
    save_adapter,
    set_adapter,
    trainable,
    write_back,
)

pytestmark = pytest.mark.sampled(5)

numbers = np.random.default_rng(0)
X = jnp.asarray(numbers.normal(size=(2, 4)), jnp.float32)
UP = jnp.asarray(numbers.normal(size=(3, 4, 8)), jnp.float32) / 2
DOWN = jnp.asarray(numbers.normal(size=(3, 8, 4)), jnp.float32) / 2
HEAD = jnp.asarray(numbers.normal(size=(4, 3)), jnp.float32)


def network(x=X, up=UP, down=DOWN, head=HEAD, blocks=(0, 1, 2)):
    """What the models compute."""
    for index in blocks:
        x = x + jnp.tanh(x @ up[index]) @ down[index]
    return x @ head


# -- the models --------------------------------------------------------------------------------------------------------


def nnx_linear(kernel):
    linear = nnx.Linear(*kernel.shape, use_bias=False, rngs=nnx.Rngs(0))
    linear.kernel[...] = kernel
    return linear


class NnxBlock(nnx.Module):
    def __init__(self, up, down):
        self.up, self.down = nnx_linear(up), nnx_linear(down)

    def __call__(self, x):
        return x + self.down(jnp.tanh(self.up(x)))


class NnxModel(nnx.Module):
    def __init__(self):
        self.blocks = nnx.List([NnxBlock(up, down) for up, down in zip(UP, DOWN, strict=True)])
        self.head = nnx_linear(HEAD)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class NnxStack(nnx.Module):
    def __init__(self):
        self.blocks = nnx.vmap(NnxBlock)(UP, DOWN)
        self.head = nnx_linear(HEAD)

    def __call__(self, x):
        step = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.head(step(x, self.blocks))


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        y = jnp.tanh(linen.Dense(8, use_bias=False, name="up")(x))
        return x + linen.Dense(4, use_bias=False, name="down")(y)


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, x):
        for index in range(3):
            x = LinenBlock(name=f"blocks_{index}")(x)
        return linen.Dense(3, use_bias=False, name="head")(x)


class LinenStep(linen.Module):
    @linen.compact
    def __call__(self, x, _):
        return LinenBlock(name="blocks")(x), None


class LinenStack(linen.Module):
    @linen.compact
    def __call__(self, x):
        stack = linen.scan(LinenStep, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return linen.Dense(3, use_bias=False, name="head")(stack(name="stack")(x, None)[0])


def linen_variables(stacked):
    block = lambda up, down: {"up": {"kernel": up}, "down": {"kernel": down}}
    blocks = (
        {"stack": {"blocks": block(UP, DOWN)}} if stacked else {f"blocks_{i}": block(UP[i], DOWN[i]) for i in range(3)}
    )
    return {"params": {**blocks, "head": {"kernel": HEAD}}}


def eqx_linear(kernel):
    linear = eqx.nn.Linear(*kernel.shape, use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda module: module.weight, linear, kernel.T)


class EqxBlock(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, up, down):
        self.up, self.down = eqx_linear(up), eqx_linear(down)

    def __call__(self, x):
        return x + self.down(jnp.tanh(self.up(x)))


class EqxModel(eqx.Module):
    blocks: list
    head: eqx.nn.Linear

    def __init__(self):
        self.blocks = [EqxBlock(up, down) for up, down in zip(UP, DOWN, strict=True)]
        self.head = eqx_linear(HEAD)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class EqxStack(eqx.Module):
    blocks: EqxBlock
    head: eqx.nn.Linear

    def __init__(self):
        self.blocks = eqx.filter_vmap(EqxBlock)(UP, DOWN)
        self.head = eqx_linear(HEAD)

    def __call__(self, x):
        dynamic, static = eqx.partition(self.blocks, eqx.is_array)
        x, _ = lax.scan(lambda x, block: (eqx.combine(block, static)(x), None), x, dynamic)
        return self.head(x)


@dataclass(frozen=True)
class Case:
    """A model, what its object computes, its Mox, and the query of its layers."""

    model: Any
    run: Callable[[Any], Any]
    mox: Mox
    dense: str = "//Linear"
    is_transposed: bool = False

    def sub(self, *edits):
        """The Mox with edits of all layers, one after the other."""
        mox = self.mox
        for edit in edits:
            mox = mox.sub(self.dense, edit)
        return mox

    def merged(self, adapted):
        """What the network computes with the merged weights."""
        return network(**self.kernels(merge_lora(adapted)))

    def kernels(self, values):
        """The weights by layer: those of `up`, of `down`, and the head."""
        turned = lambda value: value.swapaxes(-1, -2) if self.is_transposed else value
        of = lambda part: [
            turned(v) for path, v in sorted(values.items()) if f".{part}." in path and "lora" not in path
        ]
        stack = lambda parts: parts[0] if parts[0].ndim == 3 else jnp.stack(parts)
        head = next(turned(v) for path, v in values.items() if "head" in path and "lora" not in path)
        return {"up": stack(of("up")), "down": stack(of("down")), "head": head}


def nnx_case(model):
    return Case(model, lambda model: model(X), jaxport.make_mox(model)(X))


def imported():
    program = jaxport.from_onnx(jaxport.to_onnx(NnxModel(), [X]).model)
    return Case(program, lambda program: program(X), jaxport.make_mox(program)(X))


def linen_case(module, variables):
    run = lambda variables: module.apply(variables, X)
    return Case(variables, run, jaxport.make_mox(lambda x: module.apply(variables, x))(X), "//Dense")


def eqx_case(model):
    run = lambda model: jax.vmap(model)(X)
    return Case(model, run, jaxport.make_mox(jax.vmap(model))(X), is_transposed=True)


MODELS: dict[str, Callable[[], Case]] = {
    "nnx": lambda: nnx_case(NnxModel()),
    "linen": lambda: linen_case(LinenModel(), linen_variables(stacked=False)),
    "equinox": lambda: eqx_case(EqxModel()),
    "onnx": imported,
}
STACKS: dict[str, Callable[[], Case]] = {
    "nnx stack": lambda: nnx_case(NnxStack()),
    "linen stack": lambda: linen_case(LinenStack(), linen_variables(stacked=True)),
    "equinox stack": lambda: eqx_case(EqxStack()),
}


@cache
def case(name):
    """A model, traced once for all checks: no edit may change it."""
    return {**MODELS, **STACKS}[name]()


def moved(mox, part=""):
    """The Mox with other values of its adapters, whose paths have `part`."""
    new = {path: v + 0.2 for path, v in mox.params.items() if ("lora_" in path or "ia3_" in path) and part in path}
    assert new
    return mox.with_params(new)


def rounded(kernel):
    """A kernel, or a stack of them, with 8 bits for each output."""
    scale = jnp.maximum(jnp.abs(kernel).max(-2, keepdims=True), 1e-9) / 127
    return jnp.round(kernel / scale) * scale


def pruned(kernel, fraction):
    """A kernel, or each of a stack, without its smallest weights."""
    if kernel.ndim == 3:
        return jnp.stack([pruned(one, fraction) for one in kernel])
    least = jnp.sort(jnp.abs(kernel), axis=None)[round(fraction * kernel.size)]
    return jnp.where(jnp.abs(kernel) >= least, kernel, 0)


def of_weights(change, *args):
    """What the network computes with each weight changed."""
    return network(up=change(UP, *args), down=change(DOWN, *args), head=change(HEAD, *args))


def saved(mox, folder):
    mox.save(folder / "model.json")
    return jaxport.mox.load(folder / "model.json")


def adapter_through_a_file(mox, name, folder, onto):
    save_adapter(mox, name, folder / "adapter.safetensors")
    return load_adapter(onto, folder / "adapter.safetensors")


NEW_HEAD = jnp.asarray(numbers.normal(size=(4, 5)), jnp.float32)


def new_head(c):
    return eqx_linear(NEW_HEAD) if c.is_transposed else nnx_linear(NEW_HEAD)


def before_head(blocks=(0, 1, 2)):
    """What the head is given."""
    return network(head=jnp.eye(4), blocks=blocks)


def both(mox, computed):
    """What an edited Mox computes, and what is made of it."""
    return mox(X), computed(mox)


def lora_of(mox):
    return {path: value for path, value in mox.params.items() if "lora_" in path}


def rows(value):
    """An array with the axis of the batch first, wherever `vmap` has put it."""
    return value if value.shape[0] == len(X) else value.T


def alone(mox):
    """The gradients of adapters as those of some parameters, and among those of all."""
    loss = lambda params: mox.apply(params, X).sum()
    every = jax.grad(loss)(mox.params)
    return jax.grad(loss)(lora_of(mox)), {path: every[path] for path in lora_of(mox)}


def gated(c, on):
    """An adapted model whose adapter is on or off, which may be known only as the program runs."""
    mox = moved(c.sub(lora(2, name="a")))
    return mox.with_params({path: jnp.where(on, 1.0, 0.0) for path in mox.state if path.endswith("lora_active")})


# Blocks are called NnxBlock, LinenBlock or EqxBlock, and in an imported model as in that which was exported.
BLOCK = "//*[ends-with(@type, 'Block')]"
SECOND = f"({BLOCK})[2]"
HEADS = "//*[ends-with(@path, 'head') and @kind='module']"
ALL, FLAT, STACKED = [*MODELS, *STACKS], [*MODELS], [*STACKS]


# -- the checks: what was found, and what is wanted ----------------------------------------------------------------------

EDITS = {
    "the model": (ALL, lambda c: (c.mox(X), network())),
    "lora begins as the model": (ALL, lambda c: (c.sub(lora(2))(X), network())),
    "lora, merged": (ALL, lambda c: both(moved(c.sub(lora(2))), c.merged)),
    "dora, merged": (ALL, lambda c: both(moved(c.sub(dora(2))), c.merged)),
    "ia3, merged": (ALL, lambda c: both(moved(c.sub(ia3())), c.merged)),
    "ia3 of inputs, merged": (ALL, lambda c: both(moved(c.sub(ia3(inputs=True))), c.merged)),
    "two adapters, merged": (ALL, lambda c: both(moved(c.sub(lora(2, name="a"), lora(3, name="b"))), c.merged)),
    "one of two adapters": (ALL, lambda c: (
        set_adapter(moved(c.sub(lora(2, name="a"), lora(3, name="b"))), "a")(X), moved(c.sub(lora(2, name="a")))(X))),
    "no adapter of two": (ALL, lambda c: (set_adapter(moved(c.sub(lora(2, name="a"), dora(3, name="b"))))(X), network())),
    "quantize": (ALL, lambda c: (c.sub(quantize())(X), of_weights(rounded))),
    "quantize, lora, merged": (ALL, lambda c: both(moved(c.sub(quantize(), lora(2))), c.merged)),
    "quantize, dora, merged": (FLAT, lambda c: both(moved(c.sub(quantize(), dora(2))), c.merged)),
    "quantize, ia3, merged": (FLAT, lambda c: both(moved(c.sub(quantize(), ia3())), c.merged)),
    "lora, quantize, merged": (ALL, lambda c: both(moved(c.sub(lora(2), quantize())), c.merged)),
    "int4 in groups, lora, merged": (ALL, lambda c: both(moved(c.sub(quantize(dtype="int4", group=2), lora(2))), c.merged)),
    "quantize all, lora on some, merged": (FLAT, lambda c: both(
        moved(c.sub(quantize()).sub(f"({c.dense})[2]", lora(2))), c.merged)),
    "prune": (ALL, lambda c: (c.sub(prune(0.5))(X), of_weights(pruned, 0.5))),
    "prune, prune": (ALL, lambda c: (c.sub(prune(0.5), prune(0.75))(X), of_weights(pruned, 0.75))),
    "prune, prune, quantize": (ALL, lambda c: (
        c.sub(prune(0.5), prune(0.75), quantize())(X), of_weights(lambda w: rounded(pruned(w, 0.75))))),
    "prune, lora": (ALL, lambda c: (c.sub(prune(0.5), lora(2))(X), of_weights(pruned, 0.5))),
    "quantize, prune": (ALL, lambda c: (c.sub(quantize(), prune(0.5))(X), of_weights(lambda w: pruned(rounded(w), 0.5)))),
    "bfloat16 and back": (FLAT, lambda c: (c.sub(cast(jnp.bfloat16), cast(jnp.float32))(X), network())),
    "values in bfloat16": (ALL, lambda c: (
        c.mox.with_params({path: v.astype(jnp.bfloat16) for path, v in c.mox.params.items()})(X),
        of_weights(lambda w: w.astype(jnp.bfloat16).astype(jnp.float32)))),
    "lora in a factory": (FLAT, lambda c: both(
        moved(c.mox.sub(BLOCK, factory(lambda block: block.sub(".//Linear | .//Dense", lora(2))))), c.merged)),
    "quantize in a factory": (FLAT, lambda c: (
        c.mox.sub(BLOCK, factory(lambda block: block.sub(c.dense, quantize())))(X),
        network(up=rounded(UP), down=rounded(DOWN)))),
    "other values in a factory": (FLAT, lambda c: (
        c.mox.sub(BLOCK, factory(lambda block: block.with_params({p: 0 * v for p, v in block.params.items()})))(X), X @ HEAD)),
    "a patched block in a factory": (FLAT, lambda c: (
        c.mox.sub(BLOCK, factory(lambda block: block.patch({c.dense: 0.0})))(X), X @ HEAD)),
    "a block of another model": (FLAT, lambda c: (
        c.mox.sub(SECOND, c.mox.select(BLOCK)[0])(X), network(blocks=(0, 0, 2)))),
    "a head with more classes": (ALL, lambda c: (c.mox.sub(HEADS, lambda x: x @ NEW_HEAD)(X), network(head=NEW_HEAD))),
    "a new head is adapted": (ALL, lambda c: (
        c.mox.sub(HEADS, new_head(c)).sub(HEADS, lora(1))(X), network(head=NEW_HEAD))),
    "a block is dropped": (FLAT, lambda c: (c.mox.select(SECOND).remove()(X), network(blocks=(0, 2)))),
    "steps are dropped": (STACKED, lambda c: (
        c.mox.unroll().select(f"({BLOCK})[position() < 3]").remove()(X), network(blocks=(2,)))),
    "before": (ALL, lambda c: (c.mox.select(HEADS).before(lambda x: 2 * x)(X), 2 * network())),
    "after": (ALL, lambda c: (c.mox.select(HEADS).after(lambda y: y + 1)(X), network() + 1)),
    "residual": (ALL, lambda c: (c.mox.select(HEADS).residual(lambda x: x[..., :3])(X), network() + before_head()[..., :3])),
    "residual of a module": (ALL, lambda c: (
        c.mox.select(HEADS).residual(eqx_linear(HEAD) if c.is_transposed else nnx_linear(HEAD))(X), 2 * network())),
    "wrap": (ALL, lambda c: (c.mox.select(HEADS).wrap(lambda head, x: head(x) - head(0 * x))(X), network())),
    "unrolled": (STACKED, lambda c: (c.mox.unroll()(X), network())),
    "lora, unrolled": (STACKED, lambda c: both(moved(c.sub(lora(2))), lambda mox: mox.unroll()(X))),
    "lora, unrolled, merged": (STACKED, lambda c: both(moved(c.sub(lora(2))).unroll(), c.merged)),
    "dora, unrolled, merged": (STACKED, lambda c: both(moved(c.sub(dora(2))).unroll(), c.merged)),
    "unrolled, lora, merged": (STACKED, lambda c: both(moved(c.mox.unroll().sub(c.dense, lora(2))), c.merged)),
    "unrolled, lora on one, merged": (STACKED, lambda c: both(
        moved(c.mox.unroll().select(SECOND).select(c.dense.replace("//", ".//")).sub(lora(2))), c.merged)),
    "quantize, unrolled": (STACKED, lambda c: (c.sub(quantize()).unroll()(X), of_weights(rounded))),
    "quantize, unrolled, lora": (STACKED, lambda c: (c.sub(quantize()).unroll().sub(c.dense, lora(2))(X), of_weights(rounded))),
    "prune, unrolled, prune": (STACKED, lambda c: (
        c.sub(prune(0.5)).unroll().sub(c.dense, prune(0.75))(X), of_weights(pruned, 0.75))),
    "named, unrolled, switched": (STACKED, lambda c: (
        set_adapter(moved(c.sub(lora(2, name="a"), lora(2, name="b"))).unroll(), "a")(X), moved(c.sub(lora(2, name="a")))(X))),
    "patch by a value": (FLAT, lambda c: (c.mox.patch({SECOND: X})(X), network(blocks=(2,)))),
    "patch by a function": (FLAT, lambda c: (c.mox.patch({SECOND: lambda y: 0 * y})(X), jnp.zeros((2, 3)))),
    "patch of a step": (STACKED, lambda c: (c.mox.unroll().patch({SECOND: X})(X), network(blocks=(2,)))),
    "patch of a step by a stack": (STACKED, lambda c: (c.mox.patch({BLOCK: jnp.stack([0 * X, 0 * X, X])})(X), X @ HEAD)),
    "patch of a quantized block": (FLAT, lambda c: (
        c.sub(quantize()).patch({BLOCK: X})(X), X @ rounded(HEAD))),
    "what is captured is patched": (ALL, lambda c: (c.mox.patch(c.mox.capture(BLOCK)(X))(0 * X), network())),
    "a lens": (FLAT, lambda c: (
        [rows(c.mox.select(HEADS)[0](y)) for y in c.mox.capture(BLOCK)(X).values()],
        [network(blocks=range(n)) for n in (1, 2, 3)])),
    "a block is a function": (FLAT, lambda c: (c.mox.select(SECOND)[0](X), X + jnp.tanh(X @ UP[1]) @ DOWN[1])),
    "a quantized block is a function": (FLAT, lambda c: (
        c.sub(quantize()).select(SECOND)[0](X), X + jnp.tanh(X @ rounded(UP[1])) @ rounded(DOWN[1]))),
    "gradients of blocks": (FLAT, lambda c: (
        [one.grad for one in c.mox.capture(BLOCK, grads=jnp.sum)(X).values()],
        [jax.grad(lambda x, n=n: network(x, blocks=range(n, 3)).sum())(before_head(range(n))) for n in (1, 2, 3)])),
    "gradients of steps": (STACKED, lambda c: (
        next(iter(c.mox.capture(BLOCK, grads=jnp.sum)(X).values())).grad,
        jnp.stack([jax.grad(lambda x, n=n: network(x, blocks=range(n, 3)).sum())(before_head(range(n))) for n in (1, 2, 3)]))),
    "inputs of layers": (FLAT, lambda c: (
        rows(next(iter(c.mox.capture(f"({c.dense})[2]", inputs=True)(X).values())).inputs[0]), jnp.tanh(X @ UP[0]))),
    "a capture under vmap of a patch": (FLAT, lambda c: (
        jax.vmap(lambda s: [*c.mox.patch({SECOND: s * X}).capture(BLOCK)(X).values()][-1])(jnp.asarray([0.0, 1.0]))[1],
        X + jnp.tanh(X @ UP[2]) @ DOWN[2])),
    "a switch under jit": (FLAT, lambda c: (
        jax.jit(lambda on, x: gated(c, on)(x))(True, X), gated(c, True)(X))),
    "switches under vmap": (FLAT, lambda c: (
        jax.vmap(lambda on: gated(c, on)(X))(jnp.asarray([False, True])), jnp.stack([network(), gated(c, True)(X)]))),
    "an input of the program": (ALL, lambda c: (
        c.mox.sub(HEADS, Replacement(lambda o, p, x, shift: o(x + shift), inputs={"shift": jax.ShapeDtypeStruct((4,), "float32")}))(
            X, shift=jnp.ones(4)), (before_head() + 1) @ HEAD)),
    "some of the parameters": (ALL, lambda c: (
        c.mox.apply({path: 2 * v for path, v in c.mox.params.items() if "head" in path}, X), 2 * network())),
    "gradients of the adapters alone": (ALL, lambda c: alone(moved(c.sub(lora(1))))),
    "rounded activations": (FLAT, lambda c: (
        jnp.round(c.mox.sub(HEADS, qdq(0.01))(X), 4), jnp.round(jnp.clip(jnp.round(network() / 0.01), -128, 127) * 0.01, 4))),
    "gradients through rounded activations": (FLAT, lambda c: (
        jax.grad(lambda x: c.mox.sub(HEADS, qdq(1.0))(x).sum())(X), jax.grad(lambda x: network(x).sum())(X))),
    "scanned over inputs": (FLAT, lambda c: (
        lax.map(c.sub(lora(2)), jnp.stack([X, 2 * X])), jnp.stack([network(), network(2 * X)]))),
    "traced again": (ALL, lambda c: (jaxport.make_mox(c.sub(quantize()))(X).sub(c.dense, lora(2))(X), of_weights(rounded))),
}  # fmt: skip


@pytest.mark.parametrize(("name", "check"), [(name, check) for check, (names, _) in EDITS.items() for name in names])
def test_an_edit_does_what_it_says(name, check):
    found, wanted = EDITS[check][1](case(name))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, wanted)


FILES = {
    "quantize, lora": (ALL, lambda c, folder: saved(moved(c.sub(quantize(), lora(2))), folder), quantize(), lora(2)),
    "dora on int4": (FLAT, lambda c, folder: saved(moved(c.sub(quantize(dtype="int4"), dora(2))), folder),
                     quantize(dtype="int4"), dora(2)),
    "an adapter": (ALL, lambda c, folder: adapter_through_a_file(moved(c.sub(lora(2, name="a"))), "a", folder, c.mox),
                   lora(2, name="a")),
    "an adapter on quantized layers": (ALL, lambda c, folder: adapter_through_a_file(
        moved(c.sub(quantize(), lora(2, name="a"))), "a", folder, c.sub(quantize())), quantize(), lora(2, name="a")),
    "the second of two adapters": (FLAT, lambda c, folder: adapter_through_a_file(
        moved(c.sub(ia3(name="b"), lora(2, name="a"))), "a", folder, c.mox), lora(2, name="a")),
}  # fmt: skip


@pytest.mark.parametrize(("name", "check"), [(name, check) for check, (names, *_) in FILES.items() for name in names])
def test_files_hold_edited_models(name, check, tmp_path):
    _, run, *edits = FILES[check]
    again, wanted = run(case(name), tmp_path), moved(case(name).sub(*edits))
    np.testing.assert_allclose(again(X), wanted(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(case(name).merged(again), again(X), rtol=1e-3, atol=1e-4)


def test_an_adapter_of_an_unrolled_layer_is_kept_in_a_file(tmp_path):
    unrolled = case("nnx stack").mox.unroll()
    adapted = moved(unrolled.select(SECOND).select(".//Linear").sub(lora(2, name="a")))
    again = adapter_through_a_file(adapted, "a", tmp_path, unrolled)
    np.testing.assert_allclose(again(X), adapted(X), rtol=1e-6)
    of_stack = moved(case("nnx stack").sub(lora(2, name="a"))).unroll()
    again = adapter_through_a_file(of_stack, "a", tmp_path, unrolled)
    np.testing.assert_allclose(again(X), of_stack(X), rtol=1e-6)


EXPORTED = {
    "prune, prune": lambda c: c.sub(prune(0.5), prune(0.75)),
    "quantize, lora": lambda c: moved(c.sub(quantize(), lora(2))),
    "a patch": lambda c: c.sub(quantize()).patch({BLOCK: lambda y: y * 0.5}),
    "a head with more classes, adapted": lambda c: c.mox.sub(HEADS, new_head(c)).sub(c.dense, lora(2)),
    "unrolled, adapted": lambda c: (
        moved(c.mox.unroll().select(SECOND).select(".//Linear | .//Dense").sub(lora(2)))
        if "scan" in c.mox.tree.names("tag")
        else c.mox
    ),
}


@pytest.mark.parametrize("name", ["nnx", "onnx", "linen stack"])
@pytest.mark.parametrize("check", EXPORTED)
def test_edited_models_are_exported(name, check):
    edited = EXPORTED[check](case(name))
    program = jaxport.from_onnx(jaxport.to_onnx(edited, [X]).model)
    np.testing.assert_allclose(program(X), edited(X), rtol=1e-4, atol=1e-5)


OBJECTS = ["nnx", "linen", "equinox", "nnx stack", "linen stack", "equinox stack"]


@pytest.mark.parametrize("name", OBJECTS)
def test_adapted_models_are_written_back(name):
    c = case(name)
    adapted = moved(c.sub(lora(2)))
    np.testing.assert_allclose(c.run(write_back(c.model, adapted)), adapted(X), rtol=1e-3, atol=1e-4)
    small = moved(c.sub(quantize(), lora(2)))
    np.testing.assert_allclose(c.run(write_back(c.model, merge_lora(small))), small(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["nnx", "equinox", "nnx stack", "equinox stack"])
def test_other_modules_are_written_back(name):
    c = case(name)
    edited = moved(c.mox.sub(HEADS, new_head(c)).sub(c.dense, lora(2)))
    np.testing.assert_allclose(c.run(write_back(c.model, edited)), edited(X), rtol=1e-3, atol=1e-4)


def trained(mox, steps=3):
    """The parameters after some steps of an optimizer that changes all of them."""
    params = mox.params
    for _ in range(steps):
        gradient = jax.grad(lambda p: jnp.square(mox.apply(p, X)).sum())(params)
        params = {path: value - 0.01 * gradient[path] for path, value in params.items()}
    return mox.with_params(params)


PROPERTIES = {
    "pruned weights stay zero": (ALL, lambda c: bool(jax.tree.reduce(jnp.logical_and, jax.tree.map(
        lambda kernel, before: ((before != 0) | (kernel == 0)).all(),
        c.kernels(dict(zero_weights(trained(c.sub(prune(0.5)))))), {"up": pruned(UP, 0.5), "down": pruned(DOWN, 0.5),
        "head": pruned(HEAD, 0.5)})))),
    "adapters are all that is trained": (ALL, lambda c: set(lora_of(c.sub(lora(1)))) == {
        path for path, chosen in trainable(c.sub(lora(1)), lambda path: "lora" in path).items() if chosen}),
    "a query says what is trained": (FLAT, lambda c: sum(trainable(c.mox, HEADS).values()) == 1),
    "quantized weights are state": (ALL, lambda c: not c.sub(quantize()).params and len(c.sub(quantize()).state) >= 6),
    "one element for a module": (FLAT, lambda c: c.mox.sub(HEADS, new_head(c)).select(HEADS).count() == 1),
    "names that fell free are used": (["nnx", "equinox", "onnx"], lambda c: [
        path for path in c.mox.sub(HEADS, new_head(c)).params if path.startswith("head")] == [
        f"head.{'weight' if c.is_transposed else 'kernel'}"]),
    "masks that are closed over are not parameters": (ALL, lambda c: c.mox.select(c.dense).after(
        lambda y: y * jnp.ones(y.shape[-1])).params.keys() == c.mox.params.keys()),
    "layers after blocks": (ALL, lambda c: (
        (c.mox.select(c.dense) - c.mox.select(HEADS)) | c.mox.select(HEADS)).count() == c.mox.select(c.dense).count()),
    "layers of blocks": (ALL, lambda c: c.mox.select(BLOCK).select(".//Linear | .//Dense", strict=False).paths()
                         == (c.mox.select(c.dense) - c.mox.select(HEADS)).paths()),
    "paths are queries": (FLAT, lambda c: all(c.mox.select(path).count() == 1 for path in c.mox.select(c.dense).paths())),
    "items are blocks": (FLAT, lambda c: all(c.mox[path].path == path for path in c.mox.select(c.dense).paths())),
    "as a page": (ALL, lambda c: len(repr(c.mox).splitlines()) <= 80 and "<" in c.mox._repr_html_()),
    "an edit leaves the model as it was": (ALL, lambda c: (before := repr(c.mox), c.sub(quantize()), repr(c.mox) == before)[2]),
    "compiled as the original": (["nnx", "equinox"], lambda c: compiled(c.mox) == compiled(
        (lambda x: c.model(x)) if not c.is_transposed else jax.vmap(c.model))),
    "one device of a mesh": (ALL, lambda c: np.allclose(
        jax.jit(c.sub(quantize(), lora(2)).shard(jax.make_mesh((1,), ("m",)), {c.dense: jax.P(None, "m")}))(X),
        of_weights(rounded), atol=1e-4)),
    "scales of activations": (FLAT, lambda c: np.allclose(
        max(calibrate(c.mox, HEADS, X).values()) * 127, jnp.abs(network()).max(), rtol=1e-5)),
}  # fmt: skip


def zero_weights(mox):
    """The weights that a pruned model computes with."""
    for path, value in mox.params.items():
        yield path, jnp.where(mox.state[f"{path.removeprefix('params.')}.mask"], value, 0)


def compiled(function):
    return str(jax.jit(function).lower(X).compile().as_text()).count(" dot(")


@pytest.mark.parametrize(
    ("name", "check"), [(name, check) for check, (names, _) in PROPERTIES.items() for name in names]
)
def test_it_holds(name, check):
    assert PROPERTIES[check][1](case(name)) is True


two = jaxport.make_mox(lambda x, y=None, *rest, scale=1.0, **more: x - (0 if y is None else y) * scale)

CALLS = {
    "by name": lambda: (two(X, X)(X, y=2 * X), -X),
    "all by name": lambda: (two(X, X)(y=2 * X, x=X), -X),
    "by position": lambda: (two(X, y=X)(X, 2 * X), -X),
    "a default that is given": lambda: (two(X, X)(X, 2 * X, scale=1.0), -X),
    "an array by name only": lambda: (two(X, X, scale=X)(X, X, scale=2 * X), X - 2 * X * X),
    "of a module": lambda: (case("nnx").mox(x=X), network()),
    "of an edited module": lambda: (case("nnx").sub(quantize(), lora(2))(x=X), of_weights(rounded)),
    "of a file": lambda: (jaxport.mox.loads(jaxport.mox.dumps(m := two(X, X)), m.params)(X, y=2 * X), -X),
    "of other parameters": lambda: (case("nnx").mox.apply({"head.kernel": 0 * HEAD}, x=X), jnp.zeros((2, 3))),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_given_by_position_or_by_name(name):
    found, wanted = CALLS[name]()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def twice():
    """One layer, called twice."""
    layer = nnx_linear(UP[0] @ DOWN[0])
    return jaxport.make_mox(nnx.Sequential(layer, layer))(X)


MISTAKES = {
    "another default": (lambda c: two(X, X)(X, X, scale=2.0), "are not those that it was traced with"),
    "too many": (lambda c: c.mox(X, X), "are not those that it was traced with"),
    "an unknown name": (lambda c: c.mox(z=X), "are not those that it was traced with"),
    "an unknown parameter": (lambda c: c.mox.apply({"head.kernle": HEAD}, X), "is not a parameter of the Mox"),
    "a typo in a path": (lambda c: c.mox.patch({"blocks.1.pu": 0.0}), r"there (is|are) `blocks.1.up`"),
    "a typo in an attribute": (lambda c: c.mox.select("//Linear[@outfeatures=8]"), "`@?out_features`"),
    "a typo in a type": (lambda c: c.mox.select("/Linaer"), "`Linear`"),
    "a residual of another shape": (lambda c: c.mox.select(SECOND).residual(lambda x: x[:, :3]), "the replacement of"),
    "an edit between an adapter and its weight": (
        lambda c: merge_lora(c.sub(quantize(), lora(2)).sub("//Linear//dot_general", factory(lambda m: lambda *a: 2 * m(*a)))),
        "does more than to exchange its parameters"),
    "an adapter on one of two calls of a quantized layer": (
        lambda c: merge_lora(twice().sub("//Linear", quantize()).sub("(//Linear)[1]", lora(2))), "merged"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_an_answer(name):
    run, message = MISTAKES[name]
    with pytest.raises((jaxport.InvalidArgument, jaxport.QueryError), match=message):
        run(case("nnx"))


def test_an_adapter_between_other_edits_is_merged_into_the_layer():
    c, x = case("nnx"), jnp.linspace(-1, 1, 8).reshape(2, 4)
    doubled = lambda mox: mox.select("//Linear").after(lambda y: 2 * y)
    edited = doubled(c.sub(quantize())).sub("//Linear", lora(2)).select("//Linear").after(lambda y: y + 1)
    trained = {path: value + 0.1 for path, value in edited.params.items()}
    without = doubled(c.mox).select("//Linear").after(lambda y: y + 1).with_params(merge_lora(edited, trained))
    np.testing.assert_allclose(without(x), edited.apply(trained, x), rtol=1e-4)

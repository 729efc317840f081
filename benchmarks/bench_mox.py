"""Figures of module expressions on a transformer of 12 layers: 73 dense layers, about 120 module calls.

    python -m benchmarks.bench_mox [nnx|linen]

Times are CPU times of this process, the smallest of several runs.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

import jaxport
from benchmarks.measure import run
from jaxport.mox.programs.tree import Tree

WIDTH, HEADS, LAYERS, TOKENS = 64, 4, 12, 16


class NnxLayer(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.after = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(jax.nn.gelu(self.up(self.after(x))))


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([NnxLayer(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, 100, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class LinenLayer(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = x + linen.MultiHeadDotProductAttention(HEADS)(linen.LayerNorm()(x))
        return x + linen.Dense(WIDTH)(linen.gelu(linen.Dense(4 * WIDTH)(linen.LayerNorm()(x))))


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, x):
        for _ in range(LAYERS):
            x = LinenLayer()(x)
        return linen.Dense(100)(x)


def best(function, runs=7):
    """The smallest CPU time of `function` in milliseconds, after one run that warms up."""
    function()
    times = []
    for _ in range(runs):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def instructions(function, *args):
    """The instructions of the compiled program, with their shapes, as a multiset."""
    text = jax.jit(function).lower(*args).compile().as_text()
    found = re.findall(r"^\s+(?:ROOT )?%?[\w.\-]+ = (\S+) ([\w\-]+)\(", text, re.MULTILINE)
    return Counter((op, re.sub(r"\{[^}]*\}", "", shape)) for shape, op in found)


def build(name):
    """A model: what is called, its arguments, a query of its dense layers, and the same as a function of its state."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, TOKENS, WIDTH)), jnp.float32)
    if name == "nnx":
        model = NnxModel(nnx.Rngs(0))
        graphdef, state = nnx.split(model)
        return model, (x,), "//Linear | //LinearGeneral", lambda s, x: nnx.merge(graphdef, s)(x), (state, x)
    model = LinenModel()
    args = (model.init(jax.random.key(0), x), x)
    return model.apply, args, "//Dense | //DenseGeneral", model.apply, args


#: A model is traced once as a rule: what matters is the first trace of a process.
FIRST = """
import gc, time, jax, jaxport.mox
from benchmarks.bench_mox import build
fn, args, _, plain, operands = build({name!r})
{before}
start = time.process_time()
{traced}
result = {{"trace": time.process_time() - start}}
"""
TRACED = ("jaxport.make_mox(fn)(*args)", "jax.make_jaxpr(plain)(*operands)")


def first_traces(name, before, runs=7):
    """The smallest seconds of a first trace and of `make_jaxpr`; taken in turn, so that a busy machine slows both."""
    programs = [FIRST.format(name=name, before=before, traced=traced) for traced in TRACED]
    times = [[run(program)["trace"] for program in programs] for _ in range(runs)]
    return tuple(min(column) for column in zip(*times, strict=True))


def main(name="nnx"):
    """Print the figures of one framework."""
    fn, args, dense, plain, operands = build(name)
    first, first_plain = first_traces(name, "")
    without, without_plain = first_traces(name, "gc.disable()")
    mox = jaxport.make_mox(fn)(*args)
    tree = mox.tree
    modules = mox.select("//module_call").count()
    print(f"{name}: {modules} module calls, {len(tree.nodes)} elements, {mox.select(dense).count()} dense layers")
    # Taken in turn, so that a busy machine slows both.
    make_jaxpr = lambda: jax.make_jaxpr(lambda *given: plain(*given))(*operands)  # a function that has no cache
    pairs = [(best(lambda: jaxport.make_mox(fn)(*args), 1), best(make_jaxpr, 1)) for _ in range(12)]
    again, again_plain = (min(times) for times in zip(*pairs, strict=True))
    print(f"first trace        {1e3 * first:8.1f} ms   {first / first_plain:.2f} × make_jaxpr")
    print(
        f"                   {1e3 * without:8.1f} ms   {without / without_plain:.2f} × without Python's garbage collector"
    )
    print(
        f"later traces       {again:8.1f} ms   {again / again_plain:.2f} × make_jaxpr, which then finds its caches full"
    )
    print(f"tree               {best(lambda: Tree(mox)):8.1f} ms")
    for query in ("//LayerNorm", dense, '//module_call[@type="LayerNorm"]', "//dot_general[ancestor::LayerNorm]"):
        print(f"query              {best(lambda query=query: mox.select(query), 50):8.3f} ms   {query}")
    print(f"LoRA               {best(lambda: mox.sub(dense, jaxport.mox.lora(rank=8))):8.1f} ms")
    if name == "nnx":  # which holds the weights
        print(f"quantize           {best(lambda: mox.sub(dense, jaxport.mox.quantize())):8.1f} ms")
    found, wanted = jax.jit(mox)(*args), jax.jit(fn)(*args)
    print(f"error              {float(jnp.abs(found - wanted).max()):8.1g}")
    if name == "nnx":
        same = instructions(lambda p, x: mox.apply(p, x), mox.params, x := args[0]) == instructions(
            plain, operands[0], x
        )
    else:
        same = instructions(mox, *args) == instructions(fn, *args)
    print(f"compiled programs  {'equal' if same else 'DIFFERENT'} in their instructions")


if __name__ == "__main__":
    main(*sys.argv[1:])

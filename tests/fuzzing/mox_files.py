"""Mutated texts of a Mox, in its three formats: by the character, and by what they contain."""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxport
from jaxport.mox.serialize.formats import printed
from jaxport.mox.serialize.writing import document

FORMATS = ("json", "yson", "xml")
LARGEST = 2**20
"""Elements of any array of a mutated program that is called."""


@functools.cache
def seeds() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Documents of small programs that between them have everything a Mox can have, and their weights."""
    (size,) = jax.export.symbolic_shape("n")
    x = jnp.ones(3)
    programs: list[tuple[Any, tuple[Any, ...]]] = [
        (jax.nn.relu, (x,)),
        (nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))), (x,)),
        (lambda x: x.reshape(-1).cumsum() / x.shape[0], (jax.ShapeDtypeStruct((size, 3), jnp.float32),)),
        (lambda x: jax.lax.scan(lambda c, v: (c + v, c * v), 0.0, x), (x,)),
        (lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), ({"a": x}["a"],)),
        (lambda x: x * jax.random.normal(jax.random.key(0), (3,)), (x,)),
        (jax.nn.softplus, (x,)),
        (lambda x: jnp.convolve(x, jnp.asarray([1.0, 2.0])).astype(jnp.bfloat16), (x,)),
    ]
    moxes = [jaxport.make_mox(program)(*arguments) for program, arguments in programs]
    return [(document(mox), {**mox.params, **mox.state}) for mox in moxes]


VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**62, 1.5, "", "v0", "a\0b", "\ud800", "n^99999999", "(" * 500, "9" * 5000, [], {},
    [[]], {"$int": "9" * 5000}, {"$tuple": []}, {"$array": {}}, {"$dim": "n*n"}, {"$enum": ["Precision", "HIGH"]},
    {"$named": "os.system"}, {"$dtype": "object"}, {"$keyword": "unspecified"}, ["float32", [3]], ["object", [3]],
    "pure_callback", "sin", "jit", "scan",
]  # fmt: skip


def rearranged(data: Any, generator: random.Random) -> Any:
    """A document with some of its parts replaced, removed or repeated."""
    data = copy.deepcopy(data)
    for _ in range(generator.choice([1, 1, 2, 4])):
        holder = data
        while True:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            if not keys:
                break
            key = generator.choice(list(keys))
            if isinstance(holder[key], dict | list) and holder[key] and generator.random() < 0.85:
                holder = holder[key]
                continue
            match generator.randrange(4):
                case 0 | 1:
                    holder[key] = generator.choice(VALUES)
                case 2:
                    del holder[key]
                case 3:
                    other = generator.choice(list(keys))
                    holder[key] = copy.deepcopy(holder[other])
            break
    return data


def garbled(text: str, generator: random.Random) -> str:
    """A text with some of its characters changed, removed or repeated."""
    for _ in range(generator.choice([1, 1, 2, 8])):
        at = generator.randrange(len(text) + 1)
        end = at + generator.choice([1, 1, 2, 8, 64])
        match generator.randrange(5):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + text[at:end] * generator.choice([2, 50]) + text[end:]
            case 2:
                text = text[:at] + generator.choice('{}[]<>"\\,;:=#%&0-9eE.\0é\ud800') + text[at + 1 :]
            case 3:
                text = text[:at]
            case 4:
                text = text[:at] + generator.choice(["9" * 5000, "[" * 900, "&a;", "<a/>", "$int", "1e999"]) + text[at:]
    return text


def files(form: str, seed: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Mutated texts and the weights of their originals, the same for the same seed."""
    generator = random.Random(seed)
    for _ in range(count):
        data, weights = generator.choice(seeds())
        if generator.random() < 0.6:
            try:
                yield printed(rearranged(data, generator), form), weights
                continue
            except Exception:  # noqa: BLE001  this format cannot even write it
                pass
        yield garbled(printed(data, form), generator), weights


def attempt(form: str, text: str, weights: dict[str, Any], folder: Path, run: bool = True) -> str:
    """Reads a text, shows, queries and, if asked, calls it, as far as it lets itself: says how far that was."""
    path = folder / f"m.{form}"
    try:
        if form == "json" and "weights_file" in text:
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
            jaxport.mox.load(path)
        mox = jaxport.mox.loads(text, weights, form)
        str(mox)
        mox.select("//*").paths()
        jaxport.mox.dumps(mox, form)
        avals = [*mox.jaxpr.in_avals, *(v.aval for e in mox.jaxpr.eqns for v in e.outvars)]
        if run and all(math.prod(n for n in getattr(a, "shape", ()) if isinstance(n, int)) < LARGEST for a in avals):
            leaves = [zeros(aval) for aval in mox.jaxpr.in_avals[len(mox.weights) :]]
            args, kwargs = jax.tree.unflatten(mox.traced.in_tree, leaves)
            mox(*args, **kwargs)
    except jaxport.JaxportError as error:
        str(error)
        return type(error).__name__
    return "ran"


def zeros(aval: Any) -> Any:
    """An argument of a type: zeros, or keys, whose open sizes are two."""
    shape = [n if isinstance(n, int) else 2 for n in aval.shape]
    for name in ("threefry2x32", "rbg", "unsafe_rbg"):
        if (key := jax.random.key(0, impl=name)).dtype == aval.dtype:
            return jnp.broadcast_to(key, shape)
    return np.zeros(shape, aval.dtype)


def shown(text: str) -> str:
    return json.dumps(text)

"""What is exported for every target: functions that once failed somewhere, and an example of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from examples.models import build
from jaxport import Int4
from jaxport.testing import f32, i32, spec

#: One example of each kind of model; `make test-runtimes` runs them all.
EXAMPLES = (
    *("mlp", "mlp_grad", "cnn", "cnn_train", "resnet50", "mobilenet_v2", "vit_b16", "bert_base", "gpt2", "gpt2_decode"),
    *("gpt2_greedy", "llama", "llama_scan", "unet", "lstm", "bidirectional_gru", "moe", "cross_attention"),
)


@dataclass(frozen=True)
class Program:
    """A function with its inputs, the sizes that it is run at, and how far a runtime may be from what is expected."""

    name: str
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    sizes: tuple[dict[str, int], ...] = ({"B": 1}, {"B": 3})
    options: dict[str, Any] = field(default_factory=dict)
    sample: Callable[..., Any] | None = None
    limit: float = 1e-4


def _while(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 0.5 + s[0]), (0, x))[1]


def _scan(x: Any) -> Any:
    return lax.scan(lambda carry, row: (carry * 0.5 + row, carry.sum()), jnp.zeros(4), x)[1]


def _spectrum(x: Any) -> Any:
    return jnp.abs(jnp.fft.fft(x))


def _half_spectrum(x: Any) -> Any:
    return jnp.abs(jnp.fft.rfft(x))


def _normal(data: Any) -> Any:
    return jax.random.normal(jax.random.wrap_key_data(data), (4,))


def _attend(x: Any) -> Any:
    return jax.nn.dot_product_attention(x, x, x, is_causal=True)


FUNCTIONS: tuple[Program, ...] = (
    Program("fft", _spectrum, (f32("B", 8),)),
    Program("rfft", _half_spectrum, (f32("B", 8),)),
    Program("solve", lambda x: jnp.linalg.solve(x + 4 * jnp.eye(3), jnp.ones(3)), (f32(3, 3),), ({},)),
    Program("resize", lambda x: jax.image.resize(x, (x.shape[0], 6, 6, 2), "linear"), (f32("B", 3, 3, 2),)),
    Program("while", _while, (f32("B", 4),)),
    Program("scan", _scan, (f32("B", 4),)),
    Program("cond", lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), (f32("B", 4),)),
    Program("sort", lambda x: jnp.sort(x, axis=-1), (f32("B", 5),)),
    Program("top_k", lambda x: lax.top_k(x, 2)[0], (f32("B", 5),)),
    Program("random", _normal, (spec(2, dtype=np.uint32),), ({},)),
    Program("uint8", lambda x: (x * 3 + x) // 2, (spec("B", 3, dtype=np.uint8),)),
    Program("int16", lambda x: jnp.where(x > 2, -x, x) - 1, (spec("B", 3, dtype=np.int16),)),
    Program("conv_transpose", lambda x: lax.conv_transpose(x, jnp.ones((2, 2, 3, 2)), (2, 2), "SAME"), (f32("B", 4, 4, 3),)),
    Program("max_pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), (f32("B", 4, 4, 3),)),
    Program("cumsum", lambda x: jnp.cumsum(x, axis=1), (f32("B", 4),)),
    Program("einsum", lambda x: jnp.einsum("bij,bkj->bik", x, x), (f32("B", 3, 4),)),
    Program("scatter", lambda x, i: x.at[i].add(1.0), (f32(5, 3), i32("B"))),
    Program("gelu", jax.nn.gelu, (f32("B", 4),)),
    Program("layer_norm", lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6), (f32("B", 8),)),
    Program("attention", _attend, (f32("B", 4, 2, 8),)),
    Program("argmax", lambda x: jnp.argmax(x, axis=-1), (i32("B", 4),)),
    Program("erf_inv", lambda x: lax.erf_inv(x * 0.1), (f32("B", 4),)),
    Program("cholesky", lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(3)), (f32(3, 3),), ({},)),
)  # fmt: skip


def _dense(x: Any) -> Any:
    first, second = (np.random.default_rng(i).normal(size=(64, 64)).astype(np.float32) / 8 for i in range(2))
    return jax.nn.relu(x @ first) @ second


def _deep(x: Any) -> Any:
    """Products of columns that no group of more than 64 divides."""
    first, second = (np.random.default_rng(i).normal(size=(320, 320)).astype(np.float32) / 18 for i in range(2))
    return jax.nn.relu(x @ first) @ second


def _tied(ids: Any) -> Any:
    table = jnp.asarray(np.random.default_rng(3).normal(size=(400, 64)).astype(np.float32))
    return jnp.tanh(table[ids]) @ table.T


#: Groups of each size, with zero points and without.
GROUPS = {
    f"int4-{group}{'-symmetric' if symmetric else ''}": Int4(group, symmetric)
    for group in (32, 64, 128)
    for symmetric in (False, True)
}

#: The rounding of a range, which is found at run time, may fall on another step.
PRECISIONS = (
    Program("tied", _tied, (i32("B"),), options={"precision": "int8-dynamic"}, limit=0.02),
    *(
        Program(name, _dense, (f32("B", 64),), options={"precision": name, **options}, limit=0.02)
        for name, options in (
            ("float16", {}),
            ("bfloat16", {}),
            ("int8-dynamic", {}),
            ("int8", {"calibration": [*np.random.default_rng(2).normal(size=(8, 1, 64)).astype(np.float32)]}),
        )
    ),
    *(Program(name, _deep, (f32("B", 320),), options={"precision": form}, limit=0.02) for name, form in GROUPS.items()),
)


def programs() -> Iterator[Program]:
    """All functions, the precisions, and the examples."""
    yield from FUNCTIONS
    yield from PRECISIONS
    for name in EXAMPLES:
        example = build(name, "linen" if name.endswith("_train") else "nnx")
        yield Program(name, example.fn, tuple(example.inputs), example.sizes, example.options, example.sample)

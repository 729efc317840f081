"""Models of sequences and graphs that `examples` does not have, in Flax NNX: a GRU, speech, Mamba, message passing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from examples.models.building import nnx_example
from examples.models.example import Size, normal, numbers, spec, text
from examples.models.rnn import LanguageConfig


@dataclass(frozen=True)
class SpeechConfig:
    """The kind of Deep Speech 2 (Amodei et al., 2015): two convolutions, and recurrent layers in both directions."""

    frequencies: int
    channels: int
    hidden: int
    layers: int
    letters: int


@dataclass(frozen=True)
class MambaConfig:
    """A small Mamba (Gu and Dao, 2023)."""

    vocabulary: int
    hidden: int
    layers: int
    length: int
    state: int = 16
    kernel: int = 4
    epsilon: float = 1e-5

    @property
    def inner(self) -> int:
        return 2 * self.hidden

    @property
    def rank(self) -> int:
        """Of the matrix that gives the step sizes."""
        return self.hidden // 16


@dataclass(frozen=True)
class GraphConfig:
    """Message passing (Gilmer et al., 2017) over edges that have features."""

    node: int
    edge: int
    hidden: int
    layers: int
    classes: int


GRU: dict[Size, LanguageConfig] = {
    "small": LanguageConfig(vocabulary=40, hidden=16, layers=2),
    "real": LanguageConfig(vocabulary=10_000, hidden=512, layers=3),
}
SPEECH: dict[Size, SpeechConfig] = {
    "small": SpeechConfig(frequencies=8, channels=4, hidden=16, layers=2, letters=5),
    "real": SpeechConfig(frequencies=80, channels=32, hidden=512, layers=3, letters=29),
}
MAMBA: dict[Size, MambaConfig] = {
    "small": MambaConfig(vocabulary=40, hidden=16, layers=1, length=5),
    "real": MambaConfig(vocabulary=10_000, hidden=256, layers=4, length=64),
}
GRAPH: dict[Size, GraphConfig] = {
    "small": GraphConfig(node=6, edge=3, hidden=8, layers=2, classes=4),
    "real": GraphConfig(node=64, edge=16, hidden=128, layers=4, classes=10),
}


class GruLanguageModel(nnx.Module):
    def __init__(self, config: LanguageConfig, *, rngs: nnx.Rngs):
        hidden = config.hidden
        self.words = nnx.Embed(config.vocabulary, hidden, rngs=rngs)
        self.layers = nnx.List([nnx.RNN(nnx.GRUCell(hidden, hidden, rngs=rngs)) for _ in range(config.layers)])
        self.head = nnx.Linear(hidden, config.vocabulary, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x: Any = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Speech(nnx.Module):
    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs):
        channels, hidden = config.channels, config.hidden
        padding = ((5, 5), (20, 20))
        self.first = nnx.Conv(1, channels, (11, 41), strides=(2, 2), padding=padding, use_bias=False, rngs=rngs)
        self.first_norm = nnx.BatchNorm(channels, rngs=rngs)
        padding = ((5, 5), (10, 10))
        self.second = nnx.Conv(channels, channels, (11, 21), strides=(1, 2), padding=padding, use_bias=False, rngs=rngs)
        self.second_norm = nnx.BatchNorm(channels, rngs=rngs)
        widths = [channels * config.frequencies // 4] + [2 * hidden] * (config.layers - 1)
        self.layers = nnx.List(
            [
                nnx.Bidirectional(
                    nnx.RNN(nnx.GRUCell(width, hidden, rngs=rngs)), nnx.RNN(nnx.GRUCell(width, hidden, rngs=rngs))
                )
                for width in widths
            ]
        )
        self.head = nnx.Linear(2 * hidden, config.letters, rngs=rngs)

    def __call__(self, sound: jax.Array) -> jax.Array:
        """Log-probabilities (batch, length / 2, letters) of a spectrogram (batch, length, frequencies)."""
        x = jnp.clip(self.first_norm(self.first(sound[..., None])), 0, 20)
        x: Any = jnp.clip(self.second_norm(self.second(x)), 0, 20)
        # Channels first, as in PyTorch, so that both have the same features.
        x = x.transpose(0, 1, 3, 2).reshape(*x.shape[:2], -1)
        for layer in self.layers:
            x = layer(x)
        return nnx.log_softmax(self.head(x))


class MambaLayer(nnx.Module):
    def __init__(self, config: MambaConfig, associative: bool, *, rngs: nnx.Rngs):
        inner = config.inner
        self.config, self.associative = config, associative
        self.norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.enter = nnx.Linear(config.hidden, 2 * inner, use_bias=False, rngs=rngs)
        past = [(config.kernel - 1, 0)]
        self.conv = nnx.Conv(inner, inner, (config.kernel,), padding=past, feature_group_count=inner, rngs=rngs)
        self.select = nnx.Linear(inner, config.rank + 2 * config.state, use_bias=False, rngs=rngs)
        self.step = nnx.Linear(config.rank, inner, rngs=rngs)
        self.decay = nnx.Param(jnp.zeros((inner, config.state)))
        self.skip = nnx.Param(jnp.zeros(inner))
        self.leave = nnx.Linear(inner, config.hidden, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y, gate = jnp.split(self.enter(self.norm(x)), 2, axis=-1)
        y = self.attend(nnx.silu(self.conv(y)))
        return x + self.leave(y * nnx.silu(gate))

    def attend(self, x: jax.Array) -> jax.Array:
        """The selective scan of (batch, length, inner)."""
        rank, state = self.config.rank, self.config.state
        step, enter, leave = jnp.split(self.select(x), [rank, rank + state], axis=-1)
        step = nnx.softplus(self.step(step))
        kept = jnp.exp(step[..., None] * -jnp.exp(self.decay[...]))
        new = (step * x)[..., None] * enter[..., None, :]
        states = self.scan_associatively(kept, new) if self.associative else self.scan(kept, new)
        return jnp.einsum("btis,bts->bti", states, leave) + self.skip[...] * x

    def scan_associatively(self, kept: jax.Array, new: jax.Array) -> jax.Array:
        def both(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        return lax.associative_scan(both, (kept, new), axis=1)[1]

    def scan(self, kept: jax.Array, new: jax.Array) -> jax.Array:
        def step(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            state = now[0] * state + now[1]
            return state, state

        _, states = lax.scan(step, jnp.zeros_like(new[:, 0]), (kept.swapaxes(0, 1), new.swapaxes(0, 1)))
        return states.swapaxes(0, 1)


class Mamba(nnx.Module):
    def __init__(self, config: MambaConfig, associative: bool, *, rngs: nnx.Rngs):
        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.layers = nnx.List([MambaLayer(config, associative, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.words.attend(self.norm(x))


class Perceptron(nnx.Module):
    def __init__(self, width: int, hidden: int, *, rngs: nnx.Rngs):
        self.widen, self.narrow = nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, hidden, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.narrow(nnx.relu(self.widen(x)))


class MessagePassing(nnx.Module):
    def __init__(self, config: GraphConfig, *, rngs: nnx.Rngs):
        hidden = config.hidden
        self.nodes, self.edges = nnx.Linear(config.node, hidden, rngs=rngs), nnx.Linear(config.edge, hidden, rngs=rngs)
        self.messages = nnx.List([Perceptron(3 * hidden, hidden, rngs=rngs) for _ in range(config.layers)])
        self.updates = nnx.List([Perceptron(2 * hidden, hidden, rngs=rngs) for _ in range(config.layers)])
        self.norms = nnx.List([nnx.LayerNorm(hidden, rngs=rngs) for _ in range(config.layers)])
        self.head = nnx.Linear(hidden, config.classes, rngs=rngs)

    def __call__(self, nodes: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        """Logits of each node: (nodes, node) and (edges, edge) are features, the rest the ends of the edges."""
        x, e = self.nodes(nodes), self.edges(edges)
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent = message(jnp.concatenate([x[senders], x[receivers], e], axis=-1))
            received = jax.ops.segment_sum(sent, receivers, num_segments=x.shape[0])
            x = norm(x + update(jnp.concatenate([x, received], axis=-1)))
        return self.head(x)


def _frames(config: SpeechConfig) -> dict[str, Any]:
    return numbers(("B", "T", config.frequencies), sizes=({"B": 1, "T": 6}, {"B": 3, "T": 9}))


def _words(config: MambaConfig) -> dict[str, Any]:
    return text(config) | {"sizes": ({"B": 1, "T": config.length}, {"B": 3, "T": 8})}


def _words_of_fixed_length(config: MambaConfig) -> dict[str, Any]:
    # JAX has no associative scan over a symbolic length.
    sizes = ({"B": 1, "T": config.length}, {"B": 3, "T": config.length})
    return text(config) | {"inputs": (spec(("B", config.length), "int32"),), "sizes": sizes}


def _network(config: GraphConfig) -> dict[str, Any]:
    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        nodes, edges = normal(rng, (dims["N"], config.node)), normal(rng, (dims["E"], config.edge))
        senders, receivers = rng.integers(0, dims["N"], (2, dims["E"]), np.int32)
        return nodes, edges, senders, receivers

    ends = spec(("E",), "int32")
    inputs = (("N", config.node), ("E", config.edge), ends, ends)
    return {"inputs": inputs, "sample": sample, "sizes": ({"N": 5, "E": 9}, {"N": 7, "E": 12})}


gru = nnx_example("gru", GruLanguageModel, GRU, text)
speech = nnx_example("speech", Speech, SPEECH, _frames)
mamba = nnx_example("mamba", partial(Mamba, associative=False), MAMBA, _words)
mamba_associative = nnx_example("mamba_associative", partial(Mamba, associative=True), MAMBA, _words_of_fixed_length)
message_passing = nnx_example("message_passing", MessagePassing, GRAPH, _network)

"""Models of Flax NNX."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxport.testing import boolean, f32, i32
from tests.programs.checker import built
from tests.programs.models import KEY, of_nnx


class Perceptron(nnx.Module):
    def __init__(self, rngs, sizes=(6, 12, 8, 3)):
        self.layers = nnx.List([nnx.Linear(i, o, rngs=rngs) for i, o in itertools.pairwise(sizes)])
        self.norm = nnx.LayerNorm(sizes[-1], rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = self.dropout(nnx.gelu(layer(x)))
        return nnx.softmax(self.norm(self.layers[-1](x)))


@built(f32("B", 6))
def test_perceptron():
    return of_nnx(Perceptron, evaluated=True)


@built(f32("B", 6), state="outputs")
def test_perceptron_with_dropout():
    return of_nnx(Perceptron)


class ConvolutionalNetwork(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.second = nnx.Conv(8, 8, (3, 3), strides=2, padding="VALID", feature_group_count=2, rngs=rngs)
        self.head = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), strides=(2, 2))
        return self.head(nnx.relu(self.second(x)).mean((1, 2)))


@built(f32("B", 14, 14, 3))
def test_convolutional_network():
    return of_nnx(ConvolutionalNetwork, evaluated=True)


@built(f32("B", 14, 14, 3), state="outputs")
def test_convolutional_network_in_training():
    return of_nnx(ConvolutionalNetwork)


class ResidualBlock(nnx.Module):
    def __init__(self, channels, out, rngs):
        conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        self.convs = nnx.List([conv(channels, out, (3, 3), strides=2), conv(out, out, (3, 3))])
        self.norms = nnx.List([nnx.BatchNorm(out, rngs=rngs) for _ in range(3)])
        self.shortcut = conv(channels, out, (1, 1), strides=2)

    def __call__(self, x):
        y = nnx.relu(self.norms[0](self.convs[0](x)))
        return nnx.relu(self.norms[1](self.convs[1](y)) + self.norms[2](self.shortcut(x)))


@built(f32("B", "2*H", "2*W", 4), inputs_as_nchw=[0], outputs_as_nchw=[0])
def test_residual_block_of_images_with_channels_first():
    return of_nnx(lambda rngs: ResidualBlock(4, 8, rngs), evaluated=True)


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)

    def __call__(self, x, lengths):
        mask = jnp.arange(x.shape[1])[None] < lengths[:, None]
        mask = nnx.combine_masks(nnx.make_attention_mask(mask, mask), nnx.make_causal_mask(mask))
        return jnp.where(mask.any((1, 3))[..., None], self.attention(x, mask=mask), 0)


@built(f32("B", "T", 8), i32("B"))
def test_attention_with_a_mask():
    return of_nnx(Attention)


@built(f32(2, 1, 8), state="outputs")
def test_attention_with_a_cache():
    attention = of_nnx(lambda rngs: nnx.MultiHeadAttention(2, 8, decode=True, rngs=rngs))
    attention.init_cache((2, 6, 8))
    return attention


class TransformerLayer(nnx.Module):
    def __init__(self, width, rngs):
        self.norms = nnx.List([nnx.RMSNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(2, width, use_bias=False, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norms[0](x), mask=mask)
        gate, value = jnp.split(self.up(self.norms[1](x)), 2, axis=-1)
        return x + self.down(nnx.silu(gate) * value)


class LanguageModel(nnx.Module):
    """Layers in one scan, and an embedding that is the head too."""

    def __init__(self, rngs, layers=3, width=8, vocabulary=17):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.positions = nnx.Param(jax.random.normal(rngs.params(), (32, width)))
        make = nnx.vmap(lambda rngs: TransformerLayer(width, rngs), in_axes=0, out_axes=0)
        self.layers = nnx.split_rngs(splits=layers)(make)(rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, ids):
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        mask = nnx.make_causal_mask(ids)
        step = nnx.scan(lambda x, layer: layer(x, mask), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.embed.attend(self.norm(step(x, self.layers)))


@built(i32("B", "T"), constraints=["T <= 32"], jitted=False)
def test_language_model_with_scanned_layers():
    return of_nnx(LanguageModel)


@built(f32("B", "T", 4), i32("B"), jitted=False)
def test_long_short_term_memory_with_lengths():
    network = of_nnx(lambda rngs: nnx.RNN(nnx.LSTMCell(4, 6, rngs=rngs)))
    return lambda x, lengths: network(x, seq_lengths=lengths, return_carry=True)


@built(f32("B", "T", 4), jitted=False)
def test_gated_units_in_both_directions():
    cell = lambda rngs: nnx.RNN(nnx.GRUCell(4, 6, rngs=rngs))
    return of_nnx(lambda rngs: nnx.Bidirectional(cell(rngs), cell(rngs)))


@built(f32("B", 6))
def test_low_rank_adaptation():
    return of_nnx(
        lambda rngs: nnx.Sequential(
            nnx.LoRALinear(6, 8, lora_rank=2, rngs=rngs),
            nnx.relu,
            nnx.LoRA(8, 2, 3, base_module=nnx.Linear(8, 3, rngs=rngs), rngs=rngs),
        )
    )


class UNet(nnx.Module):
    def __init__(self, rngs):
        conv = functools.partial(nnx.Conv, kernel_size=(3, 3), rngs=rngs)
        self.time = nnx.Linear(8, 8, rngs=rngs)
        self.start, self.down, self.end = conv(3, 4), conv(4, 8, strides=2), conv(8, 3)
        self.norm = nnx.GroupNorm(8, num_groups=2, rngs=rngs)
        self.up = nnx.ConvTranspose(8, 4, (4, 4), strides=(2, 2), rngs=rngs)

    def __call__(self, x, time):
        angles = time[:, None] * jnp.exp(-jnp.arange(4.0))
        condition = self.time(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1))
        start = nnx.silu(self.start(x))
        low = nnx.silu(self.norm(self.down(start)) + condition[:, None, None])
        return self.end(jnp.concatenate([start, self.up(low)], axis=-1))


@built(f32("B", "2*H", "2*W", 3), f32("B"))
def test_diffusion_network():
    return of_nnx(UNet)


class VisionTransformer(nnx.Module):
    def __init__(self, rngs, width=8, patches=9):
        self.patches = nnx.Conv(3, width, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.zeros((1, 1, width)))
        self.positions = nnx.Param(jax.random.normal(rngs.params(), (1, patches + 1, width)))
        self.layers = nnx.List([TransformerLayer(width, rngs) for _ in range(2)])
        self.head = nnx.Linear(width, 5, rngs=rngs)

    def __call__(self, images):
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (x.shape[0], 1, x.shape[-1])), x], axis=1)
        x = x + self.positions
        for layer in self.layers:
            x = layer(x, None)
        return self.head(x[:, 0])


@built(f32("B", 12, 12, 3))
def test_vision_transformer():
    return of_nnx(VisionTransformer)


class Mixer(nnx.Module):
    def __init__(self, rngs, tokens=5, width=8):
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.tokens = nnx.Sequential(nnx.Linear(tokens, 10, rngs=rngs), nnx.gelu, nnx.Linear(10, tokens, rngs=rngs))
        self.channels = nnx.Sequential(nnx.Linear(width, 10, rngs=rngs), nnx.gelu, nnx.Linear(10, width, rngs=rngs))

    def __call__(self, x):
        x = x + self.tokens(self.norms[0](x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + self.channels(self.norms[1](x))


@built(f32("B", 5, 8))
def test_mixer():
    return of_nnx(Mixer)


class VariationalAutoencoder(nnx.Module):
    def __init__(self, rngs):
        self.encoder = nnx.Linear(6, 8, rngs=rngs)
        self.moments = nnx.Linear(8, 4, rngs=rngs)
        self.decoder = nnx.Sequential(nnx.Linear(2, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 6, rngs=rngs))

    def __call__(self, x, key):
        mean, scale = jnp.split(self.moments(nnx.tanh(self.encoder(x))), 2, axis=-1)
        divergence = 0.5 * (mean**2 + jnp.exp(scale) - 1 - scale).sum(-1)
        latent = mean + jnp.exp(0.5 * scale) * jax.random.normal(key, mean.shape)
        return {"image": nnx.sigmoid(self.decoder(latent)), "divergence": divergence}


@built(f32("B", 6), KEY)
def test_variational_autoencoder():
    return of_nnx(VariationalAutoencoder)


class MixtureOfExperts(nnx.Module):
    def __init__(self, rngs, width=6, experts=4):
        self.router = nnx.Linear(width, experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(jax.random.normal(rngs.params(), (experts, width, 8)))
        self.down = nnx.Param(jax.random.normal(rngs.params(), (experts, 8, width)))

    def __call__(self, x):
        weights, chosen = lax.top_k(nnx.softmax(self.router(x)), 2)
        weights = weights / weights.sum(-1, keepdims=True)
        gates = (jax.nn.one_hot(chosen, self.up.shape[0]) * weights[..., None]).sum(-2)
        hidden = nnx.relu(jnp.einsum("btd,edh->bteh", x, self.up[...]))
        return jnp.einsum("bteh,ehd,bte->btd", hidden, self.down[...], gates), chosen


@built(f32("B", "T", 6))
def test_mixture_of_experts():
    return of_nnx(MixtureOfExperts)


@built(f32("B", "T", 6))
def test_einsum_layers_and_general_layers():
    return of_nnx(
        lambda rngs: nnx.Sequential(
            nnx.LinearGeneral(6, (2, 4), rngs=rngs),
            nnx.Einsum("bthd,hde->bte", (2, 4, 5), (5,), rngs=rngs),
            nnx.PReLU(0.1),
        )
    )


@built(i32("B", "T"), boolean("B", "T"))
def test_split_and_merged_text_classifier():
    def make(rngs):
        return nnx.Sequential(nnx.Embed(11, 6, rngs=rngs), nnx.Linear(6, 6, rngs=rngs), nnx.relu)

    definition, state = nnx.split(of_nnx(make))

    @jax.jit
    def classify(ids, mask):
        features = nnx.merge(definition, state)(ids) * mask[..., None]
        return features.sum(1) / jnp.maximum(mask.sum(1, keepdims=True), 1)

    return classify


@built(f32("B", 6), jitted=False)
def test_ensemble_by_vmap():
    make = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: Perceptron(rngs), in_axes=0, out_axes=0))
    models = of_nnx(make, evaluated=True)
    return lambda x: nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, x).mean(0)


@built(f32("B", "T", 6), jitted=False)
def test_checkpointed_and_jitted_layers():
    model = of_nnx(Perceptron, evaluated=True)
    return lambda x: nnx.jit(lambda model, x: nnx.remat(lambda model, x: model(x))(model, x))(model, x)

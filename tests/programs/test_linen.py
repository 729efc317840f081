"""Models of Flax Linen."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from jaxport.testing import f32, i32
from tests.programs.checker import built
from tests.programs.models import KEY, of_linen


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        for width in (8, 8):
            x = nn.Dropout(0.3, deterministic=not training)(nn.relu(nn.Dense(width)(x)))
        return nn.log_softmax(nn.Dense(3)(x))


@built(f32("B", 5))
def test_perceptron():
    return of_linen(Perceptron(), jnp.ones((1, 5)))


@built(f32("B", 5), KEY)
def test_perceptron_with_dropout():
    apply = of_linen(Perceptron(), jnp.ones((1, 5)))
    return lambda x, key: apply(x, training=True, rngs={"dropout": key})


class ResidualNetwork(nn.Module):
    training: bool = False

    @nn.compact
    def __call__(self, x):
        conv = functools.partial(nn.Conv, use_bias=False)
        norm = functools.partial(nn.BatchNorm, use_running_average=not self.training, momentum=0.9)
        x = nn.max_pool(nn.relu(norm()(conv(6, (5, 5), strides=(2, 2))(x))), (3, 3), strides=(2, 2), padding="SAME")
        y = norm(scale_init=nn.initializers.zeros)(conv(6, (3, 3))(nn.relu(norm()(conv(6, (1, 1))(x)))))
        return nn.Dense(4)(nn.relu(x + y).mean((1, 2)))


@built(f32("B", 16, 16, 3))
def test_residual_network():
    return of_linen(ResidualNetwork(), jnp.ones((1, 16, 16, 3)))


@built(f32("B", 16, 16, 3))
def test_residual_network_in_training():
    apply = of_linen(ResidualNetwork(training=True), jnp.ones((1, 16, 16, 3)))
    return lambda x: apply(x, mutable=["batch_stats"])


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x)))), None


class Transformer(nn.Module):
    """Layers in one scan, each computed again for gradients."""

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(13, 8)
        x = embed(ids) + self.param("positions", nn.initializers.normal(1.0), (32, 8))[: ids.shape[1]]
        layers = nn.scan(
            nn.remat(Layer),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=3,
        )
        x, _ = layers()(x, nn.make_causal_mask(ids))
        return embed.attend(nn.RMSNorm()(x))


@built(i32("B", "T"), constraints=["T <= 32"])
def test_transformer_with_scanned_and_checkpointed_layers():
    return of_linen(Transformer(), jnp.ones((1, 4), int))


@built(f32(2, 1, 8))
def test_attention_with_a_cache_as_input_and_output():
    layer = nn.MultiHeadDotProductAttention(num_heads=2, decode=True)
    (variables,) = of_linen(layer, jnp.ones((2, 5, 8))).args

    def steps(x):
        cache = variables["cache"]
        for _ in range(2):
            x, updates = layer.apply({"params": variables["params"], "cache": cache}, x, mutable=["cache"])
            cache = updates["cache"]
        return x, cache

    return steps


@built(f32("B", "T", 4), i32("B"))
def test_recurrent_networks_in_both_directions():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x, lengths):
            forward, backward = nn.RNN(nn.OptimizedLSTMCell(5)), nn.RNN(nn.OptimizedLSTMCell(5))
            x = nn.Bidirectional(forward, backward)(x, seq_lengths=lengths)
            return nn.RNN(nn.GRUCell(3), reverse=True, keep_order=True)(x)

    return of_linen(Network(), jnp.ones((1, 3, 4)), jnp.ones(1, int))


class Autoencoder(nn.Module):
    def setup(self):
        self.encoder = [nn.Conv(6, (3, 3), strides=(2, 2)), nn.Conv(8, (3, 3), strides=(2, 2), padding="CIRCULAR")]
        self.decoder = [nn.ConvTranspose(6, (3, 3), strides=(2, 2)), nn.ConvTranspose(1, (3, 3), strides=(2, 2))]

    def encode(self, x):
        for layer in self.encoder:
            x = nn.elu(layer(x))
        return x

    def __call__(self, x):
        latent = self.encode(x)
        for layer in self.decoder:
            x = layer(nn.elu(latent if layer is self.decoder[0] else x))
        return nn.sigmoid(x), latent


@built(f32("B", 8, 12, 1))
def test_autoencoder():
    return of_linen(Autoencoder(), jnp.ones((1, 8, 12, 1)))


@built(f32("B", 8, 12, 1))
def test_one_method_of_a_module():
    return functools.partial(of_linen(Autoencoder(), jnp.ones((1, 8, 12, 1))), method="encode")


@built(f32("B", 5))
def test_ensemble_by_vmap():
    Ensemble = nn.vmap(Perceptron, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=3)
    apply = of_linen(Ensemble(), jnp.ones((1, 5)))
    return lambda x: jnp.exp(apply(x)).mean(0)


@built(f32("B", 5))
def test_intermediate_results():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            hidden = nn.swish(nn.Dense(4)(x))
            self.sow("intermediates", "hidden", hidden)
            return nn.Dense(2)(hidden)

    apply = of_linen(Network(), jnp.ones((1, 5)))
    return lambda x: apply(x, mutable=["intermediates"])


@built(f32("B", 8, 8, 4))
def test_normalizations():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.GroupNorm(num_groups=2)(nn.Conv(4, (3, 3), padding="SAME", kernel_dilation=2)(x))
            x = nn.InstanceNorm()(nn.WeightNorm(nn.Conv(4, (1, 1)))(x))
            return nn.SpectralNorm(nn.Dense(3))(x, update_stats=False)

    return of_linen(Network(), jnp.ones((1, 8, 8, 4)))


@built(f32("B", 5))
def test_weights_shared_by_calls_in_a_loop():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = nn.Dense(5, kernel_init=nn.initializers.orthogonal())
            return nn.while_loop(
                lambda layer, carry: (carry[1] < 4) & (jnp.abs(carry[0]).sum() < 1e3),
                lambda layer, carry: (jnp.tanh(layer(carry[0])), carry[1] + 1),
                layer,
                (layer(x), 0),
            )[0]

    return of_linen(Network(), jnp.ones((1, 5)))


@built(f32("B", "T", 6))
def test_mixture_of_experts_with_a_capacity():
    class Network(nn.Module):
        experts: int = 3

        @nn.compact
        def __call__(self, x):
            tokens = x.reshape(-1, 6)
            probabilities = nn.softmax(nn.Dense(self.experts)(tokens))
            gate, chosen = lax.top_k(probabilities, 1)
            mask = jax.nn.one_hot(chosen[:, 0], self.experts)
            mask = mask * (jnp.cumsum(mask, axis=0) <= 4)
            expert = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, axis_size=self.experts)
            y = expert(6)(jnp.einsum("te,td->etd", mask, tokens))
            return jnp.einsum("etd,te->td", y, mask * gate).reshape(x.shape), mask.sum(0)

    return of_linen(Network(), jnp.ones((2, 3, 6)))


@built(f32("B", "T", 4))
def test_dilated_causal_convolutions():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            for dilation in (1, 2, 4):
                gate = nn.Conv(8, (2,), kernel_dilation=dilation, padding="CAUSAL")(x)
                x = x + nn.Dense(4)(nn.tanh(gate[..., :4]) * nn.sigmoid(gate[..., 4:]))
            return x

    return of_linen(Network(), jnp.ones((1, 8, 4)))

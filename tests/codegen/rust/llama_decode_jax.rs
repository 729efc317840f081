use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::prelude::*;
use burn::tensor::{DType, FloatDType, IndexingUpdateOp, activation};

use super::helpers::{check_shape, embed, linear_transposed, rotary, scatter_nd};

/// The model.
#[derive(Module, Debug)]
pub struct Decode {
    pub words: Embedding,
    pub layers: Vec<Block>,
    pub norm: RmsNorm,
}

impl Decode {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(40, 32).init(device),
            layers: (0..2).map(|_| Block::new(device)).collect(),
            norm: RmsNormConfig::new(32).init(device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, token: &Tensor<1, Int>, position: &Tensor<1, Int>, cache_key: &Tensor<5>, cache_value: &Tensor<5>) -> Result<(), String> {
        let [b] = token.dims();
        let [_, _, s_2, _, _] = cache_key.dims();
        check_shape("token", token.dims(), [b], "[B]")?;
        check_shape("position", position.dims(), [b], "[B]")?;
        check_shape("cache.key", cache_key.dims(), [2, b, s_2, 2, 8], "[2, B, S, 2, 8]")?;
        check_shape("cache.value", cache_value.dims(), [2, b, s_2, 2, 8], "[2, B, S, 2, 8]")
    }

    /// Computes the module.
    pub fn forward(&self, token: Tensor<1, Int>, position: Tensor<1, Int>, cache_key: Tensor<5>, cache_value: Tensor<5>) -> (Tensor<2>, Tensor<5>, Tensor<5>) {
        self.check(&token, &position, &cache_key, &cache_value).unwrap_or_else(|error| panic!("{error}"));
        let device = token.device();
        let [b] = token.dims();
        let [_, _, s_2, _, _] = cache_key.dims();
        let mut x = embed::<1, 2>(&self.words, token.clamp(-40, 39)).unsqueeze_dim::<3>(1);
        let scaled = position.clone().unsqueeze_dims::<3>(&[1, 2]).cast(FloatDType::F32) * Tensor::<3>::from_data([[[1.0, 0.1, 0.01, 0.001]]], (&device, DType::F32));
        let cos = scaled.clone().cos().unsqueeze_dim::<4>(1);
        let sin = scaled.sin().unsqueeze_dim::<4>(1);
        let positions = Tensor::arange(0..b as i64, (&device, DType::I32));
        let stacked = Tensor::stack::<2>(vec![positions, position.clone().clamp_min(-(s_2 as i64)).clamp_max(s_2 as i64 - 1)], 1);
        let positions = Tensor::arange(0..s_2 as i64, (&device, DType::I32));
        let mask = positions.unsqueeze::<2>().lower_equal(position.unsqueeze_dim::<2>(1)).unsqueeze_dims::<5>(&[1, 2, 3]);
        let mut cache_keys = Vec::new();
        let mut cache_values = Vec::new();
        for ((layer, layer_cache_key), layer_cache_value) in self.layers.iter().zip(cache_key.iter_dim(0).map(|row| row.squeeze_dim::<4>(0))).zip(cache_value.iter_dim(0).map(|row| row.squeeze_dim::<4>(0))) {
            let (layer_cache_key, layer_cache_value, next_x) = layer.forward(x, cos.clone(), sin.clone(), layer_cache_key, stacked.clone(), layer_cache_value, mask.clone());
            x = next_x;
            cache_keys.push(layer_cache_key);
            cache_values.push(layer_cache_value);
        }
        let stacked = Tensor::stack::<5>(cache_keys, 0);
        let stacked_2 = Tensor::stack::<5>(cache_values, 0);
        (linear_transposed(self.norm.forward(x), self.words.weight.val()).squeeze_dim::<2>(1), stacked, stacked_2)
    }
}

/// The module `layers.0` of the model.
#[derive(Module, Debug)]
pub struct Block {
    pub attention_norm: RmsNorm,
    pub key: Linear,
    pub value: Linear,
    pub query: Linear,
    pub output: Linear,
    pub mlp_norm: RmsNorm,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

impl Block {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            attention_norm: RmsNormConfig::new(32).init(device),
            key: LinearConfig::new(32, 16).with_bias(false).init(device),
            value: LinearConfig::new(32, 16).with_bias(false).init(device),
            query: LinearConfig::new(32, 32).with_bias(false).init(device),
            output: LinearConfig::new(32, 32).with_bias(false).init(device),
            mlp_norm: RmsNormConfig::new(32).init(device),
            gate: LinearConfig::new(32, 48).with_bias(false).init(device),
            up: LinearConfig::new(32, 48).with_bias(false).init(device),
            down: LinearConfig::new(48, 32).with_bias(false).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, cos: Tensor<4>, sin: Tensor<4>, cache_key: Tensor<4>, indices: Tensor<2, Int>, cache_value: Tensor<4>, mask: Tensor<5, Bool>) -> (Tensor<4>, Tensor<4>, Tensor<3>) {
        let [b, _, _] = x.dims();
        let attention_norm = self.attention_norm.forward(x.clone());
        let rotated = rotary(self.key.forward(attention_norm.clone()).reshape([b, 1, 2, 8]), cos.clone(), sin.clone()).squeeze_dim::<3>(1);
        let updated = scatter_nd(cache_key, indices.clone(), rotated, IndexingUpdateOp::Assign);
        let updated_2 = scatter_nd(cache_value, indices, self.value.forward(attention_norm.clone()).reshape([b, 2, 8]), IndexingUpdateOp::Assign);
        let rotated = rotary(self.query.forward(attention_norm).reshape([b, 1, 4, 8]), cos, sin);
        let scores = rotated.reshape([b, 2, 2, 8]).matmul(updated.clone().permute([0, 2, 3, 1])).unsqueeze_dim::<5>(3);
        let softmax_2 = activation::softmax((scores / 2.828427).mask_fill(mask.bool_not(), f32::NEG_INFINITY), 4);
        let product = softmax_2.squeeze_dim::<4>(3).matmul(updated_2.clone().swap_dims(1, 2)).reshape([b, 1, 32]);
        let x = x + self.output.forward(product);
        let mlp_norm = self.mlp_norm.forward(x.clone());
        let gate = activation::silu(self.gate.forward(mlp_norm.clone()));
        (updated, updated_2, x + self.down.forward(gate * self.up.forward(mlp_norm)))
    }
}

// words.weight: [40, 32]
// layers.0.attention_norm.gamma: [32]
// layers.0.key.weight: [32, 16]
// layers.0.value.weight: [32, 16]
// layers.0.query.weight: [32, 32]
// layers.0.output.weight: [32, 32]
// layers.0.mlp_norm.gamma: [32]
// layers.0.gate.weight: [32, 48]
// layers.0.up.weight: [32, 48]
// layers.0.down.weight: [48, 32]
// layers.1.attention_norm.gamma: [32]
// layers.1.key.weight: [32, 16]
// layers.1.value.weight: [32, 16]
// layers.1.query.weight: [32, 32]
// layers.1.output.weight: [32, 32]
// layers.1.mlp_norm.gamma: [32]
// layers.1.gate.weight: [32, 48]
// layers.1.up.weight: [32, 48]
// layers.1.down.weight: [48, 32]
// norm.gamma: [32]

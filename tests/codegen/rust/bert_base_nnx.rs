use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::{DType, activation};

use super::helpers::{check_shape, dot_product_attention, embed};

/// The model.
#[derive(Module, Debug)]
pub struct NnxBert {
    pub words: Embedding,
    pub positions: Embedding,
    pub segments: Embedding,
    pub norm: LayerNorm,
    pub layers: Vec<NnxLayer>,
    pub pooler: Linear,
}

impl NnxBert {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(40, 32).init(device),
            positions: EmbeddingConfig::new(16, 32).init(device),
            segments: EmbeddingConfig::new(2, 32).init(device),
            norm: LayerNormConfig::new(32).with_epsilon(1.0e-12).init(device),
            layers: (0..2).map(|_| NnxLayer::new(device)).collect(),
            pooler: LinearConfig::new(32, 32).init(device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, input_ids: &Tensor<2, Int>, attention_mask: &Tensor<2, Int>, token_type_ids: &Tensor<2, Int>) -> Result<(), String> {
        let [b, t] = input_ids.dims();
        check_shape("input_ids", input_ids.dims(), [b, t], "[B, T]")?;
        check_shape("attention_mask", attention_mask.dims(), [b, t], "[B, T]")?;
        check_shape("token_type_ids", token_type_ids.dims(), [b, t], "[B, T]")
    }

    /// Computes the module.
    pub fn forward(&self, input_ids: Tensor<2, Int>, attention_mask: Tensor<2, Int>, token_type_ids: Tensor<2, Int>) -> (Tensor<3>, Tensor<2>) {
        self.check(&input_ids, &attention_mask, &token_type_ids).unwrap_or_else(|error| panic!("{error}"));
        let device = input_ids.device();
        let [_, t] = input_ids.dims();
        let words = embed::<2, 3>(&self.words, input_ids);
        let positions = embed::<1, 2>(&self.positions, Tensor::arange(0..t as i64, (&device, DType::I32)));
        let x = words + positions.unsqueeze::<3>() + embed::<2, 3>(&self.segments, token_type_ids);
        let mut x = self.norm.forward(x);
        let mask = attention_mask.unsqueeze_dims::<4>(&[1, 2]).not_equal_elem(0);
        for layer in &self.layers {
            x = layer.forward(x, mask.clone());
        }
        (x.clone(), self.pooler.forward(x.slice_dim(1, ..1).squeeze_dim::<2>(1)).tanh())
    }
}

/// The module `layers.0` of the model.
#[derive(Module, Debug)]
pub struct NnxLayer {
    pub attention: MultiHeadAttentionLayer,
    pub attention_norm: LayerNorm,
    pub intermediate: Linear,
    pub output: Linear,
    pub output_norm: LayerNorm,
}

impl NnxLayer {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            attention: MultiHeadAttentionLayer::new(device),
            attention_norm: LayerNormConfig::new(32).with_epsilon(1.0e-12).init(device),
            intermediate: LinearConfig::new(32, 64).init(device),
            output: LinearConfig::new(64, 32).init(device),
            output_norm: LayerNormConfig::new(32).with_epsilon(1.0e-12).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, mask: Tensor<4, Bool>) -> Tensor<3> {
        let attention_norm = self.attention_norm.forward(x.clone() + self.attention.forward(x, mask));
        let output = self.output.forward(activation::gelu(self.intermediate.forward(attention_norm.clone())));
        self.output_norm.forward(attention_norm + output)
    }
}

/// The module `layers.0.attention` of the model.
#[derive(Module, Debug)]
pub struct MultiHeadAttentionLayer {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub out: Linear,
}

impl MultiHeadAttentionLayer {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            query: LinearConfig::new(32, 32).init(device),
            key: LinearConfig::new(32, 32).init(device),
            value: LinearConfig::new(32, 32).init(device),
            out: LinearConfig::new(32, 32).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, mask: Tensor<4, Bool>) -> Tensor<3> {
        let [b, t, _] = x.dims();
        let query = self.query.forward(x.clone()).reshape([b, t, 4, 8]);
        let key = self.key.forward(x.clone()).reshape([b, t, 4, 8]);
        let x = dot_product_attention(query, key, self.value.forward(x).reshape([b, t, 4, 8]), Some(mask));
        self.out.forward(x.reshape([b, t, 32]))
    }
}

// words.weight: [40, 32]
// positions.weight: [16, 32]
// segments.weight: [2, 32]
// norm.gamma: [32]
// norm.beta: [32]
// layers.0.attention.query.weight: [32, 32]
// layers.0.attention.query.bias: [32]
// layers.0.attention.key.weight: [32, 32]
// layers.0.attention.key.bias: [32]
// layers.0.attention.value.weight: [32, 32]
// layers.0.attention.value.bias: [32]
// layers.0.attention.out.weight: [32, 32]
// layers.0.attention.out.bias: [32]
// layers.0.attention_norm.gamma: [32]
// layers.0.attention_norm.beta: [32]
// layers.0.intermediate.weight: [32, 64]
// layers.0.intermediate.bias: [64]
// layers.0.output.weight: [64, 32]
// layers.0.output.bias: [32]
// layers.0.output_norm.gamma: [32]
// layers.0.output_norm.beta: [32]
// layers.1.attention.query.weight: [32, 32]
// layers.1.attention.query.bias: [32]
// layers.1.attention.key.weight: [32, 32]
// layers.1.attention.key.bias: [32]
// layers.1.attention.value.weight: [32, 32]
// layers.1.attention.value.bias: [32]
// layers.1.attention.out.weight: [32, 32]
// layers.1.attention.out.bias: [32]
// layers.1.attention_norm.gamma: [32]
// layers.1.attention_norm.beta: [32]
// layers.1.intermediate.weight: [32, 64]
// layers.1.intermediate.bias: [64]
// layers.1.output.weight: [64, 32]
// layers.1.output.bias: [32]
// layers.1.output_norm.gamma: [32]
// layers.1.output_norm.beta: [32]
// pooler.weight: [32, 32]
// pooler.bias: [32]

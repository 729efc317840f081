use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::{DType, activation};

use super::helpers::{causal_attention, check_shape, embed, linear_transposed};

/// The model.
#[derive(Module, Debug)]
pub struct NnxGpt2 {
    pub words: Embedding,
    pub positions: Embedding,
    pub blocks: Vec<NnxBlock>,
    pub norm: LayerNorm,
}

impl NnxGpt2 {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(40, 32).init(device),
            positions: EmbeddingConfig::new(16, 32).init(device),
            blocks: (0..2).map(|_| NnxBlock::new(device)).collect(),
            norm: LayerNormConfig::new(32).init(device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, ids: &Tensor<2, Int>) -> Result<(), String> {
        let [b, t] = ids.dims();
        check_shape("ids", ids.dims(), [b, t], "[B, T]")
    }

    /// Computes the module.
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.check(&ids).unwrap_or_else(|error| panic!("{error}"));
        let device = ids.device();
        let [_, t] = ids.dims();
        let positions = embed::<1, 2>(&self.positions, Tensor::arange(0..t as i64, (&device, DType::I32)));
        let mut x = embed::<2, 3>(&self.words, ids) + positions.unsqueeze::<3>();
        for block in &self.blocks {
            x = block.forward(x);
        }
        linear_transposed(self.norm.forward(x), self.words.weight.val())
    }
}

/// The module `blocks.0` of the model.
#[derive(Module, Debug)]
pub struct NnxBlock {
    pub attention_norm: LayerNorm,
    pub attention: MultiHeadAttention,
    pub mlp_norm: LayerNorm,
    pub widen: Linear,
    pub narrow: Linear,
}

impl NnxBlock {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            attention_norm: LayerNormConfig::new(32).init(device),
            attention: MultiHeadAttentionConfig::new(32, 4).with_dropout(0.0).with_min_float(f64::from(f32::MIN)).init(device),
            mlp_norm: LayerNormConfig::new(32).init(device),
            widen: LinearConfig::new(32, 128).init(device),
            narrow: LinearConfig::new(128, 32).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + causal_attention(&self.attention, self.attention_norm.forward(x));
        let hidden = activation::gelu_approximate(self.widen.forward(self.mlp_norm.forward(x.clone())));
        x + self.narrow.forward(hidden)
    }
}

// words.weight: [40, 32]
// positions.weight: [16, 32]
// blocks.0.attention_norm.gamma: [32]
// blocks.0.attention_norm.beta: [32]
// blocks.0.attention.query.weight: [32, 32]
// blocks.0.attention.query.bias: [32]
// blocks.0.attention.key.weight: [32, 32]
// blocks.0.attention.key.bias: [32]
// blocks.0.attention.value.weight: [32, 32]
// blocks.0.attention.value.bias: [32]
// blocks.0.attention.output.weight: [32, 32]
// blocks.0.attention.output.bias: [32]
// blocks.0.mlp_norm.gamma: [32]
// blocks.0.mlp_norm.beta: [32]
// blocks.0.widen.weight: [32, 128]
// blocks.0.widen.bias: [128]
// blocks.0.narrow.weight: [128, 32]
// blocks.0.narrow.bias: [32]
// blocks.1.attention_norm.gamma: [32]
// blocks.1.attention_norm.beta: [32]
// blocks.1.attention.query.weight: [32, 32]
// blocks.1.attention.query.bias: [32]
// blocks.1.attention.key.weight: [32, 32]
// blocks.1.attention.key.bias: [32]
// blocks.1.attention.value.weight: [32, 32]
// blocks.1.attention.value.bias: [32]
// blocks.1.attention.output.weight: [32, 32]
// blocks.1.attention.output.bias: [32]
// blocks.1.mlp_norm.gamma: [32]
// blocks.1.mlp_norm.beta: [32]
// blocks.1.widen.weight: [32, 128]
// blocks.1.widen.bias: [128]
// blocks.1.narrow.weight: [128, 32]
// blocks.1.narrow.bias: [32]
// norm.gamma: [32]
// norm.beta: [32]

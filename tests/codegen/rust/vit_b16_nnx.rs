use burn::module::{Initializer, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation;

use super::helpers::check_shape;

/// The model.
#[derive(Module, Debug)]
pub struct NnxViT {
    pub patches: Conv2d,
    pub blocks: Vec<NnxBlock>,
    pub norm: LayerNorm,
    pub head: Linear,
    pub class_token: Param<Tensor<3>>,
    pub positions: Param<Tensor<3>>,
}

impl NnxViT {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            patches: Conv2dConfig::new([3, 32], [8, 8]).with_stride([8, 8]).init(device),
            blocks: (0..2).map(|_| NnxBlock::new(device)).collect(),
            norm: LayerNormConfig::new(32).with_epsilon(1.0e-6).init(device),
            head: LinearConfig::new(32, 5).init(device),
            class_token: Initializer::Zeros.init([1, 1, 32], device),
            positions: Initializer::Normal { mean: 0.0, std: 0.02 }.init([1, 5, 32], device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, images: &Tensor<4>) -> Result<(), String> {
        let [b, _, _, _] = images.dims();
        check_shape("images", images.dims(), [b, 16, 16, 3], "[B, 16, 16, 3]")
    }

    /// Computes the module.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.check(&images).unwrap_or_else(|error| panic!("{error}"));
        let [b, _, _, _] = images.dims();
        let x = self.class_token.val().expand([b, 1, 32]);
        let patches = self.patches.forward(images.permute([0, 3, 1, 2])).permute([0, 2, 3, 1]).reshape([b, 4, 32]);
        let mut x = Tensor::cat(vec![x, patches], 1) + self.positions.val();
        for block in &self.blocks {
            x = block.forward(x);
        }
        self.head.forward(self.norm.forward(x).slice_dim(1, ..1).squeeze_dim::<2>(1))
    }
}

/// The module `blocks.0` of the model.
#[derive(Module, Debug)]
pub struct NnxBlock {
    pub attention_norm: LayerNorm,
    pub attention: MultiHeadAttention,
    pub mlp_norm: LayerNorm,
    pub mlp_0: Linear,
    pub mlp_3: Linear,
}

impl NnxBlock {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            attention_norm: LayerNormConfig::new(32).with_epsilon(1.0e-6).init(device),
            attention: MultiHeadAttentionConfig::new(32, 4).with_dropout(0.0).init(device),
            mlp_norm: LayerNormConfig::new(32).with_epsilon(1.0e-6).init(device),
            mlp_0: LinearConfig::new(32, 64).init(device),
            mlp_3: LinearConfig::new(64, 32).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let attention = self.attention.forward(MhaInput::self_attn(self.attention_norm.forward(x.clone()))).context;
        let x = x + attention;
        let hidden = activation::gelu_approximate(self.mlp_0.forward(self.mlp_norm.forward(x.clone())));
        x + self.mlp_3.forward(hidden)
    }
}

// class_token: [1, 1, 32]
// positions: [1, 5, 32]
// patches.weight: [32, 3, 8, 8]
// patches.bias: [32]
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
// blocks.0.mlp_0.weight: [32, 64]
// blocks.0.mlp_0.bias: [64]
// blocks.0.mlp_3.weight: [64, 32]
// blocks.0.mlp_3.bias: [32]
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
// blocks.1.mlp_0.weight: [32, 64]
// blocks.1.mlp_0.bias: [64]
// blocks.1.mlp_3.weight: [64, 32]
// blocks.1.mlp_3.bias: [32]
// norm.gamma: [32]
// norm.beta: [32]
// head.weight: [32, 5]
// head.bias: [5]

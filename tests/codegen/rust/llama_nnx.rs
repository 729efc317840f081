use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::prelude::*;
use burn::tensor::{DType, FloatDType, activation};

use super::helpers::{causal_mask, check_shape, dot_product_attention, embed, linear_transposed, rotary};

/// The model.
#[derive(Module, Debug)]
pub struct NnxLlama {
    pub words: Embedding,
    pub layers: Vec<NnxLayer>,
    pub norm: RmsNorm,
}

impl NnxLlama {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(40, 32).init(device),
            layers: (0..2).map(|_| NnxLayer::new(device)).collect(),
            norm: RmsNormConfig::new(32).init(device),
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
        let mut x = embed::<2, 3>(&self.words, ids);
        let positions = Tensor::arange(0..t as i64, (&device, DType::I32)).unsqueeze_dim::<2>(1).cast(FloatDType::F32);
        let scaled = positions * Tensor::<2>::from_data([[1.0, 0.1, 0.01, 0.001]], (&device, DType::F32));
        let scaled = scaled.unsqueeze_dim::<3>(1);
        let cos = scaled.clone().cos().unsqueeze::<4>();
        let sin = scaled.sin().unsqueeze::<4>();
        for layer in &self.layers {
            x = layer.forward(x, cos.clone(), sin.clone());
        }
        linear_transposed(self.norm.forward(x), self.words.weight.val())
    }
}

/// The module `layers.0` of the model.
#[derive(Module, Debug)]
pub struct NnxLayer {
    pub attention_norm: RmsNorm,
    pub attention: NnxAttention,
    pub mlp_norm: RmsNorm,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

impl NnxLayer {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            attention_norm: RmsNormConfig::new(32).init(device),
            attention: NnxAttention::new(device),
            mlp_norm: RmsNormConfig::new(32).init(device),
            gate: LinearConfig::new(32, 48).with_bias(false).init(device),
            up: LinearConfig::new(32, 48).with_bias(false).init(device),
            down: LinearConfig::new(48, 32).with_bias(false).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<3> {
        let x = x.clone() + self.attention.forward(self.attention_norm.forward(x), cos, sin);
        let mlp_norm = self.mlp_norm.forward(x.clone());
        let gate = activation::silu(self.gate.forward(mlp_norm.clone()));
        x + self.down.forward(gate * self.up.forward(mlp_norm))
    }
}

/// The module `layers.0.attention` of the model.
#[derive(Module, Debug)]
pub struct NnxAttention {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
}

impl NnxAttention {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            query: LinearConfig::new(32, 32).with_bias(false).init(device),
            key: LinearConfig::new(32, 16).with_bias(false).init(device),
            value: LinearConfig::new(32, 16).with_bias(false).init(device),
            output: LinearConfig::new(32, 32).with_bias(false).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<3> {
        let device = x.device();
        let [b, t, _] = x.dims();
        let query = rotary(self.query.forward(x.clone()).reshape([b, t, 4, 8]), cos.clone(), sin.clone());
        let key = rotary(self.key.forward(x.clone()).reshape([b, t, 2, 8]), cos, sin);
        let x = dot_product_attention(query, key, self.value.forward(x).reshape([b, t, 2, 8]), Some(causal_mask(t, t, &device)));
        self.output.forward(x.reshape([b, t, 32]))
    }
}

// words.weight: [40, 32]
// layers.0.attention_norm.gamma: [32]
// layers.0.attention.query.weight: [32, 32]
// layers.0.attention.key.weight: [32, 16]
// layers.0.attention.value.weight: [32, 16]
// layers.0.attention.output.weight: [32, 32]
// layers.0.mlp_norm.gamma: [32]
// layers.0.gate.weight: [32, 48]
// layers.0.up.weight: [32, 48]
// layers.0.down.weight: [48, 32]
// layers.1.attention_norm.gamma: [32]
// layers.1.attention.query.weight: [32, 32]
// layers.1.attention.key.weight: [32, 16]
// layers.1.attention.value.weight: [32, 16]
// layers.1.attention.output.weight: [32, 32]
// layers.1.mlp_norm.gamma: [32]
// layers.1.gate.weight: [32, 48]
// layers.1.up.weight: [32, 48]
// layers.1.down.weight: [48, 32]
// norm.gamma: [32]

use burn::module::{Initializer, Param};
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::prelude::*;

use super::helpers::{check_shape, dot_product_attention, rotary};

/// The model.
#[derive(Module, Debug)]
pub struct EquinoxCrossAttention {
    pub norm: RmsNormLayer,
    pub attention: MultiheadAttention,
}

impl EquinoxCrossAttention {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            norm: RmsNormLayer::new(device),
            attention: MultiheadAttention::new(device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, x: &Tensor<3>, memory: &Tensor<3>, memory_mask: &Tensor<2, Bool>) -> Result<(), String> {
        let [b, _, _] = x.dims();
        check_shape("x", x.dims(), [b, 5, 32], "[B, 5, 32]")?;
        check_shape("memory", memory.dims(), [b, 7, 32], "[B, 7, 32]")?;
        check_shape("memory_mask", memory_mask.dims(), [b, 7], "[B, 7]")
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, memory: Tensor<3>, memory_mask: Tensor<2, Bool>) -> Tensor<3> {
        self.check(&x, &memory, &memory_mask).unwrap_or_else(|error| panic!("{error}"));
        let attention = self.attention.forward(self.norm.forward(x.clone()), memory, memory_mask.unsqueeze_dims::<4>(&[1, 2]));
        x + attention
    }
}

/// The module `attention` of the model.
#[derive(Module, Debug)]
pub struct MultiheadAttention {
    pub query_proj: Linear,
    pub key_proj: Linear,
    pub value_proj: Linear,
    pub output_proj: Linear,
    pub table: Param<Tensor<3>>,
    pub table_2: Param<Tensor<3>>,
    pub table_3: Param<Tensor<3>>,
    pub table_4: Param<Tensor<3>>,
}

impl MultiheadAttention {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            query_proj: LinearConfig::new(32, 32).with_bias(false).init(device),
            key_proj: LinearConfig::new(32, 32).with_bias(false).init(device),
            value_proj: LinearConfig::new(32, 32).with_bias(false).init(device),
            output_proj: LinearConfig::new(32, 32).with_bias(false).init(device),
            table: Initializer::Zeros.init([1, 5, 4], device).set_require_grad(false),
            table_2: Initializer::Zeros.init([1, 5, 4], device).set_require_grad(false),
            table_3: Initializer::Zeros.init([1, 7, 4], device).set_require_grad(false),
            table_4: Initializer::Zeros.init([1, 7, 4], device).set_require_grad(false),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, memory: Tensor<3>, mask: Tensor<4, Bool>) -> Tensor<3> {
        let [b, _, _] = x.dims();
        let query_proj = self.query_proj.forward(x).reshape([b, 5, 4, 8]);
        let cos = self.table.val().expand([b, 5, 4]).unsqueeze_dim::<4>(2);
        let query = rotary(query_proj, cos, self.table_2.val().expand([b, 5, 4]).unsqueeze_dim::<4>(2));
        let key_proj = self.key_proj.forward(memory.clone()).reshape([b, 7, 4, 8]);
        let cos = self.table_3.val().expand([b, 7, 4]).unsqueeze_dim::<4>(2);
        let key = rotary(key_proj, cos, self.table_4.val().expand([b, 7, 4]).unsqueeze_dim::<4>(2));
        let x = dot_product_attention(query, key, self.value_proj.forward(memory).reshape([b, 7, 4, 8]), Some(mask));
        self.output_proj.forward(x.reshape([b, 5, 32]))
    }
}

/// The module `norm` of the model.
#[derive(Module, Debug)]
pub struct RmsNormLayer {
    pub norm: RmsNorm,
    pub bias: Param<Tensor<2>>,
}

impl RmsNormLayer {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            norm: RmsNormConfig::new(32).init(device),
            bias: Initializer::Zeros.init([1, 32], device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.norm.forward(x) + self.bias.val().unsqueeze::<3>()
    }
}

// norm.bias: [1, 32]
// norm.norm.gamma: [32]
// attention.table: [1, 5, 4]
// attention.table_2: [1, 5, 4]
// attention.table_3: [1, 7, 4]
// attention.table_4: [1, 7, 4]
// attention.query_proj.weight: [32, 32]
// attention.key_proj.weight: [32, 32]
// attention.value_proj.weight: [32, 32]
// attention.output_proj.weight: [32, 32]

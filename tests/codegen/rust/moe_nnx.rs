use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::prelude::*;
use burn::tensor::{DType, FloatDType, activation};

use super::helpers::{check_shape, top_k};

/// The model.
#[derive(Module, Debug)]
pub struct NnxMixture {
    pub layers: Vec<NnxExperts>,
}

impl NnxMixture {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            layers: (0..2).map(|_| NnxExperts::new(device)).collect(),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, x: &Tensor<3>) -> Result<(), String> {
        let [b, t, _] = x.dims();
        check_shape("x", x.dims(), [b, t, 16], "[B, T, 16]")
    }

    /// Computes the module.
    pub fn forward(&self, mut x: Tensor<3>) -> Tensor<3> {
        self.check(&x).unwrap_or_else(|error| panic!("{error}"));
        for layer in &self.layers {
            x = layer.forward(x);
        }
        x
    }
}

/// The module `layers.0` of the model.
#[derive(Module, Debug)]
pub struct NnxExperts {
    pub norm: RmsNorm,
    pub gate: Linear,
    pub up: Linear,
    pub router: Linear,
    pub down: Linear,
}

impl NnxExperts {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            norm: RmsNormConfig::new(16).with_epsilon(1.0e-6).init(device),
            gate: LinearConfig::new(16, 144).with_bias(false).init(device),
            up: LinearConfig::new(16, 144).with_bias(false).init(device),
            router: LinearConfig::new(16, 6).with_bias(false).init(device),
            down: LinearConfig::new(144, 16).with_bias(false).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let device = x.device();
        let [b, t, _] = x.dims();
        let norm = self.norm.forward(x.clone());
        let gate = activation::silu(self.gate.forward(norm.clone()).reshape([b, t, 6, 24]));
        let product = (gate * self.up.forward(norm.clone()).reshape([b, t, 6, 24])).unsqueeze_dim::<5>(4);
        let (greatest, indices) = top_k(self.router.forward(norm), 2);
        let x_2 = activation::softmax(greatest, 2).unsqueeze_dim::<4>(2);
        let x_3 = indices.unsqueeze_dim::<4>(3).equal(Tensor::arange(0..6, (&device, DType::I32)).unsqueeze::<4>()).cast(FloatDType::F32);
        let product = product.matmul(x_2.matmul(x_3).squeeze_dim::<3>(2).unsqueeze_dims::<5>(&[3, 4]));
        x + self.down.forward(product.reshape([b, t, 144]))
    }
}

// layers.0.norm.gamma: [16]
// layers.0.gate.weight: [16, 144]
// layers.0.up.weight: [16, 144]
// layers.0.router.weight: [16, 6]
// layers.0.down.weight: [144, 16]
// layers.1.norm.gamma: [16]
// layers.1.gate.weight: [16, 144]
// layers.1.up.weight: [16, 144]
// layers.1.router.weight: [16, 6]
// layers.1.down.weight: [144, 16]

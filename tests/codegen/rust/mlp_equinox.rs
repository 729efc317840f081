use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;

use super::helpers::{check_shape, softplus};

/// The model.
#[derive(Module, Debug)]
pub struct Mlp {
    pub layers: Vec<Linear>,
}

impl Mlp {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            layers: vec![LinearConfig::new(12, 32).init(device), LinearConfig::new(32, 32).init(device), LinearConfig::new(32, 5).init(device)],
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, x: &Tensor<2>) -> Result<(), String> {
        let [b, _] = x.dims();
        check_shape("x", x.dims(), [b, 12], "[B, 12]")
    }

    /// Computes the module.
    pub fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        self.check(&x).unwrap_or_else(|error| panic!("{error}"));
        for layer in &self.layers[..2] {
            x = softplus(layer.forward(x));
        }
        self.layers[2].forward(x)
    }
}

// layers.0.weight: [12, 32]
// layers.0.bias: [32]
// layers.1.weight: [32, 32]
// layers.1.bias: [32]
// layers.2.weight: [32, 5]
// layers.2.bias: [5]

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::store::{ModuleSnapshot, SafetensorsStore, SafetensorsStoreError};
use std::path::PathBuf;

use super::helpers::softplus;

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

    /// Reads the weights of a file of safetensors, which has the paths of the fields as names.
    pub fn load(path: impl Into<PathBuf>, device: &Device) -> Result<Self, SafetensorsStoreError> {
        let mut model = Self::new(device);
        model.load_from(&mut SafetensorsStore::from_file(path.into()))?;
        Ok(model)
    }

    /// Writes the weights, as `load` reads them; a file that is there is replaced.
    pub fn save(&self, path: impl Into<PathBuf>) -> Result<(), SafetensorsStoreError> {
        self.save_into(&mut SafetensorsStore::from_file(path.into()).overwrite(true))
    }

    /// Computes the module.
    pub fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
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

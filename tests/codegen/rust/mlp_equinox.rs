use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::store::{FloatCastAdapter, ModuleSnapshot, SafetensorsStore, SafetensorsStoreError};
use burn::tensor::DType;
use std::fs::{File, set_permissions};
use std::path::PathBuf;

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

    /// Reads the weights of a file of safetensors, which has the paths of the fields as names.
    pub fn load(path: impl Into<PathBuf>, device: &Device) -> Result<Self, SafetensorsStoreError> {
        Self::from_store(SafetensorsStore::from_file(path.into()), device)
    }

    /// Reads the weights of the bytes of such a file.
    pub fn from_bytes(bytes: Vec<u8>, device: &Device) -> Result<Self, SafetensorsStoreError> {
        Self::from_store(SafetensorsStore::from_bytes(Some(bytes)), device)
    }

    /// Writes the weights, as `load` reads them; a file that is there is replaced, and its permissions stay.
    pub fn save(&self, path: impl Into<PathBuf>) -> Result<(), SafetensorsStoreError> {
        let path = path.into();
        let file = File::options().append(true).create(true).open(&path)?;
        let permissions = file.metadata()?.permissions(); // the store makes a private file
        self.save_into(&mut SafetensorsStore::from_file(path.clone()).overwrite(true))?;
        Ok(set_permissions(path, permissions)?)
    }

    fn from_store(store: SafetensorsStore, device: &Device) -> Result<Self, SafetensorsStoreError> {
        let mut model = Self::new(device);
        model.load_from(&mut store.with_from_adapter(FloatCastAdapter::to(DType::F32)))?;
        Ok(model)
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

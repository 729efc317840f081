use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::prelude::*;
use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};
use burn::tensor::{activation, module};

use super::helpers::check_shape;

/// The model.
#[derive(Module, Debug)]
pub struct NnxCnn {
    pub stages_0: NnxStage,
    pub stages_1: NnxStage2,
    pub head: Linear,
}

impl NnxCnn {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            stages_0: NnxStage::new(device),
            stages_1: NnxStage2::new(device),
            head: LinearConfig::new(16, 5).init(device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, x: &Tensor<4>) -> Result<(), String> {
        let [b, _, _, _] = x.dims();
        check_shape("x", x.dims(), [b, 12, 12, 3], "[B, 12, 12, 3]")
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        self.check(&x).unwrap_or_else(|error| panic!("{error}"));
        let x = module::avg_pool2d(self.stages_1.forward(self.stages_0.forward(x)), AvgPoolOptions::new([2, 2]).with_stride([1, 1]).with_padding_pairs([(0, 1), (0, 1)]));
        self.head.forward(x.mean_dims(&[2, 3]).squeeze_dims::<2>(&[2, 3]))
    }
}

/// The module `stages.1` of the model.
#[derive(Module, Debug)]
pub struct NnxStage2 {
    pub conv: Conv2d,
    pub norm: BatchNorm,
}

impl NnxStage2 {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([8, 16], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device),
            norm: BatchNormConfig::new(16).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        module::max_pool2d(activation::relu(self.norm.forward(self.conv.forward(x))), MaxPoolOptions::new([2, 2]).with_stride([2, 2]))
    }
}

/// The module `stages.0` of the model.
#[derive(Module, Debug)]
pub struct NnxStage {
    pub conv: Conv2d,
    pub norm: BatchNorm,
}

impl NnxStage {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([3, 8], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device),
            norm: BatchNormConfig::new(8).init(device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = activation::relu(self.norm.forward(self.conv.forward(x.permute([0, 3, 1, 2]))));
        module::max_pool2d(x, MaxPoolOptions::new([2, 2]).with_stride([2, 2]))
    }
}

// stages_0.conv.weight: [8, 3, 3, 3]
// stages_0.conv.bias: [8]
// stages_0.norm.gamma: [8]
// stages_0.norm.beta: [8]
// stages_0.norm.running_mean: [8]
// stages_0.norm.running_var: [8]
// stages_1.conv.weight: [16, 8, 3, 3]
// stages_1.conv.bias: [16]
// stages_1.norm.gamma: [16]
// stages_1.norm.beta: [16]
// stages_1.norm.running_mean: [16]
// stages_1.norm.running_var: [16]
// head.weight: [16, 5]
// head.bias: [5]

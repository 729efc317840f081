use burn::nn::{Gru, GruConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::DType;

use super::helpers::{check_shape, gather_nd, gru_steps, gru_with_one_bias};

/// The model.
#[derive(Module, Debug)]
pub struct NnxBidirectionalGru {
    pub layers: Vec<Bidirectional>,
    pub head: Linear,
}

impl NnxBidirectionalGru {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            layers: vec![BidirectionalConfig::new(6).init(device), BidirectionalConfig::new(32).init(device)],
            head: LinearConfig::new(32, 5).init(device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, x: &Tensor<3>, lengths: &Tensor<1, Int>) -> Result<(), String> {
        let [b, t, _] = x.dims();
        check_shape("x", x.dims(), [b, t, 6], "[B, T, 6]")?;
        check_shape("lengths", lengths.dims(), [b], "[B]")
    }

    /// Computes the module.
    pub fn forward(&self, mut x: Tensor<3>, lengths: Tensor<1, Int>) -> Tensor<3> {
        self.check(&x, &lengths).unwrap_or_else(|error| panic!("{error}"));
        let device = x.device();
        let [b, t, _] = x.dims();
        let x_2 = Tensor::<2>::zeros([b, 16], (&device, DType::F32));
        let shifted = -Tensor::arange(0..t as i64, (&device, DType::I32)) + (t as i64 - 1);
        let remainder = (shifted.unsqueeze::<2>() + lengths.unsqueeze_dim::<2>(1)).remainder_scalar(t as i64);
        let remainder = remainder.unsqueeze_dim::<3>(2);
        for layer in &self.layers {
            x = layer.forward(x, x_2.clone(), remainder.clone());
        }
        self.head.forward(x)
    }
}

/// The configuration of [`Bidirectional`].
#[derive(Config, Debug)]
pub struct BidirectionalConfig {
    pub in_features: usize,
}

impl BidirectionalConfig {
    /// Makes the module with new weights.
    pub fn init(&self, device: &Device) -> Bidirectional {
        Bidirectional {
            forward_rnn: RnnConfig::new(self.in_features).init(device),
            backward_rnn: RnnWithGatherNdConfig::new(self.in_features).init(device),
        }
    }
}

/// The module `layers.0` of the model.
#[derive(Module, Debug)]
pub struct Bidirectional {
    pub forward_rnn: Rnn,
    pub backward_rnn: RnnWithGatherNd,
}

impl Bidirectional {
    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>, indices: Tensor<3, Int>) -> Tensor<3> {
        Tensor::cat(vec![self.forward_rnn.forward(x.clone(), x_2.clone()), self.backward_rnn.forward(x, indices, x_2)], 2)
    }
}

/// The configuration of [`RnnWithGatherNd`].
#[derive(Config, Debug)]
pub struct RnnWithGatherNdConfig {
    pub in_features: usize,
}

impl RnnWithGatherNdConfig {
    /// Makes the module with new weights.
    pub fn init(&self, device: &Device) -> RnnWithGatherNd {
        RnnWithGatherNd {
            cell: gru_with_one_bias(GruConfig::new(self.in_features, 16, true).init(device)),
        }
    }
}

/// The module `layers.0.backward_rnn` of the model.
#[derive(Module, Debug)]
pub struct RnnWithGatherNd {
    pub cell: Gru,
}

impl RnnWithGatherNd {
    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, indices: Tensor<3, Int>, x_2: Tensor<2>) -> Tensor<3> {
        let x = gru_steps(&self.cell, gather_nd::<3, 3, 3, _>(x, indices.clone(), 1).swap_dims(0, 1), Some(x_2));
        gather_nd::<3, 3, 3, _>(x.swap_dims(0, 1), indices, 1)
    }
}

/// The configuration of [`Rnn`].
#[derive(Config, Debug)]
pub struct RnnConfig {
    pub in_features: usize,
}

impl RnnConfig {
    /// Makes the module with new weights.
    pub fn init(&self, device: &Device) -> Rnn {
        Rnn {
            cell: gru_with_one_bias(GruConfig::new(self.in_features, 16, true).init(device)),
        }
    }
}

/// The module `layers.0.forward_rnn` of the model.
#[derive(Module, Debug)]
pub struct Rnn {
    pub cell: Gru,
}

impl Rnn {
    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>) -> Tensor<3> {
        let x = gru_steps(&self.cell, x.swap_dims(0, 1), Some(x_2));
        x.swap_dims(0, 1)
    }
}

// layers.0.forward_rnn.cell.reset_gate.input_transform.weight: [6, 16]
// layers.0.forward_rnn.cell.update_gate.input_transform.weight: [6, 16]
// layers.0.forward_rnn.cell.new_gate.input_transform.weight: [6, 16]
// layers.0.forward_rnn.cell.reset_gate.hidden_transform.weight: [16, 16]
// layers.0.forward_rnn.cell.update_gate.hidden_transform.weight: [16, 16]
// layers.0.forward_rnn.cell.new_gate.hidden_transform.weight: [16, 16]
// layers.0.forward_rnn.cell.reset_gate.input_transform.bias: [16]
// layers.0.forward_rnn.cell.update_gate.input_transform.bias: [16]
// layers.0.forward_rnn.cell.new_gate.input_transform.bias: [16]
// layers.0.backward_rnn.cell.reset_gate.input_transform.weight: [6, 16]
// layers.0.backward_rnn.cell.update_gate.input_transform.weight: [6, 16]
// layers.0.backward_rnn.cell.new_gate.input_transform.weight: [6, 16]
// layers.0.backward_rnn.cell.reset_gate.hidden_transform.weight: [16, 16]
// layers.0.backward_rnn.cell.update_gate.hidden_transform.weight: [16, 16]
// layers.0.backward_rnn.cell.new_gate.hidden_transform.weight: [16, 16]
// layers.0.backward_rnn.cell.reset_gate.input_transform.bias: [16]
// layers.0.backward_rnn.cell.update_gate.input_transform.bias: [16]
// layers.0.backward_rnn.cell.new_gate.input_transform.bias: [16]
// layers.1.forward_rnn.cell.reset_gate.input_transform.weight: [32, 16]
// layers.1.forward_rnn.cell.update_gate.input_transform.weight: [32, 16]
// layers.1.forward_rnn.cell.new_gate.input_transform.weight: [32, 16]
// layers.1.forward_rnn.cell.reset_gate.hidden_transform.weight: [16, 16]
// layers.1.forward_rnn.cell.update_gate.hidden_transform.weight: [16, 16]
// layers.1.forward_rnn.cell.new_gate.hidden_transform.weight: [16, 16]
// layers.1.forward_rnn.cell.reset_gate.input_transform.bias: [16]
// layers.1.forward_rnn.cell.update_gate.input_transform.bias: [16]
// layers.1.forward_rnn.cell.new_gate.input_transform.bias: [16]
// layers.1.backward_rnn.cell.reset_gate.input_transform.weight: [32, 16]
// layers.1.backward_rnn.cell.update_gate.input_transform.weight: [32, 16]
// layers.1.backward_rnn.cell.new_gate.input_transform.weight: [32, 16]
// layers.1.backward_rnn.cell.reset_gate.hidden_transform.weight: [16, 16]
// layers.1.backward_rnn.cell.update_gate.hidden_transform.weight: [16, 16]
// layers.1.backward_rnn.cell.new_gate.hidden_transform.weight: [16, 16]
// layers.1.backward_rnn.cell.reset_gate.input_transform.bias: [16]
// layers.1.backward_rnn.cell.update_gate.input_transform.bias: [16]
// layers.1.backward_rnn.cell.new_gate.input_transform.bias: [16]
// head.weight: [32, 5]
// head.bias: [5]

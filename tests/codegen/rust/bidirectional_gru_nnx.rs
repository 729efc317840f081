use burn::nn::{Gru, GruConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::DType;

use super::helpers::{check_shape, gather_nd, gru_with_one_bias, rem_int};

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
        let remainder = computed(shifted.unsqueeze::<2>() + lengths.unsqueeze_dim::<2>(1));
        let remainder_2 = remainder.clone().unsqueeze_dim::<3>(2);
        let mask = remainder.clone().equal(remainder).unsqueeze_dim::<3>(2);
        for layer in &self.layers {
            x = layer.forward(x, x_2.clone(), remainder_2.clone(), mask.clone());
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
            backward_rnn: RnnWithMaskFillConfig::new(self.in_features).init(device),
        }
    }
}

/// The module `layers.0` of the model.
#[derive(Module, Debug)]
pub struct Bidirectional {
    pub forward_rnn: Rnn,
    pub backward_rnn: RnnWithMaskFill,
}

impl Bidirectional {
    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>, indices: Tensor<3, Int>, mask: Tensor<3, Bool>) -> Tensor<3> {
        Tensor::cat(vec![self.forward_rnn.forward(x.clone(), x_2.clone()), self.backward_rnn.forward(x, indices, mask, x_2)], 2)
    }
}

/// The configuration of [`RnnWithMaskFill`].
#[derive(Config, Debug)]
pub struct RnnWithMaskFillConfig {
    pub in_features: usize,
}

impl RnnWithMaskFillConfig {
    /// Makes the module with new weights.
    pub fn init(&self, device: &Device) -> RnnWithMaskFill {
        RnnWithMaskFill {
            cell: gru_with_one_bias(GruConfig::new(self.in_features, 16, true).init(device)),
        }
    }
}

/// The module `layers.0.backward_rnn` of the model.
#[derive(Module, Debug)]
pub struct RnnWithMaskFill {
    pub cell: Gru,
}

impl RnnWithMaskFill {
    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, indices: Tensor<3, Int>, mask: Tensor<3, Bool>, x_2: Tensor<2>) -> Tensor<3> {
        let x = gather_nd::<3, 3, 3, _>(x, indices.clone(), 1).mask_fill(mask.clone().bool_not(), f32::NAN).swap_dims(0, 1);
        let x = self.cell.forward(x.swap_dims(0, 1), Some(x_2)).swap_dims(0, 1);
        gather_nd::<3, 3, 3, _>(x.swap_dims(0, 1), indices, 1).mask_fill(mask.bool_not(), f32::NAN)
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
        let x = self.cell.forward(x, Some(x_2)).swap_dims(0, 1);
        x.swap_dims(0, 1)
    }
}

fn computed(x: Tensor<2, Int>) -> Tensor<2, Int> {
    let device = x.device();
    let [_, t] = x.dims();
    let x_2 = Tensor::<1, Int>::full([1], t as i64, (&device, DType::I32)).equal(Tensor::<1, Int>::zeros([1], (&device, DType::I32)));
    let x_3 = Tensor::<1, Int>::full([1], t as i64, (&device, DType::I32)).mask_where(x_2, Tensor::<1, Int>::ones([1], (&device, DType::I32)));
    let x_4 = rem_int(x, x_3.clone().unsqueeze::<2>());
    let x_5 = x_4.clone().lower_elem(0).not_equal(x_3.clone().lower_elem(0).unsqueeze::<2>()).bool_and(x_4.clone().not_equal_elem(0));
    x_4.clone().mask_where(x_5, x_4 + x_3.unsqueeze::<2>())
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

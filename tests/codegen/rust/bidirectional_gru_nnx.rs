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
            layers: vec![Bidirectional::new(6, device), Bidirectional::new(32, device)],
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
        let x_3 = -Tensor::arange(0..t as i64, (&device, DType::I32)) + (t as i64 - 1);
        let x_3 = computed(x_3.unsqueeze::<2>() + lengths.unsqueeze_dim::<2>(1));
        let x_4 = x_3.clone().unsqueeze_dim::<3>(2);
        let x_3 = x_3.clone().equal(x_3).unsqueeze_dim::<3>(2);
        for layer in &self.layers {
            x = layer.forward(x, x_2.clone(), x_4.clone(), x_3.clone());
        }
        self.head.forward(x)
    }
}

/// The module `layers.0` of the model.
#[derive(Module, Debug)]
pub struct Bidirectional {
    pub forward_rnn: Rnn,
    pub backward_rnn: Rnn2,
}

impl Bidirectional {
    /// Makes the module with new weights.
    pub fn new(in_features: usize, device: &Device) -> Self {
        Self {
            forward_rnn: Rnn::new(in_features, device),
            backward_rnn: Rnn2::new(in_features, device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>, indices: Tensor<3, Int>, mask: Tensor<3, Bool>) -> Tensor<3> {
        Tensor::cat(vec![self.forward_rnn.forward(x.clone(), x_2.clone()), self.backward_rnn.forward(x, indices, mask, x_2)], 2)
    }
}

/// The module `layers.0.backward_rnn` of the model.
#[derive(Module, Debug)]
pub struct Rnn2 {
    pub cell: Gru,
}

impl Rnn2 {
    /// Makes the module with new weights.
    pub fn new(in_features: usize, device: &Device) -> Self {
        Self {
            cell: gru_with_one_bias(GruConfig::new(in_features, 16, true).init(device)),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, indices: Tensor<3, Int>, mask: Tensor<3, Bool>, x_2: Tensor<2>) -> Tensor<3> {
        let x = gather_nd::<3, 3, 3, _>(x, indices.clone(), 1).mask_fill(mask.clone().bool_not(), f32::NAN);
        let x = self.cell.forward(x, Some(x_2)).swap_dims(0, 1);
        gather_nd::<3, 3, 3, _>(x.swap_dims(0, 1), indices, 1).mask_fill(mask.bool_not(), f32::NAN)
    }
}

/// The module `layers.0.forward_rnn` of the model.
#[derive(Module, Debug)]
pub struct Rnn {
    pub cell: Gru,
}

impl Rnn {
    /// Makes the module with new weights.
    pub fn new(in_features: usize, device: &Device) -> Self {
        Self {
            cell: gru_with_one_bias(GruConfig::new(in_features, 16, true).init(device)),
        }
    }

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

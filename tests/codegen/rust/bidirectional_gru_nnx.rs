use burn::module::{Initializer, Param};
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::{DType, activation, module};

use super::helpers::{check_shape, gather_nd, rem_int};

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
    pub fn new(size: usize, device: &Device) -> Self {
        Self {
            forward_rnn: Rnn::new(size, device),
            backward_rnn: Rnn2::new(size, device),
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
    pub cell: GRUCell,
}

impl Rnn2 {
    /// Makes the module with new weights.
    pub fn new(size: usize, device: &Device) -> Self {
        Self {
            cell: GRUCell::new(size, device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, indices: Tensor<3, Int>, mask: Tensor<3, Bool>, x_2: Tensor<2>) -> Tensor<3> {
        let x = gather_nd::<3, 3, 3, _>(x, indices.clone(), 1).mask_fill(mask.clone().bool_not(), f32::NAN);
        let x = gather_nd::<3, 3, 3, _>(self.cell.forward(x.swap_dims(0, 1), x_2).swap_dims(0, 1), indices, 1);
        x.mask_fill(mask.bool_not(), f32::NAN)
    }
}

/// The module `layers.0.forward_rnn` of the model.
#[derive(Module, Debug)]
pub struct Rnn {
    pub cell: GRUCell,
}

impl Rnn {
    /// Makes the module with new weights.
    pub fn new(size: usize, device: &Device) -> Self {
        Self {
            cell: GRUCell::new(size, device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>) -> Tensor<3> {
        self.cell.forward(x.swap_dims(0, 1), x_2).swap_dims(0, 1)
    }
}

/// The module `layers.0.forward_rnn.cell` of the model.
#[derive(Module, Debug)]
pub struct GRUCell {
    pub kernel: Param<Tensor<2>>,
    pub kernel_2: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
}

impl GRUCell {
    /// Makes the module with new weights.
    pub fn new(size: usize, device: &Device) -> Self {
        Self {
            kernel: Initializer::Normal { mean: 0.0, std: 0.02 }.init([48, 16], device),
            kernel_2: Initializer::Normal { mean: 0.0, std: 0.02 }.init([48, size], device),
            bias: Initializer::Zeros.init([48], device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>) -> Tensor<3> {
        let device = x.device();
        let x_3 = self.kernel_2.val().slice(s![16..32]);
        let x_4 = self.kernel_2.val().slice(s![..16]);
        let x_3 = Tensor::cat(vec![x_3, x_4, self.kernel_2.val().slice(s![32..])], 0).unsqueeze::<3>();
        let x = module::linear(x, x_3.squeeze_dim::<2>(0).transpose(), None);
        let x_3 = self.bias.val().slice(s![16..32]);
        let x_3 = Tensor::cat(vec![x_3, self.bias.val().slice(s![..16]), self.bias.val().slice(s![32..])], 0);
        let x_3 = Tensor::cat(vec![x_3.unsqueeze::<2>(), Tensor::<2>::zeros([1, 48], (&device, DType::F32))], 1);
        let x = x + x_3.clone().slice_dim(1, ..48).squeeze_dim::<1>(0).unsqueeze::<3>();
        let x_4 = self.kernel.val().slice(s![16..32]);
        let x_5 = self.kernel.val().slice(s![..16]);
        let x_4 = Tensor::cat(vec![x_4, x_5, self.kernel.val().slice(s![32..])], 0).unsqueeze::<3>();
        let x_5 = x_4.clone().slice_dim(1, ..32).squeeze_dim::<2>(0).transpose();
        let x_3 = x_3.slice_dim(1, 48..).squeeze_dim::<1>(0);
        let x_4 = x_4.slice_dim(1, 32..).squeeze_dim::<2>(0).transpose();
        let x_6 = x_3.clone().slice(s![32..]);
        let (_, x) = scan(x_2, x, x_5, x_3, x_4, x_6);
        x
    }
}

fn scan(x0: Tensor<2>, x1: Tensor<3>, x2: Tensor<2>, x3: Tensor<1>, x4: Tensor<2>, x5: Tensor<1>) -> (Tensor<2>, Tensor<3>) {
    let [t, _, _] = x1.dims();
    let mut carry = x0;
    let mut rows = Vec::new();
    for t_2 in 0..t {
        let row = x1.clone().narrow(0, t_2, 1).squeeze_dim::<2>(0);
        let x = row.clone().slice_dim(1, ..32) + carry.clone().matmul(x2.clone()) + x3.clone().slice(s![..32]).unsqueeze::<2>();
        let x_2 = activation::sigmoid(x.clone().slice_dim(1, ..16));
        let x_3 = row.slice_dim(1, 32..) + activation::sigmoid(x.slice_dim(1, 16..)) * (carry.clone().matmul(x4.clone()) + x5.clone().unsqueeze::<2>());
        let x_4 = (-x_2.clone() + 1.0) * x_3.tanh() + x_2 * carry;
        rows.push(x_4.clone());
        carry = x_4;
    }
    (carry, Tensor::stack::<3>(rows, 0))
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

// layers.0.forward_rnn.cell.kernel: [48, 16]
// layers.0.forward_rnn.cell.kernel_2: [48, 6]
// layers.0.forward_rnn.cell.bias: [48]
// layers.0.backward_rnn.cell.kernel: [48, 16]
// layers.0.backward_rnn.cell.kernel_2: [48, 6]
// layers.0.backward_rnn.cell.bias: [48]
// layers.1.forward_rnn.cell.kernel: [48, 16]
// layers.1.forward_rnn.cell.kernel_2: [48, 32]
// layers.1.forward_rnn.cell.bias: [48]
// layers.1.backward_rnn.cell.kernel: [48, 16]
// layers.1.backward_rnn.cell.kernel_2: [48, 32]
// layers.1.backward_rnn.cell.bias: [48]
// head.weight: [32, 5]
// head.bias: [5]

use burn::module::{Initializer, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::{DType, activation, module};

use super::helpers::{check_shape, embed};

/// The results of the model.
#[derive(Debug)]
pub struct Outputs {
    pub output_0: Tensor<3>,
    pub output_1_0_0: Tensor<2>,
    pub output_1_0_1: Tensor<2>,
    pub output_1_1_0: Tensor<2>,
    pub output_1_1_1: Tensor<2>,
}

/// The model.
#[derive(Module, Debug)]
pub struct LinenLstm {
    pub embed_0: Embedding,
    pub rnn_0: Rnn,
    pub rnn_1: Rnn2,
    pub dense_0: Linear,
}

impl LinenLstm {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            embed_0: EmbeddingConfig::new(40, 16).init(device),
            rnn_0: Rnn::new(device),
            rnn_1: Rnn2::new(device),
            dense_0: LinearConfig::new(16, 40).init(device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, ids: &Tensor<2, Int>) -> Result<(), String> {
        let [b, t] = ids.dims();
        check_shape("ids", ids.dims(), [b, t], "[B, T]")
    }

    /// Computes the module.
    pub fn forward(&self, ids: Tensor<2, Int>) -> Outputs {
        self.check(&ids).unwrap_or_else(|error| panic!("{error}"));
        let device = ids.device();
        let [b, _] = ids.dims();
        let embed_0 = embed::<2, 3>(&self.embed_0, ids);
        let x = Tensor::<2>::zeros([b, 16], (&device, DType::F32));
        let (x_2, x_3, x_4) = self.rnn_0.forward(embed_0, x.clone());
        let (x, x_4, x_5) = self.rnn_1.forward(x_4, x);
        Outputs { output_0: self.dense_0.forward(x_5), output_1_0_0: x_3, output_1_0_1: x_2, output_1_1_0: x_4, output_1_1_1: x }
    }
}

/// The module `RNN_1` of the model.
#[derive(Module, Debug)]
pub struct Rnn2 {
    pub kernel: Param<Tensor<2>>,
    pub kernel_2: Param<Tensor<2>>,
    pub kernel_3: Param<Tensor<2>>,
    pub kernel_4: Param<Tensor<2>>,
    pub kernel_5: Param<Tensor<2>>,
    pub kernel_6: Param<Tensor<2>>,
    pub kernel_7: Param<Tensor<2>>,
    pub kernel_8: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
    pub bias_2: Param<Tensor<1>>,
    pub bias_3: Param<Tensor<1>>,
    pub bias_4: Param<Tensor<1>>,
}

impl Rnn2 {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            kernel: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_2: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_3: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_4: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_5: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_6: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_7: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_8: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            bias: Initializer::Zeros.init([16], device),
            bias_2: Initializer::Zeros.init([16], device),
            bias_3: Initializer::Zeros.init([16], device),
            bias_4: Initializer::Zeros.init([16], device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>) -> (Tensor<2>, Tensor<2>, Tensor<3>) {
        let device = x.device();
        let x_3 = Tensor::cat(vec![self.kernel_5.val(), self.kernel_6.val(), self.kernel_7.val(), self.kernel_8.val()], 1);
        let x_3 = x_3.transpose();
        let x_3 = Tensor::cat(vec![x_3.clone().slice(s![..16]), x_3.clone().slice(s![48..]), x_3.slice(s![16..48])], 0);
        let x = module::linear(x, x_3.unsqueeze::<3>().squeeze_dim::<2>(0).transpose(), None);
        let x_3 = Tensor::cat(vec![self.bias.val(), self.bias_2.val(), self.bias_3.val(), self.bias_4.val()], 0);
        let x_3 = Tensor::cat(vec![x_3.clone().slice(s![..16]), x_3.clone().slice(s![48..]), x_3.slice(s![16..48])], 0);
        let x_3 = Tensor::cat(vec![x_3.unsqueeze::<2>(), Tensor::<2>::zeros([1, 64], (&device, DType::F32))], 1);
        let x_4 = x_3.clone().slice_dim(1, ..64).squeeze_dim::<1>(0);
        let x = x + (x_4 + x_3.slice_dim(1, 64..).squeeze_dim::<1>(0)).unsqueeze::<3>();
        let x_3 = Tensor::cat(vec![self.kernel.val(), self.kernel_2.val(), self.kernel_3.val(), self.kernel_4.val()], 1);
        let x_3 = x_3.transpose();
        let x_3 = Tensor::cat(vec![x_3.clone().slice(s![..16]), x_3.clone().slice(s![48..]), x_3.slice(s![16..48])], 0);
        let x_3 = x_3.unsqueeze::<3>().squeeze_dim::<2>(0).transpose();
        let (x, x_2, x_3) = scan(x_2, x, x_3);
        (x, x_2, x_3.swap_dims(0, 1))
    }
}

/// The module `RNN_0` of the model.
#[derive(Module, Debug)]
pub struct Rnn {
    pub kernel: Param<Tensor<2>>,
    pub kernel_2: Param<Tensor<2>>,
    pub kernel_3: Param<Tensor<2>>,
    pub kernel_4: Param<Tensor<2>>,
    pub kernel_5: Param<Tensor<2>>,
    pub kernel_6: Param<Tensor<2>>,
    pub kernel_7: Param<Tensor<2>>,
    pub kernel_8: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
    pub bias_2: Param<Tensor<1>>,
    pub bias_3: Param<Tensor<1>>,
    pub bias_4: Param<Tensor<1>>,
}

impl Rnn {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            kernel: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_2: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_3: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_4: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_5: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_6: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_7: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            kernel_8: Initializer::Normal { mean: 0.0, std: 0.02 }.init([16, 16], device),
            bias: Initializer::Zeros.init([16], device),
            bias_2: Initializer::Zeros.init([16], device),
            bias_3: Initializer::Zeros.init([16], device),
            bias_4: Initializer::Zeros.init([16], device),
        }
    }

    /// Computes the module.
    pub fn forward(&self, x: Tensor<3>, x_2: Tensor<2>) -> (Tensor<2>, Tensor<2>, Tensor<3>) {
        let device = x.device();
        let x_3 = Tensor::cat(vec![self.kernel_5.val(), self.kernel_6.val(), self.kernel_7.val(), self.kernel_8.val()], 1);
        let x_3 = x_3.transpose();
        let x_3 = Tensor::cat(vec![x_3.clone().slice(s![..16]), x_3.clone().slice(s![48..]), x_3.slice(s![16..48])], 0);
        let x = module::linear(x.swap_dims(0, 1), x_3.unsqueeze::<3>().squeeze_dim::<2>(0).transpose(), None);
        let x_3 = Tensor::cat(vec![self.bias.val(), self.bias_2.val(), self.bias_3.val(), self.bias_4.val()], 0);
        let x_3 = Tensor::cat(vec![x_3.clone().slice(s![..16]), x_3.clone().slice(s![48..]), x_3.slice(s![16..48])], 0);
        let x_3 = Tensor::cat(vec![x_3.unsqueeze::<2>(), Tensor::<2>::zeros([1, 64], (&device, DType::F32))], 1);
        let x_4 = x_3.clone().slice_dim(1, ..64).squeeze_dim::<1>(0);
        let x = x + (x_4 + x_3.slice_dim(1, 64..).squeeze_dim::<1>(0)).unsqueeze::<3>();
        let x_3 = Tensor::cat(vec![self.kernel.val(), self.kernel_2.val(), self.kernel_3.val(), self.kernel_4.val()], 1);
        let x_3 = x_3.transpose();
        let x_3 = Tensor::cat(vec![x_3.clone().slice(s![..16]), x_3.clone().slice(s![48..]), x_3.slice(s![16..48])], 0);
        let x_3 = x_3.unsqueeze::<3>().squeeze_dim::<2>(0).transpose();
        scan(x_2, x, x_3)
    }
}

fn scan(x: Tensor<2>, y: Tensor<3>, z: Tensor<2>) -> (Tensor<2>, Tensor<2>, Tensor<3>) {
    let [t, _, _] = y.dims();
    let mut carry = x.clone();
    let mut carry_2 = x;
    let mut rows = Vec::new();
    for t_2 in 0..t {
        let row = y.clone().narrow(0, t_2, 1).squeeze_dim::<2>(0);
        let x_2 = row + carry.matmul(z.clone());
        let x_3 = activation::sigmoid(x_2.clone().slice_dim(1, 32..48)) * carry_2 + activation::sigmoid(x_2.clone().slice_dim(1, ..16)) * x_2.clone().slice_dim(1, 48..).tanh();
        let x_4 = activation::sigmoid(x_2.slice_dim(1, 16..32)) * x_3.clone().tanh();
        rows.push(x_4.clone());
        (carry, carry_2) = (x_4, x_3);
    }
    (carry, carry_2, Tensor::stack::<3>(rows, 0))
}

// embed_0.weight: [40, 16]
// rnn_0.kernel: [16, 16]
// rnn_0.kernel_2: [16, 16]
// rnn_0.kernel_3: [16, 16]
// rnn_0.kernel_4: [16, 16]
// rnn_0.kernel_5: [16, 16]
// rnn_0.kernel_6: [16, 16]
// rnn_0.kernel_7: [16, 16]
// rnn_0.kernel_8: [16, 16]
// rnn_0.bias: [16]
// rnn_0.bias_2: [16]
// rnn_0.bias_3: [16]
// rnn_0.bias_4: [16]
// rnn_1.kernel: [16, 16]
// rnn_1.kernel_2: [16, 16]
// rnn_1.kernel_3: [16, 16]
// rnn_1.kernel_4: [16, 16]
// rnn_1.kernel_5: [16, 16]
// rnn_1.kernel_6: [16, 16]
// rnn_1.kernel_7: [16, 16]
// rnn_1.kernel_8: [16, 16]
// rnn_1.bias: [16]
// rnn_1.bias_2: [16]
// rnn_1.bias_3: [16]
// rnn_1.bias_4: [16]
// dense_0.weight: [16, 40]
// dense_0.bias: [40]

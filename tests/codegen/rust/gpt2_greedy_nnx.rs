use burn::module::{Initializer, Param};
use burn::nn::{Embedding, EmbeddingConfig};
use burn::prelude::*;
use burn::tensor::ops::PadMode;
use burn::tensor::{DType, IndexingUpdateOp, IntDType};

use super::helpers::{Windows, check_shape, embed, lax_scatter, select_filled, wrapped};

/// The model.
#[derive(Module, Debug)]
pub struct NnxGpt2 {
    pub positions: Embedding,
    pub words: Embedding,
    pub scale: Param<Tensor<1>>,
    pub bias: Param<Tensor<1>>,
    pub kernel: Param<Tensor<2>>,
    pub bias_2: Param<Tensor<1>>,
    pub kernel_2: Param<Tensor<2>>,
    pub bias_3: Param<Tensor<1>>,
    pub kernel_3: Param<Tensor<2>>,
    pub bias_4: Param<Tensor<1>>,
    pub kernel_4: Param<Tensor<2>>,
    pub bias_5: Param<Tensor<1>>,
    pub scale_2: Param<Tensor<1>>,
    pub bias_6: Param<Tensor<1>>,
    pub kernel_5: Param<Tensor<2>>,
    pub bias_7: Param<Tensor<1>>,
    pub kernel_6: Param<Tensor<2>>,
    pub bias_8: Param<Tensor<1>>,
    pub scale_3: Param<Tensor<1>>,
    pub bias_9: Param<Tensor<1>>,
    pub kernel_7: Param<Tensor<2>>,
    pub bias_10: Param<Tensor<1>>,
    pub kernel_8: Param<Tensor<2>>,
    pub bias_11: Param<Tensor<1>>,
    pub kernel_9: Param<Tensor<2>>,
    pub bias_12: Param<Tensor<1>>,
    pub kernel_10: Param<Tensor<2>>,
    pub bias_13: Param<Tensor<1>>,
    pub scale_4: Param<Tensor<1>>,
    pub bias_14: Param<Tensor<1>>,
    pub kernel_11: Param<Tensor<2>>,
    pub bias_15: Param<Tensor<1>>,
    pub kernel_12: Param<Tensor<2>>,
    pub bias_16: Param<Tensor<1>>,
    pub scale_5: Param<Tensor<1>>,
    pub bias_17: Param<Tensor<1>>,
}

impl NnxGpt2 {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            positions: EmbeddingConfig::new(16, 32).init(device),
            words: EmbeddingConfig::new(40, 32).init(device),
            scale: Initializer::Zeros.init([32], device),
            bias: Initializer::Zeros.init([32], device),
            kernel: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_2: Initializer::Zeros.init([32], device),
            kernel_2: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_3: Initializer::Zeros.init([32], device),
            kernel_3: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_4: Initializer::Zeros.init([32], device),
            kernel_4: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_5: Initializer::Zeros.init([32], device),
            scale_2: Initializer::Zeros.init([32], device),
            bias_6: Initializer::Zeros.init([32], device),
            kernel_5: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 128], device),
            bias_7: Initializer::Zeros.init([128], device),
            kernel_6: Initializer::Normal { mean: 0.0, std: 0.02 }.init([128, 32], device),
            bias_8: Initializer::Zeros.init([32], device),
            scale_3: Initializer::Zeros.init([32], device),
            bias_9: Initializer::Zeros.init([32], device),
            kernel_7: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_10: Initializer::Zeros.init([32], device),
            kernel_8: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_11: Initializer::Zeros.init([32], device),
            kernel_9: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_12: Initializer::Zeros.init([32], device),
            kernel_10: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 32], device),
            bias_13: Initializer::Zeros.init([32], device),
            scale_4: Initializer::Zeros.init([32], device),
            bias_14: Initializer::Zeros.init([32], device),
            kernel_11: Initializer::Normal { mean: 0.0, std: 0.02 }.init([32, 128], device),
            bias_15: Initializer::Zeros.init([128], device),
            kernel_12: Initializer::Normal { mean: 0.0, std: 0.02 }.init([128, 32], device),
            bias_16: Initializer::Zeros.init([32], device),
            scale_5: Initializer::Zeros.init([32], device),
            bias_17: Initializer::Zeros.init([32], device),
        }
    }

    /// Checks the shapes of the inputs. `forward` does so, too, and panics with the same text.
    pub fn check(&self, prompt: &Tensor<2, Int>) -> Result<(), String> {
        let [b, t] = prompt.dims();
        check_shape("prompt", prompt.dims(), [b, t], "[B, T]")
    }

    /// Computes the module.
    pub fn forward(&self, prompt: Tensor<2, Int>) -> Tensor<2, Int> {
        self.check(&prompt).unwrap_or_else(|error| panic!("{error}"));
        let device = prompt.device();
        let [b, t] = prompt.dims();
        let x = Tensor::<1, Int>::zeros([1], (&device, DType::I32));
        let padded = prompt.pad([(0, 0), (0, 5)], PadMode::Constant(38.0));
        let mask = Tensor::<1, Bool>::full([b], false, &device);
        let positions = embed::<1, 2>(&self.positions, Tensor::arange(0..t as i64 + 5, (&device, DType::I32)));
        let transposed = self.words.weight.val().transpose();
        let positions_2 = Tensor::arange(0..b as i64, (&device, DType::I32)).unsqueeze_dim::<2>(1);
        let joined = Tensor::cat(vec![positions_2, Tensor::<2, Int>::zeros([b, 1], (&device, DType::I32))], 1);
        let joined = joined.unsqueeze_dim::<3>(1);
        let (_, _, _, x, _) = while_loop(x, padded, mask, self.words.weight.val(), positions, self.scale.val(), self.bias.val(), self.kernel.val(), self.bias_2.val(), self.kernel_2.val(), self.bias_3.val(), self.kernel_3.val(), self.bias_4.val(), self.kernel_4.val(), self.bias_5.val(), self.scale_2.val(), self.bias_6.val(), self.kernel_5.val(), self.bias_7.val(), self.kernel_6.val(), self.bias_8.val(), self.scale_3.val(), self.bias_9.val(), self.kernel_7.val(), self.bias_10.val(), self.kernel_8.val(), self.bias_11.val(), self.kernel_9.val(), self.bias_12.val(), self.kernel_10.val(), self.bias_13.val(), self.scale_4.val(), self.bias_14.val(), self.kernel_11.val(), self.bias_15.val(), self.kernel_12.val(), self.bias_16.val(), self.scale_5.val(), self.bias_17.val(), transposed, joined);
        x
    }
}

fn while_loop(x0: Tensor<1, Int>, x1: Tensor<2, Int>, x2: Tensor<1, Bool>, x3: Tensor<2>, x4: Tensor<2>, x5: Tensor<1>, x6: Tensor<1>, x7: Tensor<2>, x8: Tensor<1>, x9: Tensor<2>, x10: Tensor<1>, x11: Tensor<2>, x12: Tensor<1>, x13: Tensor<2>, x14: Tensor<1>, x15: Tensor<1>, x16: Tensor<1>, x17: Tensor<2>, x18: Tensor<1>, x19: Tensor<2>, x20: Tensor<1>, x21: Tensor<1>, x22: Tensor<1>, x23: Tensor<2>, x24: Tensor<1>, x25: Tensor<2>, x26: Tensor<1>, x27: Tensor<2>, x28: Tensor<1>, x29: Tensor<2>, x30: Tensor<1>, x31: Tensor<1>, x32: Tensor<1>, x33: Tensor<2>, x34: Tensor<1>, x35: Tensor<2>, x36: Tensor<1>, x37: Tensor<1>, x38: Tensor<1>, x39: Tensor<2>, x40: Tensor<3, Int>) -> (Tensor<1, Int>, Tensor<1, Bool>, Tensor<1, Int>, Tensor<2, Int>, Tensor<1, Bool>) {
    let device = x0.device();
    let [b, _] = x1.dims();
    let t = x1.dims()[1] - 5;
    let mut carry = x0;
    let mut carry_2 = Tensor::<1, Bool>::full([1], true, &device);
    let mut carry_3 = Tensor::<1, Int>::full([1], t as i64, (&device, DType::I32));
    let mut carry_4 = x1;
    let mut carry_5 = x2;
    while carry_2.clone().into_scalar::<bool>() {
        let x_2 = select_filled::<2, 2, 3, _>(x3.clone(), 0, carry_4.clone().mask_where(carry_4.clone().lower_elem(0), carry_4.clone() + 40), f32::NAN);
        let x_3 = x_2 + x4.clone().unsqueeze::<3>();
        let x_4 = x_3.clone() - x_3.clone().sum_dim(2) / 32.0;
        let x_5 = x_4.clone() * ((x_4.clone() * x_4).sum_dim(2) / 32.0 + 1.0e-5).sqrt().recip() * x5.clone().unsqueeze::<3>() + x6.clone().unsqueeze::<3>();
        let x_6 = x_5.clone().reshape([b * t + 5 * b, 32]).matmul(x11.clone()).reshape([b, t + 5, 32]) + x12.clone().unsqueeze::<3>();
        let x_7 = (x_5.clone().reshape([b * t + 5 * b, 32]).matmul(x7.clone()).reshape([b, t + 5, 32]) + x8.clone().unsqueeze::<3>()).reshape([b, t + 5, 4, 8]);
        let x_8 = (x_5.reshape([b * t + 5 * b, 32]).matmul(x9.clone()).reshape([b, t + 5, 32]) + x10.clone().unsqueeze::<3>()).reshape([b, t + 5, 4, 8]);
        let x_9 = x_7.unsqueeze_dim::<5>(3).swap_dims(1, 2).reshape([b, 4, t + 5, 8]).matmul(x_8.permute([0, 2, 3, 1])).reshape([b, 4, t + 5, 1, t + 5]);
        let x_10 = Tensor::arange(0..t as i64 + 5, (&device, DType::I32)).unsqueeze_dim::<2>(1).greater_equal(Tensor::arange(0..t as i64 + 5, (&device, DType::I32)).unsqueeze::<2>());
        let x_11 = (x_9 * 0.35355338).permute([3, 0, 1, 2, 4]).mask_fill(x_10.unsqueeze::<5>().bool_not(), -2.3819763e38);
        let x_12 = (x_11.clone() - x_11.max_dim(4)).exp();
        let x_13 = x_6.reshape([b, t + 5, 4, 8]).permute([0, 2, 3, 1]).matmul((x_12.clone() / x_12.sum_dim(4)).permute([1, 2, 4, 0, 3]).reshape([b, 4, t + 5, t + 5])).reshape([b, 4, 8, 1, t + 5]);
        let x_14 = x_13.permute([3, 0, 4, 1, 2]).permute([1, 2, 3, 0, 4]).reshape([b * t + 5 * b, 32]).matmul(x13.clone()).reshape([b, t + 5, 32]);
        let x_15 = x_3 + (x_14 + x14.clone().unsqueeze::<3>());
        let x_16 = x_15.clone() - x_15.clone().sum_dim(2) / 32.0;
        let x_17 = x_16.clone() * ((x_16.clone() * x_16).sum_dim(2) / 32.0 + 1.0e-5).sqrt().recip() * x15.clone().unsqueeze::<3>() + x16.clone().unsqueeze::<3>();
        let x_18 = x_17.reshape([b * t + 5 * b, 32]).matmul(x17.clone()).reshape([b, t + 5, 128]) + x18.clone().unsqueeze::<3>();
        let x_19 = (x_18.clone() * ((((x_18.clone() + x_18.powi_scalar(3) * 0.044715) * 0.7978846).tanh() + 1.0) * 0.5)).reshape([b * t + 5 * b, 128]).matmul(x19.clone()).reshape([b, t + 5, 32]);
        let x_20 = x_15 + (x_19 + x20.clone().unsqueeze::<3>());
        let x_21 = x_20.clone() - x_20.clone().sum_dim(2) / 32.0;
        let x_22 = x_21.clone() * ((x_21.clone() * x_21).sum_dim(2) / 32.0 + 1.0e-5).sqrt().recip() * x21.clone().unsqueeze::<3>() + x22.clone().unsqueeze::<3>();
        let x_23 = x_22.clone().reshape([b * t + 5 * b, 32]).matmul(x23.clone()).reshape([b, t + 5, 32]) + x24.clone().unsqueeze::<3>();
        let x_24 = x_22.clone().reshape([b * t + 5 * b, 32]).matmul(x25.clone()).reshape([b, t + 5, 32]) + x26.clone().unsqueeze::<3>();
        let x_25 = x_22.reshape([b * t + 5 * b, 32]).matmul(x27.clone()).reshape([b, t + 5, 32]) + x28.clone().unsqueeze::<3>();
        let x_26 = x_23.reshape([b, t + 5, 4, 8]).unsqueeze_dim::<5>(3).swap_dims(1, 2).reshape([b, 4, t + 5, 8]).matmul(x_24.reshape([b, t + 5, 4, 8]).permute([0, 2, 3, 1])).reshape([b, 4, t + 5, 1, t + 5]);
        let x_27 = Tensor::arange(0..t as i64 + 5, (&device, DType::I32)).unsqueeze_dim::<2>(1).greater_equal(Tensor::arange(0..t as i64 + 5, (&device, DType::I32)).unsqueeze::<2>());
        let x_28 = (x_26 * 0.35355338).permute([3, 0, 1, 2, 4]).mask_fill(x_27.unsqueeze::<5>().bool_not(), -2.3819763e38);
        let x_29 = (x_28.clone() - x_28.max_dim(4)).exp();
        let x_30 = x_25.reshape([b, t + 5, 4, 8]).permute([0, 2, 3, 1]).matmul((x_29.clone() / x_29.sum_dim(4)).permute([1, 2, 4, 0, 3]).reshape([b, 4, t + 5, t + 5])).reshape([b, 4, 8, 1, t + 5]);
        let x_31 = x_30.permute([3, 0, 4, 1, 2]).permute([1, 2, 3, 0, 4]).reshape([b * t + 5 * b, 32]).matmul(x29.clone()).reshape([b, t + 5, 32]);
        let x_32 = x_20 + (x_31 + x30.clone().unsqueeze::<3>());
        let x_33 = x_32.clone() - x_32.clone().sum_dim(2) / 32.0;
        let x_34 = x_33.clone() * ((x_33.clone() * x_33).sum_dim(2) / 32.0 + 1.0e-5).sqrt().recip() * x31.clone().unsqueeze::<3>() + x32.clone().unsqueeze::<3>();
        let x_35 = x_34.reshape([b * t + 5 * b, 32]).matmul(x33.clone()).reshape([b, t + 5, 128]) + x34.clone().unsqueeze::<3>();
        let x_36 = (x_35.clone() * ((((x_35.clone() + x_35.powi_scalar(3) * 0.044715) * 0.7978846).tanh() + 1.0) * 0.5)).reshape([b * t + 5 * b, 128]).matmul(x35.clone()).reshape([b, t + 5, 32]);
        let x_37 = x_32 + (x_36 + x36.clone().unsqueeze::<3>());
        let x_38 = x_37.clone() - x_37.sum_dim(2) / 32.0;
        let x_39 = x_38.clone() * ((x_38.clone() * x_38).sum_dim(2) / 32.0 + 1.0e-5).sqrt().recip() * x37.clone().unsqueeze::<3>() + x38.clone().unsqueeze::<3>();
        let x_40 = (carry_3.clone() - 1).clamp_min(-(t as i64) - 5).clamp_max(t as i64 + 4);
        let x_41 = select_filled::<3, 1, 3, _>(x_39.reshape([b * t + 5 * b, 32]).matmul(x39.clone()).reshape([b, t + 5, 40]), 1, x_40.clone().mask_where(x_40.clone().lower_elem(0), x_40 + (t as i64 + 5)), f32::NAN).squeeze_dim::<2>(1);
        let x_42 = x_41.clone().is_nan();
        let x_43 = x_42.clone().cast(IntDType::U8);
        let x_44 = x_41.argmax(1).squeeze_dim::<1>(1).cast(IntDType::I32).mask_where(x_42.any_dim(1).squeeze_dim::<1>(1), x_43.argmax(1).squeeze_dim::<1>(1).cast(IntDType::I32));
        let x_45 = x_44.mask_fill(carry_5.clone(), 38);
        let x_46 = x40.clone().mask_where(Tensor::<1, Bool>::from_data([false, true], &device).unsqueeze::<3>(), carry_3.clone().clamp_min(-(t as i64) - 5).clamp_max(t as i64 + 4).unsqueeze::<3>());
        let x_47 = Tensor::cat(vec![wrapped(x_46.clone().slice_dim(2, ..1).squeeze_dim::<2>(2), b).unsqueeze_dim::<3>(2), wrapped(x_46.slice_dim(2, 1..).squeeze_dim::<2>(2), t + 5).unsqueeze_dim::<3>(2)], 2);
        let x_48 = carry_3 + 1;
        let x_49 = carry_5.bool_or(x_45.clone().equal_elem(38));
        (carry, carry_2, carry_3, carry_4, carry_5) = (carry + 1, x_48.clone().lower_elem(t as i64 + 5).bool_and(x_49.clone().all().bool_not()), x_48, lax_scatter(carry_4, x_47, x_45.unsqueeze_dim::<2>(1), &Windows { starts: &[0, 1], spans: &[], batches: &[], clips: false }, IndexingUpdateOp::Assign), x_49);
    }
    (carry, carry_2, carry_3, carry_4, carry_5)
}

// scale: [32]
// bias: [32]
// kernel: [32, 32]
// bias_2: [32]
// kernel_2: [32, 32]
// bias_3: [32]
// kernel_3: [32, 32]
// bias_4: [32]
// kernel_4: [32, 32]
// bias_5: [32]
// scale_2: [32]
// bias_6: [32]
// kernel_5: [32, 128]
// bias_7: [128]
// kernel_6: [128, 32]
// bias_8: [32]
// scale_3: [32]
// bias_9: [32]
// kernel_7: [32, 32]
// bias_10: [32]
// kernel_8: [32, 32]
// bias_11: [32]
// kernel_9: [32, 32]
// bias_12: [32]
// kernel_10: [32, 32]
// bias_13: [32]
// scale_4: [32]
// bias_14: [32]
// kernel_11: [32, 128]
// bias_15: [128]
// kernel_12: [128, 32]
// bias_16: [32]
// scale_5: [32]
// bias_17: [32]
// positions.weight: [16, 32]
// words.weight: [40, 32]

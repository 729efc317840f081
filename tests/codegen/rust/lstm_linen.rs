use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, Lstm, LstmConfig, LstmState};
use burn::prelude::*;

use super::helpers::{check_shape, embed, lstm_steps, lstm_with_one_bias};

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
    pub rnn_0: Lstm,
    pub rnn_1: Lstm,
    pub dense_0: Linear,
}

impl LinenLstm {
    /// Makes the module with new weights.
    pub fn new(device: &Device) -> Self {
        Self {
            embed_0: EmbeddingConfig::new(40, 16).init(device),
            rnn_0: lstm_with_one_bias(LstmConfig::new(16, 16, true).with_batch_first(false).init(device)),
            rnn_1: lstm_with_one_bias(LstmConfig::new(16, 16, true).with_batch_first(false).init(device)),
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
        let embed_0 = embed::<2, 3>(&self.embed_0, ids).swap_dims(0, 1);
        let (x_2, LstmState { cell, hidden }) = lstm_steps(&self.rnn_0, embed_0, None);
        let (x, LstmState { cell: cell_2, hidden: hidden_2 }) = lstm_steps(&self.rnn_1, x_2, None);
        Outputs { output_0: self.dense_0.forward(x.swap_dims(0, 1)), output_1_0_0: cell, output_1_0_1: hidden, output_1_1_0: cell_2, output_1_1_1: hidden_2 }
    }
}

// embed_0.weight: [40, 16]
// rnn_0.input_gate.input_transform.weight: [16, 16]
// rnn_0.input_gate.hidden_transform.weight: [16, 16]
// rnn_0.input_gate.input_transform.bias: [16]
// rnn_0.forget_gate.input_transform.weight: [16, 16]
// rnn_0.forget_gate.hidden_transform.weight: [16, 16]
// rnn_0.forget_gate.input_transform.bias: [16]
// rnn_0.cell_gate.input_transform.weight: [16, 16]
// rnn_0.cell_gate.hidden_transform.weight: [16, 16]
// rnn_0.cell_gate.input_transform.bias: [16]
// rnn_0.output_gate.input_transform.weight: [16, 16]
// rnn_0.output_gate.hidden_transform.weight: [16, 16]
// rnn_0.output_gate.input_transform.bias: [16]
// rnn_1.input_gate.input_transform.weight: [16, 16]
// rnn_1.input_gate.hidden_transform.weight: [16, 16]
// rnn_1.input_gate.input_transform.bias: [16]
// rnn_1.forget_gate.input_transform.weight: [16, 16]
// rnn_1.forget_gate.hidden_transform.weight: [16, 16]
// rnn_1.forget_gate.input_transform.bias: [16]
// rnn_1.cell_gate.input_transform.weight: [16, 16]
// rnn_1.cell_gate.hidden_transform.weight: [16, 16]
// rnn_1.cell_gate.input_transform.bias: [16]
// rnn_1.output_gate.input_transform.weight: [16, 16]
// rnn_1.output_gate.hidden_transform.weight: [16, 16]
// rnn_1.output_gate.input_transform.bias: [16]
// dense_0.weight: [16, 40]
// dense_0.bias: [40]

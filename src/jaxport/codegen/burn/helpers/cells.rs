/// A GRU whose products of the state have no biases.
pub fn gru_with_one_bias(gru: Gru) -> Gru {
    let mut gru = gru_with_new_bias(gru);
    gru.new_gate.hidden_transform.bias = None;
    gru
}

/// A GRU of whose products of the state only that of the new state has a bias.
pub fn gru_with_new_bias(mut gru: Gru) -> Gru {
    gru.update_gate.hidden_transform.bias = None;
    gru.reset_gate.hidden_transform.bias = None;
    gru
}

/// An LSTM whose products of the state have no biases.
pub fn lstm_with_one_bias(mut lstm: Lstm) -> Lstm {
    let gates = [&mut lstm.input_gate, &mut lstm.output_gate, &mut lstm.cell_gate];
    for gate in gates.into_iter().chain(&mut lstm.forget_gate) {
        gate.hidden_transform.bias = None;
    }
    lstm
}

/// What `gru.forward` computes of rows that have their step first, with one product of each gate for all steps.
pub fn gru_steps(gru: &Gru, x: Tensor<3>, state: Option<Tensor<2>>) -> Tensor<3> {
    let [steps, batch, _] = x.dims();
    let gates = [&gru.reset_gate, &gru.update_gate, &gru.new_gate];
    let mut hidden =
        state.unwrap_or_else(|| Tensor::zeros([batch, gru.d_hidden], (&x.device(), x.dtype())));
    let rows = gates.map(|gate| gate.input_transform.forward(x.clone()));
    let mut outputs = Vec::with_capacity(steps);
    for step in 0..steps {
        let [reset, update, new] =
            rows.each_ref().map(|rows| rows.clone().narrow(0, step, 1).squeeze_dim::<2>(0));
        let reset = gru.gate_activation.forward(reset + gates[0].hidden_transform.forward(hidden.clone()));
        let update = gru.gate_activation.forward(update + gates[1].hidden_transform.forward(hidden.clone()));
        let new = match gru.reset_after {
            true => new + reset * gates[2].hidden_transform.forward(hidden.clone()),
            false => new + gates[2].hidden_transform.forward(reset * hidden.clone()),
        };
        let new = gru.hidden_activation.forward(new);
        hidden = new * (-update.clone() + 1.0) + update * hidden;
        outputs.push(hidden.clone());
    }
    Tensor::stack(outputs, 0)
}

/// What `lstm.forward` computes of rows that have their step first, with one product of each gate for all steps.
pub fn lstm_steps(
    lstm: &Lstm,
    x: Tensor<3>,
    state: Option<LstmState<2>>,
) -> (Tensor<3>, LstmState<2>) {
    let [steps, batch, _] = x.dims();
    let forget_gate = lstm.forget_gate.as_ref().expect("a forget gate");
    let gates = [&lstm.input_gate, forget_gate, &lstm.cell_gate, &lstm.output_gate];
    let LstmState { mut cell, mut hidden } = state.unwrap_or_else(|| {
        let zeros = Tensor::zeros([batch, lstm.d_hidden], (&x.device(), x.dtype()));
        LstmState::new(zeros.clone(), zeros)
    });
    let rows = gates.map(|gate| gate.input_transform.forward(x.clone()));
    let mut outputs = Vec::with_capacity(steps);
    for step in 0..steps {
        let step = if lstm.reverse { steps - 1 - step } else { step };
        let [input, forget, new, output] = std::array::from_fn(|gate| {
            let row = rows[gate].clone().narrow(0, step, 1).squeeze_dim::<2>(0);
            row + gates[gate].hidden_transform.forward(hidden.clone())
        });
        let [input, forget, output] =
            [input, forget, output].map(|gate| lstm.gate_activation.forward(gate));
        cell = forget * cell + input * lstm.cell_activation.forward(new);
        hidden = output * lstm.hidden_activation.forward(cell.clone());
        outputs.push(hidden.clone());
    }
    if lstm.reverse {
        outputs.reverse();
    }
    (Tensor::stack(outputs, 0), LstmState::new(cell, hidden))
}

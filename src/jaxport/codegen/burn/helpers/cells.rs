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

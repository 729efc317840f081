"""Scans over time that are recurrent layers, as the operators LSTM, GRU and RNN.

A cell is told by what it computes: the body of the scan is evaluated on symbols (`evaluating`), where a value
is, block by block along its features, a polynomial of states, inputs, weights, their products and activations of such.
Whatever order the gates have, however they are split or joined, and however a sigmoid is spelled, one cell is one
polynomial, which `cells` compares with those of ONNX's operators; `scans` writes the operator.
"""

from jaxport.export.rules.recurrent.expressions import Unfit
from jaxport.export.rules.recurrent.scans import recurrent_layer

__all__ = ["Unfit", "recurrent_layer"]

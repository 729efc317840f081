"""Recognise scans over time that are recurrent layers: the operators LSTM, GRU and RNN.

A cell is identified by what it computes. The body of the scan is evaluated symbolically (`evaluating`): block by block
along its features, a value is a polynomial of states, inputs, weights, their products and activations of these. In any
order of the gates, split or joined, and with any spelling of a sigmoid, one cell is one polynomial, which `cells`
compares with those of ONNX's operators; `scans` emits the operator.
"""

from jaxport.export.rules.recurrent.expressions import Unfit
from jaxport.export.rules.recurrent.scans import recurrent_layer

__all__ = ["Unfit", "recurrent_layer"]

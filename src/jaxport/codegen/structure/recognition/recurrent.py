"""LSTM, GRU and the plain recurrent network as cells that `lax.scan` runs over the first axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jaxport.codegen.structure.recognition.matching import Matcher
from jaxport.codegen.structure.spelling.spellings import number
from jaxport.codegen.tree import Layer, Op, Weight
from jaxport.importer.values.host import Attribute, HostValue, RuntimeValue
from jaxport.importer.values.recording import Function, Variable

__all__ = ["recurrent"]

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where the frameworks' gates are in ONNX: an LSTM's are input, forget, cell, output; a GRU's reset, update, new."""


def recurrent(op: Op, matcher: Matcher) -> Layer | None:
    """Return the cell of a scan over time; None for all that frameworks have no cell for.

    Its inputs are the sequence (time, batch, features) and the first carry, `(c, h)` for an LSTM; its results the last
    carry and the sequence of `h`.
    """
    step, node = op.step, matcher.weights.nodes.get(op.step.node)
    if node is None or op.operator not in GATES or not _is_plain(node.attributes, op.operator):
        return None
    peepholes = op.operator == "LSTM" and len(node.inputs) > 7 and node.inputs[7] is not None
    if len(step.args) != 3:
        return None
    function, carry, rows = step.args
    if peepholes or not isinstance(function, Function) or function.name != "plain" or not isinstance(rows, Variable):
        return None
    source = _input_product(rows, matcher)
    if source is None or rows.dtype != np.float32:
        return None
    x, of_input, direction, bias = source
    turned = [parameter for value in op.inputs if (parameter := _recurrence(value, direction, matcher)) is not None]
    own = {variable for variable in (of_input, *turned, bias) if variable is not None}
    if (
        not turned
        or any(turned[0] is not other for other in turned)
        or not all(_belongs_to(variable, op, matcher) for variable in own)
    ):
        return None
    kind = op.operator
    outputs: RuntimeValue = step.outputs
    if kind == "LSTM":
        (h, c), ys = outputs
        states, outputs = (carry[1], carry[0]), ((c, h), ys)
    else:
        states, outputs = carry[0], (outputs[0][0], outputs[1])
    hidden = turned[0].shape[-1]
    config = {
        "in_features": of_input.shape[-1],
        "hidden_features": hidden,
        "reverse": bool(step.kwargs.get("reverse", False)),
        "carry": states,
        "outputs": outputs,
    }
    weights = _weights(kind, of_input, turned[0], bias, direction, matcher)
    known = tuple(leaf for leaf in jax.tree.leaves(states) if isinstance(leaf, Variable))
    return Layer(kind, config, weights, (x, *known), op.outputs, kind.lower())


def _belongs_to(parameter: Variable, op: Op, matcher: Matcher) -> bool:
    """Whether only a node reads a parameter, or it reads the only value that is made of it."""
    readers = matcher.readers.get(parameter, [])
    made = readers[0].outputs[0] if len(readers) == 1 else None
    return matcher.belongs_to(parameter, op) or (made is not None and matcher.belongs_to(made, op))


def _is_plain(attributes: Mapping[str, Attribute], kind: str) -> bool:
    """Whether a node computes the same as the cells of the frameworks."""
    if attributes.get("clip") is not None or attributes.get("input_forget") or attributes.get("activation_alpha"):
        return False
    if attributes.get("activation_beta") or (kind == "GRU" and not attributes.get("linear_before_reset")):
        return False
    names = attributes.get("activations") or ()
    usual = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}[kind]
    return all(str(name).lower() == usual[at % len(usual)] for at, name in enumerate(names))


def _input_product(rows: Variable, matcher: Matcher) -> tuple[Variable, Variable, int, Variable | None] | None:
    """Return sequence, weights of the input, direction and biases of `x @ W[d].T + (B[d, :n] + B[d, n:])`."""
    total = matcher.step(rows, "+")
    if total is None:
        return None
    product = matcher.step(total.step.args[0], "@")
    x = product.step.args[0] if product is not None else None
    indexed = _indexed(product.step.args[1], matcher, turned=True) if product is not None else None
    if indexed is None or not isinstance(x, Variable) or not isinstance(indexed[1], int):
        return None
    added = total.step.args[1]
    if number(added) == 0:
        return x, indexed[0], indexed[1], None
    both = matcher.step(added, "+")
    parts = both.step.args if both is not None else (added,)
    biases = [_indexed(part, matcher, turned=False) for part in parts]
    if any(bias is None or bias[0] is not (biases[0] or bias)[0] for bias in biases):
        return None
    return x, indexed[0], indexed[1], biases[0][0] if biases[0] is not None else None


def _recurrence(value: Variable, direction: int, matcher: Matcher) -> Variable | None:
    """Return the parameter whose part for a direction, turned, a step multiplies the state with."""
    kept = matcher.step(value, "lax.optimization_barrier")
    indexed = _indexed(kept.step.args[0], matcher, turned=True) if kept is not None else None
    if indexed is None:
        return None
    index = indexed[1][0] if isinstance(indexed[1], tuple) else indexed[1]
    return indexed[0] if index == direction else None


def _indexed(value: RuntimeValue, matcher: Matcher, turned: bool) -> tuple[Variable, RuntimeValue] | None:
    """Return the parameter that a value is a part of, and the index."""
    if turned:
        transposed = matcher.step(value, "T")
        value = transposed.step.args[0] if transposed is not None else None
    part = matcher.step(value, "")
    if part is None:
        return None
    whole, index = part.step.args
    whole = whole if turned else _before_zeros(whole, matcher)
    return (whole, index) if matcher.is_parameter(whole) else None


def _before_zeros(value: RuntimeValue, matcher: Matcher) -> RuntimeValue:
    """Return the biases of the products with the input, if a cell has no others and zeros stand for those; else the value."""
    joined = matcher.step(value, "jnp.concatenate")
    parts = joined.step.args[0] if joined is not None else ()
    if joined is None or len(parts) != 2 or joined.step.kwargs != {"axis": 1}:
        return value
    first, zeros = parts
    known = isinstance(zeros, HostValue) and not zeros.symbolic and not zeros.data.any()
    return first if known and matcher.is_parameter(first) and first.shape == zeros.shape else value


def _weights(
    kind: str, of_input: Variable, of_state: Variable, bias: Variable | None, direction: int, matcher: Matcher
) -> dict[str, Weight]:
    """Return the tensors of a cell: kernels (inputs first) and biases, gate by gate in the frameworks' order."""
    order, hidden = GATES[kind], of_state.shape[-1]

    def gates(variable: Variable, first: int = 0) -> tuple[Weight, ...]:
        """Return the parts of a tensor of the file, which are rows of a matrix or of a vector."""
        whole = matcher.weights.weight(variable)
        axes = tuple(reversed(range(len(variable.shape) - 1)))
        row, shape = math.prod(variable.shape[2:]), tuple(reversed((hidden, *variable.shape[2:])))

        def gate(at: int) -> Weight:
            rows = slice((first + at) * hidden, (first + at + 1) * hidden)
            begin = (direction * variable.shape[1] + rows.start) * row
            read = lambda: np.ascontiguousarray(whole.read()[direction, rows].T)
            return Weight(whole.name, shape, whole.dtype, read, axes=axes, part=(begin, begin + hidden * row))

        return tuple(map(gate, order))

    def joined(parts: Sequence[Weight]) -> Weight:
        """Return gates as one tensor."""
        shape = (*parts[0].shape[:-1], hidden * len(order))
        read = lambda: np.concatenate([part.read() for part in parts], axis=-1)
        return Weight(parts[0].name, shape, parts[0].dtype, read, pieces=tuple(parts))

    weights = {"kernel": joined(gates(of_input)), "recurrent_kernel": joined(gates(of_state))}
    if bias is not None:
        weights["bias"] = joined(gates(bias))
    if bias is not None and bias.shape[-1] == 2 * hidden * len(order):
        weights["recurrent_bias"] = joined(gates(bias, len(order)))
    return weights

"""Recurrent layers: RNN, GRU and LSTM, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxport.errors import ModelError, Refusal, Unsupported
from jaxport.importer.ops.indexing import reverse_sequence
from jaxport.importer.resolving.registry import earlier, op, variant
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import jnp, lax, nn
from jaxport.jaxprs import Dim

Activation = Callable[[Tensor], Tensor]

States = tuple[Tensor, ...]
"""The states of a cell between two steps; the first is its output."""

Step = Callable[[States, Tensor], States]
"""One step of a cell: from its states, and the product of one row of the input, to its new states."""

ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "relu": (nn.relu,),
    "tanh": (jnp.tanh,),
    "sigmoid": (nn.sigmoid,),
    "affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "leakyrelu": (lambda x, alpha: jnp.where(x >= 0, x, alpha * x), 0.01),
    "thresholdedrelu": (lambda x, alpha: jnp.where(x >= alpha, x, 0), 1.0),
    "scaledtanh": (lambda x, alpha, beta: alpha * jnp.tanh(beta * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, alpha, beta: jnp.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
    "elu": (nn.elu, 1.0),
    "softsign": (nn.soft_sign,),
    "softplus": (nn.softplus,),
}
"""Activations by their names in lower case, with the defaults of their constants."""


DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
DIRECTIONS["foward"] = DIRECTIONS["forward"]  # the spelling of the first GRU's default


@dataclass(frozen=True, kw_only=True)
class RecurrentAttributes:
    """The attributes of recurrent layers; the shape of the weights counts, not `hidden_size`."""

    activation_alpha: Sequence[float] | None = None
    activation_beta: Sequence[float] | None = None
    activations: Sequence[str] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    def functions(self, *defaults: str, clip: float | None) -> list[Activation]:
        """Return the activations of both directions: those with constants take the next of these."""
        alphas, betas = iter(self.activation_alpha or ()), iter(self.activation_beta or ())
        return [_activation(name.lower(), alphas, betas, clip) for name in self.activations or defaults * 2]


@dataclass(frozen=True, kw_only=True)
class LSTMAttributes(RecurrentAttributes):
    """The attributes of an LSTM."""

    input_forget: int = 0


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Activation:
    if name not in ACTIVATIONS:
        why = f"ONNX does not define the activation `{name}`; it must be one of {', '.join(ACTIVATIONS)}"
        raise Unsupported("an activation is unknown", [Refusal("", "", why)])
    function, *defaults = ACTIVATIONS[name]
    constants = [next(parameters, default) for parameters, default in zip((alphas, betas), defaults, strict=False)]
    return lambda x: function(x if clip is None else jnp.clip(x, -clip, clip), *constants)


def _recurrent(
    X: Tensor,
    sequence_lens: Tensor | None,
    initial: Sequence[Tensor | None],
    hidden: int,
    attributes: RecurrentAttributes,
    cell: Callable[[Tensor, int], tuple[Tensor, Step]],
    together: bool = False,
) -> tuple[Tensor, ...]:
    """Return all outputs of a recurrent operator: the first state at each step, and each state after the last step.

    `cell(x, d)` returns, for direction `d`, the inputs of the steps from the whole sequence `x` (seq, batch, features),
    and the step, from states and a row of these inputs to the next states. If the result for one sequence depends on
    the others in the same step, they have to start `together`, in both directions.
    """
    if attributes.layout:
        X = jnp.swapaxes(X, 0, 1)
        initial = [None if state is None else jnp.swapaxes(state, 0, 1) for state in initial]
    backward = DIRECTIONS[attributes.direction]
    zeros = jnp.zeros((X.shape[1], hidden), X.dtype)
    rows, finals = [], []
    for d, reverse in enumerate(backward):
        turned = reverse and together and sequence_lens is not None
        inputs, step = cell(reverse_sequence(X, sequence_lens, 0, 1) if turned else X, d)
        states = tuple(zeros if state is None else _initial(state[d], zeros) for state in initial)
        ys, final = _scanned(step, states, inputs, X.shape[0], sequence_lens, reverse and not turned)
        rows.append(reverse_sequence(ys, sequence_lens, 0, 1) if turned else ys)
        finals.append(final)
    y = jnp.stack(rows, axis=1)
    last = [jnp.stack(states) for states in zip(*finals, strict=True)]
    if attributes.layout:
        return jnp.transpose(y, (2, 0, 1, 3)), *(jnp.swapaxes(state, 0, 1) for state in last)
    return y, *last


def _initial(state: Tensor, zeros: Tensor) -> Tensor:
    if state.shape != zeros.shape:
        raise ModelError(f"an initial state has the shape {state.shape}, the sequences need {zeros.shape}")
    return state


def _scanned(
    step: Step, states: States, inputs: Tensor, steps: Dim, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, States]:
    """Return the first state at every step, and all final states; beyond its length a sequence keeps its state.

    ONNX Runtime returns zeros for a sequence of length zero, whatever its initial states.
    """
    options = {"reverse": True} if reverse else {}
    if lengths is None:

        def plain(states: States, row: Tensor) -> tuple[States, Tensor]:
            states = step(states, row)
            return states, states[0]

        final, rows = lax.scan(plain, states, inputs, **options)
        return rows, final

    def masked(states: States, row: tuple[Any, Tensor]) -> tuple[States, Tensor]:
        inputs, time = row
        running = jnp.expand_dims(time < lengths, 1)
        following = step(states, inputs)
        states = tuple(jnp.where(running, new, old) for new, old in zip(following, states, strict=True))
        return states, jnp.where(running, states[0], 0)

    final, rows = lax.scan(masked, states, (inputs, jnp.arange(steps)), **options)
    begun = jnp.expand_dims(lengths > 0, 1)
    return rows, tuple(jnp.where(begun, state, 0) for state in final)


def biases(B: Tensor | None, d: int, size: int) -> tuple[Any, Any]:
    """Return the biases of the input and of the recurrence in one direction; zero if there are none."""
    return (0.0, 0.0) if B is None else (B[d, :size], B[d, size:])


def _transposed(weights: Tensor) -> Tensor:
    """Return the weights of a recurrence transposed once before the steps; XLA would do it in each step."""
    return lax.optimization_barrier(weights.T)


@op("RNN", since=14)
@variant(activations=("Tanh", "Tanh"))
def rnn(X, W, R, B=None, sequence_lens=None, initial_h=None, *, recurrence: RecurrentAttributes):
    hidden, functions = R.shape[-1], recurrence.functions(clip=recurrence.clip)

    def cell(x: Tensor, d: int) -> tuple[Tensor, Step]:
        of_input, of_state = biases(B, d, hidden)
        recurrence = _transposed(R[d])

        def step(states: States, row: Tensor) -> States:
            return (functions[d](row + states[0] @ recurrence),)

        return x @ W[d].T + (of_input + of_state), step

    return _recurrent(X, sequence_lens, [initial_h], hidden, recurrence, cell)


@op("GRU", since=14)
def gru(X, W, R, B=None, sequence_lens=None, initial_h=None, *, linear_before_reset=0, recurrence: RecurrentAttributes):
    hidden, functions = R.shape[-1], recurrence.functions("Sigmoid", "Tanh", clip=recurrence.clip)

    def cell(x: Tensor, d: int) -> tuple[Tensor, Step]:
        gate, candidate = functions[2 * d : 2 * d + 2]
        of_input, of_state = biases(B, d, 3 * hidden)
        of_candidate = of_state if B is None else of_state[2 * hidden :]
        of_gates, recurrence = _transposed(R[d, : 2 * hidden]), _transposed(R[d, 2 * hidden :])

        def step(states: States, row: Tensor) -> States:
            (h,) = states
            gates = row[:, : 2 * hidden] + h @ of_gates
            if B is not None:
                gates = gates + of_state[: 2 * hidden]
            update, reset = gate(gates[:, :hidden]), gate(gates[:, hidden:])
            if linear_before_reset:
                proposal = reset * (h @ recurrence + of_candidate)
            else:
                proposal = (reset * h) @ recurrence + of_candidate
            return ((1 - update) * candidate(row[:, 2 * hidden :] + proposal) + update * h,)

        return x @ W[d].T + of_input, step

    return _recurrent(X, sequence_lens, [initial_h], hidden, recurrence, cell)


def lstm_layer(
    X: Tensor,
    products: Callable[[Tensor, int], tuple[Any, Callable[[Any, Tensor], Tensor]]],
    initial: Sequence[Tensor | None],
    P: Tensor | None,
    sequence_lens: Tensor | None,
    hidden: int,
    attributes: LSTMAttributes,
    together: bool = False,
) -> tuple[Tensor, ...]:
    """Return the outputs of an LSTM.

    `products(x, d)` returns, for direction `d`, the inputs of the steps from the whole sequence `x`, and the function
    from a row of these and the state `h` to the arguments of the four gates, side by side. The rest is as in
    `_recurrent`.
    """
    names = ("Sigmoid", "Tanh", "Tanh")
    clipped, free = (attributes.functions(*names, clip=limit) for limit in (attributes.clip, None))

    def cell(x: Tensor, d: int) -> tuple[Tensor, Step]:
        gate, candidate = clipped[3 * d : 3 * d + 2]
        output = free[3 * d + 2]  # as in ONNX Runtime
        inputs, gates = products(x, d)
        peepholes = None if P is None else [P[d, k * hidden : (k + 1) * hidden] for k in range(3)]

        def peep(value: Tensor, c: Tensor, which: int) -> Tensor:
            return value if peepholes is None else value + peepholes[which] * c

        def step(states: States, row: Any) -> States:
            h, c = states
            i, o, f, g = jnp.split(gates(row, h), 4, axis=-1)
            i = gate(peep(i, c, 0))
            f = 1 - i if attributes.input_forget else gate(peep(f, c, 2))
            c = f * c + i * candidate(g)
            return gate(peep(o, c, 1)) * output(c), c

        return inputs, step

    return _recurrent(X, sequence_lens, initial, hidden, attributes, cell, together)


@op("LSTM", since=14)
def lstm(X, W, R, B=None, sequence_lens=None, initial_h=None, initial_c=None, P=None, *, recurrence: LSTMAttributes):
    hidden = R.shape[-1]

    def products(x: Tensor, d: int) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        of_input, of_state = biases(B, d, 4 * hidden)
        recurrence = _transposed(R[d])
        return x @ W[d].T + (of_input + of_state), lambda row, h: row + h @ recurrence

    return lstm_layer(X, products, [initial_h, initial_c], P, sequence_lens, hidden, recurrence)


earlier("RNN", since=7, until=13, without="layout")
earlier("GRU", since=7, until=13, without="layout")
earlier("LSTM", since=7, until=13, without="layout")

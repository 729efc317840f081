"""One array at two places of a call: each place is an argument, or a result, of its own."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxport
from jaxport import make_mox
from jaxport.blocks.marking.boundary import boundary
from jaxport.errors import InvalidArgument

X = jax.random.normal(jax.random.key(0), (3, 4))
WEIGHT = jax.random.normal(jax.random.key(1), (4, 4))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    """A pytree that is no tuple, list or dict."""

    one: jax.Array
    other: jax.Array


@boundary
def mixed(*arrays):
    """Compute something that each place enters in another way."""
    leaves = jax.tree.leaves(arrays)
    return sum(jnp.sin(x @ WEIGHT) * (index + 1) ** 2 for index, x in enumerate(leaves))


@boundary
def repeated(x):
    y = jnp.sin(x)
    return {"all": (y, [y, x], Pair(y, x)), "x": x}


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def at_place(place):
    """Return a function that changes the array at one place of its arguments."""

    def change(*args):
        leaves, tree = jax.tree.flatten(args)
        leaves[place] = leaves[place] * 3 + 1
        return jax.tree.unflatten(tree, leaves)

    return change


SHARED = [X, X]
PLACES = {
    "two arguments": lambda x: (x, x),
    "a tuple": lambda x: ((x, x), x),
    "one tuple twice": lambda x: ((x,),) * 2,
    "a list": lambda x: ([x, x],),
    "one list twice": lambda x: ([x],) * 2,
    "one dict twice": lambda x: ({"a": x},) * 2,
    "a dataclass": lambda x: (Pair(x, x), x),
    "one dataclass twice": lambda x: (Pair(x, 2 * x),) * 2,
    "stored": lambda x: (x, X, X),
    "stored, in a list": lambda x: (x, SHARED),
}


@pytest.mark.parametrize("arguments", PLACES.values(), ids=PLACES)
def test_each_place_of_an_argument_can_be_changed_alone(arguments):
    mox = make_mox(lambda x: mixed(*arguments(x)))(X)
    plain = arguments(X)
    same(mox(X), mixed(*plain))
    for place in range(len(jax.tree.leaves(plain))):
        change = at_place(place)
        edited = mox.select("//mixed").before(change)
        same(edited(X), mixed(*change(*plain)))
    leaves = [X + index for index in range(len(jax.tree.leaves(plain)))]
    block = mox["mixed"]
    same(block(*jax.tree.unflatten(block.traced.in_tree, leaves)[0]), mixed(*leaves))
    assert len(jax.tree.leaves(mox.capture("//mixed", inputs=True)(X)["mixed"].inputs)) == len(leaves)


@pytest.mark.parametrize("place", range(6))
def test_each_place_of_a_result_can_be_changed_alone(place):
    mox = make_mox(repeated)(X)
    plain, expected = mox(X), mox(X)
    leaves = jax.tree.leaves(plain)
    assert len(leaves) == 6

    def change(result):
        leaves, tree = jax.tree.flatten(result)
        return jax.tree.unflatten(tree, [leaf * 0 if index == place else leaf for index, leaf in enumerate(leaves)])

    (expected,) = (change(plain),)
    jax.tree.map(same, jax.tree.leaves(mox.select("//repeated").after(change)(X)), jax.tree.leaves(expected))


def test_what_a_function_closes_over_is_no_argument():
    def program(x):
        return boundary(lambda y: y * 2 + x, target="closed")(x)

    mox = make_mox(program)(X)
    same(mox.select("//closed").before(lambda y: (0 * y,))(X), X)
    same(mox(X), 3 * X)


class Attention(eqx.Module):
    attention: eqx.nn.MultiheadAttention

    def __call__(self, x):
        return x + self.attention(x, x, x)


def test_attention_of_equinox():
    model = Attention(eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(0)))
    mox = make_mox(model)(X)
    for place in range(3):
        change = at_place(place)
        edited = mox.select("//MultiheadAttention").before(change)(X)
        same(edited, X + model.attention(*change(X, X, X)))
    block = mox["attention"]
    same(block(X, X, 0 * X), model.attention(X, X, 0 * X))
    exported = jaxport.to_onnx(block, [X, X, X])
    exported.verify()
    same(exported(X, 2 * X, 3 * X), model.attention(X, 2 * X, 3 * X))


class Cell(nnx.Module):
    def __init__(self):
        self.cell = nnx.LSTMCell(4, 4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        (carry, hidden), y = self.cell((x, x), x)
        return carry, hidden, y


def test_a_cell_that_returns_its_carry_twice():
    model = Cell()
    mox, (carry, hidden, y) = make_mox(model)(X), model(X)
    cell = mox.select("//LSTMCell")
    for place, expected in enumerate([(0 * carry, hidden, y), (carry, 0 * hidden, y), (carry, hidden, 0 * y)]):
        edited = cell.after(lambda out, place=place: jax.tree.unflatten(
            jax.tree.structure(out), [0 * v if i == place else v for i, v in enumerate(jax.tree.leaves(out))]
        ))  # fmt: skip
        jax.tree.map(same, edited(X), expected)
    same(cell.before(lambda carry, x: ((carry[0], 0 * carry[1]), x))(X)[0], model.cell((X, 0 * X), X)[0][0])


def test_a_cell_in_a_scan():
    rnn, inputs = nnx.RNN(nnx.LSTMCell(4, 6, rngs=nnx.Rngs(0))), jnp.ones((2, 5, 4))
    mox = make_mox(rnn)(inputs)
    cell = mox.select("//LSTMCell[@method='__call__']")
    assert not np.any(cell.after(lambda out: (out[0], out[1] * 0))(inputs))
    # The first step starts from zeros: only later steps see another hidden state.
    forgetful = cell.after(lambda out: ((out[0][0], 0 * out[0][1]), out[1]))(inputs)
    same(forgetful[:, 0], rnn(inputs)[:, 0])
    assert np.all(np.abs(forgetful[:, 1] - rnn(inputs)[:, 1]) > 1e-6)


class LinenAttention(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.MultiHeadDotProductAttention(2, name="attention")(x, x, x)


def test_attention_of_linen():
    model = LinenAttention()
    variables = model.init(jax.random.key(0), X)
    mox = make_mox(lambda x: model.apply(variables, x))(X)
    edited = mox.select("//MultiHeadDotProductAttention").before(lambda q, k, v: (q, k, 0 * v))(X)
    own = linen.MultiHeadDotProductAttention(2)
    same(edited, own.apply({"params": variables["params"]["attention"]}, X, X, 0 * X))


class Tied(eqx.Module):
    """A decoder that is given the weight that it holds, too."""

    weight: jax.Array

    def __call__(self, x, weight, other):
        return x @ weight + jnp.cos(x @ other) + 10 * jnp.sin(x @ self.weight)


class Tying(eqx.Module):
    decoder: Tied

    def __call__(self, x):
        return self.decoder(x, self.decoder.weight, self.decoder.weight)


def test_a_tied_weight_stays_one_parameter():
    model = Tying(Tied(WEIGHT))
    mox = make_mox(model)(X)
    assert list(mox.params) == ["decoder.weight"]
    for place in range(3):
        change = at_place(place)
        edited = mox.select("//Tied").before(change)(X)
        same(edited, model.decoder(*change(X, WEIGHT, WEIGHT)))
    trained = mox.apply({"decoder.weight": 2 * WEIGHT}, X)
    same(trained, Tying(Tied(2 * WEIGHT))(X))
    exported = jaxport.to_onnx(model, [X])
    sizes = {path: value.shape for path, value in exported.model.graph.initializers.items()}
    assert [path for path, shape in sizes.items() if len(shape)] == ["decoder.weight"]
    exported.verify()


def test_the_graph_has_no_node_more():
    def attend(alias):
        return lambda x: boundary(lambda q, kv: jnp.sin(q) @ kv.T, target="attend")(x, x if alias else x + 0)

    plain = jaxport.to_onnx(lambda x: jnp.sin(x) @ x.T, [X])
    (one, other) = (jaxport.to_onnx(attend(True), [X], functions=functions) for functions in ((), ("attend",)))
    assert len(one.model.graph) == len(plain.model.graph)
    assert [len(function.inputs) for function in other.model.functions.values()] in ([], [2])


def test_a_copy_that_the_call_changes_is_refused():
    @boundary
    def written(one, other):
        one.append(1.0)
        other.append(2.0)
        return one[0] + other[0]

    def program(x):
        both = [x]
        return written(both, both)

    with pytest.raises(InvalidArgument, match="changes a `list` that it is given at two places"):
        make_mox(program)(X)


def test_containers_within_containers_end():
    nested = (X,)
    for _ in range(40):
        nested = (nested, nested)
    mox = make_mox(lambda x: boundary(lambda x, deep: x + deep[0] * 0 if x is None else x, target="deep")(x, nested))(X)
    same(mox(X), X)

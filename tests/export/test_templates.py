"""Blocks that equal an earlier one are not walked again: the same graph, name by name, and never another's decision."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from flax import nnx
from onnx import helper, numpy_helper

import jaxport
from jaxport.blocks.marking.boundary import boundary
from jaxport.export.emit import templates
from jaxport.export.walk import walker

X = [("B", 4)]


@pytest.fixture
def repeated(monkeypatch):
    """The paths of the blocks that were made from a template."""
    paths, emitted = [], templates._Instance.emitted

    def noted(instance):
        block = instance.op.place
        paths.append(block.source)
        return emitted(instance)

    monkeypatch.setattr(templates._Instance, "emitted", noted)
    return paths


def written(exported):
    """All of a model, and how each equation was exported."""
    records = [(r.place, r.rule, [node.name for node in r.nodes], r.note) for r in exported.records]
    return ir.to_proto(exported.model).SerializeToString(deterministic=True), records


def export(fn, inputs, **options):
    """Export, and assert that the model is the one that is made if each block is walked."""
    exported = jaxport.to_onnx(fn, inputs, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates.BlockTemplates, "exported", lambda self, op, *given: op.walker.walk_block(op, *given))
        walked = jaxport.to_onnx(fn, inputs, **options)
    assert written(exported) == written(walked)
    return exported


def repeat(layer, times):
    """A function that calls a layer several times, each on the result of the one before."""

    def fn(x):
        for _ in range(times):
            x = layer(x)
        return x

    return fn


class Layer(nnx.Module):
    def __init__(self, rngs, width=4, activation=nnx.gelu, rate=0.0):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.dense = nnx.Linear(width, width, rngs=rngs)
        self.dropout = nnx.Dropout(rate, deterministic=True)
        self.activation = activation

    def __call__(self, x):
        return x + self.dropout(self.activation(self.dense(self.norm(x))))


class Model(nnx.Module):
    def __init__(self, layers=5, change=lambda index, layer: layer):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([change(index, Layer(rngs)) for index in range(layers)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def scaled(x, factor):
    """A block whose rule reads its second operand: a factor of one is no node."""
    return x * factor


def test_equal_layers_are_walked_twice(repeated):
    export(Model(8), [("B", 3, 4)]).verify()
    assert len(repeated) == 6


def test_attention(repeated):
    attention = nnx.List([nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(index)) for index in range(4)])

    def fn(x):
        for layer in attention:
            x = layer(x)
        return x

    export(fn, [("B", 3, 4)]).verify()
    assert repeated


def test_a_layer_whose_weights_are_special_values(repeated):
    def change(index, layer):
        if index == 3:
            layer.dense.bias[...] = jnp.zeros(4)
            layer.norm.scale[...] = jnp.ones(4)
            layer.dense.kernel[...] = jnp.zeros((4, 4))
        else:
            layer.dense.bias[...] = jnp.arange(4.0) + index
            layer.norm.scale[...] = jnp.arange(4.0) - index
        return layer

    export(Model(change=change), [("B", 3, 4)]).verify()
    assert repeated


@pytest.mark.parametrize("special", [0, 1, 4])
def test_a_layer_of_another_configuration(special):
    def change(index, layer):
        return Layer(nnx.Rngs(1), activation=nnx.relu, rate=0.5) if index == special else layer

    exported = export(Model(change=change), [("B", 3, 4)])
    assert sum(node.op_type == "Relu" for node in exported.model.graph) == 1
    assert sum(node.op_type == "Gelu" for node in exported.model.graph) == 4


@pytest.mark.parametrize("activation", [nnx.relu, nnx.silu, jax.nn.softplus, nnx.leaky_relu])
def test_functions_with_derivatives_of_their_own_are_repeated(activation, repeated):
    export(Model(change=lambda index, layer: Layer(nnx.Rngs(index), activation=activation)), [("B", 3, 4)])
    assert len(repeated) == 3


def calls(function, factors):
    """A function that calls a block once per factor, which is a constant and no parameter."""
    blocked = boundary(function)

    def fn(x):
        for factor in factors:
            x = blocked(x, jnp.full(4, factor, x.dtype))
        return x

    return fn


@pytest.mark.parametrize("place", range(5))
def test_a_constant_that_decides_what_is_emitted(place):
    exported = export(calls(scaled, [1.0 if index == place else 2.0 for index in range(5)]), X)
    assert sum(node.op_type == "Mul" for node in exported.model.graph) == 4


def test_an_integer_constant_that_decides_what_is_emitted():
    def divided(x, by):
        return x // by

    export(calls(divided, (3, 3, 3, -1, 3, 2, 3)), [jax.ShapeDtypeStruct((4,), np.int32)]).verify()


def test_a_constant_that_is_moved_and_then_read():
    @boundary
    def divided(x, by):
        return x // by.T

    weights = [jnp.array([[3, 4], [5, last]], jnp.int32) for last in (6, 6, 6, -1, 7)]

    def fn(x):
        for by in weights:
            x = divided(x, by)
        return x

    export(fn, [jax.ShapeDtypeStruct((2, 2), np.int32)]).verify()


def test_weights_that_are_moved_are_moved_again(repeated):
    rngs = nnx.Rngs(0)
    convolutions = nnx.List([nnx.Conv(3, 3, (3, 3), rngs=rngs) for _ in range(5)])

    def fn(x):
        for convolution in convolutions:
            x = convolution(x)
        return x

    export(fn, [("B", 8, 8, 3)])
    assert len(repeated) == 3


def test_an_operand_that_is_passed_twice():
    @boundary
    def both(x, y):
        return x * y + x

    def fn(x, y):
        for first, second in ((x, y), (x, y), (x, x), (y, y), (y, x), (x, y)):
            x = both(first, second)
        return x

    export(fn, X * 2)


def test_operands_of_other_kinds():
    @boundary
    def both(x, y):
        return x * y + x

    def fn(x, y):
        four = jnp.ones(4)
        for second in (y, y, y, y[:1], four, jnp.broadcast_to(y[:1], y.shape), four, y, x):
            x = both(x, second)
        return x

    export(fn, X * 2)


@pytest.mark.parametrize("first", range(7))
def test_an_operand_whose_origin_decides(first):
    @boundary
    def taken(x, index):
        return x + x[index]

    def fn(x, index):
        many = [index, index, jnp.clip(index, 0, 2), index % 4, jnp.arange(4), index, jnp.maximum(index, 0)]
        for at in many[first:] + many[:first]:
            x = taken(x, at)
        return x

    export(fn, [(4,), jax.ShapeDtypeStruct((4,), np.int32)])


def test_operands_of_other_dims():
    @boundary
    def normalized(x):
        return x / jnp.sum(x * x, axis=0)

    def fn(x, y):
        for _ in range(2):
            x, y = normalized(x), normalized(y)
        return normalized(y), normalized(x)

    export(fn, [("B", 4), ("T", 4)])


def test_the_lines_of_nodes_are_their_own():
    ways = iter("aaabab" * 8)

    @boundary
    def either(x):
        if next(ways) == "a":
            return jnp.tanh(x)
        return jnp.tanh(x)

    exported = export(repeat(either, 6), X)
    assert len({node.metadata_props["jaxport.source"] for node in exported.model.graph}) == 2


def test_numbers_that_are_computed_inside(repeated):
    @boundary
    def decayed(x):
        return x * jax.lax.integer_pow(jax.lax.full((), 0.5), 3)

    export(repeat(decayed, 5), X)
    assert len(repeated) == 3


def test_the_first_value_of_a_dim_is_not_repeated(repeated):
    @boundary
    def padded(x):
        return x + jnp.arange(x.shape[0], dtype=x.dtype)[:, None]

    export(repeat(padded, 5), X)
    assert len(repeated) == 3


def test_loops_are_walked(repeated):
    @boundary
    def summed(x):
        return jax.lax.fori_loop(0, 3, lambda i, y: y * 0.5 + x, x)

    export(repeat(summed, 5), X)
    assert not repeated


def test_functions_are_called(repeated):
    exported = export(Model(4), [("B", 3, 4)], functions=["Layer"])
    assert not repeated
    assert len(exported.model.graph) == 4


def test_rules_of_others_are_called_each_time():
    def by_path(op, x, **_):
        return op.Relu(x) if "layers.2" in op.place.path else op.Tanh(x)

    exported = export(Model(5), [("B", 3, 4)], rules={"tanh": by_path}, passes=())
    assert sum(node.op_type == "Relu" for node in exported.model.graph) == 1


def test_a_rule_that_looks_at_the_graph_is_called_each_time():
    @boundary
    def pooled(x):
        return nnx.max_pool(x, (2, 2), (1, 1), "SAME")

    def fn(x):
        for index in range(6):
            x = pooled(nnx.relu(x) if index in (1, 2, 3) else x - 1)
        return x

    export(fn, [("B", 4, 4, 1)], nonfinite="exact")


def test_shared_modules_and_tied_weights(repeated):
    class Shared(Model):
        def __init__(self):
            super().__init__(6)
            for layer in self.layers[1:]:
                layer.norm = self.layers[0].norm
            self.layers[4] = self.layers[2]
            self.layers[5].dense.kernel = self.layers[3].dense.kernel

    export(Shared(), [("B", 3, 4)])


def test_unrolled_scans(repeated):
    @nnx.vmap(in_axes=0, out_axes=0)
    def layers(key):
        return Layer(nnx.Rngs(key))

    stacked = layers(jax.random.split(jax.random.key(0), 6))

    def fn(x):
        return nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, stacked)

    export(fn, [("B", 3, 4)])
    assert repeated


def test_gradients(repeated):
    model = Model(4)
    export(jax.grad(lambda x: model(x).sum()), [("B", 3, 4)])


def test_refusals_are_all_reported():
    @boundary
    def called(x):
        return jax.pure_callback(lambda x: x, x, x)

    with pytest.raises(jaxport.Unsupported, match="cannot be exported"):
        jaxport.to_onnx(repeat(called, 4), [(4,)])


def test_the_namespace_of_nodes_is_their_own():
    exported = export(Model(5), [("B", 3, 4)])
    paths = {node.metadata_props["namespace"].split("/")[1].split(":")[0] for node in exported.model.graph}
    assert paths == {f"layers.{index}" for index in range(5)}
    assert isinstance(exported.records[0], walker.Record)


def test_values_that_are_known_compare_by_their_elements():
    """Shapes that are computed from sizes are in the configuration of the operators of an imported program."""
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    nodes += [helper.make_node("Slice", ["shape", *bounds], [name]) for name, bounds in (("b", "01"), ("c", "12"))]
    value = "x"
    for index in range(3):
        nodes += [
            helper.make_node("Concat", ["c", "b"], [f"s{index}"], axis=0),
            helper.make_node("Reshape", [value, f"s{index}"], [f"r{index}"]),
            helper.make_node("Transpose", [f"r{index}"], [f"y{index}"], perm=[1, 0]),
        ]
        value = f"y{index}"
    stored = [numpy_helper.from_array(np.array([int(name)]), name) for name in "012"]
    ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", ["n", "m"]), (value, None))]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], stored), ir_version=10)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    program = jaxport.from_onnx(model)
    exported = jaxport.to_onnx(jaxport.make_mox(program)(x), [x])
    np.testing.assert_array_equal(exported(x), program(x))

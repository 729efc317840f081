"""What a parameter is, wherever it is asked: `params`, `constants`, `trainable=`, gradients, and printed source."""

from __future__ import annotations

import functools
import json
import math

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import Array

import jaxport
from jaxport.importer import from_onnx
from jaxport.onnx_facts import ROLES
from tests.importer.models import model, program


def roles(graph: str, **options) -> dict[str, str]:
    return program(graph, **options).roles


VECTOR = "g (float[2, 3] x) => (float[2, 3] y) "


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        # Neither size nor the kind of node decides.
        ("g (float[2, 4] x) => (float[2, 1] y) <float[4, 1] w = {1, 2, 3, 4}, float[1] b = {1}> { y = Gemm(x, w, b) }", {"w": "parameter", "b": "parameter"}),
        ("g (float[2, 4] x) => (float[2, 1] y) <float[4, 1] w = {1, 2, 3, 4}, float[1] b = {1}> { a = MatMul(x, w) y = Add(a, b) }", {"w": "parameter", "b": "parameter"}),
        ("g (float[1, 1, 4] x) => (float[1, 1, 3] y) <float[1, 1, 2] w = {1, 2}, float[1] b = {1}> { y = Conv(x, w, b) }", {"w": "parameter", "b": "parameter"}),
        ("g (float[1, 4] x) => (float[1, 1] y) <float[1, 4] w = {1, 2, 3, 4}, float[1] b = {1}> { t = Transpose(w) a = MatMul(x, t) y = Add(b, a) }", {"w": "parameter", "b": "parameter"}),
        ("g (float[2, 1] x) => (float[2, 1] y) { w = Constant<value = float[1, 1] {2}>() y = MatMul(x, w) }", {"w": "parameter"}),
        (VECTOR + "{ w = Constant<value = float[3] {1, 2, 3}>() y = Mul(x, w) }", {"w": "parameter"}),
        (VECTOR + "{ w = Constant<value_floats = [1.0, 2.0, 3.0]>() y = Mul(x, w) }", {"w": "parameter"}),
        (VECTOR + "{ s = Constant<value_float = 0.25>() y = PRelu(x, s) }", {"s": "parameter"}),
        (VECTOR + "{ e = Constant<value = float {2}>() y = Pow(x, e) }", {"e": "constant"}),
        (VECTOR + "<float[1] e = {0.00001}> { y = Add(x, e) }", {"e": "constant"}),
        (VECTOR + "<float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float e = {0.5}> { a = MatMul(x, w) y = Add(a, e) }", {"w": "parameter", "e": "constant"}),
        (VECTOR + "<float[1] s = {0.25}> { y = PRelu(x, s) }", {"s": "parameter"}),
        # The state before the first step of a loop is not a weight.
        ("""g (float[2, 3] x) => (float[3] y) <float[3] h = {0, 0, 0}> { y = Scan<num_scan_inputs = 1, body = step (float[3] s,
            float[3] r) => (float[3] t) { t = Add(s, r) }>(h, x) }""", {"h": "constant"}),
        # Those of branches and bodies are like those outside.
        ("""g (bool c, float[2, 3] x) => (float[2, 3] y) { y = If<then_branch = a () => (float[2, 3] p)
            { w = Constant<value = float[3] {1, 2, 3}>() p = Mul(x, w) }, else_branch = b () => (float[2, 3] q)
            { w = Constant<value = float[3] {4, 5, 6}>() q = Mul(x, w) }>(c) }""", {"w": "parameter", "w_1": "parameter"}),
    ],
)  # fmt: skip
def test_the_place_decides(graph: str, expected: dict[str, str]):
    assert roles(graph) == expected


NORM = """g (float[1, 2, n] x) => (float[1, 2, n] y) { s = Constant<value = float[2] {1, 2}>() b = Constant<value = float[2] {3, 4}>()
    m = Constant<value = float[2] {0, 1}>() v = Constant<value = float[2] {1, 1}>() k = Constant<value = float[2, 2, 1] {1, 2, 3, 4}>()
    c = Conv(x, k) y = BatchNormalization(c, s, b, m, v) }"""


def test_weights_in_constant_nodes_are_weights(tmp_path):
    imported = program(NORM)
    assert imported.roles == dict.fromkeys("sbk", "parameter") | dict.fromkeys("mv", "statistic")
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    gradients = jax.grad(lambda params: imported.apply(params, x).sum())(imported.params)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients.values())
    chosen = from_onnx(model(NORM), trainable=["k", "m"])
    assert set(chosen.params) == {"k", "m"}
    chosen.save(tmp_path / "model.onnx", {**chosen.params, "k": 2 * chosen.params["k"]})
    again = from_onnx(tmp_path / "model.onnx", trainable=["k", "m"])
    np.testing.assert_array_equal(again.params["k"], 2 * chosen.params["k"])
    code = imported.to_source(framework="nnx").code
    assert "nnx.Conv(" in code
    assert "nnx.BatchNorm(" in code


HELD = """<domain: "d", opset_import: ["": 18]> F (x) => (y) { w = Constant<value = float[3, 1] {1, 2, 3}>()
    b = Constant<value = float[1] {4}>() h = Constant<value = float {0.5}>() p = MatMul(x, w) a = Add(p, b) y = Mul(a, h) }
    <domain: "d", opset_import: ["": 18, "d": 1]> G (x) => (y) { s = Constant<value = float[3] {1, 2, 3}>() e = Mul(x, s)
    y = d.F(e) } <domain: "d", opset_import: ["": 18]> C (x) => (y) { w = Constant<value = float[3] {1, 2, 3}>() c = Less(x, w)
    y = Cast<to = 1>(c) }"""


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("{ y = d.F(x) }", {"F.w": "parameter", "F.b": "parameter"}),
        ("{ a = d.F(x) b = d.F(x) y = Add(a, b) }", {"F.w": "parameter", "F.b": "parameter"}),
        ("{ a = d.F(x) b = d.G(x) y = Add(a, b) }", {"F.w": "parameter", "F.b": "parameter", "G.s": "parameter"}),
        ("{ y = d.G(x) }", {"G.F.w": "parameter", "G.F.b": "parameter", "G.s": "parameter"}),
        ("{ y = d.C(x) }", {"C.w": "constant"}),
        # A name of the graph is kept by what has it there; a branch calls a function, too.
        ("""<float[3, 1] "F.w" = {1, 2, 3}> { c = Constant<value = float {-1}>() t = Greater(x, c) i = Constant<value_ints = [0, 0]>()
            j = Constant<value_ints = [0]>() k = GatherND(t, i) a = If<then_branch = p () => (u) { u = d.F(x) },
            else_branch = q () => (v) { v = MatMul(x, "F.w") }>(k)
            b = MatMul(x, "F.w") y = Add(a, b) }""", {"F.w": "parameter", "F.w_1": "parameter", "F.b": "parameter", "c": "constant"}),
    ],
)  # fmt: skip
def test_weights_in_functions_are_weights(graph: str, expected: dict[str, str], tmp_path):
    made = model(f"g (float[2, 3] x) => (float[n, m] y) {graph}", functions=HELD, domains=', "d": 1')
    imported = from_onnx(made)
    assert {name: role for name, role in imported.roles.items() if name in expected} == expected
    assert {*imported.params} == {name for name, role in expected.items() if role == "parameter"}
    assert imported.verify().ok
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    gradients = jax.grad(lambda params: imported.apply(params, x).sum())(imported.params)
    assert all(np.abs(gradient).max() > 0 for name, gradient in gradients.items() if name in expected)
    doubled = {name: 2 * array for name, array in imported.params.items()}
    imported.save(tmp_path / "model.onnx", doubled)
    again = from_onnx(tmp_path / "model.onnx")
    assert again.roles == imported.roles
    np.testing.assert_array_equal(again(x), imported.apply(doubled, x))


def test_a_model_that_the_user_holds_keeps_its_nodes():
    import onnx_ir as ir

    held = ir.from_proto(model(NORM))
    before = [node.op_type for node in held.graph]
    assert set(from_onnx(held).params) == {"s", "b", "k"}
    assert [node.op_type for node in held.graph] == before


def test_a_bias_of_one_number_is_printed_and_trained():
    made = model("""g (float[n, 4] x) => (float[n, 1] y) <float[4, 1] w = {1, 2, 3, 4}, float[1] b = {1}>
        { a = MatMul(x, w) y = Add(a, b) }""")
    imported = from_onnx(made)
    source = imported.to_source(framework="nnx")
    assert "nnx.Linear(4, 1, rngs=rngs)" in source.code
    assert set(source.origins.values()) == set(imported.params) == {"w", "b"}


def claimed(text: str) -> dict[str, str]:
    made = model(VECTOR + "<float[3] w = {1, 2, 3}, int64[1] i = {0}> { a = Squeeze(x, i) y = Mul(x, w) }")
    made.graph.node.pop(0)
    onnx.helper.set_model_props(made, {ROLES: text})
    return from_onnx(made).roles


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ('{"statistic": ["w"]}', "statistic"),
        ('{"constant": ["w"]}', "constant"),
        ('{"constant": ["w"], "parameter": ["w"]}', "constant"),
        ('{"parameter": ["i", "nothing", 3, null, ["w"]]}', "parameter"),
        ('{"constant": "w", "other": ["w"]}', "parameter"),
        ("[", "parameter"),
        ("[" * 100_000, "parameter"),
        ("17", "parameter"),
        ('["w"]', "parameter"),
    ],
)
def test_the_file_says_it_and_what_is_malformed_says_nothing(text: str, role: str):
    found = claimed(text)
    assert found["w"] == role
    assert found.get("i", "constant") == "constant"


class Decay(nnx.Module):
    """A layer that computes with its parameter before it uses it, as Mamba does."""

    def __init__(self):
        self.A_log = nnx.Param(jnp.zeros(3))

    def __call__(self, x: Array) -> Array:
        return x * -jnp.exp(self.A_log[...])


class Decays(nnx.Module):
    def __init__(self, norm: bool = True):
        self.layers = nnx.List([Decay(), Decay()])
        self.norm = nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0)) if norm else None

    def __call__(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer(x) if self.norm is None else self.norm(layer(x))
        return x


def test_computed_and_equal_parameters_stay_parameters():
    exported = jaxport.to_onnx(Decays(), [("B", 5, 3)])
    imported = from_onnx(exported.proto)
    expected = {"layers.0.A_log", "layers.1.A_log", "norm.scale", "norm.bias"}
    assert {name for name, role in imported.roles.items() if role == "parameter"} == expected
    assert {n for n, role in imported.roles.items() if role == "statistic"} == {"norm.mean", "norm.var"}
    source = imported.to_source(framework="nnx")
    assert set(source.origins.values()) == expected | {"norm.mean", "norm.var"}
    assert source.code.count("nnx.Param(") == len(expected)


def test_parameters_may_be_folded_if_the_user_asks_for_it():
    small = jaxport.to_onnx(Decays(norm=False), [("B", 3)], fold="weights")
    assert [node.op_type for node in small.model.graph] == ["Mul", "Mul"]
    assert ROLES not in small.model.metadata_props
    whole = jaxport.to_onnx(Decays(norm=False), [("B", 3)])
    assert json.loads(whole.model.metadata_props[ROLES])["parameter"] == ["layers.0.A_log", "layers.1.A_log"]
    with pytest.raises(jaxport.InvalidArgument, match="fold='all' is unknown"):
        jaxport.to_onnx(Decays(norm=False), [("B", 3)], fold="all")


class Learned(nnx.Module):
    """Numbers that could be attributes of operators, and are learned."""

    def __init__(self):
        self.slope = nnx.Param(jnp.full((), 0.25))
        self.scale = nnx.Param(jnp.ones(()))
        self.square = nnx.Param(jnp.zeros((3, 3)))
        self.shift = nnx.Param(jnp.zeros(1))
        self.conv = nnx.Conv(4, 1, (3, 3), rngs=nnx.Rngs(0))
        self.more = nnx.Param(jnp.ones(1))

    def __call__(self, x: Array, image: Array) -> tuple[Array, Array]:
        x = jnp.where(x > 0, x, self.slope[...] * x)
        weights = jax.nn.softmax(self.scale[...] * (x @ x.T))
        square = self.square[...]
        return weights @ x @ (square + square.T) + self.shift[...], self.conv(image) + self.more[...]


def test_numbers_that_are_learned_stay_apart():
    learned = Learned()
    exported = jaxport.to_onnx(learned, [(2, 3), (1, 5, 5, 4)])
    imported = from_onnx(exported.proto)
    assert set(imported.params) == {"slope", "scale", "square", "shift", "conv.kernel", "conv.bias", "more"}
    rng = np.random.default_rng(0)
    arguments = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(1, 5, 5, 4)).astype(np.float32)
    moved = jaxport.make_mox(learned)(*arguments)
    changed = {
        path: value + 0.1 * (1 + np.arange(value.size).reshape(value.shape)) for path, value in moved.params.items()
    }
    kernel = np.asarray(changed["conv.kernel"])  # (height, width, in, out), as the importer keeps it
    wanted = moved.apply(changed, *arguments)
    found = imported.apply({**changed, "conv.kernel": kernel}, *arguments)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (lambda w, x: (x @ jnp.ones((6, 6))).reshape(2, 2, 3) + w, (2, 1)),  # added before the reshape, it would grow
        (lambda w, x: jnp.split(x @ w, 3, -1)[0] + (x @ w)[:, 12:], (6, 18)),
        (lambda w, x: [x @ part for part in jnp.split(w, 3, -1)], (6, 18)),  # divided, it would be three
    ],
)
def test_a_parameter_keeps_its_elements(fn, shape: tuple[int, ...]):
    exported = jaxport.to_onnx(
        functools.partial(lambda params, x: fn(params["w"], x), {"w": np.ones(shape, np.float32)}), [(2, 6)]
    )
    (imported,) = from_onnx(exported).params.items()
    assert (imported[0], imported[1].size) == ("w", math.prod(shape))


@pytest.mark.parametrize("external", [False, True])
def test_roles_survive_files_functions_and_loops(external: bool, tmp_path):
    class Loop(nnx.Module):
        def __init__(self):
            self.decay, self.linear = Decay(), nnx.Linear(3, 3, rngs=nnx.Rngs(0))

        def __call__(self, x: Array) -> Array:
            step = lambda state, row: (jnp.tanh(self.decay(state) + self.linear(row)), None)
            return jax.lax.scan(step, jnp.zeros(3), x)[0]

    exported = jaxport.to_onnx(Loop(), [("T", 3)], functions=[Decay])
    exported.save(tmp_path / "model.onnx", external_data=external)
    imported = from_onnx(tmp_path / "model.onnx")
    parameters = {name for name, role in imported.roles.items() if role == "parameter"}
    assert parameters == {"decay.A_log", "linear.kernel", "linear.bias"} == set(imported.params)


class Normalized(nnx.Module):
    def __init__(self):
        self.norm = nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0))
        self.norm.var[...] = jnp.array([1.0, 2.0, 3.0])
        self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(1))

    def __call__(self, x: Array) -> Array:
        return self.linear(self.norm(x)) * jnp.linspace(1.0, 2.0, 5)[:, None]


EXPECTED = {f"{path}": "parameter" for path in ("norm.scale", "norm.bias", "linear.kernel", "linear.bias")}
EXPECTED |= {"norm.mean": "statistic", "norm.var": "statistic"}


def named(program: jaxport.Program) -> dict[str, str]:
    return {name: role for name, role in program.roles.items() if role != "constant"}


def test_roles_survive_programs_edits_and_files(tmp_path):
    x = np.ones((5, 3), np.float32)
    imported = from_onnx(jaxport.to_onnx(Normalized(), [(5, 3)]).proto)
    mox = jaxport.make_mox(imported)(x)
    jaxport.mox.save(mox.sub("//MatMul", jaxport.mox.prune(0.3)), tmp_path / "pruned.json")
    assert ({*mox.params}, {*mox.state} & {*EXPECTED}) == ({*imported.params}, {"norm.mean", "norm.var"})
    for again in (
        imported,
        mox,
        mox.sub("//MatMul", jaxport.mox.prune(0.3)),
        jaxport.mox.load(tmp_path / "pruned.json"),
    ):
        exported = jaxport.to_onnx(again, [(5, 3)])
        assert named(from_onnx(exported.proto)) == EXPECTED
        assert "BatchNormalization" in {node.op_type for node in exported.model.graph}
    adapted = from_onnx(jaxport.to_onnx(mox.sub("//MatMul", jaxport.mox.lora(1)), [(5, 3)]).proto)
    assert named(adapted) == EXPECTED | {"linear.MatMul.lora_a": "parameter", "linear.MatMul.lora_b": "parameter"}


def test_what_is_frozen_keeps_its_path():
    imported = from_onnx(jaxport.to_onnx(Normalized(), [(5, 3)]), trainable=["linear.bias"])
    mox = jaxport.make_mox(imported)(np.ones((5, 3), np.float32))
    assert ({*mox.params}, {*mox.state} >= {*EXPECTED} - {"linear.bias"}) == ({"linear.bias"}, True)
    wanted = dict.fromkeys(EXPECTED, "statistic") | {"linear.bias": "parameter"}
    assert (
        named(from_onnx(jaxport.to_onnx(mox, [(5, 3)])))
        == named(from_onnx(jaxport.to_onnx(imported, [(5, 3)])))
        == wanted
    )


def test_what_functions_hold_keeps_its_role():
    held = jaxport.onnx_function(unique=True)
    linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    linear.bias[...] = jnp.array([2.0])

    @held
    def scaled(x: Array) -> Array:
        return linear(x) * jnp.array([[2.0, 3.0, 4.0]])

    exported = jaxport.to_onnx(lambda x: scaled(scaled(x)), [("B", 3)])
    assert len(exported.model.functions) == 1
    assert named(from_onnx(exported.proto)) == {"kernel": "parameter", "bias": "parameter"}


def test_collections_of_linen_have_roles():
    from flax import linen

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x: Array) -> Array:
            return linen.Dense(1)(linen.BatchNorm(use_running_average=True)(x))

    variables = Model().init(jax.random.key(0), jnp.ones((2, 3)))
    exported = jaxport.to_onnx(lambda x: Model().apply(variables, x), [("B", 3)])
    found = from_onnx(exported.proto).roles
    assert {name.partition(".")[0]: role for name, role in found.items()} == {
        "params": "parameter",
        "batch_stats": "statistic",
    }


TABLE = np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32)


@pytest.mark.parametrize("low", [-np.inf, -1e9, np.finfo(np.float32).min, 0.0])
@pytest.mark.parametrize("use", ["Add", "Mul"])
@pytest.mark.parametrize("name", ["spatial_encoder.weight", "onnx::Gather_12"])
def test_an_embedding_whose_padding_is_minus_infinity_is_trained(low: float, use: str, name: str):
    graph = f'g (float[1, n, 4] s, int64[1, n] i) => (float[1, n, 4] y) <float[1] "{name}" = {{1}}> {{ e = Gather("{name}", i) y = {use}(s, e) }}'
    made = model(graph)
    made.producer_name = "pytorch"
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.vstack([np.full(4, low, "f4"), TABLE]), name))
    imported = from_onnx(made)
    assert imported.roles == {name: "parameter"}
    if low < 0:
        assert "nnx.Embed(14, 4" in imported.to_source(framework="nnx").code


CAUSAL = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
BOXES = np.random.default_rng(0).uniform(size=(1, 4, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "array", "use", "role"),
    [
        ("layer.mask", CAUSAL, "y = Add(x, w)", "constant"),
        ("layer.mask", CAUSAL[None], "i = Cast<to = 7>(x) j = ReduceMin<keepdims = 0>(i) r = Gather(w, j) y = Add(x, r)", "constant"),
        ("w", CAUSAL - np.arange(4, dtype=np.float32), "y = Add(x, w)", "constant"),
        ("layer.bias", CAUSAL - np.arange(4, dtype=np.float32), "y = Add(x, w)", "parameter"),
        ("461", BOXES, "a = Mul(x, w) y = Add(a, w)", "constant"),
        ("461", BOXES, "y = MatMul(x, w)", "parameter"),
        ("461", BOXES[0, :1], "y = Mul(x, w)", "parameter"),
        ("model.anchors", BOXES, "y = Mul(x, w)", "constant"),
        ("priors", BOXES, "y = Mul(x, w)", "constant"),
        ("pos_embed", BOXES, "y = Add(x, w)", "parameter"),
        ("model/positions/Add/ReadVariableOp:0", BOXES, "y = Add(x, w)", "parameter"),
        ("stft", np.hanning(8).astype(np.float32), "a = Concat<axis = 1>(x, x) y = Mul(a, w)", "constant"),
    ],
)  # fmt: skip
def test_what_no_layer_owns_is_a_constant(name: str, array: np.ndarray, use: str, role: str):
    made = model(f"g (float[4, 4] x) => (float[a, b] y) <float[1] w = {{1}}> {{ {use} }}")
    made.producer_name = "pytorch"
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, name))
    for node in made.graph.node:
        node.input[:] = [name if each == "w" else each for each in node.input]
    assert from_onnx(made).roles == {name: role}


@pytest.mark.parametrize(("is_folded", "role"), [(True, "constant"), (False, "parameter")])
def test_a_number_that_an_exporter_folded_is_a_constant_though_its_name_has_a_path(is_folded: bool, role: str):
    """The one of a GELU is named after the module in whose code it is: a learned temperature has such a name, too."""
    made = model('g (float[n] x) => (float[n] y) <float "mlp.act.scalar" = {1}> { y = Add(x, "mlp.act.scalar") }')
    made.producer_name = "pytorch"
    if is_folded:
        made.graph.value_info.append(onnx.helper.make_tensor_value_info("mlp.act.scalar", onnx.TensorProto.FLOAT, []))
        made.graph.value_info[0].metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value="['val_4']")
    assert from_onnx(made).roles == {"mlp.act.scalar": role}

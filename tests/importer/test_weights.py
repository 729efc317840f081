"""Weights: roles, layouts, tying, laziness, memory, and the way back into a file."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import optax
import pytest
from onnx import TensorProto, numpy_helper

from jaxport.errors import InvalidArgument, ModelError
from jaxport.importer import from_onnx
from jaxport.importer.loading.frame import without_data
from jaxport.importer.loading.mapping import MappedTensor
from jaxport.importer.tensors import weights
from jaxport.importer.tensors.weights import Weights
from tests.importer.models import model, program

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("use", "shape", "constant"),
    [
        ("y = Mul(x, w)", "2", False),
        ("y = Pow(x, w)", "2", True),
        ("a = Identity(w) y = Pow(x, a)", "2", True),
        ("a = Greater(x, w) y = Cast<to = 1>(a)", "2", True),
        ("a = Greater(x, w) b = Cast<to = 1>(a) y = Mul(b, w)", "2", False),
        ("y = Clip(x, s, w)", "1", True),
        ("y = Mul(x, w)", "1", True),
        ("y = d.Power(x, w)", "2", True),
        ("y = d.Scale(x, w)", "2", False),
        ("a = Unsqueeze(w, zero) b = Squeeze(a, zero) y = Mul(x, b)", "2", False),
    ],
)
def test_roles_follow_from_use(use: str, shape: str, constant: bool):
    values = ", ".join(["0.5", "2"][: int(shape)])
    functions = """<domain: "d", opset_import: ["": 18]> Power (x, e) => (y) { f = Identity(e) y = Pow(x, f) }
        <domain: "d", opset_import: ["": 18]> Scale (x, w) => (y) { y = Mul(x, w) }"""
    graph = f"g (float[2] x) => (float[2] y) <float[{shape}] w = {{{values}}}, float s = {{0}}, int64[1] zero = {{0}}> {{ {use} }}"
    assert ("w" in program(graph, functions=functions, domains=', "d": 1').constants) is constant


@pytest.mark.parametrize("fill", ["-10000", "-3.4e38"])
def test_masks_are_constants(fill: str):
    masked = program(f"g (float[2] x) => (float[2] y) <float[2] w = {{0, {fill}}}> {{ y = Add(x, w) }}")
    assert masked.params == {}
    made = model("g (float[2] x) => (float[2] y) <float[2] w = {0, 0}> { y = Add(x, w) }")
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([0, -np.inf], np.float32), "w"))
    assert from_onnx(made).params == {}


NORM = """g (float[1, 2, 3] x) => (float[1, 2, 3] y) <float[2] scale = {1, 2}, float[2] bias = {3, 4},
    float[2] mean = {0, 1}, float[2] var = {1, 1}> { y = BatchNormalization(x, scale, bias, mean, var) }"""


def test_statistics_are_constants_unless_they_are_named():
    assert set(program(NORM).params) == {"scale", "bias"}
    chosen = from_onnx(model(NORM), trainable=["mean"])
    assert set(chosen.params) == {"mean"}
    assert set(chosen.constants) == {"scale", "bias", "var"}


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "it is not an initializer"), ("table", "it is INT64"), ("size", "a shape depends on it")],
)
def test_what_cannot_be_trained(name: str, message: str):
    graph = """g (float[2] x) => (float[a, b] y) <int64[2] table = {1, 2}, float[2] size = {1, 2}>
        { i = Cast<to = 7>(size) r = Reshape(x, i) f = Cast<to = 1>(table) y = Mul(r, f) }"""
    with pytest.raises(InvalidArgument, match=f"`{name}` cannot be trained") as caught:
        from_onnx(model(graph), trainable=[name])
    assert message in str(caught.value)


def test_gradients_are_finite_where_an_exponent_is_a_tensor():
    graph = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] two = {2, 2}>
        { a = Pow(x, two) y = Mul(a, w) }"""
    power = program(graph)
    x = np.array([-1, 2], np.float32)
    grads = jax.grad(lambda params: power.apply(params, x).sum())(power.params)
    np.testing.assert_array_equal(grads["w"], [1, 4])


TIED = """g (float[2] x) => (float[2] y) <float[2] one = {1, 1}, float[2] b = {0, 1}>
    { a = Mul(x, one) c = Add(a, b) d = Mul(c, one) y = Add(d, b) }"""


def test_untying_gives_each_node_a_tensor_of_its_own(tmp_path: Path):
    made = model(TIED)
    for node, name in zip(made.graph.node, ("/l0/Mul", "/l0/Add", "/l1/Mul", "/l1/Add"), strict=True):
        node.name = name
    x = np.array([2, 3], np.float32)
    assert set(from_onnx(made, ties="keep").params) == {"one", "b"}
    assert set(from_onnx(made, ties=["b"]).params) == {"one", "l1.one", "b"}
    untied = from_onnx(made, ties="none")
    assert set(untied.params) == {"one", "l1.one", "b", "l1.b"}
    np.testing.assert_array_equal(untied(x), from_onnx(made)(x))
    params = untied.params | {"l1.one": jnp.array([5.0, 7.0])}
    np.testing.assert_array_equal(untied.apply(params, x), [10, 29])
    untied.save(tmp_path / "untied.onnx", params)
    np.testing.assert_array_equal(from_onnx(tmp_path / "untied.onnx")(x), [10, 29])
    assert "l1.b" not in from_onnx(made).params, "the model that was given is as it was"
    with pytest.raises(InvalidArgument, match="`zwei` is not an initializer"):
        from_onnx(made, ties=["zwei"])
    with pytest.raises(InvalidArgument, match='no kind of ties "all"'):
        from_onnx(made, ties="all")


def test_a_vector_of_one_value_is_a_parameter_of_each_layer_and_a_module_called_twice_keeps_its_own(tmp_path: Path):
    made = model("""g (float[N, 2] x) => (float[N, 2] y, float[N, 2] z)
        <float[2, 2] up = {1, 2, 3, 4}, float[2, 2] down = {4, 3, 2, 1}, float[2] zeros = {0, 0}>
        { a = MatMul(x, up) b = Add(a, zeros) c = MatMul(b, down) d = Add(zeros, c)
          e = MatMul(d, up) y = Add(e, zeros) z = Gemm(d, down, zeros) }""")
    imported = from_onnx(made)
    assert set(imported.params) == {"up", "down", "zeros", "zeros_2"}, "two layers, each called twice"
    assert imported.untied == {"zeros_2": "zeros"}
    assert "zeros_2 is stored as zeros" in repr(imported)
    x = np.array([[1, -2]], np.float32)
    for was, now in zip(from_onnx(made, ties="keep")(x), imported(x), strict=True):
        np.testing.assert_array_equal(was, now)
    changed = imported.with_params({"zeros_2": np.array([1, 1], np.float32)})
    changed.save(tmp_path / "changed.onnx")
    for was, now in zip(changed(x), from_onnx(tmp_path / "changed.onnx")(x), strict=True):
        np.testing.assert_array_equal(was, now)
    at_first = imported.params["down"]
    expected = (np.asarray(x @ imported.params["up"] @ at_first) + 1) @ np.asarray(at_first) + 1
    np.testing.assert_array_equal(changed(x)[1], expected)


def test_a_tensor_that_takes_the_name_of_the_node_that_renamed_it_is_the_only_value_of_that_name():
    made = model("""g (float[N, 2] x) => (float[N, 2] y, float[2] bias)
        <float[2, 2] up = {1, 2, 3, 4}, float[2, 2] down = {4, 3, 2, 1}, float[2] zeros = {0, 0}>
        { first = Identity(zeros) second = Identity(zeros) bias = Identity(zeros)
          a = MatMul(x, up) b = Add(a, first) c = MatMul(b, down) d = Add(c, second) y = Add(d, bias) }""")
    imported = from_onnx(made)
    assert {"first", "second"} & set(imported.params)
    names = [
        *imported.model.graph.initializers,
        *(value.name for node in imported.model.graph for value in node.outputs),
    ]
    assert len(names) == len(set(names))
    imported.verify()


MERGED = {
    "a scale and a variance": (
        """g (float[N, 2] x) => (float[N, 2] y) <float[2] "bn.weight" = {1, 1}, float[2] "bn.bias" = {0, 0}>
        { y = BatchNormalization(x, "bn.weight", "bn.bias", "bn.bias", "bn.weight") }""",
        {"bn.weight", "bn.bias"}, {"bn.running_mean", "bn.running_var"},
    ),
    "the elements of a list": (
        """g (float[N, 2] x) => (float[N, 2] "9") <float[2, 2] "ws.0" = {0, 0, 0, 0}>
        { "ws.1" = Identity("ws.0") "7" = MatMul(x, "ws.0") "8" = Tanh("7") "9" = MatMul("8", "ws.1") }""",
        {"ws.0", "ws.1"}, set(),
    ),
    "the first reader keeps the name": (
        """g (float[N, 2] x) => (float[N, 2] "9") <float[2] "m.A" = {0, 0}, float "scale" = {1}>
        { "m.dt" = Identity("m.A") "7" = Add(x, "m.dt") "8" = Mul("7", "m.A") "9" = Mul("8", scale) }""",
        {"m.A", "m.dt", "scale"}, set(),
    ),
    "a part of an equal layer": (
        """g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] "layers.0.attention.out.weight" = {1, 2, 3, 4}>
        { a = MatMul(x, "layers.0.attention.out.weight") b = Tanh(a) y = MatMul(b, "layers.0.attention.out.weight") }""",
        {"layers.0.attention.out.weight", "layers.1.attention.out.weight"}, set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_what_an_exporter_merged_is_called_as_the_author_called_it(name: str):
    """Tensors of fresh models are equal by chance."""
    graph, parameters, statistics = MERGED[name]
    made = model(graph)
    made.producer_name = "pytorch"
    scopes = {
        "BatchNormalization": ["/bn/BatchNormalization"],
        "MatMul": [f"/layers.{n}/attention/MatMul" for n in (0, 1)],
    }
    for operator, names in scopes.items() if "ws.0" not in parameters else ():
        nodes = [node for node in made.graph.node if node.op_type == operator]
        for node, each in zip(nodes, names, strict=False):
            node.name = each
    imported = from_onnx(made)
    roles = dict.fromkeys(parameters, "parameter") | dict.fromkeys(statistics, "statistic")
    assert imported.roles == roles
    x = np.array([[1, -2]], np.float32)
    np.testing.assert_array_equal(imported(x), from_onnx(made, ties="keep")(x))


def head(table: np.ndarray, matrix: np.ndarray, made_up: str = "val_7") -> onnx.ModelProto:
    """A table of words, and a head whose matrix an exporter has transposed."""
    made = model(f"g (int64[N] ids) => (float[N, 5] y) {{ x = Gather(t, ids) a = Tanh(x) y = MatMul(a, {made_up}) }}")
    made.graph.node[0].name, made.graph.node[2].name = "/words/Gather", "/head/MatMul"
    made.graph.node[0].input[0] = "head.weight"
    made.graph.initializer.extend(
        [numpy_helper.from_array(table, "head.weight"), numpy_helper.from_array(matrix, made_up)]
    )
    return made


@pytest.mark.parametrize("table", [rng.normal(size=(5, 3)), np.zeros((5, 3)), np.ones((5, 3))])
def test_a_transposed_copy_is_the_parameter_that_its_module_has_the_name_of(table: np.ndarray, tmp_path: Path):
    table = table.astype(np.float32)
    made = head(table, np.ascontiguousarray(table.T))
    imported, stored = from_onnx(made), from_onnx(made, ties="keep")
    assert (set(imported.params), set(stored.params)) == ({"head.weight"}, {"head.weight", "val_7"})
    ids = np.array([4, 0], np.int32)
    np.testing.assert_array_equal(imported(ids), stored(ids))
    changed = imported.with_params({"head.weight": 2 * table + 1})
    both = stored.with_params({"head.weight": 2 * table + 1, "val_7": 2 * table.T + 1})
    changed.save(tmp_path / "changed.onnx")
    for after in (changed, from_onnx(tmp_path / "changed.onnx")):
        np.testing.assert_array_equal(after(ids), both(ids))
    assert "self.words.attend(" in imported.to_source(framework="nnx").code
    assert set(from_onnx(head(table, np.full((3, 5), 7, np.float32))).params) == {"head.weight", "val_7"}


def test_a_matrix_whose_name_says_that_it_was_transposed_is_the_only_parameter_of_its_elements():
    table = rng.normal(size=(5, 3)).astype(np.float32)
    made = head(table, np.ascontiguousarray(table.T), "permute")
    made.graph.node[2].name = "matmul"
    assert set(from_onnx(made).params) == {"head.weight"}
    made.graph.initializer.append(numpy_helper.from_array(table, "other.weight"))
    made.graph.node.add(op_type="Gather", input=["other.weight", "ids"], output=["z"])
    made.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("z", 1, ["N", 3]))
    assert set(from_onnx(made).params) == {"head.weight", "other.weight", "permute"}, "it may be either"


def convolution(group: int = 1) -> onnx.ModelProto:
    made = model(f"g (float[n, 4, 5, 5] x) => (float[n, 6, 3, 3] y) {{ y = Conv<group = {group}>(x, w) }}")
    kernel = rng.normal(size=(6, 4 // group, 3, 3)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(kernel, "w"))
    return made


@pytest.mark.parametrize("group", [1, 2])
def test_kernels_are_kept_as_xla_likes_them_and_written_back(group: int, tmp_path: Path):
    made = convolution(group)
    conv = from_onnx(made)
    assert conv.params["w"].shape == conv.param_specs["w"].shape == (3, 3, 4 // group, 6)
    x = rng.normal(size=(2, 4, 5, 5)).astype(np.float32)
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(conv(x), expected, rtol=1e-4, atol=1e-5)
    doubled = {"w": 2 * conv.params["w"]}
    conv.save(tmp_path / "doubled.onnx", doubled)
    saved = numpy_helper.to_array(onnx.load(tmp_path / "doubled.onnx").graph.initializer[0])
    np.testing.assert_array_equal(saved, 2 * numpy_helper.to_array(made.graph.initializer[0]))
    with pytest.raises(InvalidArgument, match="kernels of convolutions are kept as"):
        conv.apply({"w": saved}, x)


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[1, 4, 5, 5] x) => (float[a, b, c, d] y, float[6, 4, 3, 3] z) { y = Conv(x, w) z = Identity(w) }",
        (
            "g (float[1, 4, 5, 5] x, bool c) => (float[a, b, h, d] y) { y = If(c) <then_branch = t () => (float[p, q, r, s] a) "
            "{ a = Conv(x, w) }, else_branch = e () => (float[p, q, r, s] b) { b = Conv(x, w) }> }"
        ),
        """g (float[1, 4, 5, 5] x) => (float[a, b, c, d] y) { y = d.F(x, w) }""",
    ],
)
def test_a_kernel_that_has_other_uses_stays_as_it_is(graph: str):
    functions = '<domain: "d", opset_import: ["": 18]> F (x, w) => (y) { y = Conv(x, w) }'
    made = model(graph, functions=functions, domains=', "d": 1')
    made.graph.initializer.append(numpy_helper.from_array(rng.normal(size=(6, 4, 3, 3)).astype(np.float32), "w"))
    kept = from_onnx(made)
    assert kept.params["w"].shape == (6, 4, 3, 3)
    inputs = {"x": np.ones((1, 4, 5, 5), np.float32), "c": np.array(True)}
    assert jax.tree.leaves(kept(**{name: inputs[name] for name in kept.input_names}))[0].shape == (1, 6, 3, 3)


def test_printed_source_has_kernels_in_the_same_layout():
    source = from_onnx(convolution()).to_source(framework="jax")
    assert '("NHWC", "HWIO", "NHWC")' in source.code.replace("'", '"')
    assert source.tensors["params/w"].shape == (3, 3, 4, 6)


def test_parameters_follow_the_switch_of_64_bit_types():
    wide = program("g (double[2] x) => (double[2] y) <double[2] w = {1, 2}> { y = Mul(x, w) }")
    assert wide.params["w"].dtype == np.float32
    with jax.enable_x64(True):
        assert wide.params["w"].dtype == np.float64
    assert wide.params["w"].dtype == np.float32


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "int4", "uint2", "int8"]
)
@pytest.mark.parametrize("form", ["path", "bytes", "proto", "external"])
def test_large_tensors_are_read_exactly(dtype: str, form: str, tmp_path: Path):
    element = ir.DataType.from_numpy(np.dtype(jnp.dtype(dtype)))
    data = rng.integers(-2 if element.is_signed() else 0, 2, (65, 67)).astype(np.dtype(jnp.dtype(dtype)))
    proto = ir.to_proto(ir.Tensor(data, element, name="w"))
    made = model("g (float[1] x) => (float[a, b] y) { c = Cast<to = 1>(w) y = Add(x, c) }", opset=25)
    made.graph.initializer.append(proto)
    path = tmp_path / "m.onnx"
    if form == "external":
        onnx.save(made, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    else:
        path.write_bytes(made.SerializeToString())
    source = {"path": path, "external": path, "bytes": path.read_bytes(), "proto": made}[form]
    read = from_onnx(source)
    (tensor,) = read.body.initializers.values()
    assert isinstance(tensor, MappedTensor) is (form != "proto")
    np.testing.assert_array_equal(read(np.zeros(1, np.float32)), data.astype(np.float32))


def big(path: Path, megabytes: int, external: bool) -> Path:
    """A model of square matrices of 4 MB each."""
    nodes = " ".join(f"v{i + 1} = MatMul(v{i}, w{i})" for i in range(megabytes // 4))
    made = model(f"g (float[b, 1024] v0) => (float[b, 1024] v{megabytes // 4}) {{ {nodes} }}")
    for index in range(megabytes // 4):
        made.graph.initializer.append(numpy_helper.from_array(np.full((1024, 1024), index, np.float32), f"w{index}"))
    onnx.save(made, path, save_as_external_data=external, location="weights.bin")
    return path


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_nothing_is_read_before_it_is_used(external: bool, tmp_path: Path):
    path = big(tmp_path / "big.onnx", 32, external)
    tracemalloc.start()
    lazy = from_onnx(path)
    assert {spec.shape for spec in lazy.param_specs.values()} == {(1024, 1024)}
    assert tracemalloc.get_traced_memory()[1] < 8e6
    tracemalloc.stop()
    assert float(lazy.params["w7"][3, 4]) == 7


ONE_OF_MANY = """
import os, sys
import jax
from jaxport import from_onnx

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

weights, before = from_onnx(sys.argv[1]).params, resident()
assert len(weights) == 75 and "w7" in weights and "w75" not in weights and "w74" in sorted(weights)
assert float(weights["w7"][3, 4]) == 7 and weights["w7"] is weights["w7"]
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_one_weight_costs_the_memory_of_one(external: bool, tmp_path: Path):
    path = big(tmp_path / "big.onnx", 300, external)
    command = [sys.executable, "-c", ONE_OF_MANY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 60  # of 300; what JAX itself takes for a first operation included


def test_weights_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch):
    graph = "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> { c = Mul(x, a) y = Mul(c, b) }"
    lazy, read = program(graph), []
    assert type(lazy.params) is dict
    monkeypatch.setattr(weights, "LARGE", 0)
    lazy = program(graph)
    monkeypatch.setattr(
        Weights, "host_array", lambda self, name, whole=Weights.host_array: read.append(name) or whole(self, name)
    )
    assert sorted(lazy.params) == ["a", "b"]
    assert (len(lazy.params), lazy.params.get("c"), "a" in lazy.params) == (2, None, True)
    assert read == []
    np.testing.assert_array_equal(lazy.params["b"], [3, 4])
    assert read == ["b"]
    assert lazy.params["b"] is lazy.params.get("b") is lazy.weights["b"]
    assert read == ["b"]
    np.testing.assert_array_equal(lazy.apply(lazy.params, np.ones(2, np.float32)), [3, 8])
    assert read == ["b", "a"]
    with pytest.raises(KeyError, match="c"):
        lazy.params["c"]


def test_parameters_are_a_dict_and_a_tree(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weights, "LARGE", 0)
    graph = "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> { c = Mul(x, a) y = Mul(c, b) }"
    made, x = program(graph), np.ones(2, np.float32)
    plain = {name: np.asarray(value) for name, value in made.params.items()}
    assert list(plain) == ["a", "b"]
    for whole in (dict(made.params), {**made.params}, {} | made.params, made.params | {}, made.params.copy()):
        assert list(whole) == ["a", "b"]
        np.testing.assert_array_equal(whole["b"], plain["b"])
    changed = made.params
    changed["a"] = 7
    assert (changed.pop("a"), changed.pop("a", None), changed.setdefault("b") is made.params["b"]) == (7, None, True)
    assert [name for name, _ in (changed.popitem(), *changed.items())] == ["b"]
    with pytest.raises(KeyError):
        changed.pop("b")
    copies = copy.copy(made.params), copy.deepcopy(made.params)
    assert {type(copied) for copied in copies} == {type(made.params)}
    for copied in (*copies, pickle.loads(pickle.dumps(made.params))):
        assert str(copied) == str(made.params) == str(plain).replace("array", "Array")
    loss = lambda params: made.apply(params, x).sum()
    optimizer = optax.adamw(0.1)

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), loss(params)

    start = made.params, optimizer.init(made.params)
    (params, _), losses = jax.jit(lambda start: jax.lax.scan(step, start, None, length=3))(start)
    assert type(params) is type(made.params)
    assert losses[2] < losses[0]
    moved = jax.tree.map(lambda old, new: bool((old != new).all()), made.params, params)
    assert moved == {"a": True, "b": True}
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(moved)] == ["['a']", "['b']"]


def test_weights_beyond_two_gigabytes(tmp_path: Path):
    """In a file with a hole, which takes no space."""
    made = model("g (float[b, 4] x) => (float[b, 2] y) { y = MatMul(x, w) }")
    for name, dims, offset in (("huge", (2**29 + 2**28,), 0), ("w", (4, 2), 3 * 2**30)):
        tensor = made.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        tensor.dims.extend(dims)
        for key, value in (("location", "weights.bin"), ("offset", offset)):
            tensor.external_data.add(key=key, value=str(value))
    with (tmp_path / "weights.bin").open("wb") as file:
        file.seek(3 * 2**30)
        file.write(np.arange(8, dtype=np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    huge = from_onnx(tmp_path / "m.onnx", trainable=["w"])
    np.testing.assert_array_equal(huge(np.eye(4, dtype=np.float32)), np.arange(8).reshape(4, 2))
    assert huge.constants["huge"].nbytes == 3 * 2**30


def test_parameters_survive_the_file_that_they_came_from(tmp_path: Path):
    path = big(tmp_path / "big.onnx", 8, external=False)
    loaded = from_onnx(path)
    path.unlink()
    assert float(loaded.params["w1"][0, 0]) == 1


def large_model() -> onnx.ModelProto:
    made = model("g (float[600] x) => (float[600] y) { y = Mul(x, w) }")
    made.graph.initializer.append(numpy_helper.from_array(np.arange(600, dtype=np.float32), "w"))
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.dims.__setitem__(0, 10**15), "needs 4000000000000000 bytes, the tensor has 2400"),
        (lambda t: t.dims.__setitem__(0, -600), "has a negative size"),
        (lambda t: setattr(t, "data_type", 77), "77 is not an ONNX element type"),
        (lambda t: setattr(t, "data_type", TensorProto.STRING), "strings cannot be stored outside"),
        (lambda t: setattr(t, "raw_data", t.raw_data[:-1]), "needs 2400 bytes, the tensor has 2399"),
        (lambda t: setattr(t, "raw_data", t.raw_data + b"x"), "needs 2400 bytes, the tensor has 2401"),
    ],
)
def test_large_tensors_that_are_damaged(change, message: str):
    made = large_model()
    change(made.graph.initializer[0])
    with pytest.raises(ModelError, match=message):
        from_onnx(made.SerializeToString())


def test_frames_of_irregular_messages_are_left_to_the_parser():
    data = large_model().SerializeToString()
    assert len(without_data(memoryview(data))) < 300
    for irregular in (data + data, data[:-1], b"\xff" + data, data + b"\x3f"):
        assert without_data(memoryview(irregular)) == irregular

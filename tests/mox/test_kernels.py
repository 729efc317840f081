"""One definition of a kernel: each edit of the same numbers gives the same values, however a layer stores and uses them."""

from __future__ import annotations

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from onnx import TensorProto, helper, numpy_helper

import jaxport
from jaxport.mox import dora, ia3, lora, merge_lora, prune, quantize
from jaxport.mox.querying.kernels import kernels, summands

pytestmark = pytest.mark.sampled(3)

NUMBERS = np.random.default_rng(0)
# Columns of very different sizes: a scale for each is needed.
W = (NUMBERS.normal(size=(8, 12)) * np.logspace(-2, 1, 12)).astype(np.float32)
B = NUMBERS.normal(size=12).astype(np.float32)
X = jnp.asarray(NUMBERS.normal(size=(5, 8)), jnp.float32)


class Product(nnx.Module):
    """A product that is written by hand."""

    def __init__(self, kernel, multiply):
        self.kernel, self.bias, self.multiply = nnx.Param(jnp.asarray(kernel)), nnx.Param(jnp.asarray(B)), multiply

    def __call__(self, x):
        return self.multiply(x, self.kernel[...]) + self.bias[...]


def by_hand(kernel, multiply):
    return jaxport.make_mox(Product(kernel, multiply))(X), "//Product", (X,)


def filled(module, kernel, bias=None, name="kernel"):
    """An NNX module with these numbers."""
    getattr(module, name)[...] = jnp.asarray(kernel, jnp.float32)
    module.bias[...] = jnp.asarray(B if bias is None else bias, jnp.float32)
    return module


def of_nnx(module, x=X):
    return jaxport.make_mox(module)(x), f"//{type(module).__name__}", (x,)


def imported(nodes, weights, query, rank=2):
    shape = ["b", 8] if rank == 2 else [1, "b", 8]
    make = lambda name, last: helper.make_tensor_value_info(name, TensorProto.FLOAT, [*shape[:-1], last])
    tensors = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [make("x", 8)], [make("y", 12)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = X if rank == 2 else X[None]
    return jaxport.make_mox(jaxport.from_onnx(model))(x), query, (x,)


def gemm():
    node = helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], name="/fc/Gemm", transB=1)
    return imported([node], {"fc.weight": W.T, "fc.bias": B}, "//Gemm")


def transposed_weight():
    nodes = [
        helper.make_node("Transpose", ["fc.weight"], ["t"], perm=[1, 0], name="/fc/Transpose"),
        helper.make_node("MatMul", ["x", "t"], ["m"], name="/fc/MatMul"),
        helper.make_node("Add", ["m", "fc.bias"], ["y"], name="/fc/Add"),
    ]
    return imported(nodes, {"fc.weight": W.T, "fc.bias": B}, "fc", rank=3)


def of_linen():
    dense = linen.Dense(12)
    variables = {"params": {"kernel": jnp.asarray(W), "bias": jnp.asarray(B)}}
    return jaxport.make_mox(lambda x: dense.apply(variables, x))(X), "//Dense", (X,)


def of_equinox():
    linear = eqx.nn.Linear(8, 12, key=jax.random.key(0))
    linear = eqx.tree_at(lambda l: (l.weight, l.bias), linear, (jnp.asarray(W.T), jnp.asarray(B)))
    return jaxport.make_mox(jax.vmap(linear))(X), "//Linear", (X,)


def equinox_convolution():
    conv = eqx.nn.Conv1d(8, 12, 1, key=jax.random.key(0))
    conv = eqx.tree_at(lambda c: (c.weight, c.bias), conv, (jnp.asarray(W.T)[..., None], jnp.asarray(B)[:, None]))
    return jaxport.make_mox(conv)(X.T), "//Conv1d", (X.T,)


def convolution(kind, kernel, **options):
    return of_nnx(filled(kind(8, 12, (1,), rngs=nnx.Rngs(0), **options), kernel[None]), X[None])


R = nnx.Rngs(0)
LAYOUTS = {
    "x @ W": lambda: by_hand(W, lambda x, w: x @ w),
    "x @ W.T": lambda: by_hand(W.T, lambda x, w: x @ w.T),
    "(W @ x.T).T": lambda: by_hand(W.T, lambda x, w: (w @ x.T).T),
    "einsum": lambda: by_hand(W.T, lambda x, w: jnp.einsum("bi,oi->bo", x, w)),
    "einsum, weight first": lambda: by_hand(W.T, lambda x, w: jnp.einsum("oi,bi->bo", w, x)),
    "reshaped": lambda: by_hand(W.reshape(2, 4, 12), lambda x, w: x @ w.reshape(8, 12)),
    "Gemm(transB=1)": gemm,
    "Transpose and MatMul": transposed_weight,
    "nnx.Linear": lambda: of_nnx(filled(nnx.Linear(8, 12, rngs=R), W)),
    "Linen": of_linen,
    "Equinox": of_equinox,
    "heads": lambda: of_nnx(filled(nnx.LinearGeneral(8, (3, 4), rngs=R), W.reshape(8, 3, 4), B.reshape(3, 4))),
    "from heads": lambda: of_nnx(
        filled(nnx.LinearGeneral((2, 4), 12, axis=(-2, -1), rngs=R), W.reshape(2, 4, 12)), X.reshape(5, 2, 4)
    ),
    "nnx.Einsum": lambda: of_nnx(filled(nnx.Einsum("bi,io->bo", (8, 12), (12,), rngs=R), W)),
    "nnx.Conv": lambda: convolution(nnx.Conv, W),
    "nnx.ConvTranspose": lambda: convolution(nnx.ConvTranspose, W),
    "transposed kernel": lambda: convolution(nnx.ConvTranspose, W.T, transpose_kernel=True),
    "eqx.nn.Conv1d": equinox_convolution,
}
# These get the whole update of the weight, and no scales of inputs: what they contract are no axes of the argument.
CONVOLUTIONS = {"nnx.Conv", "nnx.ConvTranspose", "transposed kernel", "eqx.nn.Conv1d"}
WHOLE = CONVOLUTIONS | {"reshaped"}
LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


def rows(layout, result):
    """The result of any layout as that of `X @ W + B`."""
    return np.asarray(result).T if layout == "eqx.nn.Conv1d" else np.asarray(result).reshape(5, 12)


def given(mox, **values):
    """The parameters of a Mox with other values for those that end in these names, in the shapes that they have."""
    params = dict(mox.params)
    for name, value in values.items():
        (path,) = [path for path in params if path.rpartition(".")[2] == name]
        params[path] = jnp.asarray(value, jnp.float32).reshape(params[path].shape)
    return params


def same(layout, result, wanted):
    np.testing.assert_allclose(rows(layout, result), wanted, rtol=2e-4, atol=2e-4)


def quantized(w, levels, group):
    """Weights rounded to few bits, with a scale for each column, or for each group of inputs."""
    groups = w.reshape(-1, group, 12)
    scale = np.abs(groups).max(1, keepdims=True) / levels
    return (np.rint(groups / scale) * scale).reshape(8, 12)


@LAYOUT
def test_quantized_weights_have_a_scale_for_each_channel(layout):
    mox, query, args = LAYOUTS[layout]()
    small = mox.sub(query, quantize(), expect=1)
    same(layout, small(*args), X @ quantized(W, 127, 8) + B)
    groups = mox.sub(query, quantize(dtype="int4", group=4), expect=1)
    if layout not in CONVOLUTIONS:  # whose last contracted axis has one element
        same(layout, groups(*args), X @ quantized(W, 7, 4) + B)
    assert jaxport.to_onnx(small, list(args)).verify().ok


@LAYOUT
def test_low_rank_updates(layout):
    mox, query, args = LAYOUTS[layout]()
    a, b = NUMBERS.normal(size=(8, 2)), NUMBERS.normal(size=(2, 12))
    adapted = mox.sub(query, lora(2), expect=1)
    params = given(adapted, lora_a=a, lora_b=b)
    same(layout, adapted.apply(params, *args), X @ (W + a @ b) + B)
    same(layout, mox.with_params(merge_lora(adapted, params))(*args), X @ (W + a @ b) + B)
    # Where the layer is a product the input goes through the factors: no product of these has the size of the weight.
    made = [aval.size for match in adapted.select("//lora//dot_general") for aval in match.out_avals]
    assert (W.size in made) == (layout in WHOLE)


@LAYOUT
def test_magnitudes_are_those_of_columns(layout):
    mox, query, args = LAYOUTS[layout]()
    a, b = NUMBERS.normal(size=(8, 2)), NUMBERS.normal(size=(2, 12))
    adapted = mox.sub(query, dora(2), expect=1)
    (norm,) = [value for path, value in adapted.params.items() if path.endswith("lora_m")]
    np.testing.assert_allclose(norm.ravel(), np.linalg.norm(W, axis=0), rtol=1e-5)
    magnitudes = np.arange(1, 13)
    params = given(adapted, lora_a=a, lora_b=b, lora_m=magnitudes)
    wanted = X @ (magnitudes * (W + a @ b) / np.linalg.norm(W + a @ b, axis=0)) + B
    same(layout, adapted.apply(params, *args), wanted)
    same(layout, mox.with_params(merge_lora(adapted, params))(*args), wanted)


@LAYOUT
def test_scales_of_results_and_arguments(layout):
    mox, query, args = LAYOUTS[layout]()
    scaled = mox.sub(query, ia3(), expect=1)
    params = given(scaled, ia3_scale=np.arange(12))
    wanted = np.arange(12) * (X @ W + B)
    same(layout, scaled.apply(params, *args), wanted)
    same(layout, mox.with_params(merge_lora(scaled, params))(*args), wanted)
    if layout in WHOLE:
        with pytest.raises(jaxport.InvalidArgument, match=r"the argument of .* cannot be multiplied"):
            mox.sub(query, ia3(inputs=True))
        return
    scaled = mox.sub(query, ia3(inputs=True), expect=1)
    params = given(scaled, ia3_scale=np.arange(8))
    wanted = (np.arange(8) * X) @ W + B
    same(layout, scaled.apply(params, *args), wanted)
    same(layout, mox.with_params(merge_lora(scaled, params))(*args), wanted)


@LAYOUT
def test_what_else_asks_for_kernels(layout):
    mox, query, args = LAYOUTS[layout]()
    (match,) = mox.select(query)
    (kernel,) = kernels(match)
    (bias,) = summands(match, kernel)
    assert bias.path.endswith("bias")
    assert bias.is_only_added
    assert [axis for axis in bias.axes if axis is not None] == list(kernel.outputs)
    same(layout, mox.sub(query, prune(0.5))(*args), X @ np.where(np.abs(W) > np.median(np.abs(W)), W, 0) + B)
    total = jaxport.mox.account(mox).total
    assert (total.params, total.flops) == (8 * 12 + 12, 2 * 5 * 8 * 12 + 5 * 12)
    mesh = jax.make_mesh((1,), ("model",))
    ndim = len(kernel.inputs) + len(kernel.outputs)
    spec = PartitionSpec(*["model" if axis in kernel.outputs[:1] else None for axis in range(ndim)])
    placed = {path: value.sharding.spec for path, value in mox.shard(mesh, {query: spec}).params.items()}
    assert placed[kernel.path] == spec
    assert "model" in placed[bias.path]


TABLE = NUMBERS.normal(size=(11, 4)).astype(np.float32)
IDS = jnp.asarray([3, -1, 10, 3])


def embedding(kind):
    match kind:
        case "eqx":
            module = eqx.tree_at(lambda e: e.weight, eqx.nn.Embedding(11, 4, key=jax.random.key(0)), jnp.asarray(TABLE))
            return jax.vmap(module)
        case "eqx, one by one":
            module = eqx.tree_at(lambda e: e.weight, eqx.nn.Embedding(11, 4, key=jax.random.key(0)), jnp.asarray(TABLE))
            return lambda ids: jnp.stack([module(index) for index in ids])
        case "nnx":
            module = nnx.Embed(11, 4, rngs=nnx.Rngs(0))
            module.embedding[...] = jnp.asarray(TABLE)
            return module
        case "Linen":
            variables = {"params": {"embedding": jnp.asarray(TABLE)}}
            return lambda ids: linen.Embed(11, 4).apply(variables, ids)
        case "onnx":
            node = helper.make_node("Gather", ["embedding", "ids"], ["y"], name="/embed/Gather")
            ids = helper.make_tensor_value_info("ids", TensorProto.INT32, ["n"])
            result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
            graph = helper.make_graph([node], "g", [ids], [result], [numpy_helper.from_array(TABLE, "embedding")])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
            return jaxport.from_onnx(model)
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["eqx", "eqx, one by one", "nnx", "Linen", "onnx"])
def test_tables(kind):
    mox = jaxport.make_mox(embedding(kind))(IDS)
    query = "//Gather" if kind == "onnx" else "//Embedding|//Embed"
    a, b = NUMBERS.normal(size=(11, 2)), NUMBERS.normal(size=(2, 4))
    adapted = mox.sub(query, lora(2))
    params = given(adapted, lora_a=a, lora_b=b)
    np.testing.assert_allclose(adapted.apply(params, IDS), (TABLE + a @ b)[IDS], rtol=1e-5, atol=1e-5)
    assert not any(aval.shape == (11, 4) for match in adapted.select("//lora//dot_general") for aval in match.out_avals)
    scale = np.abs(TABLE).max(0) / 127
    small = mox.sub(query, quantize())
    np.testing.assert_allclose(small(IDS), (np.rint(TABLE / scale) * scale)[IDS], rtol=1e-5, atol=1e-6)


def test_an_index_that_is_computed_is_not_that_of_the_update():
    table = nnx.Param(jnp.asarray(TABLE))

    class Shifted(nnx.Module):
        def __init__(self):
            self.table = table

        def __call__(self, ids):
            return 2 * self.table[jnp.abs(ids) // 2 + 2]

    adapted = jaxport.make_mox(Shifted())(IDS).sub("//Shifted", lora(2))
    a, b = NUMBERS.normal(size=(11, 2)), NUMBERS.normal(size=(2, 4))
    wanted = 2 * (TABLE + a @ b)[np.abs(IDS) // 2 + 2]
    np.testing.assert_allclose(adapted.apply(given(adapted, lora_a=a, lora_b=b), IDS), wanted, rtol=1e-5, atol=1e-5)


class Experts(nnx.Module):
    """A product for each of several kernels: all of them, or those that are chosen."""

    def __init__(self, chosen):
        self.kernel = nnx.Param(jnp.asarray(NUMBERS.normal(size=(3, 8, 6)) * [[[1e-3]], [[1]], [[1e3]]], jnp.float32))
        self.chosen = chosen

    def __call__(self, x):
        if self.chosen is None:
            return jnp.einsum("bi,eio->beo", x, self.kernel[...])
        return jnp.einsum("bi,bio->bo", x, self.kernel[self.chosen])


@pytest.mark.parametrize("chosen", [None, (0, 2, 1, 2, 0)])
def test_experts_are_kernels_of_their_own(chosen):
    module = Experts(None if chosen is None else jnp.asarray(chosen))
    mox = jaxport.make_mox(module)(X)
    kernel = np.asarray(module.kernel[...])

    def of(w):
        made = np.einsum("bi,eio->beo", X, w)
        return made if chosen is None else made[np.arange(5), np.asarray(chosen)]

    small = mox.sub("//Experts", quantize())
    assert small.state["kernel.scale"].shape == (3, 6)
    scale = np.abs(kernel).max(1, keepdims=True) / 127
    np.testing.assert_allclose(small(X), of(np.rint(kernel / scale) * scale), rtol=1e-3, atol=1e-3)
    a, b = NUMBERS.normal(size=(3, 8, 2)), NUMBERS.normal(size=(3, 2, 6))
    adapted = mox.sub("//Experts", lora(2))
    if chosen is None:  # every token meets every kernel: the axis of the kernels is one of the result
        b = b[0].reshape(2, 1, 6) * np.arange(1, 4)[:, None]
        update = np.einsum("ir,reo->eio", a[0], b)
        params = given(adapted, lora_a=a[0], lora_b=b)
    else:
        update = a @ b
        params = given(adapted, lora_a=a, lora_b=b)
    np.testing.assert_allclose(adapted.apply(params, X), of(kernel + update), rtol=1e-3, atol=1e-3)
    merged = mox.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(merged(X), of(kernel + update), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
def test_adapters_on_packed_weights(target, tmp_path):
    module = nnx.Sequential(nnx.Linear(64, 48, rngs=nnx.Rngs(0)), jax.nn.relu, nnx.Linear(48, 32, rngs=nnx.Rngs(1)))
    path = tmp_path / "int4.onnx"
    jaxport.to_onnx(module, [("B", 64)], precision="int4", target=target).save(path)
    x = jnp.asarray(NUMBERS.normal(size=(3, 64)), jnp.float32)
    mox = jaxport.make_mox(jaxport.from_onnx(path))(x)
    last = mox.select("//Linear")[1]
    a, b = NUMBERS.normal(size=(48, 2)), NUMBERS.normal(size=(2, 32))
    adapted = mox.sub(last.path, lora(2, name="new"), expect=1)
    hidden = np.asarray(mox.select("//Linear")[0](x)).clip(0)
    wanted = mox(x) + hidden @ a @ b
    params = given(adapted, lora_a=a, lora_b=b)
    np.testing.assert_allclose(adapted.apply(params, x), wanted, rtol=1e-4, atol=1e-4)
    assert {value.shape for value in adapted.state.values()} >= {value.shape for value in mox.state.values()}
    jaxport.mox.save_adapter(adapted, "new", tmp_path / "new.safetensors", params)
    again = jaxport.mox.load_adapter(mox, tmp_path / "new.safetensors")
    np.testing.assert_allclose(again(x), wanted, rtol=1e-4, atol=1e-4)
    scaled = mox.sub(last.path, ia3(), expect=1)
    doubled = scaled.apply(given(scaled, ia3_scale=np.full(32, 2)), x)
    np.testing.assert_allclose(doubled, 2 * mox(x), rtol=1e-5, atol=1e-5)
    for edited in (adapted, scaled):
        with pytest.raises(jaxport.InvalidArgument, match="it computes the weight from others, such as quantized ones"):
            merge_lora(edited)
    with pytest.raises(jaxport.InvalidArgument, match=r"the weight of `layers\.2` is computed from"):
        mox.sub(last.path, dora(2))
    with pytest.raises(jaxport.InvalidArgument, match="has no weight to quantize"):
        mox.sub(last.path, quantize())


class Around(nnx.Module):
    """A product inside of something else."""

    def __init__(self, around):
        self.kernel = nnx.Param(jnp.asarray(NUMBERS.normal(size=(8, 8)), jnp.float32))
        self.bias, self.around = nnx.Param(jnp.asarray(NUMBERS.normal(size=8), jnp.float32)), around

    def __call__(self, x):
        return self.around(x, self.kernel[...], self.bias[...])


AROUND = {
    "residual": lambda x, w, b: x + x @ w + b,
    "a constant": lambda x, w, b: x @ w + b + 1,
    "a bias that is changed": lambda x, w, b: x @ w + jnp.tanh(b),
    "twice": lambda x, w, b: sum([x @ w + b] * 2),
    "scaled": lambda x, w, b: 2 * (x @ w) + b,
    "reversed": lambda x, w, b: x[:, ::-1] @ w + b,
    "activated": lambda x, w, b: jnp.tanh(x @ w + b),
    "read again": lambda x, w, b: x @ w + b + (x @ w).sum(),
    "two products": lambda x, w, b: x @ w + x @ jnp.ones((8, 8)) + b,
    "halves": lambda x, w, b: jnp.concatenate(jnp.split(x @ w + b, 2, -1)[::-1], -1),
}


def or_refused(make, text):
    """What a function returns; None if it is refused with this text."""
    try:
        return make()
    except jaxport.InvalidArgument as error:
        message = str(error)
    assert text in message
    return None


@pytest.mark.parametrize("around", AROUND)
def test_what_is_around_a_product_counts(around):
    """A merged weight computes what the adapter does, or is refused."""
    module = Around(AROUND[around])
    mox = jaxport.make_mox(module)(X)
    w, b, s = np.asarray(module.kernel[...]), np.asarray(module.bias[...]), np.arange(1, 9)
    low = NUMBERS.normal(size=(8, 2)), NUMBERS.normal(size=(2, 8))
    of = {
        lora(2): ({"lora_a": low[0], "lora_b": low[1]}, lambda: AROUND[around](X, w + low[0] @ low[1], b)),
        ia3(): ({"ia3_scale": s}, lambda: s * AROUND[around](X, w, b)),
        ia3(inputs=True): ({"ia3_scale": s}, lambda: AROUND[around](X * s, w, b)),
    }
    for edit, (values, wanted) in of.items():
        adapted = or_refused(lambda edit=edit: mox.sub("//Around", edit), "cannot be multiplied")
        if adapted is None:
            continue
        params = given(adapted, **values)
        np.testing.assert_allclose(adapted.apply(params, X), wanted(), rtol=1e-4, atol=1e-3)
        merged = or_refused(lambda adapted=adapted, params=params: merge_lora(adapted, params), "cannot be merged")
        if merged is not None:
            np.testing.assert_allclose(mox.with_params(merged)(X), wanted(), rtol=1e-4, atol=1e-3)


def test_the_updates_of_two_products_are_added():
    class Sum(nnx.Module):
        def __init__(self):
            self.first, self.second = (nnx.Param(jnp.asarray(W)) for _ in range(2))

        def __call__(self, x):
            return x @ self.first + x @ self.second

    mox = jaxport.make_mox(Sum())(X)
    adapted = mox.sub("//Sum", lora(2))
    params = {path: value + 1 if "lora" in path else value for path, value in adapted.params.items()}
    merged = mox.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(adapted.apply(params, X), merged(X), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(adapted.params["first.lora_b"], 0)

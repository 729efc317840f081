"""Transposes between NHWC and NCHW move through the graph until they cancel; the values stay."""

from __future__ import annotations

import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from flax import nnx
from jax import lax

import examples.models as models
import jaxport
from jaxport.export import passes
from jaxport.export.passes import layout_ops
from jaxport.export.passes.layout_axes import across
from jaxport.graph.axis_groups import axis_groups
from jaxport.testing import check, f32
from tests.exports import operators

pytestmark = pytest.mark.sampled(2)

CHANNELS = 4
GENERATOR = np.random.default_rng(11)
KERNEL = GENERATOR.normal(size=(3, 3, CHANNELS, CHANNELS)).astype(np.float32) / 6
MATRIX = GENERATOR.normal(size=(CHANNELS, CHANNELS)).astype(np.float32)
VECTOR = GENERATOR.normal(size=CHANNELS).astype(np.float32)


def conv(x, layout="NHWC"):
    """A convolution that keeps the number of channels."""
    kernel = jnp.asarray(KERNEL, x.dtype)
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=(layout, "HWIO", layout))


def transposes(model: ir.Model) -> list[ir.Node]:
    """All Transposes, also in subgraphs and functions."""
    graphs = [model.graph, *model.functions.values()]
    return [node for graph in graphs for node in graph.all_nodes() if node.op_type == "Transpose"]


def group_norm(x):
    groups = x.reshape(*x.shape[:-1], 2, -1)
    mean, variance = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
    return ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * VECTOR + 1


def squeeze_excite(x):
    weights = jax.nn.sigmoid(jax.nn.relu(x.mean((1, 2)) @ MATRIX) @ MATRIX)
    return x * weights[:, None, None, :]


def halves(x):
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([right * 2, left], axis=-1)


#: What may stand between two convolutions without a Transpose.
OPERATIONS = {
    "nothing": lambda x: x,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "clip": lambda x: jnp.clip(x, -1, 1),
    "bias": lambda x: x + VECTOR,
    "batch norm": lambda x: (x - VECTOR) * lax.rsqrt(jnp.abs(VECTOR) + 1) * VECTOR + 1,
    "number": lambda x: 2 - x,
    "map": lambda x: x * GRID,
    "rows": lambda x: x + jnp.arange(6.0, dtype=x.dtype)[:, None, None],
    "residual": lambda x: x + conv(jax.nn.relu(x)),
    "residual without activation": lambda x: conv(x) + x,
    "branches": lambda x: conv(x) * jax.nn.sigmoid(conv(x)),
    "where": lambda x: jnp.where(x > VECTOR, x, -x),
    "comparison": lambda x: (x > 0).astype(x.dtype),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "softmax over rows": lambda x: jax.nn.softmax(x, axis=1),
    "mean": lambda x: x - x.mean((1, 2), keepdims=True),
    "mean over channels": lambda x: x - x.mean(-1, keepdims=True),
    "maximum": lambda x: x - x.max((1, 2), keepdims=True),
    "squeeze and excite": squeeze_excite,
    "scaled over channels": lambda x: x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1),
    "group norm": group_norm,
    "dense": lambda x: x @ MATRIX + VECTOR,
    "concatenation": lambda x: jnp.concatenate([x, 2 * x], axis=-1)[..., :CHANNELS],
    "concatenation of rows": lambda x: jnp.concatenate([x, -x], axis=1),
    "concatenation with a constant": lambda x: jnp.concatenate([x[..., :3], jnp.ones_like(x[..., :1])], axis=-1),
    "split": halves,
    "slice": lambda x: x[:, 1:, 2:-1],
    "strided slice": lambda x: lax.slice(x, (0, 1, 0, 0), x.shape, (1, 1, 2, 1)),
    "flip": lambda x: x[:, ::-1],
    "pad": lambda x: jnp.pad(x, ((0, 0), (1, 0), (2, 1), (0, 0))),
    "max pool": lambda x: nnx.max_pool(x, (2, 2), (2, 2)),
    "average pool": lambda x: nnx.avg_pool(x, (2, 2), padding="SAME"),
    "average of what is there": lambda x: nnx.avg_pool(x, (3, 3), padding="SAME", count_include_pad=False),
    "nearest": lambda x: jax.image.resize(x, (x.shape[0], 12, 12, CHANNELS), "nearest"),
    "repeat": lambda x: jnp.repeat(jnp.repeat(x, 2, 1), 2, 2),
    "take": lambda x: jnp.take(x, np.array([2, 0, 1]), axis=1),
    "one row": lambda x: x + x[:, 2:3],
    "row by number": lambda x: x + x[:, 2][:, None],
    "cumulative sum": lambda x: jnp.cumsum(x, axis=2),
    "argmax": lambda x: x + jnp.argmax(x, axis=-1)[..., None].astype(x.dtype),
    "squeezed": lambda x: x[:, None][:, 0],
    "tile": lambda x: jnp.tile(x, (1, 2, 1, 1)),
}
GRID = GENERATOR.normal(size=(6, 6, CHANNELS)).astype(np.float32)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_one_operation_between_convolutions(operation):
    only = dict.fromkeys(("static", "float64", "empty"), "one variant tells")
    exported = check(lambda x: conv(operation(conv(x))), f32("B", 6, 6, CHANNELS), without=only)
    assert len(transposes(exported.model)) == 2


@pytest.mark.parametrize("seed", range(8))
def test_operations_in_a_row(seed):
    generator = np.random.default_rng(seed)
    same_shape = [name for name in OPERATIONS if name not in CHANGES_SHAPE]
    names = generator.choice(same_shape, 5)

    def fn(x):
        x = conv(x)
        for name in names:
            x = conv(OPERATIONS[name](x)) if generator_of(name) else OPERATIONS[name](x) * 0.5
        return conv(x)

    generator_of = dict(zip(same_shape, generator.random(len(same_shape)) > 0.5, strict=True)).get
    only = dict.fromkeys(("static", "float64", "empty"), "one variant tells")
    exported = check(fn, f32("B", 6, 6, CHANNELS), rtol=1e-3, atol=1e-3, without=only)
    assert len(transposes(exported.model)) == 2, names


CHANGES_SHAPE = (
    "concatenation of rows",
    "slice",
    "strided slice",
    "pad",
    "max pool",
    "nearest",
    "repeat",
    "take",
    "tile",
    "comparison",  # and what has steps, where a small error becomes a large one
    "argmax",
    "where",
)


def test_open_sizes():
    fn = lambda x: conv(group_norm(nnx.avg_pool(conv(x), (2, 2), (2, 2), "SAME")))
    assert len(transposes(check(fn, f32("B", "H", "W", CHANNELS)).model)) == 2


@pytest.mark.parametrize("batch", [("B", "T"), ("B", 2), (3, "T"), (3, 2)], ids=str)
def test_batches_of_several_axes(batch):
    """Frames of videos: the axes are merged for each convolution, and split between them."""

    def fn(x):
        frames = conv(x.reshape(-1, *x.shape[2:]))
        videos = jnp.tanh(frames.reshape(x.shape)) + jnp.arange(x.shape[1])[:, None, None, None]
        return conv(videos.reshape(frames.shape)).reshape(x.shape)

    assert len(transposes(check(fn, f32(*batch, 6, 6, CHANNELS)).model)) == 2


def test_channels_first_needs_none():
    fn = lambda x: conv(jax.nn.relu(conv(x, "NCHW") + VECTOR[:, None, None]), "NCHW")
    assert not transposes(check(fn, f32("B", CHANNELS, "H", "W")).model)


def test_borders_in_nchw_need_none():
    fn = lambda x: conv(jax.nn.relu(conv(x) + VECTOR))
    exported = check(fn, f32("B", 6, 6, CHANNELS), inputs_as_nchw=[0], outputs_as_nchw=[0])
    assert not transposes(exported.model)


def test_one_and_three_dimensions():
    def in_a_row(x, layout, kernel):
        for _ in range(3):
            x = lax.conv_general_dilated(x, kernel, (1,) * (x.ndim - 2), "SAME", dimension_numbers=layout)
            x = jax.nn.relu(x + VECTOR)
        return x.mean(tuple(range(1, x.ndim - 1)))

    kernel = np.ones((3, CHANNELS, CHANNELS), np.float32) / 8
    line = check(lambda x: in_a_row(x, ("NWC", "WIO", "NWC"), jnp.asarray(kernel, x.dtype)), f32("B", "T", CHANNELS))
    kernel = np.ones((2, 2, 2, CHANNELS, CHANNELS), np.float32) / 16
    cube = check(
        lambda x: in_a_row(x, ("NDHWC", "DHWIO", "NDHWC"), jnp.asarray(kernel, x.dtype)), f32("B", 3, 4, 5, CHANNELS)
    )
    assert [len(transposes(exported.model)) for exported in (line, cube)] == [1, 1]


def test_what_really_is_reshaped_keeps_its_transpose():
    fn = lambda x: jax.nn.relu(conv(x)).reshape(x.shape[0], -1) @ np.ones((6 * 6 * CHANNELS, 3), np.float32)
    found = transposes(check(fn, f32("B", 6, 6, CHANNELS), rtol=1e-4, atol=1e-4).model)
    assert [tuple(node.attributes["perm"].as_ints()) for node in found] == [(0, 3, 1, 2), (0, 2, 3, 1)]


def test_values_that_are_outputs_too():
    def fn(x):
        first = jax.nn.relu(conv(x))
        return first, conv(first), first.sum()

    assert len(transposes(check(fn, f32("B", 6, 6, CHANNELS), rtol=1e-4, atol=1e-4).model)) == 3


def test_a_layer_norm_works_on_channels_last():
    fn = lambda x: conv(nnx.LayerNorm(CHANNELS, rngs=nnx.Rngs(0))(conv(x)))
    assert len(transposes(check(fn, f32("B", 6, 6, CHANNELS)).model)) == 4


TURNED = """<ir_version: 10, opset_import: ["": 23]>
    rotated (float[B,T,3,8] x, float[B,T,HALF] angles) => (float[B,T,3,8] y) {
        heads = Transpose <perm = [0, 2, 1, 3]> (x)
        cos = Cos(angles) sin = Sin(angles)
        turned = RotaryEmbedding <OPTIONS> (heads, cos, sin)
        y = Transpose <perm = [0, 2, 1, 3]> (turned)
    }"""


@pytest.mark.parametrize(
    ("options", "half"), [("interleaved = 0", 4), ("interleaved = 1, rotary_embedding_dim = 4", 2)]
)
def test_heads_behind_positions_are_rotated_there(options, half):
    """RotaryEmbedding takes heads behind positions as a part of the last axis."""
    text = TURNED.replace("OPTIONS", options + ", num_heads = 3").replace("HALF", str(half))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    inputs = {"x": GENERATOR.normal(size=(2, 5, 3, 8)), "angles": GENERATOR.normal(size=(2, 5, half))}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    results = []
    for _ in range(2):
        session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
        results += session.run(None, inputs)
        passes.layout(model)
    assert not transposes(model)
    np.testing.assert_allclose(results[1], results[0], atol=1e-6)


def test_heads_in_the_last_axis_stay_there():
    """Three axes cannot be turned as four are."""
    model = ir.from_proto(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 23]>
        rotated (float[2,5,24] x, float[2,5,4] cos, float[2,5,4] sin) => (float[2,5,24] y) {
            y = RotaryEmbedding <num_heads = 3> (x, cos, sin)
        }""")
    )
    (node,) = model.graph
    assert layout_ops.carry(node, node.outputs[0], (0, 2, 1)) is None


def test_a_product_of_transposes_is_the_transpose_of_a_product():
    exported = check(jax.vmap(lambda x: MATRIX @ x, in_axes=1, out_axes=1), f32(CHANNELS, "B"))
    assert not transposes(exported.model)


class Stage(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(CHANNELS, CHANNELS, (3, 3), rngs=rngs)
        self.second = nnx.Conv(CHANNELS, CHANNELS, (3, 3), rngs=rngs)

    def __call__(self, x):
        return x + self.second(nnx.relu(self.first(x)))


def test_in_functions():
    stages = [Stage(nnx.Rngs(i)) for i in range(2)]
    exported = check(lambda x: stages[1](stages[0](x)), f32("B", 6, 6, CHANNELS), functions=Stage, function_count=1)
    (function,) = exported.model.functions.values()
    moved = [node for node in function if node.op_type == "Transpose" and node.inputs[0].dtype == ir.DataType.FLOAT]
    of_data = [node for node in moved if node.inputs[0].name not in ("first.kernel", "second.kernel")]
    assert len(of_data) == 2


def test_in_the_bodies_of_loops():
    def fn(x, steps):
        return lax.fori_loop(0, steps, lambda _, y: conv(jax.nn.relu(conv(y) + VECTOR)), x)

    exported = check(fn, f32("B", 6, 6, CHANNELS), jax.ShapeDtypeStruct((), np.int32), values=[IMAGE, np.int32(3)])
    assert len(transposes(exported.model)) == 2


IMAGE = GENERATOR.normal(size=(2, 6, 6, CHANNELS)).astype(np.float32)

#: The Transposes that remain: that of the input, and one where an image is flattened.
MODELS = {
    ("cnn", "nnx"): 1,
    ("cnn", "linen"): 2,
    ("cnn", "equinox"): 0,
    ("resnet50", "nnx"): 1,
    ("resnet50", "linen"): 1,
    ("resnet50", "equinox"): 0,
    ("mobilenet_v2", "nnx"): 1,
    ("mobilenet_v2", "linen"): 1,
}


def exported_example(name: str, framework: str) -> jaxport.Exported:
    example = models.build(name, framework)
    return jaxport.to_onnx(example.fn, list(example.inputs), **example.options)


@pytest.mark.parametrize(("cell", "count"), MODELS.items(), ids=map("-".join, MODELS))
def test_models_keep_transposes_at_the_border(cell, count):
    exported = exported_example(*cell)
    assert len(transposes(exported.model)) == count
    assert exported.verify(check=False).ok


#: At most: that of the input and that of the output, and three around each attention over the rows and columns.
UNETS = {"nnx": 2 + 3 * 4, "linen": 2 + 3 * 4}


@pytest.mark.parametrize(("framework", "most"), UNETS.items(), ids=UNETS)
def test_a_unet_keeps_transposes_at_its_border_and_around_attention(framework, most):
    exported = exported_example("unet", framework)
    left = transposes(exported.model)
    assert 2 <= len(left) <= most, [node.name for node in left]
    assert exported.verify(check=False).ok


def test_the_time_is_linear(monkeypatch):
    counts = []
    counted = layout_ops.carry

    def carry(*arguments):
        counts[-1] += 1
        return counted(*arguments)

    monkeypatch.setattr(sys.modules["jaxport.export.passes.layout"], "carry", carry)
    for depth in (8, 16, 32):

        def fn(x, depth=depth):
            for _ in range(depth):
                x = x + jax.nn.relu(conv(x) + VECTOR)
            return x

        counts.append(0)
        assert len(transposes(jaxport.to_onnx(fn, [("B", 6, 6, CHANNELS)]).model)) == 2
    assert counts[1] <= 2.2 * counts[0]
    assert counts[2] <= 2.2 * counts[1]


def test_the_report_says_what_changed():
    texts = {}
    for name, fn in {
        "moved": lambda x: conv(jax.nn.relu(conv(x))),
        "kept": conv,
        "none": jnp.tanh,
    }.items():
        exported = jaxport.to_onnx(fn, [("B", 6, 6, CHANNELS)])
        texts[name] = next(report.text for report in exported.pass_reports if report.name == "layout")
    assert texts == {
        "moved": "2 of 4 Transposes removed, 1 operators moved to another layout",
        "kept": "nothing to do: 2 Transposes",
        "none": "nothing to do",
    }


def test_without_the_pass_each_convolution_keeps_its_own():
    fn = lambda x: conv(jax.nn.relu(conv(x)))
    others = [p for p in passes.DEFAULT if passes.pass_name(p) != "layout"]
    assert len(transposes(check(fn, f32("B", 6, 6, CHANNELS), passes=others).model)) == 4


def test_weights_keep_their_names():
    module = nnx.Sequential(
        nnx.Conv(CHANNELS, CHANNELS, (3, 3), rngs=nnx.Rngs(0)),
        nnx.relu,
        nnx.Conv(CHANNELS, 5, (1, 1), rngs=nnx.Rngs(1)),
    )
    exported = check(module, f32("B", 6, 6, CHANNELS))
    names = {f"layers.{i}.{part}" for i in (0, 2) for part in ("kernel", "bias")}
    assert names <= {value.name for value in exported.model.graph.initializers.values()}
    assert Counter(operators(exported)) == {"Transpose": 2, "Conv": 2, "Relu": 1}


AXES = {
    "split": ([2, 12, 5], [2, 3, 4, 5], [([0], [0]), ([1], [1, 2]), ([2], [3])]),
    "merged": (["B", 3, 4], ["B", 12], [([0], [0]), ([1, 2], [1])]),
    "ones": ([1, "B", 1, 3], ["B", 3, 1], [([0], []), ([1], [0]), ([2], []), ([3], [1]), ([], [2])]),
    "regrouped": ([4, 6], [2, 12], [([0, 1], [0, 1])]),
    "unknown": (["B", 6], ["C", 6], None),
    "symbols merged": (["B", 1, "T", 3], ["B*T", 3], [([0, 1, 2], [0]), ([3], [1])]),
    "symbols split": (["2*B*T"], ["T", 2, "B"], [([0], [0, 1, 2])]),
    "symbols regrouped": (["B", 6], ["2*B", 3], [([0, 1], [0, 1])]),
    "no product": (["B + 1", 6], ["B", 6, 1], None),
    "of size zero": ([0, 3], [3, 0], None),
}


@pytest.mark.parametrize(("old", "new", "expected"), AXES.values(), ids=AXES)
def test_axis_groups(old, new, expected):
    assert axis_groups(old, new) == expected


def test_a_layout_across_axes():
    split = [([0], [0]), ([1], [1, 2]), ([2], [3])]
    assert across(split, (0, 2, 1), 0) == (0, 2, 3, 1)
    assert across(split, (0, 2, 3, 1), 1) == (0, 2, 1)
    assert across(split, (0, 2, 1, 3), 1) is None  # tears apart what is one axis on the other side


def test_an_operator_that_vanishes_while_others_move():
    def size_of_roots(x):
        return jnp.sum(jnp.abs(jnp.roots(x, strip_zeros=False)))

    apart = {"float64": "the layout is the same", "imported": "what is imported is the same"}
    check(jax.grad(size_of_roots), f32(4), without=apart, rtol=1e-4, atol=1e-4)


def test_a_constant_with_the_rank_of_the_result_keeps_it():
    constant = np.arange(3, dtype=np.float32).reshape(1, 1, 1, 3)

    def moved(x):
        y = jnp.cos(x.mean()) + constant
        return jnp.moveaxis(y, 1, 0), y.T

    check(moved, f32("B"))

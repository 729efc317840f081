"""Small random networks of images: which values have their channels last is decided anew in each, and changes no value.

A network is a list of choices, read one after the other: an operator, and which of the images so far it takes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from jaxport.importer import from_onnx

pytestmark = pytest.mark.sampled(2)

BATCH = 2
Image = tuple[str, tuple[int, int, int]]
"""A name, and the numbers of channels, rows and columns."""


class Network:
    """The nodes so far, with weights that are drawn as they are needed."""

    def __init__(self, seed: int):
        self.generator = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        return self.constant(self.generator.uniform(-1, 1, shape).astype(np.float32))

    def constant(self, array: np.ndarray | list[int]) -> str:
        array = np.asarray(array, np.int64) if isinstance(array, list) else array
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0]


def convolution(kernel: int, stride: int = 1, groups: int = 1) -> Callable[..., Image]:
    def apply(net: Network, x: Image, _: Image) -> Image:
        name, (channels, rows, columns) = x
        group = groups if channels % groups == 0 else 1
        w = net.weight(2 * group, channels // group, kernel, kernel)
        pads = [kernel // 2] * 4
        y = net.node("Conv", name, w, net.weight(2 * group), pads=pads, strides=[stride] * 2, group=group)
        return y, (2 * group, -(-rows // stride), -(-columns // stride))

    return apply


def depthwise(net: Network, x: Image, _: Image) -> Image:
    name, (channels, rows, columns) = x
    y = net.node("Conv", name, net.weight(channels, 1, 3, 3), pads=[1] * 4, group=channels)
    return y, (channels, rows, columns)


def upward(net: Network, x: Image, _: Image) -> Image:
    name, (channels, rows, columns) = x
    if rows * columns > 100:
        return x
    y = net.node("ConvTranspose", name, net.weight(channels, 2, 2, 2), strides=[2, 2])
    return y, (2, 2 * rows, 2 * columns)


def unary(operator: str, **attributes: object) -> Callable[..., Image]:
    return lambda net, x, _: (net.node(operator, x[0], **attributes), x[1])


def binary(operator: str) -> Callable[..., Image]:
    return lambda net, x, y: (net.node(operator, x[0], (y if y[1] == x[1] else x)[0]), x[1])


def with_weight(operator: str, shape: Callable[[int, int, int], tuple[int, ...]]) -> Callable[..., Image]:
    return lambda net, x, _: (net.node(operator, x[0], net.weight(*shape(*x[1]))), x[1])


def joined(net: Network, x: Image, y: Image) -> Image:
    other, (channels, *_) = y if y[1][1:] == x[1][1:] else x
    return net.node("Concat", x[0], other, axis=1), (x[1][0] + channels, *x[1][1:])


def halved(net: Network, x: Image, _: Image) -> Image:
    channels, *sizes = x[1]
    if channels % 2:
        return x
    return net.node("Split", x[0], outputs=2, axis=1, num_outputs=2), (channels // 2, *sizes)


def pooled(operator: str) -> Callable[..., Image]:
    def apply(net: Network, x: Image, _: Image) -> Image:
        channels, rows, columns = x[1]
        if rows < 2 or columns < 2:
            return x
        y = net.node(operator, x[0], kernel_shape=[2, 2], strides=[2, 1])
        return y, (channels, rows // 2, columns - 1)

    return apply


def excited(net: Network, x: Image, _: Image) -> Image:
    mean = net.node("ReduceMean", x[0], net.constant([2, 3]), keepdims=1)
    return net.node("Mul", x[0], net.node("Sigmoid", mean)), x[1]


def of_places(net: Network, x: Image, _: Image) -> Image:
    """What treats the channels of each place, with the channels last."""
    last = net.node("Transpose", x[0], perm=[0, 2, 3, 1])
    made = net.node("Tanh", net.node("MatMul", last, net.weight(x[1][0], 3)))
    return net.node("Transpose", made, perm=[0, 3, 1, 2]), (3, *x[1][1:])


def turned(net: Network, x: Image, _: Image) -> Image:
    channels, rows, columns = x[1]
    return net.node("Transpose", x[0], perm=[0, 1, 3, 2]), (channels, columns, rows)


def reshaped(net: Network, x: Image, _: Image) -> Image:
    channels, rows, columns = x[1]
    flat = net.node("Exp", net.node("Tanh", net.node("Reshape", x[0], net.constant([BATCH, channels, -1]))))
    return net.node("Reshape", flat, net.constant([BATCH, channels, rows, columns])), x[1]


def padded(net: Network, x: Image, _: Image) -> Image:
    channels, rows, columns = x[1]
    return net.node("Pad", x[0], net.constant([0, 0, 1, 0, 0, 0, 0, 1])), (channels, rows + 1, columns + 1)


def enlarged(net: Network, x: Image, _: Image) -> Image:
    channels, rows, columns = x[1]
    if rows * columns > 100:
        return x
    scales = net.constant(np.array([1, 1, 2, 1], np.float32))
    return net.node("Resize", x[0], "", scales, mode="linear"), (channels, 2 * rows, columns)


def batch_normalized(net: Network, x: Image, _: Image) -> Image:
    parameters = [net.weight(x[1][0]) for _ in range(3)]
    variance = net.constant(net.generator.uniform(0.5, 2, x[1][0]).astype(np.float32))
    return net.node("BatchNormalization", x[0], *parameters, variance), x[1]


def chosen(net: Network, x: Image, y: Image) -> Image:
    y = y if y[1] == x[1] else x
    return net.node("Where", net.node("Greater", x[0], y[0]), x[0], net.node("Neg", y[0])), x[1]


STEPS: dict[str, Callable[..., Image]] = {
    "convolution of places": convolution(1),
    "convolution": convolution(3),
    "convolution, every second": convolution(3, 2),
    "convolution of groups": convolution(3, 1, 2),
    "depthwise": depthwise,
    "upward": upward,
    "relu": unary("Relu"),
    "tanh": unary("Tanh"),
    "hard swish": unary("HardSwish"),
    "softmax": unary("Softmax", axis=1),
    "softmax of columns": unary("Softmax", axis=-1),
    "sum of two": binary("Add"),
    "product of two": binary("Mul"),
    "greater one": binary("Max"),
    "channel by channel": with_weight("Mul", lambda c, h, w: (c, 1, 1)),
    "row by row": with_weight("Add", lambda c, h, w: (h, 1)),
    "column by column": with_weight("Sub", lambda c, h, w: (w,)),
    "with an image": with_weight("Add", lambda c, h, w: (1, c, h, w)),
    "slopes": with_weight("PRelu", lambda c, h, w: (c, 1, 1)),
    "joined": joined,
    "halved": halved,
    "largest": pooled("MaxPool"),
    "average": pooled("AveragePool"),
    "excited": excited,
    "of places": of_places,
    "turned": turned,
    "reshaped": reshaped,
    "padded": padded,
    "enlarged": enlarged,
    "batch normalized": batch_normalized,
    "instances normalized": lambda net, x, _: (
        net.node("InstanceNormalization", x[0], net.weight(x[1][0]), net.weight(x[1][0])),
        x[1],
    ),
    "chosen": chosen,
}

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 7), st.integers(0, 7)), min_size=3, max_size=9
)


def built(program: list[tuple[str, int, int]], seed: int) -> onnx.ModelProto:
    net, images = Network(seed), [("x", (3, 5, 6))]
    for step, first, second in program:
        made = STEPS[step](net, images[first % len(images)], images[second % len(images)])
        # Sums and products of many grow beyond what single precision tells apart.
        images.append((net.node("Tanh", made[0]), made[1]) if step == "product of two" else made)
    outputs = list({name: shape for name, shape in images[-2:] if name != "x"}.items())
    typed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, *shape]) for name, shape in outputs]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, 3, 5, 6])
    graph = helper.make_graph(net.nodes, "random", [x], typed, net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def compare(program: list[tuple[str, int, int]], seed: int) -> None:
    model = built(program, seed)
    if not model.graph.output:
        return
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(seed).standard_normal((BATCH, 3, 5, 6)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    # It would make a `Pad` with zeros and the pool behind it one pool, for which what is padded does not count.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = jax.tree.leaves(jax.jit(from_onnx(model))(x))
    for expected, result in zip(session.run(None, {"x": x}), results, strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(np.max(np.abs(expected)))))


SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=30, **SETTINGS)
@given(PROGRAMS, st.integers(0, 3))
def test_random_networks(program: list[tuple[str, int, int]], seed: int) -> None:
    compare(program, seed)


@pytest.mark.slow
@settings(max_examples=600, **SETTINGS)
@given(PROGRAMS, st.integers(0, 100))
def test_many_random_networks(program: list[tuple[str, int, int]], seed: int) -> None:
    compare(program, seed)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_after_a_convolution(step: str) -> None:
    compare([("convolution", 0, 0), (step, 1, 0), ("sum of two", 2, 2), ("convolution of places", 3, 3)], 0)

"""Mutated model files: by the byte, and by what they contain."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import jaxport
from jaxport.importer import from_onnx
from jaxport.importer.loading.gate import tensors as every_tensor
from jaxport.importer.traced.input_specs import input_specs
from tests.importer.models import model

LARGEST_INPUT = 2**20
"""Elements of the inputs of a mutated model that is run."""

TEXTS = ("N", "2*(N + 1)", "mod", "N^99999999", "(" * 90, "9" * 5000, "N*" * 60 + "N", "")
"""What sizes may be called."""


def seeds() -> list[onnx.ModelProto]:
    """Small models that between them have everything a file can have."""
    function = '<domain: "d", opset_import: ["": 18]> F <by: float = 2.0> (x) => (y) { f = Constant<value_float: float = @by>() y = Mul(x, f) }'
    graphs = [
        ("g (float[n, 4] x) => (float[n, 3] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { h = MatMul(x, w) y = Relu(h) }", ""),
        ("g (float[n, 4] x) => (float[a, b] y) { s = Shape(x) y = Reshape(x, s) }", ""),
        ("g (float[2] x) => (float[2] y) { a = d.F(x) y = d.F<by = 3.0>(a) }", function),
        (
            ("g (bool c, float[2] x) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] p) { p = Neg(x) }, "
            "else_branch = e () => (float[2] q) { q = Abs(x) }> }"),
            "",
        ),
        (
            ("g (float[2] x) => (float[2] y, float[n, 2] z) { m = Constant<value_int = 3>() y, z = Loop(m, , x) <body = b "
            "(int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] r) { d = Identity(c) w = Add(v, x) r = Identity(w) }> }"),
            "",
        ),
        (
            ("g (float[1, 1, 6, 6] x) => (float[a, b, c, d] y) <float[1, 1, 3, 3] w = {1,2,3,4,5,6,7,8,9}> { "
            "h = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) y = MaxPool<kernel_shape = [2, 2]>(h) }"),
            "",
        ),
        ("g (float[2, 3] x) => (float[a, b] y) { s = Constant<value_ints = [0]>() e = Constant<value_ints = [1]>() h = Slice(x, s, e) y = Softmax<axis = -1>(h) }", ""),
    ]  # fmt: skip
    made = [model(graph, functions=text, domains=', "d": 1') for graph, text in graphs]
    large = model("g (float[600] x) => (float[600] y) { y = Mul(x, w) }")
    large.graph.initializer.append(numpy_helper.from_array(np.arange(600, dtype=np.float32), "w"))
    return [*made, large]


def mutated(data: bytes, generator: random.Random) -> bytes:
    """The bytes with some of them changed, removed, repeated or replaced by what is dangerous in protobuf."""
    changed = bytearray(data)
    for _ in range(generator.choice([1, 1, 2, 4, 16])):
        if not changed:
            break
        at = generator.randrange(len(changed))
        end = min(len(changed), at + generator.choice([1, 2, 8, 64]))
        match generator.randrange(7):
            case 0:
                changed[at] ^= 1 << generator.randrange(8)
            case 1:
                changed[at] = generator.randrange(256)
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = changed[at:end] * generator.choice([1, 2, 50])
            case 4:
                changed[at:at] = generator.choice(
                    [b"\xff" * 9 + b"\x01", b"\xff\xff\xff\x7f", b"\x80" * 10, b"\x00" * 4]
                )
            case 5:
                changed[at:end] = bytes(generator.randrange(256) for _ in range(end - at))
            case 6:
                del changed[at:]
    return bytes(changed)


def reordered(proto: onnx.ModelProto, generator: random.Random) -> bytes:
    """A well-formed file whose contents are mixed up: names, operators, attributes, sizes."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    graph = proto.graph
    node = generator.choice(graph.node)
    names = [name for other in graph.node for name in (*other.input, *other.output)] + ["", "nothing"]
    operators = [other.op_type for other in graph.node] + [
        "Add",
        "Loop",
        "If",
        "Concat",
        "Gather",
        "Reshape",
        "Nope",
        "ConstantOfShape",
        "Cast",
    ]

    def dims() -> None:
        tensors = [*graph.initializer, *(a.t for other in graph.node for a in other.attribute if a.HasField("t"))]
        if tensors:
            generator.choice(tensors).dims.append(generator.choice([0, 1, 2, -1, 2**31, 2**62]))

    def external() -> None:
        tensors = [found.tensor for found in every_tensor(proto) if isinstance(found.tensor, onnx.TensorProto)]
        tensor = generator.choice(tensors) if tensors else graph.initializer.add(name="w", data_type=1, dims=[2])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        location = generator.choice(
            ["/etc/passwd", "../../etc/passwd", "m.onnx", ".", "", "/dev/zero", "nothing", "\0"]
        )
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(
            key=generator.choice(["offset", "length"]), value=generator.choice(["0", "9" * 30, "-1"])
        )

    def sparse() -> None:
        made = graph.sparse_initializer.add(dims=generator.choice([[4], [2, 2], [2**28], [2**40], [-1], []]))
        made.values.CopyFrom(numpy_helper.from_array(np.ones(generator.choice([0, 1, 2]), np.float32), "w"))
        made.indices.CopyFrom(
            numpy_helper.from_array(np.array(generator.choice([[0], [0, 1], [1, 0], [[0, 1]], [9, 99]])))
        )

    changes: list[Callable[[], object]] = [
        lambda: setattr(node, "op_type", generator.choice(operators)),
        lambda: node.input and node.input.__setitem__(generator.randrange(len(node.input)), generator.choice(names)),
        lambda: node.output and node.output.__setitem__(0, generator.choice(names)),
        lambda: node.input.append(generator.choice(names)),
        lambda: node.input and node.input.pop(),
        lambda: node.attribute and node.attribute.pop(),
        lambda: node.attribute.add(name=generator.choice(["axis", "to", "perm", "value"]), type=2, i=generator.choice([-9, 0, 1, 99, 2**62])),
        lambda: setattr(proto.opset_import[0], "version", generator.choice([0, 1, 6, 13, 28, 29, 10**9])),
        lambda: graph.node.add().CopyFrom(node),
        lambda: graph.node.reverse(),
        lambda: graph.output.add().CopyFrom(graph.input[0]) if graph.input else None,
        dims,
        external,
        sparse,
        lambda: graph.input and graph.input[0].type.tensor_type.shape.dim.add(dim_param=generator.choice(TEXTS)),
        lambda: node.attribute and generator.choice(node.attribute).ints.append(generator.choice([-1, 2**31, 2**62])),
        lambda: node.attribute and setattr(generator.choice(node.attribute), "type", generator.randrange(15)),
    ]  # fmt: skip
    for _ in range(generator.choice([1, 2, 3])):
        generator.choice(changes)()
    return proto.SerializeToString()


def files(seed: int, count: int) -> Iterator[bytes]:
    """Mutated files, the same for the same seed."""
    generator = random.Random(seed)
    protos = seeds()
    for _ in range(count):
        proto = generator.choice(protos)
        if generator.random() < 0.8:
            yield reordered(proto, generator)
        else:
            yield mutated(proto.SerializeToString(), generator)


def attempt(data: bytes, folder: Path, run: bool = True) -> str:
    """Imports a file, shows it and, if asked, runs it, as far as it lets itself: says how far that was."""
    path = folder / "m.onnx"
    path.write_bytes(data)
    try:
        program = from_onnx(path)
        str(program)
        specs = input_specs(program)
        sizes = [
            math.prod(size if isinstance(size, int) else 2 for size in spec.shape) if spec.dtype != object else 0
            for spec in specs.values()
        ]
        if run and sum(sizes) < LARGEST_INPUT:
            arrays = {
                name: np.ones([size if isinstance(size, int) else 2 for size in spec.shape], spec.dtype)
                for name, spec in specs.items()
            }
            program(**arrays)
        str(program.explain())
        program.to_source(framework="jax")
    except jaxport.JaxportError as error:
        str(error)
        return type(error).__name__
    return "ran"

"""What the analysis claims of values, checked on the values of random graphs: an independent evaluator computes them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import product

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from jaxport.graph.facts.facts import Facts
from jaxport.graph.facts.forms import ALWAYS, NEVER, Band, Form
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.jaxprs.dims import evaluate
from jaxport.sizes.sums import SizeSum, size_sum

SIZES = [{"m": 1, "n": 1}, {"m": 2, "n": 3}, {"m": 4, "n": 2}, {"m": 3, "n": 3}]
INTEGERS, FLOATS, TRUTHS = "i", "f", "b"
NODES = 30


def number(value: SizeSum | float, sizes: Mapping[str, int]) -> float:
    """The value of a polynomial for some sizes."""
    if isinstance(value, float):
        return value
    return evaluate(str(value), sizes)


def elements(form: Form, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray:
    """The elements of a form."""
    made = np.full(shape, number(form.constant, sizes))
    for index in product(*map(range, shape)):
        made[index] += sum(number(slope, sizes) * at for slope, at in zip(form.slopes, index, strict=True))
    return made


def holds(band: Band, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray:
    """Where a band holds."""
    made = np.full(shape, not band.is_never)
    for form in band.conditions:
        made &= elements(form, shape, sizes) >= 0
    return made


def wrong(facts: Facts, value: np.ndarray, sizes: Mapping[str, int]) -> list[str]:
    """What is claimed of a value, and is not so."""
    found = []
    if facts.form is not None and not np.array_equal(elements(facts.form, value.shape, sizes), value):
        found.append(f"form {facts.form}")
    if facts.band is not None and not np.array_equal(holds(facts.band, value.shape, sizes), value):
        found.append(f"band {facts.band}")
    if facts.choice is not None:
        band, one, other = facts.choice
        expected = np.where(holds(band, value.shape, sizes), one, other).astype(value.dtype)
        if not np.array_equal(expected, value, equal_nan=value.dtype.kind == "f"):
            found.append(f"choice {facts.choice}")
    numbers = value.astype(np.float64)
    if facts.low is not None and not (numbers >= number(facts.low, sizes)).all():
        found.append(f"low {facts.low}")
    if facts.high is not None and not (numbers <= number(facts.high, sizes)).all():
        found.append(f"high {facts.high}")
    claims = {
        "never_nan": np.isnan(numbers),
        "never_infinite": np.isposinf(numbers),
        "never_minus_infinite": np.isneginf(numbers),
        "never_negative_zero": (numbers == 0) & np.signbit(numbers),
        "is_integral": np.isfinite(numbers) & (np.trunc(numbers) != numbers),
    }
    found += [name for name, where in claims.items() if getattr(facts, name) and where.any()]
    found += [f"kept {axis}" for axis in facts.kept if np.isneginf(numbers).all(axis).any()]
    return found


class Drawn:
    """A random graph of operators on positions, masks and scores; `shapes` and `kinds` are those of its values."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, list[int | str]] = {"x": ["m", "n"], "k": ["m", "n"], "t": ["m", "n"]}
        self.kinds = {"x": FLOATS, "k": INTEGERS, "t": TRUTHS}
        self.one, self.zero = self.constant(1), self.constant(0)
        for axis, size in enumerate("mn"):
            dim = self.emit("Shape", ["x"], [1], INTEGERS, start=axis, end=axis + 1)
            end = self.emit("Squeeze", [dim], [], INTEGERS)
            self.emit("Range", [self.zero, end, self.one], [size], INTEGERS)
        for number in (-math.inf, 0.0, -0.0, 2.5, math.inf, math.nan, float(np.finfo(np.float32).min)):
            self.constant(np.float32(number))
        self.constant(np.arange(6).reshape(2, 3) * 2 + 1)
        while len(self.nodes) < NODES:
            self.step()

    def constant(self, value: object) -> str:
        array, name = np.asarray(value), f"c{len(self.constants)}"
        array = array.astype(np.int64) if array.dtype.kind == "i" else array
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        self.shapes[name] = [*array.shape]
        self.kinds[name] = {"i": INTEGERS, "f": FLOATS, "b": TRUTHS}[array.dtype.kind]
        return name

    def emit(self, op_type: str, inputs: list[str], shape: list[int | str], kind: str, **attributes: int) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(oh.make_node(op_type, inputs, [name], **attributes))
        self.shapes[name], self.kinds[name] = shape, kind
        return name

    def pick(self, kinds: str, least: int = 0) -> str:
        names = [name for name in self.shapes if self.kinds[name] in kinds and len(self.shapes[name]) >= least]
        return self.draw.choice(names[-20:] if self.draw.random() < 0.7 else names)

    def together(self, *names: str) -> list[int | str] | None:
        """The shape of values that are broadcast, or None."""
        rank = max(len(self.shapes[name]) for name in names)
        made: list[int | str] = [1] * rank
        for name in names:
            shape = [1] * (rank - len(self.shapes[name])) + self.shapes[name]
            for axis, size in enumerate(shape):
                if size != 1 and made[axis] not in (1, size):
                    return None
                made[axis] = size if size != 1 else made[axis]
        return made

    def step(self) -> None:
        """Add a node."""
        getattr(self, self.draw.choice(STEPS))()

    def binary(self) -> None:
        op_type = self.draw.choice(["Add", "Sub", "Mul", "Max", "Min"])
        kind = self.draw.choice([INTEGERS, INTEGERS, FLOATS])
        operands = [self.pick(kind) for _ in range(self.draw.choice([1, 2, 3]) if op_type in ("Max", "Min") else 2)]
        shape = self.together(*operands)
        if shape is not None:
            self.emit(op_type, operands, shape, kind)

    def divided(self) -> None:
        x, by = self.pick(INTEGERS), self.draw.choice([1, 2, 3])
        positive = self.emit("Abs", [x], self.shapes[x], INTEGERS)
        self.emit(self.draw.choice(["Div", "Mod"]), [positive, self.constant(by)], self.shapes[x], INTEGERS)

    def unary(self) -> None:
        kind = self.draw.choice([INTEGERS, FLOATS])
        names = ["Neg", "Abs"] + ["Exp", "Tanh", "Sigmoid", "Relu", "Floor", "Sqrt", "Reciprocal"] * (kind == FLOATS)
        x = self.pick(kind)
        self.emit(self.draw.choice(names), [x], self.shapes[x], kind)

    def compared(self) -> None:
        kind = self.draw.choice([INTEGERS, INTEGERS, FLOATS])
        one, other = self.pick(kind), self.pick(kind)
        shape = self.together(one, other)
        if shape is not None:
            op_type = self.draw.choice(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
            self.emit(op_type, [one, other], shape, TRUTHS)

    def logic(self) -> None:
        one, other = self.pick(TRUTHS), self.pick(TRUTHS)
        shape = self.together(one, other)
        if shape is not None:
            self.emit(self.draw.choice(["And", "Or"]), [one, other], shape, TRUTHS)
        self.emit("Not", [one], self.shapes[one], TRUTHS)

    def tested(self) -> None:
        x = self.pick(FLOATS)
        is_nan = self.emit(self.draw.choice(["IsNaN", "IsInf"]), [x], self.shapes[x], TRUTHS)
        self.emit("Where", [is_nan, self.constant(np.float32(0)), x], self.shapes[x], FLOATS)

    def chosen(self) -> None:
        condition, kind = self.pick(TRUTHS), self.draw.choice([INTEGERS, FLOATS, FLOATS])
        one, other = self.pick(kind), self.pick(kind)
        shape = self.together(condition, one, other)
        if shape is not None:
            self.emit("Where", [condition, one, other], shape, kind)

    def cast(self) -> None:
        x = self.pick(INTEGERS + TRUTHS)
        kind = self.draw.choice([INTEGERS, FLOATS, TRUTHS])
        to = {INTEGERS: onnx.TensorProto.INT64, FLOATS: onnx.TensorProto.FLOAT, TRUTHS: onnx.TensorProto.BOOL}[kind]
        self.emit("Cast", [x], self.shapes[x], kind, to=to)

    def viewed(self) -> None:
        x = self.pick(INTEGERS + TRUTHS + FLOATS, 1)
        shape = self.shapes[x]
        if len(shape) > 2:
            return
        axis = self.draw.randrange(len(shape) + 1)
        added = [*shape[:axis], 1, *shape[axis:]]
        self.emit("Unsqueeze", [x, self.constant(np.array([axis]))], added, self.kinds[x])

    def turned(self) -> None:
        x = self.pick(INTEGERS + TRUTHS + FLOATS, 2)
        self.emit("Transpose", [x], self.shapes[x][::-1], self.kinds[x])

    def expanded(self) -> None:
        x = self.pick(INTEGERS + TRUTHS + FLOATS)
        if self.together(x, "x") == ["m", "n"]:
            target = self.emit("Shape", ["x"], [2], INTEGERS)
            self.emit("Expand", [x, target], ["m", "n"], self.kinds[x])

    def flattened(self) -> None:
        x = self.pick(INTEGERS + TRUTHS + FLOATS)
        if self.shapes[x] == ["m", "n"]:
            flat = self.emit("Reshape", [x, self.constant(np.array([-1]))], ["m*n"], self.kinds[x])
            self.emit("Reshape", [flat, self.emit("Shape", ["x"], [2], INTEGERS)], ["m", "n"], self.kinds[x])

    def sliced(self) -> None:
        x = self.pick(INTEGERS + TRUTHS + FLOATS, 1)
        shape, axis = self.shapes[x], self.draw.randrange(len(self.shapes[x]))
        if isinstance(shape[axis], str):  # backwards
            ends = np.array([-1]), np.array([np.iinfo(np.int64).min]), np.array([axis]), np.array([-1])
            self.emit("Slice", [x, *map(self.constant, ends)], shape, self.kinds[x])
        else:
            size = shape[axis]
            start = self.draw.randrange(size)
            ends = np.array([start]), np.array([size]), np.array([axis])
            own = [size - start if place == axis else each for place, each in enumerate(shape)]
            self.emit("Slice", [x, *map(self.constant, ends)], own, self.kinds[x])

    def joined(self) -> None:
        x = self.pick(INTEGERS, 1)
        shape = self.shapes[x]
        if shape == ["n"]:
            first = self.constant(np.array([self.draw.choice([-1, 0])]))
            self.emit("Concat", [first, x], ["n + 1"], INTEGERS, axis=0)

    def summed(self) -> None:
        x = self.pick(INTEGERS, 1)
        axis = self.draw.randrange(len(self.shapes[x]))
        options = {"exclusive": self.draw.randrange(2)}
        self.emit("CumSum", [x, self.constant(axis)], self.shapes[x], INTEGERS, **options)

    def triangle(self) -> None:
        x = self.pick(FLOATS + INTEGERS, 2)
        self.emit("Trilu", [x, self.constant(self.draw.choice([-1, 0, 1]))], self.shapes[x], self.kinds[x],
                  upper=self.draw.randrange(2))  # fmt: skip

    def shares(self) -> None:
        x = self.pick(FLOATS, 1)
        self.emit("Softmax", [x], self.shapes[x], FLOATS, axis=-1)

    def reduced(self) -> None:
        x = self.pick(FLOATS, 1)
        own = [*self.shapes[x][:-1], 1]
        self.emit(self.draw.choice(["ReduceMax", "ReduceMin"]), [x, self.constant(np.array([-1]))], own, FLOATS)

    def gathered(self) -> None:
        x, size = self.pick(INTEGERS + TRUTHS + FLOATS, 1), "n"
        indices = [name for name in self.shapes if self.kinds[name] == INTEGERS and self.shapes[name] == [size]]
        if self.shapes[x][-1:] == [size] and indices:
            axis = len(self.shapes[x]) - 1
            limit = self.emit("Squeeze", [self.emit("Shape", ["x"], [1], INTEGERS, start=1)], [], INTEGERS)
            inside = self.emit("Mod", [self.draw.choice(indices), limit], [size], INTEGERS)
            self.emit("Gather", [x, inside], self.shapes[x], self.kinds[x], axis=axis)

    @property
    def model(self) -> onnx.ModelProto:
        """The graph with all its values as outputs."""
        types = {INTEGERS: onnx.TensorProto.INT64, FLOATS: onnx.TensorProto.FLOAT, TRUTHS: onnx.TensorProto.BOOL}
        infos = {
            name: oh.make_tensor_value_info(name, types[self.kinds[name]], shape) for name, shape in self.shapes.items()
        }
        outputs = [infos[node.output[0]] for node in self.nodes]
        graph = oh.make_graph(self.nodes, "g", [infos[name] for name in "xkt"], outputs, self.constants)
        return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 20)])


STEPS = [name for name, value in vars(Drawn).items() if callable(value) and not name.startswith("_")
         and name not in ("constant", "emit", "pick", "together", "step")]  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_facts_hold(seed):
    drawn = Drawn(seed)
    evaluator, graph = ReferenceEvaluator(drawn.model), ir.from_proto(drawn.model)
    known, rng, claims = Knowledge(graph), np.random.default_rng(seed), 0
    for sizes in SIZES:
        shape = sizes["m"], sizes["n"]
        inputs = {
            "x": rng.normal(size=shape).astype(np.float32),
            "k": rng.integers(-3, 4, shape),
            "t": rng.random(shape) < 0.5,
        }
        results = evaluator.run(None, inputs)
        for value, result in zip(graph.graph.outputs, results, strict=True):
            facts = known.of(value)
            assert not wrong(facts, np.asarray(result), sizes), (seed, value.producer(), facts)
            claims += facts != Facts()
    assert claims


def test_bands_of_positions():
    """Masks that a person would give a name are told from those that only look like them."""
    n, none = size_sum("n"), (size_sum(0),) * 2
    query, key = (
        Form(size_sum(0), (size_sum(1), size_sum(0))),
        Form(size_sum(0), (size_sum(0), size_sum(1))),
    )
    causal = Band.where([query - key], ["n", "n"])
    assert causal.keeps_some(1, ["n", "n"])
    assert causal.keeps_some(0, ["n", "n"])
    assert not Band.where([(query - key).shifted(-1)], ["n", "n"]).keeps_some(1, ["n", "n"])
    assert Band.where([query - key + Form(n, none)], ["n", "n"]) == ALWAYS
    assert Band.where([key - query + Form(-n, none)], ["n", "n"]) == NEVER
    window = Band.where([query - key, (key - query).shifted(3)], ["n", "n"])
    assert window.keeps_some(1, ["n", "n"])
    assert window.inverse() is None


@pytest.mark.parametrize(
    ("kind", "operator", "band"),
    [
        ("int32", "Equal", ALWAYS),
        ("int64", "LessOrEqual", ALWAYS),
        ("int32", "Greater", NEVER),
        ("float", "Equal", None),
    ],
)
def test_integers_equal_themselves(kind: str, operator: str, band: Band | None):
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({kind}[n] x) => (bool[n] y) {{ y = {operator}(x, x) }}'
    graph = ir.from_onnx_text(text)
    assert Knowledge(graph).of(graph.graph.outputs[0]).band == band


def test_a_zero_keeps_its_sign_in_another_type():
    program = """<ir_version: 10, opset_import: ["": 20]>
        g (int64 n) => (float16[m] y) <float zero = {-0.0}, float one = {1}, int64 none = {0}, int64 step = {1}, int64 few = {2}>
        { i = Range(none, n, step) c = Less(i, few) chosen = Where(c, zero, one) y = Cast<to = 10>(chosen) }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(program)))
    assert not Knowledge(model).of(model.graph.outputs[0]).never_negative_zero
    assert Knowledge(model).of(model.graph.outputs[0]).choice is not None

"""Rules on recorded steps: those that are text are run, the steps that they match and what they make of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.codegen.rewriting.known import is_never_negative_zero, truth_of
from jaxport.codegen.rewriting.patterns import Anything, Constant, Listed, Pattern, StepPattern, View, bindings, pattern
from jaxport.codegen.rewriting.producers import Producers
from jaxport.codegen.rewriting.same_bits import SAME_BITS
from jaxport.codegen.rewriting.step_rewriting import MOST_ROUNDS, RuleTable, StepRewriting
from jaxport.codegen.structure.spelling.rewritten import AS_WRITTEN
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.namespaces import HELPERS
from jaxport.importer.values.recording import Step, Variable, map_leaves

SPACES = {"jnp": jnp, "nn": jax.nn, "lax": jax.lax, "random": jax.random}
OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "<=": operator.le, "@": operator.matmul, "&": operator.and_, "|": operator.or_, "~": operator.invert, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, ">": operator.gt, ">=": operator.ge, "-": lambda x, *y: x - y[0] if y else -x,
}  # fmt: skip


def computed(step: Step, known: Mapping[Variable, Any]) -> Any:
    """The result of a step."""

    def plain(leaf: Any) -> Any:
        return known[leaf] if isinstance(leaf, Variable) else leaf.data if isinstance(leaf, HostValue) else leaf

    args, kwargs = map_leaves(plain, step.args), map_leaves(plain, step.kwargs)
    if step.form == "operator":
        return OPERATORS[step.name](*args)
    if step.form == "index":
        return args[0][args[1]]
    if step.form in ("method", "attribute"):
        member = getattr(args[0], step.name)
        return member(*args[1:]) if step.form == "method" else member
    space, _, name = step.name.partition(".")
    function = HELPERS[name].function if space == "helper" else operator.attrgetter(name)(SPACES[space])
    return function(*args, **kwargs)


class Made(NamedTuple):
    """A value that a step makes: it is no input."""

    array: np.ndarray


class Program:
    """The steps that a pattern describes, with values for its names, and what they compute."""

    def __init__(self, wanted: Pattern, values: Mapping[str, Any]) -> None:
        self.steps: list[Step] = []
        self.known: dict[Variable, Any] = {}
        self.names = {name: value if name == "_" else self.variable(value) for name, value in values.items()}
        self.inner: dict[str, Pattern] = {}
        self.find(wanted)
        self.result = self.made(wanted)

    def variable(self, value: Any) -> Any:
        if isinstance(value, Made):
            result = self.variable(value.array)
            self.steps.append(Step("call", "jnp.positive", (self.variable(value.array),), {}, result, None))
            return result
        if isinstance(value, list):  # several results
            return [*map(self.variable, value)]
        if not isinstance(value, np.ndarray | jax.Array) or isinstance(value, HostValue):
            return value
        made = Variable(tuple(value.shape), np.dtype(value.dtype))
        self.known[made] = jnp.asarray(value)
        return made

    def find(self, part: Pattern) -> None:
        """Find what the names of the pattern stand for."""
        match part:
            case Anything(name, inner) if inner is not None:
                self.inner[name] = inner
                self.find(inner)
            case View(_, inner):
                self.find(inner)
            case Listed(parts):
                list(map(self.find, parts))
            case StepPattern():
                list(map(self.find, (*part.args, *(value for _, value in part.keywords))))

    def made(self, part: Pattern) -> Any:
        match part:
            case Anything("_"):
                return self.names["_"].pop(0)
            case Anything(name, _):
                if name not in self.names:
                    made = self.made(self.inner[name])
                    self.names[name] = self.steps[-1] if isinstance(made, list) else made
                return self.names[name]
            case View(_, inner):
                return self.made(inner)
            case Constant(value):
                return value
            case Listed(parts, kind):
                return kind(map(self.made, parts))
            case StepPattern():
                args = (*map(self.made, part.args), *self.names.get(part.rest, ()))
                if part.form == "index" and isinstance(args[0], list | Step):
                    results = args[0].outputs if isinstance(args[0], Step) else args[0]
                    return results[args[1]]
                options = self.names.get("options" if part.options == "_" else part.options, {})
                kwargs = {word: self.made(value) for word, value in part.keywords} | options
                step = Step(part.form, part.names[0], args, kwargs, None, None)
                step.outputs = self.variable(computed(step, self.known))
                self.steps.append(step)
                return step.outputs


FLOATS = np.array([[0.0, -0.0, 1.5], [np.nan, np.inf, -3.25]], np.float32)
WHOLE = np.array([0, 1, -1, 7, -7, 2**31 - 1, -(2**31)], np.int32)
TRUE = np.array([[True, False, True], [False, True, False]])
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
TABLE = np.array([[0.0, 2.5, -1.5, 7.25], [-3.25, 0.5, 0.5, -9.0]], np.float32)
DIVISORS = np.array([[1.5, -2.0, 0.75, 3.0], [-0.5, 2.0, -2.0, 4.0]], np.float32)
ROW = HostValue(np.float32([2.0]))
THREE = HostValue(np.int32(3))

SAMPLES: dict[str, dict[str, Any]] = {
    "x + (zero := 0)": {"x": WHOLE}, "jnp.where(x == 0, 0, x)": {"x": WHOLE},
    "x == True": {"x": TRUE}, "x == False": {"x": TRUE}, "x != True": {"x": TRUE}, "x != False": {"x": TRUE},
    "~~x": {"x": TRUE}, "x & True": {"x": TRUE}, "x | False": {"x": TRUE},
    "jnp.fft.fft(lax.complex(x, zero), *options)": {"x": TABLE, "zero": HostValue(np.zeros_like(TABLE)), "options": (None, 0)},
    "jnp.where(_, x, x)": {"_": [TRUE]}, "jnp.broadcast_to(x, _)": {"_": [(2, 3)]},
    "jnp.where(c, x, y)": {"c": HostValue(np.bool_(True)), "y": -FLOATS},
    "jnp.where(x > threshold, x, nn.softplus(x))": {"x": np.float32([-3, 0, 16.5, 17.5, 20, 25, 90]), "threshold": HostValue(np.float32(17))},
    "jnp.mod(x, c)": {"x": WHOLE, "c": THREE},
    "jnp.arange(0, n, 1, **options)": {"n": 5, "options": {}},
    "(whole := jnp.arange(*ends, **options)).astype(kind)": {"ends": (5,), "options": {}, "kind": np.dtype("float32")},
    "jnp.stack([x], **options)": {"options": {"axis": 1}},
    "jnp.clip(without_nan(x), low, high).astype(kind)": {"low": -128, "high": 127, "kind": np.dtype("int8")},
    "jnp.where((y := jnp.maximum(without_nan(x), least)) >= bound, most, y.astype(kind))": {
        "bound": np.float32(2.0**31), "most": 2**31 - 1, "least": HostValue(np.float32(-(2.0**31))), "kind": np.dtype("int32"),
    },
    "jnp.where((told := unexpanded(i == at)), (found := jnp.take(table, (at := jnp.clip(i, low, high)), axis=axis)), nan)": {
        "i": np.array([0, 2, -1]), "low": -3, "high": 2, "axis": 0, "table": np.arange(3, dtype=np.float32),
    },
    "jnp.matmul(x, y)": {"y": FLOATS.T}, "jnp.pad(x, widths, **_)": {"widths": ((0, 0), (0, 0))}, "nn.softmax(x, axis=axis)": {"axis": 1},
    "jnp.where(~c, x, y)": {"c": TRUE, "y": -FLOATS},
    "jnp.squeeze(jnp.transpose(jnp.expand_dims(x, a), order), axes)": {"a": 0, "order": (2, 0, 1), "axes": (1,)},
    "jnp.reshape(jnp.transpose(jnp.expand_dims(x, a), order), shape)": {"a": 1, "order": (1, 2, 0), "shape": [6]},
    "jnp.expand_dims(jnp.expand_dims(x, a), b)": {"a": 1, "b": (0, 2)},
    "jnp.transpose(jnp.stack(parts, **options), order)": {"parts": [FLOATS, -FLOATS], "options": {}, "order": (1, 0, 2)},
    "jnp.transpose(jnp.transpose(x, p), q)": {"x": CUBE, "p": (0, 2, 1), "q": (1, 0, 2)},
    "jnp.swapaxes(x, a, b)": {"x": CUBE, "a": 0, "b": -1},
    "jnp.tile(x, repeats)": {"x": FLOATS[:1], "repeats": (2, 1)},
    "jnp.reshape(jnp.reshape(x, _), shape)": {"_": [(3, 2)], "shape": (6,)},
    "jnp.reshape(jnp.expand_dims(x, _), shape)": {"_": [1], "shape": (6,)},
    "jnp.reshape(jnp.squeeze(x, _), shape)": {"x": FLOATS[None], "_": [(0,)], "shape": (6,)},
    "jnp.concatenate([x[behind], x[before]], **options)": {
        "behind": (slice(None), slice(2, None)), "before": (slice(None), slice(None, 2)), "options": {"axis": 1},
    },
    "jnp.take(x, at, axis=axis)": {"at": HostValue(np.int32(1)), "axis": 1},
    "jnp.take(x, at, axis=0)": {"at": HostValue(np.arange(2))},
    "helper.gather_nd(x, (at := jnp.expand_dims(i, _)), 0)": {"i": np.array([1, 0]), "_": [1]},
    "jnp.broadcast_to(full, shape).astype(kind)": {"full": HostValue(np.float32(2)), "shape": (2, 3), "kind": np.dtype("int32")},
    "x[first][second]": {"x": CUBE, "first": slice(1, None), "second": (slice(None), slice(None, 2))},
    "jnp.broadcast_to(full, _)[_]": {"full": HostValue(np.float32(2)), "_": [(2,), slice(1, None)]},
    "helper.resized_along(x, axis, size, *scale, **options)": {
        "axis": 1, "size": 6, "scale": (), "options": {"mode": "nearest", "transform": "asymmetric", "nearest": "floor"},
    },
    "jnp.reshape((flat := jnp.reshape(x, _)) @ kernel, _)": {"x": CUBE, "_": [(6, 4), (2, 3, 4)], "kernel": np.eye(4, dtype=np.float32)},
    "jnp.reshape((product := (flat := jnp.reshape(x, _)) @ kernel) + bias, _)": {
        "x": CUBE, "_": [(6, 4), (2, 3, 4)], "kernel": np.eye(4, dtype=np.float32), "bias": np.arange(4, dtype=np.float32),
    },
    "(product := x @ w) + residual + bias": {
        "x": CUBE, "w": np.eye(4, dtype=np.float32), "residual": CUBE[::-1], "bias": np.arange(4, dtype=np.float32),
    },
    "kernel @ jnp.transpose(x, (0, 2, 1))": {"x": CUBE, "kernel": np.arange(8, dtype=np.float32).reshape(2, 4)},
    "x != x": {}, "~(x == y)": {"y": FLOATS[::-1]}, "jnp.reshape(x, _)[0]": {"x": np.asarray(3, np.int32), "_": [(1,)]},
    "jnp.max(c.astype(_), **options).astype(kind)": {"c": TRUE, "options": {"axis": 1}},
    "jnp.min(c.astype(_), **options).astype(kind)": {"c": TRUE, "options": {"axis": 0, "keepdims": True}},
    **{text: {"axis": 1, "x": TABLE} for text in AS_WRITTEN.texts if "argsort" in text or "jnp.sort" in text},
    "((s := jnp.sort(jnp.where(jnp.expand_dims(jnp.any(jnp.isnan(x), axis=axis), _), nan, x), axis=axis))[i] + s[j]) * 0.5": {
        "x": TABLE, "axis": 1, "i": (slice(None), 1), "j": (slice(None), 2), "_": [1],
    },
    "jnp.floor_divide(x, y)": {"x": TABLE, "y": DIVISORS},
    "nn.leaky_relu(x, slope)": {"slope": 0.01}, "scale * nn.elu(x, alpha)": {"scale": HostValue(np.float32(1.050700987)), "alpha": 1.673263242},
    "jnp.log(jnp.sum(jnp.exp(x - most), axis=axes, keepdims=True)) + (most := jnp.max(x, axis=axes, keepdims=True))": {"x": TABLE, "axes": (1,)},
    "jnp.sqrt(jnp.sum(x * x, axis=axes, **options))": {"axes": (1,), "options": {"keepdims": True}},
    **{f"{name}(x, keepdims=False, **options)": {"options": {"axis": 1}} for name in ("jnp.argmax", "jnp.argmin", "jnp.prod")},
    "jnp.mean((d := x - jnp.mean(x, axis=whole, keepdims=True)) * d, axis=axes)": {"x": TABLE, "whole": (-1,), "axes": 1},
    "jnp.sqrt(jnp.var(x, axis=axes))": {"axes": 1},
    "jnp.where(i == at, jnp.take_along_axis(x, (at := jnp.clip(i, low, high)), axis=axis), nan)": {
        "i": np.array([[0, 2], [-3, 3]], np.int32), "low": -3, "high": 2, "axis": 1,
    },
    "lax.dynamic_slice_in_dim(x, jnp.clip(jnp.where(i < 0, i + size, i), 0, last), length, **options)": {
        "x": TABLE, "i": np.asarray(-5, np.int32), "size": 4, "last": 2, "length": 2, "options": {"axis": 1},
    },
    "jnp.bitwise_not(jnp.bitwise_not(x))": {"x": WHOLE},
    "(halves := jnp.split(x, 2, axis=axis))[0] * nn.sigmoid(halves[1])": {"x": TABLE, "axis": 1},
    "jnp.take_along_axis(x, (top := lax.top_k(with_signs_of_zeros(x), _, **options))[1], axis=axis)": {
        "x": TABLE, "axis": -1, "_": [2], "options": {},
    },
    **{text: {"x": TABLE, "axis": -1, "n": 4, "k": 2, "options": {}, "others": {}} for text, made in AS_WRITTEN.texts.items() if made == "indices"},
    "jnp.squeeze((part := (split := jnp.split(x, _, axis=axis))[place]), axes)": {"x": CUBE, "_": [3], "axis": 1, "place": 2, "axes": (1,)},
    "jnp.reshape(jnp.transpose((merged := jnp.reshape(x, _)), (0, 2, 1)), _)": {"x": CUBE, "_": [(1, 6, 4), (1, 1, 4, 6)]},
    "jnp.transpose((after := jnp.reshape((before := jnp.transpose(x, p)), _)), q)": {
        "x": CUBE, "p": (0, 2, 1), "_": [(2, 2, 2, 3)], "q": (0, 3, 1, 2),
    },
    "helper.gather_nd(x, (at := jnp.expand_dims(i, _)), 1)": {"x": Made(TABLE), "i": np.array([3, 0]), "_": [1]},
    "helper.gather_nd(x, (at := jnp.expand_dims(jnp.clip(i, low, high), _)), 1)": {
        "x": Made(TABLE), "i": np.array([3, -4]), "low": -4, "high": 3, "_": [1],
    },
    "jnp.take(x, jnp.clip(i, low, high), axis=axis)": {"x": Made(TABLE), "i": np.array([3, -4]), "low": -4, "high": 3, "axis": 1},
    **{
        f"({index} == counted).astype(_)": {"i": np.array([2, 0, 5]), "counted": HostValue(np.array(counted)), "_": [*shape, np.dtype("float32")]}
        for index, counted, shape in (
            ("i", [[0], [1], [2]], ()), ("jnp.expand_dims(i, _)", [0, 1, 2], (1,)), ("jnp.reshape(i, _)", [0, 1, 2], ((3, 1),)),
        )
    },
    "jnp.minimum(high, jnp.maximum(low, x))": {"x": WHOLE, "low": HostValue(np.int32(-3)), "high": THREE},
    "lax.complex(jnp.real(z), jnp.imag(z))": {"z": np.array([1 + 2j, -0.0 - 3j], np.complex64)},
    "jnp.where(condition, x, y)": {"condition": TRUE, "x": ROW, "y": FLOATS},
    "jnp.roll(jnp.roll(x, i, axis=a), j, axis=b)": {"x": CUBE, "i": 1, "a": 2, "j": -2, "b": 0},
}  # fmt: skip
"""Values for the names of patterns; `x` is some floats."""


def values_of(wanted: str) -> dict[str, Any]:
    """The values of the names of a pattern."""
    reductions = {"axes": (1,), "options": {}} if "keepdims" in wanted or "isnan(x).astype" in wanted else {}
    bounds = {"low": np.float32(-1), "high": np.float32(1)}
    made = {"x": FLOATS, **bounds, "kind": np.dtype(bool), **reductions, **SAMPLES.get(wanted, {})}
    return made | {"_": [*made.get("_", [np.dtype("int8")])]}


@pytest.mark.parametrize(
    ("table", "wanted"),
    [(name, wanted) for name, table in (("bits", SAME_BITS), ("written", AS_WRITTEN)) for wanted in table.texts],
)
def test_a_rule_computes_what_it_replaces(table: str, wanted: str) -> None:
    program = Program(pattern(wanted), values_of(wanted))
    tables = [SAME_BITS] if table == "bits" else [AS_WRITTEN]
    made = [step.outputs for step in program.steps]
    given = {variable for variable in program.known if variable in program.names.values() and variable not in made}
    rewriting = StepRewriting(tables, weights=given)
    for step in program.steps:
        rewriting.add(step)
    known = dict(program.known)
    for step in rewriting.steps:
        found = computed(step, known)
        several = isinstance(step.outputs, list | tuple)
        known |= zip(step.outputs, found, strict=True) if several else [(step.outputs, found)]
    result, last = rewriting.current(program.result), rewriting.steps[-1:]
    assert last != program.steps[-1:], "the rule does not apply"
    expected, found = np.asarray(program.known[program.result]), np.asarray(known[result])
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if table == "bits":
        is_nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), is_nan)
        assert found[~is_nan].tobytes() == expected[~is_nan].tobytes()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_samples_are_of_rules() -> None:
    assert not SAMPLES.keys() - {*SAME_BITS.texts, *AS_WRITTEN.texts}


def test_a_rule_with_an_unknown_name_is_refused() -> None:
    with pytest.raises(SyntaxError, match="does not say what y is"):
        RuleTable().rewrite("x * 1", "x * y")
    with pytest.raises(TypeError, match="does not know y"):
        RuleTable().rewrite("x * 1", "x", when=lambda y: y)
    with pytest.raises(SyntaxError, match="no rule: x as x"):
        RuleTable().rewrite("x", "x")
    with pytest.raises(SyntaxError, match=r"no rule knows the shape of jnp\.exp inside jnp\.sin\(jnp\.exp\(x\)\)"):
        RuleTable().rewrite("jnp.sin(x)", "jnp.sin(jnp.exp(x))")
    with pytest.raises(SyntaxError, match="no pattern of a step"):
        RuleTable().rewrite("x if y else z", "x")


def test_rules_that_undo_each_other_end() -> None:
    table = RuleTable()
    table.rewrite("jnp.sin(x)", "jnp.cos(x)")
    table.rewrite("jnp.cos(x)", "jnp.sin(x)")
    program = Program(pattern("jnp.sin(x)"), {"x": FLOATS})
    rewriting = StepRewriting([table])
    rewriting.add(program.steps[0])
    assert MOST_ROUNDS % 2 == 0
    assert [step.name for step in rewriting.steps] == ["jnp.sin"]


@pytest.mark.parametrize(
    ("wanted", "written", "values", "count"),
    [
        ("x + jnp.exp(y)", "jnp.exp(y) + x", {"y": FLOATS}, 1),
        ("x * x", "x * y", {"y": -FLOATS}, 0),
        ("x + 1", "x + 1", {}, 1),
        ("x + 1", "x + 2", {}, 0),
        ("x * nan", "x * nan", {}, 1),
        ("(jnp.sin | jnp.cos)(x)", "jnp.cos(x)", {}, 1),
        ("jnp.mean(x, axis=axis)", "jnp.mean(x, axis=axis, keepdims=True)", {"axis": 1}, 0),
        ("jnp.mean(x, axis=axis, **options)", "jnp.mean(x, axis=axis, keepdims=True)", {"axis": 1}, 1),
        ("jnp.transpose(x, (1, 0))", "jnp.transpose(x, (1, 0))", {}, 1),
        ("jnp.concatenate([x, y])", "jnp.concatenate([x, x, x])", {}, 0),
    ],
)
def test_a_pattern_matches(wanted: str, written: str, values: dict[str, Any], count: int) -> None:
    program = Program(pattern(written), {"x": FLOATS, **values})
    rewriting = StepRewriting([])
    for step in program.steps:
        rewriting.add(step)
    found = list(bindings(pattern(wanted), program.steps[-1], rewriting.producers))
    assert min(len(found), 1) == count


def test_keywords_keep_their_order() -> None:
    """Source that is printed twice is the same text."""
    x, result = (Variable((2,), np.dtype("float32")) for _ in range(2))
    words = dict.fromkeys(("axis", "keepdims", "dtype", "where", "initial", "out", "a", "b"))
    (bound,) = bindings(
        pattern("jnp.sum(x, axis=_, **options)"), Step("call", "jnp.sum", (x,), words, result, None), Producers()
    )
    assert list(bound["options"]) == list(words)[1:]


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("one / jnp.sqrt(x)", {"one": HostValue(np.ones((4, 2, 3), np.float32))}),
        ("x * one", {"one": HostValue(np.ones((4, 2, 3), np.float32))}),
        ("x * one", {"one": HostValue(np.float32([1, 1, 2]))}),
        ("x + zero", {"zero": HostValue(np.float32(0))}),
        ("x - zero", {"zero": HostValue(np.float32(-0.0))}),
        ("jnp.minimum(x, most)", {"most": HostValue(np.finfo(np.float32).max)}),
        ("x * factor", {"factor": HostValue(np.float32(0.001953))}),
        ("jnp.logical_not(jnp.logical_not(x))", {}),
        ("jnp.where(x < 0, y, x)", {"y": -FLOATS}),
        ("jnp.clip(x, low, high).astype(kind)", {"low": -127, "high": 127, "kind": np.dtype("int8")}),
        ("jnp.transpose(x, (1, 0))", {}),
        ("jnp.reshape(x, shape)", {"shape": (3, 2)}),
        ("jnp.arange(n).astype(kind)", {"n": 5, "kind": np.dtype("float16")}),
    ],
)
def test_what_is_not_the_same_stays(written: str, values: dict[str, Any]) -> None:
    program = Program(pattern(written), {"x": FLOATS, **values})
    rewriting = StepRewriting([SAME_BITS, AS_WRITTEN])
    assert [rewriting.add(step) for step in program.steps] == [step.outputs for step in program.steps]
    assert [step.name for step in rewriting.steps] == [step.name for step in program.steps]


def test_constants_are_those_of_the_type() -> None:
    """A double beyond the range of a type is infinite in it."""
    x = Variable((2,), np.dtype("float32"))
    step = Step("call", "jnp.minimum", (x, HostValue(np.float64(1e300))), {}, Variable((2,), x.dtype), None)
    assert StepRewriting([SAME_BITS]).add(step) is x
    assert math.isinf(np.float32(np.inf))


NUMBERS: dict[str, Any] = {
    "x": FLOATS, "n": WHOLE, "kind": np.dtype("float32"), "half": HostValue(np.float32(0.5)), "tiny": HostValue(np.float32(1e-44)),
    "one": HostValue(np.float32(1)), "zero": HostValue(np.float32(0)), "three": HostValue(np.int32(3)), "count": 4, "one_": 1, "minus": -1,
}  # fmt: skip
NEVER_NEGATIVE_ZERO = {
    "jnp.abs(x)": True, "jnp.exp(x)": True, "nn.sigmoid(x)": True, "nn.softmax(x, axis=0)": True, "x * x": True, "jnp.square(x)": True,
    "x + jnp.abs(x)": True, "n.astype(kind)": True, "n.astype(kind) * half": True, "n.astype(kind) - one": True,
    "jnp.transpose(jnp.abs(x), (1, 0))": True, "jnp.where(x < 0, one, jnp.abs(x))": True, "jnp.arange(count).astype(kind)": True,
    "x": False, "-jnp.abs(x)": False, "x * jnp.abs(x)": False, "x - zero": False, "n.astype(kind) * tiny": False,
    "jnp.where(x < 0, one, x)": False, "x / one": False,
}  # fmt: skip


@pytest.mark.parametrize("written", NEVER_NEGATIVE_ZERO)
def test_where_negative_zero_cannot_be(written: str) -> None:
    program, producers = Program(pattern(written), NUMBERS), Producers()
    for step in program.steps:
        producers.note(step)
    known = is_never_negative_zero(program.result, producers)
    values = np.asarray(program.known[program.result])
    assert known == NEVER_NEGATIVE_ZERO[written]
    assert not (known and bool(((values == 0) & np.signbit(values)).any()))


TRUTH = {
    "jnp.arange(count) < 0": False, "n % three >= 0": True, "n != n": False, "jnp.arange(count) != minus": True, "jnp.arange(count) < count": True, "x < 0": None, "n < 0": None,
    "jnp.abs(x) >= 0": None, "jnp.where(n < 0, n, n) < 0": None, "jnp.arange(one_, count) < 1": False, "jnp.arange(count, one_, minus) < 1": False, "~(jnp.arange(count) < 0)": True,
}  # fmt: skip


@pytest.mark.parametrize("written", TRUTH)
def test_what_is_true_of_all_elements(written: str) -> None:
    """Of floats nothing is known: they may be NaN."""
    program, producers = Program(pattern(written), NUMBERS), Producers()
    for step in program.steps:
        producers.note(step)
    known = truth_of(program.result, producers)
    assert known is TRUTH[written]
    assert known is None or bool((np.asarray(program.known[program.result]) == known).all())

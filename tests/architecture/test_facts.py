"""What `onnx_facts` says about operators is what they compute: each class is measured, or read from the schemas.

So a change that adds an operator is asked for the facts that it forgot.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests
from onnx.defs import OpSchema

from jaxport import onnx_facts
from jaxport.importer.resolving.registry import KNOWN_OPSETS, Operator, lookup, operators
from tests.importer.models import needs_newest_onnx

pytestmark = needs_newest_onnx  # older ones lack operators that the facts name

SHAPE = (2, 3, 4, 5)
ATTRIBUTES = {"BitShift": {"direction": "LEFT"}, "Cast": {"to": onnx.TensorProto.INT32}}
FACTS = "in src/jaxport/onnx_facts/__init__.py"

#: Operators that are elementwise on the samples of this test, but not in general.
ONLY_HERE = {
    "CastLike": "the second operand has the type alone, whatever its shape",
    "OptionalGetElement": "takes optionals and sequences, too",
    "Squeeze": "has no axis to drop here",
    "TensorScatter": "the update is as large as the cache here",
}


def sample(allowed: set[str], generator: np.random.Generator) -> np.ndarray | None:
    """Return an array of one of the types that a schema allows; None if there is none of interest."""
    if "tensor(float)" in allowed:
        return generator.uniform(0.1, 0.9, SHAPE).astype(np.float32)
    if "tensor(bool)" in allowed:
        return generator.random(SHAPE) < 0.5
    return generator.integers(1, 7, SHAPE).astype(np.uint8) if "tensor(uint8)" in allowed else None


def computed(operator: Operator, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the first result."""
    result = operator.function(*map(jnp.asarray, arrays), **ATTRIBUTES.get(operator.name, {}))
    return np.asarray(result[0] if isinstance(result, tuple) else result)


@cache
def schemas() -> dict[str, OpSchema]:
    """The newest schema of each of ONNX's own operators that is in force and served."""
    known = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return {name: s for name, s in known.items() if not s.deprecated and lookup("", name, KNOWN_OPSETS[""]) is not None}


def is_elementwise(name: str) -> bool:
    """Whether elements change places with those of all operands, and each depends on those at its place alone."""
    schema, operator, generator = schemas()[name], lookup("", name, KNOWN_OPSETS[""]), np.random.default_rng(0)
    required = list(schema.inputs[: schema.min_input])
    if required and required[0].option == OpSchema.FormalParameterOption.Variadic:
        required = required[:1] * 2
    samples = [sample(formal.types, generator) for formal in required]
    arrays = [x for x in samples if x is not None]
    if not arrays or len(arrays) < len(samples):
        return False
    order, changed = generator.permutation(arrays[0].size), [x.copy() for x in arrays]
    for x in changed:
        x.flat[0] = not x.flat[0] if x.dtype == bool else x.max() + 1
    assert operator is not None
    try:
        plain = computed(operator, arrays)
        moved = computed(operator, [x.ravel()[order].reshape(SHAPE) for x in arrays])
        beside = computed(operator, changed)
    except Exception:  # noqa: BLE001  it takes no such operands
        return False
    if plain.shape != SHAPE or beside.shape != SHAPE:
        return False
    return same(plain.ravel()[order], moved.ravel()) and same(plain.ravel()[1:], beside.ravel()[1:])


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether results are equal; those of floats may differ in the last digits with their place in a vector register."""
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    return np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", sorted(schemas()))
def test_elementwise_operators_are_listed(name: str) -> None:
    found = is_elementwise(name)
    if found and name not in ONLY_HERE:
        assert name in onnx_facts.ELEMENTWISE, (
            f"`{name}` is elementwise: add it to the class that it belongs to {FACTS}"
        )
    if name in onnx_facts.ELEMENTWISE:
        assert found, f"`{name}` is not elementwise: take it out of the classes {FACTS}"


def test_the_measure_knows_what_is_not_elementwise() -> None:
    assert not any(map(is_elementwise, ("Softmax", "CumSum", "MatMul", "Transpose")))
    assert {name for name in ONLY_HERE if not is_elementwise(name)} == set(), "an exception that is none any more"


@pytest.mark.parametrize("name", sorted(onnx_facts.BROADCASTING))
def test_operands_broadcast_and_commute_as_listed(name: str) -> None:
    operator, generator = lookup("", name, KNOWN_OPSETS[""]), np.random.default_rng(0)
    assert operator is not None
    formals = [*schemas()[name].inputs, *schemas()[name].inputs][: 3 if name == "Where" else 2]  # some are variadic
    arrays = [sample(formal.types, generator) for formal in formals]
    kept = [x for x in arrays if x is not None]
    assert computed(operator, [kept[0][:, :1], *(x[..., :1] for x in kept[1:])]).shape == SHAPE
    if len(kept) == 2:
        commutes = np.array_equal(computed(operator, kept), computed(operator, kept[::-1]))
        assert commutes == (name in onnx_facts.COMMUTATIVE), f"`COMMUTATIVE` {FACTS} is wrong about `{name}`"


def test_classes_that_the_schemas_tell() -> None:
    graphs = {
        name for name, schema in schemas().items()
        if any(attribute.type == OpSchema.AttrType.GRAPH for attribute in schema.attributes.values())
    }  # fmt: skip
    reductions = {name for name in schemas() if name.startswith("Reduce")}
    drawn = {e.name for e in operators() if not e.domain and "random key" in e.context.values()}
    for listed, actual in (("CONTROL_FLOW", graphs), ("REDUCTIONS", reductions), ("RANDOM", drawn)):
        wrong = sorted(actual ^ getattr(onnx_facts, listed))
        assert not wrong, f"`{listed}` {FACTS} is wrong about {wrong}: add them, or take them out"
    for name, (_, default) in onnx_facts.ALONG_AXIS.items():
        axis = schemas()[name].attributes["axis"]
        assert (axis.default_value.i if axis.default_value.name else None) == default, f"`ALONG_AXIS` {FACTS}: `{name}`"


# The classes that follow are measured on the examples of the official suite, of which each operator has some.


class Example(NamedTuple):
    """The arrays that a node of the suite takes, and its first result."""

    operands: list[np.ndarray]
    result: np.ndarray


@cache
def examples() -> dict[str, list[Example]]:
    """The examples of each operator whose first operand is an array."""
    gathered: dict[str, list[Example]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        (node, *others) = case.model.graph.node
        first = [value.name for value in case.model.graph.input][:1]
        if others or node.op_type not in schemas() or not first or first != node.input[:1]:
            continue
        for operands, results in case.data_sets:
            arrays = [np.asarray(x) for x in (*operands, results[0]) if isinstance(x, np.ndarray | np.generic)]
            if len(arrays) == len(operands) + 1:
                gathered.setdefault(node.op_type, []).append(Example(arrays[:-1], arrays[-1]))
    return gathered


def has_first_shape(example: Example) -> bool:
    return example.operands[0].shape == example.result.shape


def consists_of(example: Example, operands: list[np.ndarray]) -> bool:
    """Whether each element of the result is an element of one of these operands, of the same dtype."""
    alike = [x.ravel() for x in operands if x.dtype == example.result.dtype]
    return bool(alike) and bool(np.isin(example.result.ravel(), np.concatenate(alike)).all())


def of_numbers(name: str) -> list[Example]:
    """The examples in which equal elements are no coincidence: those of numbers."""
    return [one for one in examples().get(name, []) if one.operands[0].size and one.result.dtype.kind not in "bO"]


#: The operators that measure so in the suite, but not in general, by the class.
ONLY_IN_THE_SUITE = {
    "SHAPED_LIKE_THE_FIRST": {
        "LinearAttention": "the values may have another size than the queries",
        "OptionalGetElement": "takes optionals and sequences, too",
        "QLinearConv": "the kernels have one element here",
        "RegexFullMatch": "takes strings",
        "Scan": "the state has any shape",
        "StringConcat": "takes strings, which are broadcast",
    },
    "SELECTIONS": {
        "OptionalGetElement": "takes optionals and sequences, too",
        "Sign": "the samples have the elements -1, 0 and 1",
        "TensorScatter": "the updates are elements of the cache",
        "Trilu": "fills up with zero",
        "Unique": "has as many elements as are distinct",
    },
    "CHOICES": {
        "OptionalGetElement": "takes optionals and sequences, too",
        "Pad": "fills up with zero, or with an element",
        "Sign": "the samples have the elements -1, 0 and 1",
        "TensorScatter": "it is in `SCATTERS`",
        "Trilu": "fills up with zero",
        "Unique": "has as many elements as are distinct",
    },
}


@pytest.mark.parametrize(
    ("listed", "larger", "measure"),
    [
        ("SHAPED_LIKE_THE_FIRST", onnx_facts.BROADCASTING, has_first_shape),
        ("SELECTIONS", onnx_facts.CHOICES, lambda example: consists_of(example, example.operands[:1])),
        ("CHOICES", frozenset(), lambda example: consists_of(example, example.operands)),
    ],
)
def test_the_suite_says_what_a_result_has_of_the_operands(
    listed: str, larger: frozenset[str], measure: Callable[[Example], bool]
) -> None:
    sample = of_numbers if listed != "SHAPED_LIKE_THE_FIRST" else lambda name: examples().get(name, [])
    measured = {name for name in examples() if sample(name) and all(map(measure, sample(name)))}
    members, exceptions = getattr(onnx_facts, listed), ONLY_IN_THE_SUITE[listed]
    missing = sorted(measured - members - larger - exceptions.keys())
    assert not missing, f"add {missing} to `{listed}` {FACTS}, or say why not in `ONLY_IN_THE_SUITE`"
    wrong = sorted(name for name in members if sample(name) and name not in measured)
    assert not wrong, f"`{listed}` {FACTS} is wrong about {wrong}"
    assert not sorted(exceptions.keys() - measured), "an exception that is none any more"


@pytest.mark.parametrize("name", sorted(onnx_facts.ACTIVATIONS))
def test_activations_have_no_steep_slope(name: str) -> None:
    operator, points = lookup("", name, KNOWN_OPSETS[""]), np.linspace(-8, 8, 4097, dtype=np.float32)
    assert operator is not None
    values = computed(operator, [points, *([np.full(1, 0.2, np.float32)] if name == "PRelu" else [])])
    slopes = np.abs(np.diff(values)) / np.diff(points)
    assert slopes.max() < 2, f"`ACTIVATIONS` {FACTS}: `{name}` has the slope {slopes.max():.1f}"


@pytest.mark.parametrize("name", sorted(onnx_facts.RANGES))
def test_results_are_in_the_range_of_their_operator_and_reach_its_ends(name: str) -> None:
    operator, (low, high) = lookup("", name, KNOWN_OPSETS[""]), onnx_facts.RANGES[name]
    assert operator is not None
    points = np.concatenate([np.linspace(-40, 40, 16001), [-np.inf, -3e38, 3e38, np.inf]]).astype(np.float32)
    rows = np.stack([points, points[::-1]], 1) if name in onnx_facts.SOFTMAXES else points
    values = computed(operator, [rows])
    values = values[~np.isnan(values)]
    wrong = f"`RANGES` {FACTS}: the results of `{name}` are from {values.min()} to {values.max()}"
    assert low - 1e-6 <= values.min() <= low + 0.1 or (values.min() < -30 and low == -np.inf), wrong
    assert high - 0.1 <= values.max() <= high + 1e-6 or (values.max() > 30 and high == np.inf), wrong


def test_classes_that_follow_from_the_schemas() -> None:
    of_rows = {name for name in onnx_facts.NORMALIZATIONS if {"axis", "epsilon"} <= schemas()[name].attributes.keys()}
    assert of_rows == onnx_facts.ROW_NORMALIZATIONS
    updates = {name for name in schemas() if {"updates", "update"} & {*inputs_of(name)}}
    assert updates == onnx_facts.SCATTERS
    windows = {name for name in schemas() if name.endswith("Pool") and "kernel_shape" in schemas()[name].attributes}
    assert windows == onnx_facts.POOLS
    assert {name for name in schemas() if name.startswith("Global")} == onnx_facts.GLOBAL_POOLS
    to_bool = {name for name in onnx_facts.BROADCASTING if schemas()[name].outputs[0].types == {"tensor(bool)"}}
    assert to_bool - {"And", "Or", "Xor"} == onnx_facts.COMPARISONS
    positions = {name for name in schemas() if name.startswith("Arg")}
    assert positions == onnx_facts.POSITIONS
    assert {name for name in schemas() if name.endswith("max")} == onnx_facts.SOFTMAXES
    assert {name for name in schemas() if name.startswith("Gather")} == onnx_facts.LOOKUPS
    counting = {name for name in schemas() if schemas()[name].outputs[0].types == {"tensor(int64)"}}
    dims_alone = {name for name in counting if inputs_of(name) == ["data"]}
    assert dims_alone - onnx_facts.POSITIONS == onnx_facts.MEASURES
    of_onnx = schemas().keys() & onnx_facts.SETTINGS.keys()
    assert onnx_facts.SETTINGS.keys() - of_onnx == {onnx_facts.CACHED_ATTENTION, "MatMulNBits"}
    for name in of_onnx:
        indices = onnx_facts.SETTINGS[name]
        assert indices <= set(range(len(inputs_of(name)))), f"`SETTINGS` {FACTS}: `{name}` takes {inputs_of(name)}"


def inputs_of(name: str) -> list[str]:
    """The names of the inputs of an operator."""
    return [formal.name for formal in schemas()[name].inputs]

"""What `onnx_facts` says about operators is what they compute: each class is measured, or read from the schemas.

So a change that adds an operator is asked for the facts that it forgot.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx.defs import OpSchema

from jaxport import onnx_facts
from jaxport.importer.registry import KNOWN_OPSETS, Operator, lookup, operators
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

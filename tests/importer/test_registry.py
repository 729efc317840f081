"""Every function's signature is the schema of every version that it claims to serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import Parameter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.defs import OpSchema

from jaxport.errors import InvalidArgument, ModelError, RuleError
from jaxport.importer import op
from jaxport.importer.resolving.registry import KNOWN_OPSETS, Operator, lookup, operators, variant, versions
from jaxport.importer.values.stored import attribute_value
from tests.importer.models import needs_newest_onnx, program

SCHEMAS = onnx.defs.get_all_schemas_with_history()
EXPERIMENTS = {"Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"}
BEYOND_ONNX = {"SimplifiedLayerNormalization", *EXPERIMENTS}
"""What ONNX Runtime computes in ONNX's own domain without a schema there."""
OLDER = {("GroupNormalization", 18), ("MeanVarianceNormalization", 1), ("ThresholdedRelu", 1)}
"""Versions that ONNX withdrew, or had as experiments, and that ONNX Runtime computes."""
VERSIONED = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def claims() -> list[tuple[Operator, OpSchema]]:
    """Each function with each schema version that it serves."""
    found = []
    for schema in SCHEMAS:
        operator = lookup(schema.domain, schema.name, schema.since_version)
        if operator is not None and not schema.deprecated:
            found.append((operator, schema))
    return found


@pytest.mark.parametrize(("operator", "schema"), claims(), ids=lambda x: f"{x.name}-{getattr(x, 'since_version', '')}")
def test_signature_is_the_schema(operator: Operator, schema: OpSchema) -> None:
    variadic = [i.name for i in schema.inputs if i.option == OpSchema.FormalParameterOption.Variadic]
    single = [i for i in schema.inputs if i.option != OpSchema.FormalParameterOption.Variadic]
    if operator.plain:
        assert not set(schema.attributes) - {"consumed_inputs"}, "a renamed operator has no attributes"
        assert "consumed_inputs" not in schema.attributes
        return
    names = [parameter.name for parameter in operator.inputs]
    assert names == [i.name for i in single]
    for parameter, formal in zip(operator.inputs, single, strict=True):
        optional = formal.option == OpSchema.FormalParameterOption.Optional
        assert (parameter.default is not Parameter.empty) == optional, f"`{parameter.name}` is optional in one only"
        assert parameter.default in (None, Parameter.empty)
    assert [operator.variadic.name] * bool(operator.variadic) == variadic if operator.variadic else not variadic
    assert set(operator.attributes) == set(schema.attributes)
    for name, attribute in schema.attributes.items():
        default = operator.attributes[name].default
        if attribute.required:
            assert default is Parameter.empty, f"`{name}` is required"
        elif attribute.default_value.name:
            wanted = attribute_value(ir.serde.deserialize_attribute(attribute.default_value))
            assert default == pytest.approx(wanted, rel=1e-6) if isinstance(wanted, float) else default == wanted
        else:
            assert default is not Parameter.empty, f"`{name}` is optional"


@needs_newest_onnx
def test_no_function_claims_an_operator_that_onnx_lacks() -> None:
    known = {(schema.domain, schema.name) for schema in SCHEMAS}
    assert [
        e.label
        for e in operators()
        if e.domain in VERSIONED and (e.domain, e.name) not in known and e.name not in BEYOND_ONNX
    ] == []


@needs_newest_onnx
def test_every_function_serves_a_version() -> None:
    served = {id(operator) for operator, _ in claims()} | {
        id(e) for e in operators() if e.name in BEYOND_ONNX or (e.name, e.since) in OLDER
    }
    assert [f"{e.label}-{e.since}" for e in operators() if e.domain in VERSIONED and id(e) not in served] == []


@needs_newest_onnx
def test_known_opsets_are_those_of_the_installed_onnx() -> None:
    installed = {domain: onnx.defs.onnx_opset_version() for domain in ("",)}
    assert KNOWN_OPSETS[""] == installed[""]
    for domain in VERSIONED[1:]:
        assert KNOWN_OPSETS[domain] == max(s.since_version for s in SCHEMAS if s.domain == domain)


def test_the_newest_version_in_force_is_found() -> None:
    @op("test.registry", "Twice", since=2)
    def second(x):
        return x

    @op("test.registry", "Twice", since=5, until=6)
    def fifth(x):
        return x

    found = [lookup("test.registry", "Twice", opset) for opset in (1, 2, 4, 5, 6, 7)]
    assert [entry and entry.function for entry in found] == [None, second, second, fifth, fifth, None]
    assert [entry.since for entry in versions("test.registry", "Twice")] == [2, 5]


def test_an_attribute_may_have_a_name_that_python_has_not() -> None:
    @op("test.registry", "Keywords")
    def keywords(x, y=None, *, lambda_=1.0, y_=2.0, z_=3.0):
        return x * lambda_ * y_ * z_

    graph = "g (float[2] x) => (float[2] r) { r = test.registry.Keywords<lambda = 2.0, y = 3.0, z_ = 5.0>(x) }"
    assert program(graph, domains=', "test.registry": 1')(np.ones(2, np.float32)).tolist() == [30, 30]
    assert list(lookup("test.registry", "Keywords", 1).attributes) == ["lambda", "y", "z_"]


def test_functions_that_fail_are_named() -> None:
    @op("test.registry", "Pair")
    def too_few(x):
        return x

    @op("test.registry", "Fails")
    def fails(x):
        raise RuntimeError("no such luck")

    graph = "g (float[2] x) => (float[2] a, float[2] b) { a, b = test.registry.Pair(x) }"
    with pytest.raises(RuleError, match=r"(?s)nothing was computed for `b`.*test\.registry\.Pair.*fewer results"):
        program(graph, domains=', "test.registry": 1')(np.ones(2, np.float32))
    graph = "g (float[2] x) => (float[2] a) { a = test.registry.Fails(x) }"
    with pytest.raises(ModelError, match=r"(?s)Fails that makes `a`.*no such luck"):
        program(graph, domains=', "test.registry": 1')(np.ones(2, np.float32))


def test_a_version_cannot_be_registered_twice() -> None:
    with pytest.raises(InvalidArgument, match=r"`Relu` since version 6 is registered already"):
        op("Relu", since=6)(lambda X: X)


@dataclass(frozen=True, kw_only=True)
class Line:
    slope: float
    shift: float = 1.0
    steps: list[int] = field(default_factory=list)


def test_a_group_of_attributes_is_one_keyword() -> None:
    @op("test.registry", "Line")
    def line(x, *, sign=1.0, line: Line):
        return sign * (x * line.slope + line.shift)

    declared = lookup("test.registry", "Line", 1).attributes
    assert {name: parameter.default for name, parameter in declared.items()} == {
        "sign": 1.0,
        "slope": Parameter.empty,
        "shift": 1.0,
        "steps": [],
    }
    graph = "g (float[1] x) => (float[1] y) { y = test.registry.Line<slope = 3.0, sign = -1.0>(x) }"
    assert program(graph, domains=', "test.registry": 1')(np.ones(1, np.float32)).tolist() == [-4]


def test_a_required_attribute_of_a_group_is_refused_if_it_is_missing() -> None:
    @op("test.registry", "Slope")
    def line(x, *, line: Line):
        return x * line.slope

    graph = "g (float[1] x) => (float[1] y) { y = test.registry.Slope(x) }"
    with pytest.raises(ModelError, match=r"`slope`"):
        program(graph, domains=', "test.registry": 1')


def test_a_variant_has_fewer_inputs_and_other_defaults() -> None:
    @op("test.registry", "Variant")
    @variant("y shift", slope=2.0, ignored={"hint": 0})
    def line(x, y=None, *, line: Line):
        return x * line.slope + line.shift + (0.0 if y is None else y)

    entry = lookup("test.registry", "Variant", 1)
    assert [parameter.name for parameter in entry.inputs] == ["x"]
    assert {name: p.default for name, p in entry.attributes.items()} == {"slope": 2.0, "steps": [], "hint": 0}
    graph = "g (float[1] x) => (float[1] y) { y = test.registry.Variant<hint = 7>(x) }"
    assert program(graph, domains=', "test.registry": 1')(np.ones(1, np.float32)).tolist() == [3]

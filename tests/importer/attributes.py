"""Operators at the rarest values of their attributes, in every version and element type, against two other evaluators.

The table is derived: a row is a case of onnx's backend suite with one node, changed in one way. An attribute gets another
value that its schema allows, or is left out; or all inputs of one type parameter get another type; in each version of the
operator that has what the node has. The expected values are those of onnx's reference evaluator and of ONNX Runtime.

`python -m tests.importer.attributes Reduce` prints the rows of operators whose name matches that differ.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

from jaxport.errors import JaxportError
from jaxport.importer import from_onnx
from jaxport.importer.resolving.registry import lookup
from tests.importer.backend import cases

RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform"}
"""Operators whose values nothing defines."""
TEXTS = {
    "auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "direction": ("forward", "reverse", "bidirectional"),
    "post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"),
}
"""Values of attributes that no description in a schema quotes."""
FROM_ZERO = {"batch_dims", "k", "qk_matmul_output_mode", "sampling_ratio", "start"}
"""Counts and modes that may be zero."""
ELEMENTS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
FLOATS = (-1.5, 0.0, 0.3, 1.0, 2.5)
POSITIVE = {"clip", "scale", "softcap"}
"""Bounds and factors: what a negative one means is left open."""
ABORTS = {"Shape", "Split"}
"""Operators for whose rows the inference of shapes, also that of ONNX Runtime, ends the process."""
TYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64")
TYPES = (*TYPES, "float16", "bfloat16", "float32", "float64")
SEEDS = 3
"""The most cases of an operator that are changed: those with the most different attributes and inputs."""


class Row(NamedTuple):
    """One node, its inputs, and what was changed."""

    change: str
    model: onnx.ModelProto
    inputs: list[Any]

    def __str__(self) -> str:
        node = self.model.graph.node[0]
        return f"{node.op_type}-{self.model.opset_import[0].version} {self.change}"


def seeds() -> dict[tuple[str, str], list[tuple[onnx.ModelProto, list[Any]]]]:
    """The small single nodes of the suite by operator, no two of them with the same attributes, inputs and ranks."""
    found: dict[tuple[str, str], dict[Any, Any]] = defaultdict(dict)
    for case in cases().values():
        model = case.test.model
        if case.kind != "node" or model is None or len(model.graph.node) != 1 or model.graph.initializer:
            continue
        (node,) = model.graph.node
        inputs = next(iter(case.data(model)))[0] if case.test.data_sets else []
        if node.op_type in RANDOM or not all(isinstance(x, np.ndarray) and x.size < 4096 for x in inputs):
            continue
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            continue
        ranks = tuple(x.ndim for x in inputs)
        key = (frozenset(attribute.name for attribute in node.attribute), tuple(map(bool, node.input)), ranks)
        found[node.domain, node.op_type].setdefault(key, (model, inputs))
    return {operator: list(entries.values())[:SEEDS] for operator, entries in sorted(found.items())}


def rows(pattern: str = "") -> Iterator[Row]:
    """All rows of the operators whose name contains the pattern."""
    for (domain, name), entries in seeds().items():
        if not re.search(pattern, name):
            continue
        for seed, inputs in entries:
            for version in _versions(domain, name):
                yield from _at(seed, inputs, domain, version)


@cache
def _versions(domain: str, name: str) -> list[int]:
    """The newest version of each function that computes an operator."""
    history = onnx.defs.get_all_schemas_with_history()
    found = sorted({s.since_version for s in history if (s.domain, s.name) == (domain, name) and not s.deprecated})
    return list({id(lookup(domain, name, version)): version for version in found}.values())


def _at(seed: onnx.ModelProto, inputs: list[Any], domain: str, version: int) -> Iterator[Row]:
    """The rows of one seed in one version of its operator, if it has what the node has."""
    node = seed.graph.node[0]
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    kinds = {name: declared.type.name for name, declared in schema.attributes.items()}
    given = {attribute.name: onnx.AttributeProto.AttributeType.Name(attribute.type) for attribute in node.attribute}
    fits = given.items() <= kinds.items() and len(node.input) <= schema.max_input
    if not fits or len(node.input) < schema.min_input or lookup(domain, node.op_type, version) is None:
        return
    spread = [_spread(x) for x in inputs]
    yield _row("as it is", seed, schema, attributes, inputs)
    yield _row("signs", seed, schema, attributes, spread)
    for name, declared in schema.attributes.items():
        for value in _values(declared, attributes.get(name)):
            changed = {**attributes, name: value}
            if value is None:
                del changed[name]
            yield _row(f"{name}={value}", seed, schema, changed, spread)
    for parameter in schema.type_constraints:
        for dtype in TYPES:
            kind = f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype, dtype) })"
            if kind in parameter.allowed_type_strs:
                converted = _converted(schema, node, inputs, parameter.type_param_str, dtype)
                yield _row(f"{parameter.type_param_str}={dtype}", seed, schema, attributes, converted)


def _values(declared: OpSchema.Attribute, given: Any) -> Iterator[Any]:
    """Other values of an attribute; None if it is to be left out."""
    kind = OpSchema.AttrType
    if given is not None and not declared.required:
        yield None
    match declared.type:
        case kind.INT:
            yield from (value for value in _integers(declared) if value != given)
        case kind.FLOAT:
            values = FLOATS[2:] if declared.name in POSITIVE else FLOATS
            yield from (value for value in values if value != given)
        case kind.STRING:
            quoted = re.findall(r"""['"`]([A-Za-z_]{2,})['"`]""", declared.description)
            texts = {*quoted, *TEXTS.get(declared.name, ())} - {declared.name}
            yield from sorted(text for text in texts if given is None or text != given.decode())
        case kind.INTS if given and not re.match(
            "nodes_|leaf_|tree_|ngram_|pool_", declared.name
        ):  # they index each other
            yield from ([*reversed(given)], [-value for value in given], [1] * len(given), [2] * len(given))
        case kind.FLOATS if given:
            yield from ([*reversed(given)], [-value for value in given])


def _integers(declared: OpSchema.Attribute) -> tuple[int, ...]:
    """Values of an integer: an axis, an element type, a flag, or a number."""
    name, default = declared.name, declared.default_value
    if re.fullmatch("to|.*dtype", name):
        return (*ELEMENTS, TensorProto.INT32)
    if re.search("type|precision", name):
        return ELEMENTS
    if "axis" in name:
        return (-2, -1, 0, 1, 2)
    if name in FROM_ZERO:
        return (0, 1, 2, 3)
    return (0, 1) if default.name and default.i in (0, 1) and name not in ("p", "group") else (1, 2, 3)


def _spread(x: np.ndarray) -> np.ndarray:
    """Floats with every second element negated, so that both signs are seen."""
    if x.dtype.kind != "f" or x.size < 3:
        return x
    signs = np.where(np.arange(x.size) % 2, 1, -1).reshape(x.shape)
    return (x * signs).astype(x.dtype)


def _converted(schema: OpSchema, node: onnx.NodeProto, inputs: list[Any], parameter: str, dtype: str) -> list[Any]:
    """The inputs, those of one type parameter in another type."""
    formals = [schema.inputs[min(i, len(schema.inputs) - 1)] for i, name in enumerate(node.input) if name]
    wanted = np.dtype(getattr(__import__("ml_dtypes"), dtype) if dtype == "bfloat16" else dtype)

    def convert(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind in "OUST":
            return x
        if wanted.kind == "u":
            x = np.abs(x) if x.dtype.kind in "if" else x
        return x.astype(wanted)

    with np.errstate(all="ignore"):
        return [convert(x) if f.type_str == parameter else x for x, f in zip(inputs, formals, strict=False)]


def _row(change: str, seed: onnx.ModelProto, schema: OpSchema, attributes: dict[str, Any], inputs: list[Any]) -> Row:
    (old,) = seed.graph.node
    node = helper.make_node(schema.name, old.input, old.output, domain=schema.domain)
    for name, value in attributes.items():
        kind = onnx.AttributeProto.AttributeType.Value(schema.attributes[name].type.name)
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    names = [name for name in old.input if name]
    infos = [helper.make_tensor_value_info(name, _element(x), x.shape) for name, x in zip(names, inputs, strict=False)]
    outputs = [onnx.ValueInfoProto(name=name) for name in old.output if name]
    graph = helper.make_graph([node], "row", infos, outputs)
    opsets = [helper.make_opsetid(schema.domain, schema.since_version)]
    return Row(change, helper.make_model(graph, ir_version=10, opset_imports=opsets), inputs)


def _element(x: np.ndarray) -> int:
    return TensorProto.STRING if x.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(x.dtype)


def reference(row: Row) -> list[Any]:
    names = [value.name for value in row.model.graph.input]
    return ReferenceEvaluator(row.model).run(None, dict(zip(names, row.inputs, strict=True)))


def runtime(row: Row) -> list[Any]:
    if row.model.graph.node[0].op_type in ABORTS:
        raise RuntimeError("the process would end")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(row.model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), row.inputs, strict=True)))


def imported(row: Row) -> list[Any]:
    with jax.enable_x64(True):
        result = from_onnx(row.model)(*row.inputs)
    return list(result) if isinstance(result, tuple) else [result]


def _attempt(run: Any, row: Row) -> Any:
    try:
        return run(row)
    except Exception as error:  # noqa: BLE001  what other evaluators raise is theirs
        return error


def same(left: list[Any], right: list[Any], tolerance: float | None = None) -> bool:
    return len(left) == len(right) and all(_same(one, other, tolerance) for one, other in zip(left, right, strict=True))


def _same(left: Any, right: Any, tolerance: float | None) -> bool:
    if isinstance(left, list) or isinstance(right, list):
        return isinstance(left, list) and isinstance(right, list) and same(left, right, tolerance)
    left, right = np.asarray(left), np.asarray(right)
    # The reference does not keep to the types of schemas: it has float64 for float32, and float32 for bfloat16.
    kinds = ["f" if x.dtype.kind == "V" else x.dtype.kind for x in (left, right)]
    if left.shape != right.shape or (kinds[0] != kinds[1] and not {*kinds} <= {*"OUST"}):
        return False
    if left.dtype.kind in "OUSTiub":
        return left.tolist() == right.tolist()
    if tolerance is None:
        size = min(left.dtype.itemsize, right.dtype.itemsize)
        tolerance = {16: 1e-5, 8: 1e-5, 4: 2e-4, 2: 2e-2}.get(size, 0.1)
    left, right = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (left, right))
    with np.errstate(all="ignore"):
        scale = max(float(np.max(np.abs(right), initial=0, where=np.isfinite(right))), 1e-6)
    return np.allclose(left, right, rtol=tolerance, atol=tolerance * min(scale, 1), equal_nan=True)


def verdict(row: Row) -> tuple[str, list[Any]]:
    """How the three agree, and what each made of the row."""
    try:
        context = onnx.checker.C.CheckerContext()
        context.ir_version = row.model.ir_version
        context.opset_imports = {entry.domain: entry.version for entry in row.model.opset_import}
        onnx.checker.check_node(row.model.graph.node[0], context)
        if row.model.graph.node[0].op_type not in ABORTS:
            onnx.shape_inference.infer_shapes(row.model, strict_mode=True, check_type=True)
    except Exception:  # noqa: BLE001  a model that onnx itself refuses is no row
        return "invalid", []
    ours, theirs = _attempt(imported, row), _attempt(reference, row)
    # What is given in half precision is no more exact than that, whatever the type of the result.
    halves = any(x.dtype.kind in "fV" and x.dtype.itemsize == 2 for x in row.inputs)
    tolerance = 2e-2 if halves or re.search(r"(type|precision)=10$", row.change) else None
    if isinstance(ours, list) and isinstance(theirs, list) and same(ours, theirs, tolerance):
        return "agrees", []
    others = _attempt(runtime, row)
    made = [ours, theirs, others]
    values = [isinstance(each, list) for each in made]
    if not values[0]:
        kind = "refused" if isinstance(ours, JaxportError) else "fails"
        both = (
            " by all"
            if not any(values)
            else ""
            if all(values[1:]) and same(theirs, others, tolerance)
            else " not by all"
        )
        return kind + both, made
    if values[2] and same(ours, others, tolerance):
        return "reference differs" if values[1] else "runtime agrees", made
    if not any(values[1:]):
        return "nobody else", made
    return "differs" + (" from both" if all(values) and same(theirs, others, tolerance) else ""), made


FINE = ("agrees", "invalid", "nobody else", "reference differs", "refused by all", "fails by all", "runtime agrees")
"""Verdicts that need no reason: another evaluator has the values, or nobody has any."""


def main() -> None:
    """Print what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.importer.attributes", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="which operators: a regular expression")
    parser.add_argument("--show", action="store_true", help="with values")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for row in rows(arguments.pattern):
        what, made = verdict(row)
        counts[what] += 1
        if what not in FINE:
            print(what, "|", row, flush=True)
            for name, value in zip(("  ours", "  reference", "  runtime"), made, strict=True):
                print(name, " ".join(str(value).split())[: 600 if arguments.show else 150], flush=True)
    print(dict(counts))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()

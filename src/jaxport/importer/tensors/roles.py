"""What the values of a model are: which inputs decide shapes, and which initializers are parameters.

This is the only definition of a parameter. An initializer is a parameter, which training changes, a statistic, which is
other state of the model, such as what calls in training change, or a constant. The metadata of a file of ours says it
(`jaxport.roles`); elsewhere the places where it is used do, and the name that its exporter gave it. Neither its size
nor whether a `Constant` node held it decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Set

import numpy as np
import onnx_ir as ir

from jaxport.importer.loading.claims import Role, claims
from jaxport.importer.names import given_name
from jaxport.importer.resolving.graph import Body, BodyFunction, BoundNode
from jaxport.importer.resolving.registry import Operator
from jaxport.importer.tensors.tables import is_table, is_window
from jaxport.importer.values.stored import FOLDED, tensor_value
from jaxport.onnx_facts import (
    ARITHMETIC,
    COMPARISONS,
    CONVOLUTIONS,
    INITIAL_STATES,
    KERNEL_PRODUCTS,
    LOOKUPS,
    MATRIX_PRODUCTS,
    MOVEMENTS,
    NORMALIZATIONS,
    SELECTIONS,
    SETTINGS,
    STATISTICS,
    WEIGHTS,
)

TRAINABLE = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


def static_values(body: Body, needed: Iterable[ir.Value] = ()) -> set[ir.Value]:
    """Return the values that have to be known while the program is traced: those that `Host` inputs depend on.

    Args:
      body: the graph; the result includes its outer values.
      needed: values of the body that have to be known for another reason.
    """
    static = set(needed)
    for node in reversed(body.nodes):
        wanted = [value for value in node.outputs if value in static]
        marks = [_mark(node, index) for index in range(len(node.inputs))]
        for value, mark in zip(node.inputs, marks, strict=True):
            if value is not None and (mark == "host" or (wanted and mark != "shape only")):
                static.add(value)
        for inner in node.bodies():
            # Which output of a body is which result depends on the operator: one needed result needs all outputs.
            static |= static_values(inner, inner.outputs if wanted else ())
            if not static.isdisjoint(inner.inputs):
                static.update(value for value in node.inputs if value is not None)
        if isinstance(node.target, BodyFunction):
            inside = static_values(node.target.body, node.target.body.outputs if wanted else ())
            passed = zip(node.inputs, node.target.body.inputs, strict=False)
            static.update(value for value, formal in passed if value is not None and formal in inside)
    return static


def _mark(node: BoundNode, index: int) -> str | None:
    if isinstance(node.target, Operator):
        return node.input_mark(index)
    # What a function needs is read from its body.
    return "shape only"


_MOVED = SELECTIONS | {"Cast"}
"""Operators whose result has the role of their first input."""

_WHOLE = MOVEMENTS | {"Cast", "Identity"}
"""Operators whose result is all of their first input, once."""

_MASKED = ARITHMETIC - {"Div"} | {"Where"}
"""Operators that take masks."""

_TURNED = MATRIX_PRODUCTS | {"Concat", "Mul"}
"""Operators that compute angles from frequencies and positions."""

_BIASED = MATRIX_PRODUCTS | KERNEL_PRODUCTS | NORMALIZATIONS
"""Operators with weights whose result a bias may be added to."""

OUT_OF_RANGE = 1e4
"""The least magnitude of a mask's "minus infinity": no weight is as large."""


def roles(body: Body, static: Collection[ir.Value], model: ir.Model) -> dict[ir.Value, Role]:
    """Return what each initializer of the model's graph is.

    Those that are not of floating point, or that a shape depends on, are constants, whatever the file says.
    """
    claimed = claims(model)
    may_train = {v for v, tensor in body.initializers.items() if tensor.dtype in TRAINABLE and v not in static}
    told: dict[ir.Value, Role] = {v: claimed[v.name or ""] for v in may_train if v.name in claimed}
    open_ones = [value for value in body.initializers if value in may_train and value not in told]
    used = _by_use(body, open_ones, model.producer_name == PYTORCH) if open_ones else {}
    constant: Role = "constant"
    return {value: told.get(value) or used.get(value) or constant for value in body.initializers}


PYTORCH = "pytorch"
"""The producer whose exporters name initializers as the state dict does."""
_COMPUTED = re.compile(r"/.*/Constant(_\d+)?_output_0")
"""The names of tensors that PyTorch's traced code made, such as a number that it computes with."""
_TRACED = re.compile(r"/.*_output_\d+|\d+")
"""The names that PyTorch's older exporter gives results; in its files each name of a tensor that is not a number
is the author's.
"""
_KIND, _PERSISTENT = (f"pkg.torch.export.graph_signature.InputSpec.{key}" for key in ("kind", "persistent"))
"""The metadata of an initializer in which PyTorch's newer exporter says what it is: a parameter, or a buffer, and
whether the state dict has that."""
_OF_PADDLE = re.compile(r"[a-z]\w*_\d+\.[wb]_\d+")
"""The names that PaddlePaddle gives parameters: `conv2d_0.w_0`."""
_PATH = re.compile(r"(\w+\.)+[A-Za-z_]\w*", re.ASCII)
_OF_TENSORFLOW = "ReadVariableOp"
"""What the name of a tensor has in it that was a variable of TensorFlow."""
_BUFFER = re.compile(r"(?i)(\w+_)?(anchors?|anchor_grid|prior(s|_?box(es)?)?|grid|window|inv_freq)")
"""The names that authors give constants which no layer trains."""


def _scales(body: Body) -> set[ir.Value]:
    """Return what the step of a value that is quantized in each call is multiplied by: the scales of quantized
    weights.
    """
    steps = {node.outputs[1] for node in body.nodes if node.node.op_type == "DynamicQuantizeLinear"}
    products = [node for node in body.nodes if node.node.op_type == "Mul" and not steps.isdisjoint(node.inputs)]
    return {value for node in products for value in node.inputs if value is not None and value not in steps}


def _by_use(body: Body, values: Collection[ir.Value], of_pytorch: bool) -> dict[ir.Value, Role]:
    """Return the roles that follow from the nodes that use initializers, and from names that an exporter did not make
    up.

    PyTorch's newer exporter tells parameters and buffers apart; a buffer that the state dict has is a statistic.
    Elsewhere a tensor is not a parameter if a node uses it as a constant: as an exponent, a scale, a mask, the
    frequencies of sines and cosines, the initial state of a loop, or only to compare with; or if it is the table of
    sines of positions, or a window. One number may be anything, so it is one only where operators have their weights.
    What is not a weight of an operator needs an owner: a table in which rows are looked up, a name that someone gave
    it, or a single axis, as a scale has; the boxes of a detector are a constant.
    """
    uses = _uses(body, {})
    angles = _only_for(body, {"Cos", "Sin"}, _MOVED | _TURNED)
    compared = _only_for(body, COMPARISONS, _MOVED)
    scales = _scales(body)
    results = (value.name or "" for node in body.nodes for value in node.outputs if value is not None)
    is_traced = of_pytorch and any(map(_TRACED.fullmatch, results))
    biases = _biases(body, {v: tuple(tensor.shape.numpy()) for v, tensor in body.initializers.items()})

    def role(value: ir.Value) -> Role:
        tensor, kinds, name = body.initializers[value], uses.get(value, set()), value.name or ""
        kind = value.metadata_props.get(_KIND, "")
        is_path = _PATH.fullmatch(name) is not None and bool(given_name(name))
        is_authors = is_path or (is_traced and given_name(name) == name)
        named = (of_pytorch and is_authors) or _OF_PADDLE.fullmatch(name) is not None or _OF_TENSORFLOW in name
        looked_up = "rows" in kinds
        if "statistic" in kinds:
            return "statistic"
        if value in scales:
            return "constant"
        if kind:
            is_state = value.metadata_props.get(_PERSISTENT) == "True"
            return "parameter" if kind == "PARAMETER" else "statistic" if is_state else "constant"
        if of_pytorch and _COMPUTED.fullmatch(name):
            return "constant"
        if "setting" in kinds or value in compared or (kinds == {"state"} and not named):
            return "constant"
        if kinds == {"affine"} and not given_name(name) and _is_unit(tensor):
            return "constant"
        if value in angles and _is_vector(tensor):
            return "constant"
        if not kinds.isdisjoint({"weight", "affine"}) or (value in biases and tensor.size == 1):
            return "parameter"
        if "mask" in kinds and _is_mask(tensor, may_train=named or looked_up):
            return "constant"
        if tensor.size <= 1:
            return "parameter" if tensor.size and named and FOLDED not in value.metadata_props else "constant"
        array = tensor_value(tensor).data
        if (not is_path and (is_table(array) or is_window(array))) or _BUFFER.fullmatch(given_name(name)):
            return "constant"
        return "parameter" if named or looked_up or given_name(name) or _is_vector(tensor) else "constant"

    return {value: role(value) for value in values}


def _only_for(body: Body, ends: Set[str], between: Set[str]) -> set[ir.Value]:
    """Return the values that only the operators `ends` read, directly or behind operators `between`."""
    others = {*body.outputs}
    used: set[ir.Value] = set()
    for node in reversed(body.nodes):
        operator = node.node.op_type
        leads = operator in ends or (
            operator in between and used.issuperset(node.outputs) and others.isdisjoint(node.outputs)
        )
        called = node.target.body if isinstance(node.target, BodyFunction) else None
        inside = _only_for(called, ends, between) if called is not None else set()
        for index, value in enumerate(node.inputs):
            if value is not None:
                (used if leads or (called is not None and called.inputs[index] in inside) else others).add(value)
        for inner in node.bodies():
            others.update(inner.captured)
    return used - others


def _is_unit(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is the scale 1 or the bias 0 with which exporters write normalizations of groups as others."""
    array = tensor_value(tensor).data
    return bool((array == 0).all() or (array == 1).all())


def _is_vector(tensor: ir.TensorProtocol) -> bool:
    return max(tensor.shape.numpy(), default=1) == tensor.size


def _uses(body: Body, known: dict[Body, dict[ir.Value, set[str]]]) -> dict[ir.Value, set[str]]:
    """Return the kinds of places at which values are used: behind movements, in functions, and in the bodies of loops.

    `known` has the bodies that were looked at before: a function may be called often.
    """
    if body in known:
        return known[body]
    uses: dict[ir.Value, set[str]] = {}
    for node in reversed(body.nodes):
        operator = node.node.op_type
        called = node.target.body if isinstance(node.target, BodyFunction) else None
        inner_uses = {inner: _uses(inner, known) for inner in [*node.bodies(), *([called] if called else [])]}
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            kinds = uses.setdefault(value, set())
            if index == 0 and operator in _MOVED:
                behind = uses.get(node.outputs[0], set()) if node.outputs[0] is not None else set()
                kinds |= behind if operator in _WHOLE else behind - {"weight"}
                if operator in LOOKUPS and node.inputs[1] not in body.initializers:
                    kinds.add("rows")
            elif called is not None:
                kinds |= inner_uses[called].get(called.inputs[index], set()) if index < len(called.inputs) else set()
            else:
                kinds.add(_place(node, index))
        for inner in node.bodies():
            for value in inner.captured:
                uses.setdefault(value, set()).update(inner_uses[inner].get(value, ()))
    known[body] = uses
    return uses


def _place(node: BoundNode, index: int) -> str:
    """Return the kind of an input of an operator."""
    operator = node.node.op_type
    if operator == "Loop" and index > 1:
        return "state"
    if operator == "Scan":
        scanned = node.attributes.get("num_scan_inputs")
        return "state" if index < len(node.inputs) - (scanned if isinstance(scanned, int) else 0) else "other"
    if operator == "InstanceNormalization" and index > 0:
        return "affine"
    tables = {"statistic": STATISTICS, "setting": SETTINGS, "state": INITIAL_STATES, "weight": WEIGHTS}
    for kind, table in tables.items():
        if index in table.get(operator, ()):
            return kind
    return "mask" if operator in _MASKED else "other"


Shapes = dict[ir.Value, tuple[int, ...] | None]


def _biases(body: Body, shapes: Shapes) -> set[ir.Value]:
    """Return the values that are added to the only channel of a product with weights.

    `shapes` has the shapes of initializers, and of the inputs that have them in a call of a function.
    """
    made_by = {value: node for node in body.nodes for value in node.outputs}
    found: set[ir.Value] = set()
    for node in body.nodes:
        for inner in node.bodies():
            found |= _biases(inner, shapes)
        if isinstance(node.target, BodyFunction):
            formals = dict(zip(node.target.body.inputs, node.inputs, strict=False))
            inside = _biases(node.target.body, {formal: _shape(v, shapes, made_by) for formal, v in formals.items()})
            found |= {value for formal, value in formals.items() if formal in inside and value in shapes}
        if node.node.op_type != "Add" or len(node.inputs) != 2:
            continue
        for added, other in (node.inputs, node.inputs[::-1]):
            maker = made_by.get(other)
            while maker is not None and maker.node.op_type in _MOVED:
                maker = made_by.get(maker.inputs[0])
            if added in shapes and maker is not None and maker.node.op_type in _BIASED:
                weights = [_shape(value, shapes, made_by) for value in maker.inputs]
                if any(shape is not None and 1 in shape for shape in weights):
                    found.add(added)
    return found


def _shape(value: ir.Value | None, shapes: Shapes, made_by: dict[ir.Value | None, BoundNode]) -> tuple[int, ...] | None:
    """Return the shape of an initializer, or of the one that a value is a movement of."""
    while value is not None and value not in shapes:
        maker = made_by.get(value)
        value = maker.inputs[0] if maker is not None and maker.node.op_type in _MOVED else None
    return None if value is None else shapes[value]


def _is_mask(tensor: ir.TensorProtocol, may_train: bool) -> bool:
    """Whether a tensor excludes elements by values that no weight has.

    Where it may be a parameter, whose row of padding has such a value, all others have to be equal.
    """
    values = tensor_value(tensor).data.astype(np.float64)
    within = values[np.abs(values) < OUT_OF_RANGE]
    return within.size < values.size and (not may_train or np.unique(within).size <= 1)


def kernels(body: Body, candidates: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the values that are only kernels of two-dimensional convolutions, and may be kept in any layout.

    Nodes may read their shapes and types, too: PyTorch's exporter writes zeros of the type of the kernel for no bias.
    """
    uses: dict[ir.Value, bool] = {value: len(body.initializers[value].shape) == 4 for value in candidates}
    for value in body.outputs:
        uses[value] = False
    for node in body.nodes:
        for index, value in enumerate(node.inputs):
            if value in uses:
                convolves = isinstance(node.target, Operator) and node.target.name in CONVOLUTIONS
                uses[value] &= (convolves and index == 1) or node.input_mark(index) == "shape only"
        for inner in node.bodies():
            uses |= dict.fromkeys(inner.captured, False)
    return {value for value, only in uses.items() if only}

"""What each reduced precision needs, and how a float32 model is converted to one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from jaxport.errors import ExportError, InvalidArgument
from jaxport.export import passes as graph_passes
from jaxport.export.calibration import Calibration, ranges_of, read_calibration
from jaxport.export.passes.repeated import repeated
from jaxport.export.passes.tidy import tidy
from jaxport.export.precision.calibrated import calibrated_int8
from jaxport.export.precision.dense import Int8, NodeFilter, dynamic_int8, everywhere, weights_second
from jaxport.export.precision.half import half
from jaxport.export.precision.int4 import block_int4
from jaxport.export.precision.int4_levels import Int4
from jaxport.export.precision.int4_runtime import PACKED_TABLES_SINCE, ROUNDING
from jaxport.export.precision.names import FLOAT32, PRECISIONS, Border, Chosen, Named, Precision, named, refuse
from jaxport.graph.editing import subgraphs
from jaxport.onnx_facts import RUNTIME_DOMAIN, releases

if TYPE_CHECKING:
    from jaxport.export.delivery.targets import Target
    from jaxport.export.exported import Exported
    from jaxport.export.ports import Port

BLOCKS_OPSET = 21
"""The first opset with 4-bit integers and blockwise scales."""


@dataclass(frozen=True)
class Choice:
    """The requested precision and its options.

    Attributes:
      precision: the precision; for several queries, one that joins all names and has the largest tolerance.
      calibration: the batches on which the ranges of "int8" are observed, and how.
      border: whether inputs and outputs are converted to 16 bits as well.
      queries: pairs of a query of blocks and the precision of the blocks that it selects, None for float32; if two
        overlap, the later one applies. Empty if `precision` is that of the whole model.
    """

    precision: Precision
    calibration: Calibration | None = None
    border: bool = False
    queries: tuple[tuple[str, Precision | None], ...] = ()


def validated(
    precision: Named | Mapping[str, Chosen] | None,
    calibration: Calibration | Iterable[object] | None,
    io: Border | None,
    target: Target,
    opset: int,
    double: bool,
) -> Choice | None:
    """Check the arguments and return the requested precision, or None for that of the function.

    Raises:
      InvalidArgument: the name is unknown, the arguments contradict each other, or the target cannot run the precision.
    """
    if precision is None:
        for name, value in (("calibration", calibration), ("io", None if io == FLOAT32 else io)):
            if value is not None:
                refuse(
                    f"`{name}` is given without a precision",
                    f"to_onnx({name}=...)",
                    "give `precision`, or leave it out",
                )
        return None
    if isinstance(precision, Mapping):
        return _by_queries(precision, calibration, io, target, opset, double)
    chosen = named(precision)
    if double:
        refuse("the model is in double precision", f"to_onnx(precision={precision!r})", "leave one of the two out")
    if io not in (None, "float32", precision) or (io == precision and chosen.half is None):
        allowed = f'"float32" or "{precision}"' if chosen.half else '"float32"'
        refuse(f"inputs and outputs cannot be {io!r}", f"to_onnx(precision={precision!r}, io=...)", allowed)
    if chosen.calibrated != (calibration is not None):
        problem = "is given" if calibration is not None else "is missing"
        instead = 'it applies only to precision="int8"' if calibration is not None else (
            'pass a list of batches, each the arguments of the function; "int8-dynamic" needs none'
        )  # fmt: skip
        refuse(f"`calibration` {problem}", f"to_onnx(precision={precision!r})", instead)
    _check_target(chosen, target, opset)
    return Choice(chosen, None if calibration is None else read_calibration(calibration), border=io == precision)


def check_border(exported: Exported) -> None:
    """Refuse `io="float32"` without a precision if it changes nothing.

    Raises:
      InvalidArgument: no input or output of the function is a float of 16 bits.
    """
    if all(port.declared != np.float32 for port in (*exported.inputs, *exported.outputs)):
        refuse(
            "no input or output has floats of 16 bits",
            'to_onnx(io="float32")',
            "leave `io` out, or give `precision`, whose inputs and outputs stay float32",
        )


def _by_queries(
    precision: Mapping[str, Chosen],
    calibration: Calibration | Iterable[object] | None,
    io: Border | None,
    target: Target,
    opset: int,
    double: bool,
) -> Choice:
    """Check precisions by query; a 16-bit precision applies to the whole model only."""
    where = "to_onnx(precision={...})"
    allowed = ", ".join(repr(name) for name in (*PRECISIONS, FLOAT32) if name == FLOAT32 or not PRECISIONS[name].half)
    queries: list[tuple[str, Precision | None]] = []
    for query, name in precision.items():
        single = None if name == FLOAT32 else named(name)
        if single is not None and single.half is not None:
            refuse(
                f"`{query}` cannot have the precision {name!r} on its own",
                where,
                f"{allowed}, a `jaxport.Int4` or a `jaxport.Int8`",
            )
        queries.append((query, single))
    used: list[Named] = list(dict.fromkeys(name for name in precision.values() if name != FLOAT32))
    if not used:
        refuse("no query asks for fewer bits than float32", where, "leave `precision` out")
    parts: list[Choice] = []
    for name in used:
        part = validated(name, calibration if named(name).calibrated else None, io, target, opset, double)
        assert part is not None
        parts.append(part)
    if calibration is not None and not any(part.precision.calibrated for part in parts):
        validated(used[0], calibration, io, target, opset, double)  # which refuses it
    precisions = [part.precision for part in parts]
    coarsest = max(precisions, key=lambda one: one.tolerance)
    form = coarsest.form if all(isinstance(one.form, Int4) for one in precisions) else None
    both = replace(coarsest, name=" and ".join(one.name for one in precisions), form=form)
    read = next((part.calibration for part in parts if part.calibration is not None), None)
    return Choice(both, read, queries=tuple(queries))


def _check_target(chosen: Precision, target: Target, opset: int) -> None:
    """Refuse a precision that a target cannot run, before any work."""
    blocks = isinstance(chosen.form, Int4) and not target.has_domain(RUNTIME_DOMAIN)
    if chosen.dtype in target.without_dtypes and (not isinstance(chosen.form, Int4) or blocks):
        refuse(
            f'the target "{target.name}" has no {chosen.dtype}',
            f"to_onnx(precision={chosen.name!r}, target=...)",
            "choose another precision, or another target",
        )
    if blocks and opset < BLOCKS_OPSET:
        refuse(
            f'the target "{target.name}" at opset {opset} has no integers of 4 bits',
            f"to_onnx(precision={chosen.name!r}, target=...)",
            f'"web", "onnxruntime", or opset {BLOCKS_OPSET} or newer of another target',
        )


def applied(exported: Exported, choice: Choice, target: Target) -> Exported:
    """Convert a float32 model to another precision; its graph is changed in place.

    Raises:
      ExportError: nothing in the model can be converted.
      InvalidArgument: the calibration batches do not fit the model.
    """
    model, precision = exported.model, choice.precision
    before = _weights(model)
    if choice.precision.half is None:
        weights_second(model, convolutions=not choice.precision.calibrated)
    reports = [(name, run(model)) for name, run in _rewritings(exported, choice, target)]
    report = "; ".join(text for _, text in reports)
    cleaned: tuple[graph_passes.Pass, ...] = (graph_passes.layout, tidy, repeated, common.RemoveUnusedNodesPass())
    graph_passes.run(model, cleaned)
    after = _weights(model)
    if before == after and not choice.border:
        raise ExportError(
            f'no part of `{model.graph.name}` can be converted to the precision "{precision.name}"',
            why=report,
            instead="leave `precision` out; weights that are inputs or constants of ONNX functions keep theirs",
        )
    model.metadata_props["jaxport.precision"] = precision.name
    text = f"{report}; weights: {before:,} bytes became {after:,}"
    if isinstance(precision.form, Int4):
        precision = replace(precision, tolerance=_of_weights(model, precision.tolerance))
    border = precision.half if choice.border else None
    ports = functools.partial(_half_ports, dtype=border) if border is not None else tuple
    return replace(
        exported,
        precision=precision,
        inputs=tuple(ports(exported.inputs)),
        outputs=tuple(ports(exported.outputs)),
        pass_reports=(*exported.pass_reports, graph_passes.PassReport(" and ".join(name for name, _ in reports), text)),
    )


Rewriting = tuple[str, Callable[[ir.Model], str]]


def _rewritings(exported: Exported, choice: Choice, target: Target) -> list[Rewriting]:
    """Return the graph passes for a choice, with their names, in the order of the queries."""
    if not choice.queries:
        return [_rewriting(exported, choice.precision, choice, target, everywhere)]
    chosen = _chosen(exported, choice.queries)
    used = dict.fromkeys(precision for _, precision in choice.queries if precision is not None)
    # Nodes that one pass inserts are not in `chosen`, so the next pass leaves them alone.
    return [
        _rewriting(exported, precision, choice, target, lambda node, wanted=precision: chosen.get(node) == wanted)
        for precision in used
    ]


def _chosen(exported: Exported, queries: Iterable[tuple[str, Precision | None]]) -> dict[ir.Node, Precision | None]:
    """Return the precision for each node of the main graph and its subgraphs that a query selects.

    Args:
      exported: the model, with what was traced.
      queries: pairs of an XPath expression, or a path, and the precision of the blocks that it selects and everything
        inside them. If two overlap, the later one applies.

    Raises:
      QueryError: a query is malformed, or names something that does not exist.
      InvalidArgument: a query selects no block.
    """
    from jaxport.mox.expressions import Mox

    mox = Mox(exported.traced, name=exported.model.graph.name or "")
    hits: list[tuple[frozenset[str], Precision | None]] = []
    for query, choice in queries:
        blocks = [node.block for node in mox.select(query).nodes if node.block is not None]
        if not blocks:
            raise InvalidArgument(
                f"`{query}` matches no module",
                where="`to_onnx(precision=...)`",
                instead="`print(jaxport.make_mox(fn)(*inputs))` shows what there is",
            )
        hits.append((frozenset(f"{block.path or block.name}: {block.target}" for block in blocks), choice))
    choices: dict[ir.Node, Precision | None] = {}
    for node in exported.model.graph.all_nodes():
        around = set(node.metadata_props.get("namespace", "").split("/"))
        for blocks_hit, choice in hits:
            if around & blocks_hit:
                choices[node] = choice
    return choices


def _rewriting(
    exported: Exported, precision: Precision, choice: Choice, target: Target, where: NodeFilter
) -> Rewriting:
    match precision.form:
        case Int4() as form:
            contrib = target.has_domain(RUNTIME_DOMAIN)
            is_recent = contrib and releases.is_at_least(target.release, PACKED_TABLES_SINCE)
            run = functools.partial(block_int4, contrib=contrib, packed_tables=is_recent, form=form, where=where)
            return "block_int4", run
        case Int8(dynamic=True) as form:
            return "dynamic_int8", functools.partial(dynamic_int8, form=form, where=where)
        case Int8() as form:
            assert choice.calibration is not None
            ranges = ranges_of(exported, choice.calibration, where)
            return "calibrated_int8", functools.partial(calibrated_int8, ranges=ranges, form=form, where=where)
    assert precision.half is not None
    return "half", functools.partial(half, dtype=precision.half, border=choice.border)


MARGIN = 5.0
"""The ratio of the largest tolerated error, relative to the largest element, to the root mean square error. Of linear
outputs it is below 2, because their largest element is three times their root mean square; of saturated ones, as after
a tanh, 4.5."""
OPERAND = 0.01
"""The error of a product with 4-bit weights if the runtime rounds the other operand to 8 bits, as ONNX Runtime may."""


def _of_weights(model: ir.Model, most: float) -> float:
    """Return the tolerance that the rounding of weights to 4 bits justifies, at most `most`; `most` if no weight is
    rounded.

    The errors of consecutive products are independent, so their squares add up along a path. A loop may run any number
    of times, so a model with 4-bit weights in a loop has the largest tolerance.
    """
    if any(ROUNDING in node.metadata_props for graph in subgraphs(model.graph) for node in graph):
        return most
    squares: dict[ir.Value, float] = {}
    for node in model.graph:
        before = max((squares.get(value, 0.0) for value in node.inputs if value is not None), default=0.0)
        rounding = node.metadata_props.get(ROUNDING)
        own = 0.0 if rounding is None else float(rounding) ** 2 + OPERAND**2
        squares.update(dict.fromkeys(node.outputs, before + own))
    largest = max((squares.get(value, 0.0) for value in model.graph.outputs), default=0.0)
    return min(most, MARGIN * largest**0.5) if largest else most


def _weights(model: ir.Model) -> int:
    """Return the number of bytes of all weights."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def _half_ports(ports: Iterable[Port], dtype: ir.DataType) -> list[Port]:
    """Return ports with 16 bits in place of float32; weights that are inputs keep their dtype."""
    return [
        port if port.weight or port.model_dtype != np.float32 else replace(port, declared=dtype.numpy())
        for port in ports
    ]

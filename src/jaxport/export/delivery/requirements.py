"""What a model needs of a runtime, read from the finished graph."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.export.delivery import minimal_opset
from jaxport.graph.editing import dims_of, graphs, operator_name
from jaxport.onnx_facts import CONTROL_FLOW, ROW_NORMALIZATIONS, releases, schema
from jaxport.onnx_facts.kernels import MISSING, RELEASES, VERSIONS
from jaxport.printable import Shown, printable

SLOW_ON_CPUS = ("SkipLayerNormFusion",)
"""Optimizers of ONNX Runtime whose operators are slower on CPUs than those that they replace: normalizations of rows.
"""
CHECKS = "jaxport.checks"
"""The key of the model's metadata under which the number of checks is that the export left out."""
SHOWN = 3
"""The number of reasons shown for why older releases are not enough."""


@dataclass(frozen=True, repr=False)
class Requirements(Shown):
    """What a model needs of a runtime; its text is a few lines.

    >>> import jax.numpy as jnp, jaxport
    >>> print(jaxport.to_onnx(lambda x: jnp.tanh(x) * 2, [("B", 3)], target="portable").requirements)
    opset 18, IR 8, ONNX Runtime ≥ 1.19, no control flow, 2 types of operators
      dtypes       float32
      open dims    B

    Attributes:
      opset: the opset of the default domain.
      opset_for: the operators that mean something else, or nothing, in the opset before it; they are in the metadata of
        the file, too.
      ir_version: the IR version of the file.
      runtime: the oldest tested release of ONNX Runtime that has all kernels; None if none has. Kernels that are not
        known for sure count as lacking. Releases older than the oldest tested one may work.
      newer: why the release before that is not enough; if `runtime` is None, what the newest lacks.
      unasked: the operators whose kernels were not tested in any release: they count as present.
      domains: the operator sets other than the default one.
      operators: the types of operators with their counts, the most frequent first.
      dtypes: the dtypes of all values, by name.
      dims: the symbolic dims of the inputs.
      session: arguments of `onnxruntime.InferenceSession` that make the model faster on CPUs; `exported.run` uses them.
      unknown: the number of values with a dim, or a shape, that is only known at run time.
      checks: the number of checks that the export left out: where they raise in JAX, the model returns values.
      off_gpu: the operators with their dtypes that onnxruntime-web leaves to the CPU where it runs the model by WebGPU;
        the text has them if the target is one for browsers.
      for_browsers: whether the target is one for browsers.
    """

    opset: int
    opset_for: tuple[str, ...]
    ir_version: int
    runtime: str | None
    newer: tuple[str, ...]
    unasked: tuple[str, ...]
    domains: Mapping[str, int]
    operators: Mapping[str, int]
    dtypes: tuple[str, ...]
    dims: tuple[str, ...]
    session: Mapping[str, Sequence[str]]
    unknown: int
    checks: int = 0
    off_gpu: tuple[str, ...] = ()
    for_browsers: bool = False

    @classmethod
    def of(cls, model: ir.Model) -> Requirements:
        """Return what a model needs."""
        nodes = [node for graph in graphs(model) for node in graph]
        own = {(function.domain, function.name) for function in model.functions.values()}
        operators = Counter(operator_name(node) for node in nodes if (node.domain, node.op_type) not in own)
        opset = model.opset_imports[""]
        runtime, newer = oldest_runtime(nodes, opset)
        values = [*model.graph.inputs, *(value for node in nodes for value in node.outputs)]
        foreign = {domain for domain in model.opset_imports if domain} - {domain for domain, _ in own}
        return cls(
            opset=opset,
            opset_for=minimal_opset.requiring(model),
            ir_version=int(model.ir_version or 0),
            runtime=runtime,
            newer=newer,
            unasked=tuple(sorted({n.op_type for n in nodes if not n.domain} - MISSING.keys() - releases.ANY_DTYPE)),
            domains={domain: model.opset_imports[domain] for domain in sorted(foreign)},
            operators=dict(operators.most_common()),
            dtypes=tuple(sorted(dtypes_of([*values, *model.graph.initializers.values()]))),
            dims=tuple(dict.fromkeys(d for v in model.graph.inputs for d in dims_of(v) or () if isinstance(d, str))),
            session={} if ROW_NORMALIZATIONS.isdisjoint(operators) else {"disabled_optimizers": list(SLOW_ON_CPUS)},
            unknown=sum(_is_unknown(value) for value in values),
            off_gpu=tuple(dict.fromkeys(f"{node.op_type} of {kinds}" for node, kinds in off_gpu(model))),
            for_browsers=model.metadata_props.get("jaxport.target", "").startswith("web"),
            checks=int(checks) if (checks := model.metadata_props.get(CHECKS, "")).isdecimal() else 0,
        )

    @property
    def control_flow(self) -> tuple[str, ...]:
        """The operators with subgraphs that the model uses."""
        return tuple(name for name in sorted(CONTROL_FLOW) if name in self.operators)

    def text(self) -> str:
        """Return the opset and the runtime in one line, and below it what else there is."""
        flow = ", ".join(f"{self.operators[name]} {name}" for name in self.control_flow)
        runtime = f"ONNX Runtime ≥ {self.runtime}" if self.runtime else "no known release of ONNX Runtime"
        count = len(self.operators)
        types = "1 type of operator" if count == 1 else f"{count} types of operators"
        rows = {
            "dtypes": ", ".join(self.dtypes),
            "open dims": ", ".join(self.dims),
            "unknown": f"{self.unknown} values have a dim that is known at run time only" if self.unknown else "",
            "checks": f"{self.checks} left out: inputs for which they raise in JAX are the caller's to avoid"
            * bool(self.checks),
            "domains": ", ".join(f"{domain} {version}" for domain, version in self.domains.items()),
            "opset for": _shortened(self.opset_for),
            "newer for" if self.runtime else "lacking": _shortened(self.newer),
            "not asked": ", ".join(self.unasked),
            "off WebGPU": _shortened(self.off_gpu) if self.for_browsers else "",
            "on CPUs": ", ".join(f"InferenceSession(..., {name}={value})" for name, value in self.session.items()),
        }
        head = f"opset {self.opset}, IR {self.ir_version}, {runtime}, {flow or 'no control flow'}, {types}"
        return "\n".join(map(printable, [head, *(f"  {label:<11}  {text}" for label, text in rows.items() if text)]))


def oldest_runtime(nodes: Sequence[ir.Node], opset: int) -> tuple[str | None, tuple[str, ...]]:
    """Return the oldest release from which on all releases run all nodes, and what the release before that lacks."""
    newer: tuple[str, ...] = ()
    oldest = None
    for release in reversed(RELEASES):
        lacks = tuple(sorted(set(lacking(nodes, opset, release))))
        if RELEASES[release] < opset:
            lacks = (f"opset {opset}", *lacks)
        if lacks:
            return oldest, lacks
        oldest = release
    return oldest, newer


def lacking(nodes: Iterable[ir.Node], opset: int, release: str) -> Iterator[str]:
    """Yield the kernels that nodes need and a release lacks: each is an operator of a dtype, or of an opset."""
    for node in nodes:
        if (kernel := lack(node, opset, release)) is not None:
            yield f"{node.op_type} of {kernel}"


def lack(node: ir.Node, opset: int, release: str, web: bool = False) -> str | None:
    """Return the dtype or the opset of the kernel that a release lacks for one node, or None.

    If `web` is set, so that of onnxruntime-web.
    """
    if node.domain == "com.microsoft":
        return None
    facts = schema.find(node.domain, node.op_type, opset)
    if web and facts is not None and not node.domain and (dtypes := unregistered(node, facts, web)) is not None:
        return dtypes
    if node.op_type not in MISSING:
        return None if facts is None else unregistered(node, facts)
    if facts is None:
        return f"opset {opset}, where it does not exist"
    if facts.since in _unserved(node.op_type, release):
        return f"opset {facts.since}"
    missing = releases.missing(node.op_type, release)
    dtype = computed_in(node, facts) if missing else None
    if missing and (dtype is None or dtype in missing):
        return "an unknown dtype" if dtype is None else dtype.name
    return None


def unregistered(node: ir.Node, facts: schema.Schema, web: bool = False) -> str | None:
    """Return the dtypes of a node if no kernel takes them, for an operator that no rule emits or on the web; else
    None.
    """
    dtypes = _by_parameter(node, facts)
    return ", ".join(dtypes.values()) if releases.lacks_kernel(node.op_type, facts.since, dtypes, web) else None


def _by_parameter(node: ir.Node, facts: schema.Schema) -> dict[str, str]:
    """Return the names of the dtypes that a node gives the type parameters of its operator."""
    dtypes: dict[str, str] = {}
    inputs = ((value, facts.input(index)) for index, value in enumerate(node.inputs))
    for value, formal in (*inputs, *((value, facts.output(index)) for index, value in enumerate(node.outputs))):
        if value is not None and formal is not None and value.dtype is not None:
            dtypes.setdefault(formal.type, "string" if value.dtype is ir.DataType.STRING else value.dtype.numpy().name)
    return dtypes


def off_gpu(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    """Yield the nodes that WebGPU leaves to the CPU, and their dtypes; sizes are computed there in any case."""
    opset, sizes = model.opset_imports[""], set[ir.Value]()
    for node in (node for graph in graphs(model) for node in graph if not node.domain):
        given = [value for value in node.inputs if value is not None]
        own = node.op_type in ("Shape", "Size") or all(x in sizes or x.is_initializer() for x in given)
        if own and dtypes_of(node.outputs) <= {"int64", "int32", "bool"}:
            sizes.update(node.outputs)
            continue
        facts = schema.find("", node.op_type, opset)
        dtypes = {} if facts is None else _by_parameter(node, facts)
        if facts is None or releases.falls_back(node.op_type, facts.since, dtypes):
            yield node, ", ".join(dict.fromkeys(dtypes.values()))


def computed_in(node: ir.Node, facts: schema.Schema) -> np.dtype | None:
    """Return the dtype that decides which kernel a node needs, or None if it is unknown."""
    dtypes: dict[str, ir.DataType | None] = {}
    for index, value in enumerate(node.inputs):
        formal = facts.input(index)
        if value is not None and formal is not None:
            dtypes.setdefault(formal.type, value.dtype)
    computed = facts.outputs[0].type
    dtype = dtypes.get(computed if computed in dtypes else next(iter(dtypes), ""))
    return None if dtype is None or dtype is ir.DataType.STRING else dtype.numpy()


@functools.lru_cache(maxsize=2048)
def _unserved(op_type: str, release: str) -> frozenset[int]:
    """Return the versions of an operator for which a release has no kernel."""
    releases = list(RELEASES)
    entries = (entry.partition("<") for entry in VERSIONS.get(op_type, "").split())
    return frozenset(
        int(version) for version, _, since in entries if not since or releases.index(release) < releases.index(since)
    )


def dtypes_of(values: Iterable[ir.Value]) -> set[str]:
    """Return the names of the dtypes of values."""
    dtypes = {value.dtype for value in values if value.dtype is not None}
    return {"string" if dtype is ir.DataType.STRING else dtype.numpy().name for dtype in dtypes}


def _is_unknown(value: ir.Value) -> bool:
    dims = dims_of(value)
    return dims is None or any(isinstance(dim, ir.SymbolicDim) for dim in dims)


def _shortened(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more

"""Targets: what a model may consist of where it will run, and the refusal of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
import onnx_ir.passes.common as common

from jaxport.errors import InvalidArgument, Refusal
from jaxport.export.delivery import opsets, requirements, unsigned
from jaxport.export.passes import Pass
from jaxport.export.passes.inlining import inlining
from jaxport.export.passes.openvino import shifts, spectra, untied, whole_blocks
from jaxport.export.passes.tied import tied
from jaxport.export.passes.webgpu import padded_channels, resized_last, without_or, wrong
from jaxport.graph.editing import dims_of, graphs, operator_name
from jaxport.onnx_facts import EDGE_OPERATORS, releases, schema
from jaxport.onnx_facts.kernels import RELEASES, WEB_RELEASE

TargetName = Literal["onnx", "portable", "web", "webgpu", "openvino", "onnxruntime", "genai", "edge"]
"""The names of `TARGETS`."""


@dataclass(frozen=True)
class Target:
    """Where a model will run.

    To define a target of your own, change fields of one in `jaxport.export.delivery.targets.TARGETS`, or make one from
    scratch:

    >>> import jax.numpy as jnp, jaxport
    >>> device = jaxport.Target("our device", opset=17, newest_opset=17, without_operators=frozenset({"Tanh"}))
    >>> jaxport.to_onnx(jnp.tanh, [("B",)], target=device)
    Traceback (most recent call last):
    jaxport.Unsupported: 1 operator of `tanh` cannot run on the target "our device"; the target "openvino" can run it
      Tanh...the target has no Tanh

    Attributes:
      name: the name in messages and in the metadata of models.
      opset: the default opset.
      newest_opset: the newest opset that may be requested; None for any.
      ir_version: the newest IR version; None for that of the opset.
      runtime: the oldest release of ONNX Runtime that has to run the model; None if it need not run in ONNX Runtime.
      domains: the supported operator sets besides ONNX's own; None if any may be used.
      operators: the names of the operators that the target has; None if it has all but those that it lacks.
      without_operators: the names of the operators that the target lacks.
      without_dtypes: the names of the dtypes that no value may have.
      for_indices: the names of the dtypes that only indices, axes and shapes may have.
      static: whether every size has to be a number.
      passes: graph passes that run after all others.
      decoder: whether a model has to be an encoder, or a step of a decoder with the inputs of `jaxport.decoder_inputs`
        or `jaxport.encoder_decoder_inputs`.
      caches: whether attention to a key-value cache becomes ONNX Runtime's GroupQueryAttention.
      experts: whether a mixture of experts becomes ONNX Runtime's MoE.
      signs_uint32: whether the runtime treats uint32 as signed, which makes comparisons and conversions of large values
        wrong.
      web: whether the model has to run in onnxruntime-web too, in each of its builds.
      gpu: whether WebGPU has to compute all of it in a browser but sizes, so that nothing falls back to the CPU.
    """

    name: str
    opset: int = opsets.DEFAULT
    newest_opset: int | None = None
    ir_version: int | None = None
    runtime: str | None = None
    domains: frozenset[str] | None = None
    operators: frozenset[str] | None = None
    without_operators: frozenset[str] = frozenset()
    without_dtypes: frozenset[str] = frozenset()
    for_indices: frozenset[str] = frozenset()
    static: bool = False
    passes: tuple[Pass, ...] = ()
    decoder: bool = False
    caches: bool = False
    experts: bool = False
    signs_uint32: bool = False
    web: bool = False
    gpu: bool = False

    def __post_init__(self) -> None:
        if self.runtime is not None and self.runtime not in RELEASES:
            raise InvalidArgument(
                f"ONNX Runtime {self.runtime} is not a known release",
                where="`Target(runtime=...)`",
                instead=f"one of {', '.join(RELEASES)}",
            )
        if self.newest_opset is not None and self.opset > self.newest_opset:
            raise InvalidArgument(
                f"opset {self.opset} is newer than the newest, {self.newest_opset}",
                where=f'the target "{self.name}"',
                instead="give an `opset` of at most `newest_opset`",
            )

    @property
    def release(self) -> str:
        """The oldest release of ONNX Runtime that dtypes are chosen for."""
        return self.runtime or releases.OLDEST

    @property
    def build(self) -> releases.Build:
        """The build of onnxruntime-web that has to have the kernels."""
        return "webgpu" if self.gpu else "wasm" if self.web else ""

    def has_domain(self, domain: str) -> bool:
        """Whether an operator set besides ONNX's own is certain to be supported."""
        return self.domains is not None and domain in self.domains


#: Operators that tell NaN and infinities from numbers, and how to do without.
NAN_TESTS, IGNORING = ("IsNaN", "IsInf"), '; `nonfinite="ignore"` leaves out what is for NaN alone'
_MICROSOFT = frozenset({"com.microsoft"})
_NARROW = frozenset(
    """bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn int2
    uint2""".split()
)

#: The targets that have a name, the narrowest first.
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "edge",
            opset=13,
            newest_opset=18,
            runtime="1.19",
            domains=frozenset(),
            operators=EDGE_OPERATORS,
            without_dtypes=_NARROW | set("float64 uint64 int4 uint4 complex64 complex128 string".split()),
            for_indices=frozenset({"int64"}),
            static=True,
            passes=(inlining, common.RemoveUnusedNodesPass()),
        ),
        Target(
            "openvino",
            opset=18,
            newest_opset=21,
            runtime="1.20",
            domains=frozenset(),
            without_dtypes=frozenset({"uint64"}),  # which it shifts and compares as if they had a sign
            signs_uint32=True,
            passes=(inlining, tied, untied, spectra, shifts, whole_blocks, common.RemoveUnusedNodesPass()),
        ),
        Target("portable", opset=18, newest_opset=18, ir_version=8, runtime="1.19", domains=frozenset()),
        Target(
            "webgpu",
            opset=18,
            newest_opset=21,
            ir_version=10,
            runtime="1.20",
            domains=frozenset(),
            without_dtypes=_NARROW | {"complex64", "complex128", "float64", "int16", "uint16"},
            passes=(resized_last, without_or, padded_channels),
            web=True,
            gpu=True,
        ),
        Target(
            "web",
            opset=18,
            newest_opset=21,
            ir_version=10,
            runtime="1.20",
            domains=_MICROSOFT,
            without_dtypes=_NARROW | {"complex64", "complex128"},
            web=True,
        ),
        Target(
            "onnxruntime",
            newest_opset=RELEASES[releases.OLDEST],
            runtime=releases.OLDEST,
            domains=_MICROSOFT,
            caches=True,
            experts=True,
        ),
        Target(
            "genai",
            newest_opset=RELEASES[releases.OLDEST],
            runtime=releases.OLDEST,
            domains=_MICROSOFT,
            decoder=True,
            caches=True,
            experts=True,
        ),
        Target("onnx"),
    )
}
DEFAULT = TARGETS["onnx"]


def validated(target: TargetName | Target, opset: int | None) -> tuple[Target, int]:
    """The target, and the opset to write.

    Raises:
      InvalidArgument: there is no such target, or it does not take the opset.

    >>> validated("portable", None)[1], validated("onnx", 21)[1]
    (18, 21)
    """
    if isinstance(target, str):
        if target not in TARGETS:
            raise InvalidArgument(
                f"unknown target {target!r}",
                where="`to_onnx(target=...)`",
                instead=f"{', '.join(map(repr, TARGETS))}, or a `jaxport.Target`",
            )
        target = TARGETS[target]
    elif not isinstance(target, Target):
        raise InvalidArgument(
            f"`{target!r}` is not a target",
            where="`to_onnx(target=...)`",
            instead=f"{', '.join(map(repr, TARGETS))}, or a `jaxport.Target`",
        )
    number = opsets.validated(target.opset if opset is None else opset)
    if target.newest_opset is not None and number > target.newest_opset:
        raise InvalidArgument(
            f'opset {number} is newer than what the target "{target.name}" takes ({target.newest_opset})',
            where="`to_onnx(opset=..., target=...)`",
            instead=f"leave `opset` out for {target.opset}, or choose another target",
        )
    return target, number


def offers(target: Target, domain: str, name: str) -> bool:
    """Whether a target may have an operator: neither it nor its domain is excluded.

    >>> offers(TARGETS["portable"], "com.microsoft", "FusedConv"), offers(TARGETS["web"], "com.microsoft", "FusedConv")
    (False, True)
    """
    listed = target.operators is None or bool(domain) or name in target.operators
    return (
        listed
        and name not in target.without_operators
        and (not domain or target.domains is None or domain in target.domains)
    )


def ir_version(target: Target, opset: int) -> int:
    """Return the IR version to write."""
    own = opsets.ir_version(opset)
    return own if target.ir_version is None else min(own, target.ir_version)


def refusals(model: ir.Model, target: Target) -> list[Refusal]:
    """Return a refusal for each node or value of a finished model that cannot run on a target, with the user's line."""
    own = {(function.domain, function.name) for function in model.functions.values()}
    problems = []
    for graph in graphs(model):
        for node in graph:
            if (node.domain, node.op_type) not in own:
                where = node.metadata_props.get("jaxport.source", "")
                problems += [Refusal(operator_name(node), where, why) for why in _objections(node, model, target)]
    held = [*model.graph.inputs, *model.graph.initializers.values()]
    for value in held:
        refused = requirements.dtypes_of([value]) & target.without_dtypes
        problems += [Refusal(value.name or "", "", f"the target has no {dtype}") for dtype in sorted(refused)]
    for node, kinds in requirements.off_gpu(model) if target.gpu else ():
        name = f"WebGPU of onnxruntime-web {WEB_RELEASE}"
        why = f"{name} has no {node.op_type} of {kinds}, which the CPU would compute"
        why += IGNORING * (node.op_type in NAN_TESTS)
        problems.append(Refusal(operator_name(node), node.metadata_props.get("jaxport.source", ""), why))
    for node in (node for graph in graphs(model) for node in graph) if target.gpu else ():
        if what := wrong(node):
            where = node.metadata_props.get("jaxport.source", "")
            problems.append(
                Refusal(operator_name(node), where, f"WebGPU of onnxruntime-web {WEB_RELEASE} gets {what} wrong")
            )
    for value in model.graph.inputs if target.static else ():
        opened = [str(dim) for dim in dims_of(value) or () if not isinstance(dim, int)]
        problems += [Refusal(value.name or "", "", f"the size `{dim}` is open; give a number for it") for dim in opened]
    if target.signs_uint32:
        for needing in unsigned.needing_size(model):
            where = needing.metadata_props.get("jaxport.source", "")
            name = operator_name(needing) if isinstance(needing, ir.Node) else needing.name or ""
            problems.append(Refusal(name, where, "the target treats the highest bit of a uint32 as a sign"))
    return problems


def runs(model: ir.Model, target: Target) -> bool:
    """Whether a target takes a finished model as it is, and takes its opset without being asked for one."""
    return model.opset_imports[""] <= target.opset and not refusals(model, target)


def _objections(node: ir.Node, model: ir.Model, target: Target) -> Iterator[str]:
    """Yield why a node cannot run on a target."""
    if node.op_type in target.without_operators:
        yield f"the target has no {node.op_type}"
    if target.operators is not None and not node.domain and node.op_type not in target.operators:
        yield f"{node.op_type} is not among the operators of the target{IGNORING * (node.op_type in NAN_TESTS)}"
    if node.domain and target.domains is not None and node.domain not in target.domains:
        yield f"the target has no operators of {node.domain}"
    for dtype in sorted(requirements.dtypes_of(node.outputs) & target.without_dtypes):
        yield f"the target has no {dtype}"
    opset = model.opset_imports[""]
    for dtype in sorted(_computed(node, opset) & target.for_indices):
        yield f"the target has {dtype} for indices and shapes only"
    kernel = requirements.lack(node, opset, target.runtime) if target.runtime else None
    if kernel is not None:
        yield f"ONNX Runtime {target.runtime}, which the target includes, has no {node.op_type} of {kernel}"
    elif target.web and (kernel := requirements.lack(node, opset, target.release, web=True)) is not None:
        yield f"a build of onnxruntime-web {WEB_RELEASE} has no {node.op_type} of {kernel}"


def _computed(node: ir.Node, opset: int) -> set[str]:
    """Return the dtypes of the operands that are no indices, axes or shapes: these have few dtypes."""
    facts = schema.find(node.domain, node.op_type, opset)
    if facts is None or node.op_type == "Cast":
        return set()
    operands = [x for i, x in enumerate(node.inputs) if x is not None and any(d.kind == "f" for d in facts.accepts(i))]
    return requirements.dtypes_of(operands)


def larger(target: Target) -> Iterator[Target]:
    """Yield the named targets that may run what a target cannot, the nearest first."""
    names = list(TARGETS)
    start = names.index(target.name) + 1 if TARGETS.get(target.name) == target else 0
    for name in names[start:]:
        if not TARGETS[name].decoder:
            yield TARGETS[name]

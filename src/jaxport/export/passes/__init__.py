"""Graph passes: each changes the model in place and reports what it changed, or why it changed nothing.

A pass is a callable of an `onnx_ir.Model` that returns its report, or one of `onnx_ir`'s own passes:

>>> import jax.numpy as jnp, jaxport
>>> from jaxport.export import passes
>>> def softmax_along_axis_1(model):
...     nodes = [n for n in model.graph.all_nodes() if n.op_type == "Softmax"]
...     for node in nodes:
...         node.attributes["axis"] = ir.AttrInt64("axis", 1)
...     return f"{len(nodes)} Softmax patched"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common

from jaxport.errors import ExportError
from jaxport.export.passes.caches import cached_attention
from jaxport.export.passes.channel_factors import channel_factors as channel_factors
from jaxport.export.passes.constants import constants
from jaxport.export.passes.convolution import average_pools, convolution_biases, global_pools, padded_pools
from jaxport.export.passes.double import double_factors
from jaxport.export.passes.hoisting import hoisting
from jaxport.export.passes.late import late
from jaxport.export.passes.layout import layout
from jaxport.export.passes.operand_order import operand_order
from jaxport.export.passes.repeated import repeated
from jaxport.export.passes.reshapes import reshapes
from jaxport.export.passes.resizing import resizing
from jaxport.export.passes.scanned import scanned
from jaxport.export.passes.simplify import simplify
from jaxport.export.passes.sizes import sizes
from jaxport.export.passes.stacks import stacks
from jaxport.export.passes.statistics import batch_normalization
from jaxport.export.passes.step_inputs import step_inputs
from jaxport.export.passes.tables import tables
from jaxport.export.passes.tidy import tidy, unit_axes
from jaxport.export.passes.tied import tied
from jaxport.export.passes.turned_caches import turned_caches
from jaxport.export.passes.zero_signs import zero_signs
from jaxport.graph.editing import nodes_of
from jaxport.graph.fusions.activations import activations
from jaxport.graph.fusions.attention import attention
from jaxport.graph.fusions.choices import choices
from jaxport.graph.fusions.experts import mixture_of_experts
from jaxport.graph.fusions.log_sum_exp import log_sum_exp
from jaxport.graph.fusions.means import means
from jaxport.graph.fusions.normalization import normalization
from jaxport.graph.fusions.padding import padding
from jaxport.graph.fusions.pixel_shuffle import pixel_shuffle, plain_shuffles
from jaxport.graph.fusions.positions import positions
from jaxport.graph.fusions.rotary import rotary
from jaxport.graph.fusions.softmax import softmax
from jaxport.graph.identities import identities
from jaxport.phases import phase

Pass = Callable[[ir.Model], object]
NOTHING = "nothing to do"


@dataclass(frozen=True)
class PassReport:
    """What one pass changed, or why it changed nothing."""

    name: str
    text: str


#: The passes that `to_onnx` runs, in order.
DEFAULT: tuple[Pass, ...] = (
    identities,
    average_pools,
    stacks,
    tidy,
    batch_normalization,
    constants,
    simplify,
    positions,
    padding,
    hoisting,
    scanned,
    repeated,
    choices,
    softmax,
    log_sum_exp,
    normalization,
    means,
    activations,
    late,
    rotary,
    attention,
    reshapes,
    tidy,
    pixel_shuffle,
    resizing,
    layout,
    unit_axes,
    tidy,
    plain_shuffles,
    convolution_biases,
    global_pools,
    padded_pools,
    double_factors,
    tables,
    operand_order,
    repeated,
    tied,
    sizes,
    common.RemoveUnusedNodesPass(),
)


def default(*, caches: bool, experts: bool, exact: bool = False) -> tuple[Pass, ...]:
    """Return the passes of an export.

    Args:
      caches: whether the runtime's operator for attention to a key-value cache may be used.
      experts: whether the runtime's operator for mixtures of experts may be used.
      exact: whether zeros have JAX's sign.
    """
    at = DEFAULT.index(attention)
    wanted = (
        (turned_caches, caches),
        (step_inputs, caches),
        (cached_attention, caches),
        (repeated, caches),  # each layer has made its own mask,
        (step_inputs, caches),  # without the rows behind the last one
        (mixture_of_experts, experts),
    )
    last = (zero_signs, repeated, common.RemoveUnusedNodesPass()) if exact else ()
    return (*DEFAULT[:at], *(graph_pass for graph_pass, is_wanted in wanted if is_wanted), *DEFAULT[at:], *last)


def pass_name(graph_pass: Pass) -> str:
    """Return the name that reports show."""
    return getattr(graph_pass, "__name__", type(graph_pass).__name__)


def begins(graph_pass: Pass, present: Set[str]) -> bool:
    """Whether a model with these operators has those that a pass begins at, as far as it declares any.

    >>> begins(stacks, {"Concat", "Split"}), begins(stacks, {"Concat", "Add"}), begins(identities, set())
    (True, False, True)
    """
    return not any(present.isdisjoint(group) for group in getattr(graph_pass, "begins_at", ()))


def operators_of(model: ir.Model) -> set[str]:
    """Return the operators of the default domain in a model, its subgraphs and its functions."""
    return {node.op_type for node in nodes_of(model) if not node.domain}


def run(model: ir.Model, passes: Sequence[Pass]) -> list[PassReport]:
    """Run passes on a model, one after the other, in place.

    Raises:
      ExportError: a pass returned another model instead of changing this one, or raised.
    """
    reports, present = [], operators_of(model)
    with phase("Optimizing", len(passes)) as advance:
        for graph_pass in passes:
            try:
                result = graph_pass(model) if begins(graph_pass, present) else NOTHING
            except Exception as error:  # the pass may be the user's
                raise ExportError(
                    f"the pass `{pass_name(graph_pass)}` failed: {type(error).__name__}: {error}"
                ) from error
            if isinstance(result, ir.passes.PassResult):
                if result.model is not model:
                    raise ExportError(
                        f"the pass `{pass_name(graph_pass)}` returned another model",
                        instead="change the model in place",
                    )
                result = "changed" if result.modified else NOTHING
            if result != NOTHING:
                present = operators_of(model)
            reports.append(PassReport(pass_name(graph_pass), str(result if result is not None else "ran")))
            advance(1)
    return reports

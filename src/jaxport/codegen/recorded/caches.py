"""Attention to a key-value cache, ONNX Runtime's GroupQueryAttention, as the parts that a person would write.

The operator splits a projection into heads, rotates them, writes the new rows into the cache, and attends to all rows.
What depends on positions alone (the starts of the rows, the tables' rows, the mask) is computed once for all layers,
and so is what is added to the scores of all of them, such as padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from jaxport.codegen.recorded.fusions import DOMAIN
from jaxport.graph.editing import Dim, Editor, dims_of, discard, nodes_of, operand, static_dims
from jaxport.graph.fusing import Builder
from jaxport.graph.fusions.caches import is_cached_attention
from jaxport.importer.ops.contrib_attention import are_first, widened, with_rows
from jaxport.importer.resolving.registry import Host, op
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import jnp
from jaxport.jaxprs.dims import max_dim

INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total", "cos", "sin", "position_ids", "bias",
    "sink",
    "k_scale", "v_scale", "q_norm", "k_norm", "query_seqlens",
)  # fmt: skip
NEEDED = ("query", "past_key", "past_value", "seqlens_k", "total")
NOT_PRINTED = ("k_scale", "v_scale", "query_seqlens")
"""Inputs for which the operator stays as it is."""
PLAIN = {
    "smooth_softmax": (None, 0, -1),
    "causal": (None, 1),
    "qk_output": (None, 0),
    "sliding_window_cache": (None, 0),
    "rotary_embedding_dim": (None, 0),
    "k_quant_type": (None, "NONE"),
    "v_quant_type": (None, "NONE"),
}
"""The values of attributes for which the operator does what its parts do."""


@op(DOMAIN, "RowStarts")
def row_starts(seqlens_k: Tensor, rows: Tensor, total: Host) -> Tensor:
    """Return the place of the first new row of each sequence."""
    starts = jnp.reshape(seqlens_k, (-1,)) + 1 - rows.shape[1]
    return starts if are_first(total.item(), rows.shape[1]) is False else jnp.maximum(starts, 0)


@op(DOMAIN, "RowPositions")
def row_positions(starts: Tensor, rows: Tensor) -> Tensor:
    """Return the position of each new row: (batch, rows)."""
    return jnp.expand_dims(starts, 1) + jnp.arange(rows.shape[1])


@op(DOMAIN, "CacheMask")
def cache_mask(at: Tensor, past: Tensor, total: Host, *, window: int = 0) -> Tensor:
    """Return which rows of a cache the queries at some positions see: (batch, 1, queries, keys)."""
    queries, keys = jnp.expand_dims(at, (1, 3)), jnp.arange(max_dim(total.item(), past.shape[2]))
    return jnp.logical_and(keys <= queries, keys > queries - window) if window > 0 else keys <= queries


@op(DOMAIN, "CacheUpdate")
def cache_update(past: Tensor, rows: Tensor, starts: Tensor, total: Host) -> Tensor:
    """Return a cache with new rows behind those that it has."""
    return with_rows(past, rows, starts, total.item())


@op(DOMAIN, "CacheBias")
def cache_bias(bias: Tensor, past: Tensor, total: Host) -> Tensor:
    """Return what is added to scores, with a column for each row of a cache: those behind the last one are not seen."""
    return widened(bias, max_dim(total.item(), past.shape[2]))


def cached_attention(model: ir.Model, *, has_helpers: bool = False) -> str:
    """Replace each GroupQueryAttention in the main graph by its parts, as far as JAX's attention computes it.

    Args:
      model: changed in place.
      has_helpers: whether source gets a function for scores with a soft cap or a sink, for which JAX has none.
    """
    editor, shared = Editor(model), Shared()
    nodes = [node for node in nodes_of(model) if is_cached_attention(node)]
    nodes = [node for node in nodes if node.graph is model.graph]
    steps = [step for node in nodes if (step := CachedAttention.of(node, has_helpers)) is not None]
    for step in steps:
        step.replace(Builder(editor, model.graph, step.node, {}), shared)
    return f"{len(steps)} GroupQueryAttention" if steps else "nothing to do"


@dataclass
class Shared:
    """Values that several layers compute alike, by what they are computed from."""

    values: dict[tuple[object, ...], ir.Value] = field(default_factory=dict)

    def emit(
        self, builder: Builder, name: str, inputs: Sequence[ir.Value], dims: Sequence[Dim], dtype: ir.DataType,
        domain: str = DOMAIN, **attributes: int,
    ) -> ir.Value:  # fmt: skip
        """Return the result of an operator of these inputs, emitted once."""
        key = (name, *inputs, *attributes.items())
        if key not in self.values:
            self.values[key] = builder.emit(name, inputs, dims, dtype, domain, **attributes)
        return self.values[key]


@dataclass(frozen=True)
class CachedAttention:
    """A GroupQueryAttention whose shapes are known.

    Attributes:
      node: the operator.
      inputs, options: its inputs and attributes by name.
      batch, length: the number of sequences, and of new rows.
      keys: the number of rows of the cache.
      heads, groups, size: the number of heads of queries, and of keys, and the size of each.
    """

    node: ir.Node
    inputs: dict[str, ir.Value]
    options: dict[str, Any]
    batch: Dim
    length: Dim
    keys: Dim
    heads: int
    groups: int
    size: int

    @classmethod
    def of(cls, node: ir.Node, has_helpers: bool) -> CachedAttention | None:
        """Return the attention of a node; None if neither JAX's function nor one that source gets computes it."""
        inputs = {name: value for at, name in enumerate(INPUTS) if (value := operand(node, at)) is not None}
        options = {name: attribute.value for name, attribute in node.attributes.items()}
        if any(options.get(name) not in plain for name, plain in PLAIN.items()) or {*NOT_PRINTED} & {*inputs}:
            return None
        single = node.outputs[0].dtype is ir.DataType.FLOAT
        if (options.get("softcap") or "sink" in inputs) and not (has_helpers and single):
            return None
        query, past = dims_of(inputs.get("query")), dims_of(inputs.get("past_key"))
        present = dims_of(node.outputs[1]) if len(node.outputs) > 2 else None
        if not {*NEEDED} <= {*inputs} or query is None or past is None or present is None:
            return None
        heads, groups, sizes = options["num_heads"], options["kv_num_heads"], static_dims(past[3:])
        if (
            sizes is None
            or ("key" in inputs) != ("value" in inputs)
            or (options.get("do_rotary") and "cos" not in inputs)
            or ("bias" in inputs and len(dims_of(inputs["bias"]) or ()) != len(past))
        ):
            return None
        return cls(node, inputs, options, query[0], query[1], present[2], heads, groups, sizes[0])

    def replace(self, builder: Builder, shared: Shared) -> None:
        """Put the parts in the place of the operator."""
        inputs, outputs, options = self.inputs, [*self.node.outputs], self.options
        dtype = outputs[0].dtype or ir.DataType.FLOAT
        integers = inputs["seqlens_k"].dtype or ir.DataType.INT32
        rows = shared.values.setdefault(("rows", self.batch, self.length), inputs["query"])
        starts = shared.emit(builder, "RowStarts", [inputs["seqlens_k"], rows, inputs["total"]], [self.batch], integers)
        at = shared.emit(builder, "RowPositions", [starts, rows], [self.batch, self.length], integers)
        window = max(options.get("local_window_size", -1), 0)
        dims = [self.batch, 1, self.length, self.keys]
        past = shared.values.setdefault(("past", *dims), inputs["past_key"])
        mask = shared.emit(builder, "CacheMask", [at, past, inputs["total"]], dims, ir.DataType.BOOL, window=window)
        query, key, value = self._heads(builder)
        if options.get("do_rotary"):
            places = inputs.get("position_ids", at)
            half = static_dims((dims_of(inputs["cos"]) or [None])[1:]) or [self.size // 2]
            angles = [
                shared.emit(
                    builder, "Gather", [inputs[name], places], [self.batch, self.length, *half], dtype, "", axis=0
                )
                for name in ("cos", "sin")
            ]
            pairs = {"interleaved": options["rotary_interleaved"]} if "rotary_interleaved" in options else {}
            if 2 * half[0] != self.size:
                pairs["rotary_embedding_dim"] = 2 * half[0]
            query, key = (
                builder.emit("RotaryEmbedding", [one, *angles], dims_of(one), dtype, "", **pairs)
                for one in (query, key)
            )
        cached = [self.batch, self.groups, self.keys, self.size]
        presents = [
            builder.emit("CacheUpdate", [inputs[name], new, starts, inputs["total"]], cached, dtype, DOMAIN)
            for name, new in (("past_key", key), ("past_value", value))
        ]
        sides = [builder.transposed(one, (0, 2, 1, 3)) for one in (query, *presents)]
        scale = options.get("scale", 0.0)
        scaled = {"scale": scale} if scale and abs(scale * self.size**0.5 - 1) > 1e-6 else {}
        if options.get("softcap"):
            scaled["softcap"] = options["softcap"]
        operands = [*sides, self._bias(builder, shared), mask, *([inputs["sink"]] if "sink" in inputs else [])]
        attended = builder.emit("DotProductAttention", operands, dims_of(sides[0]), dtype, DOMAIN, **scaled)
        merged = builder.integers([0, 0, self.heads * self.size], "shape")
        result = builder.emit("Reshape", [attended, merged], [self.batch, self.length, self.heads * self.size], dtype)
        for old, new in zip(outputs[:3], (result, *presents), strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        discard(self.node)

    def _bias(self, builder: Builder, shared: Shared) -> ir.Value | None:
        """Return what is added to the scores, with a column for each row of the cache."""
        bias = self.inputs.get("bias")
        dims = dims_of(bias)
        if bias is None or dims is None or dims[3] == self.keys:
            return bias
        past = shared.values["past", self.batch, 1, self.length, self.keys]
        operands, wide = [bias, past, self.inputs["total"]], [*dims[:3], self.keys]
        return shared.emit(builder, "CacheBias", operands, wide, bias.dtype or ir.DataType.FLOAT)

    def _heads(self, builder: Builder) -> list[ir.Value]:
        """Return queries, keys and values, (batch, heads, length, size), normalized if they have scales."""
        dtype, counts = self.inputs["query"].dtype, (self.heads, self.groups, self.groups)
        if "key" in self.inputs:
            flat = [self.inputs[name] for name in ("query", "key", "value")]
        else:
            widths = [count * self.size for count in counts]
            stamps = [(dtype, [self.batch, self.length, width]) for width in widths]
            sizes = builder.integers(widths, "sizes")
            flat = builder.emit_many("Split", [self.inputs["query"], sizes], stamps, axis=2)
        parts = []
        for one, count, norm in zip(flat, counts, ("q_norm", "k_norm", ""), strict=True):
            dims = [self.batch, self.length, count, self.size]
            part = builder.emit("Reshape", [one, builder.integers([0, 0, count, self.size], "shape")], dims, dtype)
            if norm in self.inputs:
                part = builder.emit(
                    "RMSNormalization", [part, self.inputs[norm]], dims, dtype, axis=-1, epsilon=self._epsilon(norm)
                )
            parts.append(builder.transposed(part, (0, 2, 1, 3)))
        return parts

    def _epsilon(self, norm: str) -> float:
        return self.options.get(f"{norm}_epsilon") or self.options.get("qk_norm_epsilon", 1e-6)

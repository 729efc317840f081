"""Attention layers: a module of the projections of all heads, and of nothing but their attention, is one layer.

Before and after:

    q, k, v = self.query(x), self.key(x), self.value(x), each reshaped to heads     a module of nothing else:
    self.out(dot_product_attention(q, k, v) merged to one axis)                  →  self.attention(x)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxport.codegen.rewriting.producers import Producers
from jaxport.codegen.rewriting.steps import reads
from jaxport.codegen.tree import Call, Item, Layer, Module, Op, Weight
from jaxport.importer.values.host import Dim, Shape
from jaxport.importer.values.recording import Step, Variable
from jaxport.jaxprs import Parameters

PROJECTIONS = ("query", "key", "value", "out")
"""The names of the projections, as Flax has them."""


def with_attention_layers(root: Module, accepts: Callable[[Layer], bool]) -> Module:
    """Return the tree with a layer in place of each call of a module that is nothing but a multi-head attention.

    `accepts` says whether the target has the layer.
    """
    heads_of = functools.cache(_heads_of)  # calls of one layer have the same weights
    masks: dict[Hashable, Variable] = {}

    def rewritten(item: Item, around: Module) -> Iterator[Item]:
        heads = heads_of(item.module) if isinstance(item, Call) else None
        if not isinstance(item, Call) or heads is None:
            yield item
            return
        values = dict(zip(item.module.inputs, item.inputs, strict=True))
        inputs = [values[variable] for variable in heads.inputs]
        given = values[heads.mask] if heads.mask is not None else None
        config = {**heads.config, "is_causal": heads.is_causal and given is None}
        shape = inputs[0].shape[1], inputs[-1].shape[1]
        mask, ops, key = given, [], (around, given, *map(str, shape))
        if heads.is_causal:
            ops = [] if key in masks else _masking(given, shape, heads.attention)
            mask = ops[-1].outputs[0] if ops else masks[key]
        if mask is not None:
            inputs, config["keywords"] = [*inputs, mask], ("mask",)
        label = item.module.path_in(around)
        layer = Layer("MultiHeadAttention", config, heads.weights, tuple(inputs), item.outputs, label)
        if not accepts(layer):
            yield item
            return
        if ops:
            masks[key] = ops[-1].outputs[0]
        yield from (*ops, layer)

    return root.changed(
        lambda module: replace(
            module, items=tuple(item for before in module.items for item in rewritten(before, module))
        )
    )


def _masking(given: Variable | None, shape: tuple[Dim, Dim], like: Step) -> list[Op]:
    """Return the operators that make a causal mask, joined with one that is given."""
    rows, columns = shape
    sizes = (rows,) if rows is columns or rows == columns else (rows, columns)
    mask = Variable((rows, columns), np.dtype(bool), "mask")
    steps = [Step("call", "jnp.tri", sizes, {"dtype": np.dtype(bool)}, mask, like.node)]
    if given is not None:
        whole = Variable((*given.shape[:-2], rows, columns), np.dtype(bool), "mask")
        steps.append(Step("call", "jnp.logical_and", (given, mask), {}, whole, like.node))
    operator = getattr(like.node, "op_type", "")
    return [Op(operator, step, tuple(reads(step)), (step.outputs,)) for step in steps]


class _Heads:
    """The attention that a module is.

    Attributes:
      projections: its layers, by name.
      attention: the step between them.
      inputs: what queries are made of, and what keys and values are made of, if that is another value.
      is_causal: whether a query sees the keys up to its own position only.
      mask: the input that says which keys each query sees; None if all, or if `is_causal` says it. With both, it says
        which of those.
    """

    def __init__(self, projections: Mapping[str, Layer], attention: Step):
        self.projections, self.attention = projections, attention
        sources = (projections["query"].inputs[0], projections["key"].inputs[0])
        self.inputs = sources[:1] if sources[0] is sources[1] else sources
        self.is_causal = bool(attention.kwargs.get("is_causal"))
        self.mask: Variable | None = attention.kwargs.get("mask")
        self.heads, self.size = attention.args[0].shape[2:]
        self.weights = {
            f"{label}_{role}": self._of_heads(weight, label, role)
            for label in PROJECTIONS
            for role, weight in projections[label].weights.items()
        }

    @property
    def config(self) -> Parameters:
        sizes = {label: self.projections[label].config for label in PROJECTIONS}
        return {
            "num_heads": self.heads,
            "in_features": sizes["query"]["in_features"],
            "qkv_features": self.heads * self.size,
            "out_features": sizes["out"]["out_features"],
            "in_kv_features": sizes["key"]["in_features"],
        }

    def _of_heads(self, weight: Weight, label: str, role: str) -> Weight:
        """Return a tensor of a projection with an axis of heads."""
        if label == "out":
            made = weight.reshaped((self.heads, self.size, weight.shape[1])) if role == "kernel" else weight
        else:
            made = weight.reshaped((*weight.shape[:-1], self.heads, self.size))
        return replace(made, pieces=(weight,))


def _heads_of(module: Module) -> _Heads | None:
    """Return the attention that a module is; None if there is more in it, or something else."""
    projections = {item.label: item for item in module.items if isinstance(item, Layer) and item.kind == "Linear"}
    ops = [item for item in module.items if isinstance(item, Op)]
    if projections.keys() != {*PROJECTIONS} or len(module.items) != len(projections) + len(ops) or module.weights:
        return None
    query, key, value, out = (projections[label] for label in PROJECTIONS)
    made = Producers.of(op.step for op in ops)
    merged = made.step(out.inputs[0], "jnp.reshape")
    attention = made.step(merged.args[0], "nn.dot_product_attention") if merged is not None else None
    if merged is None or attention is None or len(ops) != 5:
        return None
    options, inputs = attention.kwargs, {*query.inputs, *key.inputs}
    if options.keys() not in ({*()}, {"is_causal"}, {"mask"}, {"mask", "is_causal"}) or options.get("mask") in inputs:
        return None
    inputs |= {options["mask"]} if "mask" in options else set()
    heads = [made.step(operand, "jnp.reshape") for operand in attention.args]
    sources = [split.args[0] if split is not None else None for split in heads]
    if any(one is not layer.outputs[0] for one, layer in zip(sources, (query, key, value), strict=True)):
        return None
    if module.outputs != out.outputs or key.inputs != value.inputs or inputs != {*module.inputs}:
        return None
    roles = {frozenset(layer.weights) for layer in projections.values()}
    rows = [layer.outputs[0].shape[:-1] for layer in (query, key, value)]
    if len(roles) > 1 or not _are_heads(attention, merged, rows):
        return None
    return _Heads(projections, attention)


def _are_heads(attention: Step, merged: Step, rows: Sequence[Shape]) -> bool:
    """Whether queries, keys and values have the same heads, made of the last axis of projections with these other
    axes.
    """
    shapes = [operand.shape for operand in attention.args]
    heads, size = shapes[0][2:]
    same = all(shape[2:] == (heads, size) for shape in shapes) and isinstance(heads, int) and isinstance(size, int)
    kept = all(shape[:2] == tuple(before) for shape, before in zip(shapes, rows, strict=True))
    return same and kept and merged.outputs.shape == (*shapes[0][:2], heads * size)

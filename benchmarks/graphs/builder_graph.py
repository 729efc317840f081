"""The graph that onnxruntime-genai's model builder writes for a Llama, made node by node with the weights of a model.

The projections of the queries, keys and values are one product, `GroupQueryAttention` turns queries and keys by itself, and
additions to the residual are in `SkipSimplifiedLayerNormalization`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from examples.language_model import Llama
from examples.models.llama import Config

MICROSOFT = "com.microsoft"
POSITIONS = 16384
"""The rows of the tables of cosines and sines."""


class _Graph:
    """Collects nodes and initializers."""

    def __init__(self, dtype: type):
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.dtype = dtype

    def constant(self, name: str, array: Any) -> str:
        """Add a tensor; floats in the type of the graph."""
        array = np.ascontiguousarray(array)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype)
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **options: Any
    ) -> str:
        """Add a node; return the name of its first result."""
        made = helper.make_node(op_type, inputs, outputs, name=f"{op_type}/{len(self.nodes)}", domain=domain, **options)
        self.nodes.append(made)
        return outputs[0]


def builder_graph(model: Llama, config: Config, precision: str) -> onnx.ModelProto:
    """Return the graph in float32, float16, or with the weights of products in 4 bits."""
    graph = _Graph(np.float16 if precision == "float16" else np.float32)
    _lengths(graph)
    half = config.head // 2
    angles = np.arange(POSITIONS)[:, None] * config.theta ** (-np.arange(half, dtype=np.float32) / half)
    tables = [graph.constant("cos_cache", np.cos(angles)), graph.constant("sin_cache", np.sin(angles))]
    residual = graph.node("Gather", [graph.constant("embed", _array(model.words.embedding)), "input_ids"], ["x"])
    added = None
    for number, layer in enumerate(model.layers):
        scope = f"layers.{number}."
        normal, residual = _normalized(graph, config, residual, added, layer.attention_norm, f"{scope}attention_norm")
        attention = layer.attention
        kernels = [_array(side.kernel) for side in (attention.query, attention.key, attention.value)]
        packed = _product(graph, normal, np.concatenate(kernels, 1), f"{scope}qkv")
        past = [f"past_key_values.{number}.{side}" for side in ("key", "value")]
        present = [f"present.{number}.{side}" for side in ("key", "value")]
        mixed = graph.node(
            "GroupQueryAttention",
            [packed, "", "", *past, "seqlens_k", "total_seq_len", *tables],
            [f"{scope}mixed", *present],
            MICROSOFT,
            num_heads=config.heads,
            kv_num_heads=config.groups,
            scale=config.head**-0.5,
            do_rotary=1,
        )
        added = _product(graph, mixed, _array(attention.output.kernel), f"{scope}output")
        normal, residual = _normalized(graph, config, residual, added, layer.mlp_norm, f"{scope}mlp_norm")
        gate = _product(graph, normal, _array(layer.gate.kernel), f"{scope}gate")
        up = _product(graph, normal, _array(layer.up.kernel), f"{scope}up")
        share = graph.node("Sigmoid", [gate], [f"{scope}sigmoid"])
        silu = graph.node("Mul", [gate, share], [f"{scope}silu"])
        gated = graph.node("Mul", [silu, up], [f"{scope}gated"])
        added = _product(graph, gated, _array(layer.down.kernel), f"{scope}down")
    normal, _ = _normalized(graph, config, residual, added, model.norm, "norm")
    graph.node("MatMul", [normal, graph.constant("head", _array(model.head.kernel))], ["logits"])
    whole = _model(graph, config)
    if precision != "int4":
        return whole
    quantizer = MatMulNBitsQuantizer(whole, block_size=32, is_symmetric=False, accuracy_level=4)
    quantizer.process()
    return quantizer.model.model


def _array(parameter: Any) -> np.ndarray:
    return np.asarray(parameter[...])


def _lengths(graph: _Graph) -> None:
    """Add the places of the last tokens, and the number of all tokens."""
    ones = graph.constant("ones", np.array([1]))
    graph.node("ReduceSum", ["attention_mask", ones], ["tokens"], keepdims=1)
    graph.node("Sub", ["tokens", ones], ["last"])
    graph.node("Cast", ["last"], ["seqlens_k"], to=onnx.TensorProto.INT32)
    graph.node("Shape", ["attention_mask"], ["mask_shape"])
    graph.node("Gather", ["mask_shape", graph.constant("one", np.array(1))], ["total"], axis=0)
    graph.node("Cast", ["total"], ["total_seq_len"], to=onnx.TensorProto.INT32)


def _product(graph: _Graph, x: str, kernel: np.ndarray, name: str) -> str:
    return graph.node("MatMul", [x, graph.constant(f"{name}.kernel", kernel)], [name])


def _normalized(
    graph: _Graph, config: Config, residual: str, added: str | None, norm: Any, name: str
) -> tuple[str, str]:
    """Add a normalization of a residual with what is added to it; return both."""
    scale = graph.constant(f"{name}.scale", _array(norm.scale))
    if added is None:
        options = {"epsilon": config.epsilon, "axis": -1, "stash_type": 1}
        return graph.node("SimplifiedLayerNormalization", [residual, scale], [name], **options), residual
    outputs = [name, "", "", f"{name}.sum"]
    inputs = [residual, added, scale]
    graph.node("SkipSimplifiedLayerNormalization", inputs, outputs, MICROSOFT, epsilon=config.epsilon)
    return name, outputs[-1]


def _model(graph: _Graph, config: Config) -> onnx.ModelProto:
    """Return the model, with inputs and outputs under the names that onnxruntime-genai knows."""
    info, integers = helper.make_tensor_value_info, onnx.TensorProto.INT64
    floats = helper.np_dtype_to_tensor_dtype(np.dtype(graph.dtype))
    rows = ["batch_size", config.groups, "past_sequence_length", config.head]
    all_rows = ["batch_size", config.groups, "total_sequence_length", config.head]
    inputs = [
        info("input_ids", integers, ["batch_size", "sequence_length"]),
        info("attention_mask", integers, ["batch_size", "total_sequence_length"]),
    ]
    outputs = [info("logits", floats, ["batch_size", "sequence_length", config.vocabulary])]
    for number in range(config.layers):
        for side in ("key", "value"):
            inputs.append(info(f"past_key_values.{number}.{side}", floats, rows))
            outputs.append(info(f"present.{number}.{side}", floats, all_rows))
    body = helper.make_graph(graph.nodes, "llama", inputs, outputs, graph.initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(body, opset_imports=opsets, ir_version=10)

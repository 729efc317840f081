"""The graph that onnxruntime-genai's model builder writes for a Llama, made node by node with the weights of a model.

Nodes and weights have the names that it gives them. The projections of the queries, keys and values are one product, `GroupQueryAttention` turns queries and keys by itself, and
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
        """Add a node, which is named after its first result; return the name of that."""
        made = helper.make_node(op_type, inputs, outputs, name=_named(outputs[0]), domain=domain, **options)
        self.nodes.append(made)
        return outputs[0]


def builder_graph(model: Llama, config: Config, precision: str) -> onnx.ModelProto:
    """Return the graph in float32, float16, or with the weights of products in 4 bits."""
    graph = _Graph(np.float16 if precision == "float16" else np.float32)
    lengths = _lengths(graph)
    half = config.head // 2
    angles = np.arange(POSITIONS)[:, None] * config.theta ** (-np.arange(half, dtype=np.float32) / half)
    tables = [graph.constant("cos_cache", np.cos(angles)), graph.constant("sin_cache", np.sin(angles))]
    words = graph.constant("model.embed_tokens.weight", _array(model.words.embedding))
    residual = graph.node("Gather", [words, "input_ids"], ["/model/embed_tokens/Gather/output_0"])
    added = None
    for number, layer in enumerate(model.layers):
        scope = f"/model/layers.{number}/"
        normal, residual = _normalized(graph, config, residual, added, layer.attention_norm, f"{scope}input_layernorm")
        attention = layer.attention
        kernels = [_array(side.kernel) for side in (attention.query, attention.key, attention.value)]
        packed = _product(graph, normal, np.concatenate(kernels, 1), f"{scope}attn/qkv_proj")
        past = [f"past_key_values.{number}.{side}" for side in ("key", "value")]
        present = [f"present.{number}.{side}" for side in ("key", "value")]
        mixed = graph.node(
            "GroupQueryAttention",
            [packed, "", "", *past, *lengths, *tables],
            [f"{scope}attn/GroupQueryAttention/output_0", *present],
            MICROSOFT,
            num_heads=config.heads,
            kv_num_heads=config.groups,
            scale=config.head**-0.5,
            do_rotary=1,
        )
        added = _product(graph, mixed, _array(attention.output.kernel), f"{scope}attn/o_proj")
        normal, residual = _normalized(
            graph, config, residual, added, layer.mlp_norm, f"{scope}post_attention_layernorm"
        )
        gate = _product(graph, normal, _array(layer.gate.kernel), f"{scope}mlp/gate_proj")
        up = _product(graph, normal, _array(layer.up.kernel), f"{scope}mlp/up_proj")
        share = graph.node("Sigmoid", [gate], [f"{scope}mlp/act_fn/Sigmoid/output_0"])
        silu = graph.node("Mul", [gate, share], [f"{scope}mlp/act_fn/Mul/output_0"])
        gated = graph.node("Mul", [silu, up], [f"{scope}mlp/Mul/output_0"])
        added = _product(graph, gated, _array(layer.down.kernel), f"{scope}mlp/down_proj")
    last = f"/model/layers.{config.layers}/final_norm_layernorm"
    normal, _ = _normalized(graph, config, residual, added, model.norm, last)
    kernel = graph.constant("lm_head.MatMul.weight", _array(model.head.kernel))
    graph.nodes.append(helper.make_node("MatMul", [normal, kernel], ["logits"], name="/lm_head/MatMul"))
    whole = _model(graph, config)
    if precision != "int4":
        return whole
    quantizer = MatMulNBitsQuantizer(whole, block_size=32, is_symmetric=False, accuracy_level=4)
    quantizer.process()
    return quantizer.model.model


def _array(parameter: Any) -> np.ndarray:
    return np.asarray(parameter[...])


def _named(result: str) -> str:
    return result.removesuffix("/output_0")


def _lengths(graph: _Graph) -> list[str]:
    """Add the places of the last tokens, and the number of all tokens; return their names."""
    scope = "/model/attn_mask_reformat/attn_mask_subgraph/"
    ones = graph.constant("/model/constants/INT64/[1]", np.array([1]))
    tokens = graph.node("ReduceSum", ["attention_mask", ones], [f"{scope}ReduceSum/output_0"], keepdims=1)
    last = graph.node("Sub", [tokens, ones], [f"{scope}Sub/output_0"])
    places = graph.node("Cast", [last], [f"{scope}Sub/Cast/output_0"], to=onnx.TensorProto.INT32)
    shape = graph.node("Shape", ["attention_mask"], [f"{scope}Shape/output_0"])
    one = graph.constant("/model/constants/INT64/1", np.array(1))
    total = graph.node("Gather", [shape, one], [f"{scope}Gather/output_0"], axis=0)
    return [places, graph.node("Cast", [total], [f"{scope}Gather/Cast/output_0"], to=onnx.TensorProto.INT32)]


def _weight(name: str) -> str:
    return name.removeprefix("/").replace("/", ".")


def _product(graph: _Graph, x: str, kernel: np.ndarray, name: str) -> str:
    weight = graph.constant(f"{_weight(name)}.MatMul.weight", kernel)
    return graph.node("MatMul", [x, weight], [f"{name}/MatMul/output_0"])


def _normalized(
    graph: _Graph, config: Config, residual: str, added: str | None, norm: Any, name: str
) -> tuple[str, str]:
    """Add a normalization of a residual with what is added to it; return both."""
    scale = graph.constant(f"{_weight(name)}.weight", _array(norm.scale))
    if added is None:
        options = {"epsilon": config.epsilon, "axis": -1, "stash_type": 1}
        result = f"{name}/LayerNorm/output_0"
        return graph.node("SimplifiedLayerNormalization", [residual, scale], [result], **options), residual
    outputs = [f"{name}/SkipLayerNorm/output_0", "", "", f"{name}/SkipLayerNorm/output_3"]
    inputs = [residual, added, scale]
    graph.node("SkipSimplifiedLayerNormalization", inputs, outputs, MICROSOFT, epsilon=config.epsilon)
    return outputs[0], outputs[-1]


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

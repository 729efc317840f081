"""Files that generate text: a decoder of two layers, and the search that runs it in a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HEADS = 11, 8, 2
DOMAIN = "com.microsoft"
Formal = tuple[int, list[str]]
IDS: Formal = (TensorProto.INT32, ["batch", "length"])
PROMPTS = np.array([[3, 4, 5], [0, 2, 7], [8, 9, 10]], np.int32)  # token 0 is padding


def one(number: float, dtype: Any = np.int32) -> np.ndarray:
    return np.array([number], dtype)


def greedy(most: int = 9, **others: Any) -> dict[str, Any]:
    """The inputs of a GreedySearch."""
    order = ("min_length", "repetition_penalty", "vocab_mask", "prefix_vocab_mask", "attention_mask")
    return {"input_ids": IDS, "max_length": one(most)} | {name: others.get(name) for name in order}


def beams(count: int, kept: int, most: int = 9, penalty: float = 1.0, **others: Any) -> dict[str, Any]:
    """The inputs of a BeamSearch."""
    inputs = greedy(most, **{"min_length": one(0), **others})  # ONNX Runtime asks for it
    first = {name: inputs.pop(name) for name in ("input_ids", "max_length", "min_length")}
    numbers = {"num_beams": one(count), "num_return_sequences": one(kept), "length_penalty": one(penalty, np.float32)}
    return first | numbers | inputs


def decoder(seed: int, prefix: str = "", masked: bool = True, shared: bool = False) -> GraphProto:
    """A decoder in the form of GPT-2; `shared` gives it the input of a cache that is written in place."""
    generator, value = np.random.default_rng(seed), helper.make_tensor_value_info

    def weight(name: str, *shape: int, scale: float = 1.0) -> str:
        array = (generator.normal(size=shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(array, prefix + name))
        return prefix + name

    weights: list[TensorProto] = []
    nodes = [
        helper.make_node("Gather", [weight("tokens", VOCABULARY, WIDTH), "input_ids"], ["embedded"]),
        helper.make_node("Gather", [weight("places", 32, WIDTH), "position_ids"], ["placed"]),
        helper.make_node("Add", ["embedded", "placed"], ["x0"]),
    ]
    for n in range(2):
        parts = [f"x{n}", weight(f"w{n}", WIDTH, 3 * WIDTH, scale=0.6), weight(f"b{n}", 3 * WIDTH)]
        operands = [*parts, "attention_mask" if masked else "", f"past_{n}"]
        attributes: dict[str, Any] = {"num_heads": HEADS, "unidirectional": 1}
        nodes += [
            helper.make_node("Attention", operands, [f"a{n}", f"present_{n}"], domain=DOMAIN, **attributes),
            helper.make_node("Add", [f"x{n}", f"a{n}"], [f"x{n + 1}"]),
        ]
    nodes.append(helper.make_node("MatMul", ["x2", weight("head", WIDTH, VOCABULARY, scale=0.3)], ["logits"]))
    cache = [2, "batch", HEADS, "past", WIDTH // HEADS]
    inputs = [value(name, *IDS) for name in ("input_ids", "position_ids")]
    inputs.append(value("attention_mask", TensorProto.INT32, ["batch", "total"]))
    inputs += [value(f"past_{n}", TensorProto.FLOAT, cache) for n in range(2)]
    inputs += [value("past_sequence_length", TensorProto.INT32, [1])] * shared
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])]
    outputs += [value(f"present_{n}", TensorProto.FLOAT, cache) for n in range(2)]
    return helper.make_graph(nodes, prefix + "decoder", inputs, outputs, weights)


def searching(operator: str, inputs: dict[str, Any], *, outputs: int = 1, **attributes: Any) -> ModelProto:
    """A file of one search; an input is an array, the type and shape of an input of the file, or None if it is left out."""
    formals = [
        helper.make_tensor_value_info(name, *given) for name, given in inputs.items() if isinstance(given, tuple)
    ]
    constants = [
        numpy_helper.from_array(given, name) for name, given in inputs.items() if isinstance(given, np.ndarray)
    ]
    names = ["" if given is None else name for name, given in inputs.items()]
    rank = 3 if operator == "BeamSearch" else 2
    made = [
        helper.make_tensor_value_info("sequences", TensorProto.INT32, [None] * rank),
        helper.make_tensor_value_info("sequences_scores", TensorProto.FLOAT, [None] * 2),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None] * 4),
    ][:outputs]
    attributes = {"eos_token_id": 1, "pad_token_id": 0, "model_type": 0} | attributes
    node = helper.make_node(operator, names, [each.name for each in made], "search", domain=DOMAIN, **attributes)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        helper.make_graph([node], "g", formals, made, constants), opset_imports=opsets, ir_version=10
    )

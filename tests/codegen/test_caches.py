"""Attention to key-value caches, as onnxruntime-genai's builder writes it: `nn.dot_product_attention` with its mask, and open sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import jaxport
from examples.language_model import build, export
from jaxport.codegen.recorded.fused import record_fused
from tests.codegen import structured
from tests.graph import test_caches as caches
from tests.importer.printed import without_jaxport

RANDOM = np.random.default_rng(0)
LAYERS, HEADS, GROUPS, SIZE, WIDTH = 2, 4, 2, 16, 16
INPUTS = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total", "cos", "sin", "positions"]
RUNTIME = "com.microsoft"


def decoder(packed: bool = True, positions: bool = False, **options: Any) -> onnx.ModelProto:
    """Layers of projections and attention, with one mask and one table of angles for all."""
    nodes, tensors = [], {}
    make = lambda *args, **more: nodes.append(helper.make_node(*args, **more))
    make("ReduceSum", ["attention_mask", "last"], ["counts"], keepdims=0)
    make("Sub", ["counts", "one"], ["before"])
    make("Cast", ["before"], ["seqlens"], to=onnx.TensorProto.INT32)
    make("Shape", ["attention_mask"], ["shape"])
    make("Gather", ["shape", "one"], ["length"], axis=0)
    make("Cast", ["length"], ["total"], to=onnx.TensorProto.INT32)
    angles = np.arange(64, dtype=np.float32)[:, None] * 0.5 ** np.arange(SIZE // 2, dtype=np.float32)
    tensors |= {"last": np.array([1]), "one": np.array(1), "cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    x = "x"
    values = [("x", 1, ["batch", "seq", WIDTH]), ("attention_mask", 7, ["batch", "total"])]
    values += [("position_ids", 7, ["batch", "seq"])] if positions else []
    outputs = [("y", 1, ["batch", "seq", WIDTH])]
    for layer in range(LAYERS):
        widths = [HEADS * SIZE, GROUPS * SIZE, GROUPS * SIZE]
        names = ["qkv"] if packed else ["q", "k", "v"]
        for name, width in zip(names, [sum(widths)] if packed else widths, strict=True):
            tensors[f"{layer}.{name}"] = RANDOM.normal(0, 0.3, (WIDTH, width)).astype(np.float32)
            make("MatMul", [x, f"{layer}.{name}"], [f"{layer}.{name}.y"])
        projected = [f"{layer}.{name}.y" for name in names] + ["", ""] * packed
        cache = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        angle = ["cos_cache", "sin_cache", "position_ids" if positions else ""] if options.get("do_rotary") else []
        make(
            "GroupQueryAttention", [*projected, *cache, "seqlens", "total", *angle], [f"{layer}.y", *present],
            domain=RUNTIME, num_heads=HEADS, kv_num_heads=GROUPS, **options,
        )  # fmt: skip
        tensors[f"{layer}.out"] = RANDOM.normal(0, 0.3, (HEADS * SIZE, WIDTH)).astype(np.float32)
        make("MatMul", [f"{layer}.y", f"{layer}.out"], [f"{layer}.o"])
        make("Add", [x, f"{layer}.o"], ["y" if layer == LAYERS - 1 else f"{layer}.x"])
        x = f"{layer}.x"
        values += [(name, 1, ["batch", GROUPS, "past", SIZE]) for name in cache]
        outputs += [(name, 1, ["batch", GROUPS, "present", SIZE]) for name in present]
    infos = [[helper.make_tensor_value_info(*info) for info in both] for both in (values, outputs)]
    graph = helper.make_graph(nodes, "decoder", *infos, [numpy_helper.from_array(a, n) for n, a in tensors.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(RUNTIME, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def inputs(model: onnx.ModelProto, past: int, new: int, batch: int = 2, masked: int = 0) -> dict[str, np.ndarray]:
    """A step: `past` rows are there, the first `masked` of the mask of the first sequence are not its own."""
    given: dict[str, np.ndarray] = {"attention_mask": np.ones((batch, past + new), np.int64)}
    given["attention_mask"][0, :masked] = 0
    for value in model.graph.input:
        if value.name.startswith("past"):
            given[value.name] = RANDOM.normal(size=(batch, GROUPS, past, SIZE)).astype(np.float32)
    given["x"] = RANDOM.normal(size=(batch, new, WIDTH)).astype(np.float32)
    given["position_ids"] = np.broadcast_to(past + np.arange(new), (batch, new)).astype(np.int64)
    return {value.name: given[value.name] for value in model.graph.input}


def in_runtime(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, given)


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "packed": ({"do_rotary": 1}, ["rotary(", "with_rows(", "mask = "]),
    "separate": ({"packed": False, "do_rotary": 1}, ["rotary("]),
    "window": ({"do_rotary": 1, "local_window_size": 3}, ["jnp.logical_and("]),
    "neighbours": ({"do_rotary": 1, "rotary_interleaved": 1}, ["rotary_interleaved("]),
    "plain": ({"scale": 0.2}, ["scale=0.2"]),
    "positions": ({"do_rotary": 1, "positions": True}, ["rotary("]),
}


@pytest.mark.parametrize(("case", "framework"), [*((case, "nnx") for case in CASES), ("packed", "equinox")])
def test_attention_to_a_cache_is_jax_attention(case: str, framework: str, tmp_path: Path):
    options, texts = CASES[case]
    model = decoder(**options)
    source = jaxport.from_onnx(model).to_source(tmp_path, framework=framework)
    assert source.code.count("nn.dot_product_attention(") == 1
    assert "for layer" in source.code
    assert not [text for text in (*texts, "mask=mask") if text not in source.code]
    assert "Embed" not in source.code
    module = structured.load(tmp_path)
    made = module.load()
    for past, new, masked in ((0, 5, 0), (5, 1, 2)):
        given = inputs(model, past, new, masked=masked)
        with without_jaxport():
            arguments = structured.arguments(module, [*map(jnp.asarray, given.values())])
            found = jax.tree.leaves(jax.jit(lambda *values: made(*values))(*arguments))
        expected = in_runtime(model, given)
        rows = (
            slice(None) if not masked else slice(1, None)
        )  # what precedes a shorter sequence in its cache is not its own
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one[rows], other[rows], rtol=1e-4, atol=1e-5)


def test_a_buffer_that_is_longer_than_what_it_holds():
    """The past and the present are one buffer: sizes are those of the buffer, and the mask says how much of it counts."""
    model = decoder(do_rotary=1)
    program = record_fused(jaxport.from_onnx(model)).program
    given = inputs(model, 6, 2)
    buffered = given | {"attention_mask": given["attention_mask"][:, :8]}
    for name in [name for name in given if name.startswith("past")]:
        buffered[name] = np.pad(given[name], [(0, 0), (0, 0), (0, 10), (0, 0)])
    short, long = jaxport.from_onnx(model)(**given), program(**buffered)
    np.testing.assert_allclose(long[0], short[0], rtol=1e-4, atol=1e-5)
    assert long[1].shape[2] == 16
    np.testing.assert_allclose(long[1][:, :, :8], short[1], rtol=1e-4, atol=1e-5)


def test_layers_share_what_depends_on_positions():
    graph = record_fused(jaxport.from_onnx(decoder(do_rotary=1))).program.model.graph
    parts = ("RowStarts", "RowPositions", "CacheMask", "CacheUpdate")
    counts = {part: sum(node.op_type == part for node in graph) for part in parts}
    assert counts == {"RowStarts": 1, "RowPositions": 1, "CacheMask": 1, "CacheUpdate": 2 * LAYERS}


def test_layers_share_what_is_added_to_scores():
    graph = record_fused(jaxport.from_onnx(export(build(), "static").model)).program.model.graph
    assert sum(node.op_type == "CacheBias" for node in graph) == 1
    assert sum(node.op_type == "DotProductAttention" for node in graph) == LAYERS


def test_what_jax_attention_does_not_compute_stays_spelled_out():
    model = decoder(smooth_softmax=1)
    code = jaxport.from_onnx(model).to_source(framework="nnx").code
    assert "dot_product_attention" not in code
    assert "softmax" in code


def test_the_tables_of_rotary_embeddings_are_no_parameters():
    program = jaxport.from_onnx(decoder(do_rotary=1))
    assert {*program.roles.values()} == {"parameter", "constant"}
    assert {name for name in program.params if "cache" in name} == set()


OWN = {
    "padded": "nn.dot_product_attention(",
    "window": "nn.dot_product_attention(",
    "soft cap": "softcap=5.0",
    "sinks": "sink=",
}


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize(
    ("kind", "framework"), [*((kind, "nnx") for kind in OWN), ("padded", "equinox"), ("sinks", "equinox")]
)
def test_exported_decoders_have_attention_with_their_masks(kind: str, framework: str, cache: Any, tmp_path: Path):
    """Padding is a bias of the operator, in a buffer that may be longer than the mask."""
    exported = caches.exported(caches.step(**caches.KINDS[kind]), cache)
    program = jaxport.from_onnx(exported.model)
    code = program.to_source(tmp_path, framework=framework).code
    assert OWN[kind] in code
    assert code.count("softmax(") == (kind in ("soft cap", "sinks"))  # in the function that is copied
    module = structured.load(tmp_path)
    made, rows = module.load(), 9 if cache == "static" else 5
    mask = np.array([[0, 0, 1, 1, 1, 1], [1] * 6])
    past = {
        name: RANDOM.normal(size=(2, caches.GROUPS, rows, caches.SIZE)).astype(np.float32) for name in ("key", "value")
    }
    given = {
        "input_ids": np.array([[3], [4]]), "attention_mask": mask, "position_ids": np.array([[3], [5]]),
        **{f"past_key_values.0.{name}": value for name, value in past.items()},
    }  # fmt: skip
    arrays = [jnp.asarray(given[name]) for name in program.input_names]
    with without_jaxport():
        found = jax.tree.leaves(jax.jit(lambda *values: made(*values))(*structured.arguments(module, arrays)))
    expected = jax.tree.leaves(exported(*[given[name] for name in program.input_names[:3]], [past]))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

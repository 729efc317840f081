"""Attention to key-value caches as GroupQueryAttention: what is recognised, what is declined, and that values agree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest

import jaxport
from jaxport.export.generation.decoders import decoder_inputs
from jaxport.testing import spec

HEADS, GROUPS, SIZE = 4, 2, 8
LOW = -1e30
STEPS = [
    {"batch_size": 2, "sequence_length": 3, "total_sequence_length": 3},
    {"batch_size": 2, "sequence_length": 1, "total_sequence_length": 6},
    {"batch_size": 1, "sequence_length": 3, "total_sequence_length": 7},
]


def written(past, rows, at, axis=2):
    if at is None:
        return jnp.concatenate([past, rows], axis=axis)
    return jax.lax.dynamic_update_slice_in_dim(past, rows, at, axis)


def step(
    *,
    window=None,
    cap=None,
    sinks=False,
    padded=True,
    scores_dtype=np.float32,
    low=LOW,
    groups=GROUPS,
    repeat=False,
    see=lambda keys, queries, ids: keys <= queries,
    read=lambda rows: rows,
    bias=None,
    joined=False,
    turned=False,
    late=False,
    limited=False,
    compared=False,
    summed=None,
    merged=False,
):
    """A decoder's step of one layer, whose attention is spelled out."""
    rng = np.random.default_rng(0)
    kernels = {
        name: rng.normal(size=(16, heads * SIZE)).astype(np.float32) / 4
        for name, heads in (("query", HEADS), ("key", groups), ("value", groups))
    }
    output, words = (rng.normal(size=shape).astype(np.float32) / 4 for shape in ((HEADS * SIZE, 11), (11, 16)))
    sink = rng.normal(size=(HEADS,)).astype(np.float32)

    def decode(input_ids, attention_mask, position_ids, past_key_values):
        (past,) = past_key_values
        dtype = past["key"].dtype
        x = jnp.asarray(words)[input_ids].astype(dtype)
        batch, length = input_ids.shape
        total, rows = attention_mask.shape[1], past["key"].shape[2]
        at = None if rows == total - length else total - length

        def heads(name, count):
            return (x @ kernels[name].astype(dtype)).reshape(batch, length, count, SIZE).swapaxes(1, 2)

        rows_first = (lambda x: x.swapaxes(1, 2)) if turned else (lambda x: x)
        present = {
            name: rows_first(written(rows_first(past[name]), rows_first(heads(name, groups)), at, 1 if turned else 2))
            for name in ("key", "value")
        }
        key, value = (read(present[name]) for name in ("key", "value"))
        query = heads("query", HEADS).reshape(batch, groups, HEADS // groups, length, SIZE)
        if repeat:
            key, value = (jnp.repeat(side, HEADS // groups, axis=1)[:, :, None] for side in (key, value))
            query = query.reshape(batch, HEADS, 1, length, SIZE)
        if merged:
            flat, columns = query.reshape(-1, length, SIZE), key.reshape(-1, key.shape[2], SIZE).swapaxes(1, 2)
            scores = (flat @ columns).reshape(batch, groups, 1, length, -1)
        else:
            scores = jnp.einsum("bgrqd,bgrkd->bgrqk" if repeat else "bgrqd,bgkd->bgrqk", query, key)
        scores = scores.astype(scores_dtype) * SIZE**-0.5
        if cap is not None:
            scores = cap * jnp.tanh(scores / cap)
        queries, keys = jnp.arange(total - length, total)[:, None], jnp.arange(key.shape[-2])
        whole = attention_mask
        if at is not None and joined:
            whole = jnp.concatenate([whole, jnp.zeros((batch, rows - total), whole.dtype)], axis=1)
        elif at is not None:
            whole = jnp.pad(attention_mask, ((0, 0), (0, rows - total)))
        if bias is not None:
            added = bias(keys, queries, whole)
            scores = scores + (added if added.ndim == 2 else added[:, None, None])
        seen = see(keys, queries, position_ids)
        if window is not None:
            seen &= keys > queries - window
        if padded and not late:
            seen = seen & (whole[:, None, :] != 0)
        if compared:
            seen = jnp.where(seen, 0.0, low) == 0
        if summed is not None:
            mask = jnp.where(seen if seen.ndim == 2 else seen[:, None, None], 0, low).astype(scores.dtype)
            added = (mask if mask.ndim == 2 else mask[:, 0]) + summed(keys[None, None], total).astype(scores.dtype)
            scores = scores + added.reshape(-1, groups, HEADS // groups, *added.shape[-2:])
        else:
            scores = jnp.where(seen if seen.ndim == 2 else seen[:, None, None], scores, low)
        if late:
            scores = scores + (1 - whole[:, None, None, None].astype(scores.dtype)) * -1e4
        if limited:
            scores = jnp.maximum(scores, jnp.finfo(scores.dtype).min)
        if sinks:
            column = jnp.broadcast_to(sink.reshape(groups, -1)[:, :, None, None], (*scores.shape[:-1], 1))
            scores = jnp.concatenate([scores, column.astype(scores.dtype)], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)
        weights = (weights[..., :-1] if sinks else weights).astype(value.dtype)
        if merged:
            mixed = weights.reshape(-1, length, key.shape[2]) @ value.reshape(-1, key.shape[2], SIZE)
        else:
            mixed = jnp.einsum("bgrqk,bgrkd->bgrqd" if repeat else "bgrqk,bgkd->bgrqd", weights, value)
        mixed = mixed.reshape(batch, HEADS, length, SIZE).swapaxes(1, 2).reshape(batch, length, HEADS * SIZE)
        return {"logits": (mixed @ output.astype(dtype)).astype(np.float32), "present": [present]}

    return decode


def exported(fn, cache="growing", groups=GROUPS, dtype=np.float32, target="genai"):
    return jaxport.to_onnx(fn, decoder_inputs(1, groups, SIZE, cache=cache, dtype=dtype), target=target)


def attention_of(model):
    (node,) = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    return node


def reason(result):
    return next(report.text for report in result.pass_reports if report.name == "cached_attention")


def slopes(keys, total):
    """ALiBi: a head's slope times the distance to the last key."""
    return 0.5 ** jnp.arange(1, HEADS + 1)[:, None, None] * (keys - total + 1)


KINDS = {
    "plain": {"padded": False},
    "padded": {},
    "window": {"window": 2},
    "soft cap": {"cap": 5.0},
    "sinks": {"sinks": True, "window": 3, "cap": 4.0},
    "one group": {"groups": 1},
    "positions before heads": {"turned": True},
    "repeated heads": {"repeat": True},
    "positions": {"see": lambda keys, queries, ids: keys <= ids[:, :, None]},
    "from above": {"see": lambda keys, queries, ids: ~(queries < keys)},
    "added behind a mask": {"late": True},
    "limited": {"late": True, "limited": True},
    "compared": {"compared": True},
    "distances": {"see": lambda keys, queries, ids: (queries - keys >= 0) & (queries - keys < 3)},
    "heads in the batch": {"merged": True, "groups": HEADS},
    "slopes in the mask": {"summed": slopes},
    "slopes of one group": {"summed": slopes, "groups": 1},
}


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_to_a_cache_is_one_operator_with_the_same_values(kind, cache):
    options = KINDS[kind]
    result = exported(step(**options), cache, options.get("groups", GROUPS))
    node = attention_of(result.model)
    assert (len(node.inputs) > 10 and node.inputs[10] is not None) == options.get("padded", True)
    assert ("local_window_size" in node.attributes) == (kind in ("window", "sinks", "distances"))
    more = {"max_sequence_length": 9} if cache == "static" else {}
    assert result.verify(sizes=[{**sizes, **more} for sizes in STEPS]).ok


WIDE, HALF = {}, {"in_half": True, "sinks": True, "window": 3, "cap": 4.0}


# A softmax that rounds to bfloat16 inside is more than one operator: no runtime has a kernel for it.
@pytest.mark.parametrize(
    ("dtype", "cache", "options"),
    [
        *((np.float16, cache, options) for cache in ("growing", "static") for options in (WIDE, HALF)),
        (jnp.bfloat16, "growing", WIDE),
    ],
)
def test_half_precision(dtype, cache, options):
    """Casts around scales, soft caps, masks and the softmax are not part of an attention."""
    options = dict(options)
    scores = dtype if options.pop("in_half", False) else np.float32
    low = float(jnp.finfo(scores).min) if scores is np.float16 else LOW
    result = exported(step(scores_dtype=scores, low=low, **options), cache, dtype=dtype)
    node = attention_of(result.model)
    assert node.outputs[0].dtype == (ir.DataType.FLOAT16 if dtype is np.float16 else ir.DataType.FLOAT)
    more = {"max_sequence_length": 9} if cache == "static" else {}
    assert result.verify(sizes=[{**sizes, **more} for sizes in STEPS]).ok


def test_a_mask_that_shows_later_keys_is_declined():
    result = exported(step(see=lambda keys, queries, ids: keys <= queries + 1))
    assert "its mask is not known to hide the keys after the position of a query" in reason(result)
    assert "GroupQueryAttention" not in {node.op_type for node in result.model.graph}
    assert result.verify(sizes=STEPS[2:]).ok


def test_a_cache_that_is_read_elsewhere_is_declined():
    def decode(input_ids, attention_mask, position_ids, past_key_values):
        result = step()(input_ids, attention_mask, position_ids, past_key_values)
        return {**result, "logits": result["logits"] + result["present"][0]["key"].sum()}

    assert "its cache is read elsewhere, too" in reason(exported(decode))


def test_padding_is_a_reason_where_callers_keep_to_no_terms():
    def other(ids, mask, positions, cache):
        return step()(ids, mask, positions, [cache])

    def causal(ids, mask, positions, cache):
        return step(padded=False)(ids, mask, positions, [cache])

    ids, mask, positions, (cache,) = decoder_inputs(1, GROUPS, SIZE)
    rows, new = spec("B", GROUPS, "P", SIZE), spec("B", 1, dtype=np.int64)
    single = [new, spec("B", "P + 1", dtype=np.int64), new, {"key": rows, "value": rows}]
    reasons = [
        reason(jaxport.to_onnx(fn, inputs, target="onnxruntime"))
        for fn, inputs in ((other, single), (causal, [ids, mask, positions, cache]))
    ]
    assert "a row of its mask may hide all keys" in reasons[0]
    assert "for a batch of one sequence" in reasons[1]
    result = jaxport.to_onnx(causal, single, target="onnxruntime")
    assert attention_of(result.model)
    assert result.verify().ok


@pytest.mark.parametrize("target", ["openvino", "portable", "web", "onnx"])
def test_other_targets_keep_what_they_have(target):
    result = exported(step(), target=target)
    assert "GroupQueryAttention" not in {node.op_type for node in result.model.graph}


def test_rows_behind_the_last_one_stay_in_the_only_buffer():
    result = exported(step(), "static")
    rng = np.random.default_rng(0)
    past = {name: rng.normal(size=(1, GROUPS, 9, SIZE)).astype(np.float32) for name in ("key", "value")}
    before = {name: rows.copy() for name, rows in past.items()}
    present = result(np.array([[3]]), np.ones((1, 4), int), np.array([[3]]), [past])["present"][0]
    for name, rows in before.items():
        np.testing.assert_array_equal(past[name], rows)
        np.testing.assert_array_equal(present[name][:, :, 4:], rows[:, :, 4:])


BIASES = {
    "distances": lambda keys, queries, mask: 0.1 * (keys - queries).astype(np.float32),
    "a table": lambda keys, queries, mask: jnp.asarray(np.linspace(-1, 1, 16, dtype=np.float32))[
        jnp.clip(queries - keys, 0, 15)
    ],
    "sums along the buffer": lambda keys, queries, mask: jnp.cumsum(mask, axis=1).astype(np.float32)[:, None] * 0.1,
    "two numbers": lambda keys, queries, mask: jnp.where((mask[:, None] + 1) * 2 > 2, 0.5, 0.0),
}


@pytest.mark.parametrize(("kind", "joined"), [*((kind, False) for kind in BIASES), ("two numbers", True)])
def test_what_is_added_to_scores_is_computed_for_the_rows_that_are_filled(kind, joined):
    """The length of the buffer of a static cache is that of no computed value."""
    result = exported(step(bias=BIASES[kind], joined=joined), "static")
    node = attention_of(result.model)
    lengths = [
        value for each in result.model.graph for value in each.outputs if "max_sequence_length" in str(value.shape)
    ]
    if kind != "sums along the buffer":  # which depend on all elements before, as the operator may have them
        assert {value.name for value in lengths} == {value.name for value in node.outputs[1:]}
    assert result.verify(sizes=[{**sizes, "max_sequence_length": 9} for sizes in STEPS]).ok


def test_heads_that_are_repeated_in_half_precision():
    """No kernel repeats bfloat16: the heads are float32 in between, which rounds nothing."""
    result = exported(step(repeat=True), dtype=jnp.bfloat16)
    assert attention_of(result.model)
    assert result.verify(sizes=STEPS).ok


@pytest.mark.parametrize(
    ("options", "text"), [({"late": True, "window": 2}, "is added to those"), ({"limited": True}, "are limited")]
)
def test_what_is_done_to_hidden_scores_is_a_reason_elsewhere(options, text):
    """A row that is masked as a whole is another one."""

    def other(ids, mask, positions, cache):
        return step(**options)(ids, mask, positions, [cache])

    new = spec(1, 1, dtype=np.int64)
    rows = spec(1, GROUPS, "P", SIZE)
    inputs = [new, spec(1, "P + 1", dtype=np.int64), new, {"key": rows, "value": rows}]
    result = jaxport.to_onnx(other, inputs, target="onnxruntime")
    assert text in reason(result)
    assert result.verify().ok


def far(keys, total):
    return 16 * slopes(keys, total)


PADDED = {
    "a mask": {},
    "slopes in the mask": {"summed": far},
    "slopes behind a mask": {"bias": lambda keys, queries, mask: far(keys, mask.shape[1])[0]},
    "an addition to what a mask hides": {"late": True},
}


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("kind", PADDED)
def test_rows_of_padding_stay_finite_in_half_precision(kind, cache):
    """A row of minus infinity would be NaN, and so would be all that reads it in the next layers."""
    inputs = decoder_inputs(1, GROUPS, SIZE, cache=cache)
    result = jaxport.to_onnx(step(**PADDED[kind]), inputs, target="genai", precision="float16", io="float16")
    assert attention_of(result.model).outputs[0].dtype is ir.DataType.FLOAT16
    ids, mask = np.ones((2, 12), np.int64), np.ones((2, 12), np.int64)
    mask[1, :9] = 0
    rows = np.zeros((2, GROUPS, 14 if cache == "static" else 0, SIZE), np.float16)
    given = ids, mask, np.maximum(mask.cumsum(1) - 1, 0), [{"key": rows, "value": rows}]
    found, expected = (np.asarray(fn(*given)["logits"], np.float32) for fn in (result, jax.jit(step(**PADDED[kind]))))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(found[1, 9:], expected[1, 9:], rtol=2e-2, atol=2e-2)

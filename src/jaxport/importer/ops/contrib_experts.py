"""Mixtures of experts of ONNX Runtime's own domain, in floats and in packed integers."""

from __future__ import annotations

from typing import Any

from jaxport.importer.ops.contrib_attention import DOMAIN, refuse
from jaxport.importer.ops.contrib_quantized import unpacked
from jaxport.importer.resolving.registry import REQUIRED, op
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import cast, helper, jnp, lax, nn

ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


@helper
def routing_weights(scores, k, normalized, shares=None):
    """Return what the answer of each expert counts for each token, (tokens, experts): zero but for the `k` best ones.

    The shares of the experts are a softmax of the scores unless they are given. Of equal scores the last expert is
    chosen, as by the runtime.
    """
    shares = nn.softmax(scores) if shares is None else shares
    experts = scores.shape[-1]
    chosen = experts - 1 - lax.top_k(scores[..., ::-1], k)[1]
    weights = jnp.take_along_axis(shares, chosen, -1)
    if normalized:
        weights = weights / jnp.sum(weights, -1, keepdims=True)
    return jnp.sum(nn.one_hot(chosen, experts, dtype=weights.dtype) * weights[..., None], -2)


@helper
def swiglu_of_pairs(rows, fusion, alpha, beta, limit):
    """Return `gate * sigmoid(alpha * gate) * (value + beta)`, of neighbours along the last axis, or of its halves."""
    gate, value = (rows[..., ::2], rows[..., 1::2]) if fusion == 1 else jnp.split(rows, 2, -1)
    if limit is not None:
        gate, value = jnp.minimum(gate, limit), jnp.clip(value, -limit, limit)
    return gate * nn.sigmoid(alpha * gate) * (value + beta)


@helper
def expert_matrices(packed, scales, zero_points, bits):
    """Return matrices of experts, (experts, columns, rows), that are stored in packed numbers, each block with a
    scale.
    """
    experts, columns = packed.shape[:2]
    values = unpacked(packed, bits).astype(scales.dtype)
    blocks = scales.size // (experts * columns)
    if zero_points is None:
        zeros = 2.0 ** (bits - 1)
    elif zero_points.ndim == 3:
        zeros = unpacked(zero_points, bits)[..., :blocks, None].astype(scales.dtype)
    else:
        zeros = unpacked(zero_points, bits)[:, :columns, None, None].astype(scales.dtype)
    grouped = values.reshape(experts, columns, blocks, -1) - zeros
    return (grouped * scales.reshape(experts, columns, blocks, 1)).reshape(experts, columns, -1)


def _projected(x: Tensor, matrices: Tensor, bias: Tensor | None) -> Tensor:
    """Return the products of tokens with the matrices of all experts: (tokens, experts, columns)."""
    y = jnp.einsum("th,eih->tei", x, matrices)
    return y if bias is None else y + bias


def _mixture(
    x: Tensor,
    weights: Tensor,
    matrices: tuple[Any, Any, Any],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None],
    activation_type: str,
    swiglu: tuple[int, float, float, float | None],
) -> Tensor:
    """Return the answers of experts, weighed and summed."""
    first, last, gate = matrices
    fusion, alpha, beta, limit = swiglu
    refuse(activation_type not in ACTIVATIONS, f"the activation {activation_type!r}; {', '.join(ACTIVATIONS)} are")
    tokens = jnp.reshape(x, (-1, x.shape[-1])) if x.ndim != 2 else x
    inner = _projected(tokens, first, biases[0])
    if activation_type == "swiglu":
        refuse(fusion == 0 and gate is None, "`swiglu_fusion=0` without a third matrix")
        refuse(fusion != 0 and gate is not None, "a third matrix beside a fused one")
        if gate is not None:
            inner = jnp.concatenate([inner, _projected(tokens, gate, biases[2])], axis=-1)
        inner = swiglu_of_pairs(inner, fusion, alpha, beta, limit)
    else:
        functions = {"relu": nn.relu, "gelu": nn.gelu, "silu": nn.silu, "identity": lambda y: y}
        inner = functions[activation_type](inner)
        inner = inner if gate is None else inner * _projected(tokens, gate, biases[2])
    answers = jnp.einsum("tei,ehi->teh", inner, last)
    answers = answers if biases[1] is None else answers + biases[1]
    y = jnp.einsum("te,teh->th", weights, answers)
    return y if x.ndim == 2 else jnp.reshape(y, x.shape)


@op(DOMAIN, "MoE", since=1)
def mixture_of_experts(
    input,
    router_probs,
    fc1_experts_weights,
    fc1_experts_bias=None,
    fc2_experts_weights=REQUIRED,
    fc2_experts_bias=None,
    fc3_experts_weights=None,
    fc3_experts_bias=None,
    *,
    activation_type="relu",
    activation_alpha=1.0,
    activation_beta=0.0,
    k=1,
    normalize_routing_weights=0,
    swiglu_fusion=0,
    swiglu_limit=None,
    swiglu_limit_after_activation=0,
    use_sparse_mixer=0,
):
    refuse(bool(use_sparse_mixer), "`use_sparse_mixer`")
    refuse(bool(swiglu_limit_after_activation), "`swiglu_limit_after_activation`")
    weights = routing_weights(router_probs, k, bool(normalize_routing_weights))
    matrices = fc1_experts_weights, fc2_experts_weights, fc3_experts_weights
    biases = fc1_experts_bias, fc2_experts_bias, fc3_experts_bias
    swiglu = swiglu_fusion, activation_alpha, activation_beta, swiglu_limit
    return _mixture(input, weights, matrices, biases, activation_type, swiglu)


@op(DOMAIN, "QMoE", since=1)
def quantized_mixture_of_experts(
    input,
    router_probs,
    fc1_experts_weights,
    fc1_scales=None,
    fc1_experts_bias=None,
    fc2_experts_weights=REQUIRED,
    fc2_scales=None,
    fc2_experts_bias=None,
    fc3_experts_weights=None,
    fc3_scales=None,
    fc3_experts_bias=None,
    fc1_zero_points=None,
    fc2_zero_points=None,
    fc3_zero_points=None,
    router_weights=None,
    fc1_global_scale=None,
    fc2_global_scale=None,
    fc1_act_scale=None,
    fc2_act_scale=None,
    fc1_act_block_scale=None,
    fc2_act_block_scale=None,
    *,
    accuracy_level=0,
    activation_type="relu",
    activation_alpha=1.0,
    activation_beta=0.0,
    block_size=None,
    expert_weight_bits=4,
    fc1_expert_weight_bits=None,
    fc2_expert_weight_bits=None,
    fc3_expert_weight_bits=None,
    k=1,
    normalize_routing_weights=0,
    quant_type="int",
    swiglu_fusion=0,
    swiglu_limit=None,
    swiglu_limit_after_activation=0,
    use_sparse_mixer=0,
    weights_prepacked=-1,
):
    refuse(bool(use_sparse_mixer), "`use_sparse_mixer`")
    refuse(bool(swiglu_limit_after_activation), "`swiglu_limit_after_activation`")
    refuse(quant_type != "int", f"weights of the type {quant_type!r}; integers are")
    refuse(weights_prepacked == 1, "`weights_prepacked`: weights in the layout of one device")
    widths = [
        expert_weight_bits if own is None else own
        for own in (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)
    ]
    refuse(any(bits not in (2, 4, 8) for bits in widths), f"{max(widths)} bits; 2, 4 and 8 are")
    first, last = (
        expert_matrices(packed, cast(scales, input.dtype), zeros, bits)
        for packed, scales, zeros, bits in (
            (fc1_experts_weights, fc1_scales, fc1_zero_points, widths[0]),
            (fc2_experts_weights, fc2_scales, fc2_zero_points, widths[1]),
        )
    )
    gate = fc3_experts_weights
    if gate is not None:
        gate = expert_matrices(gate, cast(fc3_scales, input.dtype), fc3_zero_points, widths[2])
    # ONNX Runtime's kernel on CPUs ignores the attribute unless shares are given beside the scores.
    normalized = router_weights is None or bool(normalize_routing_weights)
    weights = routing_weights(router_probs, k, normalized, router_weights)
    biases = fc1_experts_bias, fc2_experts_bias, fc3_experts_bias
    swiglu = swiglu_fusion, activation_alpha, activation_beta, swiglu_limit
    return _mixture(input, weights, (first, last, gate), biases, activation_type, swiglu)

"""Mixtures of experts of ONNX Runtime's own domain: values against its kernels, what they print as, and refusals."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxport
from jaxport.errors import Unsupported
from jaxport.importer import from_onnx
from tests.importer import printed
from tests.importer.test_contrib import check, f, i, model_of

EXPERTS, HIDDEN, INNER, TOKENS = 4, 32, 48, 5


def mixture(activation: str, *, biases: bool = True, three: bool = False) -> list[Any]:
    """The inputs of a MoE; those of a kernel on CPUs."""
    rows = INNER * (2 if activation == "swiglu" else 1)
    x = f(1, TOKENS, HIDDEN) if three else f(TOKENS, HIDDEN)
    parts = [f(EXPERTS, rows, HIDDEN, scale=0.2), f(EXPERTS, rows), f(EXPERTS, HIDDEN, INNER, scale=0.2)]
    return [x, f(TOKENS, EXPERTS), *(parts if biases else [parts[0], None, parts[2]]), f(EXPERTS, HIDDEN)]


@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
def test_mixture_of_experts(activation: str, normalized: int) -> None:
    fused = {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5}
    check(
        "MoE", *mixture(activation, three=bool(normalized), biases=not normalized), activation_type=activation,
        k=2, normalize_routing_weights=normalized, **(fused if activation == "swiglu" else {}),
    )  # fmt: skip


def test_of_equal_scores_the_runtime_chooses_the_last_experts() -> None:
    inputs = mixture("relu")
    inputs[1] = np.float32([[0, 0, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
    check("MoE", *inputs, k=2)


def test_three_matrices_are_what_fused_ones_are() -> None:
    """ONNX Runtime has no kernel of these on CPUs."""
    x, scores, fused, bias, last, last_bias = mixture("swiglu")
    attributes = {"activation_type": "swiglu", "k": 2}
    parts = [x, scores, fused[:, ::2], bias[:, ::2], last, last_bias, fused[:, 1::2], bias[:, 1::2]]
    apart = from_onnx(model_of("MoE", parts, 1, attributes))(**{f"x{n}": one for n, one in enumerate(parts)})
    parts = [x, scores, fused, bias, last, last_bias]
    whole = from_onnx(model_of("MoE", parts, 1, {**attributes, "swiglu_fusion": 1}))
    np.testing.assert_allclose(apart, whole(**{f"x{n}": one for n, one in enumerate(parts)}), rtol=1e-5, atol=1e-5)
    order = np.r_[0 : 2 * INNER : 2, 1 : 2 * INNER : 2]
    parts = [x, scores, fused[:, order], bias[:, order], last, last_bias]
    halves = from_onnx(model_of("MoE", parts, 1, {**attributes, "swiglu_fusion": 2}))
    np.testing.assert_allclose(apart, halves(**{f"x{n}": one for n, one in enumerate(parts)}), rtol=1e-5, atol=1e-5)


def quantized(bits: int, block: int, *, zeros: bool, shares: bool, activation: str = "swiglu") -> list[Any]:
    """The inputs of a QMoE."""
    rows = INNER * (2 if activation == "swiglu" else 1)
    sides = []
    for columns, depth in ((rows, HIDDEN), (HIDDEN, INNER)):
        blocks = depth // block
        points = i(EXPERTS, columns, -(-blocks * bits // 8), high=256) if zeros else None
        packed = i(EXPERTS, columns, depth * bits // 8, high=256)
        sides.append((packed, f(EXPERTS, columns, blocks, scale=0.3 / 2**bits), points))
    (one, one_scale, one_zero), (two, two_scale, two_zero) = sides
    given = np.abs(f(TOKENS, EXPERTS)) + np.float32(0.1) if shares else None
    inputs = [f(TOKENS, HIDDEN), f(TOKENS, EXPERTS), one, one_scale, f(EXPERTS, rows), two, two_scale, None]
    inputs += [None, None, None, one_zero, two_zero, None, given]
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("zeros", "shares"), [(False, False), (True, False), (True, True), (False, True)])
def test_quantized_mixture_of_experts(bits: int, zeros: bool, shares: bool) -> None:
    for normalized in (0, 1):
        check(
            "QMoE", *quantized(bits, 16, zeros=zeros, shares=shares), k=2, normalize_routing_weights=normalized,
            activation_type="swiglu", swiglu_fusion=1, expert_weight_bits=bits, block_size=16,
            atol=5e-3 if bits == 8 else 2e-5,  # the kernel of 8 bits rounds tokens, too
        )  # fmt: skip


@pytest.mark.parametrize("framework", ["jax", "nnx", "equinox"])
@pytest.mark.parametrize("operator", ["MoE", "QMoE"])
def test_experts_are_printed(operator: str, framework: str) -> None:
    attributes: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2}
    if operator == "MoE":
        inputs = mixture("swiglu")
    else:
        inputs = quantized(4, 16, zeros=True, shares=False)
        attributes |= {"expert_weight_bits": 4, "block_size": 16}
    program = from_onnx(model_of(operator, inputs, 1, attributes))
    arguments = {f"x{index}": x for index, x in enumerate(inputs) if x is not None}
    if framework == "jax":
        module = printed.load(program.to_source(framework="jax"))
        (found,) = printed.run(module, arguments)
        np.testing.assert_allclose(found, jax.jit(program)(**arguments), rtol=1e-5, atol=1e-5)
    assert "routing_weights(" in program.to_source(framework=framework).code


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"use_sparse_mixer": 1}, "`use_sparse_mixer`"),
        ({"activation_type": "relu2"}, "the activation 'relu2'"),
        ({"activation_type": "swiglu"}, "`swiglu_fusion=0` without a third matrix"),
    ],
)
def test_what_is_not_known_is_refused(attributes: dict[str, Any], text: str) -> None:
    inputs = mixture("swiglu" if attributes.get("activation_type") == "swiglu" else "relu")
    program = from_onnx(model_of("MoE", inputs, 1, attributes))
    with pytest.raises(Unsupported, match=rf"(?s)MoE that makes `y0`.*{text}"):
        program(**{f"x{index}": x for index, x in enumerate(inputs) if x is not None})


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"quant_type": "fp8"}, "weights of the type 'fp8'"),
        ({"expert_weight_bits": 3}, "3 bits"),
        ({"weights_prepacked": 1}, "`weights_prepacked`"),
    ],
)
def test_other_quantized_experts_are_refused(attributes: dict[str, Any], text: str) -> None:
    inputs = quantized(4, 16, zeros=False, shares=False, activation="relu")
    program = from_onnx(model_of("QMoE", inputs, 1, {"block_size": 16, **attributes}))
    with pytest.raises(Unsupported, match=rf"(?s)QMoE that makes `y0`.*{text}"):
        program(**{f"x{index}": x for index, x in enumerate(inputs) if x is not None})


def test_experts_come_back_as_the_operator_and_as_themselves_elsewhere() -> None:
    program = from_onnx(model_of("MoE", mixture("relu"), 1, {"k": 2}))
    inputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in mixture("relu")]
    for target, count in (("onnxruntime", 1), ("portable", 0)):
        model = jaxport.to_onnx(program, inputs, target=target)
        assert sum(node.op_type == "MoE" for node in model.model.graph) == count
        model.verify()

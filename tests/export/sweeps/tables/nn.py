"""The cases of `jax.nn`."""

from __future__ import annotations

from jax._src.cudnn import scaled_matmul_stablehlo as stablehlo
from jax._src.interpreters import mlir

from jaxport.jaxprs import release
from tests.export.sweeps.cases import FLOATS, array, case, each, indices, positive

X, Y = array("B", "T"), array("B", "T")
HEADS = [array("B", "T", 2, 4), array("B", "H", 2, 4), array("B", "H", 2, 4)]

CASES = {
    **each(
        "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log1mexp log_sigmoid mish relu "
        "relu6 selu sigmoid silu soft_sign softplus sparse_plus sparse_sigmoid squareplus swish tanh", X
    ),
    **each("log_softmax logmeanexp logsumexp softmax standardize", X, axis=-1),
    "glu": case(array("B", 6)),
    "one_hot": case(indices("B", "T", bound=5), 5),
    "dot_product_attention": case(*HEADS, dtypes=FLOATS, narrow=True, rtol=1e-5, atol=1e-5),
    "scaled_dot_general": case(
        array("B", 4, 32), array("B", 5, 32), call=lambda f, x, y: f(x, y, (((2,), (2,)), ((0,), (0,)))),
        dtypes=("float32", "float16", "bfloat16"),
    ),
    "scaled_matmul": case(
        array("B", 4, 32), array("B", 5, 32), array("B", 4, 1, values=positive), array("B", 5, 1, values=positive),
        call=lambda f, x, y, s, t: f(*(v.astype("float8_e4m3fn") for v in (x, y)), *(v.astype("float8_e8m0fnu") for v in (s, t))),
        dtypes=("float32", "bfloat16"), options={"opset": 25},
    ),
}  # fmt: skip

REASONS = {
    "get_scaled_dot_general_config": "makes a configuration, not an array",
}
# JAX has kernels of `scaled_matmul` for GPUs; its lowering for those of AMD, which older releases lack, is made of
# operations that a CPU has too. JAX 0.9 computes `scaled_dot_general` without that kernel.
_LOWERING = getattr(stablehlo, "_scaled_matmul_rocm_lowering", None)
if _LOWERING is not None:
    mlir.register_lowering(stablehlo._scaled_matmul_p, _LOWERING, platform="cpu")
_OF_KERNELS = ("scaled_matmul", *(["scaled_dot_general"] if release >= (0, 10) else []))
ELSEWHERE = {} if _LOWERING else {name: CASES.pop(name) for name in _OF_KERNELS}

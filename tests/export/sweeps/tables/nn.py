"""The cases of `jax.nn`."""

from __future__ import annotations

import numpy as np

from tests.export.sweeps.cases import FLOATS, array, case, each, indices

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
    "dot_product_attention": case(*HEADS, dtypes=FLOATS),
    "scaled_dot_general": case(
        array("B", 4, 32), array("B", 5, 32), call=lambda f, x, y: f(x, y, (((2,), (2,)), ((0,), (0,)))),
        dtypes=("float32", "float16", "bfloat16"),
    ),
}  # fmt: skip

REASONS = {
    "get_scaled_dot_general_config": "makes a configuration, no array",
}
ELSEWHERE = {
    "scaled_matmul": case(
        array(1, 4, 32), array(1, 4, 32), dtypes=("float32",),
        call=lambda f, x, y: f(
            x.astype("float8_e4m3fn"), y.astype("float8_e4m3fn"),
            np.ones((1, 4, 1), "float8_e8m0fnu"), np.ones((1, 4, 1), "float8_e8m0fnu")
        ),
    ),
}  # fmt: skip

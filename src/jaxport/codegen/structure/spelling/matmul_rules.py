"""Products of matrices that exporters write for linear layers: of flattened rows, and of columns.

Before and after:

    (x.reshape(-1, 64) @ w).reshape(batch, length, 32)   →   x @ w   of `x` of shape (batch, length, 64)
    x @ w + residual + bias                              →   x @ w + bias + residual
"""

from __future__ import annotations

from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN, is_single
from jaxport.importer.values.host import Dim
from jaxport.importer.values.recording import Variable


def _shape_of_rows(flat: Variable, x: Variable, kernel: Variable, out: Variable) -> list[Dim] | None:
    """Return the shape of what is multiplied with a matrix if its rows are not flattened before."""
    is_matrix = isinstance(kernel, Variable) and len(kernel.shape) == len(flat.shape) == 2
    if not isinstance(x, Variable) or not is_matrix or len(out.shape) < 3 or kernel.shape[-1] != out.shape[-1]:
        return None
    return [*out.shape[:-1], kernel.shape[0]]


AS_WRITTEN.rewrite(
    "jnp.reshape((flat := jnp.reshape(x, _)) @ kernel, _)", "(flat := jnp.reshape(x, shape)) @ kernel",
    shape=_shape_of_rows,
)  # fmt: skip
AS_WRITTEN.rewrite(
    "jnp.reshape((product := (flat := jnp.reshape(x, _)) @ kernel) + bias, _)", "(product := (flat := jnp.reshape(x, shape)) @ kernel) + bias",
    when=lambda bias, out: isinstance(bias, Variable) and bias.shape == out.shape[-1:], shape=_shape_of_rows,
)  # fmt: skip


# SkipLayerNormalization adds the bias of the product before it behind the residual


def _is_of_product(
    bias: object,
    product: Variable,
    w: object,
    residual: object,
    out: Variable,
    rewriting: StepRewriting,
) -> bool:
    return (
        is_single(out)
        and isinstance(residual, Variable)
        and isinstance(bias, Variable)
        and bias in rewriting.weights
        and w in rewriting.weights
        and product.shape == residual.shape == out.shape
        and bias.shape == out.shape[-1:]
    )


AS_WRITTEN.rewrite(
    "(product := x @ w) + residual + bias", "(product := product + bias) + residual", when=_is_of_product
)


def _is_of_columns(kernel: Variable, x: Variable, rewriting: StepRewriting) -> bool:
    is_weight = isinstance(kernel, Variable) and kernel in rewriting.weights
    return is_weight and len(kernel.shape) == 2 and isinstance(x, Variable)


AS_WRITTEN.rewrite(
    "kernel @ jnp.transpose(x, (0, 2, 1))", "jnp.transpose(x @ jnp.transpose(kernel, (1, 0)), (0, 2, 1))",
    when=_is_of_columns,
)  # fmt: skip

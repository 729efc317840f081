"""Products of matrices that exporters write for linear layers: of flattened rows, and of columns.

Before and after:

    (x.reshape(-1, 64) @ w).reshape(batch, length, 32)   →   x @ w   of `x` of shape (batch, length, 64)
    x @ w + residual + bias                              →   x @ w + bias + residual
"""

from __future__ import annotations

from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN, is_single
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.recording import Step, Variable

# `(x.reshape(-1, n) @ w + b).reshape(batch, length, m)` is `x @ w + b`


def _rows(
    flat: Variable, x: RuntimeValue, kernel: RuntimeValue, out: Variable, rewriting: StepRewriting
) -> RuntimeValue:
    """Return what is multiplied with a matrix if its rows are not flattened before, and the result is not shaped after."""
    rank, shape = len(flat.shape), out.shape
    if not isinstance(x, Variable) or not isinstance(kernel, Variable) or len(kernel.shape) != 2 or rank != 2:
        return None
    if len(shape) < 3 or kernel.shape[-1] != shape[-1]:
        return None
    whole = (*shape[:-1], kernel.shape[0])
    return (
        x if x.shape == whole else rewriting.call(rewriting.producers.made[flat], "jnp.reshape", (x, [*whole]), whole)
    )


def _product(
    flat: Variable,
    x: RuntimeValue,
    kernel: RuntimeValue,
    product: Variable,
    bias: RuntimeValue,
    out: Variable,
    rewriting: StepRewriting,
) -> RuntimeValue:
    if not isinstance(bias, Variable) or bias.shape != out.shape[-1:]:
        return None
    rows = _rows(flat, x, kernel, out, rewriting)
    made = rewriting.producers.made[product]
    return None if rows is None else rewriting.made(made, "operator", "@", (rows, kernel), out.shape)


AS_WRITTEN.rewrite("jnp.reshape((flat := jnp.reshape(x, _)) @ kernel, _)", "rows @ kernel", rows=_rows)
AS_WRITTEN.rewrite(
    "jnp.reshape((product := (flat := jnp.reshape(x, _)) @ kernel) + bias, _)", "whole + bias", whole=_product
)


# SkipLayerNormalization adds the bias of the product before it behind the residual


def _biased(
    product: Variable,
    w: RuntimeValue,
    residual: RuntimeValue,
    bias: RuntimeValue,
    out: Variable,
    rewriting: StepRewriting,
) -> RuntimeValue:
    """Return a product with the bias that is added last; None if it is not known to be that of the product."""
    if (
        not is_single(out)
        or not isinstance(residual, Variable)
        or not isinstance(bias, Variable)
        or not {bias, w} <= set(rewriting.weights)
        or not product.shape == residual.shape == out.shape
        or bias.shape != out.shape[-1:]
    ):
        return None
    return rewriting.made(rewriting.producers.made[product], "operator", "+", (product, bias), out.shape)


AS_WRITTEN.rewrite("(product := x @ w) + residual + bias", "biased + residual", biased=_biased)


def _turned(kernel: RuntimeValue, x: RuntimeValue, step: Step, rewriting: StepRewriting) -> RuntimeValue:
    if (
        not isinstance(kernel, Variable)
        or kernel not in rewriting.weights
        or len(kernel.shape) != 2
        or not isinstance(x, Variable)
    ):
        return None
    turned = rewriting.call(step, "jnp.transpose", (kernel, (1, 0)), kernel.shape[::-1])
    return rewriting.made(step, "operator", "@", (x, turned), (*x.shape[:-1], kernel.shape[0]))


AS_WRITTEN.rewrite("kernel @ jnp.transpose(x, (0, 2, 1))", "jnp.transpose(y, (0, 2, 1))", y=_turned)

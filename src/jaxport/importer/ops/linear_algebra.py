"""Matrix products."""

from __future__ import annotations

import numpy as np

from jaxport.errors import ModelError
from jaxport.importer.ops.casting import at_least_single
from jaxport.importer.resolving.registry import REQUIRED, earlier, op, renamed
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import jnp, lax

renamed(since=1, MatMul=jnp.matmul)


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return `x * factor`, or `x` itself if that is the same."""
    return x if factor == 1 else x * factor


@op("Gemm", since=11)
def gemm(A, B, C=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    y = scaled((A.T if transA else A) @ (B.T if transB else B), alpha)
    return y if C is None else y + scaled(C, beta)


earlier("Gemm", since=7, until=10, C=REQUIRED)
earlier("Gemm", since=6, until=6, ignored={"broadcast": 0})


@op("Einsum", since=12)
def einsum(*Inputs, equation):
    return jnp.einsum(equation, *Inputs)


def in_single(operator, A, B, C=None, *, equation="", alpha=1.0, beta=1.0, transA=0, transB=0):
    """Return a MatMul, Gemm or Einsum of operands in half precision, summed in float32."""
    if operator == "Einsum":
        return jnp.einsum(equation, A, B, preferred_element_type=np.float32)
    product = jnp.matmul(A.T if transA else A, B.T if transB else B, preferred_element_type=np.float32)
    y = scaled(product, alpha)
    return y if C is None else y + scaled(C, beta)


@op("jaxport", "GroupedProduct", since=1)
def grouped_product(x, sizes, *matrices):
    """Return groups of rows, each multiplied by its own matrix (see `jaxport.importer.resolving.products`).

    The last size is that of the rows behind all groups, which become zeros.
    """
    if x.ndim != 2 or any(matrix.shape != matrices[0].shape or matrix.ndim != 2 for matrix in matrices):
        raise ModelError(
            "groups of rows are multiplied by operands that are no matrices of one shape",
            why="the sizes of the groups depend on data",
            instead="call the program outside `jax.jit`",
        )
    return lax.ragged_dot(x, jnp.stack(matrices), sizes[: len(matrices)])


@op("Det", since=11)
def det(X):
    return jnp.linalg.det(at_least_single(X))  # the evaluator casts back

"""Matrix products."""

from __future__ import annotations

from jaxport.importer.ops.casting import at_least_single
from jaxport.importer.resolving.registry import REQUIRED, earlier, op, renamed
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import jnp

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


@op("Det", since=11)
def det(X):
    return jnp.linalg.det(at_least_single(X))  # the evaluator casts back

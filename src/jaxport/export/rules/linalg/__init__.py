"""Factorizations and solvers of matrices, as JAX functions: ONNX has none of them.

Each runs over the columns (or in sweeps of rotations) with one loop, whatever the size, and over all matrices of a
batch at once. They are written for complex matrices too; on real ones the conjugates emit nothing.
"""

from jaxport.export.rules.linalg import eigh, householder, lu, schur, svd, triangular, tridiagonal

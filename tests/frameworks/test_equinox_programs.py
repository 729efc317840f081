"""What packages built on Equinox do with its modules, beyond calling them as layers."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxport.testing import check, f32


class Line(eqx.Module):
    slope: jax.Array

    def __call__(self, x):
        return self.slope * x

    @classmethod
    def through(cls, x, y):
        return cls(y / x)


class Solver(eqx.Module):
    # A method that is bound to another class: called on a solver, it is not given the solver.
    interpolation: ClassVar = Line.through

    def __call__(self, x, y):
        return self.interpolation(x, y)(x + 1)


class Operator(eqx.Module):
    matrix: jax.Array

    def mv(self, vector):
        return self.matrix @ vector


def test_a_bound_method_among_the_attributes_of_a_class():
    check(lambda x, y: Solver()(jnp.exp(x), y), f32("B"), f32("B"))


@jax.custom_jvp
def applied(matrix, vector):
    return Operator(matrix).mv(vector)


@applied.defjvp
def _applied_jvp(primals, tangents):
    """A module is called with a tangent; the result is linear in it, while the module is not."""
    (matrix, vector), (t_matrix, t_vector) = primals, tangents
    return applied(matrix, vector), Operator(matrix).mv(t_vector) + Operator(t_matrix).mv(vector)


def test_a_module_that_a_derivative_calls_with_a_tangent():
    energy = jax.jit(lambda matrix, vector: (applied(matrix @ matrix, vector) ** 2).sum())
    check(jax.grad(energy, (0, 1)), f32(3, 3), f32(3))

"""Linear solves, roots, minima and differential equations: lineax, optimistix, diffrax, jaxopt, ott."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.clients.programs import array, f32, package, parametrized, submodule, verified

lx, optx, diffrax, jaxopt, _ = map(package, ("lineax", "optimistix", "diffrax", "jaxopt", "ott"))
eqx = package("equinox")
pointcloud, ott_linear, soft_sort = map(
    submodule, ("ott.geometry.pointcloud", "ott.solvers.linear", "ott.tools.soft_sort")
)
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

POSITIVE = array(4, 4) @ array(4, 4).T + np.eye(4, dtype=np.float32)


def solve(solver, matrix=POSITIVE, tags=()):
    def fn(b, scale):
        return lx.linear_solve(lx.MatrixLinearOperator(matrix * scale, tags), b, solver, throw=False).value

    return lambda: (fn, [f32(4), np.float32(1.5)], 1e-3)


def ode(solver, adaptive=False, grad=False, **options):
    def fn(y, stiffness):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: jnp.stack([y[1], -y[0] * args])),
            solver,
            0.0,
            1.0,
            0.1,
            y,
            args=stiffness,
            stepsize_controller=diffrax.PIDController(1e-3, 1e-4) if adaptive else diffrax.ConstantStepSize(),
            max_steps=64,
            throw=False,
            **options,
        ).ys

    program = jax.grad(lambda *inputs: fn(*inputs).sum()) if grad else fn
    return lambda: (program, [f32(2), np.float32(1.3)], 5e-3)


def root(solver):
    find = lambda a: optx.root_find(lambda y, a: jnp.tanh(y) - a + y, solver, a, args=a, throw=False).value
    return lambda: (find, [f32()], 1e-3)


def least_squares(solver):
    residuals = lambda y, _: jnp.stack([10 * (y[1] - y[0] ** 2), 1 - y[0]])
    find = lambda y: optx.least_squares(residuals, solver, y, max_steps=64, throw=False).value
    return lambda: (find, [f32(2)], 1e-2)


def minimum(solver):
    cost = lambda y, _: jnp.sum((y - 1) ** 2) + y[0] * y[1] * 0.1
    return lambda: (lambda y: optx.minimise(cost, solver, y, max_steps=64, throw=False).value, [f32(2)], 1e-2)


PROGRAMS = {
    "lineax.LU": solve(lx.LU()),
    "lineax.QR": solve(lx.QR()),
    "lineax.SVD": solve(lx.SVD()),
    "lineax.Cholesky": solve(lx.Cholesky(), tags=(lx.positive_semidefinite_tag,)),
    "lineax.CG": solve(lx.CG(1e-5, 1e-5), tags=(lx.positive_semidefinite_tag,)),
    "lineax.GMRES": solve(lx.GMRES(1e-5, 1e-5)),
    "lineax.Diagonal": solve(lx.Diagonal(), np.diag(np.diag(POSITIVE)), (lx.diagonal_tag,)),
    "lineax, gradient": lambda: (
        jax.grad(lambda a, b: (lx.linear_solve(lx.MatrixLinearOperator(a @ a.T + jnp.eye(4)), b).value ** 2).sum()),
        [f32(4, 4), f32(4)],
        1e-3,
    ),
    "lineax, vmap": lambda: (
        jax.vmap(lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a @ a.T + jnp.eye(4)), b).value),
        [f32(3, 4, 4), f32(3, 4)],
        1e-3,
    ),
    "optimistix.Newton": root(optx.Newton(1e-5, 1e-5)),
    "optimistix.Chord": root(optx.Chord(1e-4, 1e-4)),
    "optimistix.LevenbergMarquardt": least_squares(optx.LevenbergMarquardt(1e-4, 1e-4)),
    "optimistix.Dogleg": least_squares(optx.Dogleg(1e-4, 1e-4)),
    "optimistix.BFGS": minimum(optx.BFGS(1e-4, 1e-4)),
    "optimistix.NelderMead": minimum(optx.NelderMead(1e-4, 1e-4)),
    "diffrax.Euler": ode(diffrax.Euler()),
    "diffrax.Heun": ode(diffrax.Heun()),
    "diffrax.Tsit5": ode(diffrax.Tsit5(), adaptive=True),
    "diffrax.Dopri8": ode(diffrax.Dopri8(), adaptive=True),
    "diffrax.Kvaerno3": ode(diffrax.Kvaerno3(), adaptive=True),
    "diffrax, gradient": ode(diffrax.Heun(), grad=True),
    "diffrax, saved steps": lambda: ode(diffrax.Tsit5(), saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 5)))(),
    "jaxopt.GradientDescent": lambda: (
        lambda x: jaxopt.GradientDescent(lambda w: ((w - 1) ** 2).sum(), maxiter=10).run(x).params,
        [f32(3)],
        1e-3,
    ),
    "jaxopt.LBFGS": lambda: (
        lambda x: jaxopt.LBFGS(lambda w: ((w - 1) ** 2).sum() + w[0] * w[1], maxiter=10).run(x).params,
        [f32(3)],
        1e-2,
    ),
    "ott, transport": lambda: (
        lambda x, y: ott_linear.solve(pointcloud.PointCloud(x, y, epsilon=0.5), max_iterations=30).reg_ot_cost,
        [f32(5, 2), f32(6, 2)],
        1e-3,
    ),
    "ott, soft sort": lambda: (lambda x: soft_sort.sort(x, axis=0), [f32(6)], 1e-3),
}


@parametrized(PROGRAMS)
def test_solvers(make):
    verified(*make())


def test_a_solve_is_a_loop_of_readable_size():
    import jaxport

    fn, inputs, _ = PROGRAMS["diffrax.Tsit5"]()
    assert sum(1 for _ in jaxport.to_onnx(fn, inputs).model.graph.all_nodes()) < 250

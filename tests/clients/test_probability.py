"""Densities, samplers' steps, Gaussian processes and rigid motions: numpyro, blackjax, tinygp, jaxlie."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.clients.programs import array, f32, package, parametrized, submodule, verified

numpyro, blackjax, tinygp, jaxlie = map(package, ("numpyro", "blackjax", "tinygp", "jaxlie"))
dist, infer = map(submodule, ("numpyro.distributions", "numpyro.infer"))
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

KEY = jax.random.PRNGKey(0)


def regression(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


def log_density(w, x, y):
    return infer.util.log_density(regression, (x, y), {}, {"w": w, "s": 1.0})[0]


def svi_step():
    guide = infer.autoguide.AutoNormal(regression)
    svi = infer.SVI(regression, guide, numpyro.optim.Adam(1e-2), infer.Trace_ELBO())
    state = svi.init(KEY, array(5, 3), array(5))

    def step(x, y):
        new, loss = svi.update(state, x, y)
        return svi.get_params(new), loss

    return step, [f32(5, 3), f32(5)], 2e-3


def chain(make_kernel):
    def make():
        kernel = make_kernel(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2))
        return lambda key, state: kernel.step(key, state)[0], [KEY, kernel.init(array(3))], 2e-3

    return make


def posterior(kernel):
    def fn(y, at, log_scale):
        x = np.linspace(0, 1, 6, dtype=np.float32)
        process = tinygp.GaussianProcess(kernel(jnp.exp(log_scale)), x, diag=0.1)
        log_probability, conditioned = process.condition(y, at)
        return log_probability, conditioned.loc, conditioned.variance

    return lambda: (fn, [f32(6), f32(4), f32()], 2e-3)


MASS = np.ones(3, np.float32)
PROGRAMS = {
    "numpyro, density": lambda: (log_density, [f32(3), f32(5, 3), f32(5)], 2e-3),
    "numpyro, gradient": lambda: (jax.grad(log_density), [f32(3), f32(5, 3), f32(5)], 2e-3),
    "numpyro, prediction": lambda: (
        lambda key, x: infer.Predictive(regression, num_samples=4)(key, x)["y"],
        [KEY, f32(5, 3)],
        2e-3,
    ),
    "numpyro, SVI": svi_step,
    "numpyro.Gamma": lambda: (lambda a, x: dist.Gamma(1 + a**2, 1.0).log_prob(1 + x**2), [f32(4), f32(4)], 2e-3),
    "numpyro.Beta": lambda: (lambda key: dist.Beta(2.0, 3.0).sample(key, (4,)), [KEY], 2e-3),
    "blackjax.hmc": chain(lambda density: blackjax.hmc(density, 0.1, MASS, 4)),
    "blackjax.nuts": chain(lambda density: blackjax.nuts(density, 0.1, MASS, max_num_doublings=3)),
    "blackjax.mala": chain(lambda density: blackjax.mala(density, 0.1)),
    "tinygp.ExpSquared": posterior(lambda scale: tinygp.kernels.ExpSquared(scale)),
    "tinygp.Matern32": posterior(lambda scale: 1.5 * tinygp.kernels.Matern32(scale)),
    "tinygp.quasisep": posterior(lambda scale: tinygp.kernels.quasisep.Matern32(scale)),
    "jaxlie.SE3": lambda: (lambda t, p: jaxlie.SE3.exp(t).apply(p), [f32(6), f32(3)], 2e-3),
    "jaxlie.SO3": lambda: (lambda q: jaxlie.SO3(q / jnp.linalg.norm(q)).log(), [f32(4)], 2e-3),
}


@parametrized(PROGRAMS)
def test_probability(make):
    verified(*make())

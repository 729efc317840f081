"""Control flow."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.errors import Refusal, Unsupported
from jaxport.stablehlo import host, loops
from jaxport.stablehlo.registry import define


@define("jaxport.function")
def function_(*xs, function):
    """A function of JAX that a module had spelled out."""
    return function(*xs)


@define("if")
def if_(condition, *, regions, context):
    if host.is_known(condition):
        return regions[0 if condition else 1]()
    return lax.cond(condition, *regions)


@define("case")
def case(index, *, regions, context):
    last = len(regions) - 1
    if host.is_known(index):
        return regions[int(index) if 0 <= int(index) <= last else last]()
    return lax.switch(jnp.where((index < 0) | (index > last), last, index), regions)


@define("while")
def while_(*carried, regions, context):
    counted = loops.counted(context.walk.module, context.operation, carried, context.values)
    if counted is not None:
        return loops.scan(carried, regions, counted, context)
    body = context.operation.bodies[1]
    known = {at for at, x in enumerate(carried) if host.is_known(x) and body.returned[at] == body.arguments[at]}
    moving = [at for at in range(len(carried)) if at not in known]

    def full(state):
        rest = dict(zip(moving, state, strict=True))
        return [rest.get(at, x) for at, x in enumerate(carried)]

    def step(state):
        results = regions[1](*full(state))
        return tuple(results[at] for at in moving)

    start = tuple(host.as_jax(carried[at]) for at in moving)
    return full(lax.while_loop(lambda state: regions[0](*full(state))[0], step, start))


@define("chlo.scan")
def scan(*xs, dimension, scan_dim_size=None, is_reverse=False, is_associative=False, regions, results, context):
    del is_associative  # which allows another order
    count = context.operation.attributes["operandSegmentSizes"][0]
    made = len(results) - len(xs) + count

    def step(carried, rows):
        values = regions[0](*rows, *carried)
        return values[made:], values[:made]

    rows = tuple(jnp.moveaxis(x, dimension, 0) for x in xs[:count])
    carried, ys = lax.scan(step, tuple(xs[count:]), rows, scan_dim_size, bool(is_reverse))
    return (*(jnp.moveaxis(y, 0, dimension) for y in ys), *carried)


@define("rng_bit_generator")
def rng_bit_generator(state, *, rng_algorithm, results, context):
    if state.size * state.dtype.itemsize != 16:
        refusal = Refusal(
            "rng_bit_generator", context.where, "has a state of other than 128 bits, which JAX does not take"
        )
        raise Unsupported("the program cannot be computed", [refusal])
    algorithm = lax.RandomAlgorithm[f"RNG_{rng_algorithm}"]
    dtype = results[1].dtype
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    state, bits = lax.rng_bit_generator(state, results[1].shape, unsigned, algorithm)
    return state, lax.bitcast_convert_type(bits, dtype)


@define("@stablehlo.dynamic_rng_bit_generator")
def dynamic_rng_bit_generator(state, sizes, *, rng_algorithm="DEFAULT", results, context, **_):
    names = ("DEFAULT", "THREE_FRY", "PHILOX")
    name = rng_algorithm if rng_algorithm in names else names[int(rng_algorithm)]
    shape, dtype = host.dims_of(sizes, context.where), results[1].dtype
    return tuple(lax.rng_bit_generator(state, shape, dtype, lax.RandomAlgorithm[f"RNG_{name}"]))


@define("rng")
def rng(low, high, sizes, *, rng_distribution, context):
    shape = host.dims_of(sizes, context.where)
    if rng_distribution == "UNIFORM":
        return lax.rng_uniform(low, high, shape)
    even = lambda: lax.rng_uniform(np.array(np.finfo(low.dtype).tiny, low.dtype), np.array(1, low.dtype), shape)
    return low + high * jnp.sqrt(-2 * jnp.log(even())) * jnp.cos(2 * np.array(np.pi, low.dtype) * even())

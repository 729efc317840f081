"""Control flow: branches become If; loops become Scan or Loop, or are unrolled.

ONNX's Scan runs its body at half the cost of Loop, but not zero times, and only over arrays: all else uses Loop.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export.emit.registry import rule
from jaxport.export.rules.recurrent import Unfit, recurrent_layer
from jaxport.export.rules.refused import CHECK_LEFT_OUT, without_check
from jaxport.export.rules.searching import searched
from jaxport.jaxprs import dims
from jaxport.jaxprs.walk import bodies

#: By default a scan over layers is unrolled if that gives at most this many equations.
MOST_EQUATIONS = 4000


def stamps(values):
    """Return dtypes and shapes, of values or of abstract values."""
    return [(v.dtype, tuple(v.shape)) for v in values]


def emitted(op, op_type, *operands, results, **attributes):
    """Emit a node; return its results, always as a list."""
    made = op.emit(op_type, *operands, outputs=len(results), results=results, **attributes)
    return list(made) if len(results) > 1 else [made]


# Branches


@rule("cond", broadcasts=True, irrelevant=("branches_platforms",))
def cond(op, index, *operands, branches):
    if index.constant is not None:
        return op.inline(branches[int(np.clip(index.constant, 0, len(branches) - 1))], *operands)
    passing = without_check(branches) if op.walker.discards_checks else None
    if passing is not None:
        op.remark = CHECK_LEFT_OUT
        return op.inline(passing, *operands)
    return branch(op, index, branches, operands, stamps(op.outs))


def branch(op, index, branches, operands, results, first=0):
    """Emit nested Ifs that choose a branch by `index`, halving the range; `first` is the number of `branches[0]`."""
    if len(branches) == 1:
        return op.inline(branches[0], *operands)
    half = len(branches) // 2

    def side(branches, first):
        return op.graph(lambda inner: branch(inner, index, branches, operands, results, first))

    above, below = side(branches[half:], first + half), side(branches[:half], first)
    if not results:
        return []
    is_above = op.cast(index, np.bool_) if (half, first) == (1, 0) else op.GreaterOrEqual(index, first + half)
    return emitted(op, "If", is_above, results=results, then_branch=above, else_branch=below)


@rule("platform_index", broadcasts=True)
def platform_index(op, *, platforms):
    """Return the index of the branch for `onnx` if there is one, else of JAX's branch for a CPU."""
    for platform in ("onnx", "cpu"):
        fitting = [i for i, names in enumerate(platforms) if names is not None and platform in names]
        if fitting:
            return op.const(fitting[0], op.out.dtype)
    return op.const(platforms.index(None), op.out.dtype)


# Loops without a known number of steps


@rule("while", broadcasts=True)
def while_(op, *operands, cond_jaxpr, cond_nconsts, body_jaxpr, body_nconsts):
    of_condition, of_body = operands[:cond_nconsts], operands[cond_nconsts : cond_nconsts + body_nconsts]
    state = [op.expanded(x) for x in operands[cond_nconsts + body_nconsts :]]
    goes_on = lambda op, state: op.expanded(op.inline(cond_jaxpr, *of_condition, *state)[0])

    def step(op, number, state):
        state = op.inline(body_jaxpr, *of_body, *state)
        return goes_on(op, state), state, []

    def batched_step(op, number, state):
        going, *old = state
        new = op.inline(body_jaxpr, *of_body, *old)
        kept = [op.call(_where, going, n, o) for n, o in zip(map(op.expanded, new), old, strict=True)]
        going = goes_on(op, kept)
        return op.call(jnp.any, going), [going, *kept], []

    going = goes_on(op, state)
    if going.rank == 0:
        return loop(op, step, state, condition=going)
    # Under vmap each program goes on by itself: the loop ends with the last one, and ended programs keep their state.
    return loop(op, batched_step, [going, *state], condition=op.call(jnp.any, going))[1:]


def _where(going, new, old):
    return jnp.where(going.reshape(going.shape + (1,) * (new.ndim - going.ndim)), new, old)


# Loops over arrays, or with a known number of steps


@rule("scan", broadcasts=True, irrelevant=("_split_transpose",))
def scan(op, *operands, jaxpr, length, reverse, num_consts, num_carry, unroll):
    counts = {"num_consts": num_consts, "num_carry": num_carry}
    bounds = searched(op, operands, jaxpr=jaxpr, length=length, **counts)
    if bounds is not None:
        return bounds
    if not (dims.is_static(length) and length <= (op.walker.unroll_scans or 0)):
        try:
            return recurrent_layer(op, operands, jaxpr=jaxpr, length=length, reverse=reverse, **counts)
        except Unfit as reason:
            op.remark = f"no recurrent operator: {reason}" if str(reason) else ""
    consts, (state, xs) = operands[:num_consts], divided([op.expanded(x) for x in operands[num_consts:]], num_carry)

    def step(op, state, slices):
        return divided(op.inline(jaxpr, *consts, *state, *slices), num_carry)

    if dims.is_static(length) and length <= longest(op, jaxpr, xs, unroll):
        return written_out(op, step, state, xs, range(length)[:: -1 if reverse else 1], op.outs[num_carry:])
    if xs and dims.known(lambda: length >= 1):
        return scanned(op, step, state, xs, stamps(op.outs[num_carry:]), reverse)

    def numbered_step(op, number, state):
        number = op.Sub(op.dim(length - 1), number) if reverse else number
        state, extra = step(op, state, [op.Gather(x, number, axis=0) for x in xs])
        return None, state, extra

    stacked = stamps(op.outs[num_carry:])
    # A loop of no steps does not know the inner sizes of the values it would stack: they are set afterwards.
    sized = [dims.all_static(shape[1:]) for _, shape in stacked]
    unsized = [(dtype, shape if known else None) for (dtype, shape), known in zip(stacked, sized, strict=True)]
    state, made = divided(loop(op, numbered_step, state, count=op.dim(length), stacked=unsized), num_carry)
    made = [
        y if known else op.Reshape(y, op.dims(stamp[1]), allowzero=op.zero_is_zero, results=[stamp])
        for y, known, stamp in zip(made, sized, stacked, strict=True)
    ]
    return [*state, *(flipped(op, y) if reverse else y for y in made)]


def longest(op, jaxpr, xs, unroll):
    """Return the greatest length at which a scan with this body is unrolled."""
    wanted = op.walker.unroll_scans
    if wanted is None:
        wanted = MOST_EQUATIONS // equations(jaxpr.jaxpr) if any(map(is_stack_of_weights, xs)) else 0
    return max(1, unroll, wanted)


def is_stack_of_weights(x):
    """Whether each step takes a matrix of its own, as a layer does; steps in time share their weights."""
    return x.is_constant and x.rank > 2


def equations(jaxpr):
    """Return the number of equations of a jaxpr with its scans unrolled; at least one."""
    counted = ((equation.params.get("length", 1), bodies(equation.params)) for equation in jaxpr.eqns)
    counts = (length * sum(map(equations, inner)) if dims.is_static(length) else 1 for length, inner in counted)
    return sum(max(1, count) for count in counts) or 1


def flipped(op, x):
    """Return `x` with its first axis reversed."""
    return op.Slice(x, (-1,), (np.iinfo(np.int64).min,), (0,), (-1,), results=stamps([x]))


def divided(values, count):
    """Return the first `count` of some values, and the rest."""
    return list(values[:count]), list(values[count:])


def written_out(op, step, state, xs, order, stacked):
    """Unroll the steps of a scan."""
    rows = {}
    for number in order:
        state, rows[number] = step(op, state, [row(op, x, number) for x in xs])
    columns = zip(*(map(op.expanded, rows[number]) for number in sorted(rows)), strict=True) if rows else []
    empty = [op.expand(op.const(0, y.dtype), y.shape) for y in stacked] if not rows else []
    return [*state, *(op.concat([op.unsqueeze(y, [0]) for y in column], 0) for column in columns), *empty]


def row(op, x, number):
    """Return `x[number]`; a constant for a constant."""
    if x.constant is not None:
        part = x.held and x.held.divided(number)
        return op.const(x.constant[number], name=f"{x.name}.{number}" if x.name else "", held=part)
    return op.Gather(x, op.const(number, np.int64), axis=0)


# The nodes


def loop(op, step, state, *, condition=None, count=None, stacked=()):
    """Emit a Loop; return the last state and the stacked results of the steps.

    Args:
      step: called with an emitter of the body, the number of the step and the state; returns whether to go on (None if
        the count decides), the new state, and what to stack.
      state: the initial state, whose dtypes and shapes stay.
      condition: whether to take the first step, if the number of steps is not known in advance.
      count: the number of steps, an int64 scalar.
      stacked: dtype and shape of each value that is stacked.
    """

    def build(inner, inputs):
        number, running, *state = inputs
        going, state, extra = step(inner, number, state)
        return [going or running], state, extra

    before = [(np.int64, (), "step"), (np.bool_, (), "running")]
    body, varying = body_of(op, build, before, state, [])
    if condition is None and not varying:
        condition = op.const(True, np.bool_)  # a trailing input cannot be omitted
    return looped(op, "Loop", [count, condition], state, varying, [], stacked, body=body)


def scanned(op, step, state, xs, stacked, reverse):
    """Emit a Scan over the first axis of `xs`; return the last state and the stacked results of the steps."""

    def build(inner, inputs):
        state, extra = step(inner, *divided(inputs, len(inputs) - len(xs)))
        return [], state, extra

    body, varying = body_of(op, build, [], state, [(x.dtype, x.shape[1:], "row") for x in xs])
    directions = {
        f"scan_{end}_directions": [1] * n for end, n in (("input", len(xs)), ("output", len(stacked))) if n and reverse
    }
    return looped(op, "Scan", [], state, varying, xs, stacked, body=body, num_scan_inputs=len(xs), **directions)


def looped(op, op_type, before, state, varying, xs, stacked, **attributes):
    """Emit the node; loop-invariant states bypass it."""
    results = [*stamps(state[k] for k in varying), *stacked]
    if not results:
        return state
    made = emitted(op, op_type, *before, *(state[k] for k in varying), *xs, results=results, **attributes)
    last = dict(zip(varying, made, strict=False))
    return [*(last.get(k, x) for k, x in enumerate(state)), *made[len(varying) :]]


def body_of(op, build, before, state, after):
    """Return the body of a loop, and the indices of the states that vary; the body uses the others from outside.

    Args:
      build: called with an emitter of the body and its inputs; returns lists: the values before the state, the new
        state, and the values after it.
      before, after: dtype, shape and name of each input before and after the state.
      state: the initial state.
    """
    varying = []

    def built(inner, *inputs):
        carried = inputs[len(before) : len(before) + len(state)]
        first, new, last = build(inner, list(inputs))
        outside = {old.ir: x for old, now, x in zip(carried, new, state, strict=True) if now.ir is old.ir}
        for old, x in outside.items():
            old.replace_all_uses_with(inner.scope.use(x))
        inner.scope.inputs[:] = [x for x in inputs if x.ir not in outside]
        varying.extend(k for k, old in enumerate(carried) if old.ir not in outside)
        return [outside.get(x.ir, x) for x in [*first, *(new[k] for k in varying), *last]]

    inputs = [*before, *((x.dtype, x.shape, "state") for x in state), *after]
    return op.graph(built, inputs), varying

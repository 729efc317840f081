"""Markers become blocks: structure, escapes, and the odd shapes that calls come in."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxport import jaxprs as jex_core
from jaxport.blocks.block import FrozenMapping, block_p
from jaxport.blocks.marking.boundary import boundary
from jaxport.blocks.marking.markers import block_enter_p, block_exit_p
from jaxport.blocks.marking.window import activation
from jaxport.blocks.tracing import trace
from jaxport.blocks.ungrouping import ungroup
from tests.blocks.checks import blocks, check, equations, evaluate, paths

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


@boundary
def double(x):
    return x * 2


@boundary
def outer(x, y):
    return double(x) + double(y)


def twice(fn, x):
    return fn(fn(x))


CASES = {
    "one": (lambda x: double(x), ["double"]),
    "nested": (lambda x: outer(x, x + 1), ["outer", "outer.double", "outer.double"]),
    "same operand twice": (lambda x: outer(x, x), ["outer", "outer.double", "outer.double"]),
    "result unused": (lambda x: (double(x), x)[1], ["double"]),
    "no array at all": (lambda x: double(3.0) * x, []),
    "constant": (lambda x: double(jnp.float32(3.0)) * x, ["double"]),
    "array made inside": (lambda x: boundary(lambda: jnp.arange(3.0), target="m.f")() + x, ["f"]),
    "identity": (lambda x: boundary(lambda v: v, target="m.f")(x) + x, ["f"]),
    "no result": (lambda x: (boundary(lambda v: None, target="m.f")(x), x)[1], []),
    "static result": (lambda x: x * boundary(lambda v: (v + 1, 2, "a"), target="m.f")(x)[1], ["f"]),
    "dict result": (lambda x: boundary(lambda v: {"b": v, "a": v * 2}, target="m.f")(x)["a"], ["f"]),
    "keyword": (lambda x: boundary(lambda v, *, k: v + k, target="m.f")(x, k=x), ["f"]),
    "varargs": (lambda x: boundary(lambda *v: sum(v), target="m.f")(x, x, x), ["f"]),
    "grad": (lambda x: jax.grad(lambda v: double(jnp.sin(v)).sum())(x), ["double"]),
    "jvp": (lambda x: jax.jvp(double, (x,), (x,)), ["double"]),
    "vmap": (lambda x: jax.vmap(double)(x), ["double"]),
    "vmap of grad": (lambda x: jax.vmap(jax.grad(lambda v: double(v**2).sum()))(x), ["double"]),
    "linearize": (lambda x: jax.linearize(lambda v: double(jnp.sin(v)), x)[1](x), ["double"]),
    "jit": (lambda x: jax.jit(double)(x), ["double"]),
    "shared jit": (lambda x: twice(jax.jit(lambda v: double(v)), x), ["double", "double"]),
    "scan over": (lambda x: lax.scan(lambda c, v: (c + double(v), double(c)), x[0], x), ["double", "double"]),
    "while": (
        lambda x: lax.while_loop(lambda c: double(c).sum() < 9, lambda c: double(c) + 1, x),
        ["double", "double"],
    ),
    "cond": (lambda x: lax.cond(x.sum() > 0, double, lambda v: v, x), ["double"]),
    "remat": (lambda x: jax.checkpoint(lambda v: double(jnp.sin(v)))(x), ["double"]),
    "custom_jvp": (lambda x: jax.nn.relu(double(x)), ["double"]),
    "linear_transpose": (lambda x: jax.linear_transpose(double, x)(x), []),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_paths(name):
    fn, expect = CASES[name]
    check(fn, X, expect=expect)


def test_grad_of_remat_in_scan_keeps_values():
    def loss(x):
        step = jax.checkpoint(lambda c, _: (jnp.sin(outer(c, double(c))), None))
        return lax.scan(step, x, None, length=3)[0].sum()

    traced = check(jax.grad(loss), X)
    assert {block.target.rpartition(".")[2] for block in blocks(traced.jaxpr.jaxpr)} == {"double", "outer"}


def test_an_escaping_value_is_an_extra_output_in_order_of_definition():
    kept = []

    @boundary
    def leaky(x):
        kept.extend([jnp.sin(x), jnp.cos(x)])
        return x + 1

    def fn(x):
        y = leaky(x)
        return kept.pop() + kept.pop() * y

    traced = check(fn, X)
    (equation,) = [e for e in traced.jaxpr.eqns if e.primitive is block_p]
    inner = equation.params["jaxpr"].jaxpr
    assert equation.params["block"].results == 1
    made = {v: e.primitive.name for e in inner.eqns for v in e.outvars}
    assert [made[v] for v in inner.outvars] == ["add", "sin", "cos"]


def test_arguments_come_first_and_closed_over_values_follow():
    w = jnp.ones(3)

    @boundary
    def attend(q, k, *, mask=None, causal=False):
        return jnp.where(mask, q @ k.T, w[0])

    traced = check(lambda x: attend(x, x, mask=x[:, :2] > 0, causal=True), X)
    (block,) = blocks(traced.jaxpr.jaxpr)
    assert block.arguments == ("q", "k", "mask")
    assert block.config == {"causal": True}
    assert block.weights == {3: "w"}


def test_what_an_argument_holds_is_named_by_its_path():
    @boundary
    def f(batch, *rest, **options):
        return batch["ids"] + rest[0] + options["bias"][1]

    traced = check(lambda x: f({"ids": x}, x, bias=(1, x)), X)
    assert blocks(traced.jaxpr.jaxpr)[0].arguments == ("batch.ids", "rest_0", "bias.1")
    assert blocks(traced.jaxpr.jaxpr)[0].config == {"bias.0": 1}


def test_a_concrete_array_is_an_argument_too_and_stays_concrete():
    import numpy as np

    @boundary
    def f(x, mask):
        assert isinstance(mask, np.ndarray)
        return x[:, np.flatnonzero(mask)]

    traced = check(lambda x: f(x, np.array([True, False, True])), X)
    assert blocks(traced.jaxpr.jaxpr)[0].arguments == ("x", "mask")


def test_arrays_that_jax_does_not_know_are_static_arguments():
    import numpy as np

    @boundary
    def f(x, names):
        return x * len(names)

    traced = check(lambda x: f(x, np.array(["a", "b"])), X)
    assert blocks(traced.jaxpr.jaxpr)[0].arguments == ("x",)


def test_a_callee_may_write_into_a_list_or_dict_it_is_given():
    @boundary
    def append(items, table, x):
        items.append(x * 2)
        items[0], table["new"] = items[0] + 1, x
        return items

    def fn(x):
        items, table = [x, x * 3], {"old": x}
        same = append(items, table, x)
        assert same is items
        return [*items, table["new"], table["old"]]

    check(fn, X)


def test_lists_of_the_caller_are_as_before_when_the_call_is_over():
    outside = []

    @boundary
    def first(items):
        return items[0] * 2

    def fn(x):
        items = [x]
        y = first(items)
        outside.append(items[0] is x)
        return y

    check(fn, X)
    assert all(outside)


def test_a_container_from_outside_of_a_scan_does_not_leak():
    def fn(x):
        cache = {"x": x}

        def step(carry, _):
            return carry + boundary(lambda c: c, target="m.f")(cache)["x"], None

        y = lax.scan(step, x, None, length=2)[0]
        return y + cache["x"]

    check(fn, X)


def test_keys_weak_types_and_integers_pass_through():
    @boundary
    def draw(key, scale, n):
        return jax.random.normal(key, (3,)) * scale + n

    check(lambda key, n: draw(key, 2.0, n), jax.random.key(0), jnp.int32(3))
    traced = check(lambda x: double(x) * 1.0, jnp.asarray(2.0))
    weak = trace(lambda x: double(x), (jax.ShapeDtypeStruct((), jnp.float32, weak_type=True),))
    assert weak.jaxpr.out_avals[0].weak_type
    assert not traced.jaxpr.out_avals[0].weak_type


def test_effects_of_the_inside_are_effects_of_the_block():
    @boundary
    def loud(x):
        jax.debug.callback(lambda v: None, x)
        return x

    traced = trace(lambda x: loud(x) + 1, (X,))
    jex_core.check_jaxpr(traced.jaxpr.jaxpr)
    assert traced.jaxpr.eqns[0].effects


@pytest.mark.skipif(jex_core.release < (0, 10), reason="JAX 0.9 names the references of effects by their places")
def test_references_inside_and_across_a_block():
    @boundary
    def count(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2
        return ref[...]

    check(count, X)

    def across(x):
        ref = jax.new_ref(x)
        boundary(lambda v: ref.__setitem__(0, v[0] * 3), target="m.f")(x)
        return ref[...]

    traced = check(across, X)
    assert paths(traced.jaxpr.jaxpr) == ["f"]


def test_recursion_is_nested_blocks():
    @boundary
    def power(x, n):
        return x if n == 0 else x * power(x, n - 1)

    traced = check(lambda x: power(x, 2), X)
    assert [block.config["n"] for block in blocks(traced.jaxpr.jaxpr)] == [2, 1, 0]


def test_a_call_that_fails_leaves_no_half_block():
    @boundary
    def broken(x):
        jnp.sin(x)
        raise KeyError("no")

    def fn(x):
        try:
            broken(x)
        except KeyError:
            return double(x)

    check(fn, X, expect=["double"])


def test_batched_boundaries_say_so():
    traced = check(lambda x: jax.vmap(jax.vmap(double))(x) + double(x), X)
    assert [block.batched for block in blocks(traced.jaxpr.jaxpr)] == [2, 0]


def test_markers_leave_nothing_in_compiled_code():
    def instructions(fn):
        return sorted(re.findall(r"= \S+ ([\w-]+)\(", jax.jit(fn).lower(X).compile().as_text()))

    def marked(x):
        with activation():
            return jnp.sin(outer(x, x + 1)) * double(x)

    assert len(instructions(marked)) > 3
    assert instructions(marked) == instructions(lambda x: jnp.sin(outer(x, x + 1)) * double(x))


def test_source_lines_are_the_users():
    traced = trace(lambda x: outer(x, x), (X,))
    for equation in equations(traced.jaxpr.jaxpr):
        frames = [frame.file_name for frame in equation.source_info.traceback.frames]
        assert any(name.endswith("test_grouping.py") for name in frames)
    from jaxport.jaxprs import source_info_util

    line = source_info_util.summarize(list(equations(traced.jaxpr.jaxpr))[-1].source_info)
    assert "test_grouping.py" in line


def test_a_block_equation_cannot_run():
    traced = trace(double, (X,))
    with pytest.raises(TypeError, match=r"the block `.*double` is data and cannot be run; `ungroup` the jaxpr first"):
        jex_core.jaxpr_as_fun(traced.jaxpr)(X)


def test_blocks_with_hashable_config_are_hashable_and_equal():
    one, other = (blocks(trace(lambda x: outer(x, x), (X,)).jaxpr.jaxpr) for _ in range(2))
    assert one == other
    assert len({*one, *other}) == 2  # both calls of `double` are alike
    assert hash(FrozenMapping(a=1)) == hash(FrozenMapping({"a": 1}))


def test_two_traces_of_one_function_print_alike():
    assert str(trace(lambda x: outer(x, x), (X,)).jaxpr) == str(trace(lambda x: outer(x, x), (X,)).jaxpr)


def test_ungroup_renames_where_two_blocks_share_a_body():
    jaxpr = trace(lambda x: double(x) + double(x + 1), (X,)).jaxpr
    first = jaxpr.eqns[0]
    shared = [e.replace(params=first.params) if e.primitive is block_p else e for e in jaxpr.eqns]
    plain = ungroup(jex_core.ClosedJaxpr(jaxpr.jaxpr.replace(eqns=shared), ()))
    jex_core.check_jaxpr(plain.jaxpr)
    assert jnp.array_equal(jex_core.jaxpr_as_fun(plain)(X)[0], 2 * X + 2 * (X + 1))


def test_grouping_is_linear():
    def sizes(n):
        def fn(x):
            for _ in range(n):
                x = outer(x, x)
            return x

        return sum(1 for _ in equations(trace(fn, (X,)).jaxpr.jaxpr))

    assert sizes(40) - sizes(20) == sizes(20) - sizes(0) == 20 * 6


def test_unmatched_markers_vanish():
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(X).jaxpr
    with activation():
        marked = jax.make_jaxpr(lambda x: double(x) + 1)(X).jaxpr
    from jaxport.blocks.grouping import Roots, group

    for lost in (block_enter_p, block_exit_p):
        env = {}
        kept = []
        for e in marked.eqns:
            e = e.replace(invars=[env.get(a, a) if isinstance(a, jex_core.Var) else a for a in e.invars])
            if e.primitive is lost:
                env.update(zip(e.outvars, e.invars, strict=True))
            else:
                kept.append(e)
        grouped = group(marked.replace(eqns=kept), Roots(["x"], set())).jaxpr
        jex_core.check_jaxpr(grouped)
        assert [e.primitive.name for e in grouped.eqns] == ["mul", *[e.primitive.name for e in jaxpr.eqns]]


def test_results_that_are_no_arrays_survive():
    traced = trace(lambda x: {"y": double(x), "name": "a", "n": None, "one": 1}, (X,))
    assert traced.output_paths == ("one", "y")
    result, _ = evaluate(traced, X)
    assert (result["name"], result["n"], int(result["one"])) == ("a", None, 1)

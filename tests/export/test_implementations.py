"""Primitives that no rule knows: exported through what JAX takes them for, or refused by name."""

from __future__ import annotations

import functools
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import mlir

import jaxport
from jaxport.export.emit.registry import Rule
from jaxport.testing import check, f32, spec
from tests.exports import operators


def primitive(name, implementation, *, multiple_results=False, abstract=None):
    """A primitive as a package would define it."""
    made = Primitive(name)
    made.multiple_results = multiple_results
    if implementation is not None:
        made.def_impl(implementation)
        mlir.register_lowering(made, mlir.lower_fun(implementation, multiple_results))
    made.def_abstract_eval(abstract or (lambda x, **_: x))
    return made


def runs(name, implementation):
    """A primitive that carries a jaxpr; `implementation` is given what runs it."""

    def run(*operands, program, label):
        count = len(operands) - 1
        return [implementation(lambda x: jaxpr_as_fun(program)(*operands[:count], x)[0], operands[count])]

    made = primitive(name, run, multiple_results=True, abstract=lambda *_, program, **__: program.out_avals)

    def bound(fn, x):
        closed = jax.make_jaxpr(fn)(x)  # what `fn` closes over is traced too, and becomes an operand
        inner = closed.jaxpr
        program = ClosedJaxpr(inner.replace(constvars=[], invars=[*inner.constvars, *inner.invars]), ())
        return made.bind(*closed.consts, x, program=program, label="anything")[0]

    return bound


def by_compiler(p):
    """What most primitives of JAX do: they hand themselves to the compiler."""
    return lambda *xs, **params: jax.jit(functools.partial(p.bind, **params))(*xs)


scaled_p = primitive("scaled", lambda x, *, by: x * by)
pair_p = primitive("pair", lambda x: [x, x + 1], multiple_results=True, abstract=lambda x: [x, x])
lowered_p = primitive("lowered", None)
lowered_p.def_impl(by_compiler(lowered_p))
mlir.register_lowering(lowered_p, mlir.lower_fun(lambda x: jnp.sin(x) * 2, multiple_results=False))
nested_p = primitive("nested", lambda x, *, depth: nested_p.bind(x + 1, depth=depth - 1) if depth else x * 2)
turned_p = primitive("turned", lambda z: z * 1j)

once = runs("once", lambda run, x: run(x))
twice = runs("twice", lambda run, x: run(run(x)))
often = runs("often", lambda run, x: lax.fori_loop(0, 3, lambda _, x: run(x), x))


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(lambda x: scaled_p.bind(x, by=3.0), [f32("B", 2)], id="parameter"),
        pytest.param(lambda x: sum(pair_p.bind(x)), [f32("B", 2)], id="two results"),
        pytest.param(lambda x: lowered_p.bind(x), [f32("B", 2)], id="lowered by a function"),
        pytest.param(lambda x: nested_p.bind(x, depth=3), [f32("B", 2)], id="in itself"),
        pytest.param(lambda x: lax.fori_loop(0, 3, lambda _, x: scaled_p.bind(x, by=2.0), x), [f32("B")], id="in a loop"),
        pytest.param(lambda z: turned_p.bind(z), [spec("B", dtype=np.complex64)], id="complex"),
    ],
)  # fmt: skip
def test_a_primitive_without_a_rule_is_its_implementation(fn, specs):
    check(fn, *specs)


@pytest.mark.parametrize("run", [once, twice, often], ids=["once", "twice", "in a loop"])
def test_whatever_runs_a_jaxpr_runs_it(run):
    check(lambda x: run(lambda x: jnp.sin(x) + 1, x), f32(4))


@pytest.mark.parametrize(("run", "calls"), [(once, 1), (twice, 2)], ids=["once", "twice"])
def test_blocks_in_the_jaxpr_stay(run, calls):
    layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    exported = jaxport.to_onnx(lambda x: run(lambda x: layer(x), x), [f32("B", 3)], functions=nnx.Linear)
    exported.verify()
    assert operators(exported, nested=True).count("Linear") == calls


def test_only_a_call_costs_nothing():
    assert operators(jaxport.to_onnx(lambda x: once(lambda x: jnp.sin(x) + 1, x), [(3,)]), nested=True) == [
        "Sin",
        "Add",
    ]


def test_a_rule_comes_first():
    rule = Rule("scaled", lambda op, x, *, by: op.Sin(x))
    assert operators(
        jaxport.to_onnx(lambda x: scaled_p.bind(x, by=3.0), [(3,)], rules={"scaled": rule}), nested=True
    ) == ["Sin"]


def _raises(x):
    raise NotImplementedError


def _on_numbers(x):
    return jnp.asarray(np.sin(np.asarray(x)))


def _endless(x):
    return endless_p.bind(x + 1)


endless_p = primitive("endless", _endless)
wrong_p = primitive("wrong", lambda x: x.sum())
compiled_p = primitive("compiled", None)
compiled_p.def_impl(by_compiler(compiled_p))


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(primitive("raises", _raises), id="it raises"),
        pytest.param(primitive("on_numbers", _on_numbers), id="it needs numbers"),
        pytest.param(primitive("undefined", None), id="there is none"),
        pytest.param(compiled_p, id="it hands itself to the compiler"),
        pytest.param(wrong_p, id="its result has another shape"),
        pytest.param(endless_p, id="it has no end"),
    ],
)
def test_an_implementation_that_is_no_meaning_is_refused_by_name(refused):
    with pytest.raises(jaxport.Unsupported) as error:
        jaxport.to_onnx(lambda x: refused.bind(x), [(3,)])
    (row,) = error.value.refusals
    assert row.name == refused.name
    assert row.where.startswith("test_implementations.py:")
    assert "no implementation that JAX can trace" in row.why


def test_what_an_implementation_does_to_the_world_is_refused():
    told_p = primitive("told", lambda x: (io_callback(print, None, x), x)[1])
    with pytest.raises(jaxport.Unsupported, match="io_callback"):
        jaxport.to_onnx(lambda x: told_p.bind(x), [(3,)])


def test_what_an_implementation_shows_is_left_out_with_a_warning():
    shown_p = primitive("shown", lambda x: (jax.debug.print("{}", x), x + 1)[1])
    with pytest.warns(UserWarning, match="only shows values"):
        jaxport.to_onnx(lambda x: shown_p.bind(x), [(3,)])


def test_nothing_is_said_where_nothing_is_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxport.to_onnx(lambda x: scaled_p.bind(x, by=2.0), [(3,)])


@pytest.mark.parametrize(
    ("name", "parameters", "refused"),
    [
        ("top_k", {"is_stable": True, "new": None}, []),
        ("top_k", {"is_stable": False}, ["is_stable"]),
        ("top_k", {"unheard_of": True}, ["unheard_of"]),
        ("cumsum", {"reverse": False}, []),
        ("cumsum", {"reverse": 0}, ["reverse"]),
        ("no_function_of_jax", {"reverse": False, "limit": None}, ["reverse"]),
    ],
)
def test_a_parameter_changes_nothing_where_it_is_what_jax_takes_by_default(name, parameters, refused):
    if "is_stable" in parameters and "is_stable" not in inspect.signature(lax.top_k).parameters:
        pytest.skip("this release has no such parameter")
    assert Rule(name, lambda op, x: x).arguments(parameters) == ({}, refused)


def _checked_once(x):
    import equinox as eqx

    return eqx.error_if(x, jnp.any(x < -100), "too small") * 2


CHECKED = {
    "once": _checked_once,
    "twice": lambda x: _checked_once(_checked_once(x)),
    "gradient": jax.grad(lambda x: jnp.sin(_checked_once(x)).sum()),
    "vmap": jax.vmap(_checked_once),
    "jit": jax.jit(_checked_once),
    "scan": lambda x: lax.scan(lambda carry, row: (carry, _checked_once(row) + carry), x[0], x)[1],
    "while": lambda x: lax.while_loop(lambda s: s.sum() < 10, lambda s: _checked_once(s) + 1, x),
    "cond": lambda x: lax.cond(x.sum() > 0, _checked_once, jnp.sin, x),
}


@pytest.mark.parametrize("form", CHECKED)
def test_a_check_that_raises_is_left_out_and_told(form):
    pytest.importorskip("equinox")
    exported = check(CHECKED[form], f32(3, 2))
    count = 2 if form == "twice" else 1
    assert exported.requirements.checks == count
    assert f"checks       {count} left out" in str(exported.requirements)
    assert str(exported.explain()).count("a check is left out") == count
    assert not {"Less", "ReduceMax", "ReduceSum"} & set(exported.requirements.operators) or form in ("while", "cond")


def test_a_check_that_raises_is_refused_on_demand():
    pytest.importorskip("equinox")
    with pytest.raises(jaxport.Unsupported, match='checks="discard"'):
        jaxport.to_onnx(_checked_once, [(3,)], checks="refuse")
    with pytest.raises(jaxport.InvalidArgument, match="checks='off' is unknown"):
        jaxport.to_onnx(_checked_once, [(3,)], checks="off")


def test_a_callback_that_computes_is_no_check():
    """A branch that calls Python for its result stays, and is refused."""
    host = lambda x: jax.pure_callback(lambda v: v, x, x)
    with pytest.raises(jaxport.Unsupported, match="runs Python on the host"):
        jaxport.to_onnx(lambda x: lax.cond(x.sum() > 0, host, lambda x: x, x), [(3,)])
    exported = jaxport.to_onnx(lambda x: x * 2, [(3,)])
    assert exported.requirements.checks == 0
    assert "checks" not in str(exported.requirements)

"""The sizes that are run keep the constraints, leave no array empty, and tell the symbols apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jaxport
from jaxport.verify.size_choice import Conditions, checked, chosen


def conditions_of(fn, *shapes, constraints=()):
    scope = export.SymbolicScope(constraints)
    structs = [jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), jnp.float32) for shape in shapes]
    return Conditions(jax.make_jaxpr(fn)(*structs))


@pytest.mark.parametrize(
    ("shape", "constraints", "holds"),
    [
        ("B", [], lambda B: B >= 1),
        ("B,T", [], lambda B, T: B != T),
        ("2*B,T+1", [], lambda B, T: B != T),
        ("T", ["T >= 20"], lambda T: T >= 20),
        ("T", ["mod(T, 8) == 0"], lambda T: T % 8 == 0),
        ("B,T", ["T <= 3", "B >= T + 1"], lambda B, T: T <= 3 and B > T),
    ],
)
def test_sizes_keep_the_constraints(shape, constraints, holds):
    sets = chosen(conditions_of(jnp.sin, shape, constraints=constraints))
    assert len(sets) == 2
    assert all(holds(**sizes) for sizes in sets)
    assert all(sets[0][name] != sets[1][name] for name in sets[0])


def test_no_array_of_the_program_is_empty():
    conditions = conditions_of(lambda x: x[7:-2].sum(), "T", constraints=["T >= 9"])
    assert all(sizes["T"] >= 10 for sizes in chosen(conditions))


def test_bodies_count_too():
    conditions = conditions_of(
        lambda x: jax.lax.scan(lambda c, _: (c, c[5:]), x, None, length=2)[1], "T", constraints=["T >= 5"]
    )
    assert all(sizes["T"] >= 6 for sizes in chosen(conditions))


def test_one_symbol_is_one_in_the_second_set():
    assert 1 in chosen(conditions_of(jnp.sin, "B,T"))[1].values()


def test_a_constraint_may_leave_one_choice():
    assert chosen(conditions_of(jnp.sin, "T", constraints=["T <= 2", "T >= 2"])) == [{"T": 2}]


def test_sizes_that_are_rare_are_computed():
    rare = ["mod(T, 1024) == 7", "T >= 5000", "B*T >= 10000000"]
    assert chosen(conditions_of(jnp.sin, "B,T", constraints=rare)) == [{"B": 1, "T": 10000391}]
    assert chosen(conditions_of(jnp.sin, "B,T", constraints=rare), {"T": 7175}) == [{"T": 7175, "B": 1394}]


def test_what_is_known_stays():
    assert [sizes["B"] for sizes in chosen(conditions_of(jnp.sin, "B,T"), {"B": 17})] == [17, 17]
    assert chosen(conditions_of(jnp.sin, "B"), {"B": 17}) == [{"B": 17}]
    assert chosen(conditions_of(lambda: jnp.ones(3))) == [{}]


def test_the_choice_is_the_same_for_the_same_seed():
    conditions = conditions_of(jnp.sin, "B,T,H,W")
    assert chosen(conditions, seed=3) == chosen(conditions, seed=3)
    assert chosen(conditions, seed=3) != chosen(conditions, seed=4)


def test_no_sizes_is_an_error():
    with pytest.raises(jaxport.InvalidArgument, match="no sizes of T were found") as caught:
        chosen(conditions_of(jnp.sin, "T", constraints=["mod(T, 4) == 2", "mod(T, 6) == 3"]))
    assert "mod(T, 4) == 2" in str(caught.value)
    assert "verify(sizes=" in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"B": 2}, "the sizes B=2 are not those of the symbols"),
        ({"B": 2, "T": 3, "X": 1}, "instead: give a size for each of B, T"),
        ({"B": 2, "T": 1}, "the sizes B=2, T=1 break the constraint `T >= 2`"),
    ],
)
def test_given_sizes_are_checked(sizes, text):
    conditions = conditions_of(jnp.sin, "B,T", constraints=["T >= 2"])
    with pytest.raises(jaxport.InvalidArgument) as caught:
        checked(conditions, [sizes])
    assert text in str(caught.value)
    assert checked(conditions, [{"B": 1, "T": 2}]) == checked(conditions, {"B": 1, "T": 2}) == [{"B": 1, "T": 2}]


def test_a_program_without_symbols_runs_once():
    assert checked(conditions_of(lambda: jnp.ones(3)), [{"B": 2}, {"B": 3}]) == [{}]

"""What a callable refers to besides its models is left alone: objects that fail, recurse or answer anything when asked."""

from __future__ import annotations

import functools
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.blocks.tracing import trace
from tests.blocks.checks import paths, shapes_of

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
ASKED: list[str] = []
# What Python itself asks of an instance: it says nothing of what is done here.
OF_PYTHON = frozenset({"__class__"})


def foreign(answer):
    """An instance that does `answer(name)` for every attribute, comparison, conversion and iteration."""

    class Foreign:
        def __getattribute__(self, name):
            if name not in OF_PYTHON:
                ASKED.append(name)
                return answer(self, name)
            return object.__getattribute__(self, name)

        def __bool__(self):
            return answer(self, "__bool__")

        def __eq__(self, other):
            return answer(self, "__eq__")

        def __hash__(self):
            return answer(self, "__hash__")

        def __len__(self):
            return answer(self, "__len__")

        def __iter__(self):
            return answer(self, "__iter__")

        def __repr__(self):
            return answer(self, "__repr__")

    return Foreign()


def missing_library(self, name):
    raise ImportError(f"a library that is loaded when it is used is not installed: {name}")


def missing_key(self, name):
    raise KeyError(name)


def endless(self, name):
    return getattr(self, name)


def leaves(self, name):
    raise SystemExit(name)


def another(self, name):
    return foreign(another)


FOREIGN = {answer.__name__: answer for answer in (missing_library, missing_key, endless, leaves, another)}
GLOBAL = None


def with_global(x, model):
    return model(x) if GLOBAL is not x else x


def in_closure(thing, model):
    return lambda x: model(x) if thing is not x else x


def in_a_list(thing, model):
    things = [thing, model, {"thing": thing}]
    return lambda x: things[1](x)


def as_a_default(thing, model):
    def fn(x, unused=thing):
        return model(x)

    return fn


def in_an_instance(thing, model):
    class Pipeline:
        def __init__(self):
            self.thing, self.model, self.lock = thing, model, threading.Lock()

        def __call__(self, x):
            return self.model(x)

    return Pipeline()


def bound(thing, model):
    return functools.partial(lambda unused, x: model(x), thing)


def compiled(thing, model):
    return jax.jit(lambda x: model(x) if thing is not x else x)


HOLDERS = [in_closure, in_a_list, as_a_default, in_an_instance, bound, compiled]


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
@pytest.mark.parametrize("answer", FOREIGN.values(), ids=FOREIGN)
def test_no_attribute_is_touched(holder, answer):
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    fn = holder(foreign(answer), model)
    ASKED.clear()
    traced = trace(fn, shapes_of((X,)))
    assert ASKED == []
    assert len(paths(traced.jaxpr.jaxpr)) == 1


@pytest.mark.parametrize("answer", FOREIGN.values(), ids=FOREIGN)
def test_the_export_is_whole(answer):
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    exported = jaxport.to_onnx(in_closure(foreign(answer), model), [("B", 3)])
    np.testing.assert_allclose(exported(np.asarray(X)), model(X), rtol=1e-6, atol=1e-6)
    assert {"bias", "kernel"} <= set(exported.model.graph.initializers)


def test_globals(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "GLOBAL", foreign(missing_library))
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    ASKED.clear()
    assert len(paths(trace(lambda x: with_global(x, model), shapes_of((X,))).jaxpr.jaxpr)) == 1
    assert ASKED == []


def chain(length):
    link = None
    for _ in range(length):
        link = [link]
    return link


def test_what_is_deeper_than_the_stack_or_contains_itself():
    class Node:
        def __init__(self, link):
            self.link = link
            self.myself, self.in_itself = self, [1, 2]
            self.in_itself.append(self.in_itself)

    deep, model = chain(100_000), nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    assert len(paths(trace(in_closure(Node(deep), model), shapes_of((X,))).jaxpr.jaxpr)) == 1
    while deep:  # taken apart link by link: Python would free a chain of that length by recursion
        deep = deep.pop()


def test_a_container_of_weights_that_contains_itself():
    weights = {"w": jnp.ones((3, 2))}
    weights["again"] = weights
    exported = jaxport.to_onnx(lambda x: x @ weights["w"], [("B", 3)])
    assert list(exported.model.graph.initializers) == ["w"]
    np.testing.assert_allclose(exported(np.asarray(X)), X @ weights["w"], rtol=1e-6)

"""What is said of a function that cannot be traced: the user's line, the module, and the symbolic size."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.export.walk.sources import is_library


def message(fn, *inputs, **options):
    with pytest.raises(jaxport.ExportError) as caught:
        jaxport.to_onnx(fn, list(inputs), **options)
    return str(caught.value)


def test_the_users_line_is_named():
    def helper(x):
        return jnp.dot(x, jnp.ones(7))

    line = helper.__code__.co_firstlineno + 1
    assert f"test_failures.py:{line} in helper" in message(lambda x: helper(x), (3,))


def test_the_module_is_named():
    class Model(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(3, 4, rngs=nnx.Rngs(0))])

        def __call__(self, x):
            return self.layers[0](x)

    assert "in the module `layers.0` (flax.nnx.Linear)" in message(Model(), (2, 5))


@pytest.mark.parametrize(
    ("fn", "advice"),
    [
        (lambda x: x / np.sqrt(x.shape[0]), "compute with `jnp.asarray(x.shape[0])`"),
        (lambda x: x + sum(range(x.shape[0])), "give `T` a size, such as 8"),
        (lambda x: jnp.ones(8)[: int(x.shape[0])], "compute with `jnp.asarray(x.shape[0])`"),
        (lambda x: x.reshape(-1, 8), "use `8*T` for the dim"),
        (lambda x: jnp.split(x, 2), "use `2*T` for the dim"),
        (lambda x: x if x.shape[0] > 3 else -x, 'constraints=["T >= 4"]'),
        (lambda x: x if x.shape[0] < 5 else -x, 'constraints=["T >= 5"]'),
        (lambda x: jnp.pad(x, (0, 2), mode="wrap"), "give `T` a size, such as 8"),
        (lambda x: jnp.interp(x, x, x), "give `T` a size, such as 8"),
    ],
)
def test_a_symbolic_size_that_is_the_cause_is_named(fn, advice):
    text = message(fn, ("T",))
    assert "the symbolic size `T` is the cause: with T=8 the function can be traced" in text
    assert advice in text
    assert "jax.jit" not in text


def test_the_advice_works():
    text = message(lambda x: x.reshape(-1, 8), ("T",))
    assert "`8*T`" in text
    jaxport.to_onnx(lambda x: x.reshape(-1, 8), [("8*T",)])
    scaled = lambda x: x / jnp.sqrt(jnp.asarray(x.shape[0], x.dtype))
    assert jaxport.to_onnx(scaled, [("T",)]).verify().ok


def test_of_several_symbols_the_one_that_is_the_cause_is_named():
    text = message(lambda x: jnp.pad(x, ((0, 0), (0, 2)), mode="wrap"), ("B", "T"))
    assert "the symbolic size `T` is the cause" in text


def test_a_product_of_symbols_is_advised_by_one_of_them():
    assert "use `4*B` for the dim" in message(lambda x: x.reshape(4, -1), ("B", "T"))


def test_a_failure_with_sizes_too_is_told_as_it_is():
    text = message(lambda x: jnp.dot(x, jnp.ones(7)), ("T",))
    assert "is the cause" not in text
    assert "instead: fix the function at this line, or give it other inputs" in text


class Normalized(nnx.Module):
    def __init__(self):
        self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(x)


NORMALIZED = nnx.split(Normalized())
TABLE = np.arange(12.0)


@pytest.mark.parametrize(
    ("fn", "inputs", "options", "advice"),
    [
        (lambda x, y: x + y, [("T", 3)], {}, "give it what it takes, `(x, y)`: it was given 1 by position"),
        (lambda x: x, [("T", 3)], {"static_params": {"y": 1}}, "`(x)`: it was given 1 by position and `y` by name"),
        (lambda x: x @ jnp.ones((5, 2)), [("T", 3)], {}, "fix the function at this line"),
        (lambda x: x.colour, [("T", 3)], {}, "fix the function at this line"),
        (lambda x: TABLE[x], [jax.ShapeDtypeStruct((3,), np.int32)], {}, "`jnp.asarray(table)[index]`"),
        (lambda x: TABLE[x.argmax(-1)], [("T", 3)], {}, "`jnp.asarray(table)[index]`"),
        (lambda x: nnx.merge(*NORMALIZED)(x), [("T", 3)], {}, "`nnx.merge(graphdef, state, copy=True)`"),
    ],
)
def test_advice_is_about_the_error_where_sizes_are_not_its_cause(fn, inputs, options, advice):
    text = message(fn, *inputs, **options)
    assert advice in text
    assert "T=" not in text
    assert "is the cause" not in text


def test_the_copy_that_is_advised_can_be_exported():
    jaxport.to_onnx(lambda x: nnx.merge(*NORMALIZED, copy=True)(x), [("T", 3)], state="discard")


def test_symbols_that_have_to_be_equal_are_named():
    text = message(lambda x, y: x + y, ("B", 3), ("C", 3))
    assert "`B`, `C` have to be equal: with B=8, C=8 the function can be traced" in text
    assert "use one name, such as `B`" in text


def test_sizes_that_were_tried_are_told_where_a_size_is_the_cause():
    text = message(lambda x: x.reshape(-1, 101), ("T",))
    assert "give `T` sizes that the function takes: with T=8, TypeError" in text


def test_a_value_that_python_needs_is_named_by_its_input():
    text = message(lambda x, limit: x[: int(limit)], ("B",), jax.ShapeDtypeStruct((), np.int32))
    assert "it depends on the input `limit`" in text
    assert "static_params" in text


def test_libraries_are_told_by_where_they_are():
    assert all(map(is_library, [jax.__file__, nnx.__file__, np.__file__]))
    assert not is_library(__file__)


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
def test_the_users_line_is_right_where_jax_lies_elsewhere(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        (elsewhere / entry.name).symlink_to(entry)
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import jax, jax.numpy as jnp, jaxport
            from flax import nnx

            def step(x):
                return jax.pure_callback(lambda v: v, x, jnp.linalg.norm(x))

            def model(x):
                return nnx.Linear(3, 4, rngs=nnx.Rngs(0))(x)

            print(jax.__file__)
            for fn in (step, model):
                try:
                    jaxport.to_onnx(fn, [(5,)])
                except jaxport.JaxportError as error:
                    print(error)
            """
        )
    )
    source = str(Path(jaxport.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, str(elsewhere)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(elsewhere))
    assert "pure_callback   train.py:6 in step" in done.stdout
    assert "train.py:9 in model" in done.stdout


def _caching():
    cache = {}

    def fn(x):
        if "table" not in cache:
            cache["table"] = jnp.cos(jnp.arange(3.0))
        return x * cache["table"]

    return fn


@pytest.mark.parametrize("earlier", [jax.jit, lambda fn: lambda x: jaxport.to_onnx(fn, [x])], ids=["jit", "to_onnx"])
@pytest.mark.parametrize(
    "call",
    [
        lambda fn, x: jaxport.to_onnx(fn, [x]),
        lambda fn, x: jaxport.to_onnx(lambda x, flag: fn(x) if flag else x, [x, bool]),
        lambda fn, x: jaxport.make_mox(fn)(x)(x),
    ],
    ids=["to_onnx", "flag", "mox"],
)
def test_an_array_that_a_cache_kept_from_another_trace_is_jax_own_error(call, earlier):
    fn, x = _caching(), np.ones(3, np.float32)
    earlier(fn)(x)
    with pytest.raises(jax.errors.UnexpectedTracerError, match="was created on line"):
        call(fn, x)

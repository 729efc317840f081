"""A client of the package as users write one. Lines that checkers have to refuse say so; all others have to pass."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

import jaxport
from jaxport.codegen.burn.source import CrateSource
from jaxport.codegen.modules import ModuleSource
from jaxport.codegen.source import Source


def scaled(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) * 2


def client() -> None:
    """What is checked; it does not run."""
    exported = jaxport.to_onnx(
        scaled,
        [("B", 3)],
        target="portable",
        precision={"//Linear": "int4", "//head": "float32"},
        io="float32",
        checks="refuse",
        fold="weights",
        state="discard",
        weights=["layers.*"],
        functions=["flax.nnx.Linear", lambda block: block.path == ""],
    )
    assert_type(exported, jaxport.Exported)
    assert_type(exported.model, ir.Model)
    assert_type(exported.input_names, list[str])
    assert_type(exported.run({"x": np.zeros((1, 3), np.float32)}), list[np.ndarray])
    assert_type(exported.verify(sizes={"B": 2}, per_block=True).ok, bool)
    exported.save(Path("scaled.onnx"))

    jaxport.to_onnx(scaled, [("B", 3)], target=jaxport.Target("device", opset=18), precision=jaxport.Int4(group=64))

    program = jaxport.from_onnx("scaled.onnx", limits=jaxport.Limits(), batch=True)
    assert_type(program, jaxport.Program)
    assert_type(program.params, dict[str, jax.Array])
    assert_type(program.input_names, tuple[str, ...])
    assert_type(program.to_source("out"), ModuleSource)
    assert_type(program.to_source(framework="equinox"), ModuleSource)
    assert_type(program.to_source(framework="jax"), Source)
    assert_type(program.to_source(framework="burn"), CrateSource)
    assert_type(jaxport.to_source(scaled, [("B", 3)], "out"), ModuleSource)
    assert_type(jaxport.to_source(scaled, inputs=[("B", 3)], framework="burn"), CrateSource)

    mox = jaxport.make_mox(scaled)(jnp.zeros((2, 3)))
    assert_type(mox.select("//tanh", expect=1).paths(), list[str])
    assert_type(mox.params, dict[str, jax.Array | np.ndarray])

    jaxport.to_onnx(scaled, [("B", 3)], target="wbe")  # error: no such target
    jaxport.to_onnx(scaled, [("B", 3)], precision="int3")  # error: no such precision
    jaxport.to_onnx(scaled, [("B", 3)], precision={"//Linear": "int3"})  # error: no such precision
    jaxport.to_onnx(scaled, [("B", 3)], checks="ignore")  # error: no such treatment
    jaxport.to_onnx(scaled, [("B", 3)], fold="all")  # error: no such extent
    jaxport.to_onnx(scaled, [("B", 3)], io="int8")  # error: no such dtype
    jaxport.to_onnx(scaled, [("B", 3)], opset="18")  # error: a number is meant
    program.to_source(framework="torch")  # error: no such framework
    jaxport.to_source(scaled, inputs=[("B", 3)], framework="torch")  # error: no such framework
    jaxport.from_onnx("scaled.onnx", limit=3)  # error: no such argument
    print(program.inputs_names)  # error: no such attribute

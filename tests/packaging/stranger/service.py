"""Exporting, comparing, importing and editing, each once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxport
from jaxport.testing import boolean, check, f32, i32, spec
from stranger.models import Classifier, both


@dataclass(frozen=True)
class Served:
    """A model on its way to a runtime."""

    exported: jaxport.Exported
    program: jaxport.Program

    def answer(self, x: jax.Array) -> list[np.ndarray]:
        """Return what ONNX Runtime computes."""
        return self.exported.run({self.exported.input_names[0]: np.asarray(x)})

    def needs(self) -> str:
        """Return what the file needs."""
        return str(self.exported.requirements)


def deploy(folder: Path) -> Served:
    """Export a model, compare it, and import it back."""
    exported = jaxport.to_onnx(Classifier(nnx.Rngs(0)), [("B", 8)], constraints=["B >= 1"], target="portable")
    exported.save(folder / "classifier.onnx")
    report = exported.verify(sizes=[{"B": 2}])
    assert report.ok, report
    program = jaxport.from_onnx(folder / "classifier.onnx")
    program.to_source(folder / "printed", framework="equinox").save(folder / "again")
    return Served(exported, program)


def edited() -> jaxport.Exported:
    """Export a Mox whose activations are other ones."""
    mox = jaxport.make_mox(Classifier(nnx.Rngs(0)))(jnp.zeros((2, 8)))
    changed = mox.select("//tanh", expect=1).sub(jnp.sin)
    return jaxport.to_onnx(changed, [(2, 8)])


def checked() -> None:
    """Test as plugin authors do."""
    check(both, f32("B", 8), shapes=[("B", 8)])
    check(jnp.where, boolean("B"), spec("B", dtype="float32"), f32("B"))
    check(jnp.negative, i32("B", 3))


def refused() -> str:
    """Return what an error says."""
    try:
        jaxport.to_onnx(both, [("B", 8)], opset=3)
    except (jaxport.InvalidArgument, jaxport.NeedsWideTypes, jaxport.ValueNotKnown) as error:
        return error.instead
    return ""

"""The public namespaces that are swept, each with its table."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.cluster.vq
import jax.scipy.fft
import jax.scipy.integrate
import jax.scipy.interpolate
import jax.scipy.linalg
import jax.scipy.ndimage
import jax.scipy.signal
import jax.scipy.special
import jax.scipy.stats
from flax import linen, nnx

from tests.export.sweeps.cases import Case, names_of
from tests.export.sweeps.tables import lax, layers, linalg, nn, numpy_arrays, random, scipy

#: Names that only some of the supported releases have.
SOME_RELEASES: Mapping[str, str] = {
    "jax.lax": "ConvGeneralDilatedDimensionNumbers PrecisionLike all_gather_done all_gather_start broadcast_like log2"
    " mulhi one_minus_square polynomial precv psend psum_scatter_start stack stage unstack",
    "jax.lax.linalg": "ormqr",
    "jax.numpy": "float6_e2m3fn float6_e3m2fn int1 minmax top_k uint1",
    "jax.random": "Key key_dtype",
    "jax.scipy.linalg": "circulant companion convolution_matrix dft fiedler fiedler_companion hadamard helmert"
    " invhilbert invpascal leslie qr_multiply",
    "jax.scipy.special": "boxcox boxcox1p comb dawsn erfcinv erfcx loggamma owens_t wofz",
    "flax.nnx": "RoPE",
}


@dataclass(frozen=True)
class Namespace:
    """A public namespace.

    Attributes:
      name: its qualified name.
      module: the module.
      cases: one case for each function.
      reasons: the public names that are not functions of arrays, or that JAX cannot trace, each with why.
      refused: cases of functions that are refused, for a reason that the refusal itself gives.
      elsewhere: cases of functions that JAX itself can run on other devices alone: there is nothing to compare with.
      target: the share of the functions that must be exported.
      kind: a class whose public subclasses are the subjects; of modules, the submodules beside the functions.
    """

    name: str
    module: Any
    cases: Mapping[str, Case]
    reasons: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, Case] = field(default_factory=dict)
    elsewhere: Mapping[str, Case] = field(default_factory=dict)
    target: float = 1.0
    kind: Any = None

    def __post_init__(self) -> None:
        some = {*SOME_RELEASES.get(self.name, "").split()} - {*self.names}
        for part in ("cases", "reasons", "refused", "elsewhere"):
            present = {name: each for name, each in getattr(self, part).items() if name not in some}
            object.__setattr__(self, part, present)

    @property
    def names(self) -> list[str]:
        """All public callables, or those of the kind."""
        if self.kind is None:
            return names_of(self.module)
        return [
            name for name in dir(self.module) if not name.startswith("_") and self.is_kind(getattr(self.module, name))
        ]

    @property
    def every(self) -> Mapping[str, Case]:
        """All cases: of what is exported, of what is refused, of what JAX runs elsewhere."""
        return {**self.cases, **self.refused, **self.elsewhere}

    def is_kind(self, thing: Any) -> bool:
        """Whether a public name is one of the namespace's subjects."""
        if self.kind is types.ModuleType:
            return inspect.ismodule(thing) or callable(thing)
        return inspect.isclass(thing) and issubclass(thing, self.kind)

    @property
    def share(self) -> float:
        """The share of the functions that are exported."""
        return len(self.cases) / (len(self.cases) + len(self.refused))


NAMESPACES = [
    Namespace("jax.nn", jax.nn, nn.CASES, nn.REASONS, elsewhere=nn.ELSEWHERE),
    Namespace("jax.lax", jax.lax, lax.CASES, lax.REASONS, lax.REFUSED, lax.ELSEWHERE, target=0.99),
    Namespace(
        "jax.numpy",
        jnp,
        numpy_arrays.CASES,
        numpy_arrays.REASONS,
        numpy_arrays.REFUSED,
        numpy_arrays.ELSEWHERE,
        target=0.97,
    ),
    Namespace("jax.scipy.special", jax.scipy.special, scipy.SPECIAL),
    Namespace("jax.scipy.stats", jax.scipy.stats, scipy.STATS, kind=types.ModuleType),
    Namespace("jax.scipy.signal", jax.scipy.signal, scipy.SIGNAL),
    Namespace("jax.scipy.ndimage", jax.scipy.ndimage, scipy.NDIMAGE),
    Namespace("jax.scipy.integrate", jax.scipy.integrate, scipy.INTEGRATE),
    Namespace("jax.scipy.interpolate", jax.scipy.interpolate, scipy.INTERPOLATE),
    Namespace("jax.scipy.cluster.vq", jax.scipy.cluster.vq, scipy.CLUSTER),
    Namespace("jax.scipy.fft", jax.scipy.fft, scipy.FFT),
    Namespace("jax.random", jax.random, random.RANDOM, random.RANDOM_REASONS),
    Namespace("jax.image", jax.image, random.IMAGE, random.IMAGE_REASONS),
    Namespace("jax.ops", jax.ops, random.OPS),
    Namespace("jax.numpy.linalg", jnp.linalg, linalg.NUMPY),
    Namespace("jax.lax.linalg", jax.lax.linalg, linalg.LAX, linalg.LAX_REASONS),
    Namespace("jax.scipy.linalg", jax.scipy.linalg, linalg.SCIPY),
    Namespace("jax.numpy.fft", jnp.fft, linalg.FFT),
    Namespace("flax.nnx", nnx, layers.NNX, layers.NNX_REASONS, kind=nnx.Module),
    Namespace("flax.linen", linen, layers.LINEN, layers.LINEN_REASONS, kind=linen.Module),
    Namespace("equinox.nn", eqx.nn, layers.EQUINOX, layers.EQUINOX_REASONS, kind=eqx.Module),
]

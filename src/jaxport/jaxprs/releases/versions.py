"""The releases of JAX that the package was tested with, and the differences between them.

Everything that depends on the release is in this package, `jaxprs`; the rest asks it. The known differences:

==========================================  =========================================================================
from release                                what differs
==========================================  =========================================================================
0.10                                        `jax.extend.core` exports `DebugInfo`, `DropVar`, `check_jaxpr`,
                                            `new_jaxpr_eqn`, `valid_jaxtype`,
                                            `InconclusiveDimensionOperation`; before, they are in `jax._src.core` alone.
0.10                                        `scan` has no parameters `linear` and `_split_transpose` any more.
0.10                                        `discharge_state` takes and gives a closed jaxpr; before, that is
                                            `discharge_state2`.
0.10                                        An effect on a mutable reference names the variable; before, its place among
                                            the operands.
0.10                                        The type of a value says along which axes of a mesh it differs by
                                            `manual_axis_type.varying`; before, by `vma`.
0.10                                        `shard_map` calls the axes that it makes manual `newly_manual_axes`; before,
                                            `manual_axes`.
0.10                                        `tridiagonal_solve` has a parameter `perturb_singular`.
0.11                                        `ClosedJaxpr` and `Jaxpr` are one class: `closed.jaxpr` is `closed`, and an
                                            open jaxpr is one without constants.
0.11                                        `scan` says what its operands and results are by `ft_in` and `ft_out`, trees
                                            with a leaf per value; before, by `num_consts` and `num_carry`.
0.11                                        `closed_call` is called `eval_jaxpr`.
0.11                                        `composite` calls its jaxpr `call_jaxpr`; before, `jaxpr`.
0.11                                        `jit` says by an `enum` whether it is inlined; before, by a bool.
0.11                                        XLA's compiler refuses `xla_cpu_use_fusion_emitters`.
0.11                                        `digamma` is -inf at zero, as is its limit from above; before, NaN.
0.12 or before                              `reduce_max` and `reduce_min` have a parameter `out_sharding`, `top_k` has
                                            `is_stable`; `one_minus_square` and `unstack` are primitives.
0.12                                        `abs` of a complex number is infinite if a part is, whatever the other is
                                            (C99, annex G); before, it is NaN if the other is.
0.12                                        The liveness rule of a primitive is told which mutable operands are read
                                            later: one argument more.
==========================================  =========================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax

__all__ = [
    "DIGAMMA_AT_ZERO",
    "INFINITE_BESIDE_NAN",
    "TESTED",
    "Release",
    "failures_name_untested_jax",
    "release",
    "untested",
]


class Release(NamedTuple):
    """A release of JAX: the numbers that something depends on."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


def _read(text: str) -> Release:
    """Return the release of a version; what follows three numbers (`.dev…`, `rc1`, a fourth number) is ignored.

    >>> _read("0.12.0.1"), _read("0.13.0.dev20270101")
    (Release(major=0, minor=12, patch=0), Release(major=0, minor=13, patch=0))
    """
    numbers = [int(number) for number in re.findall(r"\d+", text)[:3]]
    return Release(*numbers)


TESTED = (Release(0, 9, 2), Release(0, 10, 2), Release(0, 11, 2), Release(0, 12, 0))
"""The releases that the test suite was run with. There is no upper bound: a newer one is used until something fails."""

release = _read(jax.__version__)
"""The release in this process."""

DIGAMMA_AT_ZERO = -math.inf if release >= (0, 11) else math.nan
"""The values of `digamma` at zeros of both signs."""

INFINITE_BESIDE_NAN = release >= (0, 12)
"""Whether the absolute value of a complex number with an infinite part and a NaN is infinity."""


def untested(of: Release = release) -> str:
    """Return a warning for a release of a newer minor version than all tested ones; else "".

    >>> untested(Release(0, 9, 2))
    ''
    >>> untested(Release(1, 0, 0))
    'JAX 1.0.0 is newer than 0.12.0, the last release that jaxport was tested with'
    """
    if of[:2] <= TESTED[-1][:2]:
        return ""
    return f"JAX {of} is newer than {TESTED[-1]}, the last release that jaxport was tested with"


_said: set[str] = set()


@contextmanager
def failures_name_untested_jax(note: str = untested()) -> Iterator[None]:
    """Add a note to errors raised inside, once per process, if JAX is newer than all tested releases."""
    try:
        yield
    except Exception as error:
        if note and note not in _said:
            _said.add(note)
            error.add_note(note)
        raise


#: Options of XLA's compiler, which refuses unknown ones, for programs that run once: compile fast, and run slowly.
QUICKLY: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,  # one module of LLVM instead of one per kernel
    # The other emitters are gone from 0.11 on, and the option with them.
    **({"xla_cpu_use_fusion_emitters": False} if release < (0, 11) else {}),
}

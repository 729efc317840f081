"""The crossing: dtype × static or symbolic dims × `jit`, `vmap`, `grad`; and what becomes of one cell of it.

`cells` are all of a case, `covering` those that together have every dtype, every gradient and, in one dtype of each
kind, every pair of dims and transform: what one dtype of a kind shows of symbolic dims, the others show again; and
`jit`, which an export looks into, is the same for all dtypes.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from jaxport.errors import RuleError, RunError, Unsupported
from jaxport.jaxprs import InconclusiveDimensionOperation
from jaxport.testing import VARIANTS, check
from tests.export.sweeps.cases import SIZES, Case

TRANSFORMS = ("plain", "jit", "vmap", "grad")
#: What `vmap` maps over: the name of a dim where dims are symbolic, else its size.
EXAMPLES = "E"
#: What a user function or JAX raises for what it does not accept.
_REFUSALS = (
    ArithmeticError, AssertionError, LookupError, NotImplementedError, TypeError, ValueError,
    InconclusiveDimensionOperation, jax.errors.JaxRuntimeError,
)  # fmt: skip
_CROSSED = dict.fromkeys(VARIANTS, "it is a cell of its own of the crossing")


@dataclass(frozen=True)
class Cell:
    """One way to run a case."""

    dtype: str
    symbolic: bool = False
    transform: str = "plain"

    def __str__(self) -> str:
        return f"{self.dtype}, {'symbolic' if self.symbolic else 'static'}, {self.transform}"

    @property
    def x64(self) -> bool:
        """Whether JAX needs 64-bit types."""
        return self.dtype.endswith(("64", "128")) and self.dtype != "complex64"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell, and why.

    Attributes:
      status: `exported`; `refused`; `not run`, where the runtime has no kernel; `wrong`; `failed`; or `unaccepted`, where
        JAX cannot compile it for a CPU either.
      why: the reason; of what JAX cannot compile, its own.
      primitives, operators: where it was exported, what was traced, and what the model has.
    """

    status: str
    why: str = ""
    primitives: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()


def cells(case: Case) -> Iterator[Cell]:
    """All cells of a case: those that JAX may refuse too."""
    for dtype in case.dtypes if any(a.dtype is None for a in case.arrays) else case.dtypes[:1]:
        for symbolic in (False, True):
            for transform in TRANSFORMS:
                yield Cell(dtype, symbolic, transform)


def covering(case: Case) -> Iterator[Cell]:
    """The cells of a case that show what the others would show again."""
    kinds = {np.dtype(dtype).kind.replace("u", "i").replace("V", "f"): dtype for dtype in reversed(case.dtypes)}
    for cell in cells(case):
        if cell.transform == "jit":
            wanted = cell.dtype == case.dtypes[0]
        else:
            wanted = cell.dtype in kinds.values() or (not cell.symbolic and cell.transform != "vmap")
        if wanted:
            yield cell


def accepted(case: Case, subject: Any, cell: Cell) -> Callable[..., Any] | None:
    """The transformed function where JAX accepts the cell, else None."""
    if cell.symbolic and not any(isinstance(d, str) for shape in _shapes(case, cell) for d in shape):
        return None
    if case.leaves_out(cell) or (cell.transform == "grad" and not jnp.issubdtype(cell.dtype, np.inexact)):
        return None
    if cell.transform == "vmap" and not case.arrays:
        return None
    with jax.enable_x64(cell.x64):
        try:
            function = _transformed(case, subject, cell)
            results = jax.tree.leaves(jax.eval_shape(function, *structs_of(case, cell)))
        except _REFUSALS:
            return None
    return function if results else None


def structs_of(case: Case, cell: Cell) -> list[jax.ShapeDtypeStruct]:
    """The types of the arrays of a cell."""
    scope = jax_export.SymbolicScope()
    shapes = [
        jax_export.symbolic_shape(",".join(map(str, shape)), scope=scope) if shape else ()
        for shape in _shapes(case, cell)
    ]
    dtypes = [a.dtype or np.dtype(cell.dtype) for a in case.arrays]
    return [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes, strict=True)]


def first(name: str, case: Case, subject: Any) -> Job | None:
    """The cell that always runs: in the first dtype that JAX accepts, with symbols if it accepts those."""
    for dtype in case.dtypes:
        for symbolic in (True, False):
            function = accepted(case, subject, Cell(dtype, symbolic))
            if function:
                return Job(name, case, Cell(dtype, symbolic), function)
    return None


@dataclass(frozen=True, eq=False)
class Job:
    """A cell that JAX accepts, with the function that it runs."""

    name: str
    case: Case
    cell: Cell
    function: Callable[..., Any]


def jobs(name: str, case: Case, subject: Any, chosen: Iterable[Cell] | None = None) -> Iterator[Job]:
    """The cells of a case, or the chosen ones, as far as JAX accepts them."""
    for cell in cells(case) if chosen is None else chosen:
        function = accepted(case, subject, cell)
        if function is not None:
            yield Job(name, case, cell, function)


def shuffled(name: str, case: Case, subject: Any) -> Iterator[Job]:
    """The same in an order that the name seeds."""
    chosen = list(cells(case))
    random.Random(zlib.crc32(name.encode())).shuffle(chosen)
    return jobs(name, case, subject, chosen)


def run(group: Sequence[Job]) -> Outcome:
    """Export cells as one model and compare all results on both sides.

    A refusal, a difference and a failure of a rule or of the runtime are outcomes; anything else is raised.
    """
    case, counts = group[0].case, [len(job.case.arrays) for job in group]
    specs = [
        jax.ShapeDtypeStruct(shape, a.dtype or np.dtype(job.cell.dtype))
        for job in group
        for a, shape in zip(job.case.arrays, _shapes(job.case, job.cell), strict=True)
    ]
    values = [
        v
        for job in group
        for v in job.case.draw(job.name, job.cell.dtype, SIZES[EXAMPLES] if job.cell.transform == "vmap" else None)
    ]

    def function(*arrays: Any) -> Any:
        given = iter(arrays)
        return [job.function(*itertools.islice(given, count)) for job, count in zip(group, counts, strict=True)]

    function.__name__ = group[0].name
    try:
        exported = check(
            function, *specs, values=values, sizes=[SIZES], without=_CROSSED, double_precision=group[0].cell.x64,
            **_tolerances(group), **case.options,
        )  # fmt: skip
    except Unsupported as refusal:
        outcome = Outcome("refused", "; ".join(f"{r.name}: {r.why}" for r in dict.fromkeys(refusal.refusals)))
    except AssertionError as difference:
        return Outcome("wrong", str(difference))
    except RunError as failure:
        outcome = Outcome("not run", str(failure))
    except (RuleError, *_REFUSALS) as failure:
        outcome = Outcome("failed", f"{type(failure).__name__}: {failure}")
    else:
        operators = frozenset(node.op_type for node in exported.model.graph.all_nodes() if not node.domain)
        return Outcome("exported", "", frozenset(primitives(exported.traced.jaxpr.jaxpr)), operators)
    # Of several cells, each is asked for alone before anything is said of it.
    refusal = _refusal_of_jax(function, specs, group[0].cell) if len(group) == 1 else None
    return outcome if refusal is None else Outcome("unaccepted", refusal)


def run_all(chosen: Sequence[Job], attempt: Callable[[Sequence[Job]], Outcome] = run) -> Iterator[tuple[Job, Outcome]]:
    """The cells of one case and their outcomes, exported together as far as they agree, else half by half.

    Args:
      chosen: the cells.
      attempt: runs some of them together.
    """
    groups: dict[tuple[bool, bool], list[Job]] = {}
    for job in chosen:
        groups.setdefault((job.cell.x64, job.cell.symbolic), []).append(job)
    # Those of one tolerance stand together, so that a half often has one.
    waiting = [sorted(group, key=lambda job: repr(_tolerance(job))) for group in groups.values()]
    while waiting:
        group = waiting.pop(0)
        outcome = attempt(group)
        if outcome.status == "exported" or len(group) == 1:
            yield from ((job, outcome) for job in group)
        else:
            middle = len(group) // 2
            waiting[:0] = [group[:middle], group[middle:]]


def _refusal_of_jax(function: Callable[..., Any], specs: Sequence[jax.ShapeDtypeStruct], cell: Cell) -> str | None:
    """Why JAX itself gets no further with what it traces; None where it does."""
    structs = [jax.ShapeDtypeStruct([SIZES.get(d, d) for d in s.shape], s.dtype) for s in specs]
    with jax.enable_x64(cell.x64):
        try:
            jax.jit(lambda *arrays: function(*arrays)).lower(*structs).compile()
        except _REFUSALS as error:
            return f"{type(error).__name__}: {error}"
    return None


def _tolerances(group: Sequence[Job]) -> dict[str, float | None]:
    """What all cells agree on, else the defaults."""
    own = {_tolerance(job) for job in group}
    rtol, atol = own.pop() if len(own) == 1 else (None, None)
    return {"rtol": rtol, "atol": atol}


def _tolerance(job: Job) -> tuple[float | None, float | None]:
    """That of the case, of wide floats; a gradient here is that of a sum of squares, which is rounded more than its parts."""
    dtype, grad = job.cell.dtype, job.cell.transform == "grad"
    if dtype in ("float16", "bfloat16"):  # results may be wider than what they are computed in
        rounded = float(jnp.finfo(dtype).eps)
        return (32 * rounded, 32 * rounded) if grad else (8 * rounded, 4 * rounded)
    if grad and job.case.rtol is None and dtype == "float32":
        return 1e-4, 1e-4
    finer = 1e-5 if job.cell.x64 and not job.case.narrow else 1
    rtol, atol = (None if given is None else given * finer for given in (job.case.rtol, job.case.atol))
    return rtol, atol


def primitives(jaxpr: Any) -> Iterator[str]:
    """The primitives of a jaxpr and of the jaxprs in its parameters."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def _shapes(case: Case, cell: Cell) -> list[tuple[int | str, ...]]:
    lead = (EXAMPLES,) if cell.transform == "vmap" else ()
    shapes = [(*lead, *a.shape) for a in case.arrays]
    return shapes if cell.symbolic else [tuple(SIZES[d] if isinstance(d, str) else d for d in s) for s in shapes]


def _transformed(case: Case, subject: Any, cell: Cell) -> Callable[..., Any]:
    function = case.function(subject, np.dtype(cell.dtype))
    if cell.transform == "jit":
        return jax.jit(function)
    if cell.transform == "vmap":
        return jax.vmap(function)
    if cell.transform == "grad":
        wanted = [i for i, a in enumerate(case.arrays) if a.dtype is None]
        return jax.grad(lambda *arrays: _loss(function(*arrays)), wanted)
    return function


def _loss(results: Any) -> Any:
    """A number that depends on every inexact result, on each element in another way."""
    floats = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, np.inexact)]
    if not floats:
        raise TypeError("no result has a derivative")
    return sum(jnp.sum(jnp.real(x * jnp.conj(x))) if jnp.iscomplexobj(x) else jnp.sum(x * x) for x in floats)

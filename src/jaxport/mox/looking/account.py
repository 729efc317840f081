"""What each block costs: calls, parameters, bytes, floating-point operations, sizes of activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from jax import export as jax_export

from jaxport import jaxprs
from jaxport.columns import aligned
from jaxport.jaxprs import Atom, Aval, Dim, aval_of
from jaxport.jaxprs.body_inputs import runs_bodies
from jaxport.jaxprs.walk import bodies
from jaxport.mox.programs.tree import short_name
from jaxport.printable import Shown

if TYPE_CHECKING:
    from jaxport.mox.programs.program import TracedProgram


@dataclass(frozen=True)
class Row:
    """The costs of a block: the sum over all of its calls, including everything inside them.

    Attributes:
      path: of the block; the whole program has the path ``""`` and the type ``(program)``.
      type: the short name of its type.
      calls: how often it runs; each step of a scan is a call.
      params: the number of elements of its parameters; shared ones count once.
      bytes: the size of its parameters.
      flops: floating-point operations: two for each multiply-add of a product or convolution, one for each element of
        any other arithmetic. For a `cond` the most expensive branch counts; a `while` counts as one step.
      activations: the size of the results of its calls, in bytes.
    """

    path: str
    type: str
    calls: int
    params: int
    bytes: int
    flops: int
    activations: int


@dataclass(frozen=True, repr=False)
class Account(Shown):
    """A table of costs: print it, or use its `rows` or `as_dict()`.

    >>> import jax.numpy as jnp, jaxport
    >>> costs = jaxport.mox.account(jaxport.make_mox(jnp.square)(jnp.ones(8)))
    >>> costs.total.flops, len(costs.rows)
    (8, 1)
    """

    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, path: str) -> Row:
        """Return the row of a path."""
        return next(row for row in self.rows if row.path == path and row.type != "(program)")

    @property
    def total(self) -> Row:
        """The row of the whole program."""
        return self.rows[0]

    def as_dict(self) -> list[dict[str, str | int]]:
        """Return one dict per row."""
        return [asdict(row) for row in self.rows]

    def text(self) -> str:
        """Return a row for each block."""
        names = [field.name for field in fields(Row)]
        cells = [names, *([_shown(value) for value in asdict(row).values()] for row in self.rows)]
        return "\n".join(aligned(cells, right=range(2, len(names))))


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def account(mox: TracedProgram) -> Account:
    """Return the costs of a Mox, block by block.

    Symbolic dims count as 1: give arrays to `make_mox` for real figures.

    >>> from jaxport.mox import account
    >>> import jax.numpy as jnp, jaxport
    >>> from flax import nnx
    >>> print(account(jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((2, 3)))))
    path  type       calls  params  bytes  flops  activations
          (program)      1      16     64     56           32
          Linear         1      16     64     56           32
    """
    counter = _Counter()
    closed = mox.jaxpr
    flops = counter.body(closed.jaxpr, 1)
    held = {weight.path: weight.value for weight in mox.weights if weight.path in mox.params}
    sizes = {path: (value.size, value.size * value.dtype.itemsize) for path, value in held.items()}
    named = dict(zip(mox.traced.input_paths, closed.in_avals[len(mox.weights) :], strict=False))
    for paths in counter.weights.values():
        for path in paths:
            if path in named and path not in sizes:  # a parameter that is an argument of the model
                sizes[path] = _size(named[path]), _bytes(named[path])
    results = sum(_bytes(aval) for aval in closed.out_avals[: len(mox.traced.output_paths)])
    total = Row("", "(program)", 1, *_sums(sizes, sizes), flops, results)
    rows = [
        Row(path, kind, counter.calls[path, kind], *_sums(sizes, counter.weights[path, kind]), *costs)
        for (path, kind), costs in counter.costs.items()
    ]
    return Account((total, *rows))


def _sums(sizes: Mapping[str, tuple[int, int]], paths: Iterable[str]) -> tuple[int, int]:
    chosen = [sizes[path] for path in set(paths) if path in sizes]
    return sum(count for count, _ in chosen), sum(size for _, size in chosen)


class _Counter:
    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], int] = {}
        self.weights: dict[tuple[str, str], set[str]] = {}
        self.costs: dict[tuple[str, str], tuple[int, int]] = {}

    def body(self, jaxpr: jaxprs.Jaxpr, times: int) -> int:
        """Return the operations of a body that runs so often."""
        return sum(self.equation(equation, times) for equation in jaxpr.eqns)

    def equation(self, equation: jaxprs.JaxprEqn, times: int) -> int:
        block = equation.params.get("block")
        if block is not None:
            key = block.path, short_name(block.target)
            self.costs.setdefault(key, (0, 0))  # outer blocks come first
            self.calls[key] = self.calls.get(key, 0) + times
            self.weights.setdefault(key, set()).update(block.weights.values())
            flops = self.body(equation.params["jaxpr"].jaxpr, times)
            made = times * sum(_bytes(aval_of(v)) for v in equation.outvars[: block.results])
            known = self.costs[key]
            self.costs[key] = known[0] + flops, known[1] + made
            return flops
        if not runs_bodies(equation):
            return times * _flops(equation)
        name = equation.primitive.name
        if name == "scan":
            times *= _int(equation.params["length"])
        costs = [self.body(body, times) for body in bodies(equation.params)]
        return max(costs) if name == "cond" else sum(costs)


def _int(dim: Dim) -> int:
    return 1 if jax_export.is_symbolic_dim(dim) else int(dim)


def _size(aval: Aval) -> int:
    return math.prod(map(_int, getattr(aval, "shape", ())))


def _bytes(aval: Aval) -> int:
    return _size(aval) * getattr(getattr(aval, "dtype", None), "itemsize", 0)


def _product(equation: jaxprs.JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    operand = aval_of(equation.invars[0])
    return 2 * _size(aval_of(equation.outvars[0])) * math.prod(_int(operand.shape[axis]) for axis in contracted)


def _convolution(equation: jaxprs.JaxprEqn) -> int:
    kernel = aval_of(equation.invars[1])
    features = _int(kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]])
    return 2 * _size(aval_of(equation.outvars[0])) * (_size(kernel) // features)


def _elements(atoms: Sequence[Atom]) -> int:
    return sum(_size(aval_of(atom)) for atom in atoms)


_OF_RESULTS = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "cos", "cosh", "div", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "integer_pow", "lgamma", "log",
    "log1p", "logistic", "max", "min", "mul", "neg", "pow", "rem", "round", "rsqrt", "sign", "sin", "sinh", "sqrt",
    "square", "sub", "tan", "tanh",
})  # fmt: skip
_OF_OPERANDS = frozenset({
    "argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_max", "reduce_min",
    "reduce_prod", "reduce_sum",
})  # fmt: skip
_SPECIAL: dict[str, Callable[[jaxprs.JaxprEqn], int]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
}


def _flops(equation: jaxprs.JaxprEqn) -> int:
    name = equation.primitive.name
    if name in _SPECIAL:
        return _SPECIAL[name](equation)
    if name in _OF_RESULTS:
        return _elements(equation.outvars[:1])
    return _elements(equation.invars[:1]) if name in _OF_OPERANDS else 0

"""Shadow tracing: record the calls of operator functions as data that can be printed.

A `Recorded` value wraps a live JAX tracer and its variable. Operators, the few permitted methods and every call through
the shared namespaces run on the live values and append one `Step`. Callables in arguments (the branches of `lax.cond`,
the body of `lax.scan`) are wrapped, so that they record into a `Function` of their own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import jax
import numpy as np
import onnx_ir as ir

from jaxport.errors import RuleError
from jaxport.importer.values.dtypes import canonical
from jaxport.importer.values.folding import fold
from jaxport.importer.values.host import HostValue
from jaxport.jaxprs import Array, Dim, PythonFunction
from jaxport.jaxprs.identity import IdentityMap
from jaxport.scoped import scoped

if TYPE_CHECKING:
    from typing_extensions import TypeIs

LARGEST_ARRAY = 2**44
"""The largest number of elements of an array."""

Tree = TypeVar("Tree")

Form = Literal["call", "operator", "method", "attribute", "index", "vmap"]


@dataclass(eq=False, slots=True)
class Variable:
    """A recorded array: its shape and dtype, and the ONNX name that suggests its name."""

    shape: tuple[Dim, ...]
    dtype: np.dtype
    hint: str = ""


@dataclass(eq=False, slots=True)
class Step:
    """One recorded call. `args` and `kwargs` hold variables, host values, functions and plain Python values.

    A `method` has its object first (`x.at[index].set(value)` has the index second), an `index` too; a `vmap` has the
    mapped function first, and the options of `jax.vmap` as `kwargs`.

    The types of arguments and results are those of the function that `name` names: whoever reads a step knows them.
    `node` is the node of the model, or what a printer made of it: a layer, a call or a loop.
    """

    form: Form
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    node: Any


@dataclass(eq=False, slots=True)
class Function:
    """A recorded callable: its parameters and its result are trees of variables."""

    name: str
    parameters: tuple[Any, ...] = ()
    steps: list[Step] = field(default_factory=list)
    result: Any = None


@dataclass(eq=False, slots=True)
class Recording:
    """The steps of one function body, and the node that is being evaluated."""

    steps: list[Step] = field(default_factory=list)
    node: ir.Node | None = None

    def run(
        self,
        form: Form,
        name: str,
        function: PythonFunction,
        args: tuple[object, ...],
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        """Call `function` on the live values behind the arguments, and record the call; the result is the
        function's.
        """
        kwargs = kwargs or {}
        functions = IdentityMap[PythonFunction, Function]()
        live_args, live_kwargs = self._live(args, functions), self._live(dict(kwargs), functions)
        shown_args, shown_kwargs = _shown(args, functions), _shown(dict(kwargs), functions)
        result = map_leaves(recorded, function(*live_args, **live_kwargs))
        outputs = _shown(result, {})
        if any(isinstance(leaf, Variable) for leaf in jax.tree.leaves(outputs)):
            self.steps.append(Step(form, name, shown_args, shown_kwargs, outputs, self.node))
        return result

    def _live(self, tree: Tree, functions: IdentityMap[PythonFunction, Function]) -> Tree:
        """Return `tree` with live values for recorded ones, and callables that record into `functions`."""

        def live(leaf: object) -> object:
            if isinstance(leaf, Recorded):
                return leaf.value
            if _is_python_function(leaf):
                return self._wrapped(leaf, functions.setdefault(leaf, Function(leaf.__name__)))
            return _lowered(leaf)

        return map_leaves(live, tree)

    def _wrapped(self, function: PythonFunction, record: Function) -> PythonFunction:
        def traced(*args: object) -> object:
            with recording_scope(Recording(node=self.node)) as inner:
                parameters = map_leaves(recorded, args)
                result = function(*parameters)
                live = inner._live(result, IdentityMap())
            record.parameters, record.steps, record.result = _shown(parameters, {}), inner.steps, _shown(result, {})
            return live

        return traced


_active: ContextVar[Recording | None] = ContextVar("recording", default=None)


def active() -> Recording | None:
    """Return the recording that calls are appended to, if any."""
    return _active.get()


def recording_scope(recording: Recording | None = None) -> AbstractContextManager[Recording]:
    """Record the calls inside into `recording`, or into a new one."""
    return scoped(_active, recording or Recording())


def paused() -> AbstractContextManager[None]:
    """Suspend recording inside."""
    return scoped(_active, None)


def check_size(shape: Sequence[Dim]) -> int:
    """Return the number of elements of a shape, not counting sizes that are only names.

    Raises:
      ValueError: they exceed any machine's memory.
    """
    count = math.prod(size for size in shape if isinstance(size, int))
    if count > LARGEST_ARRAY:
        raise ValueError(f"an array of shape {list(shape)} is larger than {LARGEST_ARRAY} elements")
    return count


class Recordable:
    """A function of a shared namespace: folds, executes or records, depending on its operands.

    >>> import jax.numpy
    >>> Recordable("jnp.add", jax.numpy.add)(HostValue(np.array(1)), HostValue(np.array(2)))
    host(3, int64)
    """

    __slots__ = ("function", "name")

    def __init__(self, name: str, function: PythonFunction):
        self.name, self.function = name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, list(kwargs.values())))
        if any(isinstance(leaf, HostValue) for leaf in leaves) and not any(
            isinstance(leaf, Recorded | jax.Array) for leaf in leaves
        ):
            folded = fold(self.name, args, kwargs)
            if folded is not NotImplemented:
                return folded
        if self.name in _CREATING:
            self._check_size(lower(args), lower(kwargs))
        recording = active()
        if recording is not None:
            return recording.run("call", self.name, self.function, args, kwargs)
        return self.function(*lower(args), **lower(kwargs))

    def _check_size(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Refuse a result that exceeds any machine's memory, before XLA allocates it and aborts the process."""
        live = map_leaves(lambda leaf: leaf.value if isinstance(leaf, Recorded) else leaf, (args, kwargs))
        shapes = jax.eval_shape(lambda: self.function(*live[0], **live[1]))
        for leaf in jax.tree.leaves(shapes):
            check_size(leaf.shape)

    def __repr__(self) -> str:
        return self.name


_CREATING = {f"jnp.{name}" for name in "arange broadcast_to eye full linspace ones pad repeat tile zeros".split()}
"""Functions whose result may be much larger than their operands."""


class Recorded:
    """A live JAX value and its variable in the recording.

    It supports the part of an array's interface that operator functions may use: `shape`, `ndim`, `dtype`, `size`, `T`,
    `mT`, `at`, indexing and the operators of Python. Everything else goes through the shared namespaces.
    """

    __slots__ = ("value", "variable")
    __array_priority__ = 2000  # NumPy arrays defer `array + recorded` to this class

    def __init__(self, value: Array, variable: Variable):
        self.value, self.variable = value, variable

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    dtype = property(lambda self: self.value.dtype)
    size = property(lambda self: self.value.size)
    T = property(lambda self: self if self.ndim < 2 else _run("attribute", "T", operator.attrgetter("T"), self))
    mT = property(lambda self: _run("attribute", "mT", operator.attrgetter("mT"), self))  # noqa: N815  as arrays have it

    @property
    def at(self) -> _At:
        return _At(self)

    def __getitem__(self, index: Any) -> Recorded:
        return _run("index", "", operator.getitem, self, index)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"recorded({self.variable.hint or '?'}: {self.dtype}{list(self.shape)})"

    __hash__ = None  # type: ignore[assignment]  # `==` compares elements


def _run(form: Form, name: str, function: PythonFunction, *args: object, **kwargs: object) -> Any:
    recording = active()
    if recording is None:
        raise RuleError(
            "a recorded value was used after its recording ended",
            where=f"`{name or form}`",
            instead="return it from the function that is recorded",
        )
    return recording.run(form, name, function, args, kwargs)


@dataclass(frozen=True, slots=True, eq=False)
class _At:
    """`x.at[index].set(values)`, recorded as one step."""

    array: Recorded
    index: Any = None

    def __getitem__(self, index: Any) -> _At:
        return _At(self.array, index)

    def __getattr__(self, method: str) -> PythonFunction:
        def update(array: jax.Array, index: Any, *values: object, **options: object) -> object:
            return getattr(array.at[index], method)(*values, **options)

        return lambda *values, **options: _run(
            "method", f"at.{method}", update, self.array, self.index, *values, **options
        )


def _binary(symbol: str, function: PythonFunction, swapped: bool) -> Callable[[Recorded, object], Recorded]:
    def method(self: Recorded, other: object) -> Recorded:
        left, right = (other, self) if swapped else (self, other)
        return _run("operator", symbol, function, left, right)

    return method


def _unary(symbol: str, function: PythonFunction) -> Callable[[Recorded], Recorded]:
    return lambda self: _run("operator", symbol, function, self)


_ARITHMETIC = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
for _name, _symbol in (_ARITHMETIC | _COMPARISONS).items():
    _function = getattr(operator, f"__{_name}__")
    setattr(Recorded, f"__{_name}__", _binary(_symbol, _function, swapped=False))
    if _name in _ARITHMETIC:
        setattr(Recorded, f"__r{_name}__", _binary(_symbol, _function, swapped=True))
Recorded.__neg__ = _unary("-", operator.neg)  # type: ignore[attr-defined]
Recorded.__invert__ = _unary("~", operator.invert)  # type: ignore[attr-defined]


def recorded(leaf: object, hint: str = "") -> Any:
    """Return a live array with a fresh variable; anything else unchanged."""
    if isinstance(leaf, jax.Array | np.ndarray):
        return Recorded(leaf, Variable(tuple(leaf.shape), leaf.dtype, hint))
    return leaf


def lower(tree: Tree) -> Tree:
    """Return `tree` as JAX takes it: host values as arrays, 64-bit dtypes canonicalized, callables wrapped likewise."""
    return map_leaves(_lowered, tree)


def map_leaves(function: PythonFunction, tree: Any) -> Any:
    """Map as `jax.tree.map`, except that dicts keep their order and slices are entered."""
    if isinstance(tree, slice):
        return slice(*(map_leaves(function, part) for part in (tree.start, tree.stop, tree.step)))
    if isinstance(tree, dict):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    return jax.tree.map(function, tree)


def _lowered(leaf: object) -> object:
    if isinstance(leaf, HostValue):
        return leaf.to_jax()
    if isinstance(leaf, Recordable):
        return leaf.function
    if isinstance(leaf, np.dtype):
        return canonical(leaf)
    if isinstance(leaf, slice):
        return slice(*(map(_lowered, (leaf.start, leaf.stop, leaf.step))))
    if _is_python_function(leaf):
        return lambda *args: lower(leaf(*args))
    return leaf


def _is_python_function(leaf: object) -> TypeIs[PythonFunction]:
    """Whether `leaf` is a callable that an operator function passes on, not a dtype or a function of a namespace."""
    return callable(leaf) and not isinstance(leaf, type | Recordable | HostValue | Recorded | jax.Array | np.dtype)


def _shown(tree: Tree, functions: Mapping[PythonFunction, Function]) -> Tree:
    """Return `tree` with variables for recorded values, and the record of each callable."""

    def shown(leaf: object) -> object:
        if isinstance(leaf, Recorded):
            return leaf.variable
        return functions.get(leaf, leaf) if _is_python_function(leaf) else leaf

    return map_leaves(shown, tree)

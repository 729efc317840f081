"""Explain why a function cannot be traced: the line, the module, and whether a symbolic size is the cause.

The cause is tested, not guessed: the function is traced again with a size in place of each symbol. The advice is tested
in the same way: a multiple of the symbol, one name for several symbols, or a size for one of them. Where sizes are not
the cause, the advice is about the error itself.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import jax

from jaxport.blocks.marking.recorder import calls_left
from jaxport.blocks.marking.window import loaded_frameworks
from jaxport.blocks.tracing import Traced, trace
from jaxport.errors import ExportError, InvalidArgument, JaxportError
from jaxport.export.flags.tracing_flags import input_paths, with_flags
from jaxport.export.specs import Inputs
from jaxport.export.walk import sources
from jaxport.jaxprs import Dim, PythonFunction, dims
from jaxport.jaxprs.dim_text import symbols

#: The sizes tried in place of symbols: most functions accept them, and they differ from one another.
_BASES = (8, 16, 64, 3)
_REMAINDER = re.compile(r"mod\((?P<dim>[^,]+), -? ?(?P<factor>\d+)\)")
#: Signs that Python or NumPy needed a number.
_AS_A_NUMBER = ("_DimExpr", "requires a constant", "expected a sequence of integers")
_VALUE_NEEDED = (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError)
#: What to do instead, by a sign in the message of an error that no size causes.
_BY_MESSAGE = {
    "numpy.ndarray conversion method": (
        "NumPy cannot compute with traced arrays: use `jax.numpy`, and wrap an array of NumPy that is indexed: "
        "`jnp.asarray(table)[index]`"
    ),
    "different trace level": (
        "make the model that changes inside the function: `nnx.merge(graphdef, state, copy=True)`, or export the model "
        "object itself"
    ),
}
_MEND = "fix the function at this line, or give it other inputs"


@contextmanager
def explaining(name: str, fn: PythonFunction, inputs: Inputs) -> Iterator[None]:
    """Explain what the user's function, or JAX, raises while the function is traced inside the context.

    Raises:
      ExportError: the function cannot be traced.
    """
    try:
        yield
    except JaxportError:
        raise
    except Exception as error:
        raise explained(error, name, fn, inputs) from error


def explained(error: Exception, name: str, fn: PythonFunction, inputs: Inputs) -> ExportError:
    """Return the error that tells why a function cannot be traced.

    Args:
      error: the exception raised.
      name: the name of the function.
      fn: the function.
      inputs: its arguments.
    """
    why, instead = _reason(error, _Trial(fn, inputs), fn, inputs)
    if inputs.instead:
        instead = f"write `{inputs.instead}` if you mean one array; or {instead}"
    shown = ", ".join(map(_shown, jax.tree.leaves((inputs.args, inputs.kwargs))))
    return ExportError(
        f"`{name}` cannot be traced with these inputs: {type(error).__name__}",
        where="\n".join(text for text in (place_of(error), f"inputs {shown or 'none'}") if text),
        why=why,
        instead=instead,
    )


def place_of(error: BaseException) -> str:
    """Return the user's line that an exception came from, with the path of the innermost module whose call it left."""
    calls = calls_left(error)
    path = next((path for path, _ in calls if path), "")
    module = f"in the module `{path}` ({calls[0][1]})" if path else f"in {calls[0][1]}" if calls else ""
    return ", ".join(text for text in (sources.raised_at(error), module) if text)


def _shown(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return repr(leaf)
    return f"{getattr(leaf.dtype, 'name', leaf.dtype)}[{', '.join(map(str, leaf.shape))}]"


def _reason(error: Exception, trial: _Trial, fn: PythonFunction, inputs: Inputs) -> tuple[str, str]:
    """Return why tracing failed, and what to do instead."""
    message = _without_links(str(error))
    if isinstance(error, _VALUE_NEEDED):
        paths = input_paths(fn, inputs.args, inputs.kwargs)
        needed = [f"`{paths[int(index)]}`" for index in dict.fromkeys(re.findall(r"\binputs\[(\d+)\]", str(error)))]
        of_inputs = f"; it depends on the input{'s' * (len(needed) > 1)} {' and '.join(needed)}" if needed else ""
        return f"{message.splitlines()[0].rstrip('.:')}{of_inputs}", (
            "a trace knows shapes and dtypes, not values: choose with `jnp.where` or `jax.lax.cond`, bake the "
            "argument in "
            "(`static_params`), or declare a flag as `bool` (`input_params={'deterministic': bool}`)"
        )
    call = _unbound(fn, inputs)
    if call:
        return message, call
    sizes = trial.sizes_that_work() if trial.symbols else None
    if sizes is None:
        advice = next((advice for sign, advice in _BY_MESSAGE.items() if sign in message), _MEND)
        if trial.symbols and _is_of_sizes(error, message):
            tried = "; ".join(trial.failures)
            advice = f"give {_listed(trial.symbols)} sizes that the function takes: with {tried}"
        return message, advice
    if len(trial.symbols) > 1 and len(set(sizes.values())) == 1:
        return (
            f"{_listed(trial.symbols)} have to be equal: with {_given(sizes)} the function can be traced\n{message}",
            f"use one name, such as `{trial.symbols[0]}`, for the sizes that are always equal",
        )
    culprits = trial.culprits(sizes, error)
    works = f"with {_given(sizes)} the function can be traced"
    cause = f"the symbolic size {_listed(culprits)} is the cause: {works}\n{message}"
    advice = []
    multiple = trial.multiple(message)
    if multiple:
        advice.append(f"use `{multiple}` for the dim, where it always is such a multiple")
    constraint = _constraint(message)
    if constraint:
        advice.append(f'say what is known of it, such as `constraints=["{constraint}"]`')
    first = culprits[0]
    advice.append(f"give `{first}` a size, such as {sizes[first]}, where it may be fixed")
    if any(sign in message for sign in _AS_A_NUMBER):
        advice.append(
            "compute with `jnp.asarray(x.shape[0])`, which the model can do: for Python and NumPy it is not a number"
        )
    return cause, "; or ".join(advice)


def _is_of_sizes(error: Exception, message: str) -> bool:
    """Whether an error says itself that a symbolic size is not known well enough."""
    return type(error).__name__ == "InconclusiveDimensionOperation" or any(sign in message for sign in _AS_A_NUMBER)


def _unbound(fn: PythonFunction, inputs: Inputs) -> str:
    """Return what to do instead if a function does not take so many arguments, or not by these names; else nothing."""
    args, kwargs = tuple(inputs.args), dict(inputs.kwargs)
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        names = f" and {_listed(sorted(kwargs))} by name" if kwargs else ""
        return f"give it what it takes, `{signature}`: it was given {len(args)} by position{names}"
    return ""


def _constraint(message: str) -> str:
    """Return a constraint that decides the comparison a message is about, or an empty text."""
    comparison = re.search(r"comparison '(.+?)' ([<>=!]+) '(-?\d+)' is inconclusive", message)
    if comparison is None:
        return ""
    left, operator, right = comparison.groups()
    return {">": f"{left} >= {int(right) + 1}", "<": f"{left} >= {right}"}.get(operator, f"{left} >= {right}")


def _without_links(message: str) -> str:
    """Return JAX's message without its general advice, which is about other settings."""
    lines = message.splitlines()
    kept = next(
        (
            index
            for index, line in enumerate(lines)
            if line.startswith(
                ("Please see http", "See http", "This error arises for", "The error occurred while tracing")
            )
        ),
        None,
    )
    return "\n".join(lines[:kept]).strip() or message.strip()


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _given(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


class _Trial:
    """A function to trace again with other dims."""

    def __init__(self, fn: PythonFunction, inputs: Inputs):
        self.fn, self.inputs = fn, with_flags(inputs.args, inputs.kwargs, dict.fromkeys(inputs.flags, True))
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.inputs) if hasattr(leaf, "shape")]
        self._dims = [dim for shape in shapes for dim in shape if not dims.is_static(dim)]
        self.symbols = sorted({name for dim in self._dims for name in symbols(str(dim))})
        self.failure = ""
        self.failures: list[str] = []

    def sizes_that_work(self) -> dict[str, int] | None:
        """Return sizes of all symbols with which the function can be traced, or None if none were found."""
        for sizes in self._candidates():
            if self.succeeds({name: str(size) for name, size in sizes.items()}):
                return sizes
            self.failures.append(f"{_given(sizes)}, {self.failure}")
        return None

    def culprits(self, sizes: Mapping[str, int], error: Exception) -> list[str]:
        """Return the symbols that cause the failure: one that suffices, those in the message, or all."""
        if len(self.symbols) > 1:
            for name in self.symbols:
                if self.succeeds({name: str(sizes[name])}):
                    return [name]
        named = [name for name in self.symbols if re.search(rf"\b{name}\b", str(error))]
        return named or self.symbols

    def multiple(self, message: str) -> str:
        """Return a multiple of a symbol with which the function can be traced, if the message is about a division."""
        remainder = _REMAINDER.search(message)
        names = symbols(remainder["dim"]) if remainder else frozenset()
        multiples = {name: f"{remainder['factor']}*{name}" for name in sorted(names)} if remainder else {}
        return next((text for name, text in multiples.items() if self.succeeds({name: text})), "")

    def succeeds(self, replacement: Mapping[str, str]) -> bool:
        """Whether the function can be traced with other dims in place of symbols."""
        try:
            args, kwargs = jax.tree.map(lambda leaf: self._replaced(leaf, replacement), self.inputs)
            trace(self.fn, args, kwargs, state="discard")
        except Exception as error:  # noqa: BLE001 - whatever it is that the function or JAX raises
            self.failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            return False
        return True

    def _replaced(self, leaf: Any, replacement: Mapping[str, str]) -> Any:
        if not hasattr(leaf, "shape") or dims.all_static(leaf.shape):
            return leaf
        return jax.ShapeDtypeStruct(tuple(_substituted(dim, replacement) for dim in leaf.shape), leaf.dtype)

    def _candidates(self) -> Iterator[dict[str, int]]:
        different = [{name: base * (index + 1) for index, name in enumerate(self.symbols)} for base in _BASES]
        equal = [dict.fromkeys(self.symbols, base) for base in _BASES] if len(self.symbols) > 1 else []
        for sizes in (*different, *equal):
            if all(dims.evaluate(dim, sizes) >= 1 for dim in self._dims):
                yield sizes


def _substituted(dim: Dim, replacement: Mapping[str, str]) -> Dim:
    if not jax.export.is_symbolic_dim(dim):
        return dim
    own = {name: jax.export.symbolic_shape(name, scope=dim.scope)[0] for name in symbols(str(dim))}
    return dims.evaluate(dim, {name: dims.evaluate(replacement.get(name, name), own) for name in own})


def check_result(traced: Traced, name: str) -> None:
    """Refuse a function whose result is a model, or no array at all.

    Raises:
      InvalidArgument: it is.
    """
    root = traced.out_tree.node_data()
    kind = object if root is None else root[0]
    static = list(traced.static_outputs.values())
    made = next((value for value in static if callable(value)), None) if not traced.output_paths else None
    called = (FunctionType, functools.partial, *(base for framework in loaded_frameworks() for base in framework.bases))
    # Results may be modules that hold arrays, such as the solution of a differential equation.
    is_model = issubclass(kind, called) and any("__call__" in vars(one) for one in kind.__mro__)
    if is_model or made is not None:
        raise InvalidArgument(
            f"`{name}` returns a `{kind.__name__ if is_model else type(made).__name__}`, which is called itself",
            where="`to_onnx`",
            why="the file's outputs would be weights, or there would be none",
            instead=f"export what it returns, `to_onnx({name}(...), inputs)`; on the command line `module:{name}(...)`",
        )
    if not traced.output_paths and not traced.state_outputs:
        shown = ", ".join(dict.fromkeys(type(value).__name__ for value in static)) or "None, or an empty container"
        raise InvalidArgument(
            f"`{name}` returns no array",
            where="`to_onnx`",
            why=f"it returns {f'`{static[0]!r}`' if len(static) == 1 and isinstance(static[0], str) else shown}",
            instead="return what the model computes: arrays, or containers of arrays",
        )

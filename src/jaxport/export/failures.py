"""Why a function cannot be traced, in the user's terms: the line, the module, and whether a symbolic size is the cause.

Whether it is, is tried and not guessed: the function is traced again with a size in the place of each symbol. The same
for what is advised: a multiple of the symbol, or a size for one of several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from jaxport import blocks
from jaxport.blocks.recorder import calls_left
from jaxport.errors import ExportError
from jaxport.export import dims, sources

#: What is tried in the place of symbols: sizes that most functions take, and that differ from one another.
_BASES = (8, 16, 64, 3)
_REMAINDER = re.compile(r"mod\((?P<symbol>[A-Za-z_]\w*), -? ?(?P<factor>\d+)\)")
_VALUE_NEEDED = (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError)


def explained(error: Exception, name: str, fn: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]) -> ExportError:
    """The error that tells why `fn(*args, **kwargs)` cannot be traced.

    Args:
      error: what was raised.
      name: of the function.
      fn: the function.
      args, kwargs: its arguments as abstract values.
    """
    why, instead = _reason(error, _Trial(fn, args, dict(kwargs)))
    inputs = ", ".join(map(_shown, jax.tree.leaves((args, dict(kwargs)))))
    return ExportError(
        f"`{name}` cannot be traced with these inputs: {type(error).__name__}",
        where="\n".join(text for text in (place_of(error), f"inputs {inputs or 'none'}") if text),
        why=why,
        instead=instead,
    )


def place_of(error: BaseException) -> str:
    """The user's line that an exception came from, and the modules whose calls it left: the innermost, with its path."""
    calls = calls_left(error)
    path = next((path for path, _ in calls if path), "")
    module = f"in the module `{path}` ({calls[0][1]})" if path else f"in {calls[0][1]}" if calls else ""
    return ", ".join(text for text in (sources.raised_at(error), module) if text)


def _shown(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return repr(leaf)
    return f"{getattr(leaf.dtype, 'name', leaf.dtype)}[{', '.join(map(str, leaf.shape))}]"


def _reason(error: Exception, trial: _Trial) -> tuple[str, str]:
    """Why, and what to do instead."""
    message = _without_links(str(error))
    if isinstance(error, _VALUE_NEEDED):
        return message, (
            "a trace knows shapes and dtypes, not values: choose with `jnp.where` or `jax.lax.cond`, bake the argument in "
            "(`static_params`), or declare a flag as `bool` (`input_params={'deterministic': bool}`)"
        )
    if not trial.symbols:
        return message, "what is exported is traced, as under `jax.jit`: let the function compute with JAX's operations"
    sizes = trial.sizes_that_work()
    if sizes is None:
        return message, (
            f"it fails with sizes in the place of {_listed(trial.symbols)} too (tried {trial.tried}): the symbolic "
            "sizes are not the cause"
        )
    culprits = trial.culprits(sizes, error)
    found = f"the symbolic size {_listed(culprits)} is the cause: with {_given(sizes)} the function is traced\n{message}"
    advice = []
    multiple = trial.multiple(message)
    if multiple:
        advice.append(f"use `{multiple}` for the dim, where it always is such a multiple")
    comparison = re.search(r"comparison '(.+?)' ([<>=!]+) '(.+?)' is inconclusive", message)
    if comparison:
        left, operator, right = comparison.groups()
        wanted = {">": f"{left} >= {right} + 1", "<": f"{left} + 1 <= {right}", "!=": f"{left} >= {right} + 1"}
        told = wanted.get(operator, f"{left} {operator} {right}")
        advice.append(f'say what is known of it, such as `constraints=["{told}"]`')
    first = culprits[0]
    advice.append(f"give `{first}` a size, such as {sizes[first]}, where it may be fixed")
    if not multiple and not comparison:
        advice.append(f"compute with it by JAX's operations: `jnp.asarray(x.shape[0])` is a number of the model, a Python or NumPy number cannot be")
    return found, "; or ".join(advice)


def _without_links(message: str) -> str:
    """The message of JAX without its general advice, which is about other settings."""
    lines = message.splitlines()
    kept = next((index for index, line in enumerate(lines) if line.startswith(("Please see http", "See http", "This error arises for"))), None)
    return "\n".join(lines[:kept]).strip() or message.strip()


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _given(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


class _Trial:
    """A function that is traced again with other dims."""

    def __init__(self, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]):
        self.fn, self.inputs = fn, (args, kwargs)
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.inputs) if hasattr(leaf, "shape")]
        self._dims = [dim for shape in shapes for dim in shape if not dims.is_static(dim)]
        self.symbols = sorted({name for dim in self._dims for name in dims.symbols(str(dim))})
        self.tried = ""

    def sizes_that_work(self) -> dict[str, int] | None:
        """Sizes of all symbols with which the function is traced, or None where none were found."""
        for sizes in self._candidates():
            self.tried = _given(sizes)
            if self.succeeds({name: str(size) for name, size in sizes.items()}):
                return sizes
        return None

    def culprits(self, sizes: Mapping[str, int], error: Exception) -> list[str]:
        """The symbols that the failure is about: one that alone makes the difference, those of the message, or all."""
        if len(self.symbols) > 1:
            for name in self.symbols:
                if self.succeeds({name: str(sizes[name])}):
                    return [name]
        named = [name for name in self.symbols if re.search(rf"\b{name}\b", str(error))]
        return named or self.symbols

    def multiple(self, message: str) -> str:
        """A multiple of a symbol with which the function is traced, where the message is of a division."""
        remainder = _REMAINDER.search(message)
        if remainder is None or remainder["symbol"] not in self.symbols:
            return ""
        text = f"{remainder['factor']}*{remainder['symbol']}"
        return text if self.succeeds({remainder["symbol"]: f"({text})"}) else ""

    def succeeds(self, replacement: Mapping[str, str]) -> bool:
        """Whether the function can be traced with other texts in the place of symbols."""
        try:
            args, kwargs = jax.tree.map(lambda leaf: self._replaced(leaf, replacement), self.inputs)
            blocks.trace(self.fn, args, kwargs, state="discard")
        except Exception:  # noqa: BLE001 - whatever it is that the function or JAX raises
            return False
        return True

    def _replaced(self, leaf: Any, replacement: Mapping[str, str]) -> Any:
        if not hasattr(leaf, "shape") or dims.all_static(leaf.shape):
            return leaf
        return jax.ShapeDtypeStruct(tuple(_substituted(dim, replacement) for dim in leaf.shape), leaf.dtype)

    def _candidates(self) -> Iterator[dict[str, int]]:
        for base in _BASES:
            sizes = {name: base * (index + 1) for index, name in enumerate(self.symbols)}
            if all(dims.evaluate(dim, sizes) >= 1 for dim in self._dims):
                yield sizes


def _substituted(dim: dims.Dim, replacement: Mapping[str, str]) -> dims.Dim:
    if dims.is_static(dim):
        return dim
    text = str(dim)
    for name, new in replacement.items():
        text = re.sub(rf"\b{name}\b", new, text)
    if not dims.symbols(text):
        return dims.evaluate(dim, {name: int(new) for name, new in replacement.items() if new.isdigit()})
    (result,) = jax.export.symbolic_shape(text, scope=dim.scope)
    return result

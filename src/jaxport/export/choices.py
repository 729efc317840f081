"""Arguments of `to_onnx` that are one of a few names, or select something of the program."""

from __future__ import annotations

import fnmatch
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, ParamSpec, TypeVar, get_args

from jaxport.blocks.tracing import State
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Jaxpr
from jaxport.jaxprs.walk import equations_within
from jaxport.mox.programs.names import near

Nonfinite = Literal["runtime", "exact", "ignore"]
Fold = Literal["constants", "weights"]
Checks = Literal["discard", "refuse"]
Weights = Literal["constants", "inputs"] | str | Sequence[str] | Callable[[str], object]
"""Which parameters become inputs: none, all, those of path patterns, or those of a predicate on paths."""
_KNOWN = {"state": State, "nonfinite": Nonfinite, "fold": Fold, "checks": Checks}


def check_choices(**values: str) -> None:
    """Check arguments by their names.

    Raises:
      InvalidArgument: a value is none of those that its argument takes.

    >>> check_choices(fold="all")
    Traceback (most recent call last):
    jaxport.InvalidArgument: fold='all' is unknown
      where:   `to_onnx(fold=...)`
      instead: "constants" or "weights"
    """
    for argument, value in values.items():
        known = get_args(_KNOWN[argument])
        if value not in known:
            names = [f'"{name}"' for name in known]
            raise InvalidArgument(
                f"{argument}={value!r} is unknown",
                where=f"`to_onnx({argument}=...)`",
                instead=f"{', '.join(names[:-1])} or {names[-1]}",
            )


def weight_selector(weights: Weights, paths: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate on parameter paths: whether a parameter becomes an input of the graph.

    Raises:
      InvalidArgument: a pattern, or the predicate, selects none.
    """
    if weights in ("constants", "inputs"):
        return lambda _: weights == "inputs"
    patterns = [] if callable(weights) else [weights] if isinstance(weights, str) else list(weights)
    unused = [pattern for pattern in patterns if not fnmatch.filter(paths, pattern)]
    if unused or (callable(weights) and not any(map(weights, paths))):
        raise InvalidArgument(
            f"no weight matches `{unused[0]}`" if unused else "the predicate selects no weight",
            where="`to_onnx(weights=...)`",
            why=near(unused[0].replace("*", ""), paths) if unused else "",
            instead=f"the weights are {', '.join(f'`{path}`' for path in paths[:20]) or 'none'}"
            + (f", and {len(paths) - 20} more" if len(paths) > 20 else ""),
        )
    if callable(weights):
        return lambda path: bool(weights(path))
    return lambda path: any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def check_rules(rules: Iterable[str], *programs: Jaxpr) -> None:
    """Refuse rules for what the program does not do, by their names.

    Raises:
      InvalidArgument: there is one.
    """
    equations = [equation for program in programs for equation in equations_within(program)] if rules else []
    blocks = (equation.params["block"].target for equation in equations if "block" in equation.params)
    known = {*(equation.primitive.name for equation in equations), *blocks}
    for name in rules:
        if name not in known:
            raise InvalidArgument(
                f"the rule for `{name}` would not be used",
                where="`to_onnx(rules=...)`",
                why=near(name, known) or "the program has no operation and no block of that name",
                instead="`jaxport.make_mox(fn)(*inputs)` shows what there is",
            )


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_SAVED = "the result has it: `exported.save(path, external_data=...)`"
_MODEL = "the result has the model: `exported.model`, `exported.proto`, `exported.save(path)`"
_DIMS = 'sizes that are open have names in `inputs`: `[("B", 3)]`'
_ELSEWHERE = {
    "model_name": "it is `name` here",
    "enable_double_precision": "it is `double_precision` here",
    "return_mode": _MODEL,
    "output_path": _SAVED,
    "export_mode": 'it is `target="web"` here',
    "normalization_mode": "normalizations are recognised; `target` and `opset` decide which operators there are",
    "record_primitive_calls_file": "`exported.explain()` says how each equation was exported",
    "args": "they are `inputs` here: one specification for each argument",
    "kwargs": "they are `input_params` here, or `static_params` to bake them in",
    "f": _SAVED,
    "opset_version": "it is `opset` here",
    "dynamic_axes": _DIMS,
    "dynamic_shapes": _DIMS,
    "input_signature": "it is `inputs` here: one specification for each argument",
    "do_constant_folding": 'constants are folded; `fold="weights"` folds what depends on weights, too',
    "export_params": 'it is `weights` here: "constants" or "inputs"',
    "keep_initializers_as_inputs": 'it is `weights="inputs"` here',
    "external_data": _SAVED,
    "verify": "the result compares: `exported.verify()`",
    "report": "`exported.explain()` says how each equation was exported",
    "verbose": "`exported.explain()` says how each equation was exported",
    "export_modules_as_functions": "it is `functions` here",
    "custom_opsets": "the domains of the rules that emit them are written",
    "dynamo": "there is one way to trace",
}
"""Arguments of jax2onnx, `torch.onnx.export` and tf2onnx, and what stands for them here."""


def knows_other_exporters(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Answer keyword arguments that other exporters have with those that the function has."""
    own = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for name in kwargs:
            if name not in own and name in _ELSEWHERE:
                raise InvalidArgument(
                    f"`{name}` is an argument of another exporter", where="`to_onnx`", instead=_ELSEWHERE[name]
                )
        return function(*args, **kwargs)

    return call

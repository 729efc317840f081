"""The registry of operator functions: which one computes which ONNX operator, from which version on.

The registry is a dict from (domain, operator) to functions by version. A function's signature *is* the operator's
schema: inputs are positional, in schema order, optional ones default to None, `*name` is variadic; attributes are
keyword-only, with the schema's defaults; `lambda_` is the attribute `lambda`, a Python keyword, and `split_` is `split`
if an input has that name too. Annotations tell what the evaluator has to provide:

* `Host`: an input that has to be known while the program is traced (a shape, axes); it is passed as a `HostValue`.
* `Known`: an input whose values decide the size of the result. It is passed as a `HostValue` too, unless the user
  bounds that size; then it may be traced.
* `Position`: a `Host`, unless the node has an extent: a slice of one size, wherever it is. Then it may be traced.
* `ShapeOnly`: an input of which only shape and dtype matter.
* `OutputCount`, `OutputsNamed`, `RandomKey`, `DifferentiatedGraph`: a keyword that is not an attribute: the number of
  outputs of the node, whether each has a name, a `jax.random` key, the part of the graph that the node differentiates.
* `Extent`: such a keyword: the extent, or None.
* `SizeBound`: such a keyword: the maximum number of rows of the result, a dim if the result has as many rows as there
  are, or None if the user did not set it.

A keyword annotated with a dataclass is a group of attributes that several operators have: its fields are the
attributes, with their defaults.

A function of images that can be computed in several orders of their axes has one more parameter before the inputs, an
`ImageLayout`; it is registered by `image_op`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cached_property, partial, update_wrapper
from keyword import iskeyword
from typing import Annotated, Any, Protocol, get_args, get_origin

from jaxport.errors import InvalidArgument
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.image_layout import ONNX, ImageLayout

OperatorFunction = Callable[..., Any]
"""A function of an operator's inputs and, as keywords, its attributes."""


class LoopBody(Protocol):
    """The body of a loop as an operator function calls it, with as many inputs as it declares."""

    @property
    def output_count(self) -> int:
        """The number of results."""
        ...

    @property
    def is_counted(self) -> bool:
        """Whether the condition that it returns is the one that it takes, or a constant."""
        ...

    def empty_output(self, index: int, /) -> HostValue:
        """Return the output at `index` with no rows, of the type that the model declares for it."""
        ...

    def __call__(self, *inputs: RuntimeValue) -> tuple[Any, ...]:
        """Return the results; of what types they are is up to the body."""
        ...


class GraphFunction(LoopBody, Protocol):
    """A graph among the attributes of a node, as an operator function gets it:
    `jaxport.importer.running.evaluate.Subgraph`.
    """

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs."""
        ...

    def uses(self, name: str, /) -> bool:
        """Whether a node reads the input of this name."""
        ...

    def input_sizes(self, index: int, /) -> tuple[int | None, ...] | None:
        """Return the sizes that the model declares for the input at `index`, None for an open one, if it declares
        any.
        """
        ...


Host = Annotated[HostValue, "host"]
ShapeOnly = Annotated[Any, "shape only"]
OutputCount = Annotated[int, "output count"]
OutputsNamed = Annotated[tuple[bool, ...], "outputs named"]
RANDOM_KEY = "random key"
RandomKey = Annotated[Any, RANDOM_KEY]
Known = Annotated[HostValue, "known"]
REQUIRED = inspect.Parameter.empty
POSITION = "position"
Position = Annotated[Any, POSITION]
EXTENT = "extent"
Extent = Annotated[tuple[int, ...] | None, EXTENT]
BOUND = "size bound"
SizeBound = Annotated[Any, BOUND]
DifferentiatedGraph = Annotated[Any, "graph"]

KNOWN_OPSETS = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1, "com.microsoft": 1}
"""The newest version of each standard domain whose operators were compared with the functions here."""

ASSUMED_OPSETS = KNOWN_OPSETS | {"": 26}
"""The version of a domain that a model does not import: the newest that ONNX Runtime has released."""


@dataclass(frozen=True)
class Operator:
    """One operator from one version on: the function and the facts in its signature.

    `inputs` are the names of the positional inputs, `attributes` maps keyword names to defaults
    (`inspect.Parameter.empty` if required). `lowering` takes an `ImageLayout` before the inputs and computes the same
    on images in that layout; it is None for operators that are only defined in ONNX's own.
    """

    domain: str
    name: str
    since: int
    function: OperatorFunction
    until: int | None = None
    plain: bool = field(default=False, kw_only=True)
    lowering: OperatorFunction | None = field(default=None, kw_only=True)

    @cached_property
    def parameters(self) -> list[inspect.Parameter]:
        return _parameters(self.function)

    @cached_property
    def inputs(self) -> list[inspect.Parameter]:
        """The named positional inputs."""
        return [p for p in self.parameters if p.kind == p.POSITIONAL_OR_KEYWORD] if not self.plain else []

    @cached_property
    def variadic(self) -> inspect.Parameter | None:
        """The `*inputs` that take any number, if any."""
        return next((p for p in self.parameters if p.kind == p.VAR_POSITIONAL), None) if not self.plain else None

    @cached_property
    def attributes(self) -> dict[str, inspect.Parameter]:
        """The keywords that are ONNX attributes, by the names of these."""
        if self.plain:
            return {}
        inputs = {p.name for p in self.inputs}
        keywords = (p for p in self.parameters if p.kind == p.KEYWORD_ONLY and _mark(p) is None)
        return {_attribute_name(p.name, inputs): p for p in keywords}

    def keyword(self, attribute: str) -> str:
        """Return the keyword of the function for an attribute."""
        return self.attributes[attribute].name if attribute in self.attributes else attribute

    @cached_property
    def context(self) -> dict[str, str]:
        """The keywords that the evaluator provides: from the name to the kind ("output count", "random key" …)."""
        if self.plain:
            return {}
        keywords = ((p.name, _mark(p)) for p in self.parameters if p.kind == p.KEYWORD_ONLY)
        return {name: mark for name, mark in keywords if mark is not None}

    @cached_property
    def input_marks(self) -> list[str | None]:
        """The requirement of each named input: "host", "shape only" or None."""
        return [_mark(parameter) for parameter in self.inputs]

    def input_mark(self, index: int) -> str | None:
        """Return the requirement of the input at `index`, including variadic ones."""
        if index < len(self.input_marks):
            return self.input_marks[index]
        return _mark(self.variadic) if self.variadic else None

    def in_layout(self, layout: ImageLayout) -> OperatorFunction:
        """Return the function that computes the operator on images in a layout."""
        if layout == ONNX or self.lowering is None:
            return self.function
        return partial(self.lowering, layout)

    @property
    def label(self) -> str:
        """Its name in messages: `Gemm` or `com.microsoft.FusedMatMul`."""
        return f"{self.domain}.{self.name}" if self.domain else self.name


def _attribute_name(parameter: str, inputs: Collection[str]) -> str:
    """Return the attribute of a parameter, which has a trailing `_` if Python does not allow the name itself."""
    name = parameter.removesuffix("_")
    return name if iskeyword(name) or name in inputs else parameter


def _mark(parameter: inspect.Parameter) -> str | None:
    annotation = parameter.annotation
    candidates = (annotation, *get_args(annotation)) if get_origin(annotation) is not Annotated else (annotation,)
    for candidate in candidates:
        if get_origin(candidate) is Annotated:
            return get_args(candidate)[1]
    return None


_registry: dict[tuple[str, str], list[Operator]] = {}


def op(*names: str, since: int = 1, until: int | None = None) -> Callable[[OperatorFunction], OperatorFunction]:
    """Register a function as an ONNX operator, from opset version `since` on.

    Args:
      names: the operator, or the domain and the operator: `op("Relu")`, `op("my.domain", "MyOp")`.
      since: the first opset version of the domain that the function implements.
      until: the last one, for an operator that ONNX removed.

    The signature is the operator's schema: inputs are positional, attributes are keyword-only, with their defaults. A
    keyword annotated with a dataclass stands for the attributes that are its fields. Compute with
    `jaxport.importer.values.namespaces`, or with plain `jax.numpy` if printed source is not needed.

    Raises:
      InvalidArgument: the version is registered already.

    >>> from jaxport import op
    >>> from jaxport.importer.resolving.registry import lookup
    >>> @op("my.domain", "Scaled")
    ... def scaled(x, *, factor=1.0):
    ...     return x * factor
    >>> lookup("my.domain", "Scaled", 1).function is scaled
    True
    """

    def register(function: OperatorFunction) -> OperatorFunction:
        _add(names, since, until, _expanded(function))
        return function

    return register


def image_op(*names: str, since: int = 1, until: int | None = None) -> Callable[[OperatorFunction], OperatorFunction]:
    """Register a function as an ONNX operator, as `op` does, if its first parameter is the layout of the images."""

    def register(function: OperatorFunction) -> OperatorFunction:
        _add_image_operator(names, since, until, _expanded(function))
        return function

    return register


def in_layout(layout: ImageLayout, function: OperatorFunction) -> OperatorFunction:
    """Return a function of images in one layout: its first parameter is set."""
    return _declared(partial(function, layout), _parameters(function)[1:], function)


def variant(
    without: str = "",
    *,
    fixed: Mapping[str, object] | None = None,
    ignored: Mapping[str, object] | None = None,
    **defaults: object,
) -> Callable[[OperatorFunction], OperatorFunction]:
    """Return a decorator that changes the inputs and attributes of a function, for an operator that differs in these.

    Args:
      without: the names of the trailing inputs and of the attributes that the operator lacks, separated by spaces.
      fixed: attributes that it lacks, with their values if these differ from the function's defaults.
      ignored: additional attributes that it has, with their defaults, and that change nothing.
      defaults: its defaults, if these differ; `REQUIRED` for required ones.

    >>> @variant("shift", factor=3.0)
    ... def scaled(x, *, factor=1.0, shift=0.0):
    ...     return x * factor + shift
    >>> scaled(2.0), str(inspect.signature(scaled))
    (6.0, '(x, *, factor=3.0)')
    """
    fixed, ignored = fixed or {}, ignored or {}

    def changed(function: OperatorFunction) -> OperatorFunction:
        function = _expanded(function)
        lacking = {*without.split(), *fixed}
        kept = [p.replace(default=defaults.get(p.name, p.default)) for p in _parameters(function)]
        kept = [p for p in kept if p.name not in lacking]
        beyond = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d) for n, d in ignored.items()]
        preset = {p.name: p.default for p in kept if p.name in defaults and p.kind == p.KEYWORD_ONLY} | {**fixed}

        def call(*inputs: object, **attributes: object) -> object:
            passed = {name: value for name, value in attributes.items() if name not in ignored}
            return function(*inputs, **{**preset, **passed})

        return _declared(call, [*kept, *beyond], function)

    return changed


def _expanded(function: OperatorFunction) -> OperatorFunction:
    """Return a function whose keywords are single attributes, if some keywords of this one are groups of them."""
    parameters = _parameters(function)
    groups = {p.name: p.annotation for p in parameters if _is_group(p)}
    if not groups:
        return function
    members = {name: {attribute.name: _default(attribute) for attribute in fields(groups[name])} for name in groups}
    attributes = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for group in members.values()
        for name, default in group.items()
    ]

    def call(*inputs: object, **keywords: object) -> object:
        for name, group in groups.items():
            keywords[name] = group(**{member: keywords.pop(member) for member in members[name] if member in keywords})
        return function(*inputs, **keywords)

    return _declared(call, [*(p for p in parameters if p.name not in groups), *attributes], function)


def _default(attribute: Field[object]) -> object:
    if attribute.default is not MISSING:
        return attribute.default
    return REQUIRED if attribute.default_factory is MISSING else attribute.default_factory()


def _is_group(parameter: inspect.Parameter) -> bool:
    return parameter.kind == parameter.KEYWORD_ONLY and is_dataclass(parameter.annotation)


def _declared(
    call: OperatorFunction, parameters: Sequence[inspect.Parameter], like: OperatorFunction
) -> OperatorFunction:
    """Give a new function these parameters, and the name of another one."""
    update_wrapper(call, like, updated=())
    # In ONNX, unlike in Python, required inputs may follow optional ones.
    call.__signature__ = inspect.Signature(parameters, __validate_parameters__=False)
    return call


def _parameters(function: OperatorFunction) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def renamed(domain: str = "", *, since: int, **functions: OperatorFunction) -> None:
    """Register operators without attributes that are functions of a shared namespace: `renamed(since=7,
    Sin=jnp.sin)`.
    """
    for name, function in functions.items():
        _add((domain, name), since, None, function, plain=True)


def earlier(*names: str, since: int, until: int, inputs: str = "", **changes: Any) -> None:
    """Register versions `since` to `until` of an operator with the function of the version after them.

    Args:
      names: the operator, or the domain and the operator.
      since: the first version.
      until: the last one; the version after it is registered already.
      inputs: the name of the input of a JAX function; the functions of this package have theirs in their signature.
      changes: how they differ from that version, as arguments of `variant`.
    """
    later = lookup(*_domain_and_name(names), until + 1)
    assert later is not None, names
    if later.lowering is not None:
        _add_image_operator(names, since, until, variant(**changes)(later.lowering))
        return
    function = later.function
    if inputs:
        operand = inspect.Parameter(inputs, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        function = _declared(partial(function), [operand], function)
    _add(names, since, until, variant(**changes)(function))


def lookup(domain: str, name: str, opset: int) -> Operator | None:
    """Return the newest function for the operator at this opset version, or None."""
    served = [entry for entry in versions(domain, name) if entry.since <= opset]
    newest = max(served, key=lambda entry: entry.since, default=None)
    return newest if newest and (newest.until is None or opset <= newest.until) else None


def versions(domain: str, name: str) -> list[Operator]:
    """Return all functions of an operator, oldest first."""
    return sorted(_registry.get((_domain(domain), name), []), key=lambda entry: entry.since)


def operators() -> list[Operator]:
    """Return all registered functions, by domain, name and version."""
    everything = (entry for entries in _registry.values() for entry in entries)
    return sorted(everything, key=lambda entry: (entry.domain, entry.name, entry.since))


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _domain_and_name(names: Sequence[str]) -> tuple[str, str]:
    domain, name = names if len(names) == 2 else ("", *names)
    return _domain(domain), name


def _add_image_operator(names: Sequence[str], since: int, until: int | None, lowering: OperatorFunction) -> None:
    _add(names, since, until, in_layout(ONNX, lowering), lowering=lowering)


def _add(names: Sequence[str], since: int, until: int | None, function: OperatorFunction, **options: Any) -> None:
    entry = Operator(*_domain_and_name(names), since, function, until, **options)
    entries = _registry.setdefault((entry.domain, entry.name), [])
    same = [other for other in entries if other.since == entry.since]
    standard = entry.domain in KNOWN_OPSETS
    if same and (standard or same[0].function.__module__ != entry.function.__module__):
        raise InvalidArgument(
            f"`{entry.label}` since version {entry.since} is registered already",
            where=f"`{entry.function}`",
            instead="give it another `since` or another domain",
        )
    for other in same:
        entries.remove(other)  # a user runs the cell of a notebook again
    entries.append(entry)

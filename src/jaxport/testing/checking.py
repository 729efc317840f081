"""One generic checker: export, run on both sides and compare, in all variants that apply to a case."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import onnx.checker
import onnx.shape_inference
from jax.typing import DTypeLike

from jaxport.blocks.tracing import trace
from jaxport.errors import InvalidArgument, JaxportError, Unsupported
from jaxport.export.api import to_onnx
from jaxport.export.delivery.opsets import DEFAULT, OLDEST
from jaxport.export.delivery.runtime import Session, newest_opset
from jaxport.export.exported import Exported
from jaxport.export.flags.tracing_flags import with_bools
from jaxport.export.ports import is_key
from jaxport.export.specs import is_shape
from jaxport.importer import from_onnx
from jaxport.jaxprs import Array, Dim, Parameters, PythonFunction, dims
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.releases import QUICKLY
from jaxport.testing.specs import sample
from jaxport.testing.structure import check_declared
from jaxport.verify.comparing import difference
from jaxport.verify.importing import caller
from jaxport.verify.running import run_traced

#: Sizes that every symbolic case runs at: small, different from each other, and including one.
SIZES: tuple[Mapping[str, int], ...] = ({"B": 2, "T": 5, "H": 6, "W": 7}, {"B": 1, "T": 3, "H": 9, "W": 8})

#: The variants of a case in addition to that of its specifications.
VARIANTS: Mapping[str, str] = {
    "static": "each name replaced by a size, and another opset",
    "oldest": "at the oldest opset, unless an operator is refused there that a newer one has",
    "float64": "float32 specifications read as float64, unless 64-bit types are enabled already",
    "empty": "each name replaced by zero, where JAX accepts that",
    "imported": "the model imported back, and run by JAX",
    "printed": "the model imported back, and printed for the names of its sizes, in a framework that the case chooses",
}

#: The oldest opset of the static variant, and what refusals at the oldest say.
_SEEDED, _NEWER = 17, re.compile("which is new in opset [0-9]+")

#: The frameworks in which models are printed.
_FRAMEWORKS = ("jax", "nnx", "equinox", "burn")

#: Variants that no case runs now, each with its reason; a case that names opsets runs those nevertheless.
LEFT_OUT: dict[str, str] = {}

#: The tolerance of a single operation, in units of the precision of its dtype, relative and absolute, by its bits.
_UNITS: Mapping[int, tuple[float, float]] = {4: (1, 1), 8: (1, 1), 16: (8, 4), 32: (100, 20), 64: (100, 20)}

#: The errors of JAX and user functions for shapes that they do not accept.
_REFUSALS = (ArithmeticError, AssertionError, LookupError, NotImplementedError, TypeError, ValueError)


def check(
    fn: PythonFunction,
    *specs: object,
    values: Sequence[object] | None = None,
    sizes: Sequence[Mapping[str, int]] = SIZES,
    rtol: float | None = None,
    atol: float | None = None,
    without: Mapping[str, str] | None = None,
    opsets: Sequence[int] | None = None,
    shapes: Sequence[Sequence[Dim | str]] | None = None,
    dtypes: Sequence[DTypeLike] | None = None,
    function_count: int | None = None,
    changes_state: bool = False,
    **options: object,
) -> Exported:
    """Export `fn`, run it in ONNX Runtime and in JAX on the same inputs, and compare all outputs.

    The case is run as specified, and in the variants that apply to it (see `VARIANTS`): if the specifications have
    symbolic dims, also with fixed sizes, at an opset chosen by a seed from the case, and with empty axes; if they are
    float32, also as float64. Every model has to pass ONNX's checker, and the shapes that it declares have to agree
    with ONNX's shape inference and with the values at run time. The export of the case as specified is also imported
    back, the imported program is compared with the function, and printed: a model that can be exported can be traced
    again, with open sizes.

    Args:
      fn: the function.
      specs: one specification per positional argument, as `to_onnx` takes them.
      values: the positional arguments to run on; by default sampled, at each of `sizes` if a dim is symbolic.
      sizes: the sizes of the symbols.
      rtol, atol: tolerances of floats; integers and booleans are compared exactly.
      without: the variants to skip, each with its reason.
      opsets: the opsets of the static variant; if no dim is symbolic, the case is also run at each of them.
      shapes: the shapes that the outputs must declare, with names.
      dtypes: the dtypes that the outputs must have.
      function_count: the required number of ONNX functions.
      changes_state: whether the call changes a module (its random streams); JAX then runs the trace.
      options: passed to `to_onnx`.

    Returns:
      The export of the case as specified.

    Raises:
      AssertionError: the two sides differ, or the model is not as expected.
      InvalidArgument: a variant is unknown or skipped without a reason, or a symbol has no size.

    >>> from jaxport.testing import check
    >>> import jax.numpy as jnp
    >>> from jaxport.testing import f32
    >>> exported = check(lambda x: jnp.tanh(x) + 1, f32("B", 3), shapes=[("B", 3)])
    """
    left_out = {**LEFT_OUT, **(without or {})}
    for variant, reason in left_out.items():
        if variant not in VARIANTS or not reason.strip():
            raise InvalidArgument(
                f"the variant `{variant}` is {'left out without a reason' if variant in VARIANTS else 'unknown'}",
                where="`check(without=...)`",
                instead=f"give a reason for one of {', '.join(VARIANTS)}: `without={{'static': 'the reason'}}`",
            )
    case = _Case(fn, rtol, atol, changes_state)
    first, *others = _variants(fn, specs, values, sizes, opsets, options)
    exported = case.run(first)
    if not exported.x64:
        assert "float64" not in exported.requirements.dtypes, "the model computes in float64, and the function does not"
    if "imported" not in left_out:
        case.run_imported(first, exported)
    if "printed" not in left_out:
        case.print_imported(exported)
    if shapes is not None:
        declared = [tuple(map(dims.label, port.shape)) for port in exported.outputs]
        assert declared == [tuple(shape) for shape in shapes], f"the outputs have the shapes {declared}, not {shapes}"
    if dtypes is not None:
        declared = [port.dtype for port in exported.outputs]
        assert declared == [np.dtype(dtype) for dtype in dtypes], (
            f"the outputs have the dtypes {declared}, not {dtypes}"
        )
    if function_count is not None:
        functions = [f"{domain}.{name}" for domain, name, _ in exported.model.functions]
        assert len(functions) == function_count, f"there are {len(functions)} functions: {functions}"
    for variant in others:
        if variant.name not in left_out or (
            variant.name == "static" and variant.opset and "static" not in (without or {})
        ):
            try:
                case.run(variant, seed=str(exported.traced.jaxpr))
            except Unsupported as error:
                if variant.name != "oldest" or not all(_NEWER.search(refusal.why) for refusal in error.refusals):
                    raise
    return exported


@dataclass(frozen=True)
class _Variant:
    """One way to export and run a case; if `opset` is None, the case seeds it."""

    name: str
    specs: Sequence[Any]
    options: Parameters
    sizes: Sequence[Mapping[str, int]]
    values: Sequence[Any] | None
    opset: int | None = DEFAULT


@dataclass(frozen=True)
class _Case:
    fn: PythonFunction
    rtol: float | None
    atol: float | None
    changes_state: bool
    _expected: dict[tuple, list[Array]] = field(default_factory=dict)

    def run(self, variant: _Variant, seed: str = "") -> Exported:
        """Export a variant, run both sides, compare."""
        opset = variant.opset
        if opset is None:
            choices = range(_SEEDED, newest_opset() + 1)
            opset = choices[zlib.crc32(seed.encode()) % len(choices)]
        exported = to_onnx(self.fn, list(variant.specs), **{"opset": opset, **variant.options})
        what = f"{variant.name}, opset {exported.model.opset_imports['']}"
        check_model(exported, what)
        session = Session(exported.model, threads=1)
        for sizes in variant.sizes:
            args, kwargs = self._arguments(exported, variant, sizes)
            inputs = exported.flatten(args, kwargs)
            results = session.run({**exported.defaults, **inputs})
            actual = [port.to_jax(result) for port, result in zip(exported.outputs, results, strict=True)]
            key = _key(exported, sizes)
            if key not in self._expected:
                self._expected[key] = self._in_jax(exported, args, kwargs)
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            for port, expected, result in zip(exported.outputs, self._expected[key], actual, strict=True):
                self._compare(_plain(expected), _plain(result), f"`{port.name}` ({what}; {at or 'as given'})")
            if variant.name == "as given" and sizes is variant.sizes[0]:
                check_declared(exported, inputs, sizes)
        return exported

    def run_imported(self, variant: _Variant, exported: Exported) -> None:
        """Import an exported model, run it in JAX, compare."""
        sizes = variant.sizes[0]
        args, kwargs = self._arguments(exported, variant, sizes)
        program = from_onnx(exported.model)
        arrays = {**exported.defaults, **exported.flatten(args, kwargs)}
        results = caller(program, {name: arrays[name] for name in program.input_names}, QUICKLY)()
        expected = self._expected[_key(exported, sizes)]
        for port, wanted, result in zip(exported.outputs, expected, results, strict=True):
            self._compare(_plain(wanted), _plain(port.to_jax(result)), f"`{port.name}` (imported back)")

    def print_imported(self, exported: Exported) -> None:
        """Import an exported model, and print it for sizes that are names where its own are."""
        program = from_onnx(exported.model)
        framework = _FRAMEWORKS[zlib.crc32(str(exported.traced.jaxpr).encode()) % len(_FRAMEWORKS)]
        try:
            program.to_source(framework=framework)
        except JaxportError:  # integers that need 64 bits
            with jax.enable_x64(True):
                program.to_source(framework=framework)

    def _arguments(
        self, exported: Exported, variant: _Variant, sizes: Mapping[str, int]
    ) -> tuple[Sequence[object], Parameters]:
        """Return the arguments to run on: those of the case, the others sampled."""
        generator = np.random.default_rng(0)
        remaining = iter(jax.tree.leaves(variant.values))
        ports = [port for port in exported.inputs if not port.weight]
        leaves = [
            next(remaining, None)
            if variant.values is not None
            else port.to_jax(sample(generator, [dims.evaluate(d, sizes) for d in port.model_shape], port.model_dtype))
            for port in ports
        ]
        return jax.tree.unflatten(exported.traced.in_tree, leaves)

    def _in_jax(self, exported: Exported, args: Sequence[object], kwargs: Parameters) -> list[Array]:
        with jax.enable_x64(exported.x64), jax.default_matmul_precision("highest"):
            if exported.state == "refuse" and not self.changes_state and not exported.flags:
                try:
                    return jax.tree.leaves(jax.jit(exported.fn, compiler_options=QUICKLY)(*args, **kwargs))
                except jax.errors.JaxRuntimeError:  # a few operations have no fast code: a clamp of booleans
                    return jax.tree.leaves(jax.jit(exported.fn)(*args, **kwargs))
            args, kwargs = with_bools(exported.flags, args, kwargs)
            traced = trace(exported.fn, args, kwargs, state=exported.state)
            leaves = jax.tree.leaves((args, kwargs))
            return run_traced(traced, [leaf for index, leaf in enumerate(leaves) if index not in exported.flags])

    def _compare(self, expected: np.ndarray, actual: np.ndarray, what: str) -> None:
        relative = absolute = None
        if jax.dtypes.issubdtype(expected.dtype, np.inexact):
            precision = jax.numpy.finfo(expected.dtype)
            relative, absolute = (float(precision.eps) * units for units in _UNITS[precision.bits])
        compared = difference(
            expected,
            actual,
            relative if self.rtol is None else self.rtol,
            absolute if self.atol is None else self.atol,
        )
        assert not compared.problem, f"{what}: {compared.problem}\nexpected {expected}\ngot {actual}"


def _key(exported: Exported, sizes: Mapping[str, int]) -> tuple:
    """Return a key of a run's arguments, so that JAX runs only once for variants with the same sizes."""
    return (exported.x64, tuple(str(port.dtype) for port in exported.inputs), *sizes.items())


def check_model(exported: Exported, what: str = "the model") -> None:
    """Assert that a model passes ONNX's checker, and that the shapes it declares agree with ONNX's own inference.

    >>> import jax.numpy as jnp, jaxport
    >>> from jaxport.testing import check_model
    >>> check_model(jaxport.to_onnx(jnp.tanh, [("B", 3)]))
    """
    proto = exported.proto
    try:
        onnx.checker.check_model(proto, full_check=True)
        # Without `data_prop`, which takes the operands of an Add behind an Unsqueeze for vectors and refuses valid
        # models.
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise AssertionError(f"{what}: ONNX's checker refuses the model: {error}") from error


def _variants(
    fn: PythonFunction,
    specs: Sequence[object],
    values: Sequence[object] | None,
    sizes: Sequence[Mapping[str, int]],
    opsets: Sequence[int] | None,
    options: Parameters,
) -> Iterator[_Variant]:
    """Yield the variants that apply to a case, starting with the case as specified."""
    everything = [list(specs), dict(options.get("input_params") or {})]
    names = sorted({name for leaf in _leaves(everything) for dim in leaf.shape for name in _names(dim)})
    runs = [
        {name: _size(name, chosen) for name in names} for chosen in (sizes if names and values is None else sizes[:1])
    ]
    yield _Variant("as given", specs, options, runs, values)

    def changed(change: Callable[[object], object]) -> tuple[Sequence[object], dict[str, object]]:
        new_specs, params = jax.tree.map(change, everything, is_leaf=_is_spec)
        # All sizes are fixed then: constraints would be on names that no input has.
        kept = {name: value for name, value in options.items() if name != "constraints"}
        return new_specs, {**kept, **({"input_params": params} if params else {})}

    static, static_options = changed(lambda leaf: _with_sizes(leaf, runs[0]))
    if names or opsets:
        for opset in opsets or [None]:
            yield _Variant("static", static, static_options, runs[:1], values, opset)
    if not options.keys() & {"opset", "target", "precision"}:
        yield _Variant("oldest", specs, options, runs[:1], values, OLDEST)
    x64 = options.get("double_precision") or jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    if not x64 and any(leaf.dtype == np.float32 for leaf in _leaves(everything)):
        wide = [_widened(leaf) for leaf in jax.tree.leaves(values)] if values is not None else None
        wide_values = None if wide is None else jax.tree.unflatten(jax.tree.structure(values), wide)
        wide_specs, wide_options = changed(lambda leaf: _widened(_with_sizes(leaf, runs[0])))
        yield _Variant("float64", wide_specs, {**wide_options, "double_precision": True}, runs[:1], wide_values)
    if names and values is None:
        nothing = dict.fromkeys(names, 0)
        empty, empty_options = changed(lambda leaf: _with_sizes(leaf, nothing))
        if _accepts(fn, empty, empty_options):
            yield _Variant("empty", empty, empty_options, [nothing], None)


def _accepts(fn: PythonFunction, specs: Sequence[object], options: Parameters) -> bool:
    """Whether JAX can trace the function with these shapes at all."""
    keywords = {**(options.get("input_params") or {}), **(options.get("static_params") or {})}
    arguments = [jax.tree.map(_struct, value, is_leaf=_is_spec) for value in specs]
    structs = {name: jax.tree.map(_struct, value, is_leaf=_is_spec) for name, value in keywords.items()}
    try:
        with jax.enable_x64(options.get("double_precision", False) or bool(jax.config.read("jax_enable_x64"))):
            trace(fn, arguments, structs, state="discard")
    except _REFUSALS:
        return False
    return True


def _is_spec(leaf: object) -> bool:
    return is_shape(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _struct(leaf: object) -> object:
    return jax.ShapeDtypeStruct(leaf, np.float32) if is_shape(leaf) else leaf


def _leaves(specs: object) -> list[Any]:
    """Return the specifications that have a shape and a dtype."""
    structs = map(_struct, jax.tree.leaves(specs, is_leaf=_is_spec))
    return [leaf for leaf in structs if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]


def _names(dim: Dim) -> frozenset[str]:
    return frozenset() if isinstance(dim, int | np.integer) else symbols(str(dim))


def _size(name: str, sizes: Mapping[str, int]) -> int:
    if name not in sizes:
        raise InvalidArgument(
            f"the symbol `{name}` has no size",
            where="`check(sizes=...)`",
            why=f"the default sizes are for {', '.join(SIZES[0])}",
            instead=f'give sizes: `sizes=[{{"{name}": 3}}, {{"{name}": 1}}]`',
        )
    return sizes[name]


def _with_sizes(leaf: Any, sizes: Mapping[str, int]) -> object:
    if not _is_spec(leaf):
        return leaf
    shape = tuple(dims.evaluate(dim, sizes) for dim in (leaf if isinstance(leaf, tuple) else leaf.shape))
    return shape if isinstance(leaf, tuple) else jax.ShapeDtypeStruct(shape, leaf.dtype)


def _widened(leaf: Any) -> object:
    """Return a specification or a value in float64 if it is float32."""
    if getattr(leaf, "dtype", None) != np.float32:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, np.float64) if _is_spec(leaf) else np.asarray(leaf, np.float64)


def _plain(value: Any) -> np.ndarray:
    """Return a result as a NumPy array; PRNG keys as their data."""
    return np.asarray(jax.random.key_data(value) if is_key(getattr(value, "dtype", np.float32)) else value)

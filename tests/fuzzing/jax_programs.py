"""Random programs of JAX: many primitives, and loops, branches and transformations inside of each other.

A program is text, so that one that fails can be read, shortened and kept. It is written a statement at a time; JAX itself
says which shapes a statement gives, or that there is no such statement.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxport
from jaxport.importer import from_onnx
from jaxport.importer.traced.input_specs import input_specs
from jaxport.jaxprs.releases import QUICKLY
from jaxport.testing import check_model
from tests.importer.printed import load

GLOBALS = {"jax": jax, "jnp": jnp, "lax": lax, "np": np}
LARGEST = 300
"""Elements of any value, where a symbol is `SYMBOL`."""
SYMBOL = 5
DEEPEST = 3
"""Bodies inside of bodies."""
SIZES = ({"B": 2}, {"B": 5})

#: Expressions. `x` and `y` are floats, `i` and `j` integers, `b` is a boolean; `axis` is one of the first operand's, `n` a
#: small positive integer, `c` a number between -1 and 1. Those with an `x` or `i` after the bar need so many axes.
PLAIN = """
    jnp.tanh({x}) | jnp.sin({x}) | jnp.cos({x} * 2) | jnp.exp(-jnp.abs({x})) | jnp.sqrt(jnp.abs({x}) + 0.5)
    jnp.log1p(jnp.abs({x})) | jax.nn.sigmoid({x}) | jax.nn.silu({x}) | jax.nn.relu({x}) | jax.nn.gelu({x})
    jax.nn.softplus({x}) | jax.nn.leaky_relu({x}) | jax.nn.elu({x}) | lax.erf({x}) | lax.rsqrt({x} * {x} + 1)
    jnp.arctan({x}) | jnp.arcsinh({x}) | jnp.expm1(jnp.tanh({x})) | jnp.cbrt({x}) | jnp.square(jnp.tanh({x}))
    lax.integer_pow(jnp.tanh({x}), 3) | jnp.abs({x}) | -{x} | jnp.clip({x}, -0.7, {c} + 1) | jnp.exp2(jnp.tanh({x}))
    {x} + {y} | {x} - {y} | jnp.tanh({x}) * {y} | {x} / (1 + {y} * {y}) | jnp.maximum({x}, {y}) | jnp.minimum({x}, {c})
    jnp.arctan2({x}, {y} + 2) | jnp.hypot({x}, {y}) | (jnp.abs({x}) + 0.5) ** jnp.tanh({y}) | jnp.logaddexp({x}, {y})
    jnp.where({b}, {x}, {y}) | jnp.where({x} > {c}, {x}, {c}) | lax.select_n({b}, {x}, {x} * 2) | {x} * {c}
    {x}.sum() | {x}.mean({axis}) | {x}.sum({axis}, keepdims=True) | {x}.max({axis}) | jnp.min({x}, axis={axis}, keepdims=True)
    jnp.tanh({x}).prod({axis}) | {x}.var({axis}) | jax.nn.logsumexp({x}, axis={axis}) | jax.nn.softmax({x}, axis={axis})
    jax.nn.log_softmax({x}, axis={axis}) | jnp.linalg.norm({x} + 0.1, axis={axis}) | {x}.argmax({axis}) | {x}.argmin({axis})
    ({x} > {c}).any({axis}) | ({x} > {c}).all({axis}) | jnp.cumsum({x}, {axis}) | lax.cummax({x}, {axis}) | lax.cumlogsumexp({x}, {axis})
    jnp.cumprod(jnp.tanh({x}), {axis}) | lax.associative_scan(jnp.add, {x}, axis={axis}) | lax.cumsum({x}, {axis}, reverse=True)
    {x}.T | jnp.expand_dims({x}, {axis}) | jnp.moveaxis({x}, {axis}, 0) | {x}.reshape(-1) | {x}.reshape(1, *{x}.shape)
    jnp.flip({x}, {axis}) | jnp.roll({x}, {n}, {axis}) | jnp.concatenate([{x}, {x} * 2], {axis}) | jnp.concatenate([{x}, {y}], {axis})
    jnp.stack([{x}, {x} + 1], {axis}) | jnp.repeat({x}, {n}, {axis}) | jnp.tile({x}, {n}) | {x}[None] | {x}[..., ::-1] | {x}[..., 1:]
    {x}[..., 0] | {x}[::2] | {x}[-1] | jnp.pad({x}, 1, constant_values={c}) | jnp.pad({x}, 1, mode="edge") | jnp.diff({x}, axis={axis})
    lax.dynamic_slice_in_dim({x}, {i}.sum(), 1, {axis}) | lax.dynamic_update_slice_in_dim({x}, {x} * 0, {n}, {axis})
    jnp.take({x}, jnp.array([0, -1, 1]), axis={axis}, mode="clip") | jnp.take({x}, {i}, axis={axis}, mode="wrap")
    jnp.take_along_axis({x}, jnp.argsort({x}, {axis}), {axis}) | {x}.at[..., 0].set({c}) | {x}.at[0].add({y}) | {x}.at[..., -1].max({c})
    {x}.at[{i} % 3].add({c}) | {x}.at[jnp.array([0, 0])].multiply({c}) | jnp.sort({x}, {axis}) | lax.top_k({x}, 2)[0]
    jnp.tril({x}) | jnp.triu({x}, {n}) | jnp.tanh({x} @ {y}) | jnp.tanh({x} @ {x}.T / 9) / 2 | jnp.einsum("...i,...i->...", {x}, {x}) / 4
    jnp.einsum("ij,kj->ik", {x}, {y}) / 4 | jnp.outer({x}, {y}) | jnp.dot({x}, {y}) / 4 | jnp.convolve({x}, jnp.array([{c}, 1.0]), mode="same")
    lax.reduce_window({x}, -jnp.inf, lax.max, (2,) * {x}.ndim, (1,) * {x}.ndim, "SAME") | jnp.interp({x}, jnp.arange(3.0), jnp.array([{c}, 0.5, 0.1]))
    {x} * jax.random.uniform(jax.random.key({n}), (3,)) | jnp.polyval(jnp.array([{c}, 0.5, {c}]), jnp.tanh({x})) | jnp.nan_to_num({x})
    {x}.astype(jnp.bfloat16).astype(jnp.float32) | {x}.astype(jnp.int32) | {x} > {y} | ~{b} | {b} & ({x} > 0) | {b}.astype(jnp.float32)
    {i} + {j} | {i} * 3 - {j} | {i} // ({j} * {j} + 1) | {i} % 5 | ({i} & {j}) ^ 3 | ({i} << 2) >> 1 | -{i} | jnp.abs({i}) | jnp.sign({i})
    {i}.sum() | {i}.max({axis}) | jnp.cumsum({i}, {axis}) | jnp.sort({i}, {axis}) | jnp.argsort({i}, {axis}) | {i}.astype(jnp.float32) / 8
    {i}.astype(jnp.int8).astype(jnp.int32) | {i}.astype(jnp.uint32).astype(jnp.int32) | {i} == {j} | {i} > {n} | jnp.minimum({i}, {j})
    jax.nn.one_hot({i} % 4, 4) | jnp.bincount({i}.reshape(-1) % 4, length=4) | jnp.where({b}, {i}, {j}) | lax.rem({i}, 3) | jnp.clip({i}, -2, {n})
    lax.population_count({i}) | jnp.searchsorted(jnp.arange(4), {i}) | jnp.bitwise_not({i}) | {i}.reshape(-1) | jnp.concatenate([{i}, {i}], {axis})
    jax.ops.segment_sum({x}, jnp.zeros({x}.shape[0], jnp.int32), 2) | jnp.isfinite({x}) | jnp.triu({i}) | lax.clamp(-1.0, {x}, 1.0)
"""
EXPRESSIONS = [text.strip() for line in PLAIN.strip().splitlines() for text in line.split(" | ")]

#: Statements around functions, which take what their number of parameters says. `p` is a boolean scalar.
AROUND = {
    "{r} = lax.cond({p}, {f}, {g}, {x})": "like",
    "{r} = lax.switch(jnp.abs({i}.sum()) % 3, [{f}, {g}, lambda a: a], {x})": "like",
    "{r}, {s} = lax.scan({f}, {x}, {y}, reverse={flag})": "scan",
    "{r}, {s} = lax.scan({f}, {x}, {y}, unroll=2)": "scan",
    "{r}, {s} = lax.scan(jax.checkpoint({f}), {x}, {y})": "scan",
    "{r} = lax.fori_loop(0, {n}, lambda k, a: {f}(a), {x})": "like",
    "{r} = lax.fori_loop(0, jnp.abs({i}.sum()) % 4, lambda k, a: {f}(a), {x})": "like",
    "{r} = lax.while_loop(lambda a: a[0] < {n}, lambda a: (a[0] + 1, {f}(a[1])), (0, {x}))[1]": "like",
    "{r} = lax.map({f}, {y})": "row",
    "{r} = jax.vmap({f})({y})": "row",
    "{r} = jax.vmap({f}, out_axes=-1)({y})": "row",
    "{r} = jax.vmap(jax.grad(lambda a: {f}(a).sum()))({y})": "row",
    "{r} = jax.vmap(jax.vmap({f}))({y})": "cell",
    "{r} = jax.grad(lambda a: {f}(a).sum())({x})": "any",
    "{r}, {s} = jax.value_and_grad(lambda a: jnp.tanh({f}(a)).sum())({x})": "any",
    "{r} = jax.grad(lambda a: jax.checkpoint({f})(a).sum())({x})": "any",
    "{r}, {s} = jax.jvp({f}, ({x},), ({x},))": "any",
    "{r} = jax.vjp({f}, {x})[1]({f}({x}))[0]": "any",
    "{r} = jax.grad(lambda a: jax.jvp({f}, (a,), (a,))[1].sum())({x})": "any",
    "{r} = jax.jit({f})({x})": "any",
    "{r} = jax.checkpoint({f})({x})": "any",
    "{r} = jax.linearize({f}, {x})[1]({x})": "any",
}

Scope = Mapping[str, jax.ShapeDtypeStruct]


class Generated(NamedTuple):
    """A program as text, and the shapes and dtypes of its inputs, where a name is a symbolic size."""

    text: str
    specs: tuple[jax.ShapeDtypeStruct, ...]

    def __str__(self) -> str:
        return f"{self.text}\n{self.specs}"


def probed(
    scope: Scope, text: str, names: Sequence[str], *, may_be_empty: bool = False
) -> dict[str, jax.ShapeDtypeStruct] | None:
    """The shapes that a statement gives to names, if JAX accepts it, and if they are neither too large nor empty."""

    def run(values: dict[str, Any]) -> list[Any]:
        namespace = {**GLOBALS, **values}
        exec(text, namespace)
        return [jnp.asarray(namespace[name]) for name in names]

    try:
        results = jax.eval_shape(run, dict(scope))
    except Exception:  # noqa: BLE001  whatever JAX says of it: there is no such statement
        return None
    sizes = [np.prod([size if isinstance(size, int) else SYMBOL for size in result.shape]) for result in results]
    if any(not (0 if may_be_empty else 1) <= size <= LARGEST for size in sizes) or any(
        len(result.shape) > 4 for result in results
    ):
        return None
    return dict(zip(names, results, strict=True))


def kind(struct: jax.ShapeDtypeStruct) -> str:
    dtype = np.dtype(struct.dtype)
    return "x" if jnp.issubdtype(dtype, jnp.floating) else {"i": "i", "u": "i", "b": "b"}.get(dtype.kind, "")


@dataclass
class Writer:
    """Writes a program, choice by choice.

    Attributes:
      random: makes the choices.
      expressions: those that a statement may have.
      nested: the part of the statements that call a function that is written for them.
      may_be_empty: whether values may have no elements.
    """

    random: random.Random
    expressions: Sequence[str] = tuple(EXPRESSIONS)
    nested: float = 0.35
    may_be_empty: bool = False
    _named: int = 0

    def name(self, letter: str) -> str:
        self._named += 1
        return f"{letter}{self._named}"

    def pick(self, scope: Scope, wanted: str, axes: int = 0) -> str:
        """The name of a value of a kind, of which the latest are the likeliest; KeyError if there is none."""
        names = [name for name, struct in scope.items() if kind(struct) == wanted and len(struct.shape) >= axes]
        if not names:
            raise KeyError(wanted)
        return names[-1 - int(len(names) * self.random.random() ** 3)]

    def filled(self, scope: Scope, template: str, **given: str) -> str:
        axes = int("{axis}" in template)
        first = "x" if "{x}" in template else "i"
        operands = {
            letter: self.pick(scope, {"y": "x", "j": "i"}.get(letter, letter), axes if letter == first else 0)
            for letter in "xyijb"
            if f"{{{letter}}}" in template and letter not in given
        }
        rank = len(scope[operands[first]].shape) if axes else 1
        numbers = {
            "axis": str(self.random.randrange(rank)),
            "n": str(self.random.randint(1, 3)),
            "c": str(round(self.random.uniform(-1, 1), 2)),
            "flag": str(self.random.random() < 0.5),
        }
        return template.format(**numbers, **operands, **given)

    def written(self, scope: dict[str, jax.ShapeDtypeStruct], count: int, depth: int) -> str:
        """Statements, which give names to what they compute in the scope."""
        lines: list[str] = []
        for _ in range(count):
            for _ in range(20):  # some are no statements
                try:
                    nested = depth < DEEPEST and self.random.random() < self.nested
                    text, names = self.around(scope, depth) if nested else self.plain(scope)
                except KeyError:
                    continue
                found = probed(scope, text, names, may_be_empty=self.may_be_empty)
                if found is not None:
                    lines.append(text)
                    scope.update(found)
                    break
        return "\n".join(lines)

    def plain(self, scope: Scope) -> tuple[str, list[str]]:
        name = self.name("v")
        return f"{name} = {self.filled(scope, self.random.choice(self.expressions))}", [name]

    def around(self, scope: Scope, depth: int) -> tuple[str, list[str]]:
        template = self.random.choice(list(AROUND))
        form = AROUND[template]
        given = {"x": self.pick(scope, "x")}
        given["y"] = self.pick(scope, "x", 2 if form == "cell" else 1)
        row = lambda axes: jax.ShapeDtypeStruct(scope[given["y"]].shape[axes:], jnp.float32)
        parameters = {
            "like": [scope[given["x"]]],
            "any": [scope[given["x"]]],
            "scan": [scope[given["x"]], row(1)],
            "row": [row(1)],
            "cell": [row(2)],
        }[form]
        bodies = {letter: self.body(scope, parameters, form, depth) for letter in "fg" if f"{{{letter}}}" in template}
        given |= {letter: name for letter, (name, _) in bodies.items()}
        given["p"] = self.filled(scope, "{x}.sum() > {c}")
        results = {letter: self.name("v") for letter in "rs" if f"{{{letter}}}" in template}
        statement = self.filled(scope, template, **given, **results)
        return "\n".join([*(text for _, text in bodies.values()), statement]), list(results.values())

    def body(self, scope: Scope, parameters: Sequence[jax.ShapeDtypeStruct], form: str, depth: int) -> tuple[str, str]:
        """The name and the text of a function of these parameters, which sees some of the values around it."""
        name = self.name("f")
        own = {self.name("a"): struct for struct in parameters}
        seen = {outer: struct for outer, struct in scope.items() if self.random.random() < 0.4}
        inner = {**seen, **own}
        text = self.written(inner, self.random.randint(1, 4), depth + 1)
        first = next(iter(own))
        result = [other for other, struct in inner.items() if kind(struct) == "x" and other not in seen][-1]
        if form in ("like", "scan"):
            like = inner[result].shape == inner[first].shape
            kept = result if like else f"{first} * 0.5 + jnp.cos({result}.mean())"
            result = f"jnp.asarray({kept}, jnp.float32)" + (f", {self.pick(inner, 'x')}" if form == "scan" else "")
        lines = textwrap.indent(f"{text}\nreturn {result}".strip(), "    ")
        return name, f"def {name}({', '.join(own)}):\n{lines}"

    def program(self) -> Generated:
        symbolic = self.random.random() < 0.5
        first = "B" if symbolic else 3
        shapes = self.random.choice(
            [[(first, 4), (4,)], [(first,), (3,)], [(2, first, 3), (3, 3)], [(first, 4), (first, 4)]]
        )
        specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
        specs.append(jax.ShapeDtypeStruct((self.random.choice([first, 3]),), np.int32))
        (size,) = jax.export.symbolic_shape("B")
        sized = lambda shape: tuple(size if dim == "B" else dim for dim in shape)
        scope = {self.name("x"): jax.ShapeDtypeStruct(sized(spec.shape), spec.dtype) for spec in specs}
        inputs = list(scope)
        text = self.written(scope, self.random.randint(3, 9), 0)
        unused = [name for name in scope if name not in inputs and len(re.findall(rf"\b{name}\b", text)) == 1]
        results = unused[-6:] or inputs[:1]
        body = textwrap.indent(f"{text}\nreturn {', '.join(results)},".strip(), "    ")
        return Generated(f"def program({', '.join(inputs)}):\n{body}", tuple(specs))


def files(seed: int, count: int) -> Iterator[Generated]:
    """Programs, the same for the same seed; each for itself, so that one of them can be had alone."""
    for index in range(count):
        yield generated(seed, index)


def generated(seed: int, index: int) -> Generated:
    return Writer(random.Random(f"{seed}-{index}")).program()


def attempt(made: Generated, folder: Path) -> str:
    """Exports a program, runs it, imports and prints the file, and compares each: says how far that was."""
    namespace: dict[str, Any] = dict(GLOBALS)
    exec(made.text, namespace)
    sizes = SIZES if "B" in str(made.specs) else None
    try:
        exported = jaxport.to_onnx(namespace["program"], list(made.specs))
    except jaxport.JaxportError as error:
        return f"refused: {str(error).splitlines()[0]}"
    check_model(exported)
    # Where a tanh saturates, its slope is what rounding left of 1 - 1, times what follows: a thousand roundings are no error.
    exported.verify(sizes=sizes, atol=1e-4)
    program = from_onnx(exported.model)
    for given in sizes or [{}]:
        arrays = drawn(program, given)
        program.verify(arrays)
    compare_printed(program, arrays)
    return "ran"


def drawn(program: jaxport.Program, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a program."""
    generator = np.random.default_rng(0)
    arrays = {}
    for name, spec in input_specs(program).items():
        shape = [size if isinstance(size, int) else sizes[str(size)] for size in spec.shape]
        values = generator.normal(size=shape) if spec.dtype == np.float32 else generator.integers(-3, 9, shape)
        arrays[name] = np.asarray(values, spec.dtype)
    return arrays


def compare_printed(program: jaxport.Program, arrays: Mapping[str, np.ndarray]) -> None:
    """Compares what a program prints, run where jaxport cannot be imported, with the program."""
    known = {name: arrays[name] for name in program.static_inputs}
    traced = {name: value for name, value in arrays.items() if name not in known}
    structs = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in traced.items()}
    module: Any = load(program.to_source(inputs={**known, **structs}, framework="jax"))
    run = lambda fn, *args: jax.tree.leaves(jax.jit(fn, compiler_options=QUICKLY)(*args))
    wanted = run(lambda given: program(**known, **given), traced)
    found = run(module.model, module.params, *traced.values())
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        scale = np.max(np.abs(np.asarray(other, np.float64)), initial=1, where=np.isfinite(other))
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=1e-3, atol=1e-3 * scale
        )

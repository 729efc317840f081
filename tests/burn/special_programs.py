"""Random programs of JAX on special values, for the printer in Rust: the generator is that of `tests/fuzzing/jax_programs.py`.

The programs are short, and return each value that they compute: where two values differ, the first is at fault.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tests.fuzzing.jax_programs import EXPRESSIONS, GLOBALS, Writer

__all__ = ["SUMS", "SpecialProgram", "first_differences", "special_program"]

#: Expressions beside those of other programs: places that may be outside, and arithmetic that differs at the ends of a type.
TEXT = """
    jnp.take({x}, {i}, axis={axis}, mode="fill") | jnp.take({x}, {i}, axis={axis}, mode="clip") | {x}[{i}] | {x}[..., {i}]
    {x}.at[{i}].set({c}, mode="drop") | {x}.at[{i}].add({c}, mode="drop") | {x}.at[{i}].max({c}, mode="clip") | {x}.at[{i}].min({c})
    {x}.at[..., {i}].add({c}) | {x}.at[{i}].multiply({c}, mode="drop") | {x}.at[{i}].get(mode="fill", fill_value={c})
    lax.dynamic_slice_in_dim({x}, {i}.max(), 2, {axis}) | lax.dynamic_update_slice_in_dim({x}, {x}[:1] * 2, {i}.min(), 0)
    lax.dynamic_index_in_dim({x}, {i}.min(), {axis}) | jnp.take({i}, {j}) | jax.nn.one_hot({i}, 3) | jnp.bincount({i}.reshape(-1), length=3)
    jax.ops.segment_sum({x}, jnp.resize({i}, {x}.shape[:1]), 3) | jax.ops.segment_max({x}, jnp.resize({i}, {x}.shape[:1]), 3)
    jnp.exp({x}) | jnp.log({x}) | jnp.sqrt({x}) | lax.rsqrt({x}) | 1 / {x} | {x} / {y} | {x} * {y} | {x} ** 2 | {x} ** 3 | {x} ** {y}
    {x} % {y} | jnp.fmod({x}, {y}) | {x} // {y} | lax.rem({x}, {y}) | {x} % {c} | jnp.floor({x}) | jnp.ceil({x}) | jnp.round({x}) | jnp.trunc({x})
    jnp.sign({x}) | jnp.signbit({x}) | jnp.copysign({x}, {y}) | lax.nextafter({x}, {y}) | jnp.isnan({x}) | jnp.isinf({x}) | jnp.sinh({x})
    jnp.arctanh({x}) | jnp.arccosh({x}) | jnp.arcsin({x}) | jnp.arctan2({x}, {y}) | jnp.logaddexp({x}, {y}) | jnp.expm1({x}) | jnp.log1p({x})
    jnp.nanmax({x}) | jnp.nansum({x}, {axis}) | jnp.nan_to_num({x}, nan={c}) | jnp.max({x}, {axis}) | jnp.argmax({x}, {axis}) | jnp.sort({x}, {axis})
    jnp.argsort({x}, {axis}) | jnp.argsort({x}, {axis}, descending=True) | lax.top_k({x}, 1)[1] | jnp.median({x}, {axis}) | jnp.unique({x}, size=3)
    jnp.maximum({x}, {y}) | jnp.minimum({x}, {y}) | jnp.clip({x}, {y}, {c}) | jnp.heaviside({x}, {y}) | {x} == {y} | {x} < {y} | {x} != {x}
    jnp.cummax({x}, {axis}) | jnp.cummin({x}, {axis}) | {x}.std({axis}) | {x}.ptp({axis}) | jnp.average({x}, {axis}) | jax.nn.standardize({x})
    {x}.sum({axis}) | {x}.prod({axis}) | {x}.min({axis}) | {x}.all() | {x}.any({axis}) | jnp.count_nonzero({x}, {axis}) | {x}.astype(jnp.uint8)
    {x}.astype(jnp.int8) | {x}.astype(jnp.uint32) | {x}.astype(jnp.float16) | {x}.astype(bool) | jax.nn.softmax({x}, where={x} > 0, axis={axis})
    {i} + {j} | {i} - {j} | {i} * {j} | {i} // {j} | {i} % {j} | lax.div({i}, {j}) | lax.rem({i}, {j}) | {i} ** 2 | {i} ** 3 | {i} / {j}
    {i} << ({j} & 7) | {i} >> ({j} & 7) | {i} << {j} | {i} >> {j} | lax.shift_right_logical({i}, {j}) | jnp.maximum({i}, {j}) | {i} < {j}
    {i}.sum({axis}) | {i}.prod({axis}) | {i}.max() | {i}.argmin({axis}) | {i}.any() | {i}.mean() | jnp.sort({i}, {axis}) | lax.top_k({i}, 1)[0]
    jnp.cumsum({i}, {axis}) | jnp.cumprod({i}, {axis}) | lax.cummax({i}, {axis}) | {i} @ {j} | jnp.dot({i}, {j}) | lax.clz({i}) | jnp.sign({i})
    {i}.astype(jnp.int8) | {i}.astype(jnp.uint8) | {i}.astype(jnp.uint16) | {i}.astype(jnp.uint32) | {i}.astype(jnp.float32) | {i}.astype(bool)
    jnp.clip({i}, -1, 100) | jnp.where({i} > {j}, {i}, {j}) | jnp.gcd({i}, {j}) | jnp.abs({i}) | -{i} | ~{i} | jnp.bitwise_xor({i}, {j})
    jnp.linspace({x}.min(), {x}.max(), 4) | jnp.digitize({x}, jnp.array([-1.0, 0.0, 1.0])) | jnp.searchsorted(jnp.sort({x}.reshape(-1)), {y})
    jnp.concatenate([{x}, {x}], {axis}) | {x}.reshape(-1) | {x}.T | jnp.flip({x}) | jnp.tile({x}, {n}) | jnp.pad({x}, 1) | jnp.stack([{x}, {x}])
    {x} @ {y} | {x} @ {x}.T | jnp.outer({x}, {y}) | jnp.linalg.norm({x}) | jnp.trace({x}) | jnp.tril({x}) | jnp.diag({x}) | jnp.var({x}, {axis})
"""
FURTHER = [text.strip() for line in TEXT.strip().splitlines() for text in line.split(" | ")]

FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 1e10, -3e38, 3e38, 1e-9, 6e4, -1e-7)
FLOAT_TYPES: tuple[np.dtype, ...] = (
    *[np.dtype("float32")] * 4, np.dtype("float16"), np.dtype("float64"), np.dtype(ml_dtypes.bfloat16),
)  # fmt: skip
INTEGER_TYPES = tuple(np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64))
SHAPES = (
    ((4, 3), (3,)),
    ((5,), (5,)),
    ((2, 3, 2), (2,)),
    ((3, 3), (3, 3)),
    ((), (4,)),
    ((0, 3), (3,)),
    ((2, 0), (2, 0)),
)


@dataclass(frozen=True)
class SpecialProgram:
    """A program as text with its inputs.

    Attributes:
      text: a function `program`, which returns each value that it computes.
      inputs: arrays.
      is_wide: whether JAX has types of 64 bits.
      statements: the text of each result.
    """

    text: str
    inputs: tuple[np.ndarray, ...]
    is_wide: bool
    statements: tuple[str, ...]

    def function(self) -> Any:
        """The program as a function."""
        namespace: dict[str, Any] = dict(GLOBALS)
        exec(self.text, namespace)
        return namespace["program"]


def special_program(seed: int, index: int) -> SpecialProgram:
    """The program of a seed and a number."""
    choices = random.Random(f"{seed}-{index}-special")
    float_type, integer_type = choices.choice(FLOAT_TYPES), choices.choice(INTEGER_TYPES)
    is_wide = 8 in (float_type.itemsize, integer_type.itemsize)
    shapes = choices.choice(SHAPES)
    given = [(shape, float_type) for shape in shapes] + [(choices.choice([(3,), (2, 3), shapes[0]]), integer_type)] * 2
    inputs = tuple(_drawn(choices, shape, dtype) for shape, dtype in given)
    with jax.enable_x64(is_wide):
        nested = 0.08 if index % 4 else 0.5  # each fourth one is about loops and branches
        writer = Writer(choices, (*EXPRESSIONS, *FURTHER, *FURTHER), nested=nested, may_be_empty=True)
        scope = {writer.name("x"): jax.ShapeDtypeStruct(array.shape, array.dtype) for array in inputs}
        names = list(scope)
        text = writer.written(scope, choices.randint(3, 6), 0)
    results = [name for name in scope if name not in names]
    body = textwrap.indent(f"{text}\nreturn {', '.join(results)},".strip(), "    ")
    if not results:
        return special_program(seed, index + 1_000_000)
    made = f"def program({', '.join(names)}):\n{body}"
    return SpecialProgram(made, inputs, is_wide, tuple(_statement(text, name) for name in results))


def _statement(text: str, name: str) -> str:
    """The last line that gives a name to a value."""
    return next(line for line in reversed(text.splitlines()) if re.search(rf"^[^=]*\b{name}\b[^=]*=", line))


def _drawn(choices: random.Random, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Elements of which half are special."""
    count = int(np.prod(shape))
    if dtype in INTEGER_TYPES:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        special = [n for n in (least, least + 1, most - 1, most, 0, 1, -1, 31, 64, 127, 5) if least <= n <= most]
        near = [n for n in range(-3, 6) if n >= least]
        return np.array([choices.choice(choices.choice([special, near])) for _ in range(count)], dtype).reshape(shape)
    values = [choices.choice(FLOATS) if choices.random() < 0.5 else choices.gauss(0, 1) for _ in range(count)]
    with np.errstate(over="ignore"):
        return np.array(values, np.float64).astype(dtype).reshape(shape)


#: Whose results may differ in any digit where operands differ in the last: rounding is no error of theirs.
AMPLIFYING = re.compile(
    r"rem\(|fmod|%|//|floor|ceil|round|trunc|sign|arg(max|min|sort)|sort|top_k|[<>=]=|[<>]|astype|digitize|unique|median"
)
SUMS = re.compile(r"sum|mean|var|std|standardize|@|einsum|dot|norm|trace|convolve|average|grad|vjp|jvp|linearize|prod")
"""Whose terms may cancel each other."""


def first_differences(
    program: SpecialProgram, wrong: Mapping[int, str], rounded: Collection[int] = ()
) -> dict[int, str]:
    """The results that differ though none does of those that they are computed of.

    Args:
      program: the program.
      wrong: what differs, by the number of the result.
      rounded: the results that are right, but not to the last bit.
    """
    names = [re.match(r"[\w, ]+", statement)[0].replace(",", " ").split() for statement in program.statements]  # type: ignore[index]
    tainted = {name for index in wrong for name in names[index]}
    inexact = {name for index in rounded for name in names[index]}
    first = {}
    for index, told in wrong.items():
        statement = program.statements[index].partition("=")[2]
        # What a function around the statement reads stands in another line.
        read = set(re.findall(r"\bv\d+\b", statement if "f" not in statement else program.text)) - {*names[index]}
        if not read & (tainted | inexact if AMPLIFYING.search(statement) else tainted):
            first[index] = told
    return first

"""Documents of one operation each: all operations, with each combination of types of parameters, that the programs of the tests have."""

from __future__ import annotations

import copy
import functools
import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxport
from jaxport.mox.serialize.parameter_types import type_of
from jaxport.mox.serialize.trees import tree_data
from jaxport.mox.serialize.writing import document
from tests.export.sweeps.crossing import _REFUSALS, accepted, cells, structs_of
from tests.export.sweeps.namespaces import NAMESPACES
from tests.fuzzing import mox_files

#: The operations that were found, for the next processes; JAX's releases differ in them.
KEPT = Path("out/operations")
#: JAX's caches are emptied after so many functions: they would fill the memory.
FUNCTIONS_PER_CACHE = 20
#: The dtypes of the cells that are traced: one of each kind, and one that JAX computes in another.
TRACED = ("float32", "int32", "bool", "bfloat16", "complex64")


def documents(namespaces: str = "jax", every: bool = True) -> Iterator[dict[str, Any]]:
    """The documents of the functions of the swept namespaces, and of the programs of the tests of module expressions."""
    from tests.mox import models, test_bodies, test_serialize

    x = test_bodies.X
    for program in [*test_serialize.FUNCTIONS.values(), *(made(jnp.sin) for made in test_bodies.PROGRAMS.values())]:
        yield from _document(program, x)
        yield from _document(jax.grad(lambda x, program=program: jnp.abs(program(x)).sum()), x)
    for made in models.CASES.values():
        case = made()
        yield from _document(case.fn, *case.args)
    for program in mapped_programs():
        yield from _document(program, jnp.ones((2, 2)))
    count = 0
    for namespace in NAMESPACES:
        if not namespace.name.startswith(namespaces):
            continue
        for name, case in namespace.every.items():
            count += 1
            if count % FUNCTIONS_PER_CACHE == 0:
                jax.clear_caches()
            subject = getattr(namespace.module, name)
            for cell in cells(case):
                if cell.dtype in TRACED and cell.transform != "jit" and (every or not cell.symbolic):
                    function = accepted(case, subject, cell)
                    if function is not None:
                        yield from _document(function, *structs_of(case, cell))


def mapped_programs() -> Iterator[Any]:
    """Programs whose devices exchange values: with all that `jaxport.mox.primitives` knows, along one axis and along two."""
    mesh = jax.make_mesh((1, 1), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    every = [
        lambda x: lax.psum(x, "a") + lax.psum(x, ("a", "b")) + lax.pmean(x, "a"),
        lambda x: lax.pmax(x, "a") + lax.pmin(x, ("a", "b")) + lax.axis_index("a") * lax.axis_size("b"),
        lambda x: lax.ppermute(x, "a", [(0, 0)]) + lax.all_gather(x, "a").sum(0) + lax.all_gather(x, "b", tiled=True),
        lambda x: lax.all_to_all(x, "a", 0, 0, tiled=True) + lax.psum_scatter(x, "a", tiled=True),
        lambda x: (
            lax.pcast(lax.psum(x, "a"), "a", to="varying") + lax.scan(lambda c, _: (c + x, c), x, None, length=2)[0]
        ),
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x) + jax.jit(jnp.tanh)(x),
    ]
    for body in every:
        for specs, options in (
            (P("a"), {}),
            (P(("a", "b")), {"check_vma": False}),
            (P("a", None), {"axis_names": {"a"}}),
        ):
            program = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, **options)
            yield program
            yield jax.jit(program)
            yield lambda x, program=program: jax.vmap(program)(jnp.stack([x, x]))
            yield jax.grad(lambda x, program=program: program(x).sum())


def _document(function: Any, *args: Any) -> Iterator[dict[str, Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield document(jaxport.make_mox(function)(*args))
    except (jaxport.JaxportError, NameError, *_REFUSALS):
        return  # what JAX does not trace, or what no file holds


def bodies(data: Any) -> Iterator[dict[str, Any]]:
    """The programs in a document, each with its equations."""
    if isinstance(data, dict):
        if "equations" in data:
            yield data
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from bodies(item)


def operations(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of the operations of a document, one each."""
    for body in bodies([data["program"], data["rules"]]):
        types = dict(body["inputs"])
        for equation in body["equations"]:
            types |= {name: aval for name, aval in equation["out"] if name != "_"}
        for equation in body["equations"]:
            if "rule" in equation or "block" in equation:
                continue
            inputs = list(dict.fromkeys(name for name in equation["in"] if isinstance(name, str)))
            outputs = [name for name, _ in equation["out"] if name != "_"]
            single = {
                "inputs": [[name, types[name]] for name in inputs],
                "equations": [{key: value for key, value in equation.items() if key != "source"}],
                "outputs": outputs,
            }
            yield data | {
                "name": equation["primitive"],
                "signature": None, "weights": [], "inputs": [], "dropped": [], "records": [],
                "in_tree": tree_data(jax.tree.structure(((0,) * len(inputs), {}))),
                "out_tree": tree_data(jax.tree.structure((0,) * len(outputs))),
                "input_paths": [str(i) for i in range(len(inputs))],
                "output_paths": [str(i) for i in range(len(outputs))],
                "state_outputs": [], "static_inputs": [], "static_outputs": [], "program": single,
            }  # fmt: skip


def kind_of(data: dict[str, Any]) -> tuple[Any, ...]:
    """The primitive of a document of one operation and the types of its parameters."""
    (equation,) = data["program"]["equations"]
    params = equation["params"]
    return (equation["primitive"], *((name, type_of(params[name])) for name in sorted(params)))


@functools.cache
def seeds(namespaces: str) -> list[dict[str, Any]]:
    """The smallest document of each kind of operation; they are kept in a file, since tracing all programs takes minutes."""
    path = KEPT / f"{namespaces}-{jax.__version__}.json"
    if not path.exists():
        found: dict[tuple[Any, ...], str] = {}
        for data in documents(namespaces, every=namespaces == "jax"):
            for single in operations(data):
                text = json.dumps(single)
                found[kind_of(single)] = min(found.get(kind_of(single), text), text, key=len)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".new")
        made.write_text("\n".join(text for _, text in sorted(found.items(), key=str)))
        made.rename(path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def files(namespaces: str, seed: int, count: int) -> Iterator[str]:
    """Documents of operations with other parameters, operands or types than JAX gives them, the same for the same seed."""
    generator = random.Random(seed)
    known = seeds(namespaces)
    values = [
        value for data in known for value in data["program"]["equations"][0]["params"].values() if _is_small(value)
    ]
    types = [aval for data in known for _, aval in data["program"]["inputs"]]
    for _ in range(count):
        data = copy.deepcopy(generator.choice(known))
        (equation,) = data["program"]["equations"]
        for _ in range(generator.choice((1, 1, 1, 2, 3))):
            params = equation["params"]
            where = generator.random()
            if params and where < 0.75:
                name = generator.choice(sorted(params))
                params[name] = _changed(params[name], generator) if where < 0.6 else generator.choice(values)
            elif where < 0.85 and equation["in"]:
                place = generator.randrange(len(equation["in"]))
                equation["in"][place] = generator.choice(equation["in"])
            elif ports := [*data["program"]["inputs"], *equation["out"]]:
                port = generator.choice(ports)
                port[1] = _changed(port[1], generator) if generator.random() < 0.7 else generator.choice(types)
        yield json.dumps(data)


def attempt(text: str, folder: Path) -> str:
    """Reads a document, and calls what was read: it may refuse its operation in JAX's words, but the process goes on."""
    result = mox_files.attempt("json", text, {}, folder, run=False)
    if result != "ran":
        return result
    try:
        return mox_files.attempt("json", text, {}, folder)
    except Exception as error:  # noqa: BLE001  whatever the compiler says of it
        return f"called: {type(error).__name__}"


def _is_small(value: Any) -> bool:
    return len(json.dumps(value)) < 500


#: Other values for one of the same type.
NUMBERS = (-(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 8, 17, 31, 64)
OTHERS: dict[str, tuple[Any, ...]] = {
    "Precision": ("DEFAULT", "HIGH", "HIGHEST"),
    "FftType": ("FFT", "IFFT", "RFFT", "IRFFT"),
    "GatherScatterMode": ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS", "ONE_HOT"),
    "RandomAlgorithm": ("RNG_DEFAULT", "RNG_THREE_FRY", "RNG_PHILOX"),
    "DotAlgorithmPreset": ("DEFAULT", "ANY_F8_ANY_F8_F32", "F64_F64_F64", "TF32_TF32_F32_X3", "BF16_BF16_F32"),
    "RoundingMethod": ("AWAY_FROM_ZERO", "TO_NEAREST_EVEN"),
    "AccuracyMode": ("DEFAULT", "HIGHEST"),
}
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int8", "uint32", "int4", "bool", "complex64", "float8_e4m3fn", "key<fry>")  # fmt: skip


def _changed(value: Any, generator: random.Random) -> Any:
    """A value of about the same form with one thing in it that is another."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return generator.choice(NUMBERS)
    if isinstance(value, float):
        return generator.choice((0.0, -1.0, 1e300, {"$float": "nan"}, {"$float": "inf"}))
    if isinstance(value, str):
        return generator.choice(DTYPES) if value in DTYPES else generator.choice(("", value * 2, "x"))
    if isinstance(value, list):
        if not value or generator.random() < 0.25:
            place = generator.randrange(len(value) + 1)
            again = [generator.choice(value)] if value else [generator.choice(NUMBERS)]
            return value[:place] + (again if generator.random() < 0.5 else []) + value[place + generator.randrange(2) :]
        place = generator.randrange(len(value))
        return [_changed(item, generator) if at == place else item for at, item in enumerate(value)]
    if isinstance(value, dict) and len(value) == 1:
        ((form, content),) = value.items()
        if form == "$enum":
            return {form: [content[0], generator.choice(OTHERS.get(content[0], (content[1],)))]}
        if form in ("$closed", "$jaxpr", "$array", "$keyword", "$named", "$map", "$dict", "$mesh", "$spec"):
            return generator.choice((value, None, {"$map": []}, {"$tuple": []}, 1))
        return {form: _changed(content, generator)}
    if isinstance(value, dict):
        name = generator.choice(sorted(value))
        return {**value, name: _changed(value[name], generator)}
    return generator.choice((None, None, 0, 1, True, {"$tuple": []}, {"$map": []}, "x"))

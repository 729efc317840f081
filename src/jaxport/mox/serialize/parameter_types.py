"""The types of the parameters of operations: what JAX itself writes for each is what a document may hold.

JAX checks what decides the types of results; the rest goes to the compiler as it is, which ends the process on some of
it. So a table says for each parameter which types of values JAX writes; `scripts/parameter_types.py` makes it of traced
programs, in each release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from jaxport.errors import ModelError
from jaxport.mox.serialize.json_values import JsonValue

TABLE, ANY = "parameter_types.json", "any"
_PLAIN = frozenset({"None", "bool", "int", "ints", "float", "dtype"})


@cache
def known_types() -> dict[str, dict[str, frozenset[str]]]:
    """Return the types of each parameter, by the names of the primitive and of the parameter.

    >>> sorted(known_types()["dot_general"]["precision"])
    ['(Precision, Precision)', 'DotAlgorithmPreset', 'None']
    """
    table = json.loads(files("jaxport.mox.serialize").joinpath(TABLE).read_text(encoding="utf-8"))
    return {name: {key: frozenset(types) for key, types in params.items()} for name, params in table.items()}


def type_of(data: JsonValue) -> str:
    """Return the type of a value, as it is written in documents. Sizes are integers; tuples of them are one type,
    however long, if none is negative: the compiler takes no axis from the end.

    >>> type_of({"$tuple": [1, {"$dim": "n + 1"}]}), type_of({"$tuple": [{"$enum": ["Precision", "HIGH"]}, None]})
    ('ints', '(Precision, None)')
    >>> type_of([{"$tuple": [True, True]}])
    '[boolss]'
    """
    if data is None:
        return "None"
    if isinstance(data, list):
        return f"[{_row(data)}]"
    if not isinstance(data, Mapping):
        return "negative" if type(data) is int and data < 0 else type(data).__name__
    if len(data) != 1:
        return "unknown"
    ((form, content),) = data.items()
    match form, content:
        case (("$int" | "$dim"), _):
            return "int"
        case "$float", _:
            return "float"
        case (("$closed" | "$jaxpr" | "$bound"), _):  # one of them is that of the release
            return "program"
        case "$array", {"shape": [], "dtype": str(dtype)}:  # a scalar of NumPy
            return next((name for name in ("bool", "int", "float") if name in dtype), "array")
        case "$tuple", list():
            return _row(content)
        case "$enum", [str(kind), _]:
            return kind
        case "$record", [str(kind), Mapping() as fields]:
            return f"{kind}({', '.join(f'{name}={type_of(value)}' for name, value in sorted(fields.items()))})"
        case "$keyword", str():
            return content.partition(" ")[0]
        case (("$map" | "$dict"), list() as pairs):
            return (
                f"map[{_row([part for pair in pairs if isinstance(pair, list) for part in pair])}]" if pairs else "map"
            )
    return form.removeprefix("$")


def _row(items: Sequence[JsonValue]) -> str:
    """Return the type of a tuple: of names of options one by one, as there are so many; of others of any length."""
    types = [type_of(item) for item in items]
    if any(isinstance(item, Mapping) and "$enum" in item for item in items):
        return f"({', '.join(types)})"
    kinds = {kind.removesuffix("s") if kind in ("ints", "negatives") else kind for kind in types} or {"int"}
    kinds = kinds - {"int"} if "negative" in kinds else kinds
    return f"{'|'.join(sorted(kinds))}s" if len(kinds) == 1 else f"({'|'.join(sorted(kinds))})s"


def types_of(primitive: str, name: str) -> frozenset[str]:
    """Return the types that a parameter may have: those that JAX gives it; of an operation or a parameter that the
    table does not have, as newer releases add some, those that JAX gives parameters of this name elsewhere, or numbers
    and truth values.
    """
    table = known_types()
    if name in table.get(primitive, {}):
        return table[primitive][name]
    return _PLAIN.union(*(params[name] for params in table.values() if name in params))


def check_parameters(primitive: str, params: Mapping[str, JsonValue]) -> None:
    """Check the types of the parameters of an operation.

    Raises:
      ModelError: JAX gives a parameter no such values.
    """
    for name, data in params.items():
        known = types_of(primitive, name)
        if ANY not in known and type_of(data) not in known:
            wanted = " or ".join(sorted(known))
            raise ModelError(
                f"the parameter `{name[:40]}` is malformed", why=f"JAX gives it {wanted}, not {type_of(data)[:80]}"
            )

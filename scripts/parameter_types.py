"""Write `src/jaxport/mox/serialize/parameter_types.json`: the types of values that JAX gives each parameter of its
operations.

They are those in all documents of `tests.fuzzing.equations`: the functions of JAX's namespaces, and the programs of the
tests of module expressions. What other releases of JAX have written stays: `python -m scripts.parameter_types` is run
in the environment of each; `--fresh` forgets it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

from jaxport.mox.serialize import parameter_types, writing
from jaxport.mox.serialize.parameter_types import ANY, TABLE, type_of
from tests.fuzzing.equations import bodies, documents

PATH = Path(parameter_types.__file__).with_name(TABLE)

OPEN = {("composite", "attributes")}
"""Parameters that hold what users give."""


def main() -> None:
    """Write the table."""
    known = {} if "--fresh" in sys.argv or not PATH.exists() else json.loads(PATH.read_text(encoding="utf-8"))
    table = {name: {key: {*types} for key, types in params.items()} for name, params in known.items()}
    with mock.patch.object(writing, "types_of", return_value={ANY}):
        for data in documents():
            add(table, data)
    write(table)


def add(table: dict[str, dict[str, set[str]]], data: object) -> None:
    """Add the types of the parameters in a document."""
    for body in bodies(data):
        for equation in body["equations"]:
            for key, value in equation.get("params", {}).items():
                kind = ANY if (equation["primitive"], key) in OPEN else type_of(value)
                table.setdefault(equation["primitive"], {}).setdefault(key, set()).add(kind)


def write(table: dict[str, dict[str, set[str]]]) -> None:
    """Write a table, a line for each operation."""
    rows = ((name, {key: sorted(table[name][key]) for key in sorted(table[name])}) for name in sorted(table))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(params)}" for name, params in rows)
    PATH.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

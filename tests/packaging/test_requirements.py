"""What `pyproject.toml` states is what the package imports and what its errors and pages tell users to install."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.architecture.imports import imports_of
from tests.architecture.sources import SOURCE

ROOT = SOURCE.parent
PACKAGE = SOURCE / "jaxport"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: What users install with one of these; the other extras are for developers.
FOR_USERS = ("runtime", "flax", "equinox", "images")
#: Extras of their own, which `all` does not bring.
APART = ("torch",)
#: What pages tell users to install beside the package, each with its reason.
BESIDE = {"optax": "trains what the pages print", "scikit-learn": "its digits are the data of a page"}
# Libraries that are used if the user's program has loaded them, each with its reason.
ONLY_IF_LOADED = {
    "haiku": "the modules of a model that is written with it become blocks",
    "keras": "the layers of a model that is written with it become blocks",
}
# Libraries of dependencies that always come with them.
BROUGHT = {
    "google": "onnx requires protobuf, whose messages it hands out",
    "jaxlib": "jax requires it, in the release that fits",
    "shellingham": "typer requires it",
    "typing_extensions": "onnx and onnx-ir require it; only type checkers read what is imported of it, and they bring their own",
}


def distribution(requirement: str) -> str:
    """The normalized name in a requirement such as `onnx-ir>=0.2` or `jaxport[all]`."""
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def installable() -> set[str]:
    """The distributions that users get with the package or one of its extras."""
    return {
        distribution(item)
        for item in [*PROJECT["dependencies"], *(item for name in (*FOR_USERS, *APART) for item in EXTRAS[name])]
    }


def hints(text: str) -> list[str]:
    """What `pip install …` in a text names: distributions, `name[extras]`, `.[extras]` or a wheel with extras."""
    commands = re.findall(r"pip install ([^`\n#]+)", text)
    words = [word.strip("'\"") for command in commands for word in command.split()]
    return [word for word in words if not word.startswith("-") and re.match(r"[\w.]", word)]


def problem(hint: str) -> str | None:
    """Why a user cannot install what a hint names, or None."""
    if bracket := re.fullmatch(r"(\.|jaxport|jaxport\S*\.whl)\[([\w,-]+)\]", hint):
        unknown = set(bracket[2].split(",")) - set(EXTRAS)
        return f"there is no extra {sorted(unknown)}" if unknown else None
    return (
        None
        if distribution(hint) in installable() | {*BESIDE}
        else "it is neither a dependency nor in an extra for users"
    )


def texts() -> Iterator[tuple[str, str]]:
    """Each string of the package and each page for users, with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_what_users_are_told_to_install_exists() -> None:
    told = [(place, hint) for place, text in texts() for hint in hints(text)]
    assert {place.partition("/")[0] for place, _ in told} >= {"src", "docs", "README.md"}
    assert [(place, hint, problem(hint)) for place, hint in told if problem(hint)] == []


@pytest.mark.parametrize(
    ("text", "hint", "is_wrong"),
    [
        ("`pip install onnxruntime`", "onnxruntime", False),
        ("`pip install 'jaxport[runtime,flax]'`", "jaxport[runtime,flax]", False),
        ("pip install '.[all]'     # in a clone", ".[all]", False),
        ("pip install jaxport-0.1.0-py3-none-any.whl[all]", "jaxport-0.1.0-py3-none-any.whl[all]", False),
        ("`pip install 'jaxport[gpu]'`", "jaxport[gpu]", True),
        ("`pip install onnxsim`", "onnxsim", True),
    ],
)
def test_the_check_of_hints_sees_what_it_must(text: str, hint: str, is_wrong: bool) -> None:
    assert hints(text) == [hint]
    assert bool(problem(hint)) is is_wrong


def test_all_extras_are_in_all() -> None:
    (everything,) = EXTRAS["all"]
    assert everything == f"jaxport[{','.join(FOR_USERS)}]"


def test_the_page_on_installing_lists_the_extras() -> None:
    page = (ROOT / "docs" / "getting-started.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)[: len(FOR_USERS) + 1] == [*FOR_USERS, "all"]


def test_what_is_imported_is_required() -> None:
    """A library that an installed package imports is one of its dependencies, or in an extra."""
    known = importlib.metadata.packages_distributions()
    imported = {entry.module.split(".")[0] for entry in imports_of(PACKAGE)} - {"jaxport", *sys.stdlib_module_names}
    missing = {
        name
        for name in imported - set(ONLY_IF_LOADED) - set(BROUGHT)
        if not installable().intersection(distribution(found) for found in known.get(name, [name]))
    }
    assert not missing, "add it to `dependencies` or to an extra in pyproject.toml"
    assert {*ONLY_IF_LOADED, *BROUGHT} <= imported, "a list is stale"

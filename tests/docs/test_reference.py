"""Every public name, and every type of the package that one returns, has an entry with an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

import jaxport
from scripts.public_interface import MODULES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
# Types that users get and hold, but whose attributes they do not need, each with its reason.
WITHOUT_ENTRY = {
    "Array": "an array of JAX or NumPy",
    "Module": "an object of a framework",
    "AnySource": "the three classes of sources",
    "Html": "shown by notebooks, or saved",
    "Text": "printed",
    "Session": "ONNX Runtime's own, behind `exported.run`",
    "Tree": "behind `mox.select`",
    "TracedWeight": "behind `mox.params`",
    "Block": "what a predicate of `functions=` gets; export.md explains it",
    "BoundNode": "behind `program.places`",
    "NodePlace": "behind `program.places`",
    "Rewrite": "a kind of replacement, which edits return to `sub`",
}


def entries() -> dict[str, str]:
    """The text below each entry, by its name."""
    found = {}
    for page in REFERENCE.glob("*.md"):
        for part in re.split(r"^(?=::: )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            name, _, text = part.removeprefix("::: ").partition("\n")
            found[name.strip()] = text
    return found


ENTRIES = entries()


def public() -> dict[str, object]:
    """The public names, each under the first module that has it."""
    found: dict[int, tuple[str, object]] = {}
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if not inspect.ismodule(value):
                found.setdefault(id(value), (f"{module}.{name}", value))
    return dict(found.values())


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_entry_with_an_example(name: str):
    short = name.rpartition(".")[2]
    written = next((entry for entry in ENTRIES if entry == name or entry.endswith(f".{short}")), None)
    assert written is not None, f"add `::: {name}` to a page in docs/reference"
    documentation = inspect.getdoc(PUBLIC[name]) or ""
    assert ">>> " in documentation or re.search(rf"```python\n|`[^`]*{short}[^`]*`", ENTRIES[written]), (
        f"give the docstring of `{name}` an example, or add one below its entry"
    )


def returned(value: object) -> Iterator[str]:
    """The classes in the annotations of what a public function, or a method of a public class, returns."""
    members = vars(value).items() if inspect.isclass(value) else [("__call__", value)]
    for name, member in members:
        if name.startswith("_") and name != "__call__":
            continue
        function = member.fget if isinstance(member, property) else member
        function = function.func if isinstance(function, cached_property) else getattr(function, "__func__", function)
        yield from re.findall(r"[A-Z]\w+", str(getattr(function, "__annotations__", {}).get("return", "")))


def own_classes() -> set[str]:
    """The names of the classes of the package."""
    source = REFERENCE.parents[1] / "src"
    return {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_a_type_that_users_get_has_an_entry():
    known = {entry.rpartition(".")[2] for entry in ENTRIES} | set(WITHOUT_ENTRY)
    types = {name for value in PUBLIC.values() for name in returned(value)} & own_classes()
    assert types - known == set()


def test_each_entry_exists():
    for name in ENTRIES:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_pages_are_listed():
    index = (REFERENCE.parent / "reference.md").read_text(encoding="utf-8")
    assert [page.name for page in REFERENCE.glob("*.md") if f"(reference/{page.name})" not in index] == []


# Named in signatures, or constants: their entries in the reference have the examples.
WITHOUT_EXAMPLE = {
    "importer.Host", "importer.OutputCount", "importer.RandomKey", "importer.ShapeOnly", "testing.SIZES", "testing.VARIANTS",
    "mox.Match", "mox.load", "mox.save", "mox.quantize_linear", "mox.dequantize_linear", "verify.Sampler",
}  # fmt: skip


def documented() -> dict[str, str]:
    """The docstrings of the public names and of their methods."""
    found = {}
    for name, value in PUBLIC.items():
        members = vars(value) if inspect.isclass(value) else {}
        own = {name: value, **{f"{name}.{key}": member for key, member in members.items() if not key.startswith("_")}}
        found |= {
            key: text
            for key, each in own.items()
            if callable(each) or isinstance(each, property | cached_property)
            if (text := inspect.getdoc(each))
        }
    return found


@pytest.mark.parametrize("name", sorted(name for name, text in documented().items() if ">>> " in text))
def test_an_example_runs_as_it_is_pasted(name: str):
    """After `import jaxport`, and nothing else."""
    if name == "jaxport.from_torch":
        pytest.importorskip("torch")
    examples = doctest.DocTestParser().get_doctest(documented()[name], {"jaxport": jaxport}, name, None, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    assert runner.run(examples, out=said.append).failed == 0, "".join(said)


def test_public_names_have_an_example():
    is_error = lambda value: inspect.isclass(value) and issubclass(value, jaxport.JaxportError)
    texts = documented()
    without = {
        name.removeprefix("jaxport.")
        for name, value in PUBLIC.items()
        if not is_error(value) and ">>> " not in texts.get(name, "")
    }
    assert without == WITHOUT_EXAMPLE

"""What a change that adds something must not forget: each failure says what to add, and where."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import onnx_ir as ir
import pytest

from jaxport.codegen.burn.rules.registry import CALLS, PRIMITIVES
from jaxport.codegen.recorded import fused
from jaxport.codegen.recorded.functions import FUNCTIONS
from jaxport.export import passes
from jaxport.graph import fusions
from jaxport.importer.resolving.registry import operators
from tests.architecture.sources import text_of

TESTS = Path(__file__).parents[1]
#: Passes that a caller adds to `passes.DEFAULT` or gets by a target, and where the documentation has the word for it.
ON_REQUEST = {
    "channel_factors": ("export.md", "channel_factors"),
    "padded_channels": ("running.md", "fills channels up"),
    "resized_last": ("running.md", "moves the axes to the end"),
    "without_or": ("running.md", "writes `Or` as `And`"),
    "inlining": ("running.md", "inlines all functions"),
    "shifts": ("running.md", "shifts halves of 16 bits"),
    "spectra": ("running.md", "a whole one and takes its half"),
    "untied": ("running.md", "stores both forms"),
    "whole_blocks": ("running.md", "fills up the last block"),
}


@functools.cache
def defined_passes() -> dict[str, str]:
    """The public functions of passes and fusions that take a model alone, with the files that define them."""
    found = {}
    for package in (passes, fusions):
        for module_info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{module_info.name}")
            for name, function in inspect.getmembers(module, inspect.isfunction):
                parameters = list(inspect.signature(function, eval_str=True).parameters.values())
                takes_a_model = [parameter.annotation for parameter in parameters] == [ir.Model]
                reports = inspect.signature(function, eval_str=True).return_annotation is str
                if takes_a_model and reports and not name.startswith("_") and function.__module__ == module.__name__:
                    found[name] = f"{package.__name__.rpartition('.')[2]}/{module_info.name}.py"
    return found


@pytest.mark.parametrize("name", sorted(defined_passes()))
def test_a_pass_runs_or_is_documented(name: str) -> None:
    file = defined_passes()[name]
    if name in ON_REQUEST:
        page, word = ON_REQUEST[name]
        text = (TESTS.parent / "docs" / page).read_text()
        assert word in text, f"`{word}` ({file}) is not in docs/{page}: say what it is for"
        return
    assert name in {
        passes.pass_name(graph_pass)
        for graph_pass in (*passes.default(caches=True, experts=True, exact=True), *fused.FIRST, *fused.FUSIONS)
    }, (
        f"`{name}` ({file}) takes a model and never runs: add it to `DEFAULT` in export/passes/__init__.py, to `FUSIONS` in "
        "codegen/recorded/fused.py, or to `ON_REQUEST` here"
    )


def test_what_is_on_request_exists() -> None:
    assert set(ON_REQUEST) <= set(defined_passes())


def words(*folders: str) -> set[str]:
    """The words in the tests of some folders."""
    return {
        word
        for folder in folders
        for path in (TESTS / folder).rglob("*.py")
        for word in re.findall(r"[\w-]+", text_of(path))
    }


@pytest.mark.parametrize("name", sorted({passes.pass_name(graph_pass) for graph_pass in passes.DEFAULT}))
def test_a_pass_that_always_runs_has_a_test(name: str) -> None:
    """In the test file of the file that defines it, or in one that imports it: a word in a text is no test."""
    graph_pass = next(each for each in passes.DEFAULT if passes.pass_name(each) == name)
    file = graph_pass.__module__.rpartition(".")[2]
    tests = [*(TESTS / "export" / "passes").glob(f"test_{file}*.py"), *(TESTS / "graph").glob(f"test_{file}*.py")]
    own = graph_pass.__module__.startswith("jaxport.")  # those of onnx_ir are tested there
    assert (
        not own
        or tests
        or not imported_by_tests().isdisjoint({name, f"'{name}'", graph_pass.__module__, f"{file}.{name}"})
    ), f"no test of the pass `{name}`: add one to tests/export/passes/test_{file}.py or tests/graph/test_{file}.py"


@functools.cache
def imported_by_tests() -> set[str]:
    """What tests of passes and fusions import, call, or ask the report of: names, modules, and names of modules."""
    found: set[str] = set()
    for folder in ("export/passes", "graph"):
        for path in (TESTS / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(text_of(path))):
                if isinstance(node, ast.ImportFrom):
                    found |= {each for alias in node.names for each in (alias.name, f"{node.module}.{alias.name}")}
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                    found.add(f"'{node.value}'")  # as in `report(exported, "batch_normalization")`
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    found.add(f"{node.value.id}.{node.attr}")
    return found


# What the cases of ONNX's backend suite and the small models become, which `tests/burn` compiles and compares.
BY_THE_SUITE = frozenset(
    """
    log log1p tan sinh cosh asin acos atan asinh acosh atanh ceil is_finite erfc cbrt exp2 neg logistic one_minus_square
    integer_pow reduce_precision convert_element_type mul add_any atan2 pow eq ne lt le gt ge xor population_count clz
    select_n clamp dim_as_value platform_index broadcast_in_dim rev iota reduce_sum reduce_prod reduce_max reduce_min
    reduce_or reduce_and argmin cumsum cumprod cummax cummin sort dot_general gather scatter scatter-add scatter-sub
    scatter-mul scatter-min scatter-max complex imag conj fft reduce_window_sum reduce_window_max reduce_window_min swish soft_sign matmul resized
    """.split()
)


def test_an_entry_of_burn_has_a_test() -> None:
    """Each rule that prints Rust is named in a test, by one of its names, or runs in the suite."""
    importlib.import_module("jaxport.codegen.burn.equations")
    importlib.import_module("jaxport.codegen.burn.steps")
    known = words("burn", "codegen") | BY_THE_SUITE
    rules: dict[object, list[str]] = {}
    for name, rule in {**PRIMITIVES, **CALLS}.items():
        rules.setdefault(rule, []).append(name)
    missing = {
        rule.__module__.rpartition(".")[2]: names  # type: ignore[attr-defined]
        for rule, names in rules.items()
        if not any(name.rpartition(".")[2] in known for name in names)
    }
    assert not missing, "; ".join(
        f"no test names {' or '.join(names)} (codegen/burn/rules/{file}.py): add a line to the table of cases in "
        "tests/codegen/test_rust_operators.py, or a program to tests/burn/special_programs.py"
        for file, names in missing.items()
    )


def test_an_operator_has_a_case() -> None:
    """In the backend suite of ONNX, as the page counts that is kept up to date, or by name in the tests of the importer or the printers."""
    page = (TESTS.parent / "docs" / "operators.md").read_text()
    suite = set(re.findall(r"^\| `(\w+)` \| [^|]* \| \d", page, re.MULTILINE))
    files = [path for part in ("importer", "codegen") for path in (TESTS / part).rglob("*.py")]
    named = set(re.findall(r"\w+", "\n".join(path.read_text() for path in files)))
    named |= {function.name for function in FUNCTIONS}  # of which tests/codegen/test_functions.py has a case each
    own = [operator for operator in operators() if operator.function.__module__.startswith("jaxport.")]
    missing = {f"{operator.domain}.{operator.name}" for operator in own if operator.name not in suite | named}
    assert not missing, f"no test has a node of {sorted(missing)}: add a line to a table of cases in tests/importer"


def test_the_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([a-z_/]+\.py)`", (TESTS.parent / "docs" / "architecture.md").read_text())
    package = TESTS.parent / "src" / "jaxport"
    assert named
    assert [name for name in named if not (package / name).is_file()] == []

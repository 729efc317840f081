"""`make quick` says what it did: red, green, or not finished."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import quick


@pytest.mark.parametrize(
    ("architecture", "closest", "late", "more", "said"),
    [
        (0, 0, 0, 0, "green"),
        (0, quick.NO_TESTS, 0, 0, "green"),
        (1, 0, 0, 0, "red"),
        (0, 1, 0, 0, "red"),
        (0, 2, 5, 3, "red"),
        (0, 0, 432, 0, "not finished: 432 tests had no time"),
        (0, 0, 0, 7, "not finished: 7 more test files can see the change"),
        (0, 0, 2, 7, "not finished: 2 tests had no time, 7 more test files can see the change"),
    ],
)
def test_the_verdict(architecture: int, closest: int, late: int, more: int, said: str):
    assert quick.verdict(architecture, closest, late, more).startswith(said)


def test_the_closest_tests_come_first_and_the_architecture_is_apart():
    tests, more = quick.chosen(["src/jaxport/graph/fusions/softmax.py"])
    assert "tests/graph/test_softmax.py" in tests[:3]
    assert more > 0
    assert not set(tests) & set(quick.ALWAYS)
    assert all((quick.ROOT / file).is_file() for file in quick.ALWAYS)


def test_tests_that_name_what_changed_come_first():
    files = ["src/jaxport/export/rules/elementwise.py"]
    assert quick.chosen(files, {"floor"})[0][:2] == [*files, "tests/export/rules/test_elementwise.py"]
    files = ["src/jaxport/importer/ops/elementwise.py"]
    first = quick.chosen(files, {"Softplus"})[0][1]
    assert first.startswith("tests/importer/")
    assert "Softplus" in (quick.ROOT / first).read_text()


def test_what_changed_lines_define():
    source = """
renamed(
    floor="Floor",
    ceil="Ceil",
)

@rule("cumsum", older=True)
def cumulative(op, x, *, axis):
    return op.CumSum(x, axis)
"""
    assert quick.defined(source, {3}) == {"floor", "Floor"}
    assert quick.defined(source, {9}) == {"cumsum", "cumulative"}
    assert quick.defined(source, {6}) == set()


def test_the_words_of_conditions_around_changed_lines():
    """A helper's tests are those of the case in which its caller calls it."""
    source = """
@rule("convert_element_type")
def cast(op, x, *, new_dtype, weak):
    if new_dtype.name == "float8_e8m0fnu":
        return power_of_two(op, x)
    return op.Abs(x) if weak and new_dtype.name != "a (b" else x

def power_of_two(op, x):
    return op.Cast(x)

TABLE = dict(cbrt=power_of_two)
"""
    assert quick.conditions(source, {9}) == {"float8_e8m0fnu", "new_dtype"}
    assert quick.conditions(source, {6}) == {"weak", "new_dtype"}
    assert quick.defined(source, {9}) == {"power_of_two", "cast", "convert_element_type", "TABLE", "cbrt"}


@pytest.mark.parametrize(
    ("file", "helper", "word"),
    [
        ("src/jaxport/importer/ops/quantization.py", "dynamic_product", "DynamicallyQuantizedMatMul"),
        ("src/jaxport/export/rules/linalg/real_schur.py", "double_step", "schur"),
        ("src/jaxport/export/rules/transcendental.py", "_cbrt", "cbrt"),
        ("src/jaxport/export/rules/elementwise.py", "power_of_two", "float8_e8m0fnu"),
    ],
)
def test_a_helper_is_named_by_its_users_in_other_files_and_in_tables(file: str, helper: str, word: str):
    rows = (quick.ROOT / file).read_text().splitlines()
    line = next(number for number, row in enumerate(rows, 1) if row.startswith(f"def {helper}("))
    assert word in quick.named_by({file: {line + 1}})[0]


#: Lowerings that compute something else, with the same operands.
WRONG = {
    "op.Floor(": "op.Ceil(",
    "op.Sin(": "op.Cos(",
    "op.Max(": "op.Min(",
    "op.Min(": "op.Max(",
    "op.Sub(": "op.Add(",
    "op.Mul(": "op.Add(",
    "op.Greater(": "op.Less(",
    "op.And(": "op.Or(",
    "jnp.maximum(": "jnp.minimum(",
    "jnp.minimum(": "jnp.maximum(",
    "jnp.sum(": "jnp.prod(",
    "jnp.mean(": "jnp.max(",
    "jnp.exp(": "jnp.log1p(",
    "jnp.floor(": "jnp.ceil(",
    "jnp.sqrt(": "jnp.cbrt(",
    "nn.relu(": "nn.softplus(",
}
CPU_SECONDS = 240  # two minutes on two cores


def wrong_lines(folder: str) -> list[tuple[Path, int, str]]:
    """The lines of a folder that can be made wrong, and what they become."""
    return [
        (path.relative_to(quick.ROOT), number, line.replace(right, wrong, 1))
        for path in sorted((quick.ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines())
        for right, wrong in WRONG.items()
        if right in line and line.startswith("    ") and '"""' not in line and "#" not in line
    ]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["src/jaxport/export/rules", "src/jaxport/importer/ops"])
def test_a_wrong_lowering_is_caught(folder: str, tmp_path: Path):
    """Never green, and red for most: what only a rare option runs may have no time."""
    drawn = random.Random(f"{os.environ.get('SEED', '1')} {folder}").sample(wrong_lines(folder), 3)
    said = {
        f"{file}:{number + 1} became `{line}`": verdict_on(file, number, line, tmp_path) for file, number, line in drawn
    }
    assert all(each.startswith(("red", "not finished")) for each in said.values()), said
    assert list(said.values()).count("red") >= 2, said


def verdict_on(file: Path, number: int, line: str, folder: Path) -> str:
    """What `make quick` says of a copy of this repository with one line changed."""
    copy = folder / f"{file.stem}-{number}"
    for name in ("src", "tests", "examples", "benchmarks", "scripts", "docs"):
        shutil.copytree(quick.ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(quick.ROOT / name, copy / name)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*git, *words], cwd=copy, check=True)
    lines = (copy / file).read_text().splitlines()
    lines[number] = line
    (copy / file).write_text("\n".join([*lines, ""]))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = os.environ | {"PYTHONPATH": str(copy / "src")}
    command = [quick.sys.executable, "-m", "tests.quick", "--closest"]
    done = subprocess.run(command, cwd=copy, env=variables, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_SECONDS
    return done.stdout.rpartition("make quick: ")[2].strip() or done.stderr[-3000:]


def test_tests_without_time_are_counted(tmp_path):
    program = "print('12 more tests were chosen, for which no time was left')"
    assert quick.streamed([quick.sys.executable, "-c", program]) == (0, 12)

"""The tests that changed files can break, the closest first, for as long as `make quick` may take.

`python -m tests.quick [--base main] [--within 40] [--list] [FILE…]`: without files, those that differ from the base, or are
not committed. A test file is the closer, the fewer imports lie between it and a changed file; one that has the changed
file's name, or is in the folder of that name, is as close as one that imports it. The closest of all are those that name what
changed lines define: a rule, an operator. Their tests that name it run first, whatever the time.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tests.architecture import lines

ROOT = Path(__file__).parents[1]
#: Those of them that only read files, for each commit.
FOR_COMMITS = tuple(f"tests/architecture/test_{name}.py" for name in ("imports", "private_names", "rooms", "source"))
#: The status of pytest where there is nothing to run.
NO_TESTS = 5
#: So many test files are collected; others that could see the change are only counted.
FILES = 12
#: What looks at all files of the package, and at what a new operator, rule, pass or page still lacks. It runs first, and always
#: to the end.
ALWAYS = tuple(
    f"tests/architecture/test_{name}.py"
    for name in (
        "completeness",
        "deprecations",
        "imports",
        "interface",
        "lazy_imports",
        "private_names",
        "rooms",
        "source",
        "versions",
    )
)


#: The tests that targets of their own run.
APART = ("tests/burn/", "tests/clients/", "tests/torch/", "tests/runtimes/")
#: Words of tables that name nothing.
COMMON = {
    "renamed",
    "rule",
    "op",
    "since",
    "None",
    "True",
    "False",
    "dict",
    "frozenset",
    "lambda",
    "for",
    "in",
    "import",
}


def changed(base: str) -> list[str]:
    """The files that differ from where this branch left the base, and those that are new."""
    run = lambda *command: (
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    )
    start = run("merge-base", base, "HEAD").strip()
    return sorted(
        {*run("diff", "--name-only", start).split("\n"), *run("ls-files", "-o", "--exclude-standard").split("\n")}
        - {""}
    )


@functools.cache
def modules() -> dict[str, str]:
    """Each file of Python by the name of its module."""
    files = [
        path
        for folder in ("src/jaxport", "tests", "examples", "scripts", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = {}
    for path in files:
        inner = path.relative_to(ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT).with_suffix("")
        named[".".join(inner.parts).removesuffix(".__init__")] = path.relative_to(ROOT).as_posix()
    return named


def imported(file: str) -> Iterator[str]:
    """The files of this repository that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [name for alias in node.names for name in (f"{node.module}.{alias.name}",)]
            names = [name if name in modules() else str(node.module) for name in names]
        else:
            continue
        yield from (modules()[name] for name in names if name in modules())


@functools.cache
def importers() -> Mapping[str, set[str]]:
    """For each file those that import it."""
    found: dict[str, set[str]] = {}
    for file in modules().values():
        for other in imported(file):
            found.setdefault(other, set()).add(file)
    return found


def namesakes(file: str) -> Iterator[str]:
    """The tests that bear a file's name, or are in the folder of its name or of the one around it."""
    inner = Path(file).with_suffix("").parts
    if inner[:2] != ("src", "jaxport"):
        return
    *folders, name = inner[2:]
    names = {f"test_{name}.py"} | ({f"test_{folders[-1]}.py"} if folders else set())
    yield from (path for path in modules().values() if path.startswith("tests/") and Path(path).name in names)


def distances(files: Iterable[str]) -> dict[str, int]:
    """How many imports away from a changed file each file is that can see it."""
    found = dict.fromkeys((file for file in files if (ROOT / file).exists()), 0)
    close = {other for file in found for other in namesakes(file)}
    found |= dict.fromkeys(close - found.keys(), 1)
    border = [file for file, distance in found.items() if not distance]
    while border:
        nearer = {other: found[file] + 1 for file in border for other in importers().get(file, ())}
        border = [other for other in nearer if other not in found]
        found |= {other: nearer[other] for other in border}
    return found


def changed_lines(file: str, base: str) -> set[int]:
    """The lines of a file that differ from where this branch left the base."""
    git = ["git", "diff", "-U0", f"{base}...", "--", file], ["git", "diff", "-U0", "HEAD", "--", file]
    shown = "".join(subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=False).stdout for each in git)
    hunks = re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", shown, re.MULTILINE)
    return {int(first) + index for first, count in hunks for index in range(max(1, int(count or 1)))}


def defined(source: str, lines: set[int]) -> set[str]:
    """What changed lines define: the names of functions, what their decorators register, the words of rows of tables.

    >>> sorted(defined('renamed(floor="Floor", ceil="Ceil")', {1}) - {"renamed"})
    ['Ceil', 'Floor', 'ceil', 'floor']
    """
    rows, tree = source.splitlines(), ast.parse(source).body
    found: set[str] = set()
    functions: dict[str, ast.FunctionDef] = {node.name: node for node in tree if isinstance(node, ast.FunctionDef)}
    pending = [node.name for node in functions.values() if lines.intersection(_lines_of(node))]
    for name in pending:  # those that call a changed one have changed, too
        found.update([name, *_registered(functions[name])])
        uses = re.compile(rf"\b{name}\b")
        pending += [
            other.name
            for other in functions.values()
            if other.name not in pending and any(uses.search(rows[line - 1]) for line in _lines_of(other))
        ]
    for statement in tree:
        if not isinstance(statement, ast.FunctionDef | ast.Import | ast.ImportFrom):
            touched = lines.intersection(_lines_of(statement))
            found.update(word for line in touched for word in re.findall(r"[A-Za-z_]\w+", rows[line - 1]))
    return found - COMMON


def _lines_of(statement: ast.stmt) -> range:
    decorators = [decorator.lineno for decorator in getattr(statement, "decorator_list", ())]
    return range(min([statement.lineno, *decorators]), (statement.end_lineno or 0) + 1)


def _registered(function: ast.FunctionDef) -> list[str]:
    """The texts in the decorators of a function: the primitive or the operator that it is for."""
    constants = [node for each in function.decorator_list for node in ast.walk(each) if isinstance(node, ast.Constant)]
    return [node.value for node in constants if isinstance(node.value, str)]


def chosen(files: Iterable[str], words: Collection[str] = ()) -> tuple[list[str], int]:
    """The test files to run, the closest first, and how many more can see a change.

    Args:
      files: the files that differ.
      words: what their changed lines define.
    """
    files = list(files)
    near = distances(files)
    naming = {
        file: not {*words}.isdisjoint(re.findall(r"\w+", (ROOT / file).read_text())) if words else False
        for file in modules().values()
        if file.startswith("tests/")
    }
    near |= {file: 1 for file, names in naming.items() if names and file not in near}
    folders = {part for file in files for part in Path(file).parent.parts} - {"src", "tests"}
    is_test = lambda file: (
        file.startswith("tests/") and not file.startswith(APART) and Path(file).name.startswith("test_")
    )
    tests = sorted(
        filter(is_test, near),
        key=lambda file: (
            (not naming.get(file), -len(folders.intersection(Path(file).parts)), near[file], file)
            if words
            else (near[file], -len(folders.intersection(Path(file).parts)), file)
        ),
    )
    doctests = [file for file in near if file.startswith("src/") and near[file] == 0]
    first = [file for file in dict.fromkeys([*doctests, *tests[:FILES]]) if file not in ALWAYS]
    return first, max(0, len(tests) - FILES)


def verdict(architecture: int, closest: int, late: int, more: int) -> str:
    """What is said in the end: green, red, or not finished.

    Args:
      architecture, closest: the statuses of pytest for the two runs.
      late: how many tests of the second had no time.
      more: how many test files that can see the change were not chosen.
    """
    if {architecture, closest} - {0, NO_TESTS}:
        return "red"
    left = [f"{late} tests had no time" if late else "", f"{more} more test files can see the change" if more else ""]
    said = ", ".join(filter(None, left))
    return f"not finished: {said}; `make test` runs them" if said else "green"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--base", default="main")
    parser.add_argument("--within", type=float, default=40, help="seconds of CPU after which no further test begins")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--architecture", action="store_true", help="only the tests that look at all files")
    parser.add_argument("--closest", action="store_true", help="only the tests closest to the change, until one fails")
    parser.add_argument("--list", action="store_true", help="only print the test files")
    given = parser.parse_args()
    if given.architecture:  # in one process: it takes seconds
        return subprocess.run([sys.executable, "-m", "pytest", "-q", *FOR_COMMITS], cwd=ROOT, check=False).returncode
    files = [file for file in given.files or changed(given.base) if file.endswith(".py")]
    words = sorted(
        {
            w
            for f in files
            if f.startswith("src/") and (ROOT / f).exists()
            for w in defined((ROOT / f).read_text(), changed_lines(f, given.base))
        }
    )
    tests, more = chosen(files, words)
    print(
        f"{len(files)} changed files; the architecture first, then these, for {given.within:g} seconds of CPU each process:",
        *tests,
        sep="\n",
    )
    if given.list:
        return 0
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-q", "-n", given.jobs]
    architecture, _ = (0, 0) if given.closest else streamed([*command, "--all-cases", *ALWAYS])
    command += ["-x"] * given.closest
    first = ["--first", ",".join(words)] if words else []
    closest, late = streamed([*command, "--within", str(given.within), *first, *tests]) if tests else (0, 0)
    said = verdict(architecture, closest, late, more)
    print(lines.table(lines.differences(given.base), lines.by_room()))
    print(f"make quick: {said}")
    return 1 if said == "red" else 0


def streamed(command: list[str]) -> tuple[int, int]:
    """Run pytest and show what it prints; return its status, and how many tests had no time."""
    late = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            found = re.match(r"(\d+) more tests were chosen, for which no time was left", line)
            late = int(found[1]) if found else late
    return process.returncode, late


if __name__ == "__main__":
    sys.exit(main())

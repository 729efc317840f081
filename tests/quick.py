"""The tests that changed files can break, the closest first, for as long as `make quick` may take.

`python -m tests.quick [--base main] [--within 40] [--list] [FILE…]`: without files, those that differ from the base, or are
not committed. A test file is the closer, the fewer imports lie between it and a changed file; one that has the changed
file's name, or is in the folder of that name, is as close as one that imports it. The closest of all are those that name what
changed lines define: a rule, an operator, or what uses a helper, also in other files. Their tests that name it run first,
whatever the time, and of these the first are those that name the condition under which the changed lines run.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import subprocess
import sys
from collections import Counter
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
    rows, affected = source.splitlines(), [function for function, _ in _affected(source, lines)]
    found = {word for function in affected for word in (function.name, *_registered(function))}
    uses = _uses(function.name for function in affected)
    for statement in ast.parse(source).body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_docstring and not isinstance(statement, ast.FunctionDef | ast.Import | ast.ImportFrom):
            touched = {line for line in _lines_of(statement) if line in lines or uses.search(rows[line - 1])}
            found.update(word for line in touched for word in re.findall(r"[A-Za-z_]\w+", rows[line - 1]))
    return found - COMMON


def named_by(lines: Mapping[str, set[int]]) -> tuple[set[str], set[str]]:
    """The words that tests of changed lines name, by file, and those by which the closest of these are known."""
    sources = [
        ((ROOT / user).read_text(), using)
        for file, changed in lines.items()
        for user, using in users(file, changed).items()
    ]
    words, hints = ({word for each in sources for word in find(*each)} for find in (defined, conditions))
    return words | rare(hints), hints


def users(file: str, lines: set[int]) -> dict[str, set[int]]:
    """Changed lines of a file, and those of other files of the package that use what they define, and so on."""
    found, pending = {file: lines}, [file]
    for each in pending:
        names = {function.name for function, _ in _affected((ROOT / each).read_text(), found[each])}
        for other in importers().get(each, ()):
            if not other.startswith("src/") or other in found:
                continue
            text = (ROOT / other).read_text()
            aliases = [node.names for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
            taken = names.intersection(alias.name for each in aliases for alias in each)
            uses = _uses([*taken, *(f"{Path(each).stem}.{name}" for name in names)])
            if using := {number for number, row in enumerate(text.splitlines(), 1) if uses.search(row)}:
                found[other] = using
                pending.append(other)
    return found


def _uses(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, names)) or '(?!)'})\b")


def conditions(source: str, lines: set[int]) -> set[str]:
    """The words of conditions under which changed lines run: texts, and keywords of the functions.

    >>> source = '''
    ... def cast(x, *, dtype):
    ...     if dtype == "float8_e8m0fnu":
    ...         return power(x)
    ...     return x
    ...
    ... def power(x):
    ...     return x + 1
    ... '''
    >>> sorted(conditions(source, {8}))
    ['dtype', 'float8_e8m0fnu']
    """
    found: set[str] = set()
    for function, touched in _affected(source, lines):
        keywords = {argument.arg for argument in function.args.kwonlyargs}
        for node in ast.walk(function):
            if isinstance(node, ast.If | ast.IfExp) and touched.intersection(_lines_of(node)):
                asked = list(ast.walk(node.test))
                found.update(str(each.value) for each in asked if isinstance(each, ast.Constant))
                found.update(each.id for each in asked if isinstance(each, ast.Name) and each.id in keywords)
    return {word for word in found if re.fullmatch(r"[A-Za-z]\w+", word)} - COMMON


def _affected(source: str, lines: set[int]) -> list[tuple[ast.FunctionDef, set[int]]]:
    """The functions that changed lines are in, those that call these, and so on; with the lines that changed or call."""
    rows = source.splitlines()
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    touched = {name: lines.intersection(_lines_of(node)) for name, node in functions.items()}
    pending = [name for name in functions if touched[name]]
    for name in pending:
        uses = _uses([name])
        for other, node in functions.items():
            calling = {line for line in _lines_of(node) if other != name and uses.search(rows[line - 1])}
            if calling and not touched[other]:
                pending.append(other)
            touched[other] |= calling
    return [(functions[name], touched[name]) for name in pending]


def _lines_of(statement: ast.stmt | ast.IfExp) -> range:
    decorators = [decorator.lineno for decorator in getattr(statement, "decorator_list", ())]
    return range(min([statement.lineno, *decorators]), (statement.end_lineno or 0) + 1)


def _registered(function: ast.FunctionDef) -> list[str]:
    """The texts in the decorators of a function: the primitive or the operator that it is for."""
    constants = [node for each in function.decorator_list for node in ast.walk(each) if isinstance(node, ast.Constant)]
    return [node.value for node in constants if isinstance(node.value, str)]


@functools.cache
def words_of_tests() -> dict[str, set[str]]:
    """The words of each file below `tests`."""
    files = [file for file in modules().values() if file.startswith("tests/")]
    return {file: {*re.findall(r"\w+", (ROOT / file).read_text())} for file in files}


def rare(words: Iterable[str]) -> set[str]:
    """The words that few test files have: these are about them."""
    common = Counter(word for found in words_of_tests().values() for word in found.intersection(words))
    return {word for word, count in common.items() if count <= FILES}


def chosen(files: Iterable[str], words: Collection[str] = (), hints: Collection[str] = ()) -> tuple[list[str], int]:
    """The test files to run, the closest first, and how many more can see a change.

    Args:
      files: the files that differ.
      words: what their changed lines define.
      hints: of the tests that name those, the ones that name these, too, are closer.
    """
    files = list(files)
    near = distances(files)
    named = {file: found & {*words, *hints} for file, found in words_of_tests().items()} if words else {}
    naming = {file for file, found in named.items() if not found.isdisjoint(words)}
    common = Counter(word for file in naming for word in named[file])
    plain = {file: sum(1 / common[word] for word in named[file]) for file in naming}
    near |= {file: 1 for file in naming if file not in near}
    folders = {part for file in files for part in Path(file).parent.parts} - {"src", "tests"}
    is_test = lambda file: (
        file.startswith("tests/") and not file.startswith(APART) and Path(file).name.startswith("test_")
    )
    tests = sorted(
        filter(is_test, near),
        key=lambda file: (
            (file not in naming, -len(folders.intersection(Path(file).parts)), -plain.get(file, 0), near[file], file)
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
    words, hints = named_by(
        {file: changed_lines(file, given.base) for file in files if file.startswith("src/") and (ROOT / file).exists()}
    )
    tests, more = chosen(files, words, hints)
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
    first = ["--first", ",".join(sorted(words)), "--hints", ",".join(sorted(hints))] if words else []
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

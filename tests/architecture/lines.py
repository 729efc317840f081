"""The code lines of each room, what they may be at most, and how they differ from another revision.

`python -m tests.architecture.lines [--base main]` prints the rooms that differ; `--lower` lowers each ceiling to what its room has.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tests.architecture.sources import SOURCE, code_lines, nodes_of, text_of

ROOT = SOURCE.parent
PACKAGE = "src/jaxport"

# The lines of code that each room may have: a folder up to two deep, with its loose files. They only go down (`--lower`); what has to
# grow is a row of `RAISED`.
CEILINGS: dict[str, int] = {
    "blocks": 880,
    "blocks/callables": 880,
    "blocks/marking": 840,
    "cli": 2317,
    "cli/terminal": 460,
    "codegen": 1691,
    "codegen/burn": 4740,
    "codegen/equinox": 140,
    "codegen/flax": 200,
    "codegen/python": 760,
    "codegen/recorded": 1196,
    "codegen/rewriting": 960,
    "codegen/rust": 700,
    "codegen/structure": 4000,
    "codegen/writing": 1760,
    "export": 2040,
    "export/delivery": 762,
    "export/emit": 1746,
    "export/flags": 480,
    "export/generation": 460,
    "export/passes": 2612,
    "export/precision": 1040,
    "export/prepare": 960,
    "export/rules": 4960,
    "export/walk": 400,
    "frameworks": 639,
    "graph": 1840,
    "graph/axes": 20,
    "graph/facts": 1340,
    "graph/fusions": 3440,
    "importer": 1633,
    "importer/loading": 920,
    "importer/ops": 4860,
    "importer/resolving": 1745,
    "importer/running": 820,
    "importer/tensors": 640,
    "importer/traced": 1120,
    "importer/values": 960,
    "jaxprs": 1840,
    "loose files": 940,
    "mox": 580,
    "mox/edits": 1100,
    "mox/looking": 380,
    "mox/programs": 980,
    "mox/querying": 1800,
    "mox/serialize": 1420,
    "mox/substitution": 1380,
    "onnx_facts": 282,
    "pytorch": 620,
    "sizes": 520,
    "stablehlo": 1560,
    "stablehlo/ops": 800,
    "testing": 491,
    "verify": 1360,
    "verify/per_block": 240,
}

#: What was added to a ceiling: the room, the lines, and what they bought, in a sentence.
RAISED: list[tuple[str, int, str]] = [
    ("stablehlo", 200, "exports through an artifact have the nodes of direct ones: rows, gathers, erfc are recognised"),
    ("stablehlo/ops", 80, "collectives of one device, whole powers, and gathers that fill where nothing is"),
    (
        "stablehlo",
        35,
        "what an artifact asserts is a constraint on other names; tuples of main; SavedModels are refused",
    ),
    (
        "stablehlo/ops",
        67,
        "scans, wider regions, sums of bools, shardings; windows that any function reduces have a derivative",
    ),
    ("stablehlo", 66, "`qr` is one operation again, with its derivative; missing derivatives are refused by name"),
    ("stablehlo/ops", 1, "functions of JAX that a module had spelled out are operations of their own"),
    ("graph", 2, "tables that a fusion moves to another rank are stored so, without a Squeeze"),
    ("stablehlo", 25, "what is refused or malformed in an artifact is told with line and column of its operation"),
    ("jaxprs", 10, "constraints that are found while JAX traces are added to the scope of the sizes"),
    ("codegen/recorded", 24, "sizes that follow from the largest of repeated positions are known: open batches print"),
    ("codegen/structure", 9, "choices of numbers that exporters write as arrays of one element"),
    ("graph/facts", 1, "the maximum of several numbers is known"),
    ("pytorch", 13, "one head of keys that all queries share, squeezes of nothing, results of diffusers"),
    ("pytorch", 5, "models whose configuration alone says that they return a cache are imported"),
    (
        "codegen/structure",
        20,
        "normalizations without weights are layers, and matrices that branches multiply by are no tables",
    ),
    (
        "codegen/python",
        8,
        "of long bodies, only the repeated statements are compared of which a function could save more lines",
    ),
    ("importer", 20, "programs take tensors of PyTorch, and other arrays with DLPack, without a copy"),
    ("codegen", 9, "`load_pytorch` of a tied head, which the state dict has under two names"),
    (
        "graph/axes",
        600,
        "elements on symbols: rotations in any of 18 spellings instead of 7 of 12, by a client of half the lines",
    ),
    ("frameworks", 1, "`flax.nnx.RoPE` takes open lengths, of which it makes floats"),
    ("importer", 87, "a tied head in a file of PyTorch is one parameter; equal layers are blocks of equal results"),
    ("importer/resolving", 137, "sizes computed in floats of few bits are exact; upper bits of sums are announced"),
    (
        "export/passes",
        100,
        "erfc is written out last, and a pass says where it begins: a GELU takes a seventh of the calls",
    ),
    ("cli", 3, "the help names the targets for WebGPU and small devices"),
    ("export/delivery", 98, "the targets for small devices and for WebGPU, and what each of them refuses by name"),
    ("export/emit", 74, "an operator that an old opset lacks is the function body in the schemas of onnx"),
    ("export/passes", 88, "what WebGPU gets wrong or lacks is written otherwise"),
    ("onnx_facts", 158, "which kernels WebGPU has, and which operators compilers for small devices have"),
    (
        "codegen/structure",
        139,
        "what PyTorch writes in place is a line of `.at[...]` instead of 45 of a helper, and runs on NumPy's inputs, too",
    ),
    ("codegen", 16, "`load_pytorch` of recurrent layers, whose gates it puts in the order of the cells"),
    ("codegen", 4, "which weights are trained is told to crates, too, so that frozen layers stay layers there"),
    ("codegen", 20, "`load_pytorch` of parameters that have another shape in the state dict than in their layers"),
    ("codegen/python", 7, "texts beside the code, in place of 700 lines of strings"),
    ("codegen/structure", 47, "parts of what was joined or expanded, which exports write, are read as such"),
    ("testing", 9, "every case is tried at the oldest opset, and may be refused there by name alone"),
    ("loose files", 6, "one function sets a context variable inside of a context, in place of ten copies of it"),
]

ROUNDED = 20
"""What a lowered ceiling is rounded up to."""


def room(file: str) -> str:
    """The room of a file: the folder that it is in below the package, up to two deep.

    >>> room("src/jaxport/export/rules/recurrent/cells.py"), room("src/jaxport/errors.py")
    ('export/rules', 'loose files')
    """
    return "/".join(PurePosixPath(file).relative_to(PACKAGE).parts[:-1][:2]) or "loose files"


def by_room() -> Counter[str]:
    """The code lines of each room as the files are."""
    found: Counter[str] = Counter()
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        found[room(path.relative_to(ROOT).as_posix())] += code_lines(text_of(path), nodes_of(path))
    return found


def differences(base: str) -> Counter[str]:
    """How many lines each room has gained since this branch left another one, or lost."""
    git = lambda *command: subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    start = git("merge-base", base, "HEAD").stdout.strip()
    changed = git("diff", "--name-only", "--no-renames", start, "--", PACKAGE).stdout.split()
    made: Counter[str] = Counter()
    for file in filter(lambda name: name.endswith(".py"), changed):
        before, path = git("show", f"{start}:{file}"), ROOT / file
        made[room(file)] += code_lines(path.read_text()) if path.exists() else 0
        made[room(file)] -= code_lines(before.stdout) if before.returncode == 0 else 0
    return made


def ceilings() -> Mapping[str, int]:
    """What each room may have at most."""
    most = Counter(CEILINGS)
    for name, lines, _ in RAISED:
        most[name] += lines
    return most


def table(made: Mapping[str, int], now: Mapping[str, int]) -> str:
    """What differs, room by room, with what is left to each ceiling."""
    rows = [
        f"{name:24} {now.get(name, 0):7,} {lines:+6,} {ceilings().get(name, 0) - now.get(name, 0):6,} left"
        for name, lines in sorted(made.items())
        if lines
    ]
    total = sum(now.values())
    return "\n".join(["lines of code by room", *rows, f"{'whole':24} {total:7,} {sum(made.values()):+6,}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", default="main")
    parser.add_argument("--lower", action="store_true")
    given, now = parser.parse_args(), by_room()
    if given.lower:
        most = {name: min(ceilings().get(name, 10**6), -(-lines // ROUNDED) * ROUNDED) for name, lines in now.items()}
        rows = "".join(f'    "{name}": {lines},\n' for name, lines in sorted(most.items()))
        own = Path(__file__)
        text = re.sub(
            r"(CEILINGS: dict\[str, int\] = )\{.*?\}\n", rf"\1{{\n{rows}}}\n", own.read_text(), flags=re.DOTALL
        )
        own.write_text(re.sub(r"(RAISED: .*? = )\[.*?\n?\]\n", r"\1[]\n", text, flags=re.DOTALL))
    print(table(differences(given.base), now))


if __name__ == "__main__":
    main()

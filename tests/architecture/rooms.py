"""The rooms of each package, and which of them may see which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.architecture.imports import Import, imports_of

# Of each package: its folders and loose files. Each may see those before it only.
ROOMS: dict[str, str] = {
    "blocks": "constants block labels liveness callables marking grouping ungrouping tracing",
    "codegen": "tree nodes rust rewriting structure recorded writing python checkpoint quantized flax equinox source bundles families grouping generating python_classes modules burn printing",
    "codegen/burn": "imports helpers values body rules equations layers checks steps definitions forward printing crate source",
    "codegen/structure": "operators sequences spelling recognition modules",
    "export": "choices ports specs emit generation passes prepare flags delivery precision functions rules walk explain failures function_graph "
    "exported_model exported calibration precisions api",
    "graph": "remembering editing layout axis_groups identities facts matching masks affine fusing patterns arranging axes fusions",
    "importer": "limits names parts values arguments resolving batching ops loading calls modules tensors segments ties interface "
    "traced running explain program",
    "jaxprs": "aliases identity dim_text releases walk dims rewrite alike body_inputs taps vmap_axes meshes",
    "mox": "primitives programs querying looking serialize substitution sharding expressions make edits writing_back",
    "sizes": "sums integers conditions",
    "stablehlo": "tree reading registry host recognised scopes loops evaluate ops program",
    "verify": "comparing precision decoding sampling size_choice given conditioning report running per_block importing verifying",
}

# Families: as many files as there are things of the kind, one a file.
FAMILIES = (
    "codegen/burn/rules",
    "export/passes",
    "export/rules",
    "graph/fusions",
    "importer/ops",
    "mox/edits",
    "stablehlo/ops",
)
MOST_FILES = 12


def crowded(package: Path) -> list[str]:
    """The folders that have more files side by side than anybody holds in mind."""
    return [
        f"{folder.relative_to(package).as_posix()}: {len(files)} files"
        for folder in sorted({path.parent for path in package.rglob("*.py")})
        if folder.relative_to(package).as_posix() not in FAMILIES
        and len(files := [path for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")])
        > MOST_FILES
    ]


def inside(package: Path, part: str) -> Iterator[tuple[Import, str, str]]:
    """The imports of a part's rooms by one another: with the room that imports, and the one that is imported."""
    known = ROOMS[part].split()
    prefix = f"jaxport.{part.replace('/', '.')}."
    for found in imports_of(package):
        if not found.file.startswith(f"{part}/") or not found.module.startswith(prefix):
            continue
        here = found.file.removeprefix(f"{part}/").removesuffix(".py").split("/")[0]
        there = found.module.removeprefix(prefix).split(".")[0]
        if here != there and here in known and there in known:
            yield found, here, there


def against_the_order(package: Path) -> list[str]:
    """The imports of a later room, also those inside functions and for annotations."""
    return [
        str(found)
        for part, rooms in ROOMS.items()
        for found, here, there in inside(package, part)
        if rooms.split().index(there) > rooms.split().index(here)
    ]

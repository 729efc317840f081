from __future__ import annotations

from pathlib import Path

import pytest

from scripts import architecture_picture
from tests.architecture.imports import MOST_DOORS, UPWARD, circles, doors, imports_of, part_of, wrong_directions
from tests.architecture.sources import SOURCE

PACKAGE = SOURCE / "jaxport"


def test_imports_run_one_way():
    assert wrong_directions(PACKAGE, UPWARD) == []


def test_the_list_of_upward_imports_is_not_stale():
    used = {(found.file, part_of(found.module)) for found in imports_of(PACKAGE) if not found.at_import}
    assert [entry for entry in UPWARD if entry not in used] == []


def test_no_files_import_one_another():
    assert circles(PACKAGE) == []


def test_a_circle_is_seen(tmp_path: Path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    (tmp_path / "room" / "first.py").write_text("from jaxport.room import second")
    (tmp_path / "room" / "second.py").write_text("def f():\n    from jaxport.room.third import x")
    (tmp_path / "room" / "third.py").write_text("if TYPE_CHECKING:\n    import jaxport.room.first")
    assert circles(tmp_path) == [["room/first.py", "room/second.py", "room/third.py"]]


def test_rooms_show_no_more_names_than_before():
    found = doors(PACKAGE)
    assert len(found) <= MOST_DOORS, "put what is new beside its reader, or in the room whose subject it is"


def test_names_that_another_room_reads_are_counted(tmp_path: Path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "first.py").write_text("from jaxport.room.second import inner\nfrom jaxport.other import b")
    (tmp_path / "room" / "second.py").write_text("def f():\n    from jaxport import other\n    other.a = other.b")
    (tmp_path / "other.py").write_text("import jaxport.room.first\nfrom jax.numpy import sin")
    assert doors(tmp_path) == ["other.py: a", "other.py: b"]


def test_the_picture_is_that_of_the_imports():
    assert architecture_picture.TARGET.read_text() == architecture_picture.picture(), (
        "run `python -m scripts.architecture_picture`"
    )


def test_the_imports_of_the_package_are_seen():
    assert "errors" in {part_of(found.module) for found in imports_of(PACKAGE)}


@pytest.mark.parametrize(
    ("file", "source", "is_wrong"),
    [
        ("export/walk/walker.py", "from jaxport.importer.ops import gemm", True),
        ("export/walk/walker.py", "import jaxport.importer", True),
        ("export/walk/walker.py", "from jaxport import importer", True),
        ("importer/loading/load.py", "from jaxport.export import api", True),
        ("blocks/trace.py", "from jaxport.export.walk.walker import walk", True),
        ("errors.py", "from jaxport.blocks import Block", True),
        ("mox/edit.py", "def f():\n    from jaxport.export import api", True),
        ("mox/edit.py", "if TYPE_CHECKING:\n    from jaxport.export import api", True),
        ("export/walk/walker.py", "from jaxport.blocks import Block", False),
        ("export/walk/walker.py", "from jaxport.jaxprs.dims import dim", False),
        ("export/api.py", "def verify():\n    from jaxport.verify import verify", False),
        ("export/api.py", "from jaxport.verify import verify", True),
        ("export/api.py", "class A:\n    from jaxport.verify import verify", True),
        ("verify/run.py", "from jaxport.export import api", False),
        ("cli/app.py", "from jaxport.importer import load", False),
    ],
)
def test_the_direction_test_sees_what_it_must(tmp_path: Path, file: str, source: str, is_wrong: bool):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert bool(wrong_directions(tmp_path, {("export/api.py", "verify"): "a convenience"})) is is_wrong


@pytest.mark.parametrize("framework", ["flax", "equinox"])
def test_a_framework_is_known_to_its_own_files_only(framework: str):
    knowing = {found.file for found in imports_of(PACKAGE) if found.module.split(".")[0] == framework}
    assert {file for file in knowing if part_of(file) != "frameworks"} == set()


@pytest.mark.parametrize("library", ["onnxruntime", "lxml", "typer", "rich", "safetensors"])
def test_an_optional_or_slow_library_is_imported_late(library: str):
    """Only inside functions, or in a part that is itself loaded late."""
    late_parts = {"cli", "testing", "verify"}
    early = [found for found in imports_of(PACKAGE) if found.at_import and found.module.split(".")[0] == library]
    assert [str(found) for found in early if part_of(found.file) not in late_parts] == []

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.rooms import ROOMS, against_the_order, crowded
from tests.architecture.sources import SOURCE

PACKAGE = SOURCE / "jaxport"


def test_no_folder_is_crowded():
    assert crowded(PACKAGE) == []


def test_rooms_see_those_before_them():
    assert against_the_order(PACKAGE) == []


@pytest.mark.parametrize("part", ROOMS)
def test_each_room_is_listed(part: str):
    folder = PACKAGE / part
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")} | {path.stem for path in folder.glob("*.py")}
    assert rooms - {"__init__", "__main__"} == set(ROOMS[part].split())


@pytest.mark.parametrize(
    ("file", "source", "is_wrong"),
    [
        ("export/emit/value.py", "from jaxport.export.walk.walker import Walker", True),
        ("mox/programs/program.py", "def f():\n    from jaxport.mox.looking.show import text", True),
        ("export/emit/value.py", "def f():\n    from jaxport.export.api import to_onnx", True),
        ("export/walk/walker.py", "from jaxport.export.emit.value import Value", False),
        ("export/api.py", "from jaxport.export.walk.walker import Walker", False),
    ],
)
def test_the_order_test_sees_what_it_must(tmp_path: Path, file: str, source: str, is_wrong: bool):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert bool(against_the_order(tmp_path)) is is_wrong


def test_the_crowd_test_sees_a_crowd(tmp_path: Path):
    (tmp_path / "room").mkdir()
    for number in range(13):
        (tmp_path / "room" / f"file_{number}.py").touch()
    assert crowded(tmp_path) == ["room: 13 files"]


@pytest.mark.parametrize("part", ROOMS)
def test_the_page_says_what_each_room_is_for(part: str):
    page = (SOURCE.parent / "docs" / "architecture.md").read_text()
    for init in sorted((PACKAGE / part).glob("*/__init__.py")):
        purpose = str(ast.get_docstring(ast.parse(init.read_text()))).partition("\n\n")[0].replace("\n", " ")
        assert f"| `{part}/{init.parent.name}` | {purpose} |" in page


def test_the_page_says_which_tests_each_folder_has():
    page = (SOURCE.parent / "docs" / "development.md").read_text().partition("| folder | tests |")[2]
    listed = re.findall(r"`tests/([a-z_/]+)`", page)
    folders = {path.parent.name for path in (SOURCE.parent / "tests").glob("*/*.py")}
    assert sorted(folders - set(listed)) == []
    assert [folder for folder in listed if not (SOURCE.parent / "tests" / folder).is_dir()] == []
    assert len(set(listed)) == len(listed)

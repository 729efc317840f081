"""The distributions that users install: they are built, installed into a clean environment, and used from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import jaxport
from scripts import release_check

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*command: str | Path, folder: Path, timeout: int = 300) -> str:
    """What a command prints that ends well, in `folder`, without the variables that lead to this repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"JAX_PLATFORMS": "cpu", "COLUMNS": "80", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution; `build` makes the wheel beside it from it."""
    folder = tmp_path_factory.mktemp("distributions")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (built,) = folder.glob("jaxport-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    (built,) = sdist.parent.glob("jaxport-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, which takes the dependencies from the environment at hand."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, folder=environment)
    programs = environment / "bin"
    python = programs / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet", wheel, folder=environment)
    # Folders that a `.pth` file names are searched, but their own `.pth` files, such as those of editable packages, are not read.
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    return programs


def files_of_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tracked(*folders: str) -> set[str]:
    """The files of this repository below `folders`, but for caches."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_of_the_sdist_is_that_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT, folder=tmp_path)
    (direct,) = tmp_path.glob("jaxport-*.whl")
    assert files_of_wheel(wheel) == files_of_wheel(direct)


def test_the_wheel_has_the_package_its_command_and_its_license(wheel: Path) -> None:
    files = files_of_wheel(wheel)
    package = {f"src/{name}" for name in files if name.startswith("jaxport/")}
    assert package == tracked("src/jaxport")
    assert "jaxport/py.typed" in files
    metadata = {name.rpartition("/")[2]: data.decode() for name, data in files.items() if ".dist-info/" in name}
    assert "jaxport = jaxport.cli:main" in metadata["entry_points.txt"]
    assert {"METADATA", "LICENSE"} <= set(metadata)


def test_the_sdist_has_what_its_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("src", "tests", "examples", "docs", "scripts", "benchmarks")
    missing = {name for name in tracked(*folders) - names if "node_modules" not in name}
    assert not missing
    assert {"LICENSE", "CHANGELOG.md", "Makefile", "conftest.py", "pyproject.toml"} <= names


def test_the_metadata_are_those_of_a_release(wheel: Path, sdist: Path) -> None:
    assert list(release_check.problems_of(wheel, sdist)) == []
    metadata = release_check.metadata_of(wheel)
    repository = PROJECT["urls"]["Repository"]
    assert f"Repository, {repository}" in metadata["Project-URL"]
    assert f"]({repository}/blob/main/docs/mox.md)" in metadata["Description"]
    assert metadata["Version"] == jaxport.__version__


def test_the_address_of_the_repository_has_one_place() -> None:
    repository = PROJECT["urls"]["Repository"]
    assert [url for url in PROJECT["urls"].values() if not url.startswith(repository)] == []
    pages = [ROOT / "README.md", ROOT / "CITATION.cff", ROOT / "mkdocs.yml", *(ROOT / "docs").glob("*.md")]
    assert [page.name for page in pages if repository in page.read_text(encoding="utf-8")] == []


def test_the_citation_is_of_this_release() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {jaxport.__version__}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation


@pytest.mark.parametrize("folder", ["missing", "present"])
def test_what_a_distribution_lacks_is_found(folder: str, tmp_path: Path) -> None:
    """The check of the check: a wheel with a relative link and without addresses, and an empty source distribution."""
    wheel, sdist = tmp_path / "jaxport-1-py3-none-any.whl", tmp_path / "jaxport-1.tar.gz"
    link = "docs/mox.md" if folder == "missing" else "https://example.org/docs/mox.md"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("jaxport-1.dist-info/METADATA", f"Name: jaxport\nVersion: 1\n\n[Mox]({link})\n")
    with tarfile.open(sdist, "w:gz"):
        pass
    problems = list(release_check.problems_of(wheel, sdist))
    assert any("relative link docs/mox.md" in problem for problem in problems) == (folder == "missing")
    assert "jaxport-1-py3-none-any.whl has no Project-URL" in problems
    assert "jaxport-1.tar.gz lacks LICENSE" in problems


def test_the_installed_package_exports_verifies_and_imports(installed: Path, tmp_path: Path) -> None:
    program = """
import jax.numpy as jnp, jaxport, numpy as np
exported = jaxport.to_onnx(jnp.tanh, [("B", 3)])
assert exported.verify().ok
exported.save("tanh.onnx")
assert jaxport.from_onnx("tanh.onnx")(np.zeros((2, 3), np.float32)).shape == (2, 3)
print(jaxport.__file__)
"""
    place = run(installed / "python", "-c", program, folder=tmp_path).strip()
    assert Path(place).is_relative_to(installed.parent)
    assert (tmp_path / "tanh.onnx").is_file()


def test_the_installed_command_exports_and_verifies(installed: Path, tmp_path: Path) -> None:
    assert "Usage: jaxport" in run(installed / "jaxport", "--help", folder=tmp_path)
    (tmp_path / "model.py").write_text("import jax\n\ndef scaled(x):\n    return 2 * jax.nn.relu(x)\n")
    run(installed / "jaxport", "export", "model:scaled", "-i", "B,4", "-o", "scaled.onnx", folder=tmp_path)
    run(installed / "jaxport", "verify", "scaled.onnx", "model:scaled", "-i", "B,4", folder=tmp_path)

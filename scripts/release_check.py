"""`make release-check`: build the distributions, install each into empty environments, and run the README from there.

For each Python of `PYTHONS` that this machine has: the wheel with all extras, and the source distribution, are
installed by pip, with their dependencies from the index, and the Python blocks of the README run in a folder of their
own. In the end the steps that are left to a person are printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.13")
PLACEHOLDER = "https://example.org/"
STEPS = """What is left to you:
  1. pyproject.toml: the address of the repository{address}
  2. CHANGELOG.md: give the section its version and date; CITATION.cff and src/jaxport/__init__.py: the version
  3. tests/architecture/released: cp tests/architecture/interface.txt tests/architecture/released/{minor}.txt
  4. git tag v{version}, and upload {folder}/*"""


def main() -> None:
    """Run the check; the process ends with status 1 if a step fails."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    say("building")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    problems = [*problems_of(wheel, sdist)]
    if problems:
        raise SystemExit("\n".join(problems))
    checked = []
    for version in PYTHONS:
        python = python_of(version)
        if python is None:
            say(f"Python {version}: not on this machine, so not checked")
            continue
        for distribution in (wheel, sdist):
            say(f"Python {version}: installing {distribution.name}")
            check(python, distribution)
            checked.append(f"{version} {distribution.name}")
    say(f"checked: {', '.join(checked) or 'nothing: no Python was found'}")
    release = str(metadata_of(wheel)["Version"])
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    address = ", which is still a placeholder" if repository.startswith(PLACEHOLDER) else f" ({repository})"
    minor = ".".join(release.split(".")[:2])
    say(STEPS.format(address=address, minor=minor, version=release, folder=folder.name))
    if not checked:
        raise SystemExit(1)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder, without the variables that lead to this repository; return what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def python_of(version: str) -> Path | None:
    """Return a Python of a version, on PATH or where pyenv puts them."""
    found = shutil.which(f"python{version}")
    candidates = [
        *([Path(found)] if found else []),
        *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for candidate in candidates:
        asked = subprocess.run([candidate, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"],
                               check=False, capture_output=True, text=True)  # fmt: skip
        if asked.stdout.strip() == version:
            return candidate
    return None


def check(python: Path, distribution: Path) -> None:
    """Install a distribution into an empty environment, and run the command and the README from another folder."""
    with tempfile.TemporaryDirectory(prefix="jaxport-release-") as name:
        place = Path(name)
        run(python, "-m", "venv", place / "environment", folder=place)
        programs = place / "environment" / ("Scripts" if os.name == "nt" else "bin")
        run(
            programs / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            f"jaxport[all] @ {distribution.as_uri()}",
            folder=place,
        )
        work = place / "work"
        work.mkdir()
        run(programs / "jaxport", "--version", folder=work)
        (work / "readme.py").write_text("\n".join(python_blocks(ROOT / "README.md")), encoding="utf-8")
        run(programs / "python", "readme.py", folder=work)


def python_blocks(page: Path) -> Iterator[str]:
    """Yield the Python blocks of a page, in order."""
    yield from re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def metadata_of(wheel: Path) -> dict[str, str | list[str]]:
    """Return the metadata of a wheel: what occurs several times as a list, the long description as `Description`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        message = message_from_bytes(archive.read(name))
    several = ("Classifier", "Project-URL", "Requires-Dist")
    values: dict[str, str | list[str]] = {
        key: message.get_all(key, []) if key in several else str(message[key]) for key in message
    }
    payload = message.get_payload(decode=True)
    return {**values, "Description": payload.decode() if isinstance(payload, bytes) else ""}


def problems_of(wheel: Path, sdist: Path) -> Iterator[str]:
    """Yield what is wrong with the metadata of two distributions."""
    metadata = metadata_of(wheel)
    for key in ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Project-URL", "Description"):
        if not metadata.get(key):
            yield f"{wheel.name} has no {key}"
    if metadata.get("Description-Content-Type") != "text/markdown":
        yield f"the long description of {wheel.name} is not Markdown"
    for link in re.findall(r"\]\(([^)\s]+)\)", str(metadata["Description"])):
        if not re.match(r"https?://|#", link):
            yield f"the long description of {wheel.name} has the relative link {link}"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "LICENSE", "README.md", "SECURITY.md", ".ci/run",
                 ".pre-commit-config.yaml", ".dockerignore", "Makefile", "pyproject.toml", "hatch_build.py"):  # fmt: skip
        if name not in names:
            yield f"{sdist.name} lacks {name}"


if __name__ == "__main__":
    main()

"""What a release has made public is removed only after it was deprecated for two minor releases (`docs/stability.md`)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

import jaxport
from jaxport import deprecations
from jaxport.deprecations import DEPRECATED, Deprecation
from scripts import public_interface

RELEASED = Path(__file__).parent / "released"
"""The interface of each minor release: `0.1.txt` is what `interface.txt` was then."""
LASTS = 2
SIGNATURE = re.compile(r"(?:class )?(?P<name>[\w.]+)(?:\((?P<parameters>.*)\))?")


def minor(version: str) -> int:
    """The number of a minor release, counted through major ones."""
    major, number = version.split(".")[:2]
    return 1000 * int(major) + int(number)


def names(interface: str) -> set[str]:
    """The names of an interface, with those of arguments: `jaxport.to_onnx`, `jaxport.to_onnx(opset)`."""
    found = set()
    for line in interface.splitlines():
        match = SIGNATURE.match(line.strip())
        if match is None:
            continue
        found.add(match["name"])
        for parameter in re.split(r", (?![^(\[{]*[)\]}])", match["parameters"] or ""):
            name = re.match(r"\**(\w+)", parameter)
            if name and name[1] != "self":
                found.add(f"{match['name']}({name[1]})")
    return found


def removed_too_early(
    released: Mapping[str, str], now: str, deprecated: Mapping[str, Deprecation], version: str
) -> list[str]:
    """The names of released interfaces that are gone without having been deprecated for long enough."""
    gone = {name for text in released.values() for name in names(text)} - names(now)
    owners = {name for name in gone if name.partition("(")[0] not in gone or "(" not in name}
    return sorted(
        name for name in owners if name not in deprecated or minor(version) - minor(deprecated[name].since) < LASTS
    )


def test_nothing_released_is_removed_too_early():
    released = {path.stem: path.read_text(encoding="utf-8") for path in RELEASED.glob("*.txt")}
    now = public_interface.TARGET.read_text(encoding="utf-8")
    assert removed_too_early(released, now, DEPRECATED, jaxport.__version__) == []


OLD = "jaxport.one(x, *, fast=False)\nclass jaxport.Two(a)\n  jaxport.Two.size\n"


@pytest.mark.parametrize(
    ("now", "deprecated", "version", "early"),
    [
        (OLD, {}, "0.2.0", []),
        (OLD + "jaxport.three()\n", {}, "0.2.0", []),
        (OLD.replace(", *, fast=False", ""), {}, "0.2.0", ["jaxport.one(fast)"]),
        ("jaxport.one(x, *, fast=False)\n", {}, "0.2.0", ["jaxport.Two", "jaxport.Two.size"]),
        (
            OLD.replace("  jaxport.Two.size\n", ""),
            {"jaxport.Two.size": Deprecation("0.2", "len")},
            "0.3.0",
            ["jaxport.Two.size"],
        ),
        (OLD.replace("  jaxport.Two.size\n", ""), {"jaxport.Two.size": Deprecation("0.2", "len")}, "0.4.0", []),
        (OLD.replace("  jaxport.Two.size\n", ""), {"jaxport.Two.size": Deprecation("0.9", "len")}, "1.1.0", []),
    ],
)
def test_the_policy_is_enforced(now: str, deprecated: dict[str, Deprecation], version: str, early: list[str]):
    if version == "1.1.0":  # a major release does not shorten it
        assert removed_too_early({"0.1": OLD}, now, deprecated, "0.10.0") == ["jaxport.Two.size"]
    assert removed_too_early({"0.1": OLD}, now, deprecated, version) == early


def test_a_deprecated_name_warns_and_says_what_to_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(deprecations.DEPRECATED, "jaxport.Calibration", Deprecation("0.2", "`jaxport.Ranges`"))
    monkeypatch.delitem(vars(jaxport), "Calibration", raising=False)
    with pytest.warns(
        DeprecationWarning, match=r"`jaxport.Calibration` is deprecated since jaxport 0.2: use `jaxport.Ranges`"
    ):
        _ = jaxport.Calibration
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = jaxport.Limits


def test_what_is_deprecated_says_since_when():
    assert [
        name for name, each in DEPRECATED.items() if not re.fullmatch(r"\d+\.\d+", each.since) or not each.instead
    ] == []

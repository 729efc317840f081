from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jaxport.cli.targets import load_target
from jaxport.errors import InvalidArgument

SOURCE = """
import functools

def double(x):
    return x + x

def factory():
    return double

def scaled(scale, *, shift=0):
    return lambda x: x * scale + shift

def with_default(x=1):
    return x

class Model:
    def __init__(self, scale=2):
        self.scale = scale
    def __call__(self, x):
        return x * self.scale

class Namespace:
    model = Model(5)
    text = "no model"

def sized(depth=1, *, width=2):
    return Model(depth * width)

def failing_default(x="text"):
    return x * 2.0

partial = functools.partial(scaled, 3)
aborted = 1

def empty():
    return None
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module in the current directory, which a fresh `sys.path` does not hold."""
    (tmp_path / "user_models.py").write_text(SOURCE)
    (tmp_path / "broken_models.py").write_text("import no_such_package_anywhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("user_models", "broken_models"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("attribute", "result"),
    [
        ("double", 14),  # a function
        ("with_default", 7),  # it takes an argument, though it need not: no factory
        ("sized", 14),  # it returns a model if it is called with its defaults: a factory
        ("sized(2)", 28),
        ("failing_default", 14),
        ("factory", 14),  # a function without parameters is called
        ("factory()", 14),
        ("Model", 14),  # a class is called
        ("Model(3)", 21),
        ("Model(scale=4)", 28),
        ("Namespace.model", 35),  # an object
        ("scaled(10, shift=1)", 71),
        ("scaled(-1)", -7),
    ],
)
def test_a_target_is_loaded(attribute: str, result: int):
    assert load_target(f"user_models:{attribute}")(7) == result


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("user_models", '"user_models" is not a target'),
        (":double", '":double" is not a target'),
        ("user_models:", '"user_models:" is not a target'),
        ("user_models:dubble", "`user_models` has no attribute `dubble`"),
        ("user_models:dubble", "why:     it has `double`"),
        ("user_models:Namespace.modell", "`user_models.Namespace` has no attribute `modell`"),
        ("user_models:aborted", "`user_models:aborted` is a `int`, which cannot be called"),
        ("user_models:Namespace.text", "is a `str`, which cannot be called"),
        ("user_models:empty", "is a `NoneType`, which cannot be called"),
        ("user_models:double +", "`double +` is not the name of an attribute"),
        ("user_models:double[0]", "`double[0]` is not the name of an attribute"),
        ("user_models:double + 1", "`double + 1` is not the name of an attribute"),
        ("user_models:scaled(double)", "`scaled(double)` passes arguments that are not literals"),
        ("user_models:scaled(**{})", "passes arguments that are not literals"),
        ("user_models:scaled(*[1])", "passes arguments that are not literals"),
        ("no_such_module:model", "`no_such_module` cannot be imported"),
        ("no_such_module:model", "No module named 'no_such_module'"),
        ("broken_models:model", "No module named 'no_such_package_anywhere'"),
    ],
)
def test_a_wrong_target_is_refused(target: str, text: str):
    with pytest.raises(InvalidArgument) as refusal:
        load_target(target)
    assert text in str(refusal.value)


def test_the_current_directory_stays_first_and_once():
    load_target("user_models:double")
    load_target("user_models:double")
    assert sys.path.count(str(Path.cwd())) == 1

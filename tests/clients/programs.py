"""What the tests of third-party packages share: packages that may be missing, and the one check for all programs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jaxport
from jaxport.testing import f32, i32

__all__ = ["array", "f32", "i32", "package", "parametrized", "submodule", "verified"]


def package(name: str) -> Any:
    """A package, imported; the file that asks for one that is missing is skipped. Its own warnings are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def submodule(name: str) -> Any:
    """A module of a package that is there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def parametrized(programs: dict[str, Callable[[], tuple]]) -> Any:
    """A test for each of some programs: what makes it, by name. It gives a function and its inputs."""
    return pytest.mark.parametrize("make", programs.values(), ids=programs.keys())


def verified(fn: Callable[..., Any], inputs: Sequence[Any], tolerance: float | None = None) -> None:
    """Export a program as its user would, and compare it with JAX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = jaxport.to_onnx(fn, list(inputs))
        exported.verify(rtol=tolerance, atol=tolerance)


def array(*shape: int) -> np.ndarray:
    """Some numbers."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)

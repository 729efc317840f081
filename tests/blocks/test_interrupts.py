"""A KeyboardInterrupt at any line of opening or closing a window leaves the user's classes as they were."""

from __future__ import annotations

import gc
import sys
import threading

import equinox as eqx
import jax
import pytest
from flax import linen, nnx

from jaxport.blocks.marking.window import activation, current_recorder, patched


class Model(nnx.Module):
    def __call__(self, x):
        return x


CLASSES = [Model, nnx.Linear, nnx.Variable, nnx.RngStream, eqx.nn.Linear, linen.Dense]


def attributes():
    of_classes = {(cls, name): value for cls in CLASSES for name, value in vars(cls).items()}
    return of_classes | {(jax.nn, name): value for name, value in vars(jax.nn).items()}


PARTS = ("activation", "enter", "leave", "_forget", "_restore", "_take_turn", "_end_turn")


class Interrupter:
    """Raises KeyboardInterrupt at one of the lines of `activation` and of `Patches`, counted as they run."""

    def __init__(self, at: int):
        self.at, self.lines = at, []

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename != activation.__wrapped__.__code__.co_filename:
            return None
        # What restores after an interrupt runs undisturbed: there is one.
        if event == "line" and frame.f_code.co_name in PARTS:
            self.lines.append(frame.f_lineno)
            if len(self.lines) == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def open_and_close(at: int) -> list[int]:
    """Opens and closes a window with an interrupt at the line with this number; returns the lines that ran."""
    interrupter = Interrupter(at)
    sys.settrace(interrupter)
    try:
        with activation(["jax.nn.gelu"]):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return interrupter.lines


def points() -> list[int]:
    """When each line runs for the first and the second time: the patches after the first are all alike."""
    times: dict[int, list[int]] = {}
    for at, line in enumerate(open_and_close(-1), 1):
        times.setdefault(line, []).append(at)
    return sorted(at for each in times.values() for at in each[:2])


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_leaves_the_classes_as_they_were(step):
    assert len(points()) > 50
    before = attributes()
    for at in points()[::step]:
        open_and_close(at)
        if patched:
            gc.collect()  # an exception may be part of a cycle
        assert not patched, f"interrupted at {at}"
        assert current_recorder() is None
        after = attributes()
        assert after.keys() == before.keys()
        assert all(after[key] is before[key] for key in before)


def test_windows_of_other_threads_open_after_an_interrupt():
    opened = []

    def other():
        with activation():
            opened.append(current_recorder() is not None)

    for at in points()[1::12]:
        open_and_close(at)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), f"interrupted at {at}"
    assert all(opened)
    assert not patched

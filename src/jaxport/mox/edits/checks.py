"""Checks of what edits are given, before any layer is looked at."""

from __future__ import annotations

import math
import numbers
from typing import Any

from jaxport.blocks.callables.values import is_array, is_tracer
from jaxport.errors import InvalidArgument


def check_whole(value: object, name: str, where: str, least: int = 1) -> None:
    """Refuse what is no whole number, or is less than `least`.

    >>> check_whole("2", "rank", "`lora`")
    Traceback (most recent call last):
    jaxport.InvalidArgument: rank='2' is not a valid rank
      where:   `lora`
      instead: give a whole number, 1 or greater
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InvalidArgument(
            f"{name}={value!r} is not a valid {name}", where=where, instead=f"give a whole number, {least} or greater"
        )


def check_number(value: Any, name: str, where: str, positive: bool = False) -> None:
    """Refuse what is no finite number; with `positive`, also zero and negative ones. Traced scalars are numbers."""
    if is_tracer(value) and not value.shape:
        return
    number = value.item() if is_array(value) and value.size == 1 else value
    is_number = isinstance(number, numbers.Real) and not isinstance(number, bool) and math.isfinite(number)
    if not is_number or (positive and number <= 0):
        raise InvalidArgument(
            f"{name}={value!r} is not a valid {name}",
            where=where,
            instead="give a positive, finite number" if positive else "give a finite number",
        )


def check_predicate(value: object, name: str, where: str) -> None:
    """Refuse what is neither None nor a function."""
    if value is not None and not callable(value):
        raise InvalidArgument(
            f"{name}={value!r} is not a function",
            where=where,
            why="it is called with the path of each weight of a layer, and says whether the edit applies to it",
            instead=f'give `lambda path: path.endswith("kernel")`, or leave `{name}` out',
        )

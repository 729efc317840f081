"""Packages that build on JAX stand in an environment of their own: without it none of this is looked at."""

from __future__ import annotations

import os

# The checks of Equinox call Python from inside of a program; read when Equinox is imported.
os.environ.setdefault("EQX_ON_ERROR", "off")

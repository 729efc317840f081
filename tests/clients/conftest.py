"""Packages that build on JAX stand in an environment of their own: without it none of this is looked at."""

from __future__ import annotations

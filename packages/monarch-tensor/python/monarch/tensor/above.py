"""Functions of modules that are built on the one that calls them: methods of tensors and meshes, and what workers know of functions.

They are found with their first call, by name, so that no module imports one above it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def above(module: str, name: str) -> Any:
    """`name` of `monarch.tensor.<module>`."""
    return getattr(import_module(f"monarch.tensor.{module}"), name)

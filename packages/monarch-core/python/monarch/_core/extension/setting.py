"""The settings, for other wheels to read."""

from __future__ import annotations

from monarch._core.config import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def setting(key: str) -> Any:
    """The effective value of a setting; `KeyError` for an unknown name."""
    return config.value(key)


def seconds(key: str) -> float | None:
    """The effective value of a setting that is a duration; None if it is not set."""
    return config.seconds(key)

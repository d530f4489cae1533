"""Settings, as other wheels read them."""

from __future__ import annotations

from monarch._core.config import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def setting(key: str) -> Any:
    """The effective value of a setting; `KeyError` if there is none of that name."""
    return config.value(key)


def seconds(key: str) -> float | None:
    """The effective value of a setting that is a duration; None where it is not set."""
    return config.seconds(key)

"""Methods of meshes that other wheels implement: entry points of the group `monarch.mesh`, each loaded with its first call."""

from __future__ import annotations

from monarch._core.config.entry_points import BrokenEntry, load_entry
from monarch._core.config.wheel import broken_wheel, missing_wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GROUP = "monarch.mesh"
# The wheel of this project that implements most of these methods.
WHEEL = "monarch-tensor"


def implementation(method: str, what: str, wheel: str = WHEEL) -> Callable[..., Any]:
    """The function that an entry point has for this method; `NotImplementedError` names the wheel that is missing or cannot be loaded.

    `wheel` is the wheel of this project that implements the method.
    """
    found = load_entry(GROUP, method)
    if found is None:
        raise missing_wheel(what, wheel)
    if isinstance(found, BrokenEntry):
        raise broken_wheel(what, found.describe()) from found.error
    if not callable(found.value):
        raise broken_wheel(what, f"{found.wheel}: entry point {method!r} of {GROUP} ({found.target}) is {found.value!r}, not a function")
    function: Callable[..., Any] = found.value
    return function

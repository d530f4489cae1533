"""A bulk transport for a test: an installed wheel with an entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import installed_wheel

# Bytes: every part that is not in its frame is this large.
LEAST = 64 << 10


def install(folder: Path, least: int | None) -> Path:
    """A folder for the module path with such a wheel; `least` as of a `BulkTransport`."""
    module = f"moving_from_{least}"
    # The module itself has the interface; of several entry points, the first by name counts.
    groups = {"monarch.bulk": {"0-test": module}}
    return installed_wheel.install(folder, "moving", groups, {module: f"def least():\n    return {least}\n"})


def use(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Adds the folder to the module path of this process, and of processes started from now on."""
    from monarch._core.process.current import current_process

    installed_wheel.use(folder, patch)
    current_process().native.set_offer_size(-1)

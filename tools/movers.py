"""Who moves large messages between hosts, as a test wants it: an installed wheel with an entry point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Every part that is not in its frame.
LEAST = 64 << 10


def install(folder: Path, least: int | None) -> Path:
    """A folder for the module path with such a wheel; `least` as of a `Mover`."""
    module = f"moving_from_{least}"
    (folder / f"{module}.py").write_text(f"def least():\n    return {least}\n", encoding="utf-8")
    info = folder / "moving-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moving\nVersion: 1.0\n", encoding="utf-8")
    # A module has what a mover needs; the first by name counts.
    (info / "entry_points.txt").write_text(f"[monarch.bulk]\n0-test = {module}\n", encoding="utf-8")
    return folder


def use(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """This process, and those started from now on, see what is installed there."""
    from monarch._core.process.current import current_process

    patch.syspath_prepend(folder)  # pyright: ignore[reportUnknownMemberType]
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    current_process().native.lend_from(-1)

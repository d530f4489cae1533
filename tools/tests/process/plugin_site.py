"""The wheel of a plug-in, as an installation has it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path


def unpack_wheel(plugin: Path, folder: Path) -> Path:
    """Builds the wheel of the plug-in into the folder, and unpacks it there; the folder."""
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(argv, cwd=plugin, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    return folder

"""The sdist of each package, and wheels that are built from the sdists alone.

The sdist of monarch-telemetry has the static files of the dashboard, so that its wheel is built without node. The sdist of monarch-core has
the Rust workspace with its lock file.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from tools import build_wheels


def build(packages: list[Path], folder: Path) -> list[Path]:
    """Builds the sdists of these packages into a folder; RuntimeError names the package whose build fails."""
    before = set(folder.glob("*.tar.gz"))
    for package in packages:
        if build_wheels.is_native(package):
            argv = [sys.executable, "-m", "maturin", "sdist", "--out", str(folder)]
        else:
            argv = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
        done = subprocess.run(argv, cwd=package, env=build_wheels.environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{package.name}: {' '.join(argv)} failed with exit code {done.returncode}\n{done.stderr}")
    return sorted(set(folder.glob("*.tar.gz")) - before)


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpacks an sdist below a folder; returns the folder of the package."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def wheels(sdists: list[Path], folder: Path, scratch: Path, native: bool) -> list[Path]:
    """Builds the wheels of these sdists into a folder, the native one if `native`: that takes minutes."""
    for sdist in sdists:
        package = unpacked(sdist, scratch)
        if native or not build_wheels.is_native(package):
            build_wheels.build_one(package, folder)
    return sorted(folder.glob("monarch_*.whl"))


def wheel_of(sdist: Path, folder: Path) -> Path | None:
    """The wheel in a folder of the same distribution and version."""
    return next(iter(folder.glob(f"{sdist.name.removesuffix('.tar.gz')}-*.whl")), None)

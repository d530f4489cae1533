"""Checks of the files of a release by the tools of the Python project: auditwheel, abi3audit, twine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tools.build_wheels import GLIBC
from tools.side_venv import made

# The tag that a wheel fits by the symbols and libraries that it needs.
_FITS = re.compile(r'consistent with the following platform tag:\s+"(manylinux_(\d+)_(\d+))_')


def problems(files: list[Path]) -> list[str]:
    """What these tools find wrong with the wheels and sdists."""
    python = made("release")
    found: list[str] = []
    for wheel in (path for path in files if path.name.startswith("monarch_core-") and path.suffix == ".whl"):
        shown = _run(python, "auditwheel", "show", str(wheel))
        tag = _FITS.search(" ".join(shown.stdout.split()))
        if tag is None or (int(tag[2]), int(tag[3])) > _version(GLIBC):
            found.append(f"{wheel.name}: auditwheel: {shown.stdout.strip() or shown.stderr.strip()}, expected {GLIBC}")
        audited = _run(python, "abi3audit", "--strict", "--assume-minimum-abi3", "3.11", str(wheel))
        if audited.returncode:
            found.append(f"{wheel.name}: abi3audit: {audited.stdout.strip()}{audited.stderr.strip()}")
    checked = _run(python, "twine", "check", "--strict", *map(str, files))
    if checked.returncode:
        found.append(f"twine check --strict: {checked.stdout.strip()}{checked.stderr.strip()}")
    return found


def _version(tag: str) -> tuple[int, int]:
    _, major, minor = tag.split("_")
    return int(major), int(minor)


def _run(python: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(python), "-m", module, *words], capture_output=True, text=True, check=False)

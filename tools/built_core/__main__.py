"""Brings the native module of monarch-core into the checkout without Rust: the newest wheel in dist/ has it.

    python -m tools.built_core

Nothing is done if the checkout has one, which is the one that was built last.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path, PurePosixPath

from tools.project import CORE, DIST

MODULE = "monarch/_core/_native.abi3.so"


def made(sources: Path = CORE / "python", wheels: Path = DIST) -> bool:
    """Whether the sources have a native module now."""
    place = sources / MODULE
    if place.is_file():
        return True
    found = sorted(wheels.glob("monarch_core-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not found:
        return False
    with zipfile.ZipFile(found[-1]) as wheel:
        content = wheel.read(MODULE)
    # An interrupted copy would be taken for the module.
    part = place.with_name(f"{place.name}.part")
    part.write_bytes(content)
    part.chmod(0o755)
    part.rename(place)
    return True


def main() -> int:
    if made():
        return 0
    print(f"built_core: no {PurePosixPath(MODULE).name} in the checkout, and no wheel of monarch-core in {DIST.name}/", file=sys.stderr)
    print("hint: build it once with `hatch run build`, or put a wheel of monarch-core of the same version there", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

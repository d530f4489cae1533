"""Builds the wheel of every package into dist/, after the older ones there are removed. Wheels of other projects stay there.

Maturin itself builds the native one and gives it the lowest manylinux tag that its symbols allow; pip builds the others by their build
backends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.project import DIST, PACKAGES


def main() -> int:
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("monarch_*.whl"):
        old.unlink()
    try:
        build(DIST)
    except RuntimeError as error:
        print(error)
        return 1
    for wheel in sorted(DIST.glob("monarch_*.whl")):
        print(wheel.name)
    return 0


def build(folder: Path) -> None:
    """Builds the wheels into this folder; RuntimeError names the package whose build fails, and the reason."""
    # The interpreter's own programs come first: another Python on PATH would make cargo compile the native module again.
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}
    for project in sorted(PACKAGES.glob("*/pyproject.toml")):
        backend = tomllib.loads(project.read_text(encoding="utf-8"))["build-system"]["build-backend"]
        if backend == "maturin":
            argv = ["maturin", "build", "--release", "--locked", "--quiet", "--out", str(folder)]
        else:
            argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), "."]
        done = subprocess.run(argv, cwd=project.parent, env=env, check=False)
        if done.returncode:
            raise RuntimeError(f"{project.parent.name}: {' '.join(argv)} failed with exit code {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())

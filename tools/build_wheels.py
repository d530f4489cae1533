"""Builds the wheel of every package into dist/, which is emptied first.

The native one through maturin itself, which gives it the lowest manylinux tag that its symbols allow; the others through their
build backend, by pip.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib

from tools.project import DIST, PACKAGES


def main() -> int:
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("*.whl"):
        old.unlink()
    for project in sorted(PACKAGES.glob("*/pyproject.toml")):
        backend = tomllib.loads(project.read_text(encoding="utf-8"))["build-system"]["build-backend"]
        if backend == "maturin":
            argv = ["maturin", "build", "--release", "--locked", "--quiet", "--out", str(DIST)]
        else:
            argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(DIST), "."]
        done = subprocess.run(argv, cwd=project.parent, check=False)
        if done.returncode:
            print(f"{project.parent.name}: {' '.join(argv)} failed with exit code {done.returncode}")
            return 1
    for wheel in sorted(DIST.glob("*.whl")):
        print(wheel.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

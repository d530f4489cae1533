"""Builds the wheel of every package into dist/, after the older ones there are removed. Wheels of other projects stay there.

Maturin builds the native one for manylinux_2_28: zig links it against the symbols of glibc 2.28, whatever this machine has, and maturin
refuses a library that needs more. pip builds the others by their build backends. All files have the time of the commit, so that two
builds of one commit give the same bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tools import build_dashboard
from tools.project import DIST, PACKAGES, commit_time
from tools.side_venv import made, site_packages

# The oldest C library that the native wheel runs on: Debian 10, RHEL 8, Ubuntu 18.10 have it.
GLIBC = "manylinux_2_28"


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
    if not build_dashboard.is_current():
        # A wheel without the files of the dashboard would serve a page with this command.
        try:
            build_dashboard.run_task("build")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"python -m tools.build_dashboard: {error}") from None
    for project in sorted(PACKAGES.glob("*/pyproject.toml")):
        build_one(project.parent, folder)


def build_one(project: Path, folder: Path) -> None:
    """Builds the wheel of the package in the folder `project`; RuntimeError for a build that fails."""
    env = environment()
    if is_native(project):
        python = made("zig")
        # Maturin looks for zig beside the first Python of PATH, which is another one.
        env["CARGO_ZIGBUILD_ZIG_PATH"] = str(site_packages(python) / "ziglang" / "zig")
        # Messages of panics have the paths of sources: those of other crates are in the home of cargo, wherever that is.
        home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
        env["CARGO_ENCODED_RUSTFLAGS"] = f"--remap-path-prefix={home}=/cargo"
        argv = [str(python), "-m", "maturin", "build", "--zig", "--compatibility", GLIBC]
        argv += ["--release", "--locked", "--quiet", "--out", str(folder)]
    else:
        argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), "."]
    done = subprocess.run(argv, cwd=project, env=env, check=False)
    if done.returncode:
        raise RuntimeError(f"{project.name}: {' '.join(argv)} failed with exit code {done.returncode}")


def is_native(project: Path) -> bool:
    """Whether maturin builds the package."""
    return tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["build-backend"] == "maturin"


def environment() -> dict[str, str]:
    """The environment of builds: the same sources give the same bytes."""
    env = dict(os.environ)
    # The interpreter's own programs come first: another Python on PATH would make cargo compile the native module again.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env.setdefault("SOURCE_DATE_EPOCH", str(commit_time()))
    return env


if __name__ == "__main__":
    sys.exit(main())

"""The sdist of the native package against the build that has made its wheel.

A build from the sdist takes minutes. The compiler has listed the files that it has read: the sdist is complete if it has each of them with
the same bytes, and if cargo accepts its manifests with its lock file.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.project import CORE, RUST

_LISTS = "target/*/release/lib_native.d"


def problems(package: Path) -> list[str]:
    """What an unpacked sdist of monarch-core lacks."""
    lists = sorted(RUST.glob(_LISTS), key=lambda path: path.stat().st_mtime)
    if not lists:
        return [f"{RUST / _LISTS}: there is no list of the compiled files: python -m tools.build_wheels"]
    found = [f"{name}: differs from the compiled file, or is missing" for name in compiled(lists[-1]) if not _same(name, package)]
    argv = ["cargo", "metadata", "--quiet", "--locked", "--offline", "--format-version", "1"]
    done = subprocess.run(argv, cwd=package / "rust" / "bridge", capture_output=True, text=True, check=False)
    return [*found, f"{' '.join(argv)}: {done.stderr.strip()}"] if done.returncode else found


def compiled(listing: Path) -> list[Path]:
    """The files of the workspace that the compiler has read, relative to the package, from a list in the format of make."""
    _, _, names = listing.read_text(encoding="utf-8").splitlines()[0].partition(": ")
    paths = [Path(name.replace("\0", " ")) for name in names.replace("\\ ", "\0").split()]
    return [path.relative_to(CORE) for path in paths if path.is_relative_to(CORE)]


def _same(name: Path, package: Path) -> bool:
    return (package / name).is_file() and (package / name).read_bytes() == (CORE / name).read_bytes()

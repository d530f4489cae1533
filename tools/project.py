"""The places of the checkout, and the files that belong to it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "packages"
CORE = PACKAGES / "monarch-core"
RUST = CORE / "rust"
JOBS = PACKAGES / "monarch-jobs"
RDMA = PACKAGES / "monarch-rdma"
FS = PACKAGES / "monarch-fs"
TELEMETRY = PACKAGES / "monarch-telemetry"
SPMD = PACKAGES / "monarch-spmd"
TENSOR = PACKAGES / "monarch-tensor"
COMPAT = PACKAGES / "monarch-compat"
DIST = ROOT / "dist"

# Folders with files that a build or a run made; used only if git cannot answer.
MADE = {".git", ".hatch", "target", "dist", "__pycache__", ".venvs"}


def files(root: Path = ROOT) -> Iterator[Path]:
    """Paths, relative to `root`, of the files that git tracks or would track."""
    if (root / ".git").exists():
        argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(argv, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
        names = sorted(set(filter(None, listed.split("\0"))))
        yield from (Path(name) for name in names if (root / name).is_file())
    else:
        found = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
        yield from (path for path in found if not MADE & set(path.parts))


def commit_time() -> int:
    """The time of the last commit in seconds, which files of a build get; a fixed time without git."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else 1_580_601_600

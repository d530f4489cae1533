"""Go for the programs of the cluster: niced, two packages at a time, with all its files below one folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

WANTED = "1.26"


def go_program() -> str | None:
    """Go's path; None if it is not installed."""
    return shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")


def run_go(work: Path, *arguments: str, folder: Path, capture: bool = False) -> str:
    """Runs Go in `folder` with its caches below `work`; RuntimeError with its last lines if it fails."""
    program = go_program()
    if program is None:
        raise RuntimeError(f"there is no 'go' here, of version {WANTED} or newer")
    env = {
        **os.environ,
        "GOMODCACHE": str(work / "modules"),
        "GOCACHE": str(work / "compiled"),
        "GOTMPDIR": str(work),
        "GOFLAGS": "-modcacherw -buildvcs=false -p=2",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }
    done = subprocess.run(
        ["nice", "-n", "10", program, *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"go {' '.join(arguments[:2])} in {folder}: exit code {done.returncode}\n{(done.stdout or '')[-2000:]}")
    return done.stdout or ""


def module_folder(work: Path, module: str, version: str, *, folder: Path) -> Path:
    """The folder with the sources of a module, downloaded if they are missing."""
    told = json.loads(run_go(work, "mod", "download", "-json", f"{module}@v{version}", folder=folder, capture=True))
    return Path(told["Dir"])

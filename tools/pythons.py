"""Checks the wheels in dist/ and runs the unit tests with every other CPython of this machine, by the environments `pythons` of hatch.toml.

    python -m tools.pythons [ARGUMENT OF PYTEST...]

Versions that are missing are named and left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.project import ROOT


def versions() -> list[str]:
    """The versions of hatch.toml."""
    return tomllib.loads((ROOT / "hatch.toml").read_text(encoding="utf-8"))["envs"]["pythons"]["matrix"][0]["python"]


def interpreter(version: str) -> Path | None:
    """The interpreter of a version, on PATH or of pyenv; None if there is none."""
    name = f"python{version}"
    # A program of pyenv on PATH does nothing but fail if its version is not the active one.
    for command in ((name,), ("pyenv", "exec", name)):
        argv = (*command, "-c", "import sys; print(sys.executable)")
        if shutil.which(argv[0]) is None:
            continue
        env = {**os.environ, "PYENV_VERSION": version} if len(command) > 1 else None
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=env)
        if done.returncode == 0:
            return Path(done.stdout.strip())
    return None


def main(arguments: list[str]) -> int:
    failed: list[str] = []
    for version in versions():
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        python = interpreter(version)
        if python is None:
            print(f"pythons: there is no CPython {version} here", flush=True)
            continue
        # hatch looks for the interpreter on PATH.
        env = {**os.environ, "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])}
        argv = (str(ROOT / "tools" / "hatch"), "run", f"pythons.py{version}:check", *arguments)
        if subprocess.run(argv, env=env, cwd=ROOT, check=False).returncode:
            failed.append(version)
    print(f"pythons: {', '.join(failed)} failed" if failed else "pythons: ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs a command in the development environment, with monarch-tensor and with PyTorch of the environment `torch` (`tools/side_venv.py`).

    python -m tools.with_torch python FILE
    python -m tools.with_torch pytest packages/monarch-tensor/tests/pytorch
    python -m tools.with_torch --if-made COMMAND...    nothing, and exit code 0, if that environment is missing
    python -m tools.with_torch --of torch_2_8 COMMAND...    with another version: the name of its environment

The development environment has neither: monarch-tensor needs PyTorch, which is large, and without it the entry points of monarch-tensor
cannot be loaded. The packages of the other environment come last on the path of modules, so that a package of both is imported from the
development environment. Variables pass that on to every interpreter that the command starts: `PYTHONPATH` has the folder of a
`sitecustomize` that appends the folders in `TORCH_SITE_PACKAGES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools import side_venv
from tools.project import ROOT, TENSOR

MISSING = "there is no environment with torch: python -m tools.side_venv {}"
_START = ROOT / "tools" / "torch_path"
_VARIABLE = "TORCH_SITE_PACKAGES"


def environment(folders: Sequence[Path]) -> dict[str, str]:
    """The variables of this process, and those with which interpreters find packages in `folders` behind their own."""
    path = [str(_START), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        **os.environ,
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(path),
        _VARIABLE: os.pathsep.join(map(str, folders)),
    }


def installed() -> Path:
    """The folder with the metadata of monarch-tensor, which refers to its sources; made once for each `pyproject.toml`."""
    made_of = (TENSOR / "pyproject.toml").read_bytes() + str(TENSOR).encode()
    place = Path(sys.prefix) / "with-torch" / hashlib.sha256(made_of).hexdigest()[:16]
    if not place.is_dir():
        place.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=place.parent) as scratch:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-deps"]
            made = Path(scratch) / "made"
            subprocess.run([*pip, "--no-build-isolation", "--target", str(made), "--editable", str(TENSOR)], check=True)
            with contextlib.suppress(OSError):  # another process has made it meanwhile
                made.rename(place)
    return place


def variables(name: str = "torch") -> dict[str, str] | None:
    """The variables of a process that can import both; None without an environment with PyTorch. `CalledProcessError` of pip."""
    python = side_venv.existing(name)
    if python is None:
        return None
    return environment([installed(), TENSOR / "python", side_venv.site_packages(python)])


def main(arguments: list[str]) -> int:
    optional = arguments[:1] == ["--if-made"]
    command = arguments[optional:]
    name = "torch"
    if command[:1] == ["--of"] and len(command) > 1:
        name, command = command[1], command[2:]
    if not command or command[0].startswith("-"):
        print("usage: python -m tools.with_torch [--if-made] [--of NAME] COMMAND...", file=sys.stderr)
        return 2
    try:
        environ = variables(name)
    except subprocess.CalledProcessError as error:
        print(f"with_torch: monarch-tensor could not be installed: pip ended with exit code {error.returncode}", file=sys.stderr)
        return 1
    if environ is None:
        print(f"with_torch: {MISSING.format(name)}", file=sys.stderr)
        return 0 if optional else 1
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        print(f"with_torch: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Separate environments for tests of packages whose pins exclude the pins of this project.

    python -m tools.side_venv NAME...    makes the missing ones, and prints the interpreter of each

`tools/side_venvs/NAME.txt` pins every package of an environment; a script of `FINISHED_BY` runs in it after the installation. Environments
are kept below `~/.cache/monarch/venvs`, under the hash of the pins, the script and the interpreter: changed pins make another one, the same
pins cost nothing. An environment is complete when it has the file `complete`, which is written last. It cannot be made elsewhere and
renamed, as its scripts contain its path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Generator
from pathlib import Path

from tools.project import ROOT

PINS = ROOT / "tools" / "side_venvs"
# Scripts that the interpreter of an environment runs once its packages are installed. They import nothing of this checkout.
FINISHED_BY: dict[str, Path] = dict.fromkeys(("torch", "torch_2_8"), ROOT / "tools" / "torch_standins.py")
_COMPLETE = "complete"
_LAST_LINES = 20


class SideVenvError(RuntimeError):
    """The packages could not be installed, or not be finished; the text has the last lines of the failed command."""


def names() -> list[str]:
    """The environments that have pins."""
    return sorted(path.stem for path in PINS.glob("*.txt"))


def folder(name: str) -> Path:
    """The folder of the environment, which may not exist yet; `ValueError` for a name without pins."""
    pins = PINS / f"{name}.txt"
    if not pins.is_file():
        raise ValueError(f"there is no environment '{name}'; there is {', '.join(names())}")
    finish = FINISHED_BY.get(name)
    made_of = pins.read_bytes() + (b"" if finish is None else finish.read_bytes())
    # The environment has links to the interpreter, and its packages are for that version.
    key = hashlib.sha256(made_of + f"{sys.version} {os.path.realpath(sys.executable)}".encode()).hexdigest()[:16]
    return _cache() / key


def existing(name: str) -> Path | None:
    """The interpreter of the environment; None if it has not been made. Tests that need it are skipped then."""
    place = folder(name)
    python = place / "bin" / "python"
    return python if (place / _COMPLETE).is_file() and python.exists() else None


def site_packages(python: Path) -> Path:
    """The folder of the packages of an environment, by its interpreter. An interpreter of the same version can import them from there as
    well.
    """
    base = str(python.parents[1])
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": base, "platbase": base}))


def made(name: str) -> Path:
    """The interpreter of the environment, which is made if it is missing; `SideVenvError` if that fails."""
    place = folder(name)
    with _locked(place):
        python = existing(name)
        if python is not None:
            return python
        shutil.rmtree(place, ignore_errors=True)  # an incomplete environment
        try:
            _make(place, PINS / f"{name}.txt", FINISHED_BY.get(name))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        (place / _COMPLETE).write_text(f"{name}\n")
    return place / "bin" / "python"


def _make(place: Path, pins: Path, finish: Path | None) -> None:
    python = str(place / "bin" / "python")
    _run(sys.executable, "-m", "venv", "--without-pip", str(place))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python", python)
    # Every package is pinned, so none brings others.
    _run(*pip, "install", "--quiet", "--no-deps", "--prefer-binary", "--requirement", str(pins))
    if finish is not None:
        _run(python, str(finish))


def _run(*argv: str) -> None:
    # The work takes minutes of a processor, so other work on this machine has precedence.
    nice = ("nice", "-n", "10") if shutil.which("nice") else ()
    # The `PYTHONPATH` of this process is for another environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run((*nice, *argv), env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        words = "\n".join((done.stderr + done.stdout).splitlines()[-_LAST_LINES:])
        raise SideVenvError(f"{' '.join(argv[1:3])} ended with exit code {done.returncode}\n{words}")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monarch" / "venvs"


@contextlib.contextmanager
def _locked(place: Path) -> Generator[None]:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    wanted = sys.argv[1:]
    if not wanted or any(word.startswith("-") for word in wanted):
        print(f"usage: python -m tools.side_venv NAME...\nNAME: {', '.join(names())}", file=sys.stderr)
        return 2
    for name in wanted:
        try:
            print(made(name), flush=True)
        except (ValueError, SideVenvError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
